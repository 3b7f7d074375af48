"""Metadata files beside images: metadata.jsonl, .csv or .tsv, one row an image, as Hugging Face's ImageFolder has them.

A row names its image in one column, relative to the metadata file. Rows are streamed; one that cannot be read is a
fault, and the others are kept.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from imagelake.errors import ConfigError
from imagelake.sources import units
from imagelake.sources.spec import SourceSpec, metadata_rule
from imagelake.sources.units import SourceFile, at_path, extension_of, text_of

FILE_COLUMN = "file_name"
# Parsed metadata up to this size stay in the worker between units; larger files are streamed once a unit, which bounds
# memory.
MAX_CACHED_BYTES = 32 << 20
_SAMPLED_ROWS = 100
# What csv and f-strings make of a float NaN; a CSV cannot tell it from text.
_WRITTEN_NAN = ("nan", "NaN")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `line`: where it begins, from 1. `problem`: why it is no row, `values` empty then."""

    line: int
    values: Mapping[str, Any]
    problem: str | None = None


def rows(file: SourceFile) -> Iterator[Row]:
    """Every row of a metadata file, blank lines left out. Raises RetryableError when the file changed."""
    try:
        with Path(file.path).open("rb") as stream:
            units.check_unchanged(file, os.fstat(stream.fileno()))
            extension = extension_of(file.path)
            yield from _json_rows(stream) if extension == "jsonl" else _csv_rows(stream, "\t" if extension == "tsv" else ",")
    except OSError as error:
        raise units.changed(file, error) from error


def _json_rows(stream: BinaryIO) -> Iterator[Row]:
    number = 0
    while line := stream.readline(units.MAX_CAPTION_BYTES):
        number += 1
        if len(line) == units.MAX_CAPTION_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(units.MAX_CAPTION_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield Row(number, {}, f"line of more than {units.MAX_CAPTION_BYTES} bytes")
        elif line.strip():
            yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Row:
    try:
        # Names of files may be no UTF-8; surrogateescape lets them find their file.
        values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        return Row(number, {}, f"no JSON: {error}")
    return Row(number, values) if isinstance(values, dict) else Row(number, {}, "no JSON object")


def _csv_rows(stream: BinaryIO, delimiter: str) -> Iterator[Row]:
    # An endless line comes in pieces, which csv's own limit on a field then stops.
    lines = iter(lambda: stream.readline(units.MAX_CAPTION_BYTES), b"")
    reader = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), delimiter=delimiter)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(line, {}, f"no CSV: {error}")
            continue
        if header is None:
            header = [cell.removeprefix("\ufeff") for cell in cells]
        elif len(cells) > len(header):
            yield Row(line, {}, f"{len(cells)} cells under {len(header)} columns")
        elif cells:
            values = dict(zip(header, cells, strict=False))
            yield Row(line, {name: None if cell in _WRITTEN_NAN else cell for name, cell in values.items()})


def columns_of(spec: SourceSpec, key: str) -> dict[str, str]:
    """The rules that read the metadata file `key`: key in sources.yaml -> column. Empty when the file is none.

    A rule without a folder means every file of this name, wherever it lies; a rule with one means that file below the
    source's folder.
    """
    columns = {}
    for rule_key, rule in spec.rules.items():
        parsed = metadata_rule(rule)
        if parsed and parsed[0] == (key if "/" in parsed[0] else key.rpartition("/")[2]):
            columns[rule_key] = parsed[1]
    return columns


def check_columns(spec: SourceSpec, file: SourceFile) -> None:
    """Raises ConfigError that names key, file and columns when none of the first rows has a column that is asked for."""
    names: dict[str, None] = {}
    for _, row in zip(range(_SAMPLED_ROWS), rows(file), strict=False):
        names |= dict.fromkeys(row.values)
    if not names:
        return  # no row that could be read: each of them is a fault, later
    wanted = columns_of(spec, file.key) | {"file_column": spec.file_column or FILE_COLUMN}
    for key, column in wanted.items():
        if column not in names and column.split(".")[0] not in names:
            raise ConfigError(f"{spec.origin}.{key}: {file.path}: no column {column!r}; it has: {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    fault: str
    detail: str


def faults(spec: SourceSpec, file: SourceFile) -> Iterator[Fault]:
    """Rows of no listed image: unreadable ones, names outside the folder, missing files; and second rows of one file."""
    seen: set[int] = set()
    folder = Path(file.path).parent
    for row in rows(file):
        name = row.values.get(spec.file_column or FILE_COLUMN)
        if row.problem or not isinstance(name, str) or not name:
            yield Fault(row.line, "bad_metadata", row.problem or f"no {spec.file_column or FILE_COLUMN}")
            continue
        path = _resolve(file, name)
        if "\0" in path or not Path(path).is_relative_to(folder):
            yield Fault(row.line, "bad_metadata", f"{units.escape_name(name)[:200]} is not below the metadata file's folder")
        elif not _is_listed(Path(path), folder):
            yield Fault(row.line, "missing_file", f"{units.escape_name(name)[:200]} does not exist")
        elif hash(path) in seen:
            yield Fault(row.line, "duplicate_metadata", f"another row, kept, describes {units.escape_name(name)[:200]}")
        else:
            seen.add(hash(path))


def _resolve(file: SourceFile, name: str) -> str:
    return os.path.normpath(Path(file.path).parent / name)


def _is_listed(path: Path, folder: Path) -> bool:
    """Whether the walk of the folder meets this file: it enters no linked folder."""
    try:
        return path.is_file() and path.parent.resolve() == folder.resolve() / path.parent.relative_to(folder)
    except (OSError, ValueError):
        return False


def texts_for(spec: SourceSpec, file: SourceFile, wanted: set[str]) -> dict[str, dict[str, str | None]]:
    """path -> key in sources.yaml -> text, for the images `wanted` that a metadata file describes; the first row of
    an image counts.
    """
    columns = columns_of(spec, file.key)
    name = spec.file_column or FILE_COLUMN
    if file.size <= MAX_CACHED_BYTES:
        parsed = _parsed(file, tuple(columns.values()), name)
        return {path: dict(zip(columns, parsed[path], strict=True)) for path in wanted if path in parsed}
    texts: dict[str, dict[str, str | None]] = {}
    for path, row in _described(file, name):
        if path in wanted and path not in texts:
            texts[path] = dict(zip(columns, _texts(row, tuple(columns.values())), strict=True))
    return texts


@lru_cache(maxsize=4)
def _parsed(file: SourceFile, columns: tuple[str, ...], name: str) -> dict[str, tuple[str | None, ...]]:
    found: dict[str, tuple[str | None, ...]] = {}
    for path, row in _described(file, name):
        if path not in found:
            found[path] = _texts(row, columns)
    return found


def _described(file: SourceFile, name: str) -> Iterator[tuple[str, Row]]:
    for row in rows(file):
        if isinstance(row.values.get(name), str):
            yield _resolve(file, row.values[name]), row


def _texts(row: Row, columns: tuple[str, ...]) -> tuple[str | None, ...]:
    """By the column of this very name, else by a dotted path into the row's JSON."""
    cells = (row.values[name] if name in row.values else at_path(row.values, tuple(name.split("."))) for name in columns)
    return tuple(map(text_of, cells))
