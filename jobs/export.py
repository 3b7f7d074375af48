"""curated -> corpus: MDS shards per tier and bucket, planned before a byte is written.

The plan is made on columns: a bucket's rows are ordered by a hash of image_id and their exact sizes are known, so every row has its shard
and its place. A task writes whole planned shards and fetches their images by row address: no shuffle carries an image, and a repeated
attempt writes the same bytes to the same name. The driver then publishes: rows, each bucket's index, release.json. Later exports append.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import corpus, delta, lance_source, ledger, mds, progress, tables
from imagelake.config import Config, digest_of
from imagelake.errors import GateError
from imagelake.lance_source import ROW_ADDRESS
from imagelake.ledger import StageResult
from imagelake.runner import run, unchanged
from imagelake.views import corpus_rows

if TYPE_CHECKING:
    from pyspark import Accumulator

BLOBS_AT_ONCE = 64
INTS = (C.WIDTH, C.HEIGHT, C.ORIGINAL_WIDTH, C.ORIGINAL_HEIGHT)
TEXTS = {C.IMAGE_ID: "id", C.SOURCE: "source", C.SOURCE_KEY: "source_key", C.LICENSE: "license"}
SHARD, PLACE, SIZE = "shard", "place", "size"
RESULT = "tier int, bucket string, entry string"


def mds_columns(captions: Sequence[str], main_caption: str) -> dict[str, str]:
    """Column name -> MDS encoding: the same in every shard of a corpus."""
    named = {f"caption_{name}": "str" for name in captions}
    return {
        "image": "jpeg",
        **dict.fromkeys(INTS, "int"),
        **dict.fromkeys(TEXTS.values(), "str"),
        main_caption: "str",
        **named,
    }


def samples(curated: DataFrame, captions: Sequence[str], main_caption: str) -> DataFrame:
    """curated -> the columns of a sample but its image, texts never null, with the row's address and the image's size."""

    def first_named(name: str) -> Column:
        return F.get(F.filter(C.CAPTIONS, lambda entry: entry["name"] == name), F.lit(0))["text"]

    texts = {renamed: F.col(column) for column, renamed in TEXTS.items()}
    texts |= {main_caption: F.col(main_caption) if main_caption in curated.columns else F.lit(None)}
    texts |= {f"caption_{name}": first_named(name) for name in captions}
    written = [F.coalesce(text.cast("string"), F.lit("")).alias(name) for name, text in texts.items()]
    return curated.select(C.TIER, C.BUCKET, C.BYTE_SIZE, C.SHA256, ROW_ADDRESS, *INTS, *written)


def plan(samples: DataFrame, columns: Mapping[str, str], shard_bytes: int) -> DataFrame:
    """Give each sample its shard (int, from 0 in each bucket) and its place (int, from 0 in the shard).

    A shard never exceeds `shard_bytes`, unless one sample alone does. The plan depends on nothing but the rows.
    """
    text_bytes = [F.octet_length(name) for name in mds.variable_columns(columns) if name != C.IMAGE]
    size = F.lit(mds.fixed_bytes(columns)) + F.col(C.BYTE_SIZE) + sum(text_bytes, F.lit(0))
    order = (F.xxhash64("id"), F.col("id"))
    bucket = Window.partitionBy(C.TIER, C.BUCKET)
    room = F.lit(shard_bytes - mds.shard_header_bytes(columns, shard_bytes))
    sized = samples.withColumn(SIZE, size)
    before = F.sum(SIZE).over(bucket.orderBy(*order)) - F.col(SIZE)
    # A sample belongs to the interval in which it begins: intervals shorter by the largest sample can't overflow a shard.
    interval = F.greatest(room - F.max(SIZE).over(bucket), F.lit(1))
    cut = sized.withColumn("cut", F.floor(before / interval))
    numbered = cut.withColumn(SHARD, F.dense_rank().over(bucket.orderBy("cut")) - 1)
    place = F.row_number().over(Window.partitionBy(C.TIER, C.BUCKET, SHARD).orderBy(*order)) - 1
    return numbered.withColumn(PLACE, place).drop("cut")


@dataclass(frozen=True)
class Export:
    """What one export's tasks and its publication need to know. version: of the curated table."""

    export_id: str
    lake: Path
    root: Path
    version: int
    columns: Mapping[str, str]
    captions: Sequence[str]
    shard_bytes: int


