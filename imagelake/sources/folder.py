"""A folder of images: every regular file below it is an image candidate, but for what captions are read from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from imagelake.errors import ConfigError
from imagelake.sources import metadata, units
from imagelake.sources.files import expand, unique
from imagelake.sources.spec import SourceSpec, metadata_rule
from imagelake.sources.units import IMAGE_EXTENSIONS, Record, SourceFile, Unit, escape_name, extension_of, pin, text_of

MAX_UNIT_FILES = 2048


def list_files(spec: SourceSpec) -> list[SourceFile]:
    """Candidates and sidecars. Links to files count, links to folders are not followed, pipes and dangling links are no files."""
    found: list[tuple[Path, str]] = []
    for key, root, path in expand(spec):
        try:
            members = _walk(path) if path.is_dir() else [path]
            found += [(member, member.relative_to(root).as_posix()) for member in members]
        except OSError as error:
            raise ConfigError(f"{spec.origin}.{key}: {error.filename} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{spec.origin}.path: {', '.join(spec.path)} has no files")
    images = {(path.parent, path.stem) for path, _ in found if extension_of(path.name) in IMAGE_EXTENSIONS}
    suffixes = _sibling_suffixes(spec)
    pinned = []
    for path, name in found:
        key = escape_name(name)
        is_sibling = path.suffix in suffixes and (path.parent, path.stem) in images
        try:
            pinned.append(pin(spec.name, path, key, is_sidecar=is_sibling or bool(metadata.columns_of(spec, key))))
        except OSError as error:
            raise ConfigError(f"{spec.origin}.path: {path} cannot be read: {error.strerror}") from error
    files = unique(spec, pinned)
    _check_metadata(spec, files)
    return files


def _check_metadata(spec: SourceSpec, files: list[SourceFile]) -> None:
    """Raises ConfigError when a rule's metadata file or column is nowhere."""
    found: set[str] = set()
    for file in files:
        if columns := metadata.columns_of(spec, file.key):
            metadata.check_columns(spec, file)
            found |= columns.keys()
    for key, rule in spec.rules.items():
        if (parsed := metadata_rule(rule)) and key not in found:
            raise ConfigError(f"{spec.origin}.{key}: no file {parsed[0]!r} in {', '.join(spec.path)}")


def _walk(folder: Path) -> Iterator[Path]:
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.is_file():
                    yield Path(entry.path)


def _sibling_suffixes(spec: SourceSpec) -> set[str]:
    extensions = {rule.removeprefix(".") for rule in spec.rules.values() if not metadata_rule(rule)}
    return {suffix for extension in extensions for suffix in _spellings(extension)}


def _spellings(extension: str) -> tuple[str, str]:
    return f".{extension.lower()}", f".{extension.upper()}"


def plan_units(spec: SourceSpec, files: list[SourceFile], target_bytes: int) -> list[Unit]:
    """Candidates in chunks of up to `target_bytes`, each with the metadata files above them as they are now, and a
    unit a metadata file for the faults it has. `files` may be a part of what list_files gave. Siblings are read with
    their images.
    """
    above = _Above(spec)
    planned = []
    for file in files:
        if file.is_sidecar and metadata.columns_of(spec, file.key):
            planned.append(Unit(spec.name, spec.format, (file,), 0, 0, file.size))
    chunk: list[SourceFile] = []
    size = 0
    for file in files:
        if file.is_sidecar:
            continue
        if chunk and (size + file.size > target_bytes or len(chunk) == MAX_UNIT_FILES):
            planned.append(Unit(spec.name, spec.format, tuple(chunk), 0, len(chunk), size, above.metadata_of(chunk)))
            chunk, size = [], 0
        chunk.append(file)
        size += file.size
    if chunk:
        planned.append(Unit(spec.name, spec.format, tuple(chunk), 0, len(chunk), size, above.metadata_of(chunk)))
    return planned


