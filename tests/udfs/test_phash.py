"""The perceptual hash: the same on every machine, near its definition in plain Pillow and numpy, blind to nothing it must see."""

from __future__ import annotations

import numpy as np
import pytest
from cykooz_resizer import CpuExtensions
from PIL import Image, ImageDraw

from tests.udfs.images import photographs, picture
from udfs import resize
from udfs.phash import LEVEL, PHASH_VERSION, hamming, is_flat, phash64, thumbnail


def luma(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L"))


def pattern(seed: int, side: int = 32) -> np.ndarray:
    """uint8 [side, side] from integers alone, so that the vectors below hang on no library's random numbers."""
    state, values = seed, []
    for _ in range(64):
        state = (state * 1103515245 + 12345) % (1 << 31)
        values.append(state >> 23)
    coarse = np.array(values, np.uint8).reshape(8, 8)
    return np.kron(coarse, np.ones((side // 8, side // 8), np.uint8)).astype(np.uint8)


def plain_hash(image: Image.Image) -> int:
    """The definition, straight: Pillow's Lanczos, the sum that DCT-II is, the median."""
    small = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), np.float64)
    n = np.arange(32)
    basis = np.array([np.cos(np.pi * k * (2 * n + 1) / 64) * np.sqrt((1 if k == 0 else 2) / 32) for k in range(8)])
    block = np.einsum("ky,lx,yx->kl", basis, basis, small).ravel()
    bits = "".join("1" if value > np.median(block[1:]) else "0" for value in block)
    unsigned = int(bits, 2)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


GOLDEN_32 = {
    1: -5688871583297055285,
    2: -2260355654831495368,
    3: -3092923112026686670,
    42: -8291925289788855828,
    2024: -8921318379362536270,
    99999: -5394896837192816127,
}
GOLDEN_256 = {
    1: -5688871583297055285,
    2: -2260355654831495368,
    3: -3092923112026686670,
    42: -8291925289788855828,
    2024: -8921318379362536270,
    99999: -5394896837192816127,
}


@pytest.mark.parametrize("seed", GOLDEN_32)
def test_golden_vectors_of_32_by_32(seed: int) -> None:
    assert PHASH_VERSION == 1, "a new version has new vectors"
    assert phash64(pattern(seed)) == GOLDEN_32[seed]


@pytest.mark.parametrize("seed", GOLDEN_256)
def test_golden_vectors_of_256_by_256_hold_the_resizer_too(seed: int) -> None:
    assert phash64(pattern(seed, 256)) == GOLDEN_256[seed]


@pytest.mark.parametrize("extensions", list(CpuExtensions)[:3])
def test_the_thumbnail_is_the_same_with_and_without_simd(extensions: CpuExtensions, monkeypatch: pytest.MonkeyPatch) -> None:
    image = luma(picture(333, 217))
    usual = thumbnail(image)
    other = resize.Resizer()
    other.cpu_extensions = extensions
    monkeypatch.setattr(resize, "_resizer", lambda: other)
    assert np.array_equal(thumbnail(image), usual)


def test_the_hash_is_its_definition_within_the_rounding_of_the_thumbnail() -> None:
    images = [picture(400, 300, seed) for seed in range(60)] + photographs()
    distances = [hamming(phash64(luma(image)), plain_hash(image)) for image in images]
    assert max(distances) <= 2
    assert np.mean(np.array(distances) == 0) >= 0.85


def test_the_thumbnail_is_pillows_lanczos_before_rounding() -> None:
    image = picture(640, 427).convert("L")
    reference = np.asarray(image.convert("F").resize((32, 32), Image.Resampling.LANCZOS))
    difference = np.abs(thumbnail(np.asarray(image)) / LEVEL - reference)
    assert difference.mean() < 0.01
    assert difference.max() < 0.5, "more than the clipping of the overshoot explains"


def test_large_luma_is_reduced_first_without_a_change_of_the_hash() -> None:
    images = [luma(picture(1700, 1300, seed)) for seed in range(6)]
    for image in images:
        reference = np.asarray(Image.fromarray(image).convert("F").resize((32, 32), Image.Resampling.LANCZOS))
        assert np.abs(thumbnail(image) / LEVEL - reference).max() < 1


def test_hashes_are_signed_64_bit_with_both_signs_possible() -> None:
    assert -(1 << 63) <= phash64(luma(picture())) < 0, "bit 63 is DC, above the median of any bright picture"
    assert phash64(np.zeros((32, 32), np.uint8)) == 0
    assert phash64(np.full((32, 32), 255, np.uint8)) == -(1 << 63)


def test_hamming_counts_bits_of_signed_hashes() -> None:
    assert hamming(-1, 0) == 64
    assert hamming(-(1 << 63), 0) == 1
    assert hamming(5, 6) == 2
    assert hamming(-7, -7) == 0


def test_different_pictures_are_far_apart_and_copies_are_near() -> None:
    one, other = picture(400, 300, 1), picture(400, 300, 2)
    assert hamming(phash64(luma(one)), phash64(luma(other))) > 16
    assert hamming(phash64(luma(one)), phash64(luma(one.resize((200, 150), Image.Resampling.BICUBIC)))) <= 2


def one_dot(colour: str) -> Image.Image:
    image = Image.new("RGB", (640, 480), colour)
    image.putpixel((300, 200), (0, 0, 0))
    return image


@pytest.mark.parametrize("colour", ["white", "blue", "grey", "black"])
def test_one_colour_with_or_without_a_dot_is_flat(colour: str) -> None:
    assert is_flat(luma(Image.new("RGB", (640, 480), colour)))
    assert is_flat(luma(one_dot(colour)))


def test_gradients_and_halves_are_flat() -> None:
    halves = Image.new("L", (640, 480), 255)
    ImageDraw.Draw(halves).rectangle((320, 0, 640, 480), fill=0)
    for image in (Image.linear_gradient("L"), Image.linear_gradient("L").rotate(90), halves):
        assert is_flat(luma(image))


def test_noise_without_a_picture_is_flat() -> None:
    noise = np.random.default_rng(0).normal(128, 4, (480, 640)).astype(np.uint8)
    assert is_flat(noise)


def test_pictures_are_not_flat() -> None:
    assert not any(is_flat(luma(picture(400, 300, seed))) for seed in range(20))
    assert not any(is_flat(luma(photograph)) for photograph in photographs())


def test_a_faint_picture_is_not_flat() -> None:
    faint = (luma(picture(400, 300)) // 5 + 100).astype(np.uint8)
    assert not is_flat(faint)
