"""Shards and indexes in MDS, the format that mosaicml-streaming reads, written with numpy alone.

A shard: uint32 n · uint32 offsets[n + 1] from the start of the file · JSON of the layout · n samples. A sample: uint32 length of each
column of variable size · all columns, in sorted order of their names. Shards are byte for byte those of streaming's MDSWriter; that
library takes seconds to import, so an executor does not.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from imagelake import jpeg
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.storage import sync_folder, write_atomic

SIZE_LIMIT = 1 << 27
HASH = "xxh3_64"
INDEX = "index.json"
OFFSET_BYTES = 4
# Offsets are uint32.
MAX_SHARD_BYTES = 1 << 32
# Below IOV_MAX, the most that one call of writev takes.
PARTS_PER_WRITE = 128

_FIXED_BYTES = {"int": 8}
_VARIABLE = frozenset({"str", "jpeg", "bytes"})


class MdsError(ImagelakeError):
    """A sample or a shard that readers could not use; the message names the shard and the sample's id."""


def layout(columns: Mapping[str, str], size_limit: int = SIZE_LIMIT) -> dict[str, Any]:
    """The layout that each shard and each index entry carries: `columns` is name -> encoding (int, str, jpeg, bytes)."""
    for name, encoding in columns.items():
        if encoding not in _FIXED_BYTES and encoding not in _VARIABLE:
            known = ", ".join(sorted({*_FIXED_BYTES, *_VARIABLE}))
            raise ConfigError(f"MDS column {name!r}: unknown encoding {encoding!r}, one of {known}")
    names = sorted(columns)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [HASH],
        "size_limit": size_limit,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [_FIXED_BYTES.get(columns[name]) for name in names],
    }


def _layout_bytes(columns: Mapping[str, str], size_limit: int) -> bytes:
    return json.dumps(layout(columns, size_limit), sort_keys=True).encode()


def fixed_bytes(columns: Mapping[str, str]) -> int:
    """Bytes of a shard that every sample takes whatever it holds: its offset, the lengths, the ints.

    A sample takes `fixed_bytes(columns)` and the bytes of its variable columns (str as UTF-8), so that sizes are known from column lengths.
    """
    return OFFSET_BYTES + sum(_FIXED_BYTES.get(encoding, 4) for encoding in columns.values())


def variable_columns(columns: Mapping[str, str]) -> list[str]:
    """Names of the columns whose byte length differs by sample, sorted."""
    return sorted(name for name, encoding in columns.items() if encoding not in _FIXED_BYTES)


def sample_size(columns: Mapping[str, str], lengths: Mapping[str, int]) -> int:
    """Bytes that a sample adds to its shard; `lengths` gives the bytes of each variable column (others are ignored)."""
    return fixed_bytes(columns) + sum(lengths[name] for name in variable_columns(columns))


def shard_header_bytes(columns: Mapping[str, str], size_limit: int = SIZE_LIMIT) -> int:
    """Bytes of a shard without samples. Shard bytes = this + the sum of its samples' sizes."""
    return 4 + OFFSET_BYTES + len(_layout_bytes(columns, size_limit))


def write_shard(
    path: Path,
    columns: Mapping[str, str],
    samples: Iterable[Mapping[str, Any]],
    *,
    basename: str,
    shape: tuple[int, int] | None = None,
    size_limit: int = SIZE_LIMIT,
    fsync: bool = True,
) -> dict[str, Any]:
    """Write one shard to `path` and return its entry for index.json, under `basename` (relative to the bucket folder).

    shape: (width, height) that each image and the columns width and height must have. One sample may be larger than size_limit
    (bytes), two may not. Image bytes are written as they are. The file appears whole or not at all; a second call with the same
    samples writes the same bytes. Raises MdsError that names a sample at fault, and leaves no file then.
    """
    encoder = _Encoder(path, columns, shape)
    parts: list[bytes] = []
    sizes: list[int] = []
    total = shard_header_bytes(columns, size_limit)
    for sample in samples:
        encoded = encoder.encode(sample, len(sizes))
        sizes.append(sum(map(len, encoded)))
        parts += encoded
        total += sizes[-1] + OFFSET_BYTES
        if total >= MAX_SHARD_BYTES:
            raise MdsError(f"{path}: shard of 4 GiB or more after {len(sizes)} samples: offsets are 32-bit; lower the shard size")
        if total > size_limit and len(sizes) > 1:
            raise MdsError(f"{path}: {total} bytes after {len(sizes)} samples, more than the size limit of {size_limit}")
    if not sizes:
        raise MdsError(f"{path}: a shard needs at least one sample")
    text = _layout_bytes(columns, size_limit)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    offsets += 4 + offsets.size * OFFSET_BYTES + len(text)
    parts.insert(0, np.uint32(len(sizes)).tobytes() + offsets.astype("<u4").tobytes() + text)
    digest = _write_parts(path, parts, fsync)
    raw = {"basename": basename, "bytes": int(offsets[-1]), "hashes": {HASH: digest}}
    return {"samples": len(sizes), "raw_data": raw, "zip_data": None, **layout(columns, size_limit)}


