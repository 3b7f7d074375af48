from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from imagelake import checks, delta, tables, views
from imagelake.config import Config
from imagelake.errors import GateError
from imagelake.stages import STAGES
from tests.lake_fixture import sample

Rows = Mapping[str, Sequence[Mapping[str, Any]]]

# A lake in which every rule holds: two kept, one loser, one rejected for two reasons, one unreadable.
GOOD: dict[str, list[dict[str, Any]]] = {
    "samples": [
        sample("kept", width=800, height=600),
        sample("also kept"),
        sample("loser", width=400, height=300),
        sample("small", width=10, height=10),
        sample("broken", width=None, height=None, defect="truncated"),
    ],
    "rejects": [
        {"image_id": "small", "stage": "filter", "reason": "below_min_pixels"},
        {"image_id": "small", "stage": "filter", "reason": "license"},
        {"image_id": "broken", "stage": "ingest", "reason": "truncated"},
    ],
    "duplicates": [{"image_id": "loser", "keeper_id": "kept", "kind": "phash", "distance": 0}],
    "curated": [{"image_id": "kept"}, {"image_id": "also kept"}],
    "corpus_rows": [{"image_id": "kept"}, {"image_id": "also kept"}, {"image_id": "small"}],
    "skips": [{"image_id": "small", "reasons": ["filter:license"]}],
}


def reject(image_id: str, stage: str = "filter") -> dict[str, Any]:
    return {"image_id": image_id, "stage": stage, "reason": "x"}


def duplicate(image_id: str, keeper_id: str) -> dict[str, Any]:
    return {"image_id": image_id, "keeper_id": keeper_id, "kind": "sha256", "distance": 0}


# rule -> what is wrong -> (the faulty rows of some views, the image_id that the message must name)
FAULTS: dict[str, dict[str, tuple[Rows, str]]] = {
    "comparable_hashes": {
        "no hash": ({"samples": [*GOOD["samples"], sample("bare", phash=None)], "curated": [{"image_id": "bare"}]}, "bare"),
        "a hash of no version": ({"samples": [sample("bare", phash_version=None)]}, "bare"),
    },
    "unique_ids": {"an id twice": ({"samples": [*GOOD["samples"], sample("kept", source="other")]}, "kept")},
    "nothing_lost": {
        "nowhere": ({"curated": [{"image_id": "kept"}]}, "also kept"),
        "kept and rejected": ({"rejects": [*GOOD["rejects"], reject("kept")]}, "kept"),
        "kept and duplicate": ({"duplicates": [*GOOD["duplicates"], duplicate("also kept", "kept")]}, "also kept"),
        "duplicate and rejected": ({"rejects": [*GOOD["rejects"], reject("loser")]}, "loser"),
        "kept twice": ({"curated": [*GOOD["curated"], {"image_id": "kept"}]}, "kept"),
        "kept but no sample": ({"curated": [*GOOD["curated"], {"image_id": "stranger"}]}, "stranger"),
        "rejected but no sample": ({"rejects": [*GOOD["rejects"], reject("stranger")]}, "stranger"),
    },
    "living_keepers": {
        "a keeper that is no sample": ({"duplicates": [duplicate("loser", "stranger")]}, "loser"),
        "a keeper that is a loser": ({"duplicates": [duplicate("loser", "also kept"), duplicate("also kept", "kept")]}, "loser"),
        "a keeper that was rejected": ({"duplicates": [duplicate("loser", "small")]}, "loser"),
        "its own keeper": ({"duplicates": [duplicate("loser", "loser")]}, "loser"),
    },
    "largest_keeper": {"a keeper with fewer pixels": ({"duplicates": [duplicate("kept", "loser")]}, "kept")},
    "exported_once": {
        "in the corpus twice": ({"corpus_rows": [*GOOD["corpus_rows"], {"image_id": "kept"}]}, "kept"),
        "not in the corpus": ({"corpus_rows": [{"image_id": "kept"}]}, "also kept"),
    },
    "no_stale_exports": {
        "curated no more": ({"curated": [{"image_id": "kept"}]}, "also kept"),
        "skipped no more": ({"skips": []}, "small"),
    },
}
CASES = [(rule, fault) for rule, faults in FAULTS.items() for fault in faults]


