"""WebDataset tars: members that share a key make one sample, wherever in the tar they lie.

Two passes over a seekable local file. The first reads headers only and keeps 24 bytes a member beside each sample's
key; the second reads the members of one sample at a time by their offsets. So the order of members never matters and
memory does not grow with the images.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from imagelake.errors import ConfigError, RetryableError
from imagelake.sources import units
from imagelake.sources.files import archives
from imagelake.sources.spec import SourceSpec, member_rule
from imagelake.sources.tarscan import Member, TarScan, why_no_tar
from imagelake.sources.units import IMAGE_EXTENSIONS, Record, SourceFile, Unit, at_path, escape_name, text_of

_NAME = re.compile(r"(?P<key>(?:.*/)?[^./]+)\.(?P<extension>[^/]+)", re.DOTALL)


def split_name(name: str) -> tuple[str, str] | None:
    """(key, extension) by webdataset's rule: the extension is everything after the first dot of the base name, the
    folder belongs to the key.

    None for what has no such parts: no dot, nothing before it (".hidden.jpg") or nothing after it.
    """
    match = _NAME.fullmatch(name)
    return (match["key"], match["extension"]) if match else None


def list_files(spec: SourceSpec) -> list[SourceFile]:
    files = archives(spec, "*.tar")
    for file in files:
        try:
            descriptor = os.open(file.path, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"{spec.origin}.path: {file.path} cannot be read: {error.strerror}") from error
        try:
            problem = why_no_tar(descriptor)
        finally:
            os.close(descriptor)
        if problem:
            raise ConfigError(f"{spec.origin}.path: {file.path} {problem}")
    return files


def plan_units(spec: SourceSpec, files: list[SourceFile], target_bytes: int) -> list[Unit]:
    """A tar is a unit: its samples may be spread over all of it."""
    return [Unit(spec.name, spec.format, (file,), 0, file.size, file.size) for file in files]


def read_unit(spec: SourceSpec, unit: Unit) -> Iterator[Record]:
    (file,) = unit.files
    try:
        descriptor = os.open(file.path, os.O_RDONLY)
    except OSError as error:
        raise units.changed(file, error) from error
    try:
        units.check_unchanged(file, os.fstat(descriptor))
        yield from _Reader(spec, file, descriptor).records()
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Part:
    """A member of a sample; `name` as in the tar."""

    name: str
    extension: str
    offset: int
    size: int


@dataclass(slots=True)
class _Index:
    """Members as columns, one entry a member in tar order: the number of its sample and of its extension, offset and
    size in bytes.
    """

    samples: dict[str, int] = field(default_factory=dict)
    extensions: dict[str, int] = field(default_factory=dict)
    sample: array[int] = field(default_factory=lambda: array("i"))
    extension: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))

    def add(self, key: str, extension: str, member: Member) -> None:
        self.sample.append(self.samples.setdefault(key, len(self.samples)))
        self.extension.append(self.extensions.setdefault(extension, len(self.extensions)))
        self.offset.append(member.offset)
        self.size.append(member.size)

    def grouped(self) -> Iterator[tuple[str, list[_Part]]]:
        """Samples in the order of their first member, each with its members in tar order."""
        extensions = list(self.extensions)
        numbers = np.frombuffer(self.sample, np.int32) if self.sample else np.zeros(0, np.int32)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self.samples)))
        start = 0
        for key, end in zip(self.samples, ends, strict=True):
            parts = []
            for row in order[start:end]:
                extension = extensions[self.extension[row]]
                parts.append(_Part(f"{key}.{extension}", extension.lower(), self.offset[row], self.size[row]))
            start = end
            yield key, parts


class _Reader:
    def __init__(self, spec: SourceSpec, file: SourceFile, descriptor: int) -> None:
        self.file = file
        self.descriptor = descriptor
        self.license, self.attribution = spec.license, spec.attribution
        self.image_extensions = frozenset(part.strip(" .").lower() for part in spec.image.split(";")) if spec.image else None
        self.rules = {key: member_rule(rule) for key, rule in spec.rules.items()}
        self.caption_names = tuple(spec.captions)
        self.uri = Path(file.path).as_uri()
        self.cut: Member | None = None
        self.fault_keys: dict[str, int] = {}

    def records(self) -> Iterator[Record]:
        index = _Index()
        scan = TarScan(self.descriptor, self.file.size)
        for member in scan:
            parts = split_name(member.name)
            if member.unsafe:
                yield self._member_fault(member.name, "unsafe_member", member.unsafe)
            elif parts is None:
                yield self._member_fault(member.name, "unparsable_name", f"no key and extension in {escape_name(member.name)}")
            else:
                index.add(*parts, member)
                self.cut = member if member.is_cut else None
        for key, members in index.grouped():
            yield from self._sample(key, members)
        if scan.incomplete:
            key = f"{self.file.key}!incomplete"
            yield self._record(key, self.uri, fault="shard_incomplete", fault_detail=escape_name(scan.incomplete))

    def _sample(self, key: str, parts: list[_Part]) -> Iterator[Record]:
        parts_once: dict[str, _Part] = {}
        for part in parts:
            if part.extension in parts_once:
                first = parts_once[part.extension]
                yield self._member_fault(part.name, "duplicate_member", f"{part.size} bytes; the first, of {first.size} bytes, is kept")
            else:
                parts_once[part.extension] = part
        images = [part for part in parts_once.values() if self._is_image(part)]
        image = images[0] if images else None
        for other in images[1:]:
            yield self._member_fault(other.name, "duplicate_image", f"the sample's image is {escape_name(images[0].name)}")
        wanted = {rule: self._pick(rule[0], parts_once) for rule in self.rules.values()}
        sample_key = f"{self.file.key}/{escape_name(key)}"
        if self.cut is not None and self.cut.offset in {part.offset for part in (image, *wanted.values()) if part is not None}:
            detail = f"the shard ends inside {escape_name(self.cut.name)}"
            yield self._record(sample_key, self._member_uri(self.cut.name), fault="truncated_member", fault_detail=detail)
            return
        texts: dict[str, str | None] = {}
        values: dict[tuple[str, bool], object] = {}
        for name, rule in self.rules.items():
            picked, is_json = wanted[rule], bool(rule[1])
            if picked is not None:
                if (picked.name, is_json) not in values:
                    values[picked.name, is_json], fault = self._value(picked, is_json=is_json)
                    if fault is not None:
                        yield fault
                texts[name] = text_of(at_path(values[picked.name, is_json], rule[1]))
        yield self._image_record(sample_key, image, parts_once, texts)

    def _image_record(self, key: str, image: _Part | None, parts: dict[str, _Part], texts: dict[str, str | None]) -> Record:
        record = self._record(key, self._member_uri(image.name) if image else self.uri)
        record.captions = {name: texts.get(f"captions.{name}") for name in self.caption_names}
        record.license = texts.get("license_column") or self.license
        record.attribution = texts.get("attribution_column") or self.attribution
        if image is None:
            record.fault, record.fault_detail = "no_image", f"only {escape_name(', '.join(sorted(parts))[:200])}"
        elif image.size > units.MAX_IMAGE_BYTES:
            record.fault, record.fault_detail = "too_many_bytes", f"{image.size} bytes, at most {units.MAX_IMAGE_BYTES} are read"
        else:
            record.image = self._read(image)
        return record

    def _value(self, part: _Part, *, is_json: bool) -> tuple[object, Record | None]:
        """The text or the parsed JSON of a member, and the fault it has: null then."""
        if part.size > units.MAX_CAPTION_BYTES:
            detail = f"{part.size} bytes, at most {units.MAX_CAPTION_BYTES} are read"
            return None, self._member_fault(part.name, "caption_too_large", detail)
        data = self._read(part)
        if not is_json:
            return data.rstrip(b"\r\n"), None
        try:
            return json.loads(data.decode("utf-8-sig", "replace")), None
        except (ValueError, RecursionError) as error:
            return None, self._member_fault(part.name, "bad_json", str(error))

    def _is_image(self, part: _Part) -> bool:
        """By the last of the extensions: `0.seg.png` is an image in key `0`."""
        last = part.extension.rpartition(".")[2]
        if self.image_extensions is not None:
            return part.extension in self.image_extensions or last in self.image_extensions
        return last in IMAGE_EXTENSIONS

    @staticmethod
    def _pick(extension: str, parts: dict[str, _Part]) -> _Part | None:
        """The member with this extension; else the first whose last extensions it is (`1.txt` for `txt`, beside
        `1.png`).
        """
        if extension in parts:
            return parts[extension]
        return next((part for part in parts.values() if part.extension.endswith(f".{extension}")), None)

    def _read(self, part: _Part) -> bytes:
        chunks, offset, left = [], part.offset, part.size
        while left:
            chunk = os.pread(self.descriptor, left, offset)
            if not chunk:
                raise RetryableError(f"{self.file.path}: became shorter while it was read: run again when the source is still")
            chunks.append(chunk)
            offset, left = offset + len(chunk), left - len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _member_uri(self, name: str) -> str:
        return f"{self.uri}#{quote(name, errors='surrogateescape')}"

    def _member_fault(self, name: str, fault: str, detail: str) -> Record:
        """A record of a member, its key ending in "!fault", or "!2", "!3" for the second and third of a name; unique
        in the shard.
        """
        base = f"{self.file.key}/{escape_name(name)}!" + ("" if fault == "duplicate_member" else fault)
        count = self.fault_keys[base] = self.fault_keys.get(base, 0) + 1
        ordinal = str(count + 1) if fault == "duplicate_member" else f"_{count}" if count > 1 else ""
        return self._record(base + ordinal, self._member_uri(name), fault=fault, fault_detail=detail)

    def _record(self, key: str, uri: str, *, fault: str | None = None, fault_detail: str | None = None) -> Record:
        captions: dict[str, str | None] = dict.fromkeys(self.caption_names)
        return Record(key, uri, None, captions, self.license, self.attribution, fault, fault_detail)
