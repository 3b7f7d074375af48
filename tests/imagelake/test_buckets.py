from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagelake.buckets import TIERS, Bucket, assign, shapes

TABLE = {
    "0.500": (352, 704),
    "0.571": (384, 672),
    "0.600": (384, 640),
    "0.684": (416, 608),
    "0.778": (448, 576),
    "0.882": (480, 544),
    "1.000": (512, 512),
    "1.133": (544, 480),
    "1.286": (576, 448),
    "1.462": (608, 416),
    "1.667": (640, 384),
    "1.750": (672, 384),
    "2.000": (704, 352),
}

sides = st.integers(1, 20_000)


def one(width: int, height: int, tiers: tuple[int, ...] = TIERS) -> tuple[Bucket, bool]:
    tier, w, h, inside = assign(np.array([width]), np.array([height]), tiers)
    return Bucket(int(tier[0]), int(w[0]), int(h[0])), bool(inside[0])


@pytest.mark.parametrize("tier", TIERS)
def test_each_tier_has_the_same_13_keys(tier: int) -> None:
    scale = tier // 512
    assert {shape.key: (shape.width, shape.height) for shape in shapes(tier)} == {
        key: (width * scale, height * scale) for key, (width, height) in TABLE.items()
    }


def test_shapes_run_from_tallest_to_widest() -> None:
    ratios = [shape.width / shape.height for shape in shapes(1024)]
    assert ratios == sorted(ratios)


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown tier 768"):
        shapes(768)


@pytest.mark.parametrize("shape", [shape for tier in TIERS for shape in shapes(tier)], ids=lambda s: f"{s.tier}/{s.key}")
def test_a_picture_with_a_buckets_ratio_gets_this_bucket(shape: Bucket) -> None:
    # Twice the size of the shape has four times the pixels of its tier at most, so the tier may be the next one.
    found, inside = one(2 * shape.width, 2 * shape.height)
    assert (found.key, inside) == (shape.key, True)


@pytest.mark.parametrize(
    ("width", "height", "tier"),
    [
        (512, 512, 512),
        (511, 512, 512),
        (100, 100, 512),
        (1024, 1024, 1024),
        (1023, 1024, 512),
        (2048, 512, 1024),
        (2048, 2048, 2048),
        (4096, 4095, 2048),
        (4096, 4096, 4096),
        (60_000, 60_000, 4096),
    ],
)
def test_the_tier_is_the_largest_that_the_area_fills(width: int, height: int, tier: int) -> None:
    assert one(width, height)[0].tier == tier


def test_only_the_configured_tiers_are_used() -> None:
    assert one(4096, 4096, (1024, 512))[0].tier == 1024
    assert one(600, 600, (1024, 2048))[0].tier == 1024


def test_the_nearest_shape_is_nearest_in_log_ratio() -> None:
    # Between 1.286 and 1.462 the middle is 1.3736 in ratios and 1.3708 in logs: 1.372 tells the two rules apart.
    width, height = 1372, 1000
    linear = min(TABLE, key=lambda key: abs(width / height - TABLE[key][0] / TABLE[key][1]))
    assert linear == "1.286"
    assert one(width, height)[0].key == "1.462"


@pytest.mark.parametrize("denominator", [10**6, 2 * 10**6, 4 * 10**6, 7 * 10**6, 10**7])
def test_a_tie_goes_to_the_wider_shape(denominator: int) -> None:
    # No two neighbours have a tie in integers; the best fractions next to the middle of 5:3 and 7:4 are as near as doubles get.
    middle = Fraction(math.sqrt(35 / 12)).limit_denominator(denominator)
    assert one(middle.numerator, middle.denominator)[0].key == "1.750"


@given(sides, sides)
def test_a_rotated_picture_gets_the_mirrored_shape(width: int, height: int) -> None:
    upright, inside = one(width, height)
    turned, turned_inside = one(height, width)
    # On a tie the wider wins on both sides; integers of this size meet a tie only at ratios that are shapes themselves.
    assert (turned.tier, turned.width, turned.height, turned_inside) == (upright.tier, upright.height, upright.width, inside)


@given(sides, sides)
def test_no_other_shape_of_the_tier_is_nearer(width: int, height: int) -> None:
    found, _ = one(width, height)
    distances = {shape: abs(math.log(width / height) - math.log(shape.width / shape.height)) for shape in shapes(found.tier)}
    assert distances[found] <= min(distances.values()) + 1e-9


@given(sides, sides)
def test_inside_the_range_the_stretch_is_at_most_7_percent(width: int, height: int) -> None:
    found, inside = one(width, height)
    stretch = (width / height) / (found.width / found.height)
    if inside:
        assert 1 / 1.08 < stretch < 1.08
    assert inside == (width <= 2 * height and height <= 2 * width)


def test_many_pictures_at_once_get_what_each_gets_alone() -> None:
    rng = np.random.default_rng(0)
    width, height = rng.integers(1, 9000, 500), rng.integers(1, 9000, 500)
    tier, w, h, inside = assign(width, height)
    alone = [one(int(a), int(b)) for a, b in zip(width, height, strict=True)]
    assert [(Bucket(int(t), int(a), int(b)), bool(i)) for t, a, b, i in zip(tier, w, h, inside, strict=True)] == alone
