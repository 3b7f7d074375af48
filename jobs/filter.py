"""samples -> rejects: what is too small, too extreme or not licensed. Columns only; bytes are never touched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StringType

from imagelake import columns as C
from imagelake import delta, ledger, tables
from imagelake.config import Config, FilterConfig, GeometryConfig
from imagelake.ledger import StageResult
from imagelake.predicates import checked
from imagelake.runner import run, unchanged
from udfs.language import language

MIN_RATIO, MAX_RATIO = 0.5, 2.0


def languages(texts: pd.Series) -> pd.Series:
    """Texts or null -> their languages, null where none can be told."""
    return texts.map(language, na_action="ignore")


def reject_reasons(samples: DataFrame, cfg: FilterConfig, geometry: GeometryConfig) -> Column:
    """Array of the reasons why a readable sample is out; empty means keep. All that it fails, not only the first.

    Raises ConfigError for a predicate of cfg.where that is none over `samples`.
    """
    width, height = F.col(C.WIDTH), F.col(C.HEIGHT)
    longer, shorter = F.greatest(width, height), F.least(width, height)
    rules = {"below_min_pixels": width.cast("long") * height < cfg.min_pixels}
    if cfg.min_side is not None:
        rules["below_min_side"] = shorter < cfg.min_side
    rules["aspect_ratio"] = F.lit(False)
    if geometry.out_of_range == "drop":
        # In integers: 704 × 352 is inside, whatever a division would round to.
        rules["aspect_ratio"] = (width > MAX_RATIO * height) | (width < MIN_RATIO * height)
    if cfg.max_aspect_ratio is not None:
        rules["aspect_ratio"] = rules["aspect_ratio"] | (longer > cfg.max_aspect_ratio * shorter)
    if cfg.licenses is not None:
        rules["license"] = ~F.coalesce(F.col(C.LICENSE).isin(list(cfg.licenses)), F.lit(False))
    if cfg.trust:
        declared = F.coalesce(F.col(C.TRUST), F.array().cast("array<string>"))
        rules["trust_required"] = F.size(F.array_except(F.array(*map(F.lit, cfg.trust)), declared)) > 0
    # By length, then by text, so that the same captions are always judged by the same one.
    captions = F.transform(F.map_values(C.CAPTIONS), lambda text: F.struct(F.char_length(text).alias("chars"), text.alias("text")))
    longest = F.array_max(captions)
    if cfg.languages is not None:
        found = pandas_udf(languages, StringType())  # type: ignore[call-overload]
        rules["language"] = ~F.coalesce(found(longest["text"]).isin(list(cfg.languages)), F.lit(True))
    if cfg.min_caption_chars is not None:
        rules["caption_length"] = F.coalesce(longest["chars"], F.lit(0)) < cfg.min_caption_chars
    rules |= checked(samples, cfg.where, "filter.where")
    return F.array_compact(F.array(*(F.when(fails, F.lit(name)) for name, fails in rules.items())))


def rejects(samples: DataFrame, cfg: FilterConfig, geometry: GeometryConfig) -> DataFrame:
    """samples -> rejects: one row per reason. Raises ConfigError for a predicate of cfg.where that is none over samples."""
    facts = F.concat_ws(" ", F.concat(F.col(C.WIDTH), F.lit("×"), F.col(C.HEIGHT)), F.concat(F.lit("license "), F.col(C.LICENSE)))
    return (
        samples.where(F.col(C.DEFECT).isNull())
        .withColumn(C.REASON, F.explode(reject_reasons(samples, cfg, geometry)))
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


def what_if(spark: SparkSession, now: Config, then: Config) -> list[dict[str, Any]]:
    """What other rules would change, by source: samples, kept now, kept then, newly out and newly in. Reads columns; writes nothing."""
    samples = delta.read(spark, Path(now.lake.root), tables.SAMPLES).drop(C.IMAGE).where(F.col(C.DEFECT).isNull())
    kept = [F.size(reject_reasons(samples, cfg.filter, cfg.geometry)) == 0 for cfg in (now, then)]
    both = samples.select(C.SOURCE, kept[0].alias("now"), kept[1].alias("then"))
    counts = both.groupBy(C.SOURCE).agg(
        F.count(F.lit(1)).alias("samples"),
        F.count_if("now").alias("kept_now"),
        F.count_if("then").alias("kept_then"),
        F.count_if(F.col("now") & ~F.col("then")).alias("newly_out"),
        F.count_if(F.col("then") & ~F.col("now")).alias("newly_in"),
    )
    return [row.asDict() for row in counts.orderBy(C.SOURCE).collect()]


def main(spark: SparkSession, cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    read = {tables.SAMPLES.name: delta.version(lake, tables.SAMPLES)}
    if unchanged(cfg, "filter", read):
        return StageResult(nothing_to_do=True)
    samples = delta.read(spark, lake, tables.SAMPLES, read[tables.SAMPLES.name]).drop(C.IMAGE)
    version = delta.replace(rejects(samples, cfg.filter, cfg.geometry), lake, tables.REJECTS, where="stage = 'filter'")
    found = reject_reasons(samples, cfg.filter, cfg.geometry).alias("reasons")
    counts = samples.where(F.col(C.DEFECT).isNull()).groupBy(found).count().collect()
    reasons: Counter[str] = Counter()
    for row in counts:
        reasons.update(dict.fromkeys(row["reasons"], row["count"]))
    rows_in = sum(row["count"] for row in counts)
    kept = sum(row["count"] for row in counts if not row["reasons"])
    return StageResult(rows_in, kept, dict(reasons), read, {tables.REJECTS.name: version})


if __name__ == "__main__":
    run(main, "filter")
