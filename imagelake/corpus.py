"""Layout of a corpus on disk: where its parts lie, and release.json, which says what it was made from.

    <corpus>/<tier>/<key>/index.json                    names the shards of one bucket
    <corpus>/<tier>/<key>/<export_id>/shard.00000.mds
    <corpus>/rows/<export_id>.parquet                   a file, or a folder of Parquet files: one row a sample, ROWS_SCHEMA
    <corpus>/release.json                               written last
    <corpus>/releases/<exports>-<digest>.release        what release.json was before; not named .json, which readers may take for an index

This module needs neither Spark nor streaming.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from imagelake import mds
from imagelake.config import digest_of
from imagelake.errors import ConfigError
from imagelake.storage import write_atomic

FORMAT_VERSION = 1
RELEASE = "release.json"
RELEASES = "releases"
ROWS = "rows"
SHARD_SUFFIX = ".mds"

# Grain: one sample of the corpus. shard is relative to the bucket's folder, index the place of the sample in it.
ROWS_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("tier", pa.int32(), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
    ]
)

# What an export writes of each sample: its place, and what two corpora that both have it are compared by. picture: xxhash64 of the
# original's sha256; captions: xxhash64 of each text, in the order of `caption_columns`. Null where an older export wrote none.
EXPORTED_SCHEMA = pa.schema(
    [
        *ROWS_SCHEMA,
        pa.field("source", pa.string()),
        pa.field("picture", pa.int64()),
        pa.field("captions", pa.list_(pa.int64())),
    ]
)

_BUCKET = re.compile(r"[1-9][0-9]*/[0-9]+\.[0-9]{3}")
_EXPORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BucketSummary(Frozen):
    """What a release holds of one bucket: samples, shards, bytes of all shards, and a digest of its index entries.

    The digest covers each shard's hash, so that a release names its bytes. An empty one is not checked.
    """

    rows: int = Field(ge=0)
    shards: int = Field(ge=0)
    bytes: int = Field(ge=0)
    index_digest: str = ""

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]]) -> Self:
        """Summary of the shard entries of one index.json."""
        return cls(
            rows=sum(entry["samples"] for entry in entries),
            shards=len(entries),
            bytes=sum(entry["raw_data"]["bytes"] for entry in entries),
            index_digest=digest_of(list(entries)),
        )


class Release(Frozen):
    """release.json: what a corpus was made from, and what it holds. `buckets` is keyed "<tier>/<key>", `columns` name -> MDS encoding.

    `created_from`: versions of the curated table, and of the tables that it was curated from.
    """

    format_version: int = FORMAT_VERSION
    release: str = ""
    created_from: dict[str, int | str | None]
    config_digest: str
    rows: int = Field(ge=0)
    columns: dict[str, str]
    captions: tuple[str, ...]
    buckets: dict[str, BucketSummary]
    exports: tuple[str, ...]
    jpeg_quality: int = Field(default=92, ge=1, le=100)

    @field_validator("format_version")
    @classmethod
    def _version(cls, version: int) -> int:
        if version != FORMAT_VERSION:
            raise ValueError(f"this version of imagelake reads format {FORMAT_VERSION} only")
        return version

    @field_validator("buckets")
    @classmethod
    def _buckets(cls, buckets: dict[str, BucketSummary]) -> dict[str, BucketSummary]:
        for name in buckets:
            if not _BUCKET.fullmatch(name):
                raise ValueError(f"{name!r} is not <tier>/<aspect ratio>, as 512/1.000")
        return dict(sorted(buckets.items(), key=lambda item: bucket_sort_key(item[0])))

    @field_validator("exports")
    @classmethod
    def _exports(cls, exports: tuple[str, ...]) -> tuple[str, ...]:
        for name in exports:
            if not _EXPORT.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an export")
        return exports

    def digest(self) -> str:
        """16 hex digits over all but `release` itself: same content, same digest."""
        return digest_of(self.model_dump(mode="json", exclude={"release"}))

    def sealed(self) -> Self:
        """This release with its digest filled in, as it is written."""
        return self.model_copy(update={"release": self.digest()})

    def to_json(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def caption_columns(columns: Iterable[str]) -> list[str]:
    """Those of a corpus's columns that hold captions, sorted."""
    return sorted(name for name in columns if name == "caption" or name.startswith("caption_"))


def is_released(corpus: Path) -> bool:
    """Whether an export into this folder ever ended well; `read_release` gives what it published."""
    return (Path(corpus) / RELEASE).is_file()


def read_release(corpus: Path) -> Release:
    """The release of a corpus folder. Raises ConfigError when the folder is not a corpus or its release.json is not readable as one."""
    corpus = Path(corpus)
    if not corpus.is_dir():
        raise ConfigError(f"{corpus}: no such folder")
    if not (corpus / RELEASE).exists():
        raise ConfigError(f"{corpus}: not a corpus: it has no {RELEASE} (an export that ended well writes it)")
    return read_release_file(corpus / RELEASE)


def read_release_file(path: Path) -> Release:
    """A release.json, or one that was. Raises ConfigError when it is not readable as one."""
    try:
        return Release.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{path}: not a release: {faults}") from error


def write_release(corpus: Path, release: Release) -> Release:
    """Seal and write release.json, atomically; returns what was written. It is the last write of an export.

    The release that it replaces is kept below releases/.
    """
    path, sealed = Path(corpus) / RELEASE, release.sealed()
    if path.is_file() and path.read_bytes() != sealed.to_json():
        before = read_release_file(path)
        write_atomic(former_release_path(corpus, before), path.read_bytes())
    write_atomic(path, sealed.to_json())
    return sealed


def former_release_path(corpus: Path, release: Release) -> Path:
    return Path(corpus) / RELEASES / f"{len(release.exports):05}-{release.release}.release"


def bucket_name(tier: int, key: str) -> str:
    """How release.json and reports name a bucket: "512/1.000"."""
    return f"{tier}/{key}"


def split_bucket(name: str) -> tuple[int, str]:
    """(tier, key) of a bucket's name. Raises ValueError for what is none."""
    if not _BUCKET.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a bucket, as 512/1.000")
    tier, key = name.split("/")
    return int(tier), key


def is_bucket(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None


def bucket_sort_key(name: str) -> tuple[int, str]:
    """Order of buckets everywhere: by tier, then from tall to wide."""
    return split_bucket(name)


def bucket_dir(corpus: Path, tier: int, key: str) -> Path:
    return Path(corpus) / str(tier) / key


def shard_basename(export_id: str, number: int) -> str:
    """How an index names the n-th shard of an export: one folder deep."""
    return f"{export_id}/shard.{number:05}{SHARD_SUFFIX}"


def rows_path(corpus: Path, export_id: str) -> Path:
    """The rows of one export: a Parquet file, or a folder of them."""
    return Path(corpus) / ROWS / f"{export_id}.parquet"


def rows_files(corpus: Path, export_id: str) -> list[Path]:
    """The Parquet files that hold the rows of an export, sorted; [] when there is none."""
    path = rows_path(corpus, export_id)
    if path.is_dir():
        return sorted(file for file in path.rglob("*.parquet") if file.is_file() and not file.name.startswith((".", "_")))
    return [path] if path.is_file() else []


def published_buckets(corpus: Path) -> list[str]:
    """Names of the bucket folders that have an index.json, sorted, whatever the release says."""
    found = []
    for index in Path(corpus).glob(f"*/*/{mds.INDEX}"):
        name = f"{index.parent.parent.name}/{index.parent.name}"
        if _BUCKET.fullmatch(name):
            found.append(name)
    return sorted(found, key=bucket_sort_key)
