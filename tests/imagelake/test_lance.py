from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from imagelake import columns as C
from imagelake import lance, tables
from imagelake.errors import ImagelakeError
from imagelake.tables import CURATED, Table
from tests.lake_fixture import annotations, append_curated, curated, images_by_id


def rows(*ids: str, **changes: Any) -> list[dict[str, Any]]:
    return [curated(image_id, **changes) for image_id in ids]


def expected_images(*ids: str) -> dict[str, str]:
    return {image_id: curated(image_id)[C.SHA256] for image_id in ids}


def column(lake: Path, name: str) -> dict[str, Any]:
    table = lance.scan(lake, CURATED, [C.IMAGE_ID, name])
    return dict(zip(table[C.IMAGE_ID].to_pylist(), table[name].to_pylist(), strict=True))


def data_files(lake: Path) -> dict[str, str]:
    """sha256 of every data file of the table by its name, the files of blobs included."""
    folder = lake / CURATED.path / "data"
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def live_files(lake: Path) -> set[str]:
    """Names of the data files that the newest version reads."""
    return {file.path for fragment in lance.open_table(lake, CURATED).get_fragments() for file in fragment.data_files()}


def test_a_table_that_was_never_made_is_absent(tmp_path: Path) -> None:
    assert not lance.exists(tmp_path, CURATED)
    assert lance.version(tmp_path, CURATED) == -1
    with pytest.raises(ImagelakeError, match="curated has not run"):
        lance.open_table(tmp_path, CURATED)


def test_create_twice_is_create_once(tmp_path: Path) -> None:
    lance.create(tmp_path, CURATED)
    version = lance.version(tmp_path, CURATED)
    append_curated(tmp_path, rows("a"), "one")
    lance.create(tmp_path, CURATED)
    assert lance.version(tmp_path, CURATED) == version + 1
    assert images_by_id(tmp_path) == expected_images("a")


def test_images_come_back_byte_for_byte_by_row_address(tmp_path: Path) -> None:
    # Large and small blobs are stored in different ways.
    blobs = {"empty-ish": b"x", "small": b"s" * 1000, "large": np.random.default_rng(0).bytes(6 << 20)}
    append_curated(tmp_path, [curated(key, data) for key, data in blobs.items()], "one", fragments=2)
    assert images_by_id(tmp_path) == {key: hashlib.sha256(data).hexdigest() for key, data in blobs.items()}


def test_blobs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    ids = [f"{n:03}" for n in range(200)]
    version = append_curated(tmp_path, rows(*ids), "one", fragments=3)
    table = lance.open_table(tmp_path, CURATED).scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()
    order = np.random.default_rng(1).permutation(len(ids))
    addresses = table[lance.ROW_ADDRESS].to_numpy()[order]
    wanted = [table[C.IMAGE_ID][int(place)].as_py() for place in order]
    found = lance.BlobReader.open(tmp_path, CURATED, C.IMAGE, version).fetch(addresses)
    assert found == [curated(image_id)[C.IMAGE] for image_id in wanted]


def test_a_reader_sees_the_version_that_it_opened(tmp_path: Path) -> None:
    version = append_curated(tmp_path, rows("a", "b"), "one")
    addresses = lance.open_table(tmp_path, CURATED).scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()
    lance.delete_ids(tmp_path, CURATED, ["a"])
    found = lance.BlobReader.open(tmp_path, CURATED, C.IMAGE, version).fetch(addresses[lance.ROW_ADDRESS].to_numpy())
    assert found == [curated("a")[C.IMAGE], curated("b")[C.IMAGE]]


