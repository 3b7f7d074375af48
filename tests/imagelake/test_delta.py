from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from imagelake import delta, tables
from imagelake.tables import DUPLICATES, REJECTS, SAMPLES
from tests.lake_fixture import table_frame


def reject(
    image_id: str, stage: str = "filter", reason: str = "license", detail: str | None = None, run_id: str = "r"
) -> dict[str, object]:
    return {
        "image_id": image_id,
        "source": "s",
        "source_key": image_id,
        "stage": stage,
        "reason": reason,
        "detail": detail,
        "run_id": run_id,
    }


def ids(spark: SparkSession, lake: Path, table: tables.Table = REJECTS, at: int | None = None) -> list[str]:
    return sorted(row["image_id"] for row in delta.read(spark, lake, table, at).select("image_id").collect())


def files(lake: Path, stage: str) -> set[str]:
    return {path.name for path in (lake / REJECTS.path / f"stage={stage}").glob("*.parquet")}


@pytest.mark.parametrize("table", [table for table in tables.TABLES if table.format == "delta"], ids=lambda table: table.name)
def test_an_absent_table_is_empty_and_has_its_schema(spark: SparkSession, tmp_path: Path, table: tables.Table) -> None:
    frame = delta.read(spark, tmp_path, table)
    assert frame.schema == delta.spark_schema(table)
    assert frame.columns == table.schema.names
    assert frame.isEmpty()
    assert delta.version(tmp_path, table) == -1


def test_a_table_is_read_with_the_columns_that_are_declared(spark: SparkSession, tmp_path: Path) -> None:
    delta.append(table_frame(spark, REJECTS, [reject("a", detail="why")]), tmp_path, REJECTS, batch="one")
    frame = delta.read(spark, tmp_path, REJECTS)
    assert sorted(frame.columns) == sorted(REJECTS.schema.names)
    row = frame.first()
    assert row is not None
    assert row.asDict() == reject("a", detail="why")


def test_the_same_batch_twice_is_once(spark: SparkSession, tmp_path: Path) -> None:
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ran.add(batch.num_rows)
            yield batch

    frame = table_frame(spark, DUPLICATES, [{"image_id": "a", "keeper_id": "b", "kind": "sha256", "distance": 0, "run_id": "r"}])
    counted = frame.mapInArrow(count, delta.spark_schema(DUPLICATES))
    first = delta.append(counted, tmp_path, DUPLICATES, batch="one")
    assert (first, ran.value) == (0, 1)
    assert delta.append(counted, tmp_path, DUPLICATES, batch="one") == first
    assert ran.value == 1, "a repeated batch was read again"
    assert delta.append(frame, tmp_path, DUPLICATES, batch="two") == 1
    assert delta.append(frame, tmp_path, DUPLICATES, batch="one") == 1
    assert ids(spark, tmp_path, DUPLICATES) == ["a", "a"]


def test_replacing_a_partition_leaves_the_others_and_repeats_to_nothing(spark: SparkSession, tmp_path: Path) -> None:
    delta.append(table_frame(spark, REJECTS, [reject("a", "ingest", "truncated")]), tmp_path, REJECTS, batch="one")
    others = files(tmp_path, "ingest")

    first = delta.replace(table_frame(spark, REJECTS, [reject("b"), reject("c", detail="x")]), tmp_path, REJECTS, where="stage = 'filter'")
    assert ids(spark, tmp_path) == ["a", "b", "c"]

    again = table_frame(spark, REJECTS, [reject("c", detail="x", run_id="later"), reject("b", run_id="later")]).repartition(2)
    assert delta.replace(again, tmp_path, REJECTS, where="stage = 'filter'") == first

    second = delta.replace(table_frame(spark, REJECTS, [reject("c", detail="x")]), tmp_path, REJECTS, where="stage = 'filter'")
    assert second == first + 1
    assert ids(spark, tmp_path) == ["a", "c"]
    assert files(tmp_path, "ingest") == others
    assert ids(spark, tmp_path, at=first) == ["a", "b", "c"]

    delta.replace(table_frame(spark, REJECTS, []), tmp_path, REJECTS, where="stage = 'filter'")
    assert ids(spark, tmp_path) == ["a"]


def test_replacing_a_whole_table(spark: SparkSession, tmp_path: Path) -> None:
    def frame(*keepers: str) -> object:
        return table_frame(spark, DUPLICATES, [{"image_id": f"of {k}", "keeper_id": k, "kind": "sha256", "distance": 0} for k in keepers])

    assert delta.replace(frame(), tmp_path, DUPLICATES) == 0, "an empty table exists, so that its version can be pinned"
    assert delta.replace(frame(), tmp_path, DUPLICATES) == 0
    assert delta.replace(frame("a", "b"), tmp_path, DUPLICATES) == 1
    assert delta.replace(frame("b", "a"), tmp_path, DUPLICATES) == 1
    assert delta.replace(frame("a"), tmp_path, DUPLICATES) == 2
    assert ids(spark, tmp_path, DUPLICATES) == ["of a"]


def test_the_content_digest_sees_rows_not_their_order(spark: SparkSession) -> None:
    rows = [reject("a"), reject("b", detail="x"), reject("c")]
    digest = delta.content_digest(table_frame(spark, REJECTS, rows))
    assert digest[0] == 3
    assert delta.content_digest(table_frame(spark, REJECTS, rows[::-1]).repartition(3)) == digest
    others = [
        rows[:2],
        [*rows, rows[0]],
        [rows[0], rows[0], rows[1]],
        [*rows[:2], reject("d")],
        [*rows[:2], reject("c", detail="x")],
        [reject("a", detail="x"), reject("b"), reject("c")],
    ]
    digests = {delta.content_digest(table_frame(spark, REJECTS, other)) for other in others}
    assert len(digests) == len(others)
    assert digest not in digests
    assert delta.content_digest(table_frame(spark, REJECTS, [])) == (0, 0, 0)


def test_image_files_have_small_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"image_id": f"{n:03}", "image": np.random.default_rng(n).bytes(2 << 20), "captions": {}, "trust": []} for n in range(48)]
    small = delta.IMAGE_PARQUET | {"parquet.block.size": str(16 << 20)}
    delta.append(table_frame(spark, SAMPLES, rows).coalesce(1), tmp_path, SAMPLES, batch="one", parquet=small)
    (file,) = (tmp_path / SAMPLES.path).glob("*.parquet")
    groups = pq.ParquetFile(file).metadata
    sizes = [groups.row_group(n).total_byte_size for n in range(groups.num_row_groups)]
    assert max(sizes) <= 32 << 20, sizes
    assert spark.conf.get("parquet.block.size", None) is None, "a setting of one write is left for the next"
