"""samples -> rejects: what is too small, too extreme or not licensed. Columns only; bytes are never touched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import delta, ledger, tables
from imagelake.config import Config, FilterConfig, GeometryConfig
from imagelake.ledger import StageResult
from imagelake.runner import run, unchanged

MIN_RATIO, MAX_RATIO = 0.5, 2.0


def reject_reasons(cfg: FilterConfig, geometry: GeometryConfig) -> Column:
    """Array of the reasons why a readable sample is out; empty means keep. All that it fails, not only the first."""
    width, height = F.col(C.WIDTH), F.col(C.HEIGHT)
    longer, shorter = F.greatest(width, height), F.least(width, height)
    rules = [F.when(width.cast("long") * height < cfg.min_pixels, F.lit("below_min_pixels"))]
    if cfg.min_side is not None:
        rules.append(F.when(shorter < cfg.min_side, F.lit("below_min_side")))
    out_of_range = F.lit(False)
    if geometry.out_of_range == "drop":
        # In integers: 704 × 352 is inside, whatever a division would round to.
        out_of_range = (width > MAX_RATIO * height) | (width < MIN_RATIO * height)
    if cfg.max_aspect_ratio is not None:
        out_of_range = out_of_range | (longer > cfg.max_aspect_ratio * shorter)
    rules.append(F.when(out_of_range, F.lit("aspect_ratio")))
    if cfg.licenses is not None:
        permitted = F.coalesce(F.col(C.LICENSE).isin(list(cfg.licenses)), F.lit(False))
        rules.append(F.when(~permitted, F.lit("license")))
    return F.array_compact(F.array(*rules))


def rejects(samples: DataFrame, cfg: FilterConfig, geometry: GeometryConfig) -> DataFrame:
    """samples -> rejects: one row per reason."""
    facts = F.concat_ws(" ", F.concat(F.col(C.WIDTH), F.lit("×"), F.col(C.HEIGHT)), F.concat(F.lit("license "), F.col(C.LICENSE)))
    return (
        samples.where(F.col(C.DEFECT).isNull())
        .withColumn(C.REASON, F.explode(reject_reasons(cfg, geometry)))
        .select(
            C.IMAGE_ID,
            C.SOURCE,
            C.SOURCE_KEY,
            F.lit("filter").alias(C.STAGE),
            C.REASON,
            facts.alias(C.DETAIL),
            F.lit(ledger.CURRENT_RUN.get()).alias(C.RUN_ID),
        )
    )


def main(spark: SparkSession, cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    read = {tables.SAMPLES.name: delta.version(lake, tables.SAMPLES)}
    if unchanged(cfg, "filter", read):
        return StageResult(nothing_to_do=True)
    samples = delta.read(spark, lake, tables.SAMPLES, read[tables.SAMPLES.name]).drop(C.IMAGE)
    version = delta.replace(rejects(samples, cfg.filter, cfg.geometry), lake, tables.REJECTS, where="stage = 'filter'")
    found = reject_reasons(cfg.filter, cfg.geometry).alias("reasons")
    counts = samples.where(F.col(C.DEFECT).isNull()).groupBy(found).count().collect()
    reasons: Counter[str] = Counter()
    for row in counts:
        reasons.update(dict.fromkeys(row["reasons"], row["count"]))
    rows_in = sum(row["count"] for row in counts)
    kept = sum(row["count"] for row in counts if not row["reasons"])
    return StageResult(rows_in, kept, dict(reasons), read, {tables.REJECTS.name: version})


if __name__ == "__main__":
    run(main, "filter")
