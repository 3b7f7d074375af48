"""Every table of the lake, declared once: name, format, schema, key, grain.

The lake is a folder: Delta tables for what Spark filters and joins, one Lance table for the curated images, JSON for the run ledger (one
file a run, so that stages outside Spark write it too and two writers never meet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from imagelake import columns as C

TEXT_MAP = pa.map_(pa.string(), pa.string())
COUNT_MAP = pa.map_(pa.string(), pa.int64())
# A picture may have several captions of one name: its own and its duplicates'.
NAMED_TEXTS = pa.list_(pa.struct([("name", pa.string()), ("text", pa.string())]))


@dataclass(frozen=True)
class Table:
    """One table: `path` is relative to the lake's root, `grain` says what one row is, `key` what makes it unique."""

    name: str
    path: str
    format: Literal["delta", "lance", "json"]
    schema: pa.Schema
    key: tuple[str, ...]
    grain: str
    partition_by: tuple[str, ...] = ()
    bytes_columns: tuple[str, ...] = ()


SAMPLES = Table(
    name="samples",
    path="samples",
    format="delta",
    key=(C.IMAGE_ID,),
    grain="one record met in a source, readable or not: `defect` is null where the image was read",
    schema=pa.schema(
        [
            (C.IMAGE_ID, pa.string()),
            (C.SOURCE, pa.string()),
            (C.SOURCE_KEY, pa.string()),
            (C.SOURCE_URI, pa.string()),
            (C.IMAGE, pa.binary()),
            (C.SHA256, pa.string()),
            (C.BYTE_SIZE, pa.int64()),
            (C.FORMAT, pa.string()),
            (C.WIDTH, pa.int32()),
            (C.HEIGHT, pa.int32()),
            (C.EXIF_ORIENTATION, pa.int32()),
            (C.MODE, pa.string()),
            (C.PHASH, pa.int64()),
            (C.PHASH_BLACK, pa.int64()),
            (C.PHASH_VERSION, pa.int32()),
            (C.IS_FLAT, pa.bool_()),
            (C.CAPTIONS, TEXT_MAP),
            (C.LICENSE, pa.string()),
            (C.ATTRIBUTION, pa.string()),
            (C.TRUST, pa.list_(pa.string())),
            (C.DEFECT, pa.string()),
            (C.DEFECT_DETAIL, pa.string()),
            (C.INGEST_RUN, pa.string()),
        ]
    ),
    bytes_columns=(C.IMAGE,),
)

SOURCE_FILES = Table(
    name="source_files",
    path="source_files",
    format="delta",
    key=(C.SOURCE, "key"),
    grain="one file of a source that was ingested whole, pinned by size and modification time",
    schema=pa.schema(
        [
            (C.SOURCE, pa.string()),
            ("key", pa.string()),
            ("size_bytes", pa.int64()),
            ("mtime_ns", pa.int64()),
            ("spec_digest", pa.string()),
            (C.INGEST_RUN, pa.string()),
        ]
    ),
)

REJECTS = Table(
    name="rejects",
    path="rejects",
    format="delta",
    key=(C.IMAGE_ID, C.STAGE, C.REASON),
    grain="one reason of one stage why one record of samples is not in the corpus",
    partition_by=(C.STAGE,),
    schema=pa.schema(
        [
            (C.IMAGE_ID, pa.string()),
            (C.SOURCE, pa.string()),
            (C.SOURCE_KEY, pa.string()),
            (C.STAGE, pa.string()),
            (C.REASON, pa.string()),
            (C.DETAIL, pa.string()),
            (C.RUN_ID, pa.string()),
        ]
    ),
)

DUPLICATES = Table(
    name="duplicates",
    path="duplicates",
    format="delta",
    key=(C.IMAGE_ID,),
    grain="one loser: a record whose picture is kept in another record, the keeper",
    schema=pa.schema(
        [
            (C.IMAGE_ID, pa.string()),
            (C.KEEPER_ID, pa.string()),
            (C.GROUP_ID, pa.string()),
            (C.KIND, pa.string()),
            (C.DISTANCE, pa.int32()),
            (C.WON_BY, pa.string()),
            (C.RUN_ID, pa.string()),
        ]
    ),
)

CURATED = Table(
    name="curated",
    path="curated.lance",
    format="lance",
    key=(C.IMAGE_ID,),
    grain="one kept picture: upright RGB JPEG in its bucket's shape, encoded once; annotation columns are added later",
    schema=pa.schema(
        [
            (C.IMAGE_ID, pa.string()),
            (C.IMAGE, pa.binary()),
            (C.WIDTH, pa.int32()),
            (C.HEIGHT, pa.int32()),
            (C.TIER, pa.int32()),
            (C.BUCKET, pa.string()),
            (C.ORIGINAL_WIDTH, pa.int32()),
            (C.ORIGINAL_HEIGHT, pa.int32()),
            (C.BYTE_SIZE, pa.int64()),
            (C.SHA256, pa.string()),
            (C.PHASH, pa.int64()),
            (C.SOURCE, pa.string()),
            (C.SOURCE_KEY, pa.string()),
            (C.LICENSE, pa.string()),
            (C.ATTRIBUTION, pa.string()),
            (C.CAPTIONS, NAMED_TEXTS),
        ]
    ),
    bytes_columns=(C.IMAGE,),
)

RUNS = Table(
    name="runs",
    path="runs",
    format="json",
    key=(C.RUN_ID,),
    grain="one run of one stage that ended, well or not",
    schema=pa.schema(
        [
            (C.RUN_ID, pa.string()),
            (C.STAGE, pa.string()),
            ("status", pa.string()),
            ("started_at", pa.timestamp("us", tz="UTC")),
            ("seconds", pa.float64()),
            ("rows_in", pa.int64()),
            ("kept", pa.int64()),
            ("rejected", COUNT_MAP),
            ("read_versions", COUNT_MAP),
            ("written_versions", COUNT_MAP),
            ("config_digest", pa.string()),
            ("stage_digest", pa.string()),
            ("notes", TEXT_MAP),
            ("error", pa.string()),
        ]
    ),
)

CHECKS = Table(
    name="checks",
    path="checks",
    format="json",
    key=(C.RUN_ID, "check"),
    grain="one rule of sql/checks, as it was found after one run of a stage",
    schema=pa.schema(
        [
            (C.RUN_ID, pa.string()),
            (C.STAGE, pa.string()),
            ("check", pa.string()),
            ("severity", pa.string()),
            ("rule", pa.string()),
            ("holds", pa.bool_()),
            ("first_rows", pa.list_(pa.string())),
            ("checked_at", pa.timestamp("us", tz="UTC")),
        ]
    ),
)

TABLES = (SAMPLES, SOURCE_FILES, REJECTS, DUPLICATES, CURATED, RUNS, CHECKS)


def named(name: str) -> Table:
    """Raises KeyError for a name that is no table."""
    return {table.name: table for table in TABLES}[name]
