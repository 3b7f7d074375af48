"""JPEG bytes -> arrays by libjpeg-turbo, where that gives what Pillow gives, faster; and the check that a JPEG is whole.

Pillow passes over the decoder's warnings, and so takes a JPEG whose data end early, followed by an end marker, for a whole one: the rest is
grey. Here the first warning stops the decoder, and its text tells damage from what does no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg

from udfs.defect import Defect

_SOI = b"\xff\xd8"
_SOS = 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Baseline, extended sequential and progressive Huffman, 8 bits. The decoder's scaling writes out of bounds on lossless frames (SOF3).
_FAST_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_APPLICATION = frozenset({*range(0xE0, 0xF0), 0xFE})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_SCALES = (8, 4, 2)

_CUT = re.compile(r"premature end of data segment", re.IGNORECASE)
_DAMAGED = re.compile(r"bad huffman code|instead of rst|inconsistent progression", re.IGNORECASE)
# Bytes before EOI come after all pixels: the decoder warns in the order of the file, and nothing was wrong before.
_HARMLESS = re.compile(r"extraneous bytes before marker 0xd9", re.IGNORECASE)


@dataclass(frozen=True)
class Frame:
    """The frame header: SOF marker, bits a sample, size in pixels, number of components. `header` is the file up to its first scan,
    without application segments and without stray bytes; `scan_at` is the offset of that scan."""

    marker: int
    bits: int
    width: int
    height: int
    components: int
    header: bytes
    scan_at: int

    @property
    def is_fast(self) -> bool:
        """Whether this module decodes it at all."""
        return self.marker in _FAST_FRAMES and self.bits == 8 and self.components in (1, 3, 4)


def frame_of(data: bytes) -> Frame | None:
    """The frame header of a JPEG; None when there is not exactly one before the first scan. Stray bytes between markers are skipped."""
    at = 2
    kept = [_SOI]
    frame: tuple[int, bytes] | None = None
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 4 > len(data):
            return None
        marker = data[at + 1]
        if marker in (0x00, 0xFF) or marker in _STANDALONE:
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _SOS:
            break
        if marker in _FRAMES:
            if frame is not None:
                return None
            frame = marker, data[at + 4 : end]
        if marker not in _APPLICATION:
            kept.append(data[at:end])
        at = end
    if frame is None or len(frame[1]) < 6:
        return None
    marker, body = frame
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    return Frame(marker, body[0], width, height, body[5], b"".join(kept), at)


def decode(data: bytes, mode: str, *, min_side: int | None = None) -> npt.NDArray[np.uint8] | None:
    """The pixels of a whole, ordinary JPEG, not yet upright; None for any other, which Pillow must then judge.

    mode: "RGBX" gives uint8 [height, width, 4], the same R, G, B as Pillow; "GRAY" gives luma, uint8 [height, width].
    min_side: decode at 1/2, 1/4 or 1/8, the smallest whose shorter side still has as many pixels; None decodes at full size. The whole
    entropy-coded stream is read at every scale.
    """
    frame = frame_of(data)
    if frame is None or not frame.is_fast:
        return None
    try:
        _, _, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray"):
            return None
        pixels = _decode(data, frame, mode, min_side)
    except ValueError:
        return None
    return pixels if mode == "RGBX" else pixels[:, :, 0]


def _decode(data: bytes, frame: Frame, mode: str, min_side: int | None) -> npt.NDArray[np.uint8]:
    scale = 1
    if min_side is not None:
        scale = next((s for s in _SCALES if min(frame.width, frame.height) >= min_side * s), 1)
    height, width = -(-frame.height // scale), -(-frame.width // scale)
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, mode, min_height=height, min_width=width, min_factor=scale, strict=True)
    return pixels


def check_whole(data: bytes) -> None:
    """Raises Defect(truncated) or Defect(corrupt) for a JPEG whose pixels are not all there, though Pillow would decode it.

    For JPEGs that `decode` gave up. Says nothing of lossless, arithmetic and 12-bit ones, and of unusual subsampling: those are Pillow's.
    """
    frame = frame_of(data)
    if frame is None or not frame.is_fast:
        return
    mode = "CMYK" if frame.components == 4 else "GRAY"
    first = _warning(data, frame, mode)
    if first is None or _HARMLESS.search(first):
        return
    _raise_for_damage(first)
    # Another warning came first and hid what lies behind it. Without the segments that decoders warn about, the scans speak.
    second = _warning(frame.header + data[frame.scan_at :], frame, mode)
    if second is not None:
        _raise_for_damage(second)


def _warning(data: bytes, frame: Frame, mode: str) -> str | None:
    try:
        _decode(data, frame, mode, 1)
    except ValueError as error:
        return str(error)
    return None


def _raise_for_damage(warning: str) -> None:
    if _CUT.search(warning):
        raise Defect("truncated", warning)
    if _DAMAGED.search(warning):
        raise Defect("corrupt", warning)
