from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from imagelake.nearpairs import BAND_BITS, elect, near_pairs, probes

SCHEMA = "id string, white bigint, black bigint, version int"


def frame(spark: SparkSession, hashes: np.ndarray, black: np.ndarray | None = None, version: int = 1) -> DataFrame:
    others = hashes if black is None else black
    rows = [(f"{n:06d}", int(white), int(dark), version) for n, (white, dark) in enumerate(zip(hashes, others, strict=True))]
    return spark.createDataFrame(rows, SCHEMA)


def flipped(value: int, bits: list[int]) -> int:
    """`value` with some bits flipped, as a signed 64-bit number."""
    for bit in bits:
        value ^= 1 << bit
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def brute_force(hashes: np.ndarray, max_distance: int) -> set[tuple[str, str, int]]:
    found = set()
    for n, value in enumerate(hashes):
        bits = np.bitwise_count((hashes[n + 1 :] ^ value).view(np.uint64))  # of a negative number it counts the bits of the positive one
        found |= {(f"{n:06d}", f"{n + 1 + int(m):06d}", int(bits[m])) for m in np.flatnonzero(bits <= max_distance)}
    return found


def found(pairs: DataFrame) -> set[tuple[str, str, int]]:
    rows = [tuple(row) for row in pairs.collect()]
    assert len(set(rows)) == len(rows), "a pair came twice"
    return set(rows)


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Expressions compiled as on a cluster: the local settings are for small runs, and here some ten million rows pass."""
    fast = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in fast}
    for key, value in fast.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, str(value))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("max_distance", [1, 3, 4, 8])
def test_no_pair_of_20_000_hashes_is_missed_and_none_is_invented(spark: SparkSession, max_distance: int) -> None:
    rng, choice = np.random.default_rng(max_distance), random.Random(max_distance)
    hashes = rng.integers(-(2**63), 2**63, 20_000, np.int64)
    for n in range(0, 2000, 2):  # planted: 0 to 10 bits, anywhere or all in one band
        width = choice.choice([64, BAND_BITS])
        start = choice.choice(range(0, 64, BAND_BITS)) if width == BAND_BITS else 0
        hashes[n + 1] = flipped(int(hashes[n]), [start + bit for bit in choice.sample(range(width), choice.randint(0, 10))])
    expected = brute_force(hashes, max_distance)
    assert len(expected) > 80 * max_distance, "the test plants too few"
    assert found(near_pairs(frame(spark, hashes), max_distance)) == expected


def test_both_hashes_must_be_near_and_versions_are_never_compared(spark: SparkSession) -> None:
    hashes = np.array([0, 1, 3], np.int64)
    near_on_white = frame(spark, hashes, np.array([0, -1, 1], np.int64))
    assert found(near_pairs(near_on_white, 2)) == {("000000", "000002", 2)}
    two = frame(spark, hashes).unionByName(frame(spark, hashes, version=2).selectExpr("concat('v', id) AS id", "white", "black", "version"))
    assert {(a[0] == "v", b[0] == "v") for a, b, _ in found(near_pairs(two, 8))} == {(False, False), (True, True)}


def test_the_masks_are_all_that_are_near() -> None:
    assert [len(probes(distance)) for distance in range(9)] == [1, 1, 1, 1, 17, 17, 17, 17, 137]


def test_a_chain_of_small_steps_does_not_unite_its_ends() -> None:
    steps = [(a, b, 2) for a, b in pairwise("abcdef")]
    assert elect(steps) == {"b": ("a", 2), "d": ("c", 2), "f": ("e", 2)}


def test_a_loser_goes_to_the_best_keeper_near_it() -> None:
    assert elect([("a", "c", 3), ("b", "c", 1), ("c", "d", 1)]) == {"c": ("a", 3)}
