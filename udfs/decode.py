"""bytes -> Pillow image: recognised by content, checked by its header, upright RGB. What is wrong with the bytes is a Defect."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from PIL import Image, ImageFile, UnidentifiedImageError, features

from udfs import colour
from udfs.defect import Defect
from udfs.jpeg import frame_of
from udfs.sniff import png_without_text, sniff, webp_size

__all__ = ["ORIENTATIONS", "Defect", "check_pixels", "defects", "open_image", "orientation_of", "sniff", "upright_rgb"]

# What Pillow may look for, by what the first bytes say. A plugin that nothing here names is never tried.
_PILLOW_FORMATS = {
    "jpeg": ("JPEG",),  # MPO too: Pillow makes one of a JPEG that has an index of pictures
    "png": ("PNG",),
    "webp": ("WEBP",),
    "gif": ("GIF",),
    "bmp": ("BMP",),
    "tiff": ("TIFF",),
    "avif": ("AVIF",),
    "heic": ("HEIF",),
    "jxl": ("JXL",),
}
_PLUGINS = {"heic": "pillow_heif", "jxl": "pillow_jxl"}

# What Pillow and its codecs raise on bad bytes. Bugs of ours among them would be seen as defects in rejects, with their text.
BAD_BYTES: tuple[type[BaseException], ...] = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    BufferError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)

# What follows in the text of a bomb error is advice to programmers.
_ADVICE = " exceeds limit of"

# The transposition that makes an image upright, by its EXIF orientation; 1 and anything unknown need none.
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112
_EXIF_SOURCES = frozenset({"exif", "xmp", "Raw profile type exif", "XML:com.adobe.xmp"})


@contextmanager
def defects(max_pixels: int | None = None) -> Iterator[None]:
    """Turn what Pillow raises in the block into a Defect, and its bomb warnings into errors.

    max_pixels: what Pillow's own check allows in the block; None leaves its limit as it is. Pillow keeps the limit in one global, so the
    block must not run in several threads with different limits.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if max_pixels is not None:
        Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with warnings.catch_warnings():
            # Broken metadata only warns; the picture is kept, and the log of a worker stays readable.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except Defect:
        raise
    except BAD_BYTES as error:
        raise Defect(_reason(error), f"{type(error).__name__}: {str(error).split(_ADVICE)[0]}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _reason(error: BaseException) -> str:
    text = str(error).lower()
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too_many_pixels"
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if isinstance(error, EOFError) or any(word in text for word in ("truncated", "premature end", "unexpected end", "end of file")):
        return "truncated"
    return "corrupt"


def open_image(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read and its pixels not yet decoded.

    Raises Defect: empty, not_an_image, unsupported_format (refused, or its decoder is missing), too_many_pixels (width · height by the
    header, before any decoding), truncated, corrupt. Of several frames the first is taken.
    """
    if not data:
        raise Defect("empty", "no bytes")
    name = sniff(data)
    if name is None:
        raise Defect("not_an_image", f"starts with {bytes(data[:12])!r}")
    if name not in _PILLOW_FORMATS:
        raise Defect("unsupported_format", name)
    if name == "webp":
        check_pixels(webp_size(data), max_pixels)
    _need_decoder(name)
    # Another library in the process may have set the flag; a half-read image must never pass.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with defects(max_pixels):
            image = _open(data, name)
    except Defect as defect:
        if name == "webp" and int.from_bytes(data[4:8], "little") + 8 > len(data):
            raise Defect("truncated", defect.detail) from defect
        raise
    check_pixels(image.size, max_pixels)
    return image


def _open(data: bytes, name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS[name])
    except UnidentifiedImageError as error:
        # Pillow's own text names a memory address, which differs in every run.
        raise _unreadable(data, name) from error
    except ValueError:
        if name != "png":
            raise
        # Pillow refuses text that unpacks to megabytes. The picture itself is fine: read it without its text.
        return Image.open(io.BytesIO(png_without_text(data)), formats=_PILLOW_FORMATS[name])


def _unreadable(data: bytes, name: str) -> Defect:
    frame = frame_of(data) if name == "jpeg" else None
    if frame is not None and frame.bits != 8:
        return Defect("unsupported_format", f"jpeg with {frame.bits} bits a sample")
    return Defect("corrupt", f"{name}: its header can't be read")


def check_pixels(size: tuple[int, int] | None, max_pixels: int) -> None:
    """Raises Defect(too_many_pixels) when width · height is above the limit, Defect(corrupt) when there are none."""
    if size is None:
        return
    width, height = size
    if width * height > max_pixels:
        raise Defect("too_many_pixels", f"{width} x {height} pixels, at most {max_pixels}")
    if width * height <= 0:
        raise Defect("corrupt", f"{width} x {height} pixels")


def _need_decoder(name: str) -> None:
    if name == "avif" and not features.check("avif"):
        raise Defect("unsupported_format", "avif: this Pillow was built without it")
    plugin = _PLUGINS.get(name)
    if plugin is None:
        return
    if find_spec(plugin) is None:
        raise Defect("unsupported_format", f"{name}: its decoder, the package {plugin.replace('_', '-')}, is not installed")
    module = __import__(plugin)
    if name == "heic" and "HEIF" not in Image.OPEN:
        module.register_heif_opener()


def orientation_of(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where there is none, where it is unknown, and where the metadata is broken."""
    # Pillow keeps what it finds first: a PNG must not be asked before the chunk is read that may lie behind its pixels.
    if image.format in ("JPEG", "MPO", "PNG") and not image.info.keys() & _EXIF_SOURCES:
        return 1
    try:
        # Not PNG's own method, which would decode the pixels here, where a failure to do so would pass unseen.
        exif = Image.Image.getexif(image) if image.format == "PNG" else image.getexif()
        value = exif.get(_ORIENTATION_TAG)
    except BAD_BYTES:
        # Broken metadata is no reason to lose the picture.
        return 1
    return value if isinstance(value, int) and value in ORIENTATIONS else 1


def upright_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Decode: 8-bit RGB in sRGB, upright, transparent pixels put on `background`.

    ICC profiles are applied, broken ones taken as sRGB; 16 bits and floats are scaled to 8, not clipped. Raises Defect.
    """
    with defects():
        image.load()
        # Read after load: TIFF is made upright by Pillow itself then, and no longer says that it was not.
        transposition = ORIENTATIONS.get(orientation_of(image))
        profile = image.info.get("icc_profile")
        picture, alpha = colour.eight_bit(image)
        picture = colour.to_srgb(picture, profile if isinstance(profile, bytes) else None)
        if alpha is not None:
            canvas = Image.new("RGB", picture.size, background)
            canvas.paste(picture, mask=alpha)
            picture = canvas
        return picture if transposition is None else picture.transpose(transposition)
