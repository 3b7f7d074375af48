"""The bucket JPEG: exact size, upright RGB, near plain Pillow, whole or a Defect."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from imagelake import jpeg as markers
from tests.udfs.images import STORED_AS, opened, photographs, picture, pixels, psnr_db, saved, stored, with_orientation
from udfs import colour, jpeg
from udfs import pixels as pixels_module
from udfs.decode import Defect
from udfs.facts import image_facts
from udfs.pixels import bucket_jpeg

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL_DATA = Path(os.environ.get("IMAGELAKE_SMALL_DATA", REPOSITORY.parent / "shared" / "data" / "small"))
LANCZOS = Image.Resampling.LANCZOS


def plain(data: bytes, width: int, height: int) -> Image.Image:
    return ImageOps.exif_transpose(opened(data)).convert("RGB").resize((width, height), LANCZOS)


@pytest.mark.parametrize("quality", [75, 92, 95])
def test_the_jpeg_is_rgb_420_without_metadata_with_pillows_tables(quality: int) -> None:
    data = saved(picture(640, 480), "JPEG", exif=with_orientation(1), comment=b"serial 123", xmp=b"<x/>")
    result = bucket_jpeg(data, 544, 480, quality=quality)
    info = markers.parse(result)
    expected = markers.parse(saved(picture(64, 64), "JPEG", quality=quality))
    assert (info.width, info.height, info.bits, info.is_420, info.metadata) == (544, 480, 8, True, ())
    assert info.quantisation == expected.quantisation
    assert opened(result).mode == "RGB"


@pytest.mark.parametrize("number", range(7))
def test_photographs_are_within_40_db_of_plain_pillow(number: int) -> None:
    found = photographs()
    if number >= len(found):
        pytest.skip("scikit-image ships fewer photographs here")
    photograph = found[number]
    for source, target in (((960, 640), (640, 416)), ((1500, 1300), (1088, 960)), ((1400, 900), (640, 384)), ((300, 300), (512, 512))):
        data = saved(photograph.resize(source, LANCZOS), "JPEG", quality=92)
        result = opened(bucket_jpeg(data, *target))
        reference = plain(data, *target)
        assert psnr_db(result, opened(saved(reference, "JPEG", quality=92))) >= 40, source


@pytest.mark.parametrize("number", range(7))
def test_before_encoding_photographs_differ_from_plain_pillow_by_rounding_only(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = photographs()
    if number >= len(found):
        pytest.skip("scikit-image ships fewer photographs here")
    seen = []
    monkeypatch.setattr(pixels_module, "encode", lambda array, quality: seen.append(array) or b"")
    data = saved(found[number].resize((1280, 854), LANCZOS), "JPEG", quality=92)
    bucket_jpeg(data, 640, 416)
    assert psnr_db(Image.fromarray(seen[0][:, :, :3]), plain(data, 640, 416)) >= 50


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG"])
def test_any_orientation_comes_out_upright(orientation: int, pillow_format: str) -> None:
    upright = picture(300, 200)
    data = saved(stored(upright, orientation), pillow_format, exif=with_orientation(orientation))
    result = opened(bucket_jpeg(data, 192, 128))
    assert result.size == (192, 128)
    # Of other orientations it would be below 20 dB.
    assert psnr_db(result, upright.resize((192, 128), LANCZOS)) > 27


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_crop_takes_the_middle_in_the_ratio_of_the_shape(pillow_format: str, orientation: int) -> None:
    upright = Image.new("RGB", (600, 200), "red")
    upright.paste("blue", (200, 0, 400, 200))
    data = saved(stored(upright, orientation), pillow_format, exif=with_orientation(orientation))
    cropped = opened(bucket_jpeg(data, 128, 128, crop=True))
    red, _, blue = pixels(cropped).reshape(-1, 3).mean(axis=0)
    assert red < 12
    assert blue > 240
    stretched = pixels(opened(bucket_jpeg(data, 128, 128)))
    assert stretched[64, 10, 0] > 240, "without crop the red sides stay"


def test_crop_is_pillows_fit() -> None:
    source = picture(600, 200)
    cropped = opened(bucket_jpeg(saved(source, "PNG"), 256, 128, crop=True, quality=95))
    assert psnr_db(cropped, ImageOps.fit(source, (256, 128), LANCZOS)) > 28


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 128, 255)])
def test_transparent_pixels_lie_on_the_background(background: tuple[int, int, int]) -> None:
    data = saved(Image.new("RGBA", (64, 64), (255, 0, 0, 0)), "PNG")
    result = pixels(opened(bucket_jpeg(data, 32, 32, background=background)))
    assert np.abs(result - np.array(background)).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    source = picture(300, 200)
    image = Image.fromarray(np.asarray(source.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else source.convert(mode)
    result = opened(bucket_jpeg(saved(image, "TIFF" if mode == "CMYK" else "PNG"), 96, 64))
    assert (result.mode, result.size) == ("RGB", (96, 64))
    assert abs(pixels(result).mean() - pixels(source).mean()) < 4


def swapped_profile() -> bytes:
    """sRGB with its red and blue primaries exchanged."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    entries = {bytes(data[at : at + 4]): at for at in range(132, 132 + 12 * int.from_bytes(data[128:132], "big"), 12)}
    for name, other in ((b"rXYZ", b"bXYZ"), (b"bXYZ", b"rXYZ")):
        data[entries[name] : entries[name] + 4] = other
    return bytes(data)


