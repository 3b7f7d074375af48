"""Parquet sources: image columns of both kinds, captions of every kind, row groups as units, errors that name file and column."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagelake.errors import ConfigError, RetryableError
from imagelake.sources import Record, SourceSpec, Unit, list_files, parquet, plan_units, read_unit, units


def spec_of(path: Path, **values: object) -> SourceSpec:
    base = {"name": "hub", "format": "parquet", "path": str(path), "captions": {"alt": "caption"}}
    return SourceSpec.model_validate(base | values)


def read(path: Path, *, target_bytes: int = 64 << 20, **values: object) -> list[Record]:
    spec = spec_of(path, **values)
    records = []
    for unit in plan_units(spec, list_files(spec), target_bytes):
        records += list(read_unit(spec, Unit.from_json(unit.to_json())))
    assert len({record.source_key for record in records}) == len(records)
    return records


def write(path: Path, columns: dict[str, pa.Array], **options: object) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


IMAGES = [b"one", None, b""]
STRUCTS = [{"bytes": b"one", "path": "1.jpg"}, {"bytes": None, "path": "/gone/2.jpg"}, {"bytes": b"", "path": None}]


@pytest.mark.parametrize(
    "image",
    [
        pa.array(IMAGES, pa.binary()),
        pa.array(IMAGES, pa.large_binary()),
        pa.array(STRUCTS, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        pa.array(STRUCTS, pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary())])),
    ],
    ids=["binary", "large_binary", "struct", "large struct"],
)
def test_an_image_is_binary_or_a_struct_with_bytes(tmp_path: Path, image: pa.Array) -> None:
    path = write(tmp_path / "a.parquet", {"image": image, "caption": pa.array(["a", None, "c"])})
    records = read(path)
    assert [(record.source_key, record.image, record.captions, record.fault) for record in records] == [
        ("a.parquet#0", b"one", {"alt": "a"}, None),
        ("a.parquet#1", None, {"alt": None}, "no_image"),
        ("a.parquet#2", b"", {"alt": "c"}, None),
    ]
    assert records[0].source_uri == path.as_uri() + "#0"
    if pa.types.is_struct(image.type):
        assert "/gone/2.jpg" in (records[1].fault_detail or "")


def test_a_null_struct_is_no_image(tmp_path: Path) -> None:
    image = pa.array([None, {"bytes": b"x", "path": None}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    assert [r.fault for r in read(write(tmp_path / "a.parquet", {"image": image}), captions={})] == ["no_image", None]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(["a", None]), ["a", None]),
        (pa.array(["a", ""], pa.large_string()), ["a", None]),
        (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        (pa.array([None, None], pa.null()), [None, None]),
        (pa.array([math.nan, None], pa.float64()), [None, None]),
        (pa.array([["", "b"], None], pa.list_(pa.string())), ["b", None]),
        (pa.array([b"caf\xc3\xa9", b"\xff"]), ["café", "\ufffd"]),
        (pa.array([{"deep": "a"}, None], pa.struct([("deep", pa.string())])), ["a", None]),
    ],
    ids=["string", "large_string", "dictionary", "null", "NaN", "list", "binary", "struct"],
)
def test_captions_of_every_type_are_text_or_null(tmp_path: Path, values: pa.Array, texts: list[str | None]) -> None:
    column = "caption.deep" if pa.types.is_struct(values.type) else "caption"
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1", b"2"]), "caption": values})
    assert [record.captions["alt"] for record in read(path, captions={"alt": column})] == texts


def test_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1"]), "caption": bad})
    assert read(path)[0].captions == {"alt": "a\ufffd"}


def test_a_column_name_with_a_dot_comes_before_a_path(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"x.image": pa.array([b"1"]), "x.caption": pa.array(["t"])})
    (record,) = read(path, image="x.image", captions={"alt": "x.caption"})
    assert (record.image, record.captions["alt"]) == (b"1", "t")


def test_licence_and_attribution_of_a_row_come_before_the_sources(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1", b"2"]), "lic": pa.array(["MIT", None]), "by": pa.array([None, "me"])})
    first, second = read(path, captions={}, license="CC0-1.0", license_column="lic", attribution_column="by")
    assert (first.license, first.attribution, second.license, second.attribution) == ("MIT", None, "CC0-1.0", "me")


def test_row_groups_are_units_and_rows_are_numbered_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([bytes([n]) * 1000 for n in range(10)])}, row_group_size=2)
    spec = spec_of(path, captions={})
    small = plan_units(spec, list_files(spec), 1)
    assert [(unit.start, unit.stop) for unit in small] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    target = 2 * small[0].size_bytes
    assert [(unit.start, unit.stop) for unit in plan_units(spec, list_files(spec), target)] == [(0, 2), (2, 4), (4, 5)]
    assert sum(unit.size_bytes for unit in small) >= 10_000
    for size in (1, target, 1 << 30):
        records = read(path, target_bytes=size, captions={})
        assert [(record.source_key, record.image) for record in records] == [(f"a.parquet#{n}", bytes([n]) * 1000) for n in range(10)]


def test_batches_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group past 2 GiB would overflow one array: it never becomes one."""
    path = write(tmp_path / "a.parquet", {"image": pa.array([bytes([n]) * 1000 for n in range(50)])}, use_dictionary=False)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 4000)
    sizes: list[int] = []
    rows = parquet._Columns.rows
    monkeypatch.setattr(parquet._Columns, "rows", lambda self, batch: (sizes.append(batch.num_rows), rows(self, batch))[1])
    assert len(read(path, captions={})) == 50
    assert max(sizes) <= 4