def test_a_row_address_that_is_gone_is_an_error_not_a_shift(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b", "c"), "one")
    before = lance.open_table(tmp_path, CURATED).scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()
    version = lance.delete_ids(tmp_path, CURATED, ["b"])
    reader = lance.BlobReader.open(tmp_path, CURATED, C.IMAGE, version)
    with pytest.raises((ImagelakeError, OSError, ValueError, NotImplementedError)):
        reader.fetch(before[lance.ROW_ADDRESS].to_numpy())


def test_a_batch_is_appended_once(tmp_path: Path) -> None:
    first = append_curated(tmp_path, rows("a", "b"), "one")
    assert append_curated(tmp_path, rows("a", "b"), "one") == first
    assert append_curated(tmp_path, rows("c"), "two") == first + 1
    assert append_curated(tmp_path, rows("a", "b"), "one") == first + 1
    assert sorted(images_by_id(tmp_path)) == ["a", "b", "c"]


def test_a_batch_is_known_after_other_writes(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a"], caption=["x"]))
    lance.delete_ids(tmp_path, CURATED, ["nobody"])
    version = lance.version(tmp_path, CURATED)
    assert append_curated(tmp_path, rows("a"), "one") == version


def test_a_batch_is_known_after_a_compaction_of_indexed_rows(tmp_path: Path) -> None:
    # pylance fails to show the transaction of such a compaction.
    append_curated(tmp_path, rows("a", "b", "c", "d"), "one", fragments=4)
    lance.index(tmp_path, CURATED, {C.IMAGE_ID: "BTREE"}, [])
    assert lance.compact(tmp_path, CURATED, fragment_bytes=1 << 30, max_rows=1 << 20)["fragments_after"] == 1
    version = lance.version(tmp_path, CURATED)
    assert append_curated(tmp_path, rows("a", "b", "c", "d"), "one") == version
    assert append_curated(tmp_path, rows("e"), "two") == version + 1
    assert images_by_id(tmp_path) == expected_images("a", "b", "c", "d", "e")


def test_rows_that_no_commit_shows_are_invisible(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a"), "one")
    lance.stage_rows(tmp_path, CURATED, rows("ghost"))
    assert images_by_id(tmp_path) == expected_images("a")


def test_staging_takes_rows_in_batches_without_losing_one(tmp_path: Path) -> None:
    lance.create(tmp_path, CURATED)
    ids = [f"{n:03}" for n in range(70)]
    staged = lance.stage_rows(tmp_path, CURATED, (curated(image_id) for image_id in ids), rows_per_batch=32)
    lance.commit_append(tmp_path, CURATED, staged, "one")
    assert images_by_id(tmp_path) == expected_images(*ids)
    assert all(isinstance(json.loads(text), dict) for text in staged)


def test_captions_land_under_their_keys(tmp_path: Path) -> None:
    # Fragments staged in the wrong mode number their columns by position: after a column was added, values shift silently.
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["b", "a"], caption=["of b", "of a"], caption_status=["ok", "ok"]))
    append_curated(tmp_path, rows("c", source="other"), "two")
    table = lance.scan(tmp_path, CURATED, [C.IMAGE_ID, C.SOURCE, C.CAPTIONS, C.LICENSE, "caption", "caption_status"])
    assert sorted(table.to_pylist(), key=lambda row: row[C.IMAGE_ID]) == [
        {
            C.IMAGE_ID: key,
            C.SOURCE: source,
            C.CAPTIONS: [{"name": "alt", "text": f"alt of {key}"}],
            C.LICENSE: "CC0-1.0",
            "caption": caption,
            "caption_status": status,
        }
        for key, source, caption, status in [("a", "made", "of a", "ok"), ("b", "made", "of b", "ok"), ("c", "other", None, None)]
    ]


def test_rows_are_staged_by_column_name_not_by_place(tmp_path: Path) -> None:
    # The trap: fragments staged as overwrite number their columns by position, and their values land under other names.
    old = Table("t", "t.lance", "lance", pa.schema([("image_id", pa.string()), ("x", pa.string()), ("y", pa.string())]), ("image_id",), "")
    reordered = replace(old, schema=pa.schema([("image_id", pa.string()), ("y", pa.string()), ("x", pa.string())]))
    lance.create(tmp_path, old)
    staged = lance.stage_rows(tmp_path, reordered, [{"image_id": "a", "x": "of x", "y": "of y"}])
    lance.commit_append(tmp_path, old, staged, "one")
    assert lance.scan(tmp_path, old, ["image_id", "x", "y"]).to_pylist() == [{"image_id": "a", "x": "of x", "y": "of y"}]


def test_a_column_is_added_without_touching_image_bytes(tmp_path: Path) -> None:
    ids = [f"{n:02}" for n in range(30)]
    append_curated(tmp_path, [curated(image_id, image_id.encode() * 200_000) for image_id in ids], "one", fragments=3)
    files, live, images = data_files(tmp_path), live_files(tmp_path), images_by_id(tmp_path)
    values = annotations(ids[::-1], caption=[f"of {image_id}" for image_id in ids[::-1]])
    version, changed = lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values)
    assert (version, changed) == (lance.version(tmp_path, CURATED), 30)
    assert column(tmp_path, "caption") == {image_id: f"of {image_id}" for image_id in ids}
    after = data_files(tmp_path)
    assert {name: after.get(name) for name in files} == files
    assert live <= live_files(tmp_path)
    added = sum((tmp_path / CURATED.path / "data" / name).stat().st_size for name in after.keys() - files.keys())
    assert added < 100_000, "the new files are larger than thirty captions"
    assert images_by_id(tmp_path) == images