def test_the_profile_of_a_jpeg_is_applied_as_if_before_the_resize() -> None:
    source = picture(640, 480)
    data = saved(source, "JPEG", quality=95, icc_profile=swapped_profile())
    result = opened(bucket_jpeg(data, 544, 480, quality=95))
    first = colour.to_srgb(opened(data), swapped_profile()).resize((544, 480), LANCZOS)
    assert psnr_db(first, opened(data).resize((544, 480))) < 35, "the profile does nothing"
    assert psnr_db(result, opened(saved(first, "JPEG", quality=95))) >= 38


def test_an_srgb_profile_keeps_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels_module, "upright_rgb", lambda *_: pytest.fail("the slow way"))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain_result = bucket_jpeg(saved(picture(640, 480), "JPEG"), 544, 480)
    assert bucket_jpeg(saved(picture(640, 480), "JPEG", icc_profile=profile), 544, 480) == plain_result
    bucket_jpeg(saved(picture(640, 480).convert("L"), "JPEG"), 544, 480)


def test_fast_and_slow_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(picture(640, 480), "JPEG")
    fast = bucket_jpeg(data, 544, 480)
    monkeypatch.setattr(jpeg, "decode", lambda *_, **__: None)
    assert bucket_jpeg(data, 544, 480) == fast


def test_the_same_bytes_give_the_same_jpeg() -> None:
    data = saved(picture(640, 480), "JPEG")
    assert bucket_jpeg(data, 544, 480) == bucket_jpeg(data, 544, 480)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "empty"), (b"text", "not_an_image"), (b"<svg>", "unsupported_format"), (saved(picture(40, 30), "PNG")[:900], "truncated")],
)
def test_bad_bytes_are_a_defect(data: bytes, reason: str) -> None:
    with pytest.raises(Defect) as caught:
        bucket_jpeg(data, 64, 48)
    assert caught.value.reason == reason


def test_the_pixel_limit_is_checked() -> None:
    with pytest.raises(Defect, match="too_many_pixels"):
        bucket_jpeg(saved(picture(100, 80), "JPEG"), 64, 48, max_pixels=7999)


@pytest.mark.skipif(not SMALL_DATA.is_dir(), reason=f"the small data set is not at {SMALL_DATA}")
def test_every_file_of_the_small_data_set_gives_a_valid_jpeg_or_a_defect() -> None:
    outcomes: Counter[str] = Counter()
    for path in sorted(path for path in SMALL_DATA.rglob("*") if path.is_file()):
        data = path.read_bytes()
        facts = image_facts(data, max_pixels=50_000_000)
        try:
            result = bucket_jpeg(data, 128, 96, max_pixels=50_000_000)
        except Defect as defect:
            assert defect.reason == facts.defect, path
            outcomes[defect.reason] += 1
            continue
        assert facts.defect is None, path
        assert facts.width is not None, path
        assert facts.phash is not None, path
        info = markers.parse(result)
        assert (info.width, info.height, info.is_420, info.metadata) == (128, 96, True, ()), path
        assert opened(result).mode == "RGB", path
        outcomes["kept"] += 1
    assert outcomes["kept"] > 300
    assert {"truncated", "corrupt", "not_an_image", "unsupported_format", "too_many_pixels", "empty"} <= set(outcomes)
