"""luma -> 64-bit perceptual hash: the low frequencies of a 32 x 32 thumbnail, each above or not above their median."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from udfs.resize import resize_wide

# Raised whenever the same picture may get another hash. Hashes of two versions are never compared.
PHASH_VERSION = 1

THUMBNAIL_SIDE = 32
# Steps of a thumbnail in one of the 256 levels of luma.
LEVEL = 256
_MIN_SIDE = 512
_LOW = 8
_MASK = (1 << 64) - 1

# Levels. Below this difference of brightest and darkest of the 32 x 32 there is no picture to compare, only noise and JPEG artefacts.
FLAT_SPREAD = 16
# A coefficient nearer to the median than saving the picture again may move it says nothing. A hash needs some that say something:
# a gradient or two halves have 4 to 7 of 63, a dot on a wall 15, the least detailed photograph met about 55.
_NOISE = 1.0
_MIN_TELLING = 16


def _dct_rows() -> npt.NDArray[np.float64]:
    """The first 8 rows of the orthonormal DCT-II of 32 points, [8, 32]."""
    point = np.arange(THUMBNAIL_SIDE)
    frequency = np.arange(_LOW)[:, None]
    rows = np.sqrt(2 / THUMBNAIL_SIDE) * np.cos(np.pi * (2 * point + 1) * frequency / (2 * THUMBNAIL_SIDE))
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, np.float64)


_DCT = _dct_rows()


def thumbnail(luma: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """Luma of any size, uint8 [H, W], to uint16 [32, 32] by Lanczos, in 1/256 of a level; the ratio is not kept.

    Not rounded to whole levels: that alone would move coefficients across the median, in 2 of 100 photographs saved again.
    """
    factor = min(luma.shape) // _MIN_SIDE
    if factor >= 2:
        # Bounds the memory of the 16-bit copy; the mean of whole blocks costs nothing that 32 x 32 would show.
        luma = np.asarray(Image.fromarray(luma).reduce(factor))
    return resize_wide(luma.astype(np.uint16) * np.uint16(LEVEL), THUMBNAIL_SIDE, THUMBNAIL_SIDE)


def _spectrum(small: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    """The low 8 x 8 block of a thumbnail, row by row, float64 [64], in levels; vertical frequency is the slow axis, DC is first."""
    # Rounded, so that what is zero but for the order of additions is zero on every machine.
    spectrum: npt.NDArray[np.float64] = np.round(_DCT @ (small / LEVEL) @ _DCT.T, 6)
    return spectrum.ravel()


def phash64(luma: npt.NDArray[np.uint8]) -> int:
    """Hash of luma, uint8 [H, W], upright, as a signed 64-bit integer.

    Bit 63 is DC, then row by row; a bit is set where the coefficient is above the median of the other 63. Same picture, same hash, whatever
    the processor; a change of it is a change of PHASH_VERSION.
    """
    return hash_and_flatness(luma)[0]


def is_flat(luma: npt.NDArray[np.uint8]) -> bool:
    """Whether luma, uint8 [H, W], has too little in it for its hash to tell pictures apart: one colour, a gradient, a dot."""
    return hash_and_flatness(luma)[1]


def hash_and_flatness(luma: npt.NDArray[np.uint8]) -> tuple[int, bool]:
    """`phash64` and `is_flat` of the same thumbnail."""
    small = thumbnail(luma)
    spectrum = _spectrum(small)
    from_median = spectrum - np.median(spectrum[1:])
    phash = int(np.packbits(from_median > 0).view(">i8")[0])
    spread = int(small.max()) - int(small.min())
    telling = int((np.abs(from_median[1:]) > _NOISE).sum())
    return phash, spread < FLAT_SPREAD * LEVEL or telling < _MIN_TELLING


def hamming(a: int, b: int) -> int:
    """Number of bits, 0 to 64, in which two hashes differ; signed or unsigned."""
    return ((a ^ b) & _MASK).bit_count()
