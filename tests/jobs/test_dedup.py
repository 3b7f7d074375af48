from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import delta, tables
from imagelake.config import Config
from jobs import dedup as job
from tests.lake_fixture import exchanged_columns, executed_plan, sample, samples_frame, table_frame

LOWEST = -(2**63)


def picture(image_id: str, phash: int | None, width: int = 800, height: int = 600, **changes: Any) -> dict[str, Any]:
    return sample(image_id, phash=phash, width=width, height=height, **changes)


ROWS = [
    sample("single"),
    # equal bytes; the keeper is the smallest image_id, as all else is equal
    *(sample(f"bytes {n}", sha256="aa" * 32, phash=101) for n in (2, 1, 3)),
    # equal pictures: most pixels first, then most bytes, then the smallest sha256
    picture("small", 202, 400, 300, byte_size=9000),
    picture("wide", 202, 900, 600, byte_size=1000),
    picture("tall", 202, 600, 900, byte_size=1001),
    picture("sha f", 203, sha256="ff" * 32),
    picture("sha 0", 203, sha256="00" * 32),
    # a chain: B has A's bytes and C's picture; C is the largest
    picture("chain A", 303, sha256="bb" * 32),
    picture("chain B", 303, sha256="bb" * 32),
    picture("chain C", 303, 1600, 1200),
    # the highest bit set: hashes are signed
    picture("top 1", LOWEST, 900, 600),
    picture("top 2", LOWEST),
    picture("top other", LOWEST + 1),
    picture("minus one 1", -1, 900, 600),
    picture("minus one 2", -1),
    # flat: same hash, no duplicates, unless the bytes are equal
    picture("flat red", 0, is_flat=True),
    picture("flat blue", 0, is_flat=True),
    picture("flat blue copy", 0, is_flat=True, sha256="cc" * 32),
    picture("flat blue copy of copy", 0, is_flat=True, sha256="cc" * 32),
    picture("flatness unknown", 404, is_flat=None),
    picture("flatness unknown too", 404, is_flat=None),
    picture("not flat with the flat one's hash", 0),
    # transparency: both hashes must agree
    picture("logo on white", 505, phash_black=1),
    picture("other logo", 505, phash_black=2),
    picture("logo again", 505, 900, 600, phash_black=1),
    picture("opaque", 505),
    picture("opaque as alpha", 505, 900, 600, phash_black=505),
    # hashes of two versions are never compared
    picture("version 1", 606),
    picture("version 2", 606, phash_version=2),
    # the same bytes hashed by two versions are the same bytes
    sample("old hash", sha256="dd" * 32, phash=707, phash_version=1),
    sample("new hash", sha256="dd" * 32, phash=708, phash_version=2),
    picture("new picture", 708, 1600, 1200, phash_version=2),
    # no hash at all
    picture("unhashed", None, phash_version=None),
    picture("unhashed too", None, phash_version=None),
]

EXPECTED = {
    "bytes 2": ("bytes 1", "sha256"),
    "bytes 3": ("bytes 1", "sha256"),
    "small": ("tall", "phash"),
    "wide": ("tall", "phash"),
    "sha f": ("sha 0", "phash"),
    "chain A": ("chain C", "phash"),
    "chain B": ("chain C", "phash"),
    "top 2": ("top 1", "phash"),
    "minus one 2": ("minus one 1", "phash"),
    "flat blue copy of copy": ("flat blue copy", "sha256"),
    "logo on white": ("logo again", "phash"),
    "opaque": ("opaque as alpha", "phash"),
    "old hash": ("new picture", "phash"),
    "new hash": ("new picture", "phash"),
}


def members(spark: SparkSession, rows: list[dict[str, Any]], *, perceptual: bool = True, partitions: int | None = None) -> DataFrame:
    samples = samples_frame(spark, rows)
    if partitions is not None:
        samples = samples.repartition(partitions)
    found = job.candidates(samples, table_frame(spark, tables.REJECTS, []))
    return job.members_of(job.one_hash_a_file(found), perceptual=perceptual)


def losers(frame: DataFrame) -> dict[str, tuple[str, str]]:
    rows = frame.collect()
    assert len({row[C.IMAGE_ID] for row in rows}) == len(rows), "a loser has two keepers"
    return {row[C.IMAGE_ID]: (row[C.KEEPER_ID], row[C.KIND]) for row in rows}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, tuple[str, str]]:
    return losers(job.duplicates(members(spark, ROWS)))


@pytest.mark.parametrize("image_id", [row[C.IMAGE_ID] for row in ROWS])
def test_each_picture_has_the_keeper_that_the_rules_give(found: dict[str, tuple[str, str]], image_id: str) -> None:
    assert found.get(image_id) == EXPECTED.get(image_id)


