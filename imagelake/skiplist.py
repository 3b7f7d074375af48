"""Skip lists: which samples of published shards may not be trained on, while the shards stay as they are.

    <corpus>/skips/current                      the digest of the generation that holds, in one line
    <corpus>/skips/<digest>.pack                one generation, immutable: the list of every shard that has one
    <corpus>/skips/<digest>.parquet             the same, one row a skipped sample, with its reasons (ROWS_SCHEMA)
    <corpus>/<tier>/<key>/<shard>.skip          the list of one shard, beside it, for readers that know one folder only

A pack's digest is of its bytes, so its name is its proof. A list is bound to the samples and the bytes of its shard: one made for another
file is refused, never applied. A shard without a list skips nothing. This module needs neither Spark nor streaming.

List, little endian: "ILSKIP01" · uint32 samples · uint32 skipped · uint64 shard bytes · uint64 generation · uint32 index, ascending, for
each skipped sample · uint32 CRC-32 of all before. Pack: for each shard uint16 length of its name · name ("512/1.000/<basename>") · list.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from imagelake import corpus
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.storage import write_atomic

FOLDER = "skips"
CURRENT = "current"
SUFFIX = ".skip"
MAGIC = b"ILSKIP01"

# Grain: one skipped sample of a corpus. reasons: why, at least one.
ROWS_SCHEMA = pa.schema([*corpus.ROWS_SCHEMA, pa.field("reasons", pa.list_(pa.string()), nullable=False)])

_HEAD = struct.Struct("<8sIIQQ")
_CRC = struct.Struct("<I")
_NAME = struct.Struct("<H")
_DIGEST = re.compile(r"[0-9a-f]{32}")


class SkipListError(ImagelakeError):
    """A list that is torn, foreign, or of another shard. Nothing may be trained on with it."""


@dataclass(frozen=True)
class SkipList:
    """The skipped samples of one shard. skipped: int64, ascending, each below `samples`."""

    samples: int
    shard_bytes: int
    generation: int
    skipped: npt.NDArray[np.int64]

    def encode(self) -> bytes:
        head = _HEAD.pack(MAGIC, self.samples, len(self.skipped), self.shard_bytes, self.generation)
        body = head + self.skipped.astype("<u4").tobytes()
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes, name: str) -> Self:
        """Raises SkipListError that says what is wrong with the list `name`."""
        if len(data) < _HEAD.size + _CRC.size:
            raise SkipListError(f"{name}: a torn skip list of {len(data)} bytes")
        magic, samples, count, shard_bytes, generation = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise SkipListError(f"{name}: no skip list of this version")
        if len(data) != _HEAD.size + 4 * count + _CRC.size or zlib.crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise SkipListError(f"{name}: a torn skip list: its length or its checksum is off")
        skipped = np.frombuffer(data, "<u4", count, _HEAD.size).astype(np.int64)
        if count and (skipped[-1] >= samples or (np.diff(skipped) <= 0).any()):
            raise SkipListError(f"{name}: its indices are not ascending ones below {samples}")
        return cls(samples, shard_bytes, generation, skipped)

    def require_shard(self, name: str, samples: int, shard_bytes: int) -> None:
        """Raises SkipListError when the list was made for another shard than the one of `samples` and `shard_bytes`."""
        if (self.samples, self.shard_bytes) != (samples, shard_bytes):
            made, found = f"{self.samples} samples and {self.shard_bytes} bytes", f"{samples} and {shard_bytes}"
            raise SkipListError(f"{name}: its skip list was made for a shard of {made}, this one has {found}")


@dataclass(frozen=True)
class Generation:
    """All skip lists of a corpus at one time, by the shard's name: "512/1.000/00000-ab12cd34/shard.00000.mds"."""

    digest: str
    number: int
    lists: Mapping[str, SkipList]

    @property
    def skipped(self) -> int:
        return sum(len(found.skipped) for found in self.lists.values())

    @cached_property
    def by_bucket(self) -> Counter[str]:
        """Skipped samples of each bucket, "512/1.000": 0 for one that has none."""
        counts: Counter[str] = Counter()
        for name, found in self.lists.items():
            counts["/".join(name.split("/", 2)[:2])] += len(found.skipped)
        return counts


NOTHING = Generation("", 0, {})


def pack(lists: Mapping[str, SkipList]) -> bytes:
    """The same lists give the same bytes, in whatever order they come."""
    parts = []
    for name, found in sorted(lists.items()):
        encoded = name.encode()
        parts += [_NAME.pack(len(encoded)), encoded, found.encode()]
    return b"".join(parts)


