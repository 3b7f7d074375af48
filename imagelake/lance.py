"""Lance tables: create, append once, add or change columns, fetch blobs by row address, compact, index. The one module that imports lance.

lance is not fork-safe: import this module in a process that will not fork, and make the Spark session first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import write_fragments as stage_fragments
from lance.optimize import Compaction

from imagelake import columns as C
from imagelake.errors import ImagelakeError
from imagelake.tables import Table

STORAGE_VERSION: Final = "2.2"
ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
BATCH_PROPERTY = "imagelake.batch"
TRANSACTIONS_LOOKED_AT = 1000


def uri(lake: Path, table: Table) -> str:
    return str(lake / table.path)


def arrow_schema(table: Table) -> pa.Schema:
    """The declared schema, with byte columns as Lance blobs."""
    return pa.schema([lance.blob_field(field.name) if field.name in table.bytes_columns else field for field in table.schema])


def exists(lake: Path, table: Table) -> bool:
    return (lake / table.path / "_versions").is_dir()


def version(lake: Path, table: Table) -> int:
    """The newest version, -1 where the table does not exist yet."""
    return int(lance.dataset(uri(lake, table)).version) if exists(lake, table) else -1


def create(lake: Path, table: Table) -> None:
    """Make the empty table unless it exists. Stable row ids keep indices valid through compaction."""
    if not exists(lake, table):
        empty = arrow_schema(table).empty_table()
        lance.write_dataset(empty, uri(lake, table), mode="create", data_storage_version=STORAGE_VERSION, enable_stable_row_ids=True)


def open_table(lake: Path, table: Table, at: int | None = None) -> Any:
    """The lance dataset at a version (default: newest). Raises ImagelakeError when the table does not exist."""
    if not exists(lake, table):
        raise ImagelakeError(f"{lake / table.path}: no such table yet; the stage that writes {table.name} has not run")
    return lance.dataset(uri(lake, table), version=at)


def open_path(path: str, at: int | None = None) -> Any:
    """The lance dataset at a path, for readers that know no lake."""
    return lance.dataset(path, version=at)


def stage_rows(lake: Path, table: Table, rows: Iterable[Mapping[str, Any]], rows_per_batch: int = 64) -> list[str]:
    """Write `rows` as data files that no version shows yet; returns fragments as JSON, for `commit_append`.

    Memory: one batch of rows. Called in tasks: a repeated attempt writes files of its own, and only what is committed is ever seen.
    """
    schema = arrow_schema(table)
    reader = pa.RecordBatchReader.from_batches(schema, _batches(rows, schema, rows_per_batch))
    # Staged as append only: fragments staged as overwrite number their columns by position, and captions land under keys.
    fragments = stage_fragments(reader, uri(lake, table), mode="append")
    return [json.dumps(fragment.to_json()) for fragment in fragments]


def _batches(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, rows_per_batch: int) -> Iterator[pa.RecordBatch]:
    buffer: list[Mapping[str, Any]] = []
    for row in rows:
        buffer.append(row)
        if len(buffer) == rows_per_batch:
            yield _batch(buffer, schema)
            buffer = []
    if buffer:
        yield _batch(buffer, schema)


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    def array(field: pa.Field) -> pa.Array:
        values = [row[field.name] for row in rows]
        is_blob = isinstance(field.type, pa.BaseExtensionType)
        return lance.blob_array(values) if is_blob else pa.array(values, field.type)

    return pa.RecordBatch.from_arrays([array(field) for field in schema], schema=schema)


def commit_append(lake: Path, table: Table, fragments: Sequence[str], batch: str) -> int:
    """Show staged fragments in one new version, unless `batch` was committed before; returns the version."""
    dataset = open_table(lake, table)
    if batch in _batches_of(dataset):
        return int(dataset.version)
    operation = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(text) for text in fragments])
    transaction = lance.Transaction(dataset.version, operation, transaction_properties={BATCH_PROPERTY: batch})
    return int(lance.LanceDataset.commit(uri(lake, table), transaction).version)


def _batches_of(dataset: Any) -> Iterator[str]:
    """The batches of the latest versions, newest first."""
    for entry in reversed(dataset.versions()[-TRANSACTIONS_LOOKED_AT:]):
        try:
            transaction = dataset.read_transaction(entry["version"])
        except TypeError:
            continue  # pylance can't show a compaction that rewrote an index; it is no append
        if transaction is not None:
            yield (transaction.transaction_properties or {}).get(BATCH_PROPERTY, "")


def delete_ids(lake: Path, table: Table, ids: Sequence[str], chunk: int = 10_000) -> int:
    """Hide rows by image_id; returns the version."""
    dataset = open_table(lake, table)
    for start in range(0, len(ids), chunk):
        quoted = ", ".join(f"'{image_id}'" for image_id in ids[start : start + chunk])
        dataset.delete(f"{C.IMAGE_ID} IN ({quoted})")
    return int(dataset.version)


def scan(lake: Path, table: Table, columns: Sequence[str], *, where: str | None = None, at: int | None = None) -> pa.Table:
    """Columns of live rows. Raises ImagelakeError for a column that the table does not have."""
    dataset = open_table(lake, table, at)
    missing = [name for name in columns if name not in dataset.schema.names]
    if missing:
        raise ImagelakeError(f"{table.name}: no column {', '.join(missing)}; it has {', '.join(dataset.schema.names)}")
    return dataset.scanner(columns=list(columns), filter=where).to_table()


def head(lake: Path, table: Table, columns: Sequence[str], rows: int, *, at: int) -> list[dict[str, Any]]:
    """The first live rows with their addresses."""
    scanner = open_table(lake, table, at).scanner(columns=list(columns), limit=rows, with_row_address=True)
    found: list[dict[str, Any]] = scanner.to_table().to_pylist()
    return found


def column_names(lake: Path, table: Table, at: int | None = None) -> list[str]:
    return list(open_table(lake, table, at).schema.names)


@dataclass(frozen=True)
class BlobReader:
    """Bytes of one column at one version, by row address. Opened once a task."""

    dataset: Any
    column: str

    @classmethod
    def open(cls, lake: Path, table: Table, column: str, at: int) -> BlobReader:
        return cls(open_table(lake, table, at), column)

    def fetch(self, addresses: Sequence[int] | npt.NDArray[np.int64]) -> list[bytes]:
        """addresses: int64 [N]. Returns N byte strings in that order. Raises ImagelakeError when a row has none."""
        blobs = self.dataset.read_blobs(self.column, addresses=[int(address) for address in addresses], preserve_order=True)
        if len(blobs) != len(addresses) or any(data is None for _, data in blobs):
            raise ImagelakeError(f"{self.dataset.uri}: {len(addresses)} rows asked, some have no {self.column}")
        return [data for _, data in blobs]


def set_columns(lake: Path, table: Table, key: str, values: pa.Table) -> tuple[int, int]:
    """Add the columns of `values` (all but `key`), or change them where they exist; image bytes stay where they are.

    Joined by `key`, never by position; rows without a value keep what they had, or get null. Returns (version, rows changed). Where every
    value is there already nothing is written. Raises ImagelakeError when `key` is repeated in `values`.
    """
    if pc.count_distinct(values[key]).as_py() != len(values):
        raise ImagelakeError(f"{table.name}: {key} is repeated among the annotations")
    dataset = open_table(lake, table)
    names = [name for name in values.column_names if name != key]
    new = [name for name in names if name not in dataset.schema.names]
    if new:
        dataset = _add_columns(dataset, key, values.select([key, *new]))
    changed = _change_columns(dataset, key, values) if len(new) < len(names) or not new else len(values)
    return int(lance.dataset(dataset.uri).version), changed


def _add_columns(dataset: Any, key: str, values: pa.Table) -> Any:
    merged, schema = [], None
    for fragment in dataset.get_fragments():
        ids = fragment.scanner(columns=[key], with_row_id=True).to_table()
        joined = ids.join(values, keys=key, join_type="left outer").drop_columns([key])
        new_fragment, schema = fragment.merge(joined, left_on=ROW_ID, right_on=ROW_ID)
        merged.append(new_fragment)
    if schema is None:
        return dataset
    operation = lance.LanceOperation.Merge(merged, schema, preserves_nullability=True)
    return lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _change_columns(dataset: Any, key: str, values: pa.Table) -> int:
    """Rewrite the named columns of the fragments where a value differs."""
    names = [name for name in values.column_names if name != key]
    keys = values[key].combine_chunks()
    changed, fragments, fields = 0, [], set()
    for fragment in dataset.get_fragments():
        current = fragment.scanner(columns=[key, *names]).to_table()
        place = pc.index_in(current[key], keys)  # not a join: those know no lists
        current, place = current.filter(place.is_valid()), place.drop_null()
        new = values.take(place)
        differs = [False] * len(new)
        for name in names:
            pairs = zip(new[name].to_pylist(), current[name].to_pylist(), strict=True)
            differs = [known or value != old for known, (value, old) in zip(differs, pairs, strict=True)]
        if any(differs):
            update = new.filter(pa.array(differs)).select([key, *names])
            new_fragment, modified = fragment.update_columns(update, left_on=key, right_on=key)
            fragments.append(new_fragment)
            fields |= set(modified)
            changed += len(update)
    if fragments:
        operation = lance.LanceOperation.Update(updated_fragments=fragments, fields_modified=sorted(fields))
        lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
    return changed


def compact(lake: Path, table: Table, *, fragment_bytes: int, max_rows: int, min_fragments: int = 1) -> dict[str, int]:
    """Merge small fragments towards `fragment_bytes` of images; returns fragments before and after.

    Nothing happens while there are at most twice as many fragments as the target needs, or `min_fragments`: a row target that is never
    reached would merge everything again at each call.
    """
    dataset = open_table(lake, table)
    rows, before = dataset.count_rows(), len(dataset.get_fragments())
    if rows == 0:
        return {"fragments_before": before, "fragments_after": before}
    sizes = dataset.scanner(columns=[C.BYTE_SIZE]).to_table()[C.BYTE_SIZE]
    row_bytes = max(pc.mean(sizes).as_py() or 1.0, 1.0)
    target_rows = max(1, min(max_rows, int(fragment_bytes / row_bytes)))
    if before > max(min_fragments, 2 * -(-rows // target_rows)):
        plan = Compaction.plan(dataset, {"target_rows_per_fragment": target_rows, "compaction_mode": "try_binary_copy"})
        results = [task.execute(dataset) for task in plan.tasks]
        if results:
            Compaction.commit(dataset, results)
    after = len(lance.dataset(dataset.uri).get_fragments())
    return {"fragments_before": before, "fragments_after": after}


def index(lake: Path, table: Table, scalar: Mapping[str, str], full_text: Sequence[str]) -> list[str]:
    """Build the indices that are missing, and bring the others up to date; returns the names of those built or extended.

    `scalar` maps a column to BTREE, BITMAP or LABEL_LIST. Full text uses the ICU tokenizer, which finds words of any language.
    """
    dataset = open_table(lake, table)
    known = {entry.name for entry in dataset.describe_indices()}
    touched = []
    for column, kind in scalar.items():
        if f"{column}_{kind.lower()}" not in known:
            dataset.create_scalar_index(column, kind, name=f"{column}_{kind.lower()}")
            touched.append(f"{column}_{kind.lower()}")
    for column in full_text:
        if f"{column}_fts" not in known:
            dataset.create_scalar_index(column, "INVERTED", name=f"{column}_fts", base_tokenizer="icu", with_position=False)
            touched.append(f"{column}_fts")
    stale = [name for name in sorted(known) if dataset.stats.index_stats(name).get("num_unindexed_rows", 0)]
    if stale:
        dataset.optimize.optimize_indices(index_names=stale)
    return touched + stale
