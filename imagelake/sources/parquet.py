"""Parquet files with an image column: binary, or a struct {bytes, path} as Hugging Face writes it. Row groups are
read in small batches.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagelake.errors import ConfigError
from imagelake.sources import units
from imagelake.sources.files import archives
from imagelake.sources.spec import SourceSpec
from imagelake.sources.units import Record, SourceFile, Unit, text_of

BATCH_BYTES = 32 << 20
MAX_BATCH_ROWS = 256
# A row group that cannot be read gives a fault a row, so that the count of rows stays right; a footer that claims more
# rows than this lies.
_MAX_FAULT_ROWS = 1_000_000
_READ_BUFFER_BYTES = 1 << 20


def list_files(spec: SourceSpec) -> list[SourceFile]:
    files = archives(spec, "*.parquet")
    for file in files:
        with _open(file, spec) as parquet:
            _Columns.of(spec, file, parquet.schema_arrow)
    return files


def plan_units(spec: SourceSpec, files: list[SourceFile], target_bytes: int) -> list[Unit]:
    """Ranges of row groups, each at least one, up to `target_bytes` of the columns that are read."""
    planned = []
    for file in files:
        with _open(file, spec) as parquet:
            wanted = _Columns.of(spec, file, parquet.schema_arrow).selection
            sizes = [_bytes(parquet.metadata.row_group(group), wanted) for group in range(parquet.metadata.num_row_groups)]
        start, size = 0, 0
        for group, group_size in enumerate(sizes):
            if group > start and size + group_size > target_bytes:
                planned.append(Unit(spec.name, spec.format, (file,), start, group, size))
                start, size = group, 0
            size += group_size
        if sizes:
            planned.append(Unit(spec.name, spec.format, (file,), start, len(sizes), size))
    return planned


def read_unit(spec: SourceSpec, unit: Unit) -> Iterator[Record]:
    (file,) = unit.files
    with _open(file, None) as parquet:
        columns = _Columns.of(spec, file, parquet.schema_arrow)
        row = sum(parquet.metadata.row_group(group).num_rows for group in range(unit.start))
        for group in range(unit.start, unit.stop):
            end = row + parquet.metadata.row_group(group).num_rows
            yield from _read_group(spec, file, parquet, columns, group, row, end)
            row = end


def _read_group(
    spec: SourceSpec, file: SourceFile, parquet: pq.ParquetFile, columns: _Columns, group: int, row: int, end: int
) -> Iterator[Record]:
    uri = Path(file.path).as_uri()
    mean = _bytes(parquet.metadata.row_group(group), columns.selection) // max(1, end - row)
    rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, mean)))
    try:
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns.selection, use_threads=False):
            for image, texts in columns.rows(batch):
                yield _record(spec, f"{file.key}#{row}", f"{uri}#{row}", image, texts)
                row += 1
    except (pa.ArrowException, OSError) as error:
        for lost in itertools.islice(range(row, end), _MAX_FAULT_ROWS):
            record = _record(spec, f"{file.key}#{lost}", f"{uri}#{lost}", (None, None), {})
            record.fault, record.fault_detail = "unreadable_row", f"row group {group}: {' '.join(str(error).split())[:200]}"
            yield record


def _record(spec: SourceSpec, key: str, uri: str, image: tuple[bytes | None, object], texts: dict[str, object]) -> Record:
    data, path = image
    record = Record(
        key,
        uri,
        captions={name: text_of(texts.get(f"captions.{name}")) for name in spec.captions},
        license=text_of(texts.get("license_column")) or spec.license,
        attribution=text_of(texts.get("attribution_column")) or spec.attribution,
    )
    if data is None:
        record.fault = "no_image"
        record.fault_detail = f"no bytes, only the path {text_of(path)!r}" if path is not None else "the image is null"
    elif len(data) > units.MAX_IMAGE_BYTES:
        record.fault, record.fault_detail = "too_many_bytes", f"{len(data)} bytes, at most {units.MAX_IMAGE_BYTES} are taken"
    else:
        record.image = data
    return record


@contextmanager
def _open(file: SourceFile, spec: SourceSpec | None) -> Iterator[pq.ParquetFile]:
    """The file with its footer read. With `spec`, what cannot be read is a ConfigError; a file that changed is always
    retryable.
    """
    try:
        # A Python file, because Arrow takes no path that is not UTF-8. A buffer, because Arrow reads whole column chunks without one.
        with Path(file.path).open("rb", buffering=0) as stream:
            units.check_unchanged(file, Path(file.path).stat())
            try:
                parquet = pq.ParquetFile(stream, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
            except (pa.ArrowException, OSError) as error:
                where = f"{spec.origin}.path: " if spec else ""
                raise ConfigError(f"{where}{file.path} is no readable Parquet file: {error}") from error
            yield parquet
    except FileNotFoundError as error:
        raise units.changed(file, error) from error


def _bytes(group: pq.RowGroupMetaData, wanted: list[str]) -> int:
    """Uncompressed bytes of the wanted columns of a row group."""
    columns = (group.column(index) for index in range(group.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in wanted)
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where one file has what is wanted. `image`: path to the bytes; `image_path`: path to the name beside them, of a
    Hugging Face struct.
    """

    image: tuple[str, ...]
    image_path: tuple[str, ...] | None
    texts: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, spec: SourceSpec, file: SourceFile, schema: pa.Schema) -> _Columns:
        """Raises ConfigError that names the file, the key and the columns that exist."""
        name = spec.image or "image"
        path, kind = _find(spec, file, schema, "image", name)
        image_path = None
        if pa.types.is_struct(kind):
            children = {field.name: field.type for field in kind}
            image_path = (*path, "path") if "path" in children and _is_text(children["path"]) else None
            path, kind = (*path, "bytes"), children.get("bytes")
        if kind is None or not (_is_binary(kind) or pa.types.is_null(kind)):
            found = schema.field(schema.get_field_index(path[0])).type
            raise ConfigError(
                f"{spec.origin}.image: {file.path}: column {name!r} is {found}, expected binary or a struct with bytes; "
                f"it has: {', '.join(_names(schema))}"
            )
        texts = {}
        for key, column in spec.rules.items():
            texts[key], kind = _find(spec, file, schema, key, column)
            if pa.types.is_struct(kind) or pa.types.is_map(kind):
                raise ConfigError(f"{spec.origin}.{key}: {file.path}: column {column!r} is {kind}, expected text")
        return cls(path, image_path, texts)

    @property
    def selection(self) -> list[str]:
        paths = {self.image, *self.texts.values()} | ({self.image_path} if self.image_path else set())
        return sorted(".".join(path) for path in paths)

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[bytes | None, object], dict[str, object]]]:
        images = _at(batch, self.image)
        paths = _values(_at(batch, self.image_path)) if self.image_path else itertools.repeat(None)
        texts = [_values(_at(batch, path)) for path in self.texts.values()]
        cells = zip(*texts, strict=True) if texts else itertools.repeat(())
        # One image at a time becomes a Python object.
        for image, path, values in zip(images, paths, cells, strict=False):
            yield (image.as_py(), path), dict(zip(self.texts, values, strict=True))


def _find(spec: SourceSpec, file: SourceFile, schema: pa.Schema, key: str, name: str) -> tuple[tuple[str, ...], pa.DataType]:
    """The path of a column and its type: a column of this very name, else a dotted path into structs."""
    first, *rest = [name] if schema.get_field_index(name) >= 0 else name.split(".")
    kind = schema.field(first).type if schema.get_field_index(first) >= 0 else None
    for step in rest:
        children = {field.name: field.type for field in kind} if kind is not None and pa.types.is_struct(kind) else {}
        kind = children.get(step)
    if kind is not None:
        return (first, *rest), kind
    known = _names(schema)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else "."
    raise ConfigError(f"{spec.origin}.{key}: {file.path}: no column {name!r}{hint} It has: {', '.join(known)}")


def _names(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema]


def _at(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column = batch.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _is_binary(kind: pa.DataType) -> bool:
    return any(
        test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _values(array: pa.Array) -> list[Any]:
    """Python values; text as its bytes, because Parquet does not promise that it is UTF-8."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_text(array.type):
        array = array.cast(pa.large_binary())
    elif (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)) and _is_text(array.type.value_type):
        array = array.cast(pa.large_list(pa.large_binary()))
    values: list[Any] = array.to_pylist()
    return values
