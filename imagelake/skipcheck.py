"""Checks a corpus's skip lists: the generation that holds, the lists beside the shards, and the table of reasons must say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from imagelake import skiplist
from imagelake.shardcheck import Fault
from imagelake.skiplist import SUFFIX, Generation, SkipList, SkipListError


def check(root: Path, indexes: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Generation | None, list[Fault]]:
    """indexes: bucket -> the entries of its index. Returns the generation that holds (None when it can't be read) and what is wrong."""
    try:
        generation = skiplist.read(root)
    except SkipListError as error:
        return None, [Fault("skips_unreadable", str(error))]
    shards = {f"{bucket}/{entry['raw_data']['basename']}": entry for bucket, entries in indexes.items() for entry in entries}
    return generation, [*_lists(generation, shards), *_sidecars(root, generation), *_reasons(root, generation)]


def _lists(generation: Generation, shards: Mapping[str, Mapping[str, Any]]) -> Iterator[Fault]:
    for name, found in generation.lists.items():
        entry = shards.get(name)
        try:
            if entry is None:
                raise SkipListError("it has a skip list, but no index names it")
            found.require_shard(name, entry["samples"], entry["raw_data"]["bytes"])
        except SkipListError as error:
            yield _fault("skips_shard", name, str(error))


def _sidecars(root: Path, generation: Generation) -> Iterator[Fault]:
    beside = {path.relative_to(root).as_posix().removesuffix(SUFFIX): path for path in skiplist.sidecars(root)}
    for name in sorted({*beside, *generation.lists}):
        try:
            if name not in beside:
                raise SkipListError("the list beside the shard is missing")
            if name not in generation.lists:
                raise SkipListError("a list lies beside the shard, but the generation that holds has none for it")
            if SkipList.decode(beside[name].read_bytes(), name).encode() != generation.lists[name].encode():
                raise SkipListError("the list beside the shard is not that of the generation that holds")
        except SkipListError as error:
            yield _fault("skips_sidecar", name, str(error))


def _reasons(root: Path, generation: Generation) -> Iterator[Fault]:
    """Every skipped sample has a row with a reason, and no other has."""
    if not generation.digest:
        return
    path = skiplist.reasons_path(root, generation.digest)
    try:
        rows = pq.read_table(path, columns=["tier", "bucket", "shard", "index", "reasons"])
    except (OSError, pa.ArrowException) as error:
        yield Fault("skips_reasons", f"{path.name} can't be read: {error}")
        return
    told = {
        (f"{row['tier']}/{row['bucket']}/{row['shard']}", row["index"])
        for row in rows.to_pylist()
        if row["reasons"]
    }  # fmt: skip
    listed = {(name, int(index)) for name, found in generation.lists.items() for index in found.skipped}
    for name, index in sorted(told ^ listed)[:100]:
        where = "is skipped without a reason" if (name, index) in listed else "has a reason, but is not skipped"
        yield _fault("skips_reasons", name, f"sample {index} {where}")


def _fault(kind: str, name: str, detail: str) -> Fault:
    tier, key, shard = name.split("/", 2)
    return Fault(kind, detail, f"{tier}/{key}", shard)
