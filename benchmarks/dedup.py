"""Dedup of synthetic hashes whose duplicates are known: how it grows, against DuckDB on the same files, and what a batch of 1 % costs.

    python benchmarks/dedup.py [--rows 1000000 10000000] [--work build/bench-dedup]

Of the rows of a lake, a fifth are copies: half of them have the bytes of an earlier row, half its hash only; a thousandth of all rows share
one hash. The stage runs as it does in a lake (conf/large.yaml): it reads the samples, writes the index and the table of duplicates, and its
counts must be those that were planted.

growth_10x: seconds of dedup for the most rows over those for a tenth of them, after start-up.
vs_duckdb: seconds of dedup over those of DuckDB, which groups the same Parquet files by picture, takes the best of each group by the same
order, joins it back and writes the losers as Parquet; as many threads, its memory bounded at 8 GB, nothing kept for a next batch.
incremental_share: seconds of dedup after 1 % more rows came, over those of the first. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import config, delta, deltalog, hashindex, runner, session, tables
from imagelake.config import Config
from imagelake.stages import stage

COPIES = 0.2
CROWD = 0.001

DUCKDB = """
COPY (
  WITH members AS (
    SELECT image_id, sha256,
      CASE WHEN is_flat OR phash IS NULL THEN sha256 ELSE phash || '-' || coalesce(phash_black, phash) END AS picture,
      {{'pixels': -(width::BIGINT * height), 'bytes': -byte_size, 'sha256': sha256, 'image_id': image_id}} AS rank
    FROM read_parquet({files}) WHERE defect IS NULL
  ), keepers AS (SELECT picture, min(rank) AS best FROM members GROUP BY picture HAVING count(*) > 1)
  SELECT image_id, best.image_id AS keeper_id, if(best.sha256 = members.sha256, 'sha256', 'phash') AS kind
  FROM members JOIN keepers USING (picture) WHERE best.image_id <> image_id
) TO '{out}' (FORMAT parquet)
"""


def picture_of(row: Column, rows: int) -> Column:
    """Which picture a row shows: its own, or for the last fifth an earlier one; the last thousandth all show picture 0."""
    first_copy, first_crowded = int(rows * (1 - COPIES)), int(rows * (1 - CROWD))
    return F.when(row < first_copy, row).when(row < first_crowded, (row * 7919) % first_copy).otherwise(F.lit(0).cast("long"))


def planted(rows: int) -> int:
    """Losers among so many rows."""
    return rows - int(rows * (1 - COPIES))


def made(spark: SparkSession, start: int, stop: int, rows: int, batch: str) -> DataFrame:
    """Rows [start, stop) of a lake of `rows`, as ingest leaves them, without bytes."""
    row = F.col("id")
    picture = picture_of(row, rows)
    same_bytes = (row % 2 == 0) & (picture != row)
    known: dict[str, Any] = {
        C.IMAGE_ID: F.substring(F.sha2(row.cast("string"), 256), 1, 32),
        C.SOURCE: F.lit("made"),
        C.SHA256: F.sha2(F.concat(F.lit("bytes"), F.when(same_bytes, picture).otherwise(row)), 256),
        C.BYTE_SIZE: F.when(same_bytes, picture).otherwise(row) % 1000 + 1000,
        C.WIDTH: (picture % 500 + 700).cast("int"),
        C.HEIGHT: F.lit(800),
        C.PHASH: F.xxhash64(picture),
        C.PHASH_VERSION: F.lit(1),
        C.IS_FLAT: F.lit(False),
        C.INGEST_RUN: F.lit(batch),
    }
    fields = delta.spark_schema(tables.SAMPLES)
    return spark.range(start, stop, 1, 8).select(
        *(known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in fields)
    )


def add(spark: SparkSession, cfg: Config, frame: DataFrame, batch: str) -> None:
    """What ingest and filter leave of a batch."""
    delta.append(frame, Path(cfg.lake.root), tables.SAMPLES, batch=batch)
    runner.execute(stage("filter"), cfg, spark)


def dedup(spark: SparkSession, cfg: Config, losers: int) -> float:
    """Seconds of the stage, its checks left out: they read the samples again. Fails where the counts are not those that were planted."""
    job = stage("dedup")
    started = time.perf_counter()
    result = runner.execute(job.__class__(job.name, job.summary, job.sections, (), reads=job.reads), cfg, spark)
    seconds = time.perf_counter() - started
    found = sum(result.rejected.values())
    assert found == losers, f"{found} losers found, {losers} were planted"
    return seconds


def by_duckdb(lake: Path, threads: int, work: Path, losers: int) -> float:
    out = work / "duckdb.parquet"
    files = [str(path) for path in deltalog.live_files(lake / tables.SAMPLES.path)]
    connection = duckdb.connect(config={"threads": threads, "memory_limit": "8GB", "temp_directory": str(work / "duckdb")})
    started = time.perf_counter()
    connection.execute(DUCKDB.format(files=files, out=out))
    seconds = time.perf_counter() - started
    (found,) = connection.execute(f"SELECT count(*) FROM '{out}'").fetchone() or (-1,)
    assert found == losers, f"DuckDB found {found} losers, {losers} were planted"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--work", type=Path, default=Path("build/bench-dedup"))
    parser.add_argument("--config", type=Path, default=config.CONF / "large.yaml")
    args = parser.parse_args()
    seconds: dict[int, dict[str, float]] = {}
    base = config.load([args.config])
    with session.build(base.spark) as spark:
        for rows in [20_000, *sorted(args.rows)]:  # the first warms Java up
            work = args.work / str(rows)
            shutil.rmtree(work, ignore_errors=True)
            cfg = config.load([args.config], [f"lake.root={work / 'lake'}"])
            more = rows // 100
            add(spark, cfg, made(spark, 0, rows, rows, "first"), "first")
            took = {"dedup": dedup(spark, cfg, planted(rows))}
            took["duckdb"] = by_duckdb(Path(cfg.lake.root), os.cpu_count() or 1, work, planted(rows))
            # 1 % more: half of them new pictures, half copies of the first ones.
            fresh, copies = made(spark, rows, rows + more // 2, 10 * rows, "more"), made(spark, 0, more - more // 2, rows, "more")
            copies = copies.withColumn(C.IMAGE_ID, F.concat(F.lit("copy"), F.substring(C.IMAGE_ID, 5, 32)))
            add(spark, cfg, fresh.unionByName(copies), "more")
            took["incremental"] = dedup(spark, cfg, planted(rows) + more - more // 2)
            index = hashindex.current(Path(cfg.lake.root))
            assert index is not None and len(index.folders) == 2, "the batch was not judged by itself"
            print(f"{rows:>12,} rows: " + ", ".join(f"{name} {value:.1f} s" for name, value in took.items()), flush=True)
            seconds[rows] = took
            shutil.rmtree(work)
    most, tenth = max(args.rows), max(args.rows) // 10
    ours = seconds[most]
    figures = {
        "rows": most,
        "growth_10x": round(ours["dedup"] / seconds[tenth]["dedup"], 2) if tenth in seconds else None,
        "vs_duckdb": round(ours["dedup"] / ours["duckdb"], 2),
        "incremental_share": round(ours["incremental"] / ours["dedup"], 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
