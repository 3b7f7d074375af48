"""Reads one MDS shard back, byte by byte and without the writer's code, and names everything that is wrong in it.

A plain function of a task that can be pickled, so that any pool of processes runs it. Each image is decoded at an eighth of its size:
the compressed data are read whole all the same, and a strict decoder refuses data that end early or go on too long.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import xxhash
from PIL import Image

from imagelake import jpeg

UNREADABLE_ID = 0


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where: the more of bucket, shard, index (of the sample in its shard) and id, the nearer."""

    kind: str
    detail: str
    bucket: str | None = None
    shard: str | None = None
    index: int | None = None
    image_id: str | None = None

    def __str__(self) -> str:
        place = [part for part in (self.bucket, self.shard) if part is not None]
        if self.index is not None:
            place.append(f"sample {self.index}")
        if self.image_id is not None:
            place.append(f"id {self.image_id}")
        return f"{self.kind}: {', '.join(place) or 'corpus'}: {self.detail}"


@dataclass(frozen=True)
class ShardTask:
    """What the index and the release say of one shard. shape: (width, height), None when the bucket is unknown."""

    path: str
    bucket: str
    shard: str
    samples: int
    size_bytes: int
    xxh3_64: str
    columns: Mapping[str, str]
    shape: tuple[int, int] | None
    jpeg_quality: int
    decode: bool = True
    max_faults: int = 1000


@dataclass
class ShardResult:
    """What was found. id_hashes: uint64 [samples], hash of each sample's id, UNREADABLE_ID where none could be read."""

    task: ShardTask
    samples: int = 0
    read_bytes: int = 0
    id_hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str, detail: str, index: int | None = None, image_id: str | None = None) -> None:
        self.counts[kind] += 1
        if len(self.faults) < self.task.max_faults:
            self.faults.append(Fault(kind, detail, self.task.bucket, self.task.shard, index, image_id))


def hash_id(image_id: str) -> int:
    """64 bits of an id. Equal ids have equal hashes; the reverse must be confirmed."""
    return xxhash.xxh3_64_intdigest(image_id.encode("utf-8", "surrogatepass"))


@cache
def quantisation_tables(quality: int) -> tuple[tuple[int, ...], ...]:
    """The tables of luma and both chroma components that Pillow writes at this quality."""
    file = BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return jpeg.parse(file.getvalue()).quantisation


def check_shard(task: ShardTask) -> ShardResult:
    """Check one shard: file against index, layout, every sample and every image. Raises nothing for bad data: it names faults."""
    result = ShardResult(task)
    try:
        data = Path(task.path).read_bytes()
    except FileNotFoundError:
        result.fault("shard_missing", "the index names it, but there is no such file")
        return result
    except OSError as error:
        result.fault("shard_unreadable", str(error))
        return result
    result.read_bytes = len(data)
    if len(data) != task.size_bytes:
        result.fault("shard_size", f"{len(data)} bytes, {task.size_bytes} by the index")
    found = xxhash.xxh3_64_hexdigest(data)
    if found != task.xxh3_64:
        result.fault("shard_hash", f"xxh3_64 {found}, {task.xxh3_64} by the index")
    offsets = _offsets(data, result)
    if offsets is None:
        return result
    view = memoryview(data)
    result.samples = len(offsets) - 1
    result.id_hashes = np.zeros(result.samples, np.uint64)
    checker = _SampleChecker(result)
    for index, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        image_id = checker.check(view[begin:end], index)
        if image_id is not None:
            result.id_hashes[index] = hash_id(image_id)
    return result


def read_ids(path: Path, columns: Mapping[str, str]) -> list[str]:
    """The ids of a shard that was found sound, in order."""
    task = ShardTask(str(path), "", "", 0, 0, "", columns, None, 92)
    data = path.read_bytes()
    offsets = _offsets(data, ShardResult(task))
    if offsets is None:
        return []
    view = memoryview(data)
    spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return [str(bytes((split_sample(view[a:b], columns) or {}).get("id", b"")), "utf-8", "replace") for a, b in spans]


def _offsets(data: bytes, result: ShardResult) -> npt.NDArray[np.int64] | None:
    """The n + 1 offsets of the samples, int64; None, and a fault, when the head of the shard makes no sense."""
    task = result.task
    if len(data) < 8:
        result.fault("shard_head", f"{len(data)} bytes are no shard")
        return None
    samples = struct.unpack_from("<I", data)[0]
    if samples != task.samples and task.shard:
        result.fault("shard_samples", f"{samples} samples, {task.samples} by the index")
    head = 4 + 4 * (samples + 1)
    if head > len(data):
        result.fault("shard_head", f"the offsets of {samples} samples do not fit into {len(data)} bytes")
        return None
    offsets = np.frombuffer(data, "<u4", samples + 1, 4).astype(np.int64)
    if offsets[0] < head or offsets[-1] != len(data) or (np.diff(offsets) <= 0).any():
        result.fault("shard_offsets", "the offsets of the samples do not rise from the head to the end of the file")
        return None
    try:
        layout: Any = json.loads(data[head : int(offsets[0])])
        found = dict(zip(layout["column_names"], layout["column_encodings"], strict=True))
        sorted_names = layout["column_names"] == sorted(layout["column_names"])
    except (ValueError, KeyError, TypeError) as error:
        result.fault("shard_head", f"its layout is not readable: {error}")
        return None
    if found != dict(task.columns) or not sorted_names:
        result.fault("shard_columns", f"columns {found}, {dict(task.columns)} by the release")
        return None
    return offsets


