"""samples -> duplicates: equal bytes, then equal pictures; the largest copy is kept.

Two pictures are the same when their bytes are (sha256), or when their perceptual hashes are equal. Flat pictures have no usable hash:
only equal bytes make them duplicates. A picture with transparency is hashed on white and on black, and both must agree. The keeper of a
group has the most pixels, then the most bytes, then the smallest sha256, then the smallest image_id: the same under any order.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import delta, ledger, tables
from imagelake.config import Config
from imagelake.ledger import StageResult
from imagelake.runner import run, unchanged

KEEPER = "keeper"
FACTS = (C.IMAGE_ID, C.SHA256, C.BYTE_SIZE, C.WIDTH, C.HEIGHT, C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION, C.IS_FLAT)


def rank() -> Column:
    """A struct whose minimum is the keeper. It carries what a group needs to know of its keeper, and never bytes."""
    pixels = F.col(C.WIDTH).cast("long") * F.col(C.HEIGHT)
    order = ((-pixels).alias("minus_pixels"), (-F.col(C.BYTE_SIZE)).alias("minus_bytes"), F.col(C.SHA256), F.col(C.IMAGE_ID))
    return F.struct(*order, C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION, C.IS_FLAT)


def candidates(samples: DataFrame, rejects: DataFrame) -> DataFrame:
    """What may be kept: readable samples that no rule rejected."""
    readable = samples.where(F.col(C.DEFECT).isNull()).select(*FACTS)
    return readable.join(rejects.select(C.IMAGE_ID).distinct(), on=C.IMAGE_ID, how="left_anti")


def duplicates(candidates: DataFrame, *, perceptual: bool = True) -> DataFrame:
    """candidates -> duplicates: every member of a group but its keeper.

    Groups are aggregated to their keeper before they are joined back, so a hash with a million members costs one row of state.
    """
    keepers = candidates.groupBy(C.SHA256).agg(F.min(rank()).alias(KEEPER))
    if perceptual:
        keepers = of_picture(keepers)
    return _losers(candidates.join(keepers, on=C.SHA256, how="inner"))


def of_picture(keepers: DataFrame) -> DataFrame:
    """sha256 and the keeper of its bytes -> sha256 and the keeper of its picture, the same one where nothing is comparable.

    Bytes stand for their picture once, whatever versions of the hash their copies have: hashes of two versions are never compared.
    """
    phash, black, is_flat = (F.col(f"{KEEPER}.{name}") for name in (C.PHASH, C.PHASH_BLACK, C.IS_FLAT))
    comparable = phash.isNotNull() & ~F.coalesce(is_flat, F.lit(True))
    key = F.struct(f"{KEEPER}.{C.PHASH_VERSION}", phash.alias("white"), F.coalesce(black, phash).alias("black"))
    pictures = keepers.where(comparable).withColumn("picture", key)
    largest = pictures.groupBy("picture").agg(F.min(KEEPER).alias("largest"))
    joined = pictures.join(largest, on="picture", how="inner").select(C.SHA256, F.col("largest").alias(KEEPER))
    return joined.unionByName(keepers.where(~comparable))


def _losers(members: DataFrame) -> DataFrame:
    same_bytes = F.col(C.SHA256) == F.col(f"{KEEPER}.{C.SHA256}")
    return members.where(F.col(C.IMAGE_ID) != F.col(f"{KEEPER}.{C.IMAGE_ID}")).select(
        C.IMAGE_ID,
        F.col(f"{KEEPER}.{C.IMAGE_ID}").alias(C.KEEPER_ID),
        F.when(same_bytes, F.lit("sha256")).otherwise(F.lit("phash")).alias(C.KIND),
        F.lit(0).alias(C.DISTANCE),
        _won_by().alias(C.WON_BY),
    )


def _won_by() -> Column:
    """What decided for the keeper: the first part of the rank in which it and the member differ."""
    pixels = F.col(C.WIDTH).cast("long") * F.col(C.HEIGHT)
    return (
        F.when(F.col(f"{KEEPER}.minus_pixels") != -pixels, F.lit("pixels"))
        .when(F.col(f"{KEEPER}.minus_bytes") != -F.col(C.BYTE_SIZE), F.lit("bytes"))
        .when(F.col(f"{KEEPER}.{C.SHA256}") != F.col(C.SHA256), F.lit("sha256"))
        .otherwise(F.lit("image_id"))
    )


def main(spark: SparkSession, cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    read = {table.name: delta.version(lake, table) for table in (tables.SAMPLES, tables.REJECTS)}
    if unchanged(cfg, "dedup", read):
        return StageResult(nothing_to_do=True)
    samples = delta.read(spark, lake, tables.SAMPLES, read[tables.SAMPLES.name])
    rejected = delta.read(spark, lake, tables.REJECTS, read[tables.REJECTS.name])
    comparable = candidates(samples, rejected)
    losers = duplicates(comparable, perceptual=cfg.dedup.perceptual).withColumn(C.RUN_ID, F.lit(ledger.CURRENT_RUN.get()))
    version = delta.replace(losers, lake, tables.DUPLICATES)
    found = delta.read(spark, lake, tables.DUPLICATES, version).select(C.KIND)
    rows = comparable.select(F.lit(None).cast("string").alias(C.KIND)).unionByName(found).groupBy(C.KIND).count()
    kinds = {row[C.KIND]: row["count"] for row in rows.collect()}
    rows_in = kinds.pop(None, 0)
    return StageResult(rows_in, rows_in - sum(kinds.values()), kinds, read, {tables.DUPLICATES.name: version})


if __name__ == "__main__":
    run(main, "dedup")
