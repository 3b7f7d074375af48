"""What differs between two releases, and why: by what their rows say, a part of the ids at a time, so that memory does not grow with them.

No shard is read. Parts are cut by the first digits of an id: ids are hashes, so all parts are about as large.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from imagelake import columns as C
from imagelake import corpus, deltalog, skiplist, tables
from imagelake.corpus import Release
from imagelake.errors import ConfigError
from imagelake.skiplist import NOTHING, Generation

KINDS = ("added", "removed", "recaptioned", "repictured", "rebucketed", "skipped", "unskipped")
ROWS_AT_ONCE = 2_000_000
UNKNOWN = "unknown"
# What to read, and the columns to make of it.
Scan = tuple[ds.Dataset, Mapping[str, ds.Expression]]
WHY = pa.schema([(C.IMAGE_ID, pa.string()), ("why", pa.string())])


@dataclass(frozen=True)
class Side:
    """One of the two: a release, the corpus folder where its rows lie, and the skip lists that it is taken with."""

    root: Path
    release: Release
    skips: Generation

    @classmethod
    def of(cls, path: Path, skips: str | None = skiplist.CURRENT) -> Side:
        """`path`: a corpus, or a release file in it (release.json, or one below releases/). `skips` as in CorpusDataset.

        Raises ConfigError for what is neither, and for a release whose rows are not there.
        """
        if path.is_file():
            root = path.parent.parent if path.parent.name == corpus.RELEASES else path.parent
            release = corpus.read_release_file(path)
        else:
            root, release = path, corpus.read_release(path)
        lacking = [export for export in release.exports if not corpus.rows_files(root, export)]
        if lacking:
            raise ConfigError(f"{path}: {root} has no rows of export {lacking[0]}: name the release where it lies, in its corpus")
        return cls(root, release, NOTHING if skips is None else skiplist.read(root, skips))

    def rows(self, captions: Sequence[str]) -> Scan:
        """image_id, bucket ("512/1.000"), source, picture, and the digest of each of `captions`; null where an older export has none."""
        files = [str(file) for export in self.release.exports for file in corpus.rows_files(self.root, export)]
        places = {name: place for place, name in enumerate(corpus.caption_columns(self.release.columns))}
        columns = {
            C.IMAGE_ID: ds.field(C.IMAGE_ID),
            "bucket": pc.binary_join_element_wise(ds.field("tier").cast(pa.string()), ds.field("bucket"), "/"),
            "source": ds.field("source"),
            "picture": ds.field("picture"),
        } | {name: pc.list_element(ds.field("captions"), places[name]) for name in captions}
        return ds.dataset(files, corpus.EXPORTED_SCHEMA, "parquet", partitioning=None), columns

    def skipped(self) -> Scan:
        """image_id and reasons."""
        columns = {name: ds.field(name) for name in (C.IMAGE_ID, "reasons")}
        if not self.skips.digest:
            return ds.dataset(skiplist.ROWS_SCHEMA.empty_table()), columns
        return ds.dataset(str(skiplist.reasons_path(self.root, self.skips.digest)), skiplist.ROWS_SCHEMA, "parquet"), columns


@dataclass
class Change:
    """Samples of one kind of difference: how many, by source, by why, and the first of them. One with two reasons counts under both."""

    samples: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    first: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Difference:
    """All of it. uncompared: samples of both whose captions an older export did not record, so that they were not compared."""

    a: Side
    b: Side
    changes: dict[str, Change]
    uncompared: int = 0


def compare(a: Side, b: Side, lake: Path | None = None, first: int = 5, rows_at_once: int = ROWS_AT_ONCE) -> Difference:
    """What changed from `a` to `b`. `lake` says why samples were removed, beside the skip lists of `a`. `first`: samples named a kind.

    Releases of more than `rows_at_once` samples are copied in parts to a temporary folder first, without pictures and texts.
    """
    captions = sorted(set(corpus.caption_columns(a.release.columns)) & set(corpus.caption_columns(b.release.columns)))
    found = Difference(a, b, {kind: Change() for kind in KINDS})
    scans = {"a": a.rows(captions), "b": b.rows(captions), "skipped_a": a.skipped(), "skipped_b": b.skipped()}
    scans |= {} if lake is None else _lake_reasons(lake)
    digits = 0
    while max(a.release.rows, b.release.rows) > rows_at_once * 16**digits:
        digits += 1
    with tempfile.TemporaryDirectory(prefix="imagelake-diff-") as folder:
        parts = {name: Parts(scan, digits, Path(folder, name)) for name, scan in scans.items()}
        for prefix in sorted({prefix for part in parts.values() for prefix in part.prefixes}):
            _compare_part(found, {name: part.read(prefix) for name, part in parts.items()}, captions, first)
    return found


class Parts:
    """The rows of a scan by the first digits of their image_id: as they are for 0 digits, copied to a file a part for more."""

    def __init__(self, scan: Scan, digits: int, folder: Path) -> None:
        self.source, self.columns = scan
        self.schema = self.source.scanner(columns=self.columns).projected_schema
        self.folder = folder
        self.prefixes = [""]
        if digits:
            folder.mkdir()  # an empty scan writes nothing
            columns = {**self.columns, "part": pc.utf8_slice_codeunits(ds.field(C.IMAGE_ID), 0, digits)}
            by_prefix = ds.partitioning(pa.schema([("part", pa.string())]))
            scanner = self.source.scanner(columns=columns)
            ds.write_dataset(scanner, folder, format="feather", partitioning=by_prefix, max_partitions=1 << 20, max_open_files=512)
            self.prefixes = [path.name for path in folder.iterdir()]

    def read(self, prefix: str) -> pa.Table:
        if not prefix:
            return self.source.to_table(self.columns)
        files = sorted(map(str, self.folder.joinpath(prefix).glob("*.feather")))
        return ds.dataset(files, self.schema, "feather").to_table() if files else self.schema.empty_table()


def _compare_part(found: Difference, of: dict[str, pa.Table], captions: Sequence[str], first: int) -> None:
    a, b, skipped_a, skipped_b = of["a"], of["b"], _exploded(of["skipped_a"]), _exploded(of["skipped_b"])
    both = a.join(b, C.IMAGE_ID, join_type="inner", left_suffix="_a", right_suffix="_b")
    removed = a.filter(pc.invert(pc.is_in(a[C.IMAGE_ID], b[C.IMAGE_ID].combine_chunks())))
    _count(found.changes["added"], b.filter(pc.invert(pc.is_in(b[C.IMAGE_ID], a[C.IMAGE_ID].combine_chunks()))), None, first)
    reasons = pa.concat_tables([skipped_a, *(of[name] for name in ("lost", "rejected") if name in of)])
    _count(found.changes["removed"], removed, reasons, first)
    both = both.append_column("source", pc.coalesce(both["source_b"], both["source_a"]))
    moved = both.append_column("why", pc.binary_join_element_wise(both["bucket_a"], both["bucket_b"], " → "))
    _count(found.changes["rebucketed"], moved, moved.filter(pc.not_equal(both["bucket_a"], both["bucket_b"])), first, inner=True)
    other = [both.filter(pc.not_equal(both[f"{name}_a"], both[f"{name}_b"])).select([C.IMAGE_ID]) for name in captions]
    named = [table.append_column("why", pa.array([name] * len(table), pa.string())) for name, table in zip(captions, other, strict=True)]
    _count(found.changes["recaptioned"], both, pa.concat_tables([WHY.empty_table(), *named]), first, inner=True)
    _count(found.changes["repictured"], both.filter(pc.not_equal(both["picture_a"], both["picture_b"])), None, first)
    for kind, now, before in (("skipped", skipped_b, skipped_a), ("unskipped", skipped_a, skipped_b)):
        fresh = now.filter(pc.invert(pc.is_in(now[C.IMAGE_ID], before[C.IMAGE_ID].combine_chunks())))
        _count(found.changes[kind], both, fresh, first, inner=True)
    if captions:
        found.uncompared += pc.sum(pc.or_(both[f"{captions[0]}_a"].is_null(), both[f"{captions[0]}_b"].is_null())).as_py() or 0


def _count(change: Change, rows: pa.Table, why: pa.Table | None, first: int, *, inner: bool = False) -> None:
    """Add `rows` to a change, with their reasons by `why`. inner: only the rows that have one; else the reason of the others is unknown."""
    rows = rows.select([C.IMAGE_ID, "source"])
    if why is not None:
        once = why.select(WHY.names).group_by(WHY.names).aggregate([])
        joined = rows.join(once, C.IMAGE_ID, join_type="inner" if inner else "left outer")
        joined = joined.set_column(2, "why", joined["why"].fill_null(UNKNOWN))
        change.why.update(_counts(joined["why"]))
        rows = joined.group_by([C.IMAGE_ID, "source"]).aggregate([("why", "list")])
    change.samples += len(rows)
    change.by_source.update(_counts(rows["source"].fill_null(UNKNOWN)))
    wanted = first - len(change.first)
    if wanted > 0:
        change.first += (
            rows.take(pc.select_k_unstable(rows, wanted, [(C.IMAGE_ID, "ascending")]))
            .rename_columns({"why_list": "why"} if why is not None else {})
            .to_pylist()
        )


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(values).to_pylist()}


def _exploded(skipped: pa.Table) -> pa.Table:
    """image_id and why, a row for each reason."""
    parts = [
        pa.table([batch[C.IMAGE_ID].take(pc.list_parent_indices(batch["reasons"])), pc.list_flatten(batch["reasons"])], WHY)
        for batch in skipped.to_batches()
    ]
    return pa.concat_tables([WHY.empty_table(), *parts])


def _lake_reasons(lake: Path) -> dict[str, Scan]:
    """Why records are not curated, image_id and why, in the words of the skip lists: "superseded", or "<stage>:<reason>"."""
    of_stage = pc.binary_join_element_wise(ds.field(C.STAGE), ds.field(C.REASON), ":")
    return {
        name: (deltalog.dataset(lake, table), {C.IMAGE_ID: ds.field(C.IMAGE_ID), "why": why})
        for name, table, why in (("lost", tables.DUPLICATES, ds.scalar("superseded")), ("rejected", tables.REJECTS, of_stage))
    }


def to_dict(found: Difference) -> dict[str, Any]:
    """The difference as JSON has it."""
    a, b = found.a.release, found.b.release
    return {
        "releases": [
            {"path": str(side.root), "release": side.release.release, "exports": list(side.release.exports), "samples": side.release.rows,
             "skipped": side.skips.skipped, "skips": side.skips.digest or None, "config_digest": side.release.config_digest,
             "created_from": side.release.created_from} for side in (found.a, found.b)
        ],
        "columns": {"added": sorted(set(b.columns) - set(a.columns)), "removed": sorted(set(a.columns) - set(b.columns))},
        "changes": {
            kind: {"samples": change.samples, "by_source": dict(change.by_source), "why": dict(change.why), "first": change.first}
            for kind, change in found.changes.items()
        },
        "uncompared": found.uncompared,
    }  # fmt: skip


def to_text(found: Difference) -> str:
    """The difference for people: the two sides, what each kind has by source and by reason, and the first samples of each."""
    value = to_dict(found)
    lines = []
    for name, side in zip("AB", value["releases"], strict=True):
        made = ", ".join(f"{table} {version}" for table, version in sorted(side["created_from"].items()))
        lines.append(f"{name}  {side['path']}, release {side['release']}: {side['samples']} samples, {side['skipped']} skipped")
        lines.append(f"   skip lists {side['skips'] or 'none'}; made from {made or 'what it does not say'}; config {side['config_digest']}")
    for change, names in value["columns"].items():
        if names:
            lines.append(f"columns {change}: {', '.join(names)}")
    changes = {kind: change for kind, change in value["changes"].items() if change["samples"]}
    lines += [] if changes else ["no sample differs"]
    for kind, change in changes.items():
        lines.append(f"{kind} {change['samples']}")
        for heading, counts in (("by source", change["by_source"]), ("why", change["why"])):
            if counts:
                lines.append(f"   {heading}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}")
        lines += [f"   {', '.join(_shown(entry))}" for entry in change["first"]]
        if change["samples"] > len(change["first"]):
            lines.append(f"   … and {change['samples'] - len(change['first'])} more")
    if found.uncompared:
        lines.append(f"captions of {found.uncompared} samples were not compared: an older export recorded no digest of them")
    return "\n".join(lines)


def _shown(entry: dict[str, Any]) -> list[str]:
    return [entry[C.IMAGE_ID], entry["source"] or UNKNOWN, *sorted(entry.get("why", ()))]
