"""samples -> curated: upright RGB in its bucket's shape, Lanczos, JPEG encoded once.

The plan is made on columns: which samples survive, their tier and shape, and in which file their bytes lie. A task then reads them straight
from that file, so that no shuffle carries an image. What is kept no more (a stricter rule, a better copy) is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from imagelake import buckets, delta, lance_source, ledger, progress, tables
from imagelake import columns as C
from imagelake.config import Config, CurateConfig, GeometryConfig, digest_of
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.ledger import StageResult
from imagelake.runner import run, unchanged
from imagelake.stages import stage
from udfs.decode import Defect
from udfs.pixels import bucket_jpeg

if TYPE_CHECKING:
    from pyspark import Accumulator

FILE, SHAPE = "file", "shape"
CARRIED = (C.IMAGE_ID, C.SHA256, C.PHASH, C.SOURCE, C.SOURCE_KEY, C.LICENSE, C.ATTRIBUTION)
RESULT = "fragments string, failures string"


def survivors(samples: DataFrame, rejects: DataFrame, duplicates: DataFrame) -> DataFrame:
    """Readable samples that no rule rejected and that are no duplicate's loser."""
    out = rejects.select(C.IMAGE_ID).unionByName(duplicates.select(C.IMAGE_ID)).distinct()
    return samples.where(F.col(C.DEFECT).isNull()).join(out, on=C.IMAGE_ID, how="left_anti")


def united_captions(samples: DataFrame, duplicates: DataFrame, max_captions: int) -> DataFrame:
    """One row per keeper or single: image_id and captions, its own first, then those of its losers; equal texts once."""
    owner = F.coalesce(F.col(C.KEEPER_ID), F.col(C.IMAGE_ID))
    texts = (
        samples.join(duplicates.select(C.IMAGE_ID, C.KEEPER_ID), on=C.IMAGE_ID, how="left")
        .select(C.IMAGE_ID, owner.alias("owner"), F.explode(C.CAPTIONS).alias("name", "text"))
        .where(F.col("text").isNotNull())
    )
    own_first = (F.col(C.IMAGE_ID) != F.col("owner")).cast("int")
    once = texts.groupBy("owner", "name", "text").agg(F.min(F.struct(own_first, F.col(C.IMAGE_ID))).alias("order"))
    place = F.row_number().over(Window.partitionBy("owner").orderBy("order", "name", "text"))
    few = once.withColumn("place", place).where(F.col("place") <= max_captions)
    ordered = F.sort_array(F.collect_list(F.struct("place", "name", "text")))
    named = F.transform(ordered, lambda entry: F.struct(entry["name"].alias("name"), entry["text"].alias("text")))
    return few.groupBy(F.col("owner").alias(C.IMAGE_ID)).agg(named.alias(C.CAPTIONS))


def plan(survivors: DataFrame, captions: DataFrame) -> DataFrame:
    """What is to be made, and from which file: columns only."""
    columns = (*CARRIED, C.CAPTIONS, C.WIDTH, C.HEIGHT, FILE)
    return survivors.join(captions, on=C.IMAGE_ID, how="left").select(*columns)


def renewed_captions(kept: DataFrame, captions: DataFrame, stored: DataFrame) -> DataFrame:
    """The pictures of `stored` (image_id, captions) whose united captions are others by now: a duplicate came, or was rejected, since."""
    now = kept.select(C.IMAGE_ID).join(captions, on=C.IMAGE_ID, how="left")
    both = now.join(stored.withColumnRenamed(C.CAPTIONS, "stored"), on=C.IMAGE_ID, how="inner")
    # Curated holds no null: a picture without captions has an empty list.
    united = F.coalesce(F.col(C.CAPTIONS), F.array().cast(captions.schema[C.CAPTIONS].dataType))
    return both.where(~united.eqNullSafe(F.col("stored"))).select(C.IMAGE_ID, united.alias(C.CAPTIONS))