def test_it_is_told_what_decided_for_the_keeper(spark: SparkSession) -> None:
    rows = job.duplicates(members(spark, ROWS)).collect()
    told = {row[C.IMAGE_ID]: row[C.WON_BY] for row in rows}
    expected = {"small": "pixels", "wide": "bytes", "sha f": "sha256", "bytes 2": "image_id", "chain B": "pixels"}
    assert {image_id: told[image_id] for image_id in expected} == expected


def test_keepers_are_no_losers_themselves(found: dict[str, tuple[str, str]]) -> None:
    assert {keeper for keeper, _ in found.values()}.isdisjoint(found)


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 5)])
def test_order_and_partitioning_change_nothing(spark: SparkSession, found: dict[str, tuple[str, str]], seed: int, partitions: int) -> None:
    shuffled = random.Random(seed).sample(ROWS, len(ROWS))
    assert losers(job.duplicates(members(spark, shuffled, partitions=partitions))) == found


def test_without_the_perceptual_rule_only_equal_bytes_count(spark: SparkSession) -> None:
    result = losers(job.duplicates(members(spark, ROWS, perceptual=False)))
    assert {image_id: (min(image_id, keeper), kind) for image_id, (keeper, kind) in result.items()} == {
        "bytes 2": ("bytes 1", "sha256"),
        "bytes 3": ("bytes 1", "sha256"),
        "chain B": ("chain A", "sha256"),
        "flat blue copy of copy": ("flat blue copy", "sha256"),
        "old hash": ("new hash", "sha256"),
    }


def test_one_hash_with_200_000_members_is_one_group_in_bounded_time(spark: SparkSession) -> None:
    crowd = spark.range(200_000).select(
        F.format_string("%06d", "id").alias(C.IMAGE_ID),
        F.lit("made").alias(C.SOURCE),
        F.lit(False).alias(job.APART),
        F.sha2(F.col("id").cast("string"), 256).alias(C.SHA256),
        F.lit(1000).cast("long").alias(C.BYTE_SIZE),
        F.when(F.col("id") == 77, 900).otherwise(800).alias(C.WIDTH),
        F.lit(600).alias(C.HEIGHT),
        F.lit(5).cast("long").alias(C.PHASH),
        F.lit(None).cast("long").alias(C.PHASH_BLACK),
        F.lit(1).alias(C.PHASH_VERSION),
        F.lit(False).alias(C.IS_FLAT),
    )
    started = time.monotonic()
    row = (
        job.duplicates(job.members_of(crowd))
        .agg(F.count("*").alias("n"), F.countDistinct(C.KEEPER_ID).alias("k"), F.min(C.KEEPER_ID).alias("id"))
        .first()
    )
    assert row is not None
    assert (row["n"], row["k"], row["id"]) == (199_999, 1, "000077")
    # Pairs would be 2 · 10¹⁰: hours. The limit allows for a busy machine.
    assert time.monotonic() - started < 120


def test_rejected_and_unreadable_samples_are_no_candidates(spark: SparkSession) -> None:
    samples = samples_frame(spark, [sample("a"), sample("b"), sample("c", defect="truncated"), sample("d")])
    rejects = table_frame(spark, tables.REJECTS, [{"image_id": "b", "stage": "filter", "reason": reason} for reason in ("x", "y")])
    frame = job.candidates(samples, rejects)
    assert sorted(row[C.IMAGE_ID] for row in frame.collect()) == ["a", "d"]
    assert sorted(frame.columns) == sorted((*job.FACTS, job.APART))


def test_no_shuffle_carries_an_image(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    delta.append(samples_frame(spark, ROWS).coalesce(1), root, tables.SAMPLES, batch="one")
    delta.append(table_frame(spark, tables.REJECTS, []), root, tables.REJECTS, batch="one")
    found = job.candidates(delta.read(spark, root, tables.SAMPLES), delta.read(spark, root, tables.REJECTS))
    frame = job.duplicates(job.members_of(job.one_hash_a_file(found)))
    carried = exchanged_columns(frame)
    assert {C.SHA256, C.IMAGE_ID} <= carried, "the test no longer sees the exchanges"
    assert C.IMAGE not in carried
    assert "image:binary" not in executed_plan(frame)

    result = job.main(spark, lake)
    assert (result.rows_in, result.kept) == (len(ROWS), len(ROWS) - len(EXPECTED))
    assert sum(result.rejected.values()) == len(EXPECTED)
    assert losers(delta.read(spark, root, tables.DUPLICATES)) == EXPECTED
    # Repeated without its ledger row, as after a crash: the same content, and so no new version.
    assert job.main(spark, lake).written_versions == result.written_versions
