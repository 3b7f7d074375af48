from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from imagelake import delta, deltalog
from imagelake.errors import ImagelakeError
from imagelake.tables import REJECTS, SOURCE_FILES
from tests.lake_fixture import table_frame


def pinned(key: str, size: int = 1) -> dict[str, object]:
    return {"source": "s", "key": key, "size_bytes": size, "mtime_ns": 1 << 60, "spec_digest": "d", "ingest_run": "r"}


def keys(table: pa.Table) -> list[str]:
    return sorted(table["key"].to_pylist())


def log(lake: Path) -> Path:
    return lake / SOURCE_FILES.path / "_delta_log"


def test_a_table_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert deltalog.read(tmp_path, SOURCE_FILES).equals(SOURCE_FILES.schema.empty_table())
    assert deltalog.version(tmp_path, SOURCE_FILES) == -1


def test_rows_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Before, at and after a checkpoint, and after a version that replaced what the checkpoint holds."""
    for number in range(12):
        delta.append(table_frame(spark, SOURCE_FILES, [pinned(f"{number}", number)]), tmp_path, SOURCE_FILES, batch=f"{number}")
        if number in (1, 10, 11):
            found = deltalog.read(tmp_path, SOURCE_FILES)
            assert sorted(found.to_pylist(), key=str) == sorted(
                (row.asDict() for row in delta.read(spark, tmp_path, SOURCE_FILES).collect()), key=str
            )
    assert list(log(tmp_path).glob("*.checkpoint.parquet")), "the test no longer sees a checkpoint"
    delta.replace(table_frame(spark, SOURCE_FILES, [pinned("only")]), tmp_path, SOURCE_FILES)
    assert keys(deltalog.read(tmp_path, SOURCE_FILES)) == ["only"]


def test_a_lost_commit_and_deletion_vectors_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in "abc":
        delta.append(table_frame(spark, SOURCE_FILES, [pinned(name)]), tmp_path, SOURCE_FILES, batch=name)
    last = log(tmp_path) / f"{2:020d}.json"
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = {"storageType": "u"}
    last.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ImagelakeError, match="deletion vectors"):
        deltalog.read(tmp_path, SOURCE_FILES)
    (log(tmp_path) / f"{1:020d}.json").unlink()
    with pytest.raises(ImagelakeError, match=r"0001\.json is missing"):
        deltalog.read(tmp_path, SOURCE_FILES)


def test_a_partition_is_known_from_the_path_where_its_file_lacks_it(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's writer puts the column into the file too, which its protocol does not ask for."""
    rows = [{"image_id": name, "stage": stage, "reason": "r"} for name, stage in (("a", "filter"), ("b", "curate"))]
    delta.append(table_frame(spark, REJECTS, rows), tmp_path, REJECTS, batch="r")
    for path in deltalog.live_files(tmp_path / REJECTS.path):
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["stage"]), path)
    assert {row["image_id"]: row["stage"] for row in deltalog.read(tmp_path, REJECTS).to_pylist()} == {"a": "filter", "b": "curate"}
    (found,) = deltalog.lookup(tmp_path, REJECTS, "image_id", ["b"], ["stage", "reason"])
    assert found == {"stage": "curate", "reason": "r"}
