"""The index of dedup: the pictures that were judged, in buckets by picture, so that new samples join it without moving it.

    <lake>/picture_index/current.json     what holds: folders, the ingest batches in them, and what they rest on
    <lake>/picture_index/<folder>/        bucketed Parquet, written once; a folder that current.json does not name does not exist

Spark knows how a table is bucketed from its catalogue only. There is none that outlives a session here: each session declares the table
again, with the committed folders as its partitions.
"""

from __future__ import annotations

import heapq
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from imagelake import columns as C
from imagelake.storage import write_atomic

# Grain: one sample that was a candidate. picture: the same number for all copies of a picture, by its hash or, where that says nothing, by
# its bytes; phash, phash_black and phash_version are null then. apart: its source was declared to be deduplicated.
SCHEMA = pa.schema(
    [
        (C.PICTURE, pa.int64()),
        (C.IMAGE_ID, pa.string()),
        (C.SOURCE, pa.string()),
        (C.SHA256, pa.string()),
        (C.BYTE_SIZE, pa.int64()),
        (C.WIDTH, pa.int32()),
        (C.HEIGHT, pa.int32()),
        ("apart", pa.bool_()),
        (C.PHASH, pa.int64()),
        (C.PHASH_BLACK, pa.int64()),
        (C.PHASH_VERSION, pa.int32()),
    ]
)

FOLDER = "picture_index"
CURRENT = "current.json"
MIN_BUCKETS, MAX_BUCKETS = 4, 8192
ROWS_PER_BUCKET = 500_000
# A folder that nothing names may be one that a run is writing now.
ORPHAN_AFTER_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Index:
    """What is committed. basis: digest of what the rows rest on besides the samples: dedup may go on from them only where it is the same.

    duplicates_version: the version of the table duplicates that says the same as these rows.
    """

    basis: str
    phash_version: int | None
    buckets: int
    folders: tuple[str, ...]
    batches: tuple[str, ...]
    rows: int
    duplicates_version: int


def current(lake: Path) -> Index | None:
    """The index that holds, None while there is none."""
    try:
        body = json.loads((lake / FOLDER / CURRENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
    return Index(**fields)


def commit(lake: Path, index: Index) -> None:
    write_atomic(lake / FOLDER / CURRENT, json.dumps(asdict(index)).encode())


def buckets_for(rows: int) -> int:
    """A power of two, so that a bucket of a large index has some half a million rows, 100 MB."""
    return min(MAX_BUCKETS, max(MIN_BUCKETS, 1 << (rows // ROWS_PER_BUCKET).bit_length()))


def write(members: DataFrame, lake: Path, buckets: int) -> str:
    """Write rows as a folder that nothing names yet; returns its name. One file a bucket, sorted by picture."""
    name = f"part-{secrets.token_hex(8)}"
    with _name("picture_index_part") as table:
        rows = members.select(*SCHEMA.names).repartition(buckets, C.PICTURE).write.format("parquet").mode("errorifexists")
        rows.bucketBy(buckets, C.PICTURE).sortBy(C.PICTURE).option("path", str(_folder(lake, name))).saveAsTable(table)
        members.sparkSession.sql(f"DROP TABLE {table}")
    return name


def frame(spark: SparkSession, lake: Path, folders: Sequence[str], buckets: int) -> DataFrame:
    """The rows of `folders`. Grouping by picture, and joining on it with what has as many buckets, moves none of them."""
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in from_arrow_schema(SCHEMA))
    with _name("picture_index") as table:
        spark.sql(
            f"CREATE TABLE {table} ({columns}, folder STRING) USING parquet PARTITIONED BY (folder) "
            f"CLUSTERED BY ({C.PICTURE}) SORTED BY ({C.PICTURE}) INTO {buckets} BUCKETS LOCATION '{_quoted(lake)}'"
        )
        for folder in folders:
            spark.sql(f"ALTER TABLE {table} ADD PARTITION (folder='{folder}') LOCATION '{_quoted(lake, folder)}'")
    return spark.table(table).drop("folder")


def count_rows(lake: Path, folder: str) -> int:
    """Rows of a folder, by the footers of its files."""
    return int(ds.dataset(_folder(lake, folder), SCHEMA, "parquet").count_rows())


@contextmanager
def _name(prefix: str) -> Iterator[str]:
    yield f"{prefix}_{secrets.token_hex(6)}"


def _folder(lake: Path, name: str = "") -> Path:
    """Absolute: a relative path of a table is relative to Spark's warehouse."""
    return (lake / FOLDER / name).resolve()


def _quoted(lake: Path, name: str = "") -> str:
    return str(_folder(lake, name)).replace("\\", "\\\\").replace("'", "\\'")


def compact(spark: SparkSession, lake: Path) -> Index | None:
    """Make one folder of many, bucket by bucket, without a shuffle; returns the index, None when there was nothing to do."""
    index = current(lake)
    if index is None or len(index.folders) < 2:
        return None
    name = write(frame(spark, lake, index.folders, index.buckets), lake, index.buckets)
    compacted = replace(index, folders=(name,))
    commit(lake, compacted)
    return compacted


def orphans(lake: Path, older_than_seconds: float = ORPHAN_AFTER_SECONDS) -> list[Path]:
    """The folders that current.json does not name and that have been there for so long."""
    index = current(lake)
    named = set(index.folders) if index else set()
    folders = [path for path in sorted((lake / FOLDER).glob("part-*")) if path.name not in named]
    return [path for path in folders if time.time() - path.stat().st_mtime >= older_than_seconds]


def nearest(lake: Path, index: Index, sha256: str, phash: int | None, phash_black: int | None, count: int) -> list[dict[str, Any]]:
    """The rows of the index that are most like a picture: `distance` in bits of its hash (on white or on black, the larger), nearest first.

    Identical bytes are at distance 0, and all that can be found of a picture without a usable hash (phash None). Reads every hash, in
    batches: some seconds for a hundred million.
    """
    names = [C.IMAGE_ID, C.SOURCE, C.SHA256, C.WIDTH, C.HEIGHT, C.PHASH, C.PHASH_BLACK]
    white, black = np.int64(phash or 0), np.int64((phash if phash_black is None else phash_black) or 0)
    found: list[tuple[int, str, dict[str, Any]]] = []
    for folder in index.folders:
        for batch in ds.dataset(lake / FOLDER / folder, format="parquet").to_batches(columns=names):
            distances = np.full(len(batch), 65, np.int64)
            if phash is not None:
                comparable = batch[C.PHASH].is_valid().to_numpy(zero_copy_only=False)
                hashes = (batch[name].fill_null(0).to_numpy() for name in (C.PHASH, C.PHASH_BLACK))
                # Unsigned: of a negative number bitwise_count counts the bits of the positive one.
                bits = np.maximum(
                    *(np.bitwise_count((known ^ own).view(np.uint64)) for known, own in zip(hashes, (white, black), strict=True))
                )
                distances[comparable] = bits[comparable]
            distances[np.asarray(batch[C.SHA256].to_pylist(), object) == sha256] = 0
            for place in np.argsort(distances, kind="stable")[:count]:
                if distances[place] <= 64:
                    row = batch.slice(int(place), 1).to_pylist()[0]
                    found.append((int(distances[place]), row[C.IMAGE_ID], row))
        found = heapq.nsmallest(count, found, key=lambda entry: entry[:2])
    return [{"distance": distance, **row} for distance, _, row in found]
