"""Configuration: base YAML, an environment's YAML and `--set a.b=c`, validated by frozen models that refuse unknown keys.

Every key of conf/base.yaml is declared here with its unit, its default and its bounds. Credentials have no place in it: they come from the
environment or the platform.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from imagelake import yamlfile
from imagelake.buckets import TIERS
from imagelake.errors import ConfigError
from imagelake.paths import CONF


class Section(BaseModel):
    """One part of the configuration: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LakeConfig(Section):
    root: str = "build/lake"


class CorpusConfig(Section):
    root: str = "build/corpus"


class SparkConfig(Section):
    """`properties` is a file of Spark properties, relative to conf/; `conf` overrides single ones of it."""

    master: str | None = "local[*]"
    properties: str = "spark/local.conf"
    conf: dict[str, str] = {}

    @field_validator("conf", mode="before")
    @classmethod
    def _dotted(cls, conf: Any) -> Any:
        """--set spark.conf.spark.driver.memory=8g arrives nested: Spark's names are its dots."""
        return dict(_flat(conf)) if isinstance(conf, dict) else conf


class IngestConfig(Section):
    max_pixels: int = Field(default=200_000_000, gt=0)
    unit_bytes: int = Field(default=64 << 20, gt=0)
    batch_bytes: int = Field(default=200 << 30, gt=0)


class GeometryConfig(Section):
    """What shapes the corpus has. `out_of_range`: aspect ratios outside 0.5 to 2.0 are dropped, or cropped to the end shape."""

    tiers: tuple[int, ...] = TIERS
    out_of_range: Literal["drop", "crop"] = "drop"

    @field_validator("tiers")
    @classmethod
    def _known(cls, tiers: tuple[int, ...]) -> tuple[int, ...]:
        if not tiers or set(tiers) - set(TIERS):
            raise ValueError(f"tiers must be some of {list(TIERS)}")
        return tuple(sorted(set(tiers)))


# What a source may declare that its makers have done already.
Trust = Literal["deduplicated", "nsfw_filtered", "pii_filtered"]

# Reasons of the rules that are built in.
FILTER_REASONS = ("below_min_pixels", "below_min_side", "aspect_ratio", "license", "trust_required", "language", "caption_length")


class FilterConfig(Section):
    """Rules over columns. `licenses` null admits every licence, unknown ones too; a list admits only what it names. `trust` names what a
    source must have declared. `languages` (ISO 639-1) null admits every one; a list admits samples whose longest caption is in one of them,
    and samples without captions. `where`: name of a reason -> SQL predicate over samples; what it is true for is out, null is not true."""

    min_pixels: int = Field(default=384 * 384, ge=0)
    min_side: int | None = Field(default=None, ge=1)
    max_aspect_ratio: float | None = Field(default=None, ge=1)
    licenses: tuple[str, ...] | None = None
    trust: tuple[Trust, ...] = ()
    languages: tuple[str, ...] | None = Field(default=None, min_length=1)
    min_caption_chars: int | None = Field(default=None, ge=1)
    where: dict[str, str] = Field(default_factory=dict)

    @field_validator("where")
    @classmethod
    def _names(cls, where: dict[str, str]) -> dict[str, str]:
        taken = sorted(set(where) & set(FILTER_REASONS))
        if taken:
            raise ValueError(f"{', '.join(taken)}: the name of a rule that is built in")
        return where


class DedupConfig(Section):
    """`max_distance`: bits in which the hashes of two pictures may differ and still be of one; 0 compares for equality only."""

    perceptual: bool = True
    max_distance: int = Field(default=0, ge=0, le=8)


class CurateConfig(Section):
    background: tuple[int, int, int] = (255, 255, 255)
    jpeg_quality: int = Field(default=92, ge=1, le=100)
    max_captions: int = Field(default=16, ge=1)

    @field_validator("background")
    @classmethod
    def _colour(cls, rgb: tuple[int, int, int]) -> tuple[int, int, int]:
        if any(not 0 <= channel <= 255 for channel in rgb):
            raise ValueError("three numbers from 0 to 255")
        return rgb


class CaptionConfig(Section):
    """`column` is the curated column that the captions become; `part_rows` how many rows one part file holds."""

    engine: Literal["source"] = "source"
    column: str = Field(default="caption", pattern=r"^caption(_[a-z0-9]+)*$")
    part_rows: int = Field(default=100_000, ge=1)


