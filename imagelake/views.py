"""SQL views over every table, without bytes: samples, source_files, rejects, duplicates, curated, runs, checks, corpus_rows, skips."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from imagelake import corpus, delta, lance_source, skiplist, tables
from imagelake.config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORPUS_ROWS, SKIPS = "corpus_rows", "skips"
NAMES = (*(table.name for table in tables.TABLES), CORPUS_ROWS, SKIPS)


def register(spark: SparkSession, cfg: Config, *, pushdown: bool = True) -> tuple[str, ...]:
    """Create the views in `spark` and return their names. A table that does not exist yet is an empty view with its schema.

    pushdown: filters reach Lance, which pays for single rows; without, a scan of the whole table starts faster.
    """
    lake = Path(cfg.lake.root)
    for table in tables.TABLES:
        view = _read(spark, lake, table, pushdown)
        view.drop(*table.bytes_columns).createOrReplaceTempView(table.name)
    corpus_rows(spark, Path(cfg.corpus.root)).createOrReplaceTempView(CORPUS_ROWS)
    skips(spark, Path(cfg.corpus.root)).createOrReplaceTempView(SKIPS)
    return NAMES


def _read(spark: SparkSession, lake: Path, table: tables.Table, pushdown: bool) -> DataFrame:
    if table.format == "delta":
        return delta.read(spark, lake, table)
    path = lake / table.path
    schema = delta.spark_schema(table)
    if table.format == "lance" and path.is_dir():
        if pushdown:
            return spark.read.format("lance").option("path", str(path.resolve())).load()
        return lance_source.frame(spark, lance_source.ScanPlan.pin(str(path.resolve()), (), None, with_address=False))
    if table.format == "json" and path.is_dir():
        return spark.read.schema(schema).json(str(path))
    return spark.createDataFrame([], schema)


def corpus_rows(spark: SparkSession, root: Path) -> DataFrame:
    """Rows of the released exports only: what an interrupted export left is not part of the corpus."""
    exports = corpus.read_release(root).exports if corpus.is_released(root) else ()
    schema = from_arrow_schema(corpus.ROWS_SCHEMA)
    if not exports:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(str(corpus.rows_path(root, export_id)) for export_id in exports))


def skips(spark: SparkSession, root: Path) -> DataFrame:
    """The skipped samples of the generation that holds, with their reasons."""
    digest = skiplist.current_digest(root)
    if digest is None:
        return spark.createDataFrame(skiplist.ROWS_SCHEMA.empty_table())
    return spark.read.schema(from_arrow_schema(skiplist.ROWS_SCHEMA)).parquet(str(skiplist.reasons_path(root, digest)))