class _Encoder:
    """Checks a sample and turns it into the byte strings of which it consists."""

    def __init__(self, path: Path, columns: Mapping[str, str], shape: tuple[int, int] | None) -> None:
        self.path = path
        self.names = sorted(columns)
        self.encodings = [columns[name] for name in self.names]
        self.known = frozenset(self.names)
        self.shape = shape
        self.heads = jpeg.HeadReader()
        self.expected = dict(zip(("width", "height"), shape, strict=True)) if shape else {}

    def encode(self, sample: Mapping[str, Any], index: int) -> list[bytes]:
        if sample.keys() != self.known:
            missing, extra = sorted(self.known - sample.keys()), sorted(sample.keys() - self.known)
            raise self._fault(sample, index, f"columns missing: {missing}, columns not asked for: {extra}")
        lengths: list[int] = []
        body: list[bytes] = []
        for name, encoding in zip(self.names, self.encodings, strict=True):
            value = sample[name]
            try:
                datum = self._encode(name, encoding, value)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._fault(sample, index, f"column {name!r} {error}") from error
            if encoding in _VARIABLE:
                lengths.append(len(datum))
            body.append(datum)
        return [np.array(lengths, "<u4").tobytes(), *body]

    def _encode(self, name: str, encoding: str, value: Any) -> bytes:
        if encoding == "str":
            if not isinstance(value, str):
                raise TypeError(f"is {type(value).__name__}, not str")
            if not value and name == "id":
                raise ValueError("is empty")
            return value.encode()
        if encoding == "int":
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"is {type(value).__name__}, not int")
            if self.expected.get(name, value) != value:
                raise ValueError(f"is {value}, but the bucket's is {self.expected[name]}")
            return int(value).to_bytes(8, "little", signed=True)
        if not isinstance(value, bytes):
            raise TypeError(f"is {type(value).__name__}, not bytes")
        if encoding == "jpeg":
            self._check_jpeg(value)
        return value

    def _check_jpeg(self, data: bytes) -> None:
        info = self.heads.parse(data)
        if len(info.components) != 3:
            raise ValueError(f"has {len(info.components)} colour components, not 3")
        if self.shape is not None and (info.width, info.height) != self.shape:
            raise ValueError(f"is {info.width}x{info.height} pixels, but the bucket's shape is {self.shape[0]}x{self.shape[1]}")

    def _fault(self, sample: Mapping[str, Any], index: int, text: str) -> MdsError:
        return MdsError(f"{self.path}: sample {index}, id {sample.get('id')!r}: {text}")


def _write_parts(path: Path, parts: Sequence[bytes], fsync: bool) -> str:
    """Write `parts` one after another under a temporary name, rename, and return the hash of the whole."""
    digest = xxhash.xxh3_64()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            for first in range(0, len(parts), PARTS_PER_WRITE):
                chunk = parts[first : first + PARTS_PER_WRITE]
                # Hashed while the bytes are warm from being copied to the file.
                _write_all(file.fileno(), chunk)
                for part in chunk:
                    digest.update(part)
            if fsync:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if fsync:
        sync_folder(path.parent)
    return digest.hexdigest()


def _write_all(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write all of `parts` without joining them first. A call may write less than it was given: go on with the rest."""
    left: list[bytes | memoryview] = [part for part in parts if part]
    while left:
        written = os.writev(descriptor, left)
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        left = left[done:]
        if written:
            left[0] = memoryview(left[0])[written:]


def write_index(bucket: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Publish the shards of a bucket folder: index.json, atomically. The order of `entries` is the readers' order.

    Raises MdsError when two entries share a basename, or when a basename does not lie in the folder, at most one level deep.
    """
    seen = set()
    for entry in entries:
        basename = entry["raw_data"]["basename"]
        if not is_basename(basename):
            raise MdsError(f"{bucket}: shard name {basename!r} is not inside the bucket, at most one folder deep")
        if basename in seen:
            raise MdsError(f"{bucket}: shard {basename!r} is named twice")
        seen.add(basename)
    write_atomic(bucket / INDEX, json.dumps({"shards": list(entries), "version": 2}, sort_keys=True).encode())


def is_basename(name: str) -> bool:
    """Whether an index may name this shard: inside the bucket folder, at most one folder deep, plain names."""
    parts = name.split("/")
    return len(parts) <= 2 and all(part and not part.startswith(".") for part in parts) and "\\" not in name and "\0" not in name


def read_index(bucket: Path) -> list[dict[str, Any]]:
    """The shard entries of a bucket folder, [] when it was never published. Raises MdsError for a file that is no index."""
    path = bucket / INDEX
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise MdsError(f"{path}: not an index: {error}") from error
    if not isinstance(value, dict) or value.get("version") != 2 or not isinstance(value.get("shards"), list):
        raise MdsError(f"{path}: not an MDS index of version 2")
    shards: list[dict[str, Any]] = value["shards"]
    return shards