def test_only_values_that_differ_are_changed(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b", "c", "d"), "one", fragments=2)
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b", "c", "d"], caption=["1", "2", None, "4"]))
    live = live_files(tmp_path)
    _, changed = lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b", "c"], caption=["1", "zwei", "drei"]))
    assert changed == 2
    assert column(tmp_path, "caption") == {"a": "1", "b": "zwei", "c": "drei", "d": "4"}
    assert {name for name in live if name in live_files(tmp_path)}, "every file was replaced"
    assert images_by_id(tmp_path) == expected_images("a", "b", "c", "d")


def test_the_same_values_again_write_nothing(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one", fragments=2)
    values = annotations(["a", "b"], caption=["x", None], score=[0.5, 1.5])
    version, _ = lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values)
    assert lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values) == (version, 0)
    assert lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values.take([1, 0])) == (version, 0)


def test_a_value_can_become_null(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b"], caption=["x", "y"]))
    empty = pa.table({C.IMAGE_ID: ["a"], "caption": pa.array([None], pa.string())})
    assert lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, empty)[1] == 1
    assert column(tmp_path, "caption") == {"a": None, "b": "y"}


def test_old_and_new_columns_in_one_call(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b"], caption=["x", "y"]))
    _, changed = lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b"], caption=["x", "z"], label=["A", "B"]))
    assert changed > 0
    assert (column(tmp_path, "caption"), column(tmp_path, "label")) == ({"a": "x", "b": "z"}, {"a": "A", "b": "B"})


def test_values_of_rows_that_are_gone_are_ignored(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.delete_ids(tmp_path, CURATED, ["a"])
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b", "stranger"], caption=["x", "y", "z"]))
    assert column(tmp_path, "caption") == {"b": "y"}


def test_an_id_twice_among_the_values_is_refused(tmp_path: Path) -> None:
    version = append_curated(tmp_path, rows("a"), "one")
    with pytest.raises(ImagelakeError, match="image_id is repeated"):
        lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "a"], caption=["x", "y"]))
    assert lance.version(tmp_path, CURATED) == version


def test_rows_appended_after_a_column_was_added_get_it_later(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b"], caption=["of a", "of b"]))
    append_curated(tmp_path, rows("c", "d"), "two")
    assert column(tmp_path, "caption") == {"a": "of a", "b": "of b", "c": None, "d": None}
    values = annotations(["a", "b", "c", "d"], caption=["of a", "of b", "of c", "of d"])
    assert lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values)[1] == 2
    assert column(tmp_path, "caption") == {"a": "of a", "b": "of b", "c": "of c", "d": "of d"}
    assert images_by_id(tmp_path) == expected_images("a", "b", "c", "d")


def test_delete_annotate_and_compact_keep_every_image(tmp_path: Path) -> None:
    ids = [f"{n:02}" for n in range(24)]
    for batch in range(6):
        append_curated(tmp_path, rows(*ids[batch * 4 : batch * 4 + 4]), f"batch {batch}", fragments=2)
    gone, left = ids[::5], [image_id for image_id in ids if image_id not in ids[::5]]
    lance.delete_ids(tmp_path, CURATED, gone, chunk=2)
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(left, caption=[f"of {image_id}" for image_id in left]))
    lance.index(tmp_path, CURATED, {C.IMAGE_ID: "BTREE", C.SOURCE: "BITMAP"}, ["caption"])
    counts = lance.compact(tmp_path, CURATED, fragment_bytes=16 << 30, max_rows=1 << 20)
    assert counts == {"fragments_before": 12, "fragments_after": 1}
    assert images_by_id(tmp_path) == expected_images(*left)
    assert column(tmp_path, "caption") == {image_id: f"of {image_id}" for image_id in left}
    found = lance.scan(tmp_path, CURATED, [C.IMAGE_ID], where=f"image_id = '{left[7]}'")
    assert found[C.IMAGE_ID].to_pylist() == [left[7]]
    values = annotations(left, caption=[f"new {image_id}" for image_id in left])
    assert lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, values)[1] == len(left)
    assert images_by_id(tmp_path) == expected_images(*left)
    assert column(tmp_path, "caption") == {image_id: f"new {image_id}" for image_id in left}


def test_compacting_twice_is_compacting_once(tmp_path: Path) -> None:
    for batch in range(5):
        append_curated(tmp_path, rows(f"{batch}a", f"{batch}b"), f"batch {batch}")
    lance.compact(tmp_path, CURATED, fragment_bytes=16 << 30, max_rows=1 << 20)
    version = lance.version(tmp_path, CURATED)
    again = lance.compact(tmp_path, CURATED, fragment_bytes=16 << 30, max_rows=1 << 20)
    assert again == {"fragments_before": 1, "fragments_after": 1}
    assert lance.version(tmp_path, CURATED) == version


