"""The Spark data source `lance`: reads a Lance table by fragment, with filter pushdown and a column list.

Options: `path`; `columns` (comma separated; default all but image bytes); `version`; `row_address` ("true" adds `_rowaddr`). Spark
does not tell Python data sources which columns a query needs, so `columns` is what keeps a scan narrow. Types that Spark lacks are
widened: unsigned integers to the next larger signed, float16 to float32, fixed-size to plain lists and binaries, blobs to binary.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

ROW_ADDRESS = "_rowaddr"
BATCH_ROWS = 4096
COMPARISONS = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}


class LanceDataSource(ds.DataSource):
    """`spark.read.format("lance").option("path", …).load()` and `CREATE TEMPORARY VIEW v USING lance OPTIONS (path '…')`."""

    @classmethod
    def name(cls) -> str:
        return "lance"

    def schema(self) -> StructType:
        return from_arrow_schema(self._plan().spark_schema())

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return LanceReader(self._plan())

    def _plan(self) -> ScanPlan:
        path = self.options.get("path")
        if not path:
            raise ValueError("lance: the option 'path' is missing")
        asked = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        version = self.options.get("version")
        with_address = self.options.get("row_address", "false").lower() == "true"
        return ScanPlan.pin(path, asked, int(version) if version else None, with_address)


@dataclass(frozen=True)
class ScanPlan:
    """One version of a table and the columns to read: the same for every task of a query."""

    path: str
    version: int
    columns: tuple[str, ...]
    with_address: bool

    @classmethod
    def pin(cls, path: str, columns: Sequence[str], version: int | None, with_address: bool) -> ScanPlan:
        from imagelake.lance import open_path

        dataset = open_path(path, version)
        names = [f.name for f in dataset.schema if not _is_blob(f.type)] if not columns else list(columns)
        missing = [name for name in names if name not in dataset.schema.names]
        if missing:
            raise ValueError(f"lance: {path} has no column {', '.join(missing)}; it has {', '.join(dataset.schema.names)}")
        return cls(path, int(dataset.version), tuple(names), with_address)

    def dataset(self) -> Any:
        from imagelake.lance import open_path

        return open_path(self.path, self.version)

    def fragment_ids(self) -> list[int]:
        return [fragment.fragment_id for fragment in self.dataset().get_fragments()]

    def read(self, fragment_id: int, where: str | None = None) -> Iterator[pa.RecordBatch]:
        """The live rows of one fragment, in types that Spark accepts."""
        dataset, schema = self.dataset(), self.spark_schema()
        scanner = dataset.scanner(
            columns=list(self.columns),
            filter=where,
            fragments=[dataset.get_fragment(fragment_id)],
            batch_size=BATCH_ROWS,
            blob_handling="all_binary",
            with_row_address=self.with_address,
        )
        for batch in scanner.to_batches():
            yield pa.RecordBatch.from_arrays([_widened(batch.column(f.name), f.type) for f in schema], schema=schema)

    def spark_schema(self) -> pa.Schema:
        schema = self.dataset().schema
        fields = [pa.field(name, spark_type(schema.field(name).type)) for name in self.columns]
        return pa.schema([*fields, pa.field(ROW_ADDRESS, pa.int64())] if self.with_address else fields)


@dataclass
class FragmentPartition(ds.InputPartition):
    fragment_id: int


@dataclass
class LanceReader(ds.DataSourceReader):
    """One task a fragment. Filters that Lance can state exactly are pushed down; Spark applies the rest."""

    plan: ScanPlan
    where: list[str] = field(default_factory=list)

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:
        for condition in filters:
            text = to_sql(condition)
            if text is None or ROW_ADDRESS in text:
                yield condition
            else:
                self.where.append(text)

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [FragmentPartition(fragment_id) for fragment_id in self.plan.fragment_ids()]

    def read(self, partition: ds.InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FragmentPartition):
            return iter(())  # Spark's way to read a table without a partition
        return self.plan.read(partition.fragment_id, " AND ".join(f"({text})" for text in self.where) or None)


def frame(spark: SparkSession, plan: ScanPlan) -> DataFrame:
    """The rows of `plan` for a stage: one task a fragment, in the Python workers that run already.

    The data source is for people's SQL: it pushes filters down, but each query of it starts Python processes to be planned.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from plan.read(ids[number])

    ids = plan.fragment_ids()
    if not ids:
        return spark.createDataFrame(plan.spark_schema().empty_table())
    return spark.range(0, len(ids), 1, len(ids)).mapInArrow(read, from_arrow_schema(plan.spark_schema()))


def to_sql(condition: ds.Filter) -> str | None:
    """The filter in Lance's SQL, None when it can't be stated exactly."""
    if type(condition) in COMPARISONS:
        literal = _literal(condition.value)  # type: ignore[attr-defined]
        return literal and f"{_column(condition.attribute)} {COMPARISONS[type(condition)]} {literal}"  # type: ignore[attr-defined]
    if isinstance(condition, ds.In):
        literals = [_literal(value) for value in condition.value]
        known = [literal for literal in literals if literal]
        return f"{_column(condition.attribute)} IN ({', '.join(known)})" if known and len(known) == len(literals) else None
    if isinstance(condition, ds.IsNull):
        return f"{_column(condition.attribute)} IS NULL"
    if isinstance(condition, ds.IsNotNull):
        return f"{_column(condition.attribute)} IS NOT NULL"
    if isinstance(condition, ds.Not):
        child = to_sql(condition.child)
        return child and f"NOT ({child})"
    return None


def _column(path: tuple[str, ...]) -> str:
    return ".".join(f"`{part}`" for part in path)


def _literal(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return f"date '{value.isoformat()}'"
    return None


def _is_blob(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark accepts for a Lance type."""
    if _is_blob(kind):  # first: an extension type can't be looked up in a dict
        return pa.binary()
    widened = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    if kind in widened:
        return widened[kind]
    if kind == pa.float16():
        return pa.float32()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, spark_type(f.type)) for f in kind])
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz)
    return kind


def _widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
