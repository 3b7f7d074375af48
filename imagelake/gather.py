"""Collects from the tables what the report page shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import corpus, delta, lance, ledger, report, tables, views
from imagelake.config import Config
from imagelake.paths import SQL
from imagelake.storage import write_atomic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_KEPT = 96
SHOWN_REJECTED = 96
SHOWN_GROUPS = 24
SHOWN_MEMBERS = 23
# An original larger than this is shown without its picture.
MAX_THUMBNAIL_BYTES = 32 << 20


def write_report(spark: SparkSession, cfg: Config, output: Path) -> report.ReportData:
    """Write the page to `output`; returns what it shows."""
    views.register(spark, cfg, pushdown=False)
    data = gather(spark, cfg)
    write_atomic(output, report.render_report(data).encode())
    return data


def gather(spark: SparkSession, cfg: Config) -> report.ReportData:
    lake, root = Path(cfg.lake.root), Path(cfg.corpus.root)
    losers = _largest_groups(spark, SHOWN_GROUPS)
    one_reason = spark.table("rejects").groupBy(C.IMAGE_ID).agg(F.min(F.struct(C.STAGE, C.REASON, C.DETAIL)).alias("why"))
    rejects = _rows(one_reason.select(C.IMAGE_ID, "why.*").orderBy(C.STAGE, C.REASON, C.IMAGE_ID).limit(SHOWN_REJECTED))
    kept = _kept(lake)
    wanted = {*(row[C.KEEPER_ID] for row in losers), *(row[C.IMAGE_ID] for row in [*losers, *rejects])}
    pictures = _originals(spark, lake, wanted)
    return report.ReportData(
        release=corpus.read_release(root).release if corpus.is_released(root) else "none yet",
        config_digest=cfg.digest(),
        lake_root=cfg.lake.root,
        corpus_root=cfg.corpus.root,
        sources=_sources(spark),
        buckets=[report.BucketCounts(**row) for row in _rows(spark.sql((SQL / "reports/buckets.sql").read_text(encoding="utf-8")))],
        duplicate_groups=_groups(losers, pictures),
        duplicate_groups_total=_groups_total(spark),
        kept=kept,
        rejected=[report.Rejected(pictures[row[C.IMAGE_ID]], row[C.STAGE], row[C.REASON], row[C.DETAIL]) for row in rejects],
        runs=_runs(lake),
    )


def write_groups(spark: SparkSession, cfg: Config, output: Path, count: int) -> int:
    """Write a contact sheet of the `count` largest duplicate groups to `output`; returns how many it shows."""
    lake = Path(cfg.lake.root)
    delta.read(spark, lake, tables.DUPLICATES).createOrReplaceTempView("duplicates")
    losers = _largest_groups(spark, count)
    pictures = _originals(spark, lake, {row[name] for row in losers for name in (C.IMAGE_ID, C.KEEPER_ID)})
    groups = _groups(losers, pictures)
    write_atomic(output, report.render_groups(cfg.lake.root, groups, _groups_total(spark)).encode())
    return len(groups)


def _largest_groups(spark: SparkSession, count: int) -> list[dict[str, Any]]:
    """Rows of duplicates, those of the largest groups first, up to SHOWN_MEMBERS of each; `losers` is how many the group has."""
    sizes = spark.table("duplicates").groupBy(C.KEEPER_ID).agg(F.count(F.lit(1)).alias("losers"))
    largest = sizes.orderBy(F.desc("losers"), C.KEEPER_ID).limit(count)
    place = F.row_number().over(Window.partitionBy(C.KEEPER_ID).orderBy(C.IMAGE_ID))
    shown = (
        spark.table("duplicates")
        .join(F.broadcast(largest), on=C.KEEPER_ID)
        .withColumn("place", place)
        .where(F.col("place") <= SHOWN_MEMBERS)
    )
    return _rows(shown.orderBy(F.desc("losers"), C.KEEPER_ID, "place"))


def _groups_total(spark: SparkSession) -> int:
    return spark.table("duplicates").select(C.KEEPER_ID).distinct().count()


def _groups(losers: Iterable[Mapping[str, Any]], pictures: Mapping[str, report.Picture]) -> list[report.DuplicateGroup]:
    return [
        report.DuplicateGroup(
            group_id=rows[0][C.GROUP_ID],
            keeper=pictures[keeper],
            losers=[report.Loser(pictures[row[C.IMAGE_ID]], row[C.KIND], row[C.DISTANCE], row[C.WON_BY]) for row in rows],
            losers_total=rows[0]["losers"],
        )
        for keeper, rows in ((keeper, list(rows)) for keeper, rows in groupby(losers, key=itemgetter(C.KEEPER_ID)))
    ]


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _sources(spark: SparkSession) -> list[report.SourceCounts]:
    funnel: dict[str, dict[str, int]] = defaultdict(dict)
    for row in _rows(spark.sql((SQL / "reports/funnel.sql").read_text(encoding="utf-8"))):
        funnel[row[C.SOURCE]][row["outcome"]] = row["samples"]
    return [
        report.SourceCounts(source, sum(outcomes.values()), outcomes.pop("kept", 0), outcomes.pop("duplicate", 0), outcomes)
        for source, outcomes in sorted(funnel.items())
    ]


def _kept(lake: Path) -> list[report.Kept]:
    if not lance.exists(lake, tables.CURATED):
        return []
    version = lance.version(lake, tables.CURATED)
    names = [C.IMAGE_ID, C.SOURCE, C.SOURCE_KEY, C.ORIGINAL_WIDTH, C.ORIGINAL_HEIGHT, C.TIER, C.BUCKET, C.CAPTIONS]
    rows = lance.head(lake, tables.CURATED, names, SHOWN_KEPT, at=version)
    images = lance.BlobReader.open(lake, tables.CURATED, C.IMAGE, version).fetch([row[lance.ROW_ADDRESS] for row in rows])
    kept = [
        report.Kept(_picture(row, image, C.ORIGINAL_WIDTH, C.ORIGINAL_HEIGHT), row[C.TIER], row[C.BUCKET])
        for row, image in zip(rows, images, strict=True)
    ]
    return sorted(kept, key=lambda entry: (entry.tier, entry.bucket, entry.picture.image_id))


def _originals(spark: SparkSession, lake: Path, image_ids: Iterable[str]) -> dict[str, report.Picture]:
    wanted = delta.read(spark, lake, tables.SAMPLES).where(F.col(C.IMAGE_ID).isin(sorted(image_ids)))
    small = F.when(F.col(C.BYTE_SIZE) <= MAX_THUMBNAIL_BYTES, F.col(C.IMAGE)).alias(C.IMAGE)
    rows = _rows(wanted.select(C.IMAGE_ID, C.SOURCE, C.SOURCE_KEY, C.WIDTH, C.HEIGHT, C.CAPTIONS, C.DEFECT, small))
    return {row[C.IMAGE_ID]: _picture(row, row[C.IMAGE] if row[C.DEFECT] is None else None, C.WIDTH, C.HEIGHT) for row in rows}


def _picture(row: Mapping[str, Any], image: bytes | None, width: str, height: str) -> report.Picture:
    captions = row[C.CAPTIONS] or {}
    texts = captions.values() if isinstance(captions, dict) else [entry["text"] for entry in captions]
    return report.Picture(
        image_id=row[C.IMAGE_ID],
        source=row[C.SOURCE],
        source_key=row[C.SOURCE_KEY],
        width=row[width],
        height=row[height],
        thumbnail=report.thumbnail(bytes(image)) if image else None,
        captions=[text for text in texts if text],
    )


def _runs(lake: Path) -> list[report.StageRun]:
    """The last run of each stage that did something."""
    last = {row["stage"]: row for row in ledger.runs(lake) if row["status"] != "nothing_to_do"}
    return [report.StageRun(row["stage"], row["status"], row["seconds"], row["rows_in"], row["kept"]) for row in last.values()]
