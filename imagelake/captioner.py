"""Captioners: what turns curated rows into captions, behind one protocol, and the part files they leave.

A part file is keyed by the fingerprint of everything that decides a caption, written under a temporary name and renamed. A row that is
finished has a result there, whatever its status; nothing is dropped silently.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from imagelake import columns as C
from imagelake.config import digest_of
from imagelake.storage import write_atomic

RESULT_SCHEMA = pa.schema(
    [
        (C.IMAGE_ID, pa.string()),
        ("text", pa.string()),
        ("status", pa.string()),
        ("finish_reason", pa.string()),
        ("n_tokens", pa.int32()),
        ("n_tries", pa.int32()),
        ("seconds", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Result:
    """One finished row. `status`: ok, no_caption, bad_image, too_long, refused, degenerate, failed."""

    image_id: str
    text: str | None
    status: str
    finish_reason: str | None = None
    n_tokens: int | None = None
    n_tries: int = 1
    seconds: float = 0.0


class Captioner(Protocol):
    """`columns` are what it reads of a curated row; `settings` all that decides its result, hashed into the fingerprint."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def caption(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
        """One result a row, in any order."""
        ...


class SourceCaptioner:
    """Takes the longest caption that came with the picture; on a tie the first. Needs no model."""

    columns = (C.IMAGE_ID, C.CAPTIONS)
    settings: Mapping[str, Any] = {"engine": "source", "version": 1}

    def caption(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
        for row in rows:
            texts = [entry["text"] for entry in row[C.CAPTIONS] or [] if entry["text"]]
            longest = max(texts, key=len, default=None)
            yield Result(row[C.IMAGE_ID], longest, "ok" if longest is not None else "no_caption")


ENGINES = {"source": SourceCaptioner}


def fingerprint(captioner: Captioner, column: str) -> str:
    """16 hex digits: equal when captions would be."""
    return digest_of([dict(captioner.settings), column])


def parts_folder(lake: Path, column: str, key: str) -> Path:
    return lake / "annotations" / column / key


def write_part(folder: Path, results: Sequence[Result]) -> Path:
    """One part file, named by its content: the same results twice are one file."""
    ordered = sorted(results, key=lambda result: result.image_id)
    table = pa.Table.from_pylist([vars(result) for result in ordered], RESULT_SCHEMA)
    name = digest_of([[result.image_id, result.text, result.status] for result in ordered])
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    path = folder / f"part-{name}.parquet"
    write_atomic(path, buffer.getvalue())
    return path


def read_parts(folder: Path) -> pa.Table:
    """All finished rows under one fingerprint; a row that two processes finished appears once, the first in file order."""
    parts = [pq.read_table(path, schema=RESULT_SCHEMA) for path in sorted(folder.glob("part-*.parquet"))]
    table = pa.concat_tables(parts) if parts else RESULT_SCHEMA.empty_table()
    first = table.append_column("row", pa.array(range(len(table)), pa.int64())).group_by(C.IMAGE_ID).aggregate([("row", "min")])
    return table.take(first["row_min"])