def split_sample(sample: memoryview, columns: Mapping[str, str]) -> dict[str, memoryview] | None:
    """Column name -> its bytes; None when the lengths in the sample do not add up to its size."""
    names = sorted(columns)
    variable = sum(columns[name] != "int" for name in names)
    at = 4 * variable
    if at > len(sample):
        return None
    lengths = iter(struct.unpack_from(f"<{variable}I", sample))
    values = {}
    for name in names:
        size = 8 if columns[name] == "int" else next(lengths)
        values[name] = sample[at : at + size]
        at += size
    return values if at == len(sample) else None


class _SampleChecker:
    def __init__(self, result: ShardResult) -> None:
        self.result = result
        self.task = result.task
        self.integers = [name for name, encoding in self.task.columns.items() if encoding == "int"]
        self.texts = [name for name, encoding in self.task.columns.items() if encoding == "str"]
        self.heads = jpeg.HeadReader()
        self.good_head: jpeg.JpegInfo | None = None

    def check(self, sample: memoryview, index: int) -> str | None:
        """Check one sample and return its id, None when it has none that can be read."""
        values = split_sample(sample, self.task.columns)
        if values is None:
            self.result.fault("sample_layout", "the lengths of its columns do not add up to its size", index)
            return None
        image_id: str | None = None
        broken = []
        for name in self.texts:
            try:
                text = str(values[name], "utf-8")
            except UnicodeDecodeError:
                broken.append(name)
            else:
                image_id = text if name == "id" else image_id
        for name in broken:
            self.result.fault("text", f"column {name!r} is not UTF-8", index, image_id)
        if not image_id and "id" not in broken:
            self.result.fault("empty_id", "its id is empty", index)
        self._check_integers(values, index, image_id)
        for kind, detail in self._image_faults(bytes(values["image"])):
            self.result.fault(kind, detail, index, image_id)
        return image_id or None

    def _check_integers(self, values: Mapping[str, memoryview], index: int, image_id: str | None) -> None:
        numbers = {name: int.from_bytes(values[name], "little", signed=True) for name in self.integers}
        if self.task.shape is not None:
            for name, expected in zip(("width", "height"), self.task.shape, strict=True):
                if numbers.get(name) != expected:
                    text = f"column {name!r} is {numbers.get(name)}, the bucket's is {expected}"
                    self.result.fault("size_column", text, index, image_id)
        for name in ("original_width", "original_height"):
            if name in numbers and numbers[name] <= 0:
                self.result.fault("size_column", f"column {name!r} is {numbers[name]}", index, image_id)

    def _image_faults(self, image: bytes) -> list[tuple[str, str]]:
        try:
            info = self.heads.parse(image)
        except jpeg.JpegError as error:
            return [("not_jpeg", str(error))]
        faults = [] if info is self.good_head else self._head_faults(info)
        if not faults:
            self.good_head = info
        if self.task.decode:
            # A baseline image has one end marker: in compressed data 0xff is always followed by 0 or a restart marker.
            if not info.progressive and image.find(jpeg.EOI, info.header_bytes) != len(image) - 2:
                faults.append(("trailing_bytes", "bytes follow the end of the image"))
            try:
                simplejpeg.decode_jpeg(image, colorspace="GRAY", min_height=1, min_width=1, fastdct=True, strict=True)
            except ValueError as error:
                faults.append(("corrupt_image", str(error)))
        return faults

    def _head_faults(self, info: jpeg.JpegInfo) -> list[tuple[str, str]]:
        faults = []
        if len(info.components) != 3 or info.bits != 8:
            faults.append(("not_rgb", f"{len(info.components)} components of {info.bits} bits"))
        elif not info.is_420:
            faults.append(("subsampling", "its chroma is not subsampled 4:2:0"))
        elif info.quantisation != quantisation_tables(self.task.jpeg_quality):
            faults.append(("quantisation", f"its tables are not those of quality {self.task.jpeg_quality}"))
        if self.task.shape is not None and (info.width, info.height) != self.task.shape:
            width, height = self.task.shape
            faults.append(("image_size", f"{info.width}×{info.height} pixels, the bucket's shape is {width}×{height}"))
        if info.metadata:
            faults.append(("metadata", f"segments {', '.join(info.metadata)}"))
        return faults
