"""The markers of a JPEG file: size, components, subsampling, quantisation tables, metadata. No pixels are decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass

SOI = b"\xff\xd8"
EOI = b"\xff\xd9"

_SOS, _DQT, _COM, _APP0, _APP15 = 0xDA, 0xDB, 0xFE, 0xE0, 0xEF
# Frame headers: C0 to CF without DHT (C4), JPG (C8) and DAC (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# TEM and the restart markers stand alone: no length follows.
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})


class JpegError(ValueError):
    """The bytes are not one whole JPEG file; the message says where they stop being one."""


@dataclass(frozen=True)
class Component:
    """One colour component: its sampling factors and the 64 values of its quantisation table in zigzag order."""

    identifier: int
    horizontal: int
    vertical: int
    quantisation: tuple[int, ...]


@dataclass(frozen=True)
class JpegInfo:
    """What the markers before the first scan say. `metadata` names each APPn but JFIF's and each comment, as "APP1", "COM"."""

    width: int
    height: int
    bits: int
    progressive: bool
    components: tuple[Component, ...]
    metadata: tuple[str, ...]
    header_bytes: int

    @property
    def is_420(self) -> bool:
        """Three components, the two chroma ones at half the resolution in both directions."""
        return [(c.horizontal, c.vertical) for c in self.components] == [(2, 2), (1, 1), (1, 1)]

    @property
    def quantisation(self) -> tuple[tuple[int, ...], ...]:
        """The quantisation table of each component, in the components' order."""
        return tuple(component.quantisation for component in self.components)


def parse(data: bytes | memoryview) -> JpegInfo:
    """Read the markers of one whole JPEG file, up to its first scan.

    Raises JpegError when `data` does not start with SOI and end with EOI, when a marker is broken, or when no frame or scan is
    there. The compressed pixels are not looked at: a decoder must judge them.
    """
    if bytes(data[:2]) != SOI:
        raise JpegError("does not start with the JPEG marker SOI")
    if bytes(data[-2:]) != EOI:
        raise JpegError("does not end with the JPEG marker EOI")
    end = len(data) - 2
    tables: dict[int, tuple[int, ...]] = {}
    frame: tuple[int, bytes] | None = None
    metadata: list[str] = []
    at = 2
    while True:
        marker, at = _next_marker(data, at, end)
        if marker in _STANDALONE:
            continue
        if at + 2 > end:
            raise JpegError(f"marker {marker:#04x} at byte {at - 2} is cut off")
        length = int.from_bytes(data[at : at + 2], "big")
        if length < 2 or at + length > end:
            raise JpegError(f"marker {marker:#04x} at byte {at - 2} claims {length} bytes, which are not there")
        body = bytes(data[at + 2 : at + length])
        at += length
        if marker == _DQT:
            tables |= _tables(body)
        elif marker in _FRAMES:
            if frame is not None:
                raise JpegError("has two frames")
            frame = marker, body
        elif (_APP0 < marker <= _APP15) or (marker == _APP0 and body[:5] not in (b"JFIF\0", b"JFXX\0")):
            metadata.append(f"APP{marker - _APP0}")
        elif marker == _COM:
            metadata.append("COM")
        elif marker == _SOS:
            break
    if frame is None:
        raise JpegError("has no frame header before its first scan")
    return _info(frame, tables, tuple(metadata), at)


class HeadReader:
    """`parse` for many images, quick where they share their head: those of one shape by one encoder differ only behind it."""

    def __init__(self) -> None:
        self._head = b""
        self._info: JpegInfo | None = None

    def parse(self, data: bytes) -> JpegInfo:
        """As the function `parse`; equal heads give the same object."""
        if self._info is None or not (data.startswith(self._head) and data.endswith(EOI)):
            self._info = parse(data)
            self._head = data[: self._info.header_bytes]
        return self._info


def _next_marker(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The marker at `at` and the offset behind it; fill bytes (0xff) before it are skipped."""
    if at + 2 > end or data[at] != 0xFF:
        raise JpegError(f"no marker at byte {at}")
    while at < end and data[at] == 0xFF:
        at += 1
    if at >= end or data[at] == 0:
        raise JpegError(f"no marker at byte {at}")
    return data[at], at + 1


def _tables(body: bytes) -> dict[int, tuple[int, ...]]:
    """The quantisation tables of one DQT segment by their number, 8-bit and 16-bit ones."""
    found = {}
    at = 0
    while at < len(body):
        wide, number = body[at] >> 4, body[at] & 15
        size = 128 if wide else 64
        values = body[at + 1 : at + 1 + size]
        if wide > 1 or len(values) != size:
            raise JpegError("has a broken quantisation table")
        found[number] = struct.unpack(">64H" if wide else ">64B", values)
        at += 1 + size
    return found


def _info(frame: tuple[int, bytes], tables: dict[int, tuple[int, ...]], metadata: tuple[str, ...], header_bytes: int) -> JpegInfo:
    marker, body = frame
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise JpegError("has a broken frame header")
    bits, height, width, _ = struct.unpack_from(">BHHB", body)
    components = []
    for identifier, sampling, number in struct.iter_unpack(">BBB", body[6:]):
        if number not in tables:
            raise JpegError(f"component {identifier} has no quantisation table")
        components.append(Component(identifier, sampling >> 4, sampling & 15, tables[number]))
    return JpegInfo(width, height, bits, marker in _PROGRESSIVE, tuple(components), metadata, header_bytes)
