"""Rows and tables for tests: samples with any facts, curated tables without a decoder, plans without images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from imagelake import columns as C
from imagelake import delta, lance, tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sample(image_id: str, **changes: Any) -> dict[str, Any]:
    """A readable row of samples, 800×600, whose picture and bytes nobody else has; `changes` replaces columns."""
    digest = hashlib.sha256(image_id.encode()).hexdigest()
    row: dict[str, Any] = dict.fromkeys(tables.SAMPLES.schema.names)
    row |= {
        C.IMAGE_ID: image_id,
        C.SOURCE: "made",
        C.SOURCE_KEY: f"{image_id}.jpg",
        C.SOURCE_URI: f"file:///made/{image_id}.jpg",
        C.IMAGE: f"bytes of {image_id}".encode(),
        C.SHA256: digest,
        C.BYTE_SIZE: 1000,
        C.FORMAT: "jpeg",
        C.WIDTH: 800,
        C.HEIGHT: 600,
        C.EXIF_ORIENTATION: 1,
        C.MODE: "RGB",
        C.PHASH: int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True),
        C.PHASH_VERSION: 1,
        C.IS_FLAT: False,
        C.CAPTIONS: {},
        C.LICENSE: "CC0-1.0",
        C.TRUST: [],
        C.INGEST_RUN: "run",
    }
    return row | changes


def samples_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a frame with the schema of samples."""
    names = tables.SAMPLES.schema.names
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], delta.spark_schema(tables.SAMPLES))


def table_frame(spark: SparkSession, table: tables.Table, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a frame with the schema of `table`; columns that a row lacks are null."""
    names = table.schema.names
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], delta.spark_schema(table))


def curated(image_id: str, image: bytes | None = None, **changes: Any) -> dict[str, Any]:
    """A row of curated, 512×512; `image` need not be a JPEG where nobody looks."""
    data = image if image is not None else f"picture {image_id}".encode() * 50
    row: dict[str, Any] = {
        C.IMAGE_ID: image_id,
        C.IMAGE: data,
        C.WIDTH: 512,
        C.HEIGHT: 512,
        C.TIER: 512,
        C.BUCKET: "1.000",
        C.ORIGINAL_WIDTH: 800,
        C.ORIGINAL_HEIGHT: 790,
        C.BYTE_SIZE: len(data),
        C.SHA256: hashlib.sha256(data).hexdigest(),
        C.PHASH: 7,
        C.SOURCE: "made",
        C.SOURCE_KEY: f"{image_id}.jpg",
        C.LICENSE: "CC0-1.0",
        C.ATTRIBUTION: None,
        C.CAPTIONS: [{"name": "alt", "text": f"alt of {image_id}"}],
    }
    return row | changes


def append_curated(lake: Path, rows: Sequence[Mapping[str, Any]], batch: str, fragments: int = 1) -> int:
    """Commit rows to the curated table in `fragments` data files; returns the version."""
    lance.create(lake, tables.CURATED)
    staged = []
    for number in range(fragments):
        staged += lance.stage_rows(lake, tables.CURATED, rows[number::fragments])
    return lance.commit_append(lake, tables.CURATED, staged, batch)


def images_by_id(lake: Path) -> dict[str, str]:
    """sha256 of the stored bytes of every live row, fetched as readers fetch them."""
    version = lance.version(lake, tables.CURATED)
    dataset = lance.open_table(lake, tables.CURATED)
    addresses = dataset.scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()
    reader = lance.BlobReader.open(lake, tables.CURATED, C.IMAGE, version)
    blobs = reader.fetch(addresses[lance.ROW_ADDRESS].to_numpy())
    return {key: hashlib.sha256(data).hexdigest() for key, data in zip(addresses[C.IMAGE_ID].to_pylist(), blobs, strict=True)}


def annotations(ids: Sequence[str], **columns: Sequence[Any]) -> pa.Table:
    """image_id and one column a keyword."""
    return pa.table({C.IMAGE_ID: pa.array(ids, pa.string()), **{name: pa.array(values) for name, values in columns.items()}})


def executed_plan(df: DataFrame) -> str:
    """The physical plan in Spark's formatted form: every operator with its input and output columns."""
    return str(df._jdf.queryExecution().explainString(df._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")))


def exchanged_columns(df: DataFrame) -> set[str]:
    """Names of the columns that any Exchange of the physical plan carries. Empty when there is no Exchange."""
    import re

    found: set[str] = set()
    for block in executed_plan(df).split("\n\n"):
        if re.match(r"\s*\(\d+\) Exchange", block):
            for line in re.findall(r"^(?:Input|Output) \[\d+\]: \[(.*)\]$", block, re.MULTILINE):
                found |= {name.strip().split("#")[0] for name in line.split(",")}
    return found