def bucket_totals(planned: DataFrame) -> list[dict[str, Any]]:
    """Of each bucket that the plan fills: rows, shards, and two sums that tell one plan from another."""
    totals = planned.groupBy(C.TIER, C.BUCKET).agg(*delta.digest_columns(["id", SHARD, PLACE, SIZE]), (F.max(SHARD) + 1).alias("shards"))
    found = [row.asDict() | {name: int(row[name]) for name in ("digest_a", "digest_b", "shards")} for row in totals.collect()]
    return sorted(found, key=lambda total: (total[C.TIER], total[C.BUCKET]))


def shard_writer(export: Export, done: Accumulator[int]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task: planned rows in, whole shards written, their index entries out."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from imagelake.lance import BlobReader

        blobs = BlobReader.open(export.lake, tables.CURATED, C.IMAGE, export.version)
        rows = (row for batch in batches for row in batch.to_pylist())
        for (tier, key, shard), members in groupby(rows, key=lambda row: (row[C.TIER], row[C.BUCKET], row[SHARD])):
            planned = list(members)
            name = corpus.shard_basename(export.export_id, shard)
            path = corpus.bucket_dir(export.root, tier, key) / name
            shape = (planned[0][C.WIDTH], planned[0][C.HEIGHT])
            images = with_images(planned, blobs.fetch, export.columns)
            entry = mds.write_shard(path, export.columns, images, basename=name, shape=shape, size_limit=export.shard_bytes)
            done.add(len(planned))
            yield pa.RecordBatch.from_pydict({"tier": pa.array([tier], pa.int32()), "bucket": [key], "entry": [json.dumps(entry)]})

    return write


def with_images(
    planned: Sequence[Mapping[str, Any]], fetch: Callable[[Any], list[bytes]], columns: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Samples as they are written: the planned columns and the image, fetched some rows at a time."""
    names = [name for name in columns if name != C.IMAGE]
    for start in range(0, len(planned), BLOBS_AT_ONCE):
        chunk = planned[start : start + BLOBS_AT_ONCE]
        for row, image in zip(chunk, fetch(np.array([row[ROW_ADDRESS] for row in chunk], np.int64)), strict=True):
            yield {name: row[name] for name in names} | {C.IMAGE: image}


def caption_names(curated: DataFrame, cfg: Config, released: corpus.Release | None) -> list[str]:
    """The baseline captions to export: those of the release, so that every shard has the same columns; else as configured; else all."""
    if released is not None:
        return list(released.captions)
    if cfg.export.captions is not None:
        return list(cfg.export.captions)
    named = curated.select(F.explode(C.CAPTIONS).alias("caption")).select("caption.name").distinct()
    return sorted(row["name"] for row in named.collect())


def curated_rows(spark: SparkSession, lake: Path, version: int) -> DataFrame:
    path = str((lake / tables.CURATED.path).resolve())
    return lance_source.frame(spark, lance_source.ScanPlan.pin(path, (), version, with_address=True))


def main(spark: SparkSession, cfg: Config) -> StageResult:
    from imagelake import lance

    lake, root = Path(cfg.lake.root), Path(cfg.corpus.root)
    version = lance.version(lake, tables.CURATED)
    if version < 0:
        return StageResult(nothing_to_do=True)
    released = corpus.read_release(root) if corpus.is_released(root) else None
    last = ledger.last_good(lake, "export")
    exported = released is not None and last is not None and last["notes"].get("release") == released.release
    if exported and unchanged(cfg, "export", {tables.CURATED.name: version}):
        return StageResult(nothing_to_do=True)
    curated = curated_rows(spark, lake, version)
    captions = caption_names(curated, cfg, released)
    columns = mds_columns(captions, cfg.caption.column)
    if released is not None and columns != dict(released.columns):
        raise GateError(
            f"{root}: the released corpus has columns {', '.join(released.columns)}, this export would write {', '.join(columns)}; "
            "give corpus.root a new folder"
        )
    known = corpus_rows(spark, root).select(C.IMAGE_ID)
    fresh = samples(curated.join(known, on=C.IMAGE_ID, how="left_anti"), captions, cfg.caption.column)
    planned = plan(fresh, columns, cfg.export.shard_bytes).persist(StorageLevel.DISK_ONLY)
    try:
        totals = bucket_totals(planned)
        if not totals:
            return StageResult(nothing_to_do=True)
        if cfg.export.captions_required:
            _require_captions(planned, cfg.caption.column)
        number = len(released.exports) if released else 0
        export_id = f"{number:05d}-{digest_of([totals, columns, cfg.export.shard_bytes])[:8]}"
        export = Export(export_id, lake.resolve(), root.resolve(), version, columns, captions, cfg.export.shard_bytes)
        entries = _write_shards(planned, totals, export)
        _require_all(totals, entries, export_id)
        release = _publish(planned, export, entries, released, cfg)
    finally:
        planned.unpersist()
    notes = {"export": export_id, "shards": str(sum(map(len, entries.values()))), "release": release.release}
    rows = sum(total["rows"] for total in totals)
    return StageResult(rows, rows, {}, {tables.CURATED.name: version}, {}, notes)


def _require_captions(planned: DataFrame, column: str) -> None:
    lacking = planned.where(F.col(column) == "").select("id").limit(6).collect()
    if lacking:
        raise GateError(
            f"export.captions_required: no {column} for {', '.join(row['id'] for row in lacking[:5])}{' …' if len(lacking) > 5 else ''}"
        )


def _write_shards(planned: DataFrame, totals: Sequence[Mapping[str, Any]], export: Export) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Index entries by (tier, bucket), in the order of their shards."""
    done = planned.sparkSession.sparkContext.accumulator(0)
    # One shard a task: hashed, two of a few shards would often share one.
    firsts = accumulate((total["shards"] for total in totals), initial=0)
    first = {(total[C.TIER], total[C.BUCKET]): number for total, number in zip(totals, firsts, strict=False)}
    of_bucket = F.create_map(*(F.lit(part) for (tier, key), number in first.items() for part in (f"{tier}/{key}", number)))
    task = of_bucket[F.concat_ws("/", C.TIER, C.BUCKET)] + F.col(SHARD)
    whole = planned.repartitionById(sum(total["shards"] for total in totals), task.cast("int")).sortWithinPartitions(PLACE)
    with progress.meter("export", poll=lambda: int(done.value)):
        written = whole.mapInArrow(shard_writer(export, done), RESULT).collect()
    entries: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in written:
        entries.setdefault((row["tier"], row["bucket"]), []).append(json.loads(row["entry"]))
    return {bucket: sorted(found, key=lambda entry: entry["raw_data"]["basename"]) for bucket, found in entries.items()}


def _require_all(totals: Sequence[Mapping[str, Any]], entries: Mapping[tuple[int, str], list[dict[str, Any]]], export_id: str) -> None:
    planned = sum(total["rows"] for total in totals)
    written = sum(entry["samples"] for found in entries.values() for entry in found)
    if planned != written:
        raise GateError(f"export {export_id}: {planned} samples planned, {written} written; nothing was published")


def _publish(
    planned: DataFrame,
    export: Export,
    entries: Mapping[tuple[int, str], list[dict[str, Any]]],
    released: corpus.Release | None,
    cfg: Config,
) -> corpus.Release:
    """Rows, then each bucket's index, then the release: the order in which a reader may trust them."""
    root, export_id = export.root, export.export_id
    shard_name = F.format_string(f"{export_id}/shard.%05d{corpus.SHARD_SUFFIX}", F.col(SHARD).cast("int"))
    placed = planned.select(
        F.col("id").alias("image_id"),
        C.TIER,
        C.BUCKET,
        shard_name.alias("shard"),
        F.col(PLACE).cast("int").alias("index"),
        C.SOURCE,
        F.xxhash64(C.SHA256).alias("picture"),
        F.array(*map(F.xxhash64, corpus.caption_columns(export.columns))).alias("captions"),
    )
    rows = sum(entry["samples"] for found in entries.values() for entry in found)
    placed.coalesce(max(1, rows // 5_000_000)).write.mode("overwrite").parquet(str(corpus.rows_path(root, export_id)))
    exports = (*(released.exports if released else ()), export_id)
    buckets = dict(released.buckets) if released else {}
    for (tier, key), found in sorted(entries.items()):
        folder = corpus.bucket_dir(root, tier, key)
        # An interrupted export may have published its index, but not its release: what no release names is not carried on.
        earlier = [entry for entry in mds.read_index(folder) if entry["raw_data"]["basename"].split("/")[0] in exports[:-1]]
        mds.write_index(folder, [*earlier, *found])
        buckets[corpus.bucket_name(tier, key)] = corpus.BucketSummary.of([*earlier, *found])
    release = corpus.Release(
        created_from=_curated_from(export.lake) | {tables.CURATED.name: export.version},
        config_digest=cfg.digest(),
        rows=sum(bucket.rows for bucket in buckets.values()),
        columns=dict(export.columns),
        captions=tuple(export.captions),
        buckets=buckets,
        exports=exports,
        jpeg_quality=cfg.curate.jpeg_quality,
    )
    return corpus.write_release(root, release)


def _curated_from(lake: Path) -> dict[str, int | str | None]:
    """The versions of the tables that the curated one was last made from."""
    last = ledger.last_good(lake, "curate")
    return dict(last["read_versions"]) if last else {}


if __name__ == "__main__":
    run(main, "export")