def test_only_the_wanted_columns_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1"]), "embedding": pa.array([[0.5] * 100_000])})
    spec = spec_of(path, captions={})
    (unit,) = plan_units(spec, list_files(spec))
    assert unit.size_bytes < 1000


def test_an_image_past_the_limit_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_IMAGE_BYTES", 3)
    records = read(write(tmp_path / "a.parquet", {"image": pa.array([b"1234", b"123"])}), captions={})
    assert [(record.image, record.fault) for record in records] == [(None, "too_many_bytes"), (b"123", None)]


def test_rows_that_cannot_be_read_are_faults_and_other_row_groups_are_kept(tmp_path: Path) -> None:
    images = [bytes([65 + n]) * 5000 for n in range(6)]
    options = {"row_group_size": 2, "use_dictionary": False, "compression": "NONE", "write_page_checksum": True}
    path = write(tmp_path / "a.parquet", {"image": pa.array(images)}, **options)
    data = bytearray(path.read_bytes())
    data[data.index(b"C" * 5000) + 100] ^= 1
    path.write_bytes(data)
    records = read(path, captions={})
    assert [record.image for record in records] == [*images[:2], None, None, *images[4:]]
    assert [record.fault for record in records] == [None, None, "unreadable_row", "unreadable_row", None, None]


def error_of(path: Path, **values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        list_files(spec_of(path, **values))
    return str(caught.value)


def test_a_wrong_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1"]), "captoin": pa.array(["x"]), "n": pa.array([1])})
    assert error_of(path) == (f"source 'hub'.captions.alt: {path}: no column 'caption', did you mean 'captoin'? It has: image, captoin, n")
    assert f"source 'hub'.image: {path}: no column 'photo'. It has: image" in error_of(path, image="photo", captions={})
    assert f"source 'hub'.image: {path}: column 'n' is int64, expected binary" in error_of(path, image="n", captions={})
    assert "column 'captoin.x'" in error_of(path, captions={"alt": "captoin.x"})
    assert "license_column" in error_of(path, captions={}, license_column="licence")


def test_drift_in_one_file_names_that_file(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"image": pa.array([b"1"]), "caption": pa.array(["x"])})
    write(tmp_path / "1.parquet", {"image": pa.array([b"1"]), "text": pa.array(["x"])})
    assert f"{tmp_path / '1.parquet'}: no column 'caption'" in error_of(tmp_path / "*.parquet")


def test_files_whose_types_differ_read_alike(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"image": pa.array([b"1"]), "caption": pa.array(["x"])})
    write(tmp_path / "1.parquet", {"image": pa.array([STRUCTS[0]]), "caption": pa.array([None], pa.null())})
    assert [record.captions["alt"] for record in read(tmp_path / "*.parquet")] == ["x", None]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all" * 10])
def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    assert f"source 'hub'.path: {tmp_path / 'a.parquet'} is no readable Parquet file" in error_of(tmp_path / "a.parquet")


def test_a_file_without_rows_has_no_units(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([], pa.binary()), "caption": pa.array([], pa.string())})
    assert read(path) == []


def test_a_file_that_changed_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pa.array([b"1"])})
    spec = spec_of(path, captions={})
    (unit,) = plan_units(spec, list_files(spec))
    write(path, {"image": pa.array([b"1", b"2"])})
    with pytest.raises(RetryableError, match="changed since it was listed"):
        list(read_unit(spec, unit))
    path.unlink()
    with pytest.raises(RetryableError, match="No such file"):
        list(read_unit(spec, unit))
