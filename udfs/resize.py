"""Lanczos (three lobes), with the SIMD of the processor. The integers are the same with and without SIMD."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from cykooz_resizer import CropBox, FilterType, ImageData, PixelType, ResizeAlg, ResizeOptions, Resizer  # type: ignore[import-untyped]
from PIL import Image

# The resizer knows Pillow's modes: one byte a pixel, and four independent ones, under the name of the mode that has them.
_MODES = {1: "L", 4: "CMYK"}


@cache
def _resizer() -> Resizer:
    return Resizer()


@cache
def _lanczos() -> ResizeOptions:
    return ResizeOptions(ResizeAlg.convolution(FilterType.lanczos3))


def _options(width: int, height: int, to: tuple[int, int], crop: bool) -> ResizeOptions:
    if not crop:
        return _lanczos()
    return ResizeOptions(ResizeAlg.convolution(FilterType.lanczos3), crop_box=centre_box((width, height), to))


def centre_box(size: tuple[int, int], to: tuple[int, int]) -> CropBox:
    """The largest box in the middle of `size` that has the ratio of `to`; both are width, height in pixels."""
    width, height = min(size[0], size[1] * to[0] / to[1]), min(size[1], size[0] * to[1] / to[0])
    return CropBox((size[0] - width) / 2, (size[1] - height) / 2, width, height)


def resize_array(pixels: npt.NDArray[np.uint8], width: int, height: int, *, crop: bool = False) -> npt.NDArray[np.uint8]:
    """uint8 [H, W] or [H, W, 4] to [height, width] or [height, width, 4]. crop: the middle, in the target's ratio, is taken first."""
    pixels = np.ascontiguousarray(pixels)
    result = np.empty((height, width, *pixels.shape[2:]), np.uint8)
    source, target = _image_over(pixels), _image_over(result)
    _resizer().resize_pil(source, target, _options(source.width, source.height, (width, height), crop))
    return result


def resize_wide(pixels: npt.NDArray[np.uint16], width: int, height: int) -> npt.NDArray[np.uint16]:
    """uint16 [H, W] to uint16 [height, width]."""
    source = ImageData(pixels.shape[1], pixels.shape[0], PixelType.U16, pixels.tobytes())
    target = ImageData(width, height, PixelType.U16)
    _resizer().resize(source, target, _lanczos())
    return np.frombuffer(target.get_buffer(), np.uint16).reshape(height, width)


def _image_over(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """A Pillow image on the array's own memory: nothing is copied, and what the resizer writes is seen in the array."""
    mode = _MODES[1 if pixels.ndim == 2 else pixels.shape[2]]
    return Image.frombuffer(mode, (pixels.shape[1], pixels.shape[0]), pixels, "raw", mode, 0, 1)


def resize_rgb(image: Image.Image, width: int, height: int, *, crop: bool = False) -> Image.Image:
    """The same for a Pillow image of mode "RGB"."""
    target = Image.new("RGB", (width, height))
    _resizer().resize_pil(image, target, _options(image.width, image.height, (width, height), crop))
    return target