class _Above:
    """The metadata files in the folders above images, up to the source's root, looked up once a folder."""

    def __init__(self, spec: SourceSpec) -> None:
        self.spec = spec
        self.names = sorted({rule[0] for rule in map(metadata_rule, spec.rules.values()) if rule})
        self.known: dict[Path, list[SourceFile]] = {}

    def metadata_of(self, files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
        """Deepest folder first: the nearest metadata file has the first word."""
        found: dict[str, SourceFile] = {}
        for file in files:
            parts = file.key.split("/")[:-1]
            for depth, folder in zip(range(len(parts), -1, -1), Path(file.path).parents, strict=False):
                for sidecar in self._in_folder(folder, "/".join(parts[:depth])):
                    found[sidecar.path] = sidecar
        return tuple(sorted(found.values(), key=lambda file: (-file.key.count("/"), file.key)))

    def _in_folder(self, folder: Path, folder_key: str) -> list[SourceFile]:
        if folder not in self.known:
            self.known[folder] = []
            for name in self.names:
                key = f"{folder_key}/{name}".removeprefix("/")
                # A rule with a folder in it counts from the root only.
                if ("/" not in name or not folder_key) and (folder / name).is_file():
                    self.known[folder].append(pin(self.spec.name, folder / name, key, is_sidecar=True))
        return self.known[folder]


def read_unit(spec: SourceSpec, unit: Unit) -> Iterator[Record]:
    if unit.start == unit.stop:
        for file in unit.files:
            yield from _metadata_faults(spec, file)
        return
    files = unit.files[unit.start : unit.stop]
    texts: dict[str, dict[str, str | None]] = {}
    for sidecar in unit.sidecars:
        for path, found in metadata.texts_for(spec, sidecar, {file.path for file in files}).items():
            nearer = texts.setdefault(path, {})
            texts[path] = found | {key: text for key, text in nearer.items() if text is not None}
    for file in files:
        yield from _read_file(spec, file, texts.get(file.path, {}))


def _metadata_faults(spec: SourceSpec, file: SourceFile) -> Iterator[Record]:
    uri = Path(file.path).as_uri()
    for fault in metadata.faults(spec, file):
        record = _record(spec, f"{file.key}#{fault.line}!{fault.fault}", f"{uri}#{fault.line}", {})
        record.fault, record.fault_detail = fault.fault, f"line {fault.line}: {fault.detail}"
        yield record


def _read_file(spec: SourceSpec, file: SourceFile, texts: dict[str, str | None]) -> Iterator[Record]:
    uri = Path(file.path).as_uri()
    if extension_of(Path(file.path).name) in IMAGE_EXTENSIONS:
        for key, rule in spec.rules.items():
            if not metadata_rule(rule):
                texts[key], detail = _sibling_text(Path(file.path), rule.removeprefix("."))
                if detail is not None:
                    fault_key = f"{file.key}!caption_too_large_{key.partition('.')[2]}"
                    yield _record(spec, fault_key, uri, {}, fault="caption_too_large", detail=detail)
    if file.size > units.MAX_IMAGE_BYTES:
        detail = f"{file.size} bytes, at most {units.MAX_IMAGE_BYTES} are read"
        yield _record(spec, file.key, uri, texts, fault="too_many_bytes", detail=detail)
        return
    record = _record(spec, file.key, uri, texts)
    try:
        with Path(file.path).open("rb") as stream:
            units.check_unchanged(file, os.fstat(stream.fileno()))
            record.image = stream.read(file.size)
    except FileNotFoundError as error:
        raise units.changed(file, error) from error
    except OSError as error:
        record.fault, record.fault_detail = "unreadable_file", error.strerror or str(error)
    yield record


def _sibling_text(image: Path, extension: str) -> tuple[str | None, str | None]:
    """The caption in the file beside an image, null where there is none; and why one that is there is not taken."""
    for suffix in _spellings(extension):
        sibling = image.with_suffix(suffix)
        try:
            found = sibling.stat()
            if not stat.S_ISREG(found.st_mode):
                continue
            if found.st_size > units.MAX_CAPTION_BYTES:
                return None, f"{escape_name(sibling.name)}: {found.st_size} bytes, at most {units.MAX_CAPTION_BYTES} are read"
            return text_of(sibling.read_bytes().rstrip(b"\r\n")), None
        except OSError:
            continue  # not there
    return None, None


def _record(
    spec: SourceSpec, key: str, uri: str, texts: dict[str, str | None], *, fault: str | None = None, detail: str | None = None
) -> Record:
    return Record(
        key,
        uri,
        captions={name: texts.get(f"captions.{name}") for name in spec.captions},
        license=texts.get("license_column") or spec.license,
        attribution=texts.get("attribution_column") or spec.attribution,
        fault=fault,
        fault_detail=detail,
    )
