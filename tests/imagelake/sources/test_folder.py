"""Folders of images: which files are candidates, and where their captions come from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from imagelake.errors import ConfigError, RetryableError
from imagelake.sources import Record, SourceSpec, Unit, folder, list_files, metadata, plan_units, read_unit, units


def spec_of(path: Path | list[Path], **values: object) -> SourceSpec:
    return SourceSpec.model_validate(
        {"name": "photos", "format": "folder", "path": list(map(str, path if isinstance(path, list) else [path]))} | values
    )


def read(path: Path | list[Path], *, target_bytes: int = 64 << 20, **values: object) -> list[Record]:
    spec = spec_of(path, **values)
    records = []
    for unit in plan_units(spec, list_files(spec), target_bytes):
        records += list(read_unit(spec, Unit.from_json(unit.to_json())))
    assert len({record.source_key for record in records}) == len(records)
    return records


def fill(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def rows(records: list[Record]) -> dict[str, str | None]:
    return {record.source_key: record.captions.get("alt") for record in records if record.fault is None}


def faults(records: list[Record]) -> dict[str, str]:
    return {record.source_key: record.fault for record in records if record.fault is not None}


ALT = {"alt": "metadata.jsonl:caption"}


def jsonl(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_every_file_is_a_candidate_whatever_its_name(tmp_path: Path) -> None:
    names = [
        "a.jpg",
        "UPPER.JPEG",
        "no_extension",
        ".hidden",
        "notes.txt",
        "d/deep/x.bin",
        "d/.dot/y.png",
        "metadata.jsonl",
        "with space '\",.jpg",
    ]
    records = read(fill(tmp_path, {name: name for name in names}))
    assert [record.source_key for record in records] == sorted(names)
    assert [record.image for record in records] == [name.encode() for name in sorted(names)]
    assert records[0].source_uri == (tmp_path / sorted(names)[0]).as_uri()


def test_names_that_are_not_utf8_give_unique_valid_keys(tmp_path: Path) -> None:
    for name in (b"a\xff.jpg", b"a\\xff.jpg", b"a\xc3\xbf.jpg", b"new\nline.jpg", b"x!missing_file"):
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    records = {record.source_key: record.image for record in read(tmp_path)}
    assert records == {
        r"a\xff.jpg": b"a\xff.jpg",
        r"a\\xff.jpg": b"a\\xff.jpg",
        "aÿ.jpg": b"a\xc3\xbf.jpg",
        r"new\x0aline.jpg": b"new\nline.jpg",
        r"x\x21missing_file": b"x!missing_file",
    }
    assert all(key.encode() for key in records)


def test_links_to_files_count_and_links_to_folders_do_not(tmp_path: Path) -> None:
    fill(tmp_path, {"in/a.jpg": "a", "out/b.jpg": "b"})
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/away").symlink_to(tmp_path / "out")
    (tmp_path / "in/file.jpg").symlink_to(tmp_path / "out/b.jpg")
    (tmp_path / "in/dangling.jpg").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "in/pipe.jpg")
    assert list(rows(read(tmp_path / "in"))) == ["a.jpg", "file.jpg"]


def test_metadata_gives_captions_in_its_folder_and_below_and_the_nearest_speaks_first(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "d/b.jpg": "", "d/c.jpg": "", "d/e.jpg": ""})
    outer = jsonl(
        {"file_name": "a.jpg", "caption": "A"}, {"file_name": "d/b.jpg", "caption": "outer"}, {"file_name": "d/e.jpg", "caption": "E"}
    )
    inner = jsonl(
        {"file_name": "b.jpg", "caption": "inner"}, {"file_name": "./c.jpg", "caption": "C"}, {"file_name": "e.jpg", "caption": None}
    )
    fill(tmp_path, {"metadata.jsonl": outer, "d/metadata.jsonl": inner})
    records = read(tmp_path, captions=ALT)
    assert rows(records) == {"a.jpg": "A", "d/b.jpg": "inner", "d/c.jpg": "C", "d/e.jpg": "E"}
    assert faults(records) == {}


def test_units_of_one_file_read_the_same_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {f"{n}.jpg": "x" * 10 for n in range(5)})
    fill(tmp_path, {"metadata.jsonl": jsonl(*({"file_name": f"{n}.jpg", "caption": f"c{n}"} for n in range(5)))})
    expected = {f"{n}.jpg": f"c{n}" for n in range(5)}
    assert rows(read(tmp_path, captions=ALT, target_bytes=1)) == expected
    monkeypatch.setattr(metadata, "MAX_CACHED_BYTES", 0)
    assert rows(read(tmp_path, captions=ALT, target_bytes=20)) == expected


def test_quoted_newlines_in_csv_are_part_of_the_caption(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "b,1.jpg": "", "c.jpg": "", "d.jpg": ""})
    text = '\ufefffile_name,caption\na.jpg,"two\nlines, ""quoted"""\n\n"b,1.jpg",\nc.jpg,nan\r\nd.jpg\r\n'
    fill(tmp_path, {"metadata.csv": text})
    records = read(tmp_path, captions={"alt": "metadata.csv:caption"})
    assert rows(records) == {"a.jpg": 'two\nlines, "quoted"', "b,1.jpg": None, "c.jpg": None, "d.jpg": None}
    assert faults(records) == {}