def digest_of_pack(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def unpack(data: bytes, name: str) -> dict[str, SkipList]:
    """Raises SkipListError for what is no pack."""
    lists, place = {}, 0
    while place < len(data):
        try:
            (length,) = _NAME.unpack_from(data, place)
            shard = data[place + _NAME.size : place + _NAME.size + length].decode()
            start = place + _NAME.size + length
            count = _HEAD.unpack_from(data, start)[2]
        except (struct.error, UnicodeDecodeError):
            raise SkipListError(f"{name}: a torn pack of skip lists") from None
        place = start + _HEAD.size + 4 * count + _CRC.size
        lists[shard] = SkipList.decode(data[start:place], f"{name}: {shard}")
    return lists


def current_digest(root: Path) -> str | None:
    """The digest of the generation that holds, None while there is none. Raises SkipListError when the pointer is not one."""
    path = root / FOLDER / CURRENT
    try:
        digest = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        digest = ""
    if not _DIGEST.fullmatch(digest):
        raise SkipListError(f"{path}: names no generation of skip lists")
    return digest


def read(root: Path, digest: str = CURRENT) -> Generation:
    """A generation of a corpus, "current" or by its digest; NOTHING where none was ever published.

    Raises ConfigError for a digest that this corpus does not have, SkipListError for a pack that is not what its name says.
    """
    chosen = current_digest(root) if digest == CURRENT else digest
    if chosen is None:
        return NOTHING
    path = root / FOLDER / f"{chosen}.pack"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if digest == CURRENT:
            raise SkipListError(f"{path} is missing, and {CURRENT} names it") from None
        raise ConfigError(f"skips: {root} has no generation {chosen!r}; it has {', '.join(digests(root)) or 'none'}") from None
    if digest_of_pack(data) != chosen:
        raise SkipListError(f"{path}: its bytes are not those of its name")
    lists = unpack(data, str(path))
    return Generation(chosen, max((found.generation for found in lists.values()), default=0), lists)


def digests(root: Path) -> list[str]:
    """The generations that a corpus has, sorted by name."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.pack"))


def reasons_path(root: Path, digest: str) -> Path:
    """The table of a generation: a folder of Parquet files, ROWS_SCHEMA."""
    return root / FOLDER / f"{digest}.parquet"


def sidecar(root: Path, name: str) -> Path:
    return root / f"{name}{SUFFIX}"


def write_pack(root: Path, lists: Mapping[str, SkipList]) -> str:
    """Write a generation that nothing names yet; returns its digest."""
    data = pack(lists)
    digest = digest_of_pack(data)
    write_atomic(root / FOLDER / f"{digest}.pack", data)
    return digest


def released(before: Mapping[str, SkipList], now: Mapping[str, SkipList]) -> int:
    """How many samples that `before` skips `now` does not."""
    return sum(len(np.setdiff1d(found.skipped, now[name].skipped) if name in now else found.skipped) for name, found in before.items())


def publish(root: Path, digest: str) -> Generation:
    """Make a written generation the one that holds, and return it: the sidecars, then the pointer. Safe to repeat after an interruption.

    In between, readers of sidecars and readers of the pointer may see two generations, each of them whole.
    """
    generation = read(root, digest)
    for name, found in generation.lists.items():
        data, path = found.encode(), sidecar(root, name)
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
    for path in sidecars(root):
        if path.relative_to(root).as_posix().removesuffix(SUFFIX) not in generation.lists:
            path.unlink()
    write_atomic(root / FOLDER / CURRENT, f"{digest}\n".encode())
    return generation


def sidecars(root: Path) -> Iterable[Path]:
    """The lists that lie beside shards, sorted."""
    return sorted(root.glob(f"*/*/*/*{corpus.SHARD_SUFFIX}{SUFFIX}"))


def places(root: Path, image_id: str) -> list[dict[str, Any]]:
    """Each place of a sample in the corpus, as corpus.ROWS_SCHEMA, and the `reasons` why it is skipped there, [] where it is not."""
    filters = [("image_id", "==", image_id)]
    release, generation = corpus.read_release(root), read(root)
    files = [file for export in release.exports for file in corpus.rows_files(root, export)]
    names = corpus.ROWS_SCHEMA.names
    rows = [row for file in files for row in pq.read_table(file, columns=names, filters=filters, partitioning=None).to_pylist()]
    table = pq.read_table(reasons_path(root, generation.digest), filters=filters) if generation.digest else ROWS_SCHEMA.empty_table()
    why = {(row["tier"], row["bucket"], row["shard"], row["index"]): row["reasons"] for row in table.to_pylist()}
    return [row | {"reasons": why.get((row["tier"], row["bucket"], row["shard"], row["index"]), [])} for row in rows]


def explain(root: Path, image_id: str) -> list[str]:
    """A line for each place of a sample in the corpus: skipped and why, or not. Raises ConfigError when it is in no exported shard."""
    found = places(root, image_id)
    if not found:
        raise ConfigError(
            f"{image_id}: no sample of {root}. If its lake knows it, `imagelake lineage {image_id} --set lake.root=…` says why it is none"
        )
    number = read(root).number
    lines = []
    for row in found:
        state = f"skipped since generation {number} or before: {', '.join(row['reasons'])}" if row["reasons"] else "not skipped"
        lines.append(f"{row['tier']}/{row['bucket']}/{row['shard']}, sample {row['index']}: {state}")
    return lines
