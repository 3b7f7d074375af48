from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from imagelake.sources import SourceSpec, list_files, unread_metadata
from imagelake.sources.manifest import compare, spec_digest
from imagelake.tables import SOURCE_FILES


def spec(folder: Path, **changes: object) -> SourceSpec:
    return SourceSpec.model_validate({"name": "made", "format": "folder", "path": str(folder)} | changes)


def pin(source: SourceSpec) -> pa.Table:
    rows = [
        {"source": file.source, "key": file.key, "size_bytes": file.size, "mtime_ns": file.mtime_ns, "spec_digest": spec_digest(source)}
        for file in list_files(source)
    ]
    return pa.Table.from_pylist(rows, SOURCE_FILES.schema)


def test_files_are_new_known_changed_or_gone(tmp_path: Path) -> None:
    for name in ("same.jpg", "touched.jpg", "lost.jpg"):
        (tmp_path / name).write_text("x")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "same.jpg", "text": "x"}')
    source = spec(tmp_path, captions={"alt": "metadata.jsonl:text"})
    pinned = pin(source)
    (tmp_path / "touched.jpg").write_text("longer")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "same.jpg", "text": "it may grow"}')
    (tmp_path / "lost.jpg").unlink()
    (tmp_path / "fresh.jpg").write_text("x")
    found = compare([source], list_files(source), pinned)
    assert [file.key for file in found.new] == ["fresh.jpg"]
    assert [file.key for file in found.changed] == ["touched.jpg"]
    assert [file.key for file in found.known] == ["metadata.jsonl", "same.jpg"]
    assert (found.gone, found.redeclared) == ([("made", "lost.jpg")], {})


def test_a_source_declared_otherwise_is_named_unless_only_its_place_differs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_text("x")
    pinned = pin(spec(tmp_path / "a"))
    files = list_files(spec(tmp_path / "a"))
    assert compare([spec(tmp_path / "a", license="CC0-1.0")], files, pinned).redeclared.keys() == {"made"}
    (tmp_path / "a").rename(tmp_path / "b")
    assert not compare([spec(tmp_path / "b")], files, pinned).redeclared


def test_another_sources_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_text("x")
    other = spec(tmp_path, name="other")
    found = compare([other], list_files(other), pin(spec(tmp_path)))
    assert [file.key for file in found.new] == ["1.jpg"]
    assert not found.gone


def test_a_metadata_file_that_no_rule_names_is_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_text("x")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "1.jpg", "text": "x"}')
    bare, ruled = spec(tmp_path), spec(tmp_path, captions={"alt": "metadata.jsonl:text"})
    (hint,) = unread_metadata(bare, list_files(bare))
    assert "metadata.jsonl is read as an image" in hint and '{alt: "metadata.jsonl:text"}' in hint
    assert not unread_metadata(ruled, list_files(ruled))
    assert not unread_metadata(spec(tmp_path, name="other"), list_files(bare))  # the files are those of all sources