def test_fragments_are_compacted_towards_bytes(tmp_path: Path) -> None:
    data = b"x" * 10_000
    for batch in range(12):
        append_curated(tmp_path, [curated(f"{batch}a", data), curated(f"{batch}b", data)], f"batch {batch}")
    lance.compact(tmp_path, CURATED, fragment_bytes=80_000, max_rows=1 << 20)
    sizes = [fragment.count_rows() for fragment in lance.open_table(tmp_path, CURATED).get_fragments()]
    assert sum(sizes) == 24
    assert 2 <= len(sizes) <= 4
    version = lance.version(tmp_path, CURATED)
    lance.compact(tmp_path, CURATED, fragment_bytes=80_000, max_rows=1 << 20)
    assert lance.version(tmp_path, CURATED) == version


def test_a_table_that_has_few_fragments_too_many_is_left_alone(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one", fragments=2)
    version = lance.version(tmp_path, CURATED)
    counts = lance.compact(tmp_path, CURATED, fragment_bytes=16 << 30, max_rows=1 << 20)
    assert counts == {"fragments_before": 2, "fragments_after": 2}
    assert lance.version(tmp_path, CURATED) == version


def test_an_empty_table_is_left_alone(tmp_path: Path) -> None:
    lance.create(tmp_path, CURATED)
    version = lance.version(tmp_path, CURATED)
    lance.compact(tmp_path, CURATED, fragment_bytes=1 << 30, max_rows=1 << 20)
    assert lance.version(tmp_path, CURATED) == version


def search(lake: Path, words: str) -> set[str]:
    found = lance.open_table(lake, CURATED).to_table(full_text_query=words, columns=[C.IMAGE_ID], limit=10)
    return set(found[C.IMAGE_ID].to_pylist())


def test_text_is_found_in_english_and_chinese(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("en", "zh", "ja", "none"), "one")
    texts = ["A red car on a wet street", "一只红色的汽车停在街道上", "赤い車が通りに停まっている", None]
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["en", "zh", "ja", "none"], caption=texts))
    touched = lance.index(tmp_path, CURATED, {C.IMAGE_ID: "BTREE", C.BUCKET: "BITMAP"}, ["caption"])
    assert touched == ["image_id_btree", "bucket_bitmap", "caption_fts"]
    assert search(tmp_path, "street") == {"en"}
    assert search(tmp_path, "汽车") == {"zh"}
    assert search(tmp_path, "車") == {"ja"}
    assert search(tmp_path, "bicycle") == set()


def test_indices_are_built_once_and_extended_to_new_rows(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a"], caption=["a boat"]))
    scalar = {C.IMAGE_ID: "BTREE"}
    lance.index(tmp_path, CURATED, scalar, ["caption"])
    version = lance.version(tmp_path, CURATED)
    assert lance.index(tmp_path, CURATED, scalar, ["caption"]) == []
    assert lance.version(tmp_path, CURATED) == version
    append_curated(tmp_path, rows("b"), "two")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["b"], caption=["a boat in the harbour"]))
    assert set(lance.index(tmp_path, CURATED, scalar, ["caption"])) == {"image_id_btree", "caption_fts"}
    assert search(tmp_path, "boat") == {"a", "b"}
    assert lance.index(tmp_path, CURATED, scalar, ["caption"]) == []


def test_a_changed_caption_is_found_by_its_new_words_only(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a", "b"), "one")
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a", "b"], caption=["a boat", "a tree"]))
    lance.index(tmp_path, CURATED, {}, ["caption"])
    lance.set_columns(tmp_path, CURATED, C.IMAGE_ID, annotations(["a"], caption=["a lighthouse"]))
    lance.index(tmp_path, CURATED, {}, ["caption"])
    assert search(tmp_path, "lighthouse") == {"a"}
    assert search(tmp_path, "boat") == set()
    assert search(tmp_path, "tree") == {"b"}


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    append_curated(tmp_path, rows("a"), "one")
    with pytest.raises(ImagelakeError, match=r"no column Caption; it has image_id, "):
        lance.scan(tmp_path, CURATED, [C.IMAGE_ID, "Caption"])


def test_an_older_version_can_be_read(tmp_path: Path) -> None:
    version = append_curated(tmp_path, rows("a"), "one")
    append_curated(tmp_path, rows("b"), "two")
    assert lance.scan(tmp_path, CURATED, [C.IMAGE_ID], at=version)[C.IMAGE_ID].to_pylist() == ["a"]
    assert lance.column_names(tmp_path, CURATED, version) == tables.CURATED.schema.names


def test_a_null_image_is_an_error_that_names_the_table(tmp_path: Path) -> None:
    version = append_curated(tmp_path, [curated("a") | {C.IMAGE: None}], "one")
    address = lance.open_table(tmp_path, CURATED).scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()[lance.ROW_ADDRESS]
    with pytest.raises(ImagelakeError, match=r"curated\.lance.*have no image"):
        lance.BlobReader.open(tmp_path, CURATED, C.IMAGE, version).fetch(address.to_numpy())
