"""Pictures made for the tests of udfs, and ways to write them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image


def picture(width: int = 320, height: int = 240, seed: int = 0) -> Image.Image:
    """RGB with detail at every scale, as photographs have it: random phases, amplitude falling with frequency."""
    random = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    amplitude = 1 / np.maximum(np.hypot(fx, fy), 1 / max(width, height))
    channels = []
    common = random.uniform(0, 2 * np.pi, amplitude.shape)
    for _ in range(3):
        phases = common + random.normal(0, 0.15, amplitude.shape)
        field = np.fft.irfft2(amplitude * np.exp(1j * phases), (height, width))
        channels.append(np.clip(128 + 48 * (field - field.mean()) / field.std(), 0, 255))
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def saved(image: Image.Image, image_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def pixels(image: Image.Image) -> npt.NDArray[np.int16]:
    return np.asarray(image, np.int16)


def psnr_db(one: Image.Image, other: Image.Image) -> float:
    error = (np.asarray(one, np.float64) - np.asarray(other, np.float64)) ** 2
    return float(10 * np.log10(255**2 / max(float(error.mean()), 1e-9)))


def photographs() -> list[Image.Image]:
    """The colour photographs that scikit-image ships; skips the test where it is not installed."""
    folder = Path(pytest.importorskip("skimage", reason="scikit-image, whose photographs the test uses, is not installed").__file__).parent
    names = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "retina.jpg", "rocket.jpg")
    return [Image.open(folder / "data" / name).convert("RGB") for name in names if (folder / "data" / name).exists()]


def with_orientation(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


# What turns an upright picture into the one that a camera held so would store.
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def stored(image: Image.Image, orientation: int) -> Image.Image:
    transposition = STORED_AS[orientation]
    return image if transposition is None else image.transpose(transposition)
