"""Pillow image -> 8-bit colour and alpha, and colour -> sRGB."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

_WIDE_MODES = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
_ALPHA_MODES = frozenset({"RGBA", "LA", "PA", "La", "RGBa"})
# A profile that moves no colour of the probe by more is sRGB under another name, and is not applied.
_SRGB_TOLERANCE = 2


def eight_bit(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Split a decoded image into its colours, mode "L", "RGB", "CMYK" or "LAB", and its alpha, mode "L".

    Alpha is None where every pixel is opaque. 16-bit values are divided by 257; see `scaled` for wider ones.
    """
    if image.mode in _WIDE_MODES:
        return _wide(image)
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        return _transparent(image)
    if image.mode == "1":
        return image.convert("L"), None
    if image.mode in ("L", "RGB", "CMYK", "LAB"):
        return image, None
    return image.convert("RGB"), None


def _transparent(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    alpha = rgba.getchannel("A")
    grey = image.mode in ("1", "L", "LA", "La")
    colours = rgba.getchannel("R") if grey else rgba.convert("RGB")
    return colours, None if alpha.getextrema() == (255, 255) else alpha


def _wide(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    values = np.asarray(image)
    transparent = image.info.get("transparency")
    alpha = None
    if isinstance(transparent, int):
        opaque = values != transparent
        alpha = None if opaque.all() else Image.fromarray(opaque.astype(np.uint8) * np.uint8(255))
    return Image.fromarray(scaled(values)), alpha


def scaled(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Grey values of any depth to 8 bits, uint8 of the same shape. Not clipped: the range is mapped.

    Integers from 0 to 65535 are 16-bit: divided by 257, rounded. Floats from 0 to 1 are multiplied by 255, to 255 kept, to 65535 divided by
    257. Any other range is stretched from its least to its greatest value. What is not finite counts as 0.
    """
    integers = np.issubdtype(values.dtype, np.integer)
    if values.dtype.itemsize == 2 and integers:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = (float(wide.min()), float(wide.max())) if wide.size else (0.0, 0.0)
    if low < 0 or high > 65535:
        result = (wide - low) * (255 / (high - low)) if high > low else np.zeros_like(wide)
    elif integers or high > 255:
        result = wide / 257
    else:
        result = wide if high > 1 else wide * 255
    return np.rint(result).astype(np.uint8)


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """`image`, mode "L", "RGB", "CMYK" or "LAB", as RGB in sRGB. A broken or unfitting profile is passed over."""
    transform = transform_of(profile, image.mode) if profile else None
    if transform is None and profile and image.mode == "L":
        # A grey picture saved with the profile of the RGB original.
        image = image.convert("RGB")
        transform = transform_of(profile, "RGB")
    if transform is not None:
        return transform.apply(image)
    return image if image.mode == "RGB" else image.convert("RGB")


@lru_cache(maxsize=1)
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@lru_cache(maxsize=1)
def _probe() -> Image.Image:
    """Colours all over the cube: 9 steps a channel, [81, 9] pixels."""
    steps = np.linspace(0, 255, 9).astype(np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(81, 9, 3)
    return Image.fromarray(np.ascontiguousarray(cube))


@lru_cache(maxsize=32)
def transform_of(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The way from a profile to sRGB for images of `mode`; None when none is needed or the profile can't be used.

    Photographs share a handful of profiles, so the answer is kept per profile.
    """
    if mode not in ("L", "RGB", "CMYK"):
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.ImageCmsTransform(source, _srgb(), mode, "RGB", ImageCms.Intent.PERCEPTUAL)
        probe = _probe() if mode == "RGB" else _probe().convert(mode)
        moved = np.asarray(transform.apply(probe), np.int16)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError, SyntaxError):
        return None
    if mode == "CMYK":
        return transform
    return transform if np.abs(moved - np.asarray(probe.convert("RGB"), np.int16)).max() > _SRGB_TOLERANCE else None
