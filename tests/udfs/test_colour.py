"""Depth, colour spaces and transparency: what any source becomes as 8-bit RGB."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.udfs.images import opened, picture, pixels, saved
from udfs import colour
from udfs.decode import open_image, upright_rgb

WHITE = (255, 255, 255)


def decoded(data: bytes, background: tuple[int, int, int] = WHITE) -> Image.Image:
    return upright_rgb(open_image(data, 10_000_000), background)


@pytest.mark.parametrize("pillow_format", ["PNG", "TIFF"])
def test_a_16_bit_gradient_is_scaled_not_clipped(pillow_format: str) -> None:
    gradient = np.tile(np.linspace(0, 65535, 512).astype(np.uint16), (16, 1))
    image = decoded(saved(Image.fromarray(gradient), pillow_format))
    assert image.mode == "RGB"
    assert abs(pixels(image).mean() - 127.5) < 0.6
    assert image.getextrema() == ((0, 255),) * 3


def test_big_endian_16_bit_tiff_is_scaled() -> None:
    values = np.full((8, 8), 0x8000, np.uint16)
    data = saved(Image.frombytes("I;16B", (8, 8), values.astype(">u2").tobytes()), "TIFF")
    assert opened(data).mode == "I;16B"
    assert decoded(data).getpixel((3, 3)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 257, 65535]], np.uint16), [0, 1, 255]),
        (np.array([[0, 32896, 65535]], np.int32), [0, 128, 255]),
        (np.array([[0, 100]], np.int32), [0, 0]),
        (np.array([[-100, 100]], np.int32), [0, 255]),
        (np.array([[0, 1 << 20]], np.int32), [0, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 128.0, 255.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 65535.0]], np.float32), [0, 255]),
        (np.array([[np.nan, 1.0, np.inf]], np.float32), [0, 255, 0]),
        (np.array([[-5.0, -5.0]], np.float32), [0, 0]),
    ],
)
def test_values_of_any_depth_map_to_8_bits(values: np.ndarray, expected: list[int]) -> None:
    assert colour.scaled(values).dtype == np.uint8
    assert colour.scaled(values)[0].tolist() == expected


def test_float_tiff_becomes_a_visible_picture() -> None:
    values = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    assert abs(pixels(decoded(saved(Image.fromarray(values), "TIFF"))).mean() - 127.5) < 1


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palette_become_rgb(mode: str) -> None:
    image = decoded(saved(picture(40, 30).convert(mode), "PNG"))
    assert image.mode == "RGB"
    assert image.size == (40, 30)


HALF = Image.new("L", (40, 30), 0)
HALF.paste(255, (20, 0, 40, 30))


def transparent(mode: str) -> bytes:
    """Left half transparent, right half a dark grey of 60."""
    if mode in ("RGBA", "LA"):
        image = Image.new(mode.removesuffix("A") if mode == "LA" else "RGB", (40, 30), 60 if mode == "LA" else (60, 60, 60))
        image.putalpha(HALF)
        return saved(image, "PNG")
    flat = Image.new("L", (40, 30), 60)
    flat.paste(200, (0, 0, 20, 30))
    if mode == "P":
        palette = Image.new("P", (40, 30), 1)
        palette.putpalette([200] * 3 + [60] * 3)
        palette.paste(0, (0, 0, 20, 30))
        return saved(palette, "PNG", transparency=0)
    if mode == "I;16":
        return saved(Image.fromarray(np.asarray(flat).astype(np.uint16) * 257), "PNG", transparency=200 * 257)
    return saved(flat.convert(mode), "PNG", transparency=200 if mode == "L" else (200, 200, 200))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB", "I;16"])
@pytest.mark.parametrize("background", [WHITE, (10, 200, 30)])
def test_transparency_is_put_on_the_background(mode: str, background: tuple[int, int, int]) -> None:
    image = decoded(transparent(mode), background)
    assert image.getpixel((5, 15)) == background
    assert image.getpixel((35, 15)) == (60, 60, 60)


def test_half_transparent_pixels_mix_with_the_background() -> None:
    data = saved(Image.new("RGBA", (8, 8), (0, 0, 0, 128)), "PNG")
    assert decoded(data).getpixel((4, 4)) == (127, 127, 127)


def test_the_alpha_of_a_palette_is_applied_in_pa_images() -> None:
    image = Image.new("RGB", (8, 8), (60, 60, 60)).convert("P").convert("PA")
    image.putalpha(0)
    assert upright_rgb(image, WHITE).getpixel((4, 4)) == WHITE


def test_cmyk_jpeg_has_its_own_colours_not_their_negative() -> None:
    rgb = Image.new("RGB", (64, 64), (200, 40, 30))
    data = saved(rgb.convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in data
    red, green, blue = decoded(data).getpixel((32, 32))
    assert red > 180
    assert green < 70
    assert blue < 70


def profile_of(name: str) -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile(name)).tobytes()


def swapped_profile() -> bytes:
    """sRGB with its red and blue primaries exchanged: what it does can't be mistaken for rounding."""
    data = bytearray(profile_of("sRGB"))
    count = int.from_bytes(data[128:132], "big")
    entries = {bytes(data[at : at + 4]): at for at in range(132, 132 + 12 * count, 12)}
    red, blue = entries[b"rXYZ"], entries[b"bXYZ"]
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


def test_an_icc_profile_is_applied() -> None:
    data = saved(Image.new("RGB", (16, 16), (220, 30, 30)), "PNG", icc_profile=swapped_profile())
    red, _, blue = decoded(data).getpixel((8, 8))
    assert blue > 200 > 60 > red


def test_an_srgb_profile_changes_nothing_and_costs_nothing() -> None:
    profile = profile_of("sRGB")
    assert colour.transform_of(profile, "RGB") is None
    source = picture(60, 40)
    assert np.array_equal(pixels(decoded(saved(source, "PNG", icc_profile=profile))), pixels(source))


def test_an_icc_profile_is_applied_beside_alpha() -> None:
    image = Image.new("RGBA", (16, 16), (220, 30, 30, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    result = decoded(saved(image, "PNG", icc_profile=swapped_profile()))
    assert result.getpixel((0, 0)) == WHITE
    assert result.getpixel((8, 8))[2] > 200


@pytest.mark.parametrize("profile", [b"broken", bytes(200), profile_of("sRGB")[:300], profile_of("LAB")])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_broken_or_unfitting_profile_is_taken_as_srgb(profile: bytes, mode: str) -> None:
    source = picture(60, 40).convert(mode)
    data = saved(source, "JPEG", quality=95, icc_profile=profile)
    plain = saved(source, "JPEG", quality=95)
    assert np.array_equal(pixels(decoded(data)), pixels(decoded(plain)))


def test_lab_tiff_is_converted() -> None:
    lab = ImageCms.applyTransform(
        Image.new("RGB", (16, 16), (200, 40, 30)),
        ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"),
    )
    assert np.abs(np.subtract(decoded(saved(lab, "TIFF")).getpixel((8, 8)), (200, 40, 30))).max() <= 4


def test_16_bit_rgb_png_keeps_its_range() -> None:
    # Pillow writes no 16-bit RGB: the chunks are made here.
    row = b"\0" + struct.pack(">6H", 65535, 32768, 0, 0, 32768, 65535)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    assert opened(data).size == (2, 1)
    assert decoded(data).getpixel((0, 0)) == (255, 128, 0)
    assert decoded(data).getpixel((1, 0)) == (0, 128, 255)