def test_tsv_reads_like_csv(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "m.tsv": "file_name\tcaption\na.jpg\ta, b\n"})
    assert rows(read(tmp_path, captions={"alt": "m.tsv:caption"})) == {"a.jpg": "a, b"}


def test_bad_rows_are_faults_with_their_line_and_the_others_are_kept(tmp_path: Path) -> None:
    good = jsonl({"file_name": "a.jpg", "caption": "A"})
    lines = [
        "{",
        "",
        "[]",
        jsonl({"caption": "no name"}),
        jsonl({"file_name": 3}),
        jsonl({"file_name": "../x.jpg"}),
        jsonl({"file_name": "/etc/passwd"}),
    ]
    lines += [jsonl({"file_name": "gone.jpg"}), jsonl({"file_name": "a.jpg", "caption": "again"}), '{"file_name": "b.jpg", "caption": NaN}']
    fill(tmp_path / "in", {"a.jpg": "", "b.jpg": "", "metadata.jsonl": good + "\n".join(line.strip() for line in lines)})
    fill(tmp_path, {"x.jpg": ""})
    records = read(tmp_path / "in", captions=ALT)
    assert rows(records) == {"a.jpg": "A", "b.jpg": None}
    assert faults(records) == {f"metadata.jsonl#{line}!bad_metadata": "bad_metadata" for line in (2, 4, 5, 6, 7, 8)} | {
        "metadata.jsonl#9!missing_file": "missing_file",
        "metadata.jsonl#10!duplicate_metadata": "duplicate_metadata",
    }


def test_csv_rows_with_too_many_cells_or_endless_ones_are_faults(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "b.jpg": "", "metadata.csv": f'file_name,caption\na.jpg,red, green\na.jpg,"{"x" * 200_000}\nb.jpg,B\n'})
    records = read(tmp_path, captions={"alt": "metadata.csv:caption"})
    assert rows(records) == {"a.jpg": None, "b.jpg": "B"}
    assert faults(records) == {"metadata.csv#2!bad_metadata": "bad_metadata", "metadata.csv#3!bad_metadata": "bad_metadata"}


def test_a_line_without_end_is_one_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_CAPTION_BYTES", 100)
    text = jsonl({"file_name": "a.jpg", "caption": "x" * 1000}) + jsonl({"file_name": "b.jpg", "caption": "B"})
    records = read(fill(tmp_path, {"a.jpg": "", "b.jpg": "", "metadata.jsonl": text}), captions=ALT)
    assert rows(records) == {"a.jpg": None, "b.jpg": "B"}
    assert faults(records) == {"metadata.jsonl#1!bad_metadata": "bad_metadata"}


def test_metadata_may_lie_in_another_column_file_or_depth(tmp_path: Path) -> None:
    row = {"path": "../photos/a.jpg", "captions": ["first", "second"], "info": {"licence": "MIT", "by": "me"}}
    fill(tmp_path, {"photos/a.jpg": "", "meta/all.jsonl": jsonl(row), "photos/all.jsonl": "x"})
    rules = {
        "captions": {"alt": "meta/all.jsonl:captions", "second": "meta/all.jsonl:captions.1"},
        "license_column": "meta/all.jsonl:info.licence",
    }
    records = read(tmp_path, file_column="path", license="CC0-1.0", attribution_column="meta/all.jsonl:info.by", **rules)
    assert faults(records) == {"meta/all.jsonl#1!bad_metadata": "bad_metadata"}  # metadata speak for what is below them
    fill(tmp_path, {"all.jsonl": jsonl(row | {"path": "photos/a.jpg"})})
    (tmp_path / "photos/all.jsonl").unlink()
    rules = {"captions": {"alt": "all.jsonl:captions", "second": "all.jsonl:captions.1"}, "license_column": "all.jsonl:info.licence"}
    records = read(tmp_path, file_column="path", license="CC0-1.0", attribution_column="all.jsonl:info.by", **rules)
    (image,) = (record for record in records if record.source_key == "photos/a.jpg")
    assert image.captions == {"alt": "first", "second": "second"}
    assert (image.license, image.attribution) == ("MIT", "me")


def test_sibling_texts_are_captions_only_beside_an_image(tmp_path: Path) -> None:
    files = {
        "a.jpg": "",
        "a.txt": "A\r\n",
        "b.c.png": "",
        "b.c.TXT": "BC",
        "alone.txt": "no image",
        "bin": "",
        "bin.txt": "",
        "d/a.txt": "elsewhere",
    }
    records = read(fill(tmp_path, files), captions={"alt": "txt"})
    assert rows(records) == {"a.jpg": "A", "b.c.png": "BC", "alone.txt": None, "bin": None, "bin.txt": None, "d/a.txt": None}
    assert len(read(tmp_path)) == len(files)