@pytest.fixture
def views_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the views from rows in memory, so that a fault costs no table."""
    declared = {table.name: delta.spark_schema(table) for table in tables.TABLES}
    declared[views.CORPUS_ROWS] = views.corpus_rows(spark, Path("nowhere")).schema
    declared[views.SKIPS] = views.skips(spark, Path("nowhere")).schema

    def register(changes: Rows) -> None:
        for name, rows in (GOOD | dict(changes)).items():
            schema = declared[name]
            for field in schema.fields:
                field.nullable = True
            values = [tuple(row.get(column) for column in schema.names) for row in rows]
            spark.createDataFrame(values, schema).coalesce(1).createOrReplaceTempView(name)

    monkeypatch.setattr(views, "register", lambda *_, **__: views.NAMES)
    yield register
    for name in GOOD:
        spark.catalog.dropTempView(name)


def test_every_rule_holds_on_a_good_lake(spark: SparkSession, lake: Config, views_of: Any) -> None:
    views_of({})
    checks.enforce(spark, lake, checks.names(), stage="verify")
    found = spark.read.schema(delta.spark_schema(tables.CHECKS)).json(str(Path(lake.lake.root) / "checks")).collect()
    assert {row["check"]: (row["holds"], row["first_rows"]) for row in found} == {name: (True, []) for name in checks.names()}


@pytest.mark.parametrize(("rule", "fault"), CASES, ids=[f"{rule}: {fault}" for rule, fault in CASES])
def test_a_planted_fault_breaks_its_rule(spark: SparkSession, lake: Config, views_of: Any, rule: str, fault: str) -> None:
    changes, image_id = FAULTS[rule][fault]
    views_of(changes)
    with pytest.raises(GateError) as caught:
        checks.enforce(spark, lake, [rule], stage="verify")
    message = str(caught.value)
    assert checks.load(rule).rule in message
    assert f'"image_id":"{image_id}"' in message
    assert f"sql/checks/{rule}.sql" in message
    (kept,) = spark.read.schema(delta.spark_schema(tables.CHECKS)).json(str(Path(lake.lake.root) / "checks")).collect()
    assert (kept["check"], kept["stage"], kept["holds"], kept["severity"]) == (rule, "verify", False, "error")
    assert f'"image_id":"{image_id}"' in "".join(kept["first_rows"])


def test_each_rule_has_a_fault_here_and_a_stage_that_runs_it() -> None:
    assert set(checks.names()) == set(FAULTS)
    assert {name for step in STAGES for name in step.checks} == set(checks.names())


def test_many_offenders_are_shown_as_a_few(spark: SparkSession, lake: Config, views_of: Any) -> None:
    views_of({"curated": [], "samples": [*GOOD["samples"], *(sample(f"lost {n}") for n in range(20))]})
    with pytest.raises(GateError) as caught:
        checks.enforce(spark, lake, ["nothing_lost"], stage="curate")
    assert str(caught.value).count("image_id") == checks.SHOWN
    assert "…" in str(caught.value)


def test_a_warning_is_logged_and_stops_nothing(
    spark: SparkSession, lake: Config, views_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = checks.load("unique_ids")
    monkeypatch.setattr(checks, "load", lambda name: checks.Check(name, known.rule, "warning", known.sql))
    views_of(FAULTS["unique_ids"]["an id twice"][0])
    checks.enforce(spark, lake, ["unique_ids"], stage="ingest")
    assert known.rule in capsys.readouterr().out


def test_a_lake_without_tables_breaks_no_rule(spark: SparkSession, lake: Config) -> None:
    checks.enforce(spark, lake, checks.names(), stage="verify")
    try:
        for table in tables.TABLES:
            assert set(spark.table(table.name).columns) == set(table.schema.names) - set(table.bytes_columns)
            assert spark.table(table.name).isEmpty()
    finally:
        for name in views.NAMES:
            spark.catalog.dropTempView(name)
