"""sources.yaml: its shape, and errors that name the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagelake.errors import EXIT_CONFIG, ConfigError
from imagelake.sources import SourceSpec, load_sources

GOOD = """
sources:
  - {name: photos, format: folder, path: in/photos, license: CC0-1.0, captions: {alt: "metadata.jsonl:caption"}}
  - {name: web, format: webdataset, path: "in/*.tar", captions: {alt: txt}, trust: [deduplicated]}
  - {name: hub, format: parquet, path: ["/data/a.parquet", b.parquet], image: image, captions: {alt: caption}}
"""


def sources(folder: Path, text: str) -> Path:
    path = folder / "sources.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def error_of(folder: Path, text: str) -> str:
    path = sources(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_sources(path)
    assert caught.value.exit_code == EXIT_CONFIG
    message = str(caught.value)
    assert str(path) in message
    return message.replace(str(path), "sources.yaml")


def test_the_documented_shape_loads_with_paths_relative_to_the_file(tmp_path: Path) -> None:
    photos, web, hub = load_sources(sources(tmp_path, GOOD))
    assert (photos.name, photos.format, photos.license, photos.captions) == (
        "photos",
        "folder",
        "CC0-1.0",
        {"alt": "metadata.jsonl:caption"},
    )
    assert photos.path == (str(tmp_path / "in/photos"),)
    assert web.path == (str(tmp_path / "in/*.tar"),)
    assert web.trust == ("deduplicated",)
    assert hub.path == ("/data/a.parquet", str(tmp_path / "b.parquet"))


def test_a_spec_survives_json(tmp_path: Path) -> None:
    for spec in load_sources(sources(tmp_path, GOOD)):
        text = spec.model_dump_json()
        assert SourceSpec.model_validate_json(text).model_dump_json() == text


def one(extra: str, *, format: str = "webdataset") -> str:
    return f"sources: [{{name: a, format: {format}, path: x, {extra}}}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (one("captoins: {alt: txt}"), "sources.yaml: sources[0].captoins: unknown key, did you mean 'captions'?"),
        (
            "sources: [{name: a, format: zip, path: x}]",
            "sources.yaml: sources[0].format: unknown format 'zip': one of folder, parquet, webdataset",
        ),
        ("sources: [{name: a, format: folder}]", "sources.yaml: sources[0].path: is missing"),
        ("source: []", "sources.yaml: source: unknown key, did you mean 'sources'?"),
        ("sources: []", "sources.yaml: sources: expected a list of at least one source"),
        ("[]", "sources.yaml: expected `sources:`"),
        ("sources: [text]", "sources.yaml: sources[0]: expected keys and values"),
        ("sources: [{", "sources.yaml: not YAML: line 1, column 12: "),
        ("sources: []\n\nsources: []", "sources.yaml: not YAML: line 3, column 1: key 'sources' stands twice"),
        ("# é\nsources:\n- \0", "sources.yaml: not YAML: line 3: character '\\x00' has no place in YAML"),
        (one("captions: {Alt: txt}"), "sources.yaml: sources[0].captions: caption name 'Alt'"),
        (one("captions: {'': txt}"), "sources.yaml: sources[0].captions: caption name ''"),
        (one("captions: {alt: ''}"), "sources.yaml: sources[0].captions.alt: is empty"),
        (one("captions: {alt: 3}"), "sources.yaml: sources[0].captions.alt: Input should be a valid string"),
        (one("captions: {alt: 'json:'}"), "sources[0].captions.alt: 'json:' is neither an extension"),
        (
            one("captions: {alt: 'meta.xml:caption'}", format="folder"),
            "sources[0].captions.alt: 'meta.xml:caption' is neither a metadata file",
        ),
        (one("captions: {alt: jpg}", format="folder"), "sources[0].captions.alt: 'jpg' is an image's extension"),
        (one("image: x", format="folder"), "sources[0].image: not for a folder"),
        (one("file_column: x", format="parquet"), "sources[0].file_column: only for a folder"),
        (one("trust: [nsfw]"), "sources.yaml: sources[0].trust[0]: unknown flag 'nsfw': one of deduplicated"),
        ("sources: [{name: a, format: folder, path: 's3://bucket/x'}]", "sources[0].path: 's3://bucket/x' is no local path"),
        ("sources: [{name: a, format: webdataset, path: 'pipe:cat x'}]", "sources[0].path: 'pipe:cat x' is no local path"),
        (
            "sources: [{name: a, format: folder, path: x}, {name: a, format: folder, path: y}]",
            "sources[1].name: 'a' is the name of sources[0] too",
        ),
        ("sources: [{name: 'a\\nb', format: folder, path: x}]".replace("'", '"'), "sources[0].name: a name is printable"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, text)


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "sources.yaml").write_bytes("sources:\n- name: Möwe".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"sources\.yaml: not YAML: line 2: not UTF-8"):
        load_sources(tmp_path / "sources.yaml")


def test_a_missing_sources_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_sources(tmp_path / "nowhere.yaml")


def test_captions_with_nothing_behind_it_means_none(tmp_path: Path) -> None:
    (spec,) = load_sources(sources(tmp_path, "sources:\n- name: a\n  format: folder\n  path: x\n  captions:\n"))
    assert spec.captions == {}