def with_shapes(samples: list[dict[str, Any]], tiers: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """The planned samples by image_id, each with the tier and the bucket that it goes to."""
    width = np.array([sample[C.WIDTH] for sample in samples], np.int64)
    height = np.array([sample[C.HEIGHT] for sample in samples], np.int64)
    tier, bucket_width, bucket_height, _ = buckets.assign(width, height, tiers)
    shapes = (buckets.Bucket(int(t), int(w), int(h)) for t, w, h in zip(tier, bucket_width, bucket_height, strict=True))
    return {sample[C.IMAGE_ID]: sample | {SHAPE: shape} for sample, shape in zip(samples, shapes, strict=True)}


def images_in(path: str, image_ids: Set[str]) -> Iterator[tuple[str, bytes]]:
    """image_id and image bytes of the wanted rows of one Parquet file of samples, in the file's order, one row group in memory at a time.

    Raises ImagelakeError when the file lacks one: then it is not the file that was planned on.
    """
    found = 0
    with pq.ParquetFile(unquote(urlsplit(path).path)) as file:
        for group in range(file.metadata.num_row_groups):
            ids = file.read_row_group(group, columns=[C.IMAGE_ID]).column(0).to_pylist()
            if image_ids.isdisjoint(ids):
                continue
            images = file.read_row_group(group, columns=[C.IMAGE]).column(0)
            for row, image_id in enumerate(ids):
                if image_id in image_ids:
                    found += 1
                    yield image_id, images[row].as_py()
    if found != len(image_ids):
        raise ImagelakeError(f"{path}: {len(image_ids)} images planned, {found} found")


def curated_row(sample: dict[str, Any], data: bytes, cfg: CurateConfig, crop: bool, max_pixels: int) -> dict[str, Any]:
    """One row of curated. Raises Defect when the bytes can't be turned into pixels."""
    shape: buckets.Bucket = sample[SHAPE]
    image = bucket_jpeg(
        data,
        shape.width,
        shape.height,
        background=cfg.background,
        crop=crop,
        max_pixels=max_pixels,
        quality=cfg.jpeg_quality,
    )
    return {name: sample[name] for name in CARRIED} | {
        C.IMAGE: image,
        C.WIDTH: shape.width,
        C.HEIGHT: shape.height,
        C.TIER: shape.tier,
        C.BUCKET: shape.key,
        C.ORIGINAL_WIDTH: sample[C.WIDTH],
        C.ORIGINAL_HEIGHT: sample[C.HEIGHT],
        C.BYTE_SIZE: len(image),
        C.CAPTIONS: sample[C.CAPTIONS] or [],
    }


def curator(
    lake: Path, cfg: CurateConfig, geometry: GeometryConfig, max_pixels: int, done: Accumulator[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task: planned rows in, staged fragments and failures out."""
    crop = geometry.out_of_range == "crop"

    def rows(planned: list[dict[str, Any]], failures: list[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
        for path, group in groupby(sorted(planned, key=lambda sample: sample[FILE]), key=lambda sample: sample[FILE]):
            by_id = with_shapes(list(group), geometry.tiers)
            for image_id, data in images_in(path, by_id.keys()):
                try:
                    yield curated_row(by_id[image_id], data, cfg, crop, max_pixels)
                except Defect as defect:
                    failures.append((image_id, defect.reason, defect.detail))
                done.add(1)

    def curate(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        planned = [sample for batch in batches for sample in batch.to_pylist()]
        if not planned:
            return
        from imagelake import lance

        failures: list[tuple[str, str, str]] = []
        fragments = lance.stage_rows(lake, tables.CURATED, rows(planned, failures))
        yield pa.RecordBatch.from_pydict({"fragments": [json.dumps(fragments)], "failures": [json.dumps(failures)]})

    return curate


def main(spark: SparkSession, cfg: Config) -> StageResult:
    from imagelake import lance

    lake = Path(cfg.lake.root)
    stages = (tables.SAMPLES, tables.REJECTS, tables.DUPLICATES)
    read = {table.name: delta.version(lake, table) for table in stages}
    if read[tables.SAMPLES.name] < 0 or unchanged(cfg, "curate", read):
        return StageResult(nothing_to_do=True)
    samples, rejects, duplicates = (delta.read(spark, lake, table, read[table.name]) for table in stages)
    columns = samples.select(*CARRIED, C.CAPTIONS, C.WIDTH, C.HEIGHT, C.DEFECT, F.col("_metadata.file_path").alias(FILE))
    lance.create(lake, tables.CURATED)
    _refuse_other_settings(lake, cfg)
    kept = survivors(columns, rejects, duplicates)
    curated = lance_source.ScanPlan.pin(lance.uri(lake.resolve(), tables.CURATED), [C.IMAGE_ID], None, with_address=False)
    present = lance_source.frame(spark, curated)
    gone = [row[C.IMAGE_ID] for row in present.join(kept.select(C.IMAGE_ID), on=C.IMAGE_ID, how="left_anti").collect()]
    missing = kept.join(present, on=C.IMAGE_ID, how="left_anti").drop(C.CAPTIONS)
    captions = united_captions(samples.select(C.IMAGE_ID, C.CAPTIONS), duplicates, cfg.curate.max_captions)
    planned = plan(missing, captions)
    batch = f"curate-{digest_of([read, cfg.digest(['curate', 'geometry']), lance.version(lake, tables.CURATED)])}"
    fragments, failures = _curate(spark, lake, cfg, planned)
    if failures:
        # Rejected before the kept rows are shown: an interruption in between leaves nothing that is neither.
        _reject(spark, lake, samples, failures, batch)
    if fragments:
        lance.commit_append(lake, tables.CURATED, fragments, batch)
    if gone:
        lance.delete_ids(lake, tables.CURATED, gone)
    renewed = renew_captions(spark, lake, kept, captions, curated) if curated.fragment_ids() else 0
    written = {tables.CURATED.name: lance.version(lake, tables.CURATED), "rejects": delta.version(lake, tables.REJECTS)}
    reasons: dict[str, int] = {}
    for _, reason, _ in failures:
        reasons[reason] = reasons.get(reason, 0) + 1
    total = lance.open_table(lake, tables.CURATED).count_rows()
    return StageResult(
        total + len(failures),
        total,
        reasons,
        read,
        written,
        {"removed": str(len(gone)), "fragments": str(len(fragments)), "captions_renewed": str(renewed)},
    )


def renew_captions(spark: SparkSession, lake: Path, kept: DataFrame, captions: DataFrame, earlier: lance_source.ScanPlan) -> int:
    """Bring the captions of the pictures that were there before this run up to date; returns how many changed."""
    from imagelake import lance

    plan = lance_source.ScanPlan.pin(
        lance.uri(lake.resolve(), tables.CURATED), [C.IMAGE_ID, C.CAPTIONS], earlier.version, with_address=False
    )
    renewed = renewed_captions(kept, captions, lance_source.frame(spark, plan)).toArrow()
    if not len(renewed):
        return 0
    types = {field.name: field.type for field in tables.CURATED.schema}
    columns = [renewed[name].cast(types[name]) for name in (C.IMAGE_ID, C.CAPTIONS)]
    return lance.set_columns(lake, tables.CURATED, C.IMAGE_ID, pa.table(columns, [C.IMAGE_ID, C.CAPTIONS]))[1]


def _refuse_other_settings(lake: Path, cfg: Config) -> None:
    """A picture is encoded once, so a table never mixes two qualities or layouts."""
    from imagelake import lance

    last = ledger.last_good(lake, "curate")
    made_otherwise = last is not None and last["stage_digest"] != cfg.digest(stage("curate").sections)
    if made_otherwise and lance.open_table(lake, tables.CURATED).count_rows():
        raise ConfigError(
            "curate.*, geometry.*: the curated table was made with other settings, and a picture is encoded once. Put the settings back, "
            "or use a new lake.root and corpus.root"
        )


def _curate(spark: SparkSession, lake: Path, cfg: Config, planned: DataFrame) -> tuple[list[str], list[tuple[str, str, str]]]:
    done = spark.sparkContext.accumulator(0)
    task = curator(lake.resolve(), cfg.curate, cfg.geometry, cfg.ingest.max_pixels, done)
    planned = planned.persist(StorageLevel.DISK_ONLY)
    try:
        files = sorted(row[FILE] for row in planned.select(FILE).distinct().collect())
        # One file a task: hashed, two of a few files would often share one.
        numbered = planned.join(spark.createDataFrame(pa.table({FILE: pa.array(files, pa.string()), "task": range(len(files))})), on=FILE)
        dealt = numbered.repartitionById(max(1, len(files)), F.col("task").cast("int")).drop("task")
        with progress.meter("curate", poll=lambda: int(done.value)):
            results = dealt.mapInArrow(task, RESULT).collect()
    finally:
        planned.unpersist()
    fragments = [text for row in results for text in json.loads(row["fragments"])]
    failures = [tuple(failure) for row in results for failure in json.loads(row["failures"])]
    return fragments, failures


def _reject(spark: SparkSession, lake: Path, samples: DataFrame, failures: list[tuple[str, str, str]], batch: str) -> None:
    reasons = spark.createDataFrame(failures, f"{C.IMAGE_ID} string, {C.REASON} string, {C.DETAIL} string")
    rows = reasons.join(samples.select(C.IMAGE_ID, C.SOURCE, C.SOURCE_KEY), on=C.IMAGE_ID, how="inner")
    stamped = rows.withColumn(C.STAGE, F.lit("curate")).withColumn(C.RUN_ID, F.lit(batch))
    delta.append(stamped.coalesce(1), lake, tables.REJECTS, batch=batch)


if __name__ == "__main__":
    run(main, "curate")
