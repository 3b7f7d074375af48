"""image bytes -> the JPEG of a bucket: upright RGB of exactly the bucket's size, encoded once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from udfs import colour, jpeg
from udfs.decode import ORIENTATIONS, defects, open_image, orientation_of, upright_rgb
from udfs.resize import resize_array, resize_rgb


def bucket_jpeg(
    data: bytes,
    width: int,
    height: int,
    *,
    background: tuple[int, int, int] = (255, 255, 255),
    crop: bool = False,
    max_pixels: int = 200_000_000,
    quality: int = 92,
) -> bytes:
    """A JPEG of exactly width x height pixels: RGB in sRGB, upright, Lanczos, 4:2:0, quantisation tables as Pillow's `quality`.

    No metadata is kept. The picture is stretched to the shape; with `crop` its middle, in the shape's ratio, is taken first. Transparent
    pixels lie on `background`. Raises Defect for bytes that give no whole picture; the pixel limit is checked on the header.

    JPEG is decoded at full size: decoding at half size, where the shape would allow it, costs more than 40 dB against plain Lanczos.
    """
    image = open_image(data, max_pixels)
    if image.format in ("JPEG", "MPO"):
        pixels = _from_jpeg(image, data, width, height, crop)
        if pixels is not None:
            return encode(pixels, quality)
        jpeg.check_whole(data)
    with defects(max_pixels):
        upright = upright_rgb(image, background)
        return encode(np.asarray(resize_rgb(upright, width, height, crop=crop)), quality)


def _from_jpeg(image: Image.Image, data: bytes, width: int, height: int, crop: bool) -> npt.NDArray[np.uint8] | None:
    """Pixels [height, width, 3 or 4] of an ordinary JPEG, R, G and B first; None when it is not one that the fast decoder takes."""
    profile = image.info.get("icc_profile")
    transform = colour.transform_of(profile, image.mode) if isinstance(profile, bytes) and profile else None
    if profile and image.mode != "RGB":
        return None
    pixels = jpeg.decode(data, "RGBX")
    if pixels is None:
        return None
    orientation = orientation_of(image)
    # Turning and colours come last, on the few pixels that are left; only rounding differs from the other order.
    target = (height, width) if orientation >= 5 else (width, height)
    small = resize_array(pixels, *target, crop=crop)
    if orientation == 1 and transform is None:
        return small
    picture = Image.fromarray(np.ascontiguousarray(small[:, :, :3]))
    if transform is not None:
        picture = transform.apply(picture)
    if orientation != 1:
        picture = picture.transpose(ORIENTATIONS[orientation])
    return np.asarray(picture)


def encode(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    """uint8 [H, W, 3] (RGB) or [H, W, 4] (the fourth ignored) as a JPEG, 4:2:0, without metadata, quantisation tables as Pillow's."""
    mode = "RGB" if pixels.shape[2] == 3 else "RGBX"
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, mode, "420")
    return encoded
