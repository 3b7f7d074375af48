"""Facts of one decode: what is stored of a picture, and what of bytes that give none."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, PngImagePlugin

from tests.udfs.images import STORED_AS, opened, photographs, picture, saved, stored, with_orientation
from udfs import jpeg
from udfs.facts import HASH_MIN_SIDE, Facts, image_facts
from udfs.phash import hamming, phash64

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL_DATA = Path(os.environ.get("IMAGELAKE_SMALL_DATA", REPOSITORY.parent / "shared" / "data" / "small"))


def full_decode_hash(data: bytes) -> int:
    return phash64(np.asarray(opened(data).convert("L")))


def test_facts_of_a_photograph() -> None:
    data = saved(picture(640, 427), "JPEG", quality=90)
    facts = image_facts(data)
    assert facts == Facts(
        sha256=hashlib.sha256(data).hexdigest(),
        byte_size=len(data),
        format="jpeg",
        width=640,
        height=427,
        exif_orientation=1,
        mode="RGB",
        phash=facts.phash,
        is_flat=False,
    )
    assert facts.phash is not None
    assert hamming(facts.phash, full_decode_hash(data)) <= 2


def test_width_and_height_are_upright() -> None:
    facts = image_facts(saved(picture(400, 300), "JPEG", exif=with_orientation(6)))
    assert (facts.width, facts.height, facts.exif_orientation) == (300, 400, 6)


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("pillow_format", ["PNG", "TIFF", "WEBP"])
def test_a_rotated_copy_has_the_hash_and_size_of_its_upright_copy(orientation: int, pillow_format: str) -> None:
    upright = picture(333, 250)
    options = {"lossless": True} if pillow_format == "WEBP" else {}
    rotated = image_facts(saved(stored(upright, orientation), pillow_format, exif=with_orientation(orientation), **options))
    straight = image_facts(saved(upright, pillow_format, **options))
    assert rotated.exif_orientation == orientation
    assert (rotated.width, rotated.height, rotated.phash) == (straight.width, straight.height, straight.phash)


@pytest.mark.parametrize("orientation", STORED_AS)
def test_a_rotated_jpeg_has_the_hash_of_its_upright_copy(orientation: int) -> None:
    upright = picture(1280, 960, 5)
    rotated = image_facts(saved(stored(upright, orientation), "JPEG", quality=95, exif=with_orientation(orientation)))
    straight = image_facts(saved(upright, "JPEG", quality=95))
    assert (rotated.width, rotated.height) == (1280, 960)
    assert rotated.phash is not None
    assert straight.phash is not None
    assert hamming(rotated.phash, straight.phash) <= 1


def test_orientation_behind_the_pixels_of_a_png_counts() -> None:
    data = saved(picture(96, 64), "PNG", exif=with_orientation(6))
    at = data.index(b"eXIf") - 4
    length = 12 + int.from_bytes(data[at : at + 4], "big")
    late = data[:at] + data[at + length : -12] + data[at : at + length] + data[-12:]
    facts = image_facts(late)
    assert (facts.exif_orientation, facts.width, facts.height) == (6, 64, 96)


def test_the_reduced_decode_keeps_the_hash_within_tolerance_on_photographs() -> None:
    distances = []
    for photograph in photographs():
        for size in ((1600, 1200), (1200, 1600), (900, 700), (640, 427)):
            data = saved(photograph.resize(size, Image.Resampling.LANCZOS), "JPEG", quality=90)
            facts = image_facts(data)
            assert facts.phash is not None
            distances.append(hamming(facts.phash, full_decode_hash(data)))
    assert np.mean(np.array(distances) <= 2) >= 0.99
    assert np.mean(np.array(distances) == 0) >= 0.85


def test_large_jpegs_are_decoded_at_a_fraction_for_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    decode = jpeg.decode

    def seen(data: bytes, mode: str, *, min_side: int | None = None) -> np.ndarray | None:
        pixels = decode(data, mode, min_side=min_side)
        shapes.append(None if pixels is None else pixels.shape)
        return pixels

    monkeypatch.setattr(jpeg, "decode", seen)
    image_facts(saved(picture(1600, 1200), "JPEG"))
    assert shapes == [(300, 400)]
    assert min(shapes[0]) >= HASH_MIN_SIDE


def logo(inside: int, shape: str) -> bytes:
    """A shape drawn in alpha alone, in one grey."""
    alpha = Image.new("L", (300, 200), 0)
    draw = ImageDraw.Draw(alpha)
    for step in range(8):
        box = (10 + 35 * step, 20, 30 + 35 * step, 180 - 15 * step)
        if shape == "bars":
            draw.rectangle(box, fill=255)
        else:
            draw.ellipse((box[0], box[1] + 5 * step, box[2], box[3]), fill=255)
    image = Image.new("RGB", (300, 200), (inside,) * 3)
    image.putalpha(alpha)
    return saved(image, "PNG")


def test_pictures_drawn_in_alpha_are_hashed_on_white_and_on_black() -> None:
    white_bars, white_dots, black_bars = (image_facts(logo(*which)) for which in ((255, "bars"), (255, "dots"), (0, "bars")))
    assert white_bars.phash == white_dots.phash, "on white, both are white"
    assert white_bars.phash_black != white_dots.phash_black
    assert black_bars.phash != white_bars.phash
    assert not white_bars.is_flat, "on black it shows"


def test_an_alpha_channel_that_hides_nothing_is_no_alpha() -> None:
    opaque = picture(300, 200)
    with_alpha = opaque.copy()
    with_alpha.putalpha(255)
    facts = image_facts(saved(with_alpha, "PNG"))
    assert facts.mode == "RGBA"
    assert facts.phash_black is None
    assert facts.phash == image_facts(saved(opaque, "PNG")).phash


@pytest.mark.parametrize("colour", ["white", "blue", "grey"])
def test_one_coloured_pictures_are_flat(colour: str) -> None:
    image = Image.new("RGB", (600, 400), colour)
    image.putpixel((100, 100), (0, 0, 0))
    for pillow_format in ("PNG", "JPEG"):
        assert image_facts(saved(image, pillow_format)).is_flat


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_every_mode_has_facts(mode: str) -> None:
    source = picture(300, 200)
    image = Image.fromarray(np.asarray(source.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else source.convert(mode)
    facts = image_facts(saved(image, "TIFF" if mode == "CMYK" else "PNG"))
    assert facts.defect is None
    assert facts.mode == mode
    assert facts.phash is not None
    limit = {"1": 12, "P": 10, "CMYK": 4}.get(mode, 2)
    assert hamming(facts.phash, phash64(np.asarray(source.convert("L")))) <= limit


def test_the_defect_of_bad_bytes_is_in_the_facts_with_their_sha256() -> None:
    data = b"<html>gone</html>"
    facts = image_facts(data)
    assert (facts.sha256, facts.byte_size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (facts.defect, facts.format, facts.phash, facts.is_flat) == ("unsupported_format", "html", None, None)


def test_a_truncated_picture_keeps_what_its_header_says() -> None:
    data = saved(picture(400, 300), "JPEG", exif=with_orientation(6))
    facts = image_facts(data[: len(data) // 2])
    assert (facts.defect, facts.width, facts.height, facts.format) == ("truncated", 300, 400, "jpeg")
    assert facts.phash is None


def test_the_pixel_limit_is_the_callers() -> None:
    data = saved(picture(100, 80), "PNG")
    assert image_facts(data, max_pixels=8000).defect is None
    assert image_facts(data, max_pixels=7999).defect == "too_many_pixels"


def test_a_png_that_fails_while_its_metadata_are_sought_is_not_read_half(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(picture(300, 200), "PNG")
    loads = []
    load = PngImagePlugin.PngImageFile.load
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: (loads.append(1), load(self))[1])
    assert image_facts(data[: len(data) // 2]).defect == "truncated"
    assert len(loads) == 1, "a second attempt may find what the first one left behind"


@pytest.mark.skipif(not SMALL_DATA.is_dir(), reason=f"the small data set is not at {SMALL_DATA}")
def test_reduced_and_full_hashes_agree_on_the_photographs_of_the_small_data_set() -> None:
    distances = []
    for path in sorted((SMALL_DATA / "photos").rglob("*.jpg")):
        data = path.read_bytes()
        facts = image_facts(data)
        if facts.exif_orientation == 1 and facts.format == "jpeg":
            assert facts.phash is not None, path
            distances.append(hamming(facts.phash, full_decode_hash(data)))
    assert len(distances) > 50
    assert np.mean(np.array(distances) <= 2) >= 0.99
    assert np.mean(np.array(distances) == 0) >= 0.85
