"""Formats by content, limits before decoding, and every kind of bad bytes as a Defect."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin

from tests.udfs.images import STORED_AS, opened, picture, pixels, saved, stored, with_orientation
from udfs import decode
from udfs.decode import Defect, open_image, sniff, upright_rgb

WHITE = (255, 255, 255)
LIMIT = 10_000_000


def decoded(data: bytes, background: tuple[int, int, int] = WHITE) -> Image.Image:
    return upright_rgb(open_image(data, LIMIT), background)


def defect_of(data: bytes, max_pixels: int = LIMIT) -> Defect:
    with pytest.raises(Defect) as caught:
        upright_rgb(open_image(data, max_pixels), WHITE)
    return caught.value


@pytest.mark.parametrize(
    ("pillow_format", "name"),
    [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tiff"), ("AVIF", "avif")],
)
def test_accepted_formats_are_known_by_content_and_decode(pillow_format: str, name: str) -> None:
    source = picture()
    data = saved(source, pillow_format)
    assert sniff(data) == name
    image = decoded(data)
    assert image.mode == "RGB"
    assert image.size == source.size
    assert np.abs(pixels(image) - pixels(source)).mean() < 12  # GIF has 256 colours


@pytest.mark.parametrize("pillow_format", ["PPM", "JPEG2000", "ICO", "SGI", "DDS", "EPS", "PDF", "QOI"])
def test_formats_outside_the_list_are_unsupported_though_pillow_reads_them(pillow_format: str) -> None:
    assert defect_of(saved(picture(64, 64), pillow_format)).reason == "unsupported_format"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "svg"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- a drawing -->\n<svg width="1">', "svg"),
        (b"<!DOCTYPE html><html><body>403</body></html>", "html"),
        (b"\n <html>not found</html>", "html"),
        (b"8BPS\0\1" + bytes(40), "psd"),
        (b"%PDF-1.7\n", "pdf"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "eps"),
    ],
)
def test_documents_served_as_images_are_refused_by_their_content(data: bytes, name: str) -> None:
    assert sniff(data) == name
    assert defect_of(data).reason == "unsupported_format"


@pytest.mark.parametrize("data", [b"just text", b'{"error": "gone"}', b"BMW is a car maker", b"P5x", bytes(64), b"<a"])
def test_what_is_no_image_says_so(data: bytes) -> None:
    assert sniff(data) is None
    assert defect_of(data).reason == "not_an_image"


def test_no_bytes_are_empty() -> None:
    assert defect_of(b"").reason == "empty"


def test_a_format_without_its_plugin_names_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "find_spec", lambda name: None)
    defect = defect_of(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    assert defect.reason == "unsupported_format"
    assert "pillow-heif" in defect.detail


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_the_pixel_limit_holds_before_any_pixel_is_decoded(pillow_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(picture(100, 80), pillow_format)
    assert open_image(data, 8000).size == (100, 80)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert defect_of(data, 7999).reason == "too_many_pixels"


def test_a_png_that_claims_four_billion_pixels_is_stopped_by_its_header() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    assert defect_of(data).reason == "too_many_pixels"


def test_a_webp_canvas_is_measured_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [picture(64, 64, seed) for seed in range(2)]
    for data in (saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]), saved(frames[0], "WEBP", lossless=True)):
        monkeypatch.setattr(decode, "_open", lambda data, name: pytest.fail("opened"))
        assert defect_of(data, 4095).reason == "too_many_pixels"


def test_images_above_pillows_own_limit_pass_when_ours_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert open_image(saved(picture(100, 80), "PNG"), LIMIT).size == (100, 80)
    assert Image.MAX_IMAGE_PIXELS == 1000


@pytest.mark.parametrize(
    ("pillow_format", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("BMP", {}), ("GIF", {})]
)
def test_an_image_cut_at_half_is_truncated(pillow_format: str, options: dict[str, object]) -> None:
    data = saved(picture(), pillow_format, **options)
    assert defect_of(data[: len(data) // 2]).reason == "truncated"


@pytest.mark.parametrize("pillow_format", ["WEBP", "AVIF", "TIFF"])
def test_any_other_image_cut_at_half_is_a_defect(pillow_format: str) -> None:
    data = saved(picture(), pillow_format)
    assert defect_of(data[: len(data) // 2]).reason in ("truncated", "corrupt")


def test_a_truncated_image_is_rejected_even_if_another_library_told_pillow_to_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = saved(picture(), "PNG")
    assert defect_of(data[: len(data) // 2]).reason == "truncated"


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_damaged_bytes_raise_nothing_but_defects(pillow_format: str) -> None:
    data = saved(picture(60, 40), pillow_format)
    random = np.random.default_rng(7)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(data)
        for at in random.integers(4, len(data) if random.random() < 0.5 else min(len(data), 120), random.integers(1, 8)):
            damaged[at] = random.integers(256)
        try:
            outcomes.add(decoded(bytes(damaged)).mode)
        except Defect as defect:
            outcomes.add(defect.reason)
    assert outcomes - {"RGB"}, "no damage was noticed at all"


def test_a_codec_that_runs_out_of_memory_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Image.Image) -> None:
        raise MemoryError

    image = open_image(saved(picture(60, 40), "PNG"), LIMIT)
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    with pytest.raises(Defect, match="out_of_memory"):
        upright_rgb(image, WHITE)


def test_a_defect_detail_is_one_short_line_without_addresses() -> None:
    detail = defect_of(b"\xff\xd8\xff\xe0" + bytes(30)).detail
    assert "0x" not in detail
    assert len(Defect("corrupt", "many\nlines " * 200).detail) <= 200
    assert "\n" not in Defect("corrupt", "two\nlines").detail


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("pillow_format", ["PNG", "TIFF", "JPEG"])
def test_exif_orientation_is_applied(orientation: int, pillow_format: str) -> None:
    upright = picture(96, 64)
    data = saved(stored(upright, orientation), pillow_format, exif=with_orientation(orientation))
    image = decoded(data)
    assert image.size == upright.size
    assert np.abs(pixels(image) - pixels(upright)).mean() < (10 if pillow_format == "JPEG" else 0.01)


def test_an_unknown_orientation_changes_nothing() -> None:
    upright = picture(96, 64)
    assert decoded(saved(upright, "PNG", exif=with_orientation(9))).size == (96, 64)


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0garbage that is no TIFF header",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0" * 3,
        # XResolution = 1/0 beside a sound orientation.
        b"Exif\0\0II*\0\x08\0\0\0\x02\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x1a\x01\x05\0\x01\0\0\0\x26\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
    ],
)
def test_broken_exif_costs_no_picture(exif: bytes) -> None:
    assert sorted(decoded(saved(picture(96, 64), "JPEG", exif=exif)).size) == [64, 96]


def test_a_zero_denominator_does_not_hide_the_orientation_beside_it() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x1a\x01\x05\0\x01\0\0\0\x26\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
    assert decoded(saved(picture(96, 64), "JPEG", exif=exif)).size == (64, 96)


def test_bad_utf8_in_xmp_costs_no_picture() -> None:
    data = saved(picture(96, 64), "JPEG", xmp=b"<x:xmpmeta tiff:Bad='\xff\xfe\xfa'>")
    assert decoded(data).size == (96, 64)


def test_a_png_with_megabytes_of_text_is_kept() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * 3_000_000, zip=True)
    source = picture(96, 64)
    assert np.array_equal(pixels(decoded(saved(source, "PNG", pnginfo=info))), pixels(source))


def test_mpo_gives_its_first_frame() -> None:
    first, second = picture(96, 64, 1), picture(96, 64, 2)
    data = saved(first, "MPO", save_all=True, append_images=[second])
    assert opened(data).format == "MPO"
    assert np.abs(pixels(decoded(data)) - pixels(first)).mean() < 10


@pytest.mark.parametrize("pillow_format", ["GIF", "PNG", "WEBP"])
def test_animations_give_their_first_frame(pillow_format: str) -> None:
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
    data = saved(frames[0], pillow_format, save_all=True, append_images=frames[1:], duration=100)
    red, _, blue = decoded(data).getpixel((20, 15))
    assert red > 240 > 15 > blue
