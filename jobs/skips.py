"""corpus rows, curated, duplicates, rejects -> skip lists: what of the shards may not be trained on any more, with its reasons.

Shards never change. A picture that left the curated table after it was exported (a better copy came, a rule became stricter), or that a
predicate of `skips.where` names, is put on the skip list of its shard; the loader then passes over it. A generation of lists is written
whole under its digest before a pointer names it; the one before stays, so that a training run can pin it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import corpus, delta, lance_source, ledger, logs, mds, skiplist, tables
from imagelake.config import Config
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.ledger import StageResult
from imagelake.predicates import checked
from imagelake.runner import run, unchanged
from imagelake.skiplist import NOTHING, Generation, SkipList
from imagelake.views import corpus_rows

REASONS = "reasons"
# Of a picture that the lake says nothing of.
NOT_CURATED = "not_curated"


def gone(rows: DataFrame, curated: DataFrame, duplicates: DataFrame, rejects: DataFrame) -> DataFrame:
    """image_id and reason of each sample that is curated no more: "superseded" by a better copy, or "<stage>:<reason>" of its rejects."""
    left = rows.select(C.IMAGE_ID).join(curated.select(C.IMAGE_ID), on=C.IMAGE_ID, how="left_anti")
    lost = duplicates.select(C.IMAGE_ID, F.lit("superseded").alias("reason"))
    rejected = rejects.select(C.IMAGE_ID, F.concat_ws(":", C.STAGE, C.REASON).alias("reason"))
    why = left.join(lost.unionByName(rejected), on=C.IMAGE_ID, how="left")
    return why.select(C.IMAGE_ID, F.coalesce("reason", F.lit(NOT_CURATED)).alias("reason"))


def named(curated: DataFrame, where: Mapping[str, str]) -> DataFrame:
    """image_id and reason of each picture for which a predicate over the curated columns is true."""
    rules = [F.when(predicate, F.lit(name)) for name, predicate in checked(curated, where, "skips.where").items()]
    reasons = F.array_compact(F.array(*rules)).cast("array<string>")
    return curated.select(C.IMAGE_ID, F.explode(reasons).alias("reason"))


def skipped(rows: DataFrame, reasons: DataFrame) -> DataFrame:
    """The rows of a corpus that have a reason, each once, with all its reasons in order: skiplist.ROWS_SCHEMA."""
    each = reasons.groupBy(C.IMAGE_ID).agg(F.sort_array(F.collect_set("reason")).alias(REASONS))
    return rows.join(each, on=C.IMAGE_ID, how="inner").select(*skiplist.ROWS_SCHEMA.names)


def lists(skipped: DataFrame, root: Path, release: corpus.Release, generation: int) -> dict[str, SkipList]:
    """The skip list of each shard that has one, bound to the shard as its index names it."""
    shards = {
        f"{bucket}/{entry['raw_data']['basename']}": entry
        for bucket in release.buckets
        for entry in mds.read_index(corpus.bucket_dir(root, *corpus.split_bucket(bucket)))
    }
    name = F.concat_ws("/", C.TIER, C.BUCKET, "shard")
    by_shard = skipped.groupBy(name.alias("shard")).agg(F.sort_array(F.collect_list("index")).alias("indices")).toArrow()
    found = {}
    for shard, indices in zip(by_shard["shard"].to_pylist(), by_shard["indices"], strict=True):
        entry = shards.get(shard)
        if entry is None:
            raise ImagelakeError(f"{root}: rows name a shard {shard} that no index names; `imagelake verify {root}` says more")
        found[shard] = SkipList(entry["samples"], entry["raw_data"]["bytes"], generation, indices.values.to_numpy().astype(np.int64))
    return found


def reasons_of(spark: SparkSession, cfg: Config, rows: DataFrame, read: Mapping[str, int]) -> DataFrame:
    """image_id and reason, by every rule that holds now."""
    lake = Path(cfg.lake.root)
    path = str((lake / tables.CURATED.path).resolve())
    curated = lance_source.frame(spark, lance_source.ScanPlan.pin(path, (), read[tables.CURATED.name], with_address=False))
    duplicates, rejects = (delta.read(spark, lake, table, read[table.name]) for table in (tables.DUPLICATES, tables.REJECTS))
    return gone(rows, curated, duplicates, rejects).unionByName(named(curated, cfg.skips.where))


def versions(lake: Path) -> dict[str, int]:
    from imagelake import lance

    by_delta = {table.name: delta.version(lake, table) for table in (tables.DUPLICATES, tables.REJECTS)}
    return by_delta | {tables.CURATED.name: lance.version(lake, tables.CURATED)}


def all_curated(lake: Path, release: corpus.Release, read: Mapping[str, int]) -> bool:
    """Whether each exported picture is curated, by counts alone: an export of this version holds every curated picture once, so it holds
    no other when it holds as many."""
    from imagelake import lance

    exported = release.created_from.get(tables.CURATED.name) == read[tables.CURATED.name]
    return exported and lance.open_table(lake, tables.CURATED).count_rows() == release.rows


def main(spark: SparkSession, cfg: Config) -> StageResult:
    lake, root = Path(cfg.lake.root), Path(cfg.corpus.root)
    read = versions(lake)
    if not corpus.is_released(root) or read[tables.CURATED.name] < 0:
        return StageResult(nothing_to_do=True)
    release, holds = corpus.read_release(root), skiplist.read(root)
    last, state = ledger.last_good(lake, "skips"), {"release": release.release, "skips": holds.digest}
    if (
        unchanged(cfg, "skips", read)
        and last is not None
        and state.items() <= last["notes"].items()
        and not ledger.last_failed(lake, "skips")
    ):
        return StageResult(nothing_to_do=True)
    if not holds.digest and not cfg.skips.where and all_curated(lake, release, read):
        return StageResult(release.rows, release.rows, {}, read, {}, state)
    rows = corpus_rows(spark, root)
    found = skipped(rows, reasons_of(spark, cfg, rows, read)).persist(StorageLevel.DISK_ONLY)
    try:
        counts = by_reason(found)
        if counts.get(NOT_CURATED) == release.rows:
            raise ConfigError(f"lake.root {lake}: none of the {release.rows} pictures of {root} is in this lake, so it is another one's")
        now = _publish(found, root, release, holds)
    finally:
        found.unpersist()
    released = skiplist.released(holds.lists, now.lists)
    if released:
        logs.logger().warning("released", why=f"{released} samples that were skipped are trained on again: no rule names them any more")
    notes = state | {"skips": now.digest, "released": str(released)}
    return StageResult(release.rows, release.rows - now.skipped, counts, read, {}, notes)


def _publish(found: DataFrame, root: Path, release: corpus.Release, holds: Generation) -> Generation:
    """Make the lists of `found` those that hold; returns them, NOTHING while there were never any."""
    same = lists(found, root, release, holds.number)
    if not same and not holds.digest:
        return NOTHING
    digest = holds.digest
    if skiplist.digest_of_pack(skiplist.pack(same)) != digest:
        new = {name: replace(entry, generation=holds.number + 1) for name, entry in same.items()}
        digest = skiplist.write_pack(root, new)
        found.write.mode("overwrite").parquet(str(skiplist.reasons_path(root, digest)))
    # Also lists that are the same: an interrupted run may have left one beside its shard out.
    return skiplist.publish(root, digest)


def by_reason(skipped: DataFrame) -> dict[str, int]:
    """A sample with two reasons counts under each."""
    counts = skipped.select(F.explode(REASONS).alias("reason")).groupBy("reason").count().collect()
    return {row["reason"]: row["count"] for row in counts}


def preview(spark: SparkSession, cfg: Config) -> tuple[list[dict[str, Any]], int]:
    """What a run would skip: tier, bucket, reason, count; and how many samples that are skipped now it would release. Writes nothing."""
    root = Path(cfg.corpus.root)
    release = corpus.read_release(root)
    rows = corpus_rows(spark, root)
    found = skipped(rows, reasons_of(spark, cfg, rows, versions(Path(cfg.lake.root))))
    counts = found.select(C.TIER, C.BUCKET, F.explode(REASONS).alias("reason")).groupBy(C.TIER, C.BUCKET, "reason").count()
    released = skiplist.released(skiplist.read(root).lists, lists(found, root, release, 0))
    return [row.asDict() for row in counts.orderBy(C.TIER, C.BUCKET, "reason").collect()], released


if __name__ == "__main__":
    run(main, "skips")
