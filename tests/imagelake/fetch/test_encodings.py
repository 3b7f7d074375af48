from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest

from imagelake.fetch.client import Unpacker
from imagelake.fetch.model import Failure
from tests.imagelake.fetch.site import PICTURE, answer, closing, endless, fetched

NOISE = random.Random(0).randbytes(300_000)


def test_no_encoding_is_asked_for() -> None:
    _, site = fetched({"/a": answer()}, "/a")
    assert {headers["accept-encoding"] for _, headers in site.requests} == {"identity"}


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(NOISE)),
        (" GZIP ", gzip.compress(NOISE)),
        ("x-gzip", gzip.compress(NOISE)),
        ("deflate", zlib.compress(NOISE)),
        ("gzip", gzip.compress(NOISE[:100]) + gzip.compress(NOISE[100:])),
        ("identity", NOISE),
        ("utf-8", NOISE),
        ("", NOISE),
    ],
)
def test_what_comes_packed_all_the_same_is_unpacked(encoding: str, packed: bytes) -> None:
    (one,), _ = fetched({"/a": answer(200, packed, content_encoding=encoding)}, "/a")
    assert one.body == NOISE


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress"])
def test_an_encoding_that_nobody_asked_for_is_permanent(encoding: str) -> None:
    (one,), _ = fetched({"/a": answer(content_encoding=encoding)}, "/a")
    assert (one.status, one.reason) == ("permanent", "content_encoding")


def test_what_is_not_what_it_says_is_permanent() -> None:
    (one,), _ = fetched({"/a": answer(content_encoding="gzip")}, "/a")
    assert (one.status, one.reason, one.attempts) == ("permanent", "content_encoding", 1)


def test_a_packed_body_that_is_cut_is_tried_again() -> None:
    packed = gzip.compress(PICTURE)
    cut = closing(b"HTTP/1.1 200 .\r\nContent-Encoding: gzip\r\n\r\n" + packed[:-3])
    (one,), _ = fetched({"/a": [cut, answer(200, packed, content_encoding="gzip")]}, "/a")
    assert (one.body, one.attempts) == (PICTURE, 2)


def test_the_cap_counts_what_is_unpacked() -> None:
    routes = {"/a": answer(200, gzip.compress(bytes(1001)), content_encoding="gzip")}
    (one,), _ = fetched(routes, "/a", max_bytes=1000)
    assert (one.status, one.reason, one.body) == ("permanent", "too_large", None)
    (one,), _ = fetched(routes, "/a", max_bytes=1001)
    assert one.body == bytes(1001)


def test_a_bomb_takes_no_more_memory_than_the_cap() -> None:
    bomb = gzip.compress(bytes(64 << 20), 1)
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    (one,), _ = fetched({"/a": answer(200, bomb, content_encoding="gzip")}, "/a", max_bytes=2 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert one.reason == "too_large"
    assert peak < 16 << 20


def test_empty_blocks_without_end_are_given_up() -> None:
    packer = zlib.compressobj(wbits=31)
    head, piece = packer.compress(b"x") + packer.flush(zlib.Z_FULL_FLUSH), packer.flush(zlib.Z_FULL_FLUSH) or b"\0\0\0\xff\xff"
    routes = {"/a": endless(b"HTTP/1.1 200 .\r\nContent-Encoding: gzip\r\n\r\n" + head, piece * 1000)}
    (one,), _ = fetched(routes, "/a", max_bytes=200_000, total_s=20)
    assert one.reason == "too_large"


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_pieces_of_any_size_unpack_to_the_same(size: int) -> None:
    packed = gzip.compress(PICTURE) + gzip.compress(NOISE[:5000]) + gzip.compress(b"")
    unpacker = Unpacker()
    assert b"".join(unpacker.unpack(packed[at : at + size], 10**6) for at in range(0, len(packed), size)) == PICTURE + NOISE[:5000]
    assert unpacker.at_end


def test_no_more_is_unpacked_than_is_asked_for() -> None:
    assert len(Unpacker().unpack(gzip.compress(bytes(10**6)), 1000)) == 1000
    with pytest.raises(Failure, match="content_encoding"):
        Unpacker().unpack(b"no gzip at all", 1000)
