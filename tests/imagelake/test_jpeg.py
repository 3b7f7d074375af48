from __future__ import annotations

import struct
from io import BytesIO

import pytest
from PIL import Image

from imagelake import jpeg
from tests.corpus_fixture import jpeg_bytes


@pytest.mark.parametrize("size", [(512, 512), (704, 352), (17, 3), (1, 1)])
def test_size_and_components_are_those_that_pillow_wrote(size: tuple[int, int]) -> None:
    info = jpeg.parse(jpeg_bytes(*size))
    assert (info.width, info.height, info.bits, len(info.components)) == (*size, 8, 3)
    assert info.is_420
    assert not info.metadata
    assert not info.progressive


def test_a_grey_image_has_one_component_and_a_cmyk_one_four() -> None:
    assert len(jpeg.parse(jpeg_bytes(32, 32, mode="L")).components) == 1
    assert len(jpeg.parse(jpeg_bytes(32, 32, mode="CMYK")).components) == 4


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2"])
def test_other_subsampling_is_not_taken_for_420(subsampling: str) -> None:
    assert not jpeg.parse(jpeg_bytes(64, 64, subsampling=subsampling)).is_420


@pytest.mark.parametrize("quality", [30, 75, 92, 100])
def test_quantisation_tables_are_those_that_pillow_reads(quality: int) -> None:
    data = jpeg_bytes(64, 64, quality=quality)
    tables = Image.open(BytesIO(data)).quantization
    # Pillow gives natural order; the file holds zigzag order: the values agree as a whole, the first three by place.
    found = jpeg.parse(data).quantisation
    assert [sorted(table) for table in found] == [sorted(tables[0]), sorted(tables[1]), sorted(tables[1])]
    assert found[0][:3] == (tables[0][0], tables[0][1], tables[0][8])


def test_exif_icc_adobe_and_comments_are_named_as_metadata() -> None:
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    assert jpeg.parse(jpeg_bytes(32, 32, exif=exif)).metadata == ("APP1",)
    assert jpeg.parse(jpeg_bytes(32, 32, icc_profile=b"profile")).metadata == ("APP2",)
    assert jpeg.parse(jpeg_bytes(32, 32, comment=b"hello")).metadata == ("COM",)
    assert jpeg.parse(jpeg_bytes(32, 32, mode="CMYK")).metadata == ("APP14",)


def test_a_progressive_image_is_recognised() -> None:
    assert jpeg.parse(jpeg_bytes(64, 64, progressive=True)).progressive


def test_the_head_ends_where_the_first_scan_begins() -> None:
    data = jpeg_bytes(64, 64)
    head = data[: jpeg.parse(data).header_bytes]
    scan = head.rindex(b"\xff\xda")
    assert len(head) - scan == 2 + struct.unpack_from(">H", head, scan + 2)[0]


def test_every_cut_is_refused() -> None:
    data = jpeg_bytes(64, 64)
    for length in range(len(data)):
        with pytest.raises(jpeg.JpegError):
            jpeg.parse(data[:length])


def test_a_head_that_is_cut_but_ends_like_an_image_is_refused() -> None:
    data = jpeg_bytes(64, 64)
    for length in range(2, jpeg.parse(data).header_bytes):
        with pytest.raises(jpeg.JpegError):
            jpeg.parse(data[:length] + jpeg.EOI)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xff\xd9", b"\xff\xd8" + b"\xff" * 100 + b"\xff\xd9"])
def test_what_is_no_jpeg_is_refused(data: bytes) -> None:
    with pytest.raises(jpeg.JpegError):
        jpeg.parse(data)


def test_a_reader_of_many_heads_gives_what_parsing_each_gives() -> None:
    reader = jpeg.HeadReader()
    images = [jpeg_bytes(64, 64, seed) for seed in range(3)] + [jpeg_bytes(64, 48), jpeg_bytes(64, 64, quality=91)]
    images += [jpeg_bytes(64, 64, comment=b"x"), jpeg_bytes(64, 64, 4)]
    assert [reader.parse(image) for image in images] == [jpeg.parse(image) for image in images]
    assert reader.parse(images[-1]) is reader.parse(jpeg_bytes(64, 64, 5))
    with pytest.raises(jpeg.JpegError, match="EOI"):
        reader.parse(images[-1][:-1])
