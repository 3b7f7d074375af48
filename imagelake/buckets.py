"""Aspect-ratio buckets: 13 patch-aligned shapes a resolution tier, the same keys in every tier.

A tier `t` has patches of t/16 pixels. For p patches of width between sqrt(128) and sqrt(512), q = floor(256 / p), the shapes are
(p, q) and (q, p): 240 to 256 patches each, ratios from 0.5 to 2.0. The shape of an image is the nearest in log aspect ratio,
so that a rotated image gets the mirrored shape; on a tie the wider wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

TIERS = (512, 1024, 2048, 4096)
PATCHES_PER_SIDE = 16


@dataclass(frozen=True, order=True)
class Bucket:
    """One shape of one tier. `key` is the folder name, width / height with three decimals."""

    tier: int
    width: int
    height: int

    @property
    def key(self) -> str:
        return f"{self.width / self.height:.3f}"


@cache
def shapes(tier: int) -> tuple[Bucket, ...]:
    """The 13 shapes of `tier`, from tallest to widest."""
    if tier not in TIERS:
        raise ValueError(f"unknown tier {tier}: one of {TIERS}")
    patch = tier // PATCHES_PER_SIDE
    area = PATCHES_PER_SIDE**2
    found = set()
    for p in range(math.ceil(math.sqrt(area / 2)), math.floor(math.sqrt(area * 2)) + 1):
        q = area // p
        found |= {(p, q), (q, p)}
    return tuple(Bucket(tier, p * patch, q * patch) for p, q in sorted(found, key=lambda s: s[0] / s[1]))


def assign(
    width: npt.NDArray[np.int64],
    height: npt.NDArray[np.int64],
    tiers: tuple[int, ...] = TIERS,
    *,
    stretch_tolerance: float = 1e-9,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Tier and shape of many images at once.

    width, height: int [N], upright pixels. Returns tier, bucket width, bucket height, all int [N], and in_range, bool [N]: whether the
    aspect ratio lies within the end shapes (0.5 to 2.0). Tier: the largest with tier² <= width·height, the smallest for what
    is below it.
    """
    tiers = tuple(sorted(tiers))
    areas = np.array([t * t for t in tiers], np.int64)
    rank = np.maximum(np.searchsorted(areas, width * height, side="right") - 1, 0)
    tier = np.array(tiers, np.int64)[rank]
    ratios = np.array([s.width / s.height for s in shapes(TIERS[0])])
    ratio = width / height
    distance = np.abs(np.log(ratio)[:, None] - np.log(ratios)[None, :])
    # Ties go to the wider shape: look for the minimum from the wide end.
    nearest = len(ratios) - 1 - np.argmin(np.round(distance[:, ::-1], 12), axis=1)
    base = np.array([(s.width, s.height) for s in shapes(TIERS[0])], np.int64)[nearest] // (TIERS[0] // PATCHES_PER_SIDE)
    patch = tier // PATCHES_PER_SIDE
    in_range = (ratio >= ratios[0] * (1 - stretch_tolerance)) & (ratio <= ratios[-1] * (1 + stretch_tolerance))
    return tier, base[:, 0] * patch, base[:, 1] * patch, in_range
