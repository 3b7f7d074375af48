from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from imagelake import ledger, tables
from imagelake.ledger import StageResult

NOON = datetime(2024, 5, 6, 12, 0, 0, 123456, UTC)


def record(
    lake: Path, run_id: str = "20240506T120000-aa", stage: str = "filter", status: str = "ok", **changes: object
) -> dict[str, object]:
    values: dict[str, object] = {
        "started_at": NOON,
        "seconds": 1.23456,
        "config_digest": "c" * 16,
        "stage_digest": "s" * 16,
        "result": StageResult(10, 7, {"below_min_pixels": 3}, {"samples": 4}, {"rejects": 5}, {"note": "ü"}),
    }
    return ledger.record(lake, run_id=run_id, stage=stage, status=status, **(values | changes))  # type: ignore[arg-type]


def test_a_run_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    written = record(tmp_path)
    assert list(ledger.runs(tmp_path)) == [written]
    assert (written["rows_in"], written["kept"], written["rejected"]) == (10, 7, {"below_min_pixels": 3})
    assert (written["read_versions"], written["written_versions"]) == ({"samples": 4}, {"rejects": 5})


def test_a_row_has_the_columns_of_the_runs_table(tmp_path: Path) -> None:
    assert set(record(tmp_path)) == set(tables.RUNS.schema.names)


def test_a_run_is_one_line_of_json_in_a_file_of_its_own(tmp_path: Path) -> None:
    record(tmp_path, "1")
    record(tmp_path, "2")
    found = sorted((tmp_path / tables.RUNS.path).iterdir())
    assert [path.name for path in found] == ["1-filter.json", "2-filter.json"]
    assert found[0].read_text(encoding="utf-8").count("\n") == 1
    assert json.loads(found[0].read_text(encoding="utf-8"))["notes"] == {"note": "ü"}


def test_times_are_utc_whatever_the_clocks_zone(tmp_path: Path) -> None:
    row = record(tmp_path, started_at=NOON.astimezone(timezone(timedelta(hours=-7))))
    assert row["started_at"] == "2024-05-06T12:00:00.123+00:00"


def test_a_lake_without_runs_has_none(tmp_path: Path) -> None:
    assert list(ledger.runs(tmp_path)) == []
    assert ledger.last_good(tmp_path, "filter") is None


def test_the_last_good_run_is_the_newest_that_did_its_work(tmp_path: Path) -> None:
    record(tmp_path, "20240101T000000-a")
    record(tmp_path, "20240102T000000-a")
    record(tmp_path, "20240103T000000-a", status="failed", error="RuntimeError: x")
    record(tmp_path, "20240104T000000-a", status="nothing_to_do")
    record(tmp_path, "20240105T000000-a", stage="dedup")
    last = ledger.last_good(tmp_path, "filter")
    assert last is not None
    assert last["run_id"] == "20240102T000000-a"


def test_run_ids_differ_and_sort_by_time() -> None:
    ids = [ledger.new_run_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert [run_id[:15] for run_id in ids] == sorted(run_id[:15] for run_id in ids)
