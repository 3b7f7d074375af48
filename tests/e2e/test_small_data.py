"""The shared small data set: 465 real and hostile files, each in exactly one of kept, duplicate, rejected with a reason."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Chain, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def chain(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    root = tmp_path_factory.mktemp("small")
    (root / "sources.yaml").write_text(f"sources: [{{name: small, format: folder, path: {small_data}}}]")
    made = Chain(root / "chain", root / "sources.yaml")
    done = made.run()
    assert done.returncode == 0, done.stderr[-4000:]
    return made


def test_each_file_is_in_exactly_one_of_kept_duplicate_rejected(spark: SparkSession, chain: Chain, small_data: Path) -> None:
    with (small_data / "MANIFEST.tsv").open(encoding="utf-8") as file:
        listed = {row["path"] for row in csv.DictReader(file, delimiter="\t")}
    places = rows(
        spark,
        chain.cfg,
        """SELECT source_key, image_id IN (SELECT image_id FROM curated) AS kept,
                  image_id IN (SELECT image_id FROM duplicates) AS duplicate,
                  image_id IN (SELECT image_id FROM rejects WHERE reason IS NOT NULL) AS rejected FROM samples""",
    )
    by_key = {row["source_key"]: row["kept"] + row["duplicate"] + row["rejected"] for row in places}
    assert len(listed) == 465
    assert listed <= set(by_key)
    assert {key: places for key, places in by_key.items() if places != 1} == {}


def test_hostile_files_harm_no_photograph(spark: SparkSession, chain: Chain) -> None:
    photos = rows(spark, chain.cfg, "SELECT source_key, defect FROM samples WHERE source_key LIKE 'photos/%' AND defect IS NOT NULL")
    assert photos == []


def test_true_copies_are_found(spark: SparkSession, chain: Chain, small_data: Path) -> None:
    """Copies whose hash distance was measured as 0 are one group: of each base and its true copies, one is kept at most."""
    with (small_data / "dups" / "labels.csv").open(encoding="utf-8") as file:
        labels = [row for row in csv.DictReader(file) if row["expected_duplicate_of_base"] == "yes" and row["phash64_dist"] == "0"]
    kept = {row["source_key"] for row in rows(spark, chain.cfg, "SELECT source_key FROM curated")}
    groups: dict[str, set[str]] = {}
    for row in labels:
        groups.setdefault(row["group"], set()).add(row["path"])
    assert groups
    crowded = {group: sorted(members & kept) for group, members in groups.items() if len(members & kept) > 1}
    assert not crowded
