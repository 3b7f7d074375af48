"""What a source holds: samples with the outcome that the pipeline owes each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Source = Literal["photos", "web", "hub"]
TAR = "demo.tar"
PARQUET = "demo.parquet"


@dataclass(frozen=True)
class Outcome:
    """`keeper` names the sample that a duplicate loses to; `stage` and `reason` are those of a rejection."""

    outcome: Literal["kept", "duplicate", "rejected"]
    keeper: str | None = None
    kind: Literal["sha256", "phash"] | None = None
    stage: Literal["ingest", "filter"] | None = None
    reason: str | None = None


KEPT = Outcome("kept")


def duplicate_of(keeper: str, kind: Literal["sha256", "phash"] = "phash") -> Outcome:
    return Outcome("duplicate", keeper=keeper, kind=kind)


def rejected(stage: Literal["ingest", "filter"], reason: str) -> Outcome:
    return Outcome("rejected", stage=stage, reason=reason)


@dataclass(frozen=True)
class Sample:
    """One sample of one source. `name` is unique in the demo; `case` says what is special about it, "" for nothing.

    `member` is the tar member's key of a second member with the same name: such a sample is no new one, but a conflict.
    """

    name: str
    source: Source
    extension: str
    data: bytes = field(repr=False)
    caption: str | None
    license: str | None = None
    attribution: str | None = None
    case: str = ""
    expected: Outcome = KEPT
    member: str | None = None

    @property
    def file_name(self) -> str:
        return f"{self.member or self.name}.{self.extension}"


def source_keys(samples: Sequence[Sample]) -> dict[str, str]:
    """Sample name -> key in its source, as ingest names it."""
    rows = {sample.name: row for row, sample in enumerate(of_source(samples, "hub"))}
    keys = {}
    for sample in samples:
        if sample.source == "photos":
            keys[sample.name] = sample.file_name
        elif sample.source == "hub":
            keys[sample.name] = f"{PARQUET}#{rows[sample.name]}"
        elif sample.member is not None:
            keys[sample.name] = f"{TAR}/{sample.file_name}!2"
        else:
            keys[sample.name] = f"{TAR}/{sample.name}"
    return keys


def of_source(samples: Sequence[Sample], source: Source) -> list[Sample]:
    return sorted((sample for sample in samples if sample.source == source), key=lambda sample: sample.name)


def image_id(source: str, source_key: str) -> str:
    """The lake's id of a record: what decides between copies that are equal in every byte."""
    return hashlib.sha256(f"{source}\0{source_key}".encode()).hexdigest()[:32]


def expectations(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The table of cases, one row a sample in order of source and name: what e2e tests hold the tables against."""
    keys = source_keys(samples)
    by_name = {sample.name: sample for sample in samples}
    rows = []
    for sample in sorted(samples, key=lambda sample: (sample.source, sample.name)):
        expected = sample.expected
        keeper = None
        if expected.keeper is not None:
            found = by_name[expected.keeper]
            keeper = {"name": found.name, "source": found.source, "source_key": keys[found.name]}
        rows.append(
            {
                "name": sample.name,
                "case": sample.case,
                "source": sample.source,
                "source_key": keys[sample.name],
                "outcome": expected.outcome,
                "keeper": keeper,
                "kind": expected.kind,
                "stage": expected.stage,
                "reason": expected.reason,
                "caption": sample.caption,
            }
        )
    return rows
