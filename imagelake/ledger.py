"""The run ledger: a JSON file for each stage run and one for what was checked after it, so that any environment writes it and none meet."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from imagelake.storage import write_atomic
from imagelake.tables import CHECKS, RUNS


@dataclass(frozen=True)
class StageResult:
    """What a stage did: rows in, rows kept, the others by reason, and the versions of the tables it read and wrote.

    A row that fails two rules counts under both reasons, so the reasons may sum to more than rows_in - kept.
    `nothing_to_do` says that the stage found its work done already and wrote nothing.
    """

    rows_in: int = 0
    kept: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    read_versions: Mapping[str, int] = field(default_factory=dict)
    written_versions: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    nothing_to_do: bool = False


# The run that is going on, so that rows can name the run that made them.
CURRENT_RUN: ContextVar[str | None] = ContextVar("imagelake_run", default=None)


def new_run_id() -> str:
    """Sortable by time for people's eyes; nothing is ordered by it."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def record(lake: Path, *, run_id: str, stage: str, status: str, started_at: datetime, seconds: float, config_digest: str,
           stage_digest: str, result: StageResult, error: str | None = None) -> dict[str, Any]:  # fmt: skip
    """Append one run; returns the row as written."""
    row = asdict(result)
    del row["nothing_to_do"]
    row |= {
        "run_id": run_id,
        "stage": stage,
        "status": status,
        "started_at": started_at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "seconds": round(seconds, 3),
        "config_digest": config_digest,
        "stage_digest": stage_digest,
        "error": error,
    }
    write_atomic(lake / RUNS.path / f"{run_id}-{stage}.json", json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return row


def record_checks(lake: Path, stage: str, found: Iterable[Mapping[str, Any]]) -> None:
    """Write down what the rules after the run that is going on were found to be: check, severity, rule, holds, first_rows."""
    run_id = CURRENT_RUN.get() or new_run_id()
    common = {"run_id": run_id, "stage": stage, "checked_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    lines = [json.dumps({**common, **row}, ensure_ascii=False) + "\n" for row in found]
    write_atomic(lake / CHECKS.path / f"{run_id}-{stage}.json", "".join(lines).encode())


def runs(lake: Path) -> Iterator[dict[str, Any]]:
    """All runs, oldest first."""
    for path in sorted((lake / RUNS.path).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def last_failed(lake: Path, stage: str) -> bool:
    """Whether the newest run of `stage` failed."""
    return next((row["status"] == "failed" for row in reversed(list(runs(lake))) if row["stage"] == stage), False)


def last_good(lake: Path, stage: str) -> dict[str, Any] | None:
    """The newest run of `stage` that did its work."""
    return next((row for row in reversed(list(runs(lake))) if row["stage"] == stage and row["status"] == "ok"), None)