class IndexConfig(Section):
    """Fragments are compacted towards `fragment_bytes`, never by rows: a row of an image table can be any size. Up to `min_fragments`
    cost readers next to nothing and are left alone."""

    fragment_bytes: int = Field(default=16 << 30, gt=0)
    max_fragment_rows: int = Field(default=1 << 20, gt=0)
    min_fragments: int = Field(default=32, ge=1)


class ExportConfig(Section):
    """`captions` null exports every caption name that the curated table has."""

    shard_bytes: int = Field(default=1 << 27, gt=1 << 16, lt=1 << 32)
    captions: tuple[str, ...] | None = None
    captions_required: bool = False


class SkipsConfig(Section):
    """`where`: name of a reason -> SQL predicate over the columns of curated; what it is true for is skipped, null is not true."""

    where: dict[str, str] = Field(default_factory=dict)


class VerifyConfig(Section):
    workers: int = Field(default=2, ge=1)


class Config(Section):
    sources: str | None = None
    lake: LakeConfig = LakeConfig()
    corpus: CorpusConfig = CorpusConfig()
    spark: SparkConfig = SparkConfig()
    ingest: IngestConfig = IngestConfig()
    geometry: GeometryConfig = GeometryConfig()
    filter: FilterConfig = FilterConfig()
    dedup: DedupConfig = DedupConfig()
    curate: CurateConfig = CurateConfig()
    caption: CaptionConfig = CaptionConfig()
    index: IndexConfig = IndexConfig()
    export: ExportConfig = ExportConfig()
    skips: SkipsConfig = SkipsConfig()
    verify: VerifyConfig = VerifyConfig()

    def digest(self, sections: Sequence[str] | None = None) -> str:
        """16 hex digits over the resolved values: of the whole, or of some sections. Same values, same digest."""
        return digest_of(self.model_dump(mode="json", include=set(sections) if sections is not None else None))


def _flat(nested: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value).lower() if isinstance(value, bool) else str(value)


def digest_of(value: Any) -> str:
    """16 hex digits of sha256 over the canonical JSON of `value`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def load(files: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> Config:
    """conf/base.yaml, then each of `files`, then `overrides` ("a.b=c"), later ones winning.

    Raises ConfigError that names the key at fault and, for an unknown key, the nearest known one.
    """
    merged: Any = OmegaConf.create({})
    for file in (CONF / "base.yaml", *map(Path, files)):
        if not Path(file).is_file():
            raise ConfigError(f"{file}: no such configuration file")
        try:
            merged = OmegaConf.merge(merged, OmegaConf.load(io.StringIO(yamlfile.read_text(file))))
        except ConfigError:
            raise
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: {yamlfile.fault(error)}") from error
        except Exception as error:  # OmegaConf and Python share no base class for what a bad file raises
            raise ConfigError(f"{file}: not a configuration file: {error}") from error
    for override in overrides:
        key, sign, _ = override.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {override}: expected KEY=VALUE, for example --set filter.min_pixels=147456")
        try:
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([override]))
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {override}: {yamlfile.fault(error)}") from error
        except OmegaConfBaseException as error:
            raise ConfigError(f"--set {override}: {error}") from error
    try:
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"configuration: {error}") from error
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault) for fault in error.errors())) from error


def known_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every key in dotted form, sections and leaves."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_keys(field.annotation, f"{prefix}{name}.")


def _explain(fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] != "extra_forbidden":
        return f"configuration key {key}: {fault['msg']} (got {fault['input']!r})"
    nearest = _nearest(key, _siblings(key)) or _nearest(key, list(known_keys()))
    hint = f", did you mean {nearest!r}?" if nearest else f"; known here: {', '.join(_siblings(key))}"
    return f"unknown configuration key {key!r}{hint}"


def _nearest(key: str, known: Sequence[str]) -> str | None:
    """The known key whose last part is most like that of `key`: a shared section makes no likeness."""
    by_name = {name.rpartition(".")[2]: name for name in reversed(known)}
    found = difflib.get_close_matches(key.rpartition(".")[2], list(by_name), n=1, cutoff=0.6)
    return by_name[found[0]] if found else None


def _siblings(key: str) -> list[str]:
    parent = key.rpartition(".")[0]
    return [known for known in known_keys() if known.rpartition(".")[0] == parent]
