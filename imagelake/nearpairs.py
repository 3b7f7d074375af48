"""Pictures whose hashes differ in a few bits: all such pairs by banding, and which picture of each neighbourhood stays.

A 64-bit hash has four bands of 16 bits. Two hashes that differ in d bits differ in at most d // 4 bits in one of the bands at least, so
looking each band up under every value that is so near finds each pair (multi-index hashing: Norouzi, Punjani, Fleet, 2012). What is found
is then measured: no pair is missed, and none is a guess.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BANDS, BAND_BITS = 4, 16


def probes(max_distance: int) -> list[int]:
    """What to flip in a band to reach each value that a hash within `max_distance` bits may have there: 1, 17 or 137 masks."""
    radius = max_distance // BANDS
    return [mask for mask in range(1 << BAND_BITS) if mask.bit_count() <= radius]


def near_pairs(pictures: DataFrame, max_distance: int) -> DataFrame:
    """pictures (id, white, black: bigint, version) -> first, second, distance: each pair within `max_distance` bits, once.

    The distance is the larger of that on white and that on black. Hashes of two versions are no pair.
    """
    known = pictures.select("id", "white", "black", "version", F.explode(_bands()).alias("band"))
    asked = known.withColumn("band", F.explode(_flipped(probes(max_distance))))
    first, second = known.alias("first"), asked.alias("second")
    bits = F.greatest(*(F.bit_count(F.col(f"first.{side}").bitwiseXOR(F.col(f"second.{side}"))) for side in ("white", "black")))
    same = (F.col("first.band") == F.col("second.band")) & F.col("first.version").eqNullSafe(F.col("second.version"))
    found = first.join(second, on=same & (F.col("first.id") < F.col("second.id")) & (bits <= max_distance), how="inner")
    return found.select(F.col("first.id").alias("first"), F.col("second.id").alias("second"), bits.cast("int").alias("distance")).distinct()


def _bands() -> Column:
    """The four bands of `white`, each with its number above its bits."""
    mask = (1 << BAND_BITS) - 1
    return F.array(
        *(
            F.shiftrightunsigned("white", BAND_BITS * number).bitwiseAND(F.lit(mask)).bitwiseOR(F.lit(number << BAND_BITS))
            for number in range(BANDS)
        )
    )


def _flipped(masks: Iterable[int]) -> Column:
    values = F.array(*(F.lit(mask).cast("bigint") for mask in masks))
    return F.transform(values, lambda mask: F.col("band").bitwiseXOR(mask))


def elect(pairs: Iterable[tuple[str, str, int]]) -> dict[str, tuple[str, int]]:
    """Which pictures lose, and to which: loser -> (keeper, distance).

    pairs: (better, worse, distance), in the order of their better. From the best down, a picture stays unless one that stays is near it;
    then it loses to the best such. So every loser is near its keeper itself: a chain of small steps does not unite its ends.
    """
    lost: dict[str, tuple[str, int]] = {}
    for better, worse, distance in pairs:
        if better not in lost and worse not in lost:
            lost[worse] = (better, distance)
    return lost
