"""Sources: folders of images, Parquet files with images, WebDataset tars, read as records of bytes and captions.

    specs = load_sources(Path("sources.yaml"))
    for spec in specs:
        for unit in plan_units(spec, list_files(spec)):       # a unit's JSON travels to a task
            for record in read_unit(spec, unit):              # one record a sample or fault, in bounded memory
                ...

Every sample ends in exactly one record; what is wrong with a source's data is a record with `fault` set, what is
wrong with its description is a ConfigError. No image is decoded here, nothing is extracted or unpickled, and names
are only ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from imagelake.sources import folder, parquet, webdataset
from imagelake.sources.spec import METADATA_EXTENSIONS, SourceSpec, load_sources
from imagelake.sources.units import Record, SourceFile, Unit

__all__ = ["Record", "SourceFile", "SourceSpec", "Unit", "list_files", "load_sources", "plan_units", "read_unit", "unread_metadata"]

_METADATA_NAMES = {f"metadata.{extension}" for extension in METADATA_EXTENSIONS}
_FORMATS: dict[str, ModuleType] = {"folder": folder, "parquet": parquet, "webdataset": webdataset}


def list_files(spec: SourceSpec) -> list[SourceFile]:
    """The files of a source, sorted by key, each pinned by size and modification time.

    Raises ConfigError that names the file and the key: a path that is not there, a glob without a match, a tar or
    Parquet file that is none, a column that a file does not have.
    """
    files: list[SourceFile] = _FORMATS[spec.format].list_files(spec)
    return files


def unread_metadata(spec: SourceSpec, files: Iterable[SourceFile]) -> list[str]:
    """Hints at files of a folder source that look like captions but that none of its rules names: they are read as images."""
    if spec.format != "folder":
        return []
    return [
        f"source {spec.name!r}: {file.path} is read as an image, since no rule names it; the rule "
        f'captions: {{alt: "{Path(file.path).name}:text"}} takes captions from its column text'
        for file in files
        if file.source == spec.name and not file.is_sidecar and Path(file.path).name.lower() in _METADATA_NAMES
    ]


def plan_units(spec: SourceSpec, files: list[SourceFile], target_bytes: int = 64 << 20) -> list[Unit]:
    """Pieces of work that together read `files` (all of a source's files, or those that are new) once.

    `target_bytes`: aim for the source bytes of a unit; a tar, a row group and a file are never split. Raises
    RetryableError when a file changed.
    """
    units: list[Unit] = _FORMATS[spec.format].plan_units(spec, files, target_bytes)
    return units


def read_unit(spec: SourceSpec, unit: Unit) -> Iterator[Record]:
    """The records of a unit, one image in memory at a time (Parquet: one batch of about 32 MiB).

    Raises RetryableError when a file is not the one that was listed: what was read before is then of no known file.
    """
    records: Iterator[Record] = _FORMATS[spec.format].read_unit(spec, unit)
    return records