def test_a_sibling_past_the_limit_is_a_fault_beside_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_CAPTION_BYTES", 10)
    records = read(fill(tmp_path, {"a.jpg": "", "a.png": "", "a.txt": "x" * 11}), captions={"alt": "txt"})
    assert rows(records) == {"a.jpg": None, "a.png": None}
    assert faults(records) == {f"a.{kind}!caption_too_large_alt": "caption_too_large" for kind in ("jpg", "png")}


def test_a_file_past_the_limit_or_unreadable_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_IMAGE_BYTES", 3)
    fill(tmp_path, {"a.jpg": "1234", "b.jpg": "123"})
    records = read(tmp_path)
    assert (rows(records), faults(records)) == ({"b.jpg": None}, {"a.jpg": "too_many_bytes"})
    spec = spec_of(tmp_path)
    (unit,) = plan_units(spec, list_files(spec))

    def refuse(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert faults(list(read_unit(spec, unit)))["b.jpg"] == "unreadable_file"


def test_units_are_bounded_by_bytes_and_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(fill(tmp_path, {f"{n}": "x" * 10 for n in range(7)}))
    assert [len(unit.files) for unit in plan_units(spec, list_files(spec), 20)] == [2, 2, 2, 1]
    assert [len(unit.files) for unit in plan_units(spec, list_files(spec), 1)] == [1] * 7
    monkeypatch.setattr(folder, "MAX_UNIT_FILES", 3)
    assert [unit.size_bytes for unit in plan_units(spec, list_files(spec))] == [30, 30, 10]


def test_new_files_alone_still_find_the_metadata(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "b.jpg": "", "metadata.jsonl": jsonl({"file_name": "b.jpg", "caption": "B"})})
    spec = spec_of(tmp_path, captions=ALT)
    new = [file for file in list_files(spec) if file.key == "b.jpg"]
    (unit,) = plan_units(spec, new)
    assert rows(list(read_unit(spec, unit))) == {"b.jpg": "B"}


def error_of(spec: SourceSpec) -> str:
    with pytest.raises(ConfigError) as caught:
        list_files(spec)
    return str(caught.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "metadata.csv": "file_name,text\na.jpg,x\n", "p.jsonl": jsonl({"path": "a.jpg", "caption": "x"})})
    assert error_of(spec_of(tmp_path / "no")) == f"source 'photos'.path: {tmp_path / 'no'} does not exist"
    assert error_of(spec_of(tmp_path / "*.png")) == f"source 'photos'.path: no file matches {tmp_path / '*.png'}"
    assert error_of(spec_of([tmp_path, tmp_path / "no"])).startswith("source 'photos'.path[1]: ")
    assert "captions.alt: no file 'metadata.jsonl' in" in error_of(spec_of(tmp_path, captions=ALT))
    wrong = error_of(spec_of(tmp_path, captions={"alt": "metadata.csv:caption"}))
    assert wrong == f"source 'photos'.captions.alt: {tmp_path / 'metadata.csv'}: no column 'caption'; it has: file_name, text"
    assert "file_column: " in error_of(spec_of(tmp_path, captions={"alt": "p.jsonl:caption"}))


def test_globs_take_keys_from_their_fixed_part_and_files_only_once(tmp_path: Path) -> None:
    fill(tmp_path, {"x/1/a.jpg": "", "x/2/a.jpg": "", "x/.h/a.jpg": "", "y [1]/b.jpg": ""})
    assert list(rows(read(tmp_path / "x/*/*.jpg"))) == ["1/a.jpg", "2/a.jpg"]
    assert list(rows(read(tmp_path / "y [1]"))) == ["b.jpg"]
    both = [tmp_path / "x/*/*.jpg", tmp_path / "x/1"]
    assert list(rows(read(both))) == ["1/a.jpg", "2/a.jpg"]
    clash = [tmp_path / "x/1", tmp_path / "x/2"]
    assert "have the same key 'a.jpg'" in error_of(spec_of(clash))


def test_a_file_or_metadata_that_changed_after_listing_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": "", "metadata.jsonl": jsonl({"file_name": "a.jpg", "caption": "A"})})
    spec = spec_of(tmp_path, captions=ALT)
    about_rows, about_images = plan_units(spec, list_files(spec))
    fill(tmp_path, {"metadata.jsonl": ""})
    for unit in (about_rows, about_images):
        with pytest.raises(RetryableError, match=r"metadata\.jsonl: changed"):
            list(read_unit(spec, unit))
    _, about_images = plan_units(spec, list_files(spec))
    fill(tmp_path, {"a.jpg": "longer"})
    with pytest.raises(RetryableError, match=r"a\.jpg: changed"):
        list(read_unit(spec, about_images))
