"""image bytes -> facts, from one decode. Bytes that give no picture give facts too: a defect, with its reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from udfs import colour, jpeg
from udfs.decode import Defect, defects, open_image, orientation_of, sniff
from udfs.phash import hash_and_flatness

# A JPEG is decoded at a fraction of its size for the hash while the shorter side keeps this many pixels. Of photographs, 95 in 100 then
# have the hash of a full decode (160: 93, 128: 90), the others differ in 2 bits.
HASH_MIN_SIDE = 256

_NUMPY_UPRIGHT = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: a[::-1].T,
    7: lambda a: a[::-1, ::-1].T,
    8: lambda a: a.T[::-1],
}


@dataclass(frozen=True)
class Facts:
    """What one decode tells. sha256 (hex) and byte_size are of the bytes as received, and always there.

    format: lower case ("jpeg", "mpo", "png" …); width, height: pixels, upright; exif_orientation: 1 to 8; mode: Pillow's name of the pixel
    layout. phash: signed 64 bits, transparent pixels on white; phash_black: on black, only where some pixel is transparent. is_flat: the
    hash tells nothing (of a transparent image: neither of the two does). defect, defect_detail: why there is no picture; then the hashes
    are None, and so is what the header did not tell.
    """

    sha256: str
    byte_size: int
    format: str | None = None
    width: int | None = None
    height: int | None = None
    exif_orientation: int | None = None
    mode: str | None = None
    phash: int | None = None
    phash_black: int | None = None
    is_flat: bool | None = None
    defect: str | None = None
    defect_detail: str | None = None


def image_facts(data: bytes, max_pixels: int = 200_000_000) -> Facts:
    """Facts of image bytes. Never raises for bad bytes: their defect is in the facts, by the reasons of `udfs.decode.Defect`.

    max_pixels: width · height above it is the defect "too_many_pixels", found in the header before any decoding.
    """
    facts = Facts(hashlib.sha256(data).hexdigest(), len(data), format=sniff(data))
    try:
        image = open_image(data, max_pixels)
        facts = _header_facts(facts, image)
        return _picture_facts(facts, image, data, max_pixels)
    except Defect as defect:
        return replace(facts, defect=defect.reason, defect_detail=defect.detail)


def _header_facts(facts: Facts, image: Image.Image) -> Facts:
    with defects():
        orientation = orientation_of(image)
        width, height = image.size
        # Pillow announces TIFF as it will be after loading, upright.
        if orientation >= 5 and image.format != "TIFF":
            width, height = height, width
        name = "mpo" if image.format == "MPO" else facts.format
        return replace(facts, format=name, width=width, height=height, exif_orientation=orientation, mode=image.mode)


def _picture_facts(facts: Facts, image: Image.Image, data: bytes, max_pixels: int) -> Facts:
    on_white, on_black, orientation = None, None, facts.exif_orientation
    if image.format in ("JPEG", "MPO"):
        on_white = jpeg.decode(data, "GRAY", min_side=HASH_MIN_SIDE)
    if on_white is None:
        if image.format in ("JPEG", "MPO"):
            jpeg.check_whole(data)
        with defects(max_pixels):
            image.load()
            orientation = orientation_of(image)
            if image.format == "PNG":
                # Its EXIF may lie behind the pixels.
                facts = _header_facts(facts, image)
            on_white, on_black = _luma(image)
    phash, flat = hash_and_flatness(_upright(on_white, orientation))
    if on_black is None:
        return replace(facts, phash=phash, is_flat=flat)
    phash_black, flat_black = hash_and_flatness(_upright(on_black, orientation))
    return replace(facts, phash=phash, phash_black=phash_black, is_flat=flat and flat_black)


def _luma(image: Image.Image) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]:
    """Luma of a decoded image, uint8 [H, W], on white and on black; the second only where some pixel is transparent."""
    picture, alpha = colour.eight_bit(image)
    luma = (picture if picture.mode in ("L", "RGB") else picture.convert("RGB")).convert("L")
    if alpha is None:
        return np.asarray(luma), None
    white, black = Image.new("L", luma.size, 255), Image.new("L", luma.size, 0)
    white.paste(luma, mask=alpha)
    black.paste(luma, mask=alpha)
    return np.asarray(white), np.asarray(black)


def _upright(luma: npt.NDArray[np.uint8], orientation: int | None) -> npt.NDArray[np.uint8]:
    turn = _NUMPY_UPRIGHT.get(orientation or 1)
    return luma if turn is None else turn(luma)
