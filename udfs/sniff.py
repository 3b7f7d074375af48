"""bytes -> the name of their format, by content alone, and what some headers say without a decoder."""

from __future__ import annotations

import re

_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\xff\x0a", "jxl"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (b"\xff\x4f\xff\x51", "j2k"),
    (b"8BPS", "psd"),
    (b"%!PS", "eps"),
    (b"\xc5\xd0\xd3\xc6", "eps"),
    (b"%PDF-", "pdf"),
    (b"\0\0\1\0", "ico"),
    (b"\0\0\2\0", "cur"),
    (b"qoif", "qoi"),
    (b"DDS ", "dds"),
    (b"icns", "icns"),
    (b"\x01\xda", "sgi"),
    (b"\x76\x2f\x31\x01", "exr"),
    (b"#?RADIANCE", "hdr"),
    (b"SIMPLE  =", "fits"),
)
_DIB_HEADER_BYTES = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"})
_PORTABLE_MAP = re.compile(rb"P[1-7fF][\s#]")
_MARKUP_BYTES = 4096
_SVG = re.compile(rb"<(?:\w+:)?svg[\s>]", re.IGNORECASE)
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|script|title|meta|div|p|h1|a|img|table)[\s>]", re.IGNORECASE)

_PNG_SIGNATURE_BYTES = 8
_PNG_TEXT = frozenset({b"tEXt", b"zTXt", b"iTXt", b"iCCP"})


def sniff(data: bytes) -> str | None:
    """The format that the first bytes announce, in lower case; None where they announce no image.

    Also names what is not accepted as a source: svg, eps, psd, pdf, html, and image formats outside the decided list (jp2, ico, ppm …).
    """
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _DIB_HEADER_BYTES:
        return "bmp"
    if data[4:8] == b"ftyp":
        return _iso_media(data)
    if _PORTABLE_MAP.match(data):
        return "ppm"
    return _markup(data[:_MARKUP_BYTES])


def _iso_media(data: bytes) -> str | None:
    length = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, length, 4))}
    if brands & {b"avif", b"avis"}:
        return "avif"
    return "heic" if brands & _HEIF_BRANDS else None


def _markup(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"<"):
        return None
    if _SVG.search(text):
        return "svg"
    return "html" if _HTML.search(text) else None


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP's canvas in pixels; None when its first chunk is not one that says it.

    Pillow allocates the canvas when it opens the file, before anyone could look at its size.
    """
    chunk, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if chunk == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return None


def png_without_text(data: bytes) -> bytes:
    """The PNG without its text and colour profile chunks, the only ones that Pillow unpacks into unbounded memory."""
    kept = [data[:_PNG_SIGNATURE_BYTES]]
    at = _PNG_SIGNATURE_BYTES
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] not in _PNG_TEXT:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)
