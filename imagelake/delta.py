"""Delta tables: read at a version, append once, replace one partition once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from delta.tables import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from imagelake.deltalog import version as version
from imagelake.tables import Table

# Images are large and incompressible: small row groups bound the memory of writers and of readers that take single rows.
IMAGE_PARQUET = {
    "parquet.block.size": str(64 << 20),
    "parquet.block.size.row.check.min": "8",
    "parquet.page.size.row.check.min": "4",
    "parquet.page.size.row.check.max": "64",
}


def spark_schema(table: Table) -> StructType:
    """The declared schema, as Spark has it."""
    return from_arrow_schema(table.schema)


def read(spark: SparkSession, lake: Path, table: Table, at: int | None = None) -> DataFrame:
    """The table at version `at` (default: newest); empty, with its schema, where it does not exist yet."""
    at = version(lake, table) if at is None else at
    if at < 0:
        # From Arrow it is a relation known to be empty, which the optimizer takes out of joins.
        return spark.createDataFrame(table.schema.empty_table())
    return spark.read.format("delta").option("versionAsOf", at).load(str(lake / table.path))


def append(df: DataFrame, lake: Path, table: Table, *, batch: str, parquet: Mapping[str, str] | None = None) -> int:
    """Append `df` unless `batch` was appended before; returns the version after it. `parquet`: settings of the Parquet writer.

    The pair (batch, 1) is Delta's transaction identifier: a repeated append of the same batch is skipped before it runs.
    """
    transaction = {"txnAppId": f"{table.name}:{batch}", "txnVersion": "1"}
    with _settings(df.sparkSession, parquet or {}):
        _write(df, lake, table, transaction, mode="append")
    return version(lake, table)


@contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Session settings while the block runs. Delta hands none of its write options on to Parquet; Hadoop's settings are the session's."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)


def replace(df: DataFrame, lake: Path, table: Table, *, where: str | None = None) -> int:
    """Make `df` the content of the partition `where` (of the whole table when None); returns the version after.

    Content that is there already is left alone, so that a repeat writes nothing.
    """
    spark = df.sparkSession
    current = read(spark, lake, table)
    if where is not None:
        current = current.where(where)
    if version(lake, table) < 0:
        _write(df, lake, table, {}, mode="overwrite")
        return version(lake, table)
    df = df.persist(StorageLevel.DISK_ONLY)
    try:
        if content_digest(df) != content_digest(current):
            _write(df, lake, table, {} if where is None else {"replaceWhere": where}, mode="overwrite")
    finally:
        df.unpersist()
    return version(lake, table)


def upsert(df: DataFrame, lake: Path, table: Table) -> int:
    """Put rows in by their key, in place of those that say otherwise, `run_id` aside; returns the version after. The table exists."""
    same_key = " AND ".join(f"old.{name} = new.{name}" for name in table.key)
    differs = " OR ".join(f"NOT old.{name} <=> new.{name}" for name in table.schema.names if name not in ("run_id", *table.key))
    target = DeltaTable.forPath(df.sparkSession, str(lake / table.path)).alias("old")
    target.merge(df.alias("new"), same_key).whenMatchedUpdateAll(differs).whenNotMatchedInsertAll().execute()
    return version(lake, table)


def content_digest(df: DataFrame) -> tuple[int, ...]:
    """Row count and two sums of row hashes: equal for equal content in any order, `run_id` aside."""
    (row,) = df.agg(*digest_columns(name for name in df.columns if name != "run_id")).collect()
    return tuple(map(int, row))


def digest_columns(names: Iterable[str]) -> list[Column]:
    """The aggregates of `content_digest`: integers."""
    columns = [F.col(name) for name in sorted(names)]

    def total(seed: int) -> Column:
        return F.coalesce(F.sum(F.xxhash64(F.lit(seed), *columns).cast("decimal(38,0)")), F.lit(0))

    return [F.count(F.lit(1)).alias("rows"), total(1).alias("digest_a"), total(2).alias("digest_b")]


def _write(df: DataFrame, lake: Path, table: Table, options: Mapping[str, str], mode: str) -> None:
    writer = df.select(*table.schema.names).write.format("delta").mode(mode).options(**options)
    if table.partition_by:
        writer = writer.partitionBy(*table.partition_by)
    writer.save(str(lake / table.path))
