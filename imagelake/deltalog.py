"""Delta tables without Spark: the newest version, and its live rows, all of them or those that are looked up.

After the protocol of Delta's log: a checkpoint holds the files that live at its version, each later commit adds and removes some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from imagelake.errors import ImagelakeError
from imagelake.tables import Table

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def version(lake: Path, table: Table) -> int:
    """The newest committed version, -1 where the table does not exist yet. Reads the log's file names only."""
    return max(_versions(lake / table.path, _COMMIT), default=-1)


def read(lake: Path, table: Table) -> pa.Table:
    """Every live row, in memory; none where the table does not exist yet."""
    return dataset(lake, table).to_table()


def dataset(lake: Path, table: Table) -> ds.Dataset:
    """The live rows, to be scanned; none where the table does not exist yet.

    Raises ImagelakeError for a table with deletion vectors, or whose log lacks a commit: ours have neither.
    """
    folder = lake / table.path
    files = [str(path) for path in live_files(folder)]
    if not files:
        return ds.dataset(table.schema.empty_table())
    partitions = pa.schema([table.schema.field(name) for name in table.partition_by])
    partitioning = ds.partitioning(partitions, flavor="hive") if table.partition_by else None
    return ds.dataset(files, table.schema, "parquet", partitioning=partitioning, partition_base_dir=str(folder))


def lookup(lake: Path, table: Table, key: str, values: Collection[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The live rows whose `key` is one of `values`. Of all other rows, `key` alone is read."""
    wanted = ds.field(key).isin(list(values))
    rows: list[dict[str, Any]] = []
    for fragment in dataset(lake, table).get_fragments():
        for group in fragment.split_by_row_group(wanted) if isinstance(fragment, ds.ParquetFileFragment) else ():
            if group.count_rows(filter=wanted):
                rows += group.to_table(table.schema, list(columns), filter=wanted).to_pylist(maps_as_pydicts="strict")
    return rows


def live_files(folder: Path) -> list[Path]:
    """The Parquet files of the newest version, sorted."""
    log = folder / "_delta_log"
    newest = max(_versions(folder, _COMMIT), default=-1)
    start = max(_versions(folder, _CHECKPOINT), default=-1)
    live: set[str] = set()
    if start >= 0:
        adds = pq.read_table(log / f"{start:020d}.checkpoint.parquet", columns=["add"]).column("add").to_pylist()
        live |= {_path(add, folder) for add in adds if add is not None}
    for number in range(start + 1, newest + 1):
        commit = log / f"{number:020d}.json"
        if not commit.is_file():
            raise ImagelakeError(f"{commit} is missing: {folder} can't be read without Spark")
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "remove" in action:
                live.discard(action["remove"]["path"])
            elif "add" in action:
                live.add(_path(action["add"], folder))
    return sorted(folder / unquote(path) for path in live)


def _versions(folder: Path, name: re.Pattern[str]) -> list[int]:
    log = folder / "_delta_log"
    found = (name.fullmatch(entry.name) for entry in log.iterdir()) if log.is_dir() else ()
    return [int(match[1]) for match in found if match]


def _path(add: dict[str, object], folder: Path) -> str:
    if add.get("deletionVector"):
        raise ImagelakeError(f"{folder} has deletion vectors: it can't be read without Spark")
    return str(add["path"])
