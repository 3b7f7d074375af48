"""sources.yaml: what there is to ingest. Models that refuse unknown keys, errors that name the file and the key."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from imagelake import yamlfile
from imagelake.config import Trust
from imagelake.errors import ConfigError
from imagelake.sources.units import IMAGE_EXTENSIONS

FORMATS = ("folder", "parquet", "webdataset")
TRUST = get_args(Trust)
METADATA_EXTENSIONS = ("csv", "jsonl", "tsv")

_CAPTION_NAME = re.compile(r"[a-z0-9_]+")
_METADATA_RULE = re.compile(rf"(?P<file>[^:]+\.(?:{'|'.join(METADATA_EXTENSIONS)})):(?P<column>.+)", re.IGNORECASE)


class SourceSpec(BaseModel):
    """One source.

    `captions` maps a caption name to where it stands, as do `license_column` and `attribution_column`, which override
    the source's own `license` and `attribution` where a sample has a value:
    - webdataset: an extension (`txt`) or a path in a JSON member (`json:meta.caption`);
    - parquet: a column, dotted into structs (`meta.caption`);
    - folder: a column of metadata files (`metadata.jsonl:caption`; .csv and .tsv too) or a sibling file's extension
      (`txt`).

    `image` is the image column of parquet (default "image"), or the extensions that hold the image in webdataset, as in
    "png;jpg" (default: any image's). `file_column` is the metadata column of a folder that names the image, relative to
    the metadata file (default "file_name").
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    format: Literal["folder", "parquet", "webdataset"]
    path: tuple[str, ...] = Field(min_length=1)
    license: str | None = None
    attribution: str | None = None
    captions: dict[str, str] = {}
    image: str | None = None
    license_column: str | None = None
    attribution_column: str | None = None
    file_column: str | None = None
    trust: tuple[Trust, ...] = ()

    _origin: str = PrivateAttr("")

    @property
    def origin(self) -> str:
        """Where the source was declared, as errors say it: "sources.yaml: sources[1]"."""
        return self._origin or f"source {self.name!r}"

    @property
    def rules(self) -> dict[str, str]:
        """Every key that says where a text stands, dotted, and its rule."""
        rules = {f"captions.{name}": rule for name, rule in self.captions.items()}
        columns = {"license_column": self.license_column, "attribution_column": self.attribution_column}
        return rules | {key: rule for key, rule in columns.items() if rule is not None}

    @field_validator("path", "trust", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("name")
    @classmethod
    def _readable(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("a name is printable and has no space around it")
        return name

    @field_validator("path")
    @classmethod
    def _local(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path or "\0" in path:
                raise ValueError("a path is not empty and has no NUL")
            if "://" in path or path.startswith("pipe:"):
                raise ValueError(f"{path!r} is no local path: local files only")
        return paths

    @field_validator("captions")
    @classmethod
    def _names(cls, captions: dict[str, str]) -> dict[str, str]:
        for name in captions:
            if not _CAPTION_NAME.fullmatch(name):
                raise ValueError(f"caption name {name!r}: small letters a-z, digits and _ only")
        return captions

    @model_validator(mode="after")
    def _rules_fit_the_format(self) -> SourceSpec:
        if self.format == "folder" and self.image is not None:
            raise ValueError("image: not for a folder, where every file is an image candidate")
        if self.format != "folder" and self.file_column is not None:
            raise ValueError("file_column: only for a folder")
        for key, rule in self.rules.items():
            problem = _problem(self.format, rule, key)
            if problem:
                raise ValueError(f"{key}: {problem}")
        return self


def metadata_rule(rule: str) -> tuple[str, str] | None:
    """(metadata file name, column) of a folder's rule; None for a sibling's extension."""
    match = _METADATA_RULE.fullmatch(rule)
    return (match["file"], match["column"]) if match else None


def member_rule(rule: str) -> tuple[str, tuple[str, ...]]:
    """(extension, JSON path) of a webdataset rule; the path is empty for a plain text member."""
    extension, _, path = rule.partition(":")
    return extension.lower().removeprefix("."), tuple(path.split(".")) if path else ()


def _problem(format: str, rule: str, key: str) -> str | None:
    if not rule.strip():
        return "is empty"
    if format == "folder":
        if metadata_rule(rule):
            return None
        if ":" in rule or "/" in rule:
            kinds = ", ".join("." + extension for extension in METADATA_EXTENSIONS)
            return f"{rule!r} is neither a metadata file and column ('metadata.jsonl:caption'; {kinds}) nor an extension ('txt')"
        if not key.startswith("captions."):
            return f"{rule!r}: give a metadata file and column, as in 'metadata.jsonl:license'"
        if rule.lower().removeprefix(".") in IMAGE_EXTENSIONS:
            return f"{rule!r} is an image's extension"
    if format == "webdataset":
        extension, path = member_rule(rule)
        if not extension or "/" in extension or rule.endswith(":") or "" in path:
            return f"{rule!r} is neither an extension ('txt') nor a path in a JSON member ('json:meta.caption')"
    return None


def load_sources(path: Path) -> tuple[SourceSpec, ...]:
    """The sources of a sources.yaml, paths made absolute (relative ones are relative to the file).

    Raises ConfigError that names the file and the key, and the nearest known key for an unknown one.
    """
    path = Path(path)
    entries = _entries(path)
    specs = tuple(_spec(path, index, entry) for index, entry in enumerate(entries))
    names = [spec.name for spec in specs]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"{path}: sources[{index}].name: {name!r} is the name of sources[{names.index(name)}] too")
    return specs


def _entries(path: Path) -> list[Any]:
    try:
        document = yamlfile.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected `sources:` and a list of sources")
    for key in document:
        if key != "sources":
            raise ConfigError(f"{path}: {_unknown(str(key), ['sources'])}")
    entries = document.get("sources")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: sources: expected a list of at least one source")
    return entries


def _spec(file: Path, index: int, entry: Any) -> SourceSpec:
    where = f"{file}: sources[{index}]"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected keys and values, such as name, format, path")
    # `captions:` with nothing behind it is an empty mapping that lost its braces.
    entry = {key: value for key, value in entry.items() if not (key == "captions" and value is None)}
    try:
        spec = SourceSpec.model_validate(entry)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(where, fault) for fault in error.errors())) from error
    absolute = tuple(os.path.normpath(file.absolute().parent / Path(path).expanduser()) for path in spec.path)
    spec = spec.model_copy(update={"path": absolute})
    spec._origin = where
    return spec


def _explain(where: str, fault: Any) -> str:
    location = [str(part) for part in fault["loc"] if part != "[key]"]
    key = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in location)
    known: Iterable[str] = ()
    match fault["type"]:
        case "extra_forbidden":
            return f"{where}.{_unknown(key[1:], sorted(SourceSpec.model_fields))}"
        case "missing":
            return f"{where}{key}: is missing"
        case "literal_error":
            known = FORMATS if key == ".format" else TRUST
            return f"{where}{key}: unknown {'format' if key == '.format' else 'flag'} {fault['input']!r}: one of {', '.join(known)}"
        case "value_error":
            return f"{where}{key}{':' if key else '.'}{' ' if key else ''}{fault['ctx']['error']}"
        case _:
            return f"{where}{key}: {fault['msg']} (got {fault['input']!r})"


def _unknown(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"{key}: unknown key, " + (f"did you mean {nearest[0]!r}?" if nearest else f"known ones: {', '.join(known)}")
