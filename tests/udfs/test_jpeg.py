"""The fast JPEG decoder gives Pillow's pixels or leaves the file to Pillow, and no half-read JPEG passes by either way."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.udfs.images import opened, picture, pixels, saved
from udfs import jpeg
from udfs.decode import Defect
from udfs.facts import image_facts
from udfs.pixels import bucket_jpeg

EOI = b"\xff\xd9"
KINDS = {
    "baseline": {"quality": 90},
    "progressive": {"quality": 90, "progressive": True},
    "restarts": {"quality": 90, "restart_marker_rows": 1},
    "444": {"quality": 95, "subsampling": 0},
    "422": {"quality": 95, "subsampling": 1},
}


def whole(kind: str = "baseline", mode: str = "RGB") -> bytes:
    return saved(picture(330, 250).convert(mode), "JPEG", **KINDS[kind])


def reasons(data: bytes) -> set[str | None]:
    """What facts and pixels say of a file: they must agree."""
    try:
        bucket_jpeg(data, 64, 48)
    except Defect as defect:
        return {image_facts(data).defect, defect.reason}
    return {image_facts(data).defect, None}


@pytest.mark.parametrize("kind", KINDS)
def test_fast_pixels_are_pillows(kind: str) -> None:
    data = whole(kind)
    fast = jpeg.decode(data, "RGBX")
    assert fast is not None
    assert np.array_equal(fast[:, :, :3], np.asarray(opened(data)))


def test_fast_grey_is_pillows() -> None:
    data = whole(mode="L")
    luma, rgbx = jpeg.decode(data, "GRAY"), jpeg.decode(data, "RGBX")
    assert luma is not None
    assert rgbx is not None
    assert np.array_equal(luma, np.asarray(opened(data)))
    assert np.array_equal(rgbx[:, :, 1], luma)


@pytest.mark.parametrize(("min_side", "size"), [(None, (250, 330)), (126, (250, 330)), (125, (125, 165)), (62, (63, 83)), (31, (32, 42))])
def test_reduced_luma_keeps_the_asked_side(min_side: int | None, size: tuple[int, int]) -> None:
    luma = jpeg.decode(whole(), "GRAY", min_side=min_side)
    assert luma is not None
    assert luma.shape == size


def test_cmyk_and_rgb_jpegs_are_left_to_pillow() -> None:
    assert jpeg.decode(whole(mode="CMYK"), "RGBX") is None
    assert jpeg.decode(saved(picture(64, 48), "JPEG", keep_rgb=True), "RGBX") is None


def test_lossless_jpeg_never_reaches_the_scaling_decoder() -> None:
    # libjpeg-turbo writes out of bounds when it scales lossless JPEG: the process would die, not the row.
    data = bytearray(whole(mode="L"))
    data[data.index(b"\xff\xc0") + 1] = 0xC3
    frame = jpeg.frame_of(bytes(data))
    assert frame is not None
    assert not frame.is_fast
    assert jpeg.decode(bytes(data), "GRAY", min_side=16) is None


def test_the_frame_header_is_read_behind_stray_bytes_and_fill_bytes() -> None:
    data = whole()
    at = data.index(b"\xff\xc0")
    frame = jpeg.frame_of(data[:at] + b"junk\xff\xff" + data[at:])
    assert frame is not None
    assert (frame.width, frame.height, frame.bits, frame.components, frame.is_fast) == (330, 250, 8, 3, True)
    assert data[frame.scan_at - 6 :][:2] == b"\xff\xda"


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8" + b"\xff" * 50, b"\xff\xd8\xff\xda\0\x0c", b"\xff\xd8\xff\xe0\xff\xff" * 3]
)
def test_a_header_that_is_none_has_no_frame(data: bytes) -> None:
    assert jpeg.frame_of(data) is None
    jpeg.check_whole(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_cut_jpeg_is_truncated(kind: str, part: float) -> None:
    data = whole(kind)
    assert reasons(data[: int(len(data) * part)]) == {"truncated"}


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", ["baseline", "progressive", "restarts"])
def test_a_cut_jpeg_with_an_end_marker_is_truncated_though_pillow_takes_it(kind: str, mode: str) -> None:
    data = whole(kind, mode)
    half = data[: len(data) // 2] + EOI
    assert opened(half).size == (330, 250), "Pillow rejects it by itself: the check is not needed any more"
    assert reasons(half) == {"truncated"}


@pytest.mark.parametrize("kind", ["baseline", "progressive"])
def test_stray_bytes_in_the_header_do_not_hide_that_the_rest_is_missing(kind: str) -> None:
    data = whole(kind)
    at = data.index(b"\xff\xda")
    assert reasons(data[:at] + b"junk" + data[at:]) == {None}
    assert reasons(data[:at] + b"junk" + data[at : len(data) // 2] + EOI) == {"truncated"}


def test_a_missing_end_marker_is_truncated() -> None:
    assert reasons(whole()[:-2]) == {"truncated"}


def test_trailing_and_stray_bytes_around_whole_pixels_do_no_harm() -> None:
    data = whole()
    assert reasons(data + b"trailer" * 100) == {None}
    assert reasons(data[:-2] + b"padding" + EOI) == {None}


def test_a_progressive_jpeg_with_a_hole_is_corrupt() -> None:
    data = whole("progressive")
    middle = len(data) // 2
    assert reasons(data[:middle] + data[middle + 60 :]) <= {"corrupt", "truncated"}


def test_damage_never_crashes_the_decoders() -> None:
    random = np.random.default_rng(11)
    for kind in KINDS:
        data = saved(picture(90, 70), "JPEG", **KINDS[kind])
        for _ in range(120):
            damaged = bytearray(data)
            for at in random.integers(2, len(data) if random.random() < 0.5 else 300, random.integers(1, 6)):
                damaged[at] = random.integers(256)
            assert len(reasons(bytes(damaged))) == 1


def test_mpo_is_decoded_fast_to_its_first_frame() -> None:
    first = picture(96, 64, 1)
    data = saved(first, "MPO", save_all=True, append_images=[Image.new("RGB", (96, 64), "red")])
    fast = jpeg.decode(data, "RGBX")
    assert fast is not None
    assert np.array_equal(fast[:, :, :3].astype(np.int16), pixels(opened(data)))
