from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from PIL import Image

from imagelake import corpus, mds, skiplist
from imagelake.corpus import BucketSummary
from imagelake.errors import ConfigError, GateError
from imagelake.skiplist import SkipList
from imagelake.verifyreport import gate
from jobs import verify
from jobs.verify import check_corpus
from tests.corpus_fixture import COLUMNS, ROWS, jpeg_bytes, make_corpus, sample

BUCKET = "512/1.000"
SHARD = "export_a/shard.00001.mds"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clean")
    make_corpus(root)
    return root


@pytest.fixture
def root(clean: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "corpus"))


@pytest.fixture(autouse=True)
def processes_even_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "POOL_MIN_BYTES", 0)


def kinds_of(root: Path, **options: Any) -> set[str]:
    return set(check_corpus(root, workers=1, **options).counts)


def reseal(root: Path, bucket: str, entries: list[dict[str, Any]]) -> None:
    """Make index and release agree with the files again: what a writer with the same bug everywhere would leave."""
    folder = root / bucket
    for entry in entries:
        data = (folder / entry["raw_data"]["basename"]).read_bytes()
        entry["raw_data"] |= {"bytes": len(data), "hashes": {"xxh3_64": xxhash.xxh3_64_hexdigest(data)}}
        entry["samples"] = int.from_bytes(data[:4], "little")
    mds.write_index(folder, entries)
    release = corpus.read_release(root)
    buckets = release.buckets | {bucket: BucketSummary.of(entries)}
    rows = sum(summary.rows for summary in buckets.values())
    corpus.write_release(root, release.model_copy(update={"buckets": buckets, "rows": rows}))


def patch(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("decode", [True, False])
def test_a_sound_corpus_has_no_faults_and_every_sample_is_counted(clean: Path, workers: int, decode: bool) -> None:
    seen: list[tuple[int, int]] = []
    report = check_corpus(clean, workers=workers, decode=decode, on_progress=lambda images, size: seen.append((images, size)))
    assert report.faults == []
    assert report.ok
    assert report.notes == []
    assert report.images == sum(ROWS.values()) == sum(images for images, _ in seen)
    assert report.read_bytes == sum(path.stat().st_size for path in clean.rglob("*.mds")) == sum(size for _, size in seen)
    assert report.shards == len(list(clean.rglob("*.mds")))
    gate(report)


def test_a_folder_that_is_no_corpus_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a corpus"):
        check_corpus(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_one_flipped_bit_anywhere_in_a_shard_is_found_without_decoding(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    paths = sorted(root.rglob("*.mds"))
    path = paths[rng.integers(len(paths))]

    def flip(data: bytearray) -> None:
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))

    patch(path, flip)
    report = check_corpus(root, workers=1, decode=False)
    places = {(fault.bucket, fault.shard) for fault in report.faults if fault.kind == "shard_hash"}
    name = path.relative_to(root).parts
    assert places == {("/".join(name[:2]), "/".join(name[2:]))}


def cut_in_the_middle(image: bytes) -> bytes:
    """Same length, same ends; the second half of the compressed data is gone."""
    middle = len(image) // 2
    return image[:middle] + bytes(len(image) - middle - 2) + image[-2:]


def repeated_tail(image: bytes) -> bytes:
    """Same length; the tail is compressed data from elsewhere in the image."""
    middle, rest = len(image) * 2 // 3, len(image) - len(image) * 2 // 3 - 2
    return image[:middle] + image[middle - rest : middle] + image[-2:]


def early_end(image: bytes) -> bytes:
    """Same length; the compressed data end with an end marker, and filling follows."""
    middle = len(image) // 2
    return image[:middle] + b"\xff\xd9" + bytes(len(image) - middle - 4) + image[-2:]


EXIF = Image.Exif()
EXIF[0x8298] = "somebody"
SIZE = (512, 512)


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("corrupt_image", cut_in_the_middle(jpeg_bytes(*SIZE))),
        ("corrupt_image", repeated_tail(jpeg_bytes(*SIZE))),
        ("corrupt_image", early_end(jpeg_bytes(*SIZE))),
        ("trailing_bytes", jpeg_bytes(*SIZE) + b"more\xff\xd9"),
        ("subsampling", jpeg_bytes(*SIZE, subsampling="4:4:4")),
        ("quantisation", jpeg_bytes(*SIZE, quality=91)),
        ("metadata", jpeg_bytes(*SIZE, exif=EXIF)),
        ("metadata", jpeg_bytes(*SIZE, icc_profile=b"profile")),
        ("metadata", jpeg_bytes(*SIZE, comment=b"made by")),
    ],
)
def test_a_bad_image_that_the_writer_let_through_is_found_and_named(tmp_path: Path, kind: str, image: bytes) -> None:
    # Sample 5 is the second of the second shard of the first export.
    make_corpus(tmp_path, {(BUCKET, 5): {"image": image}})
    report = check_corpus(tmp_path, workers=1)
    assert set(report.counts) - {"trailing_bytes"} | {kind} == {kind}
    fault = next(fault for fault in report.faults if fault.kind == kind)
    assert (fault.bucket, fault.shard, fault.index, fault.image_id) == (BUCKET, SHARD, 1, sample(BUCKET, 5, image=b"")["id"])
    with pytest.raises(GateError, match=re.escape(f"{kind}: {BUCKET}, {SHARD}, sample 1, id ")) as error:
        gate(report)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("not_rgb", jpeg_bytes(*SIZE, mode="L")),
        ("not_rgb", jpeg_bytes(*SIZE, mode="CMYK")),
        ("image_size", jpeg_bytes(480, 544)),
        ("not_jpeg", b"\x89PNG\r\n\x1a\n"),
        ("not_jpeg", b""),
    ],
)
def test_an_image_that_our_writer_refuses_is_found_when_another_wrote_it(root: Path, kind: str, image: bytes) -> None:
    path = root / BUCKET / SHARD
    values = [sample(BUCKET, n) for n in (4, 5, 6)]
    values[1]["image"] = image
    entry = write_unchecked(path, values)
    reseal(root, BUCKET, [entry if e["raw_data"]["basename"] == SHARD else e for e in mds.read_index(root / BUCKET)])
    report = check_corpus(root, workers=1, decode=False)
    assert kind in report.counts
    assert {(fault.shard, fault.index) for fault in report.faults} == {(SHARD, 1)}


def write_unchecked(path: Path, values: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: "bytes" if encoding == "jpeg" else encoding for name, encoding in COLUMNS.items()}
    entry = mds.write_shard(path, columns, values, basename=SHARD, fsync=False)
    text = json.dumps(mds.layout(columns), sort_keys=True).encode()
    good = json.dumps(mds.layout(COLUMNS), sort_keys=True).encode().replace(b'"hashes"', b'"hashes" ')
    assert len(text) == len(good) - 1 + len("bytes") - len("jpeg")
    data = path.read_bytes()
    path.write_bytes(data.replace(text, good))
    return entry | mds.layout(COLUMNS)


def test_wrong_columns_of_size_and_an_empty_id_are_found(root: Path) -> None:
    values = [sample(BUCKET, n) for n in (4, 5, 6)]
    path = root / BUCKET / SHARD
    values[0] |= {"width": 511}
    values[1] |= {"original_height": 0}
    entry = mds.write_shard(path, COLUMNS, values, basename=SHARD)
    # The writer refuses an empty id, so rub it out in the file: the length of `id` is the fifth of the variable columns' lengths.
    patch(path, lambda data: empty_id(data, 2))
    reseal(root, BUCKET, [entry if e["raw_data"]["basename"] == SHARD else e for e in mds.read_index(root / BUCKET)])
    report = check_corpus(root, workers=1, decode=False)
    assert report.counts["size_column"] == 2
    assert report.counts["empty_id"] == 1
    assert [f.index for f in report.faults if f.kind in ("size_column", "empty_id")] == [0, 1, 2]


def empty_id(data: bytearray, index: int) -> None:
    """Give the id's bytes to the caption before it: id and image follow caption_alt in the order of names."""
    names = [name for name in sorted(COLUMNS) if COLUMNS[name] != "int"]
    begin = int.from_bytes(data[4 + 4 * index : 8 + 4 * index], "little")
    at = {name: begin + 4 * number for number, name in enumerate(names)}
    lengths = {name: int.from_bytes(data[at[name] : at[name] + 4], "little") for name in names}
    start = begin + 4 * len(names) + lengths["caption"] + lengths["caption_alt"]
    # Between the captions and the id lies the column height: move it behind the id's bytes, which then end the caption.
    height, identifier = data[start : start + 8], data[start + 8 : start + 8 + lengths["id"]]
    data[start : start + 8 + lengths["id"]] = identifier + height
    data[at["caption_alt"] : at["caption_alt"] + 4] = (lengths["caption_alt"] + lengths["id"]).to_bytes(4, "little")
    data[at["id"] : at["id"] + 4] = bytes(4)


def test_the_same_id_in_two_buckets_is_found_with_both_places(tmp_path: Path) -> None:
    twin = sample(BUCKET, 3)["id"]
    make_corpus(tmp_path, {("1024/1.000", 4): {"id": twin}})
    report = check_corpus(tmp_path, workers=2, decode=False)
    assert set(report.counts) == {"id_twice"}
    (fault,) = report.faults
    assert fault.image_id == twin
    assert {fault.bucket, fault.detail} == {BUCKET, "its id is also at 1024/1.000, export_b/shard.00000.mds, sample 2"}


def test_a_missing_a_truncated_and_a_swapped_shard_are_each_named(root: Path) -> None:
    folder = root / BUCKET
    (folder / "export_a/shard.00000.mds").unlink()
    patch(folder / "export_a/shard.00001.mds", lambda data: data.__delitem__(slice(len(data) // 2, None)))
    (root / "512/1.286/export_a/shard.00000.mds").replace(root / "512/1.286/export_b/shard.00000.mds")
    report = check_corpus(root, workers=1, decode=False)
    found = {(fault.kind, fault.bucket, fault.shard) for fault in report.faults}
    assert ("shard_missing", BUCKET, "export_a/shard.00000.mds") in found
    assert ("shard_size", BUCKET, "export_a/shard.00001.mds") in found
    assert ("shard_missing", "512/1.286", "export_a/shard.00000.mds") in found
    assert ("shard_hash", "512/1.286", "export_b/shard.00000.mds") in found
    assert ("rows_total", None, None) in found


def test_a_shard_whose_head_lies_is_named_even_when_hashes_fit(root: Path) -> None:
    entries = mds.read_index(root / BUCKET)
    for change, kind in (
        (lambda data: data.__setitem__(slice(4, 8), bytes(4)), "shard_offsets"),
        (lambda data: data.__setitem__(slice(8, 16), data[12:16] + data[8:12]), "shard_offsets"),
        (lambda data: data.__setitem__(slice(0, 4), b"\xff\xff\xff\x7f"), "shard_head"),
        (lambda data: data.__setitem__(slice(data.index(b'"caption"'), data.index(b'"caption"') + 9), b'"Caption"'), "shard_columns"),
        (lambda data: data.__delitem__(slice(2, None)), "shard_head"),
    ):
        path = root / BUCKET / SHARD
        before = path.read_bytes()
        patch(path, change)
        reseal(root, BUCKET, entries)
        assert kind in kinds_of(root, decode=False)
        path.write_bytes(before)


def test_index_and_buckets_must_agree_with_the_release(root: Path) -> None:
    index = root / "512/1.286/index.json"
    entries = mds.read_index(index.parent)
    mds.write_index(index.parent, entries[1:])
    assert {"bucket_counts", "index_digest", "rows_total", "rows_unknown_shard"} <= kinds_of(root, decode=False)
    mds.write_index(index.parent, entries[::-1])
    assert kinds_of(root, decode=False) == {"index_digest"}
    index.write_text("{")
    assert "index_unreadable" in kinds_of(root, decode=False)
    index.unlink()
    assert "index_missing" in kinds_of(root, decode=False)


def test_a_bucket_that_the_release_does_not_know_is_found(root: Path) -> None:
    shutil.copytree(root / BUCKET, root / "512/0.500")
    assert kinds_of(root, decode=False) == {"bucket_unknown"}


def test_an_index_that_leaves_its_bucket_or_names_a_shard_twice_is_found(root: Path) -> None:
    index = root / BUCKET / "index.json"
    value = json.loads(index.read_text())
    value["shards"][0]["raw_data"]["basename"] = "../1.286/export_a/shard.00000.mds"
    value["shards"][1]["raw_data"]["basename"] = value["shards"][2]["raw_data"]["basename"]
    del value["shards"][3]["raw_data"]["hashes"]["xxh3_64"]
    index.write_text(json.dumps(value))
    assert {"shard_name", "shard_twice", "index_entry"} <= kinds_of(root, decode=False)


def test_a_release_that_was_edited_by_hand_is_found(root: Path) -> None:
    path = root / "release.json"
    path.write_text(path.read_text().replace('"curated": 3', '"curated": 4'))
    assert kinds_of(root, decode=False) == {"release_digest"}


def test_rows_must_name_each_sample_once_at_its_place(root: Path) -> None:
    path = corpus.rows_path(root, "export_a")
    table = pq.read_table(path)
    for change, kind in (
        (table.slice(1), "rows_count"),
        (table.take([*range(table.num_rows), 0]), "rows_count"),
        (table.set_column(0, corpus.ROWS_SCHEMA.field(0), [["x"] * table.num_rows]), "rows_id"),
        (table.set_column(3, corpus.ROWS_SCHEMA.field(3), [["no/shard.mds"] * table.num_rows]), "rows_unknown_shard"),
        (table.drop_columns(["index"]), "rows_unreadable"),
    ):
        pq.write_table(change, path)
        assert kind in kinds_of(root, decode=False)
    path.write_bytes(b"PAR1")
    assert "rows_unreadable" in kinds_of(root, decode=False)
    path.unlink()
    assert "rows_missing" in kinds_of(root, decode=False)


def test_rows_in_a_folder_of_parts_are_read_like_one_file(root: Path) -> None:
    path = corpus.rows_path(root, "export_a")
    table = pq.read_table(path)
    path.unlink()
    path.mkdir()
    pq.write_table(table.slice(5), path / "part-0.parquet")
    pq.write_table(table.slice(0, 5), path / "part-1.parquet")
    (path / "_SUCCESS").touch()
    report = check_corpus(root, workers=1, decode=False)
    assert (report.faults, report.notes) == ([], [])


def test_a_file_that_readers_take_for_an_index_is_a_fault_and_what_nothing_names_is_a_note(root: Path) -> None:
    (root / BUCKET / "old_index.json").write_text("{}")
    (root / BUCKET / "export_a/index.json").write_text("{}")
    (root / BUCKET / "export_dead").mkdir()
    (root / BUCKET / "export_dead/shard.00000.mds").write_bytes(b"x")
    report = check_corpus(root, workers=1, decode=False)
    assert report.counts == {"stray_index": 2}
    assert report.notes == [f"{BUCKET}/export_dead/shard.00000.mds: no index names it"]


def test_the_report_is_json_and_text_and_keeps_count_beyond_its_limit(root: Path) -> None:
    for path in root.rglob("*.mds"):
        # The last byte of source_key: only the hash can tell.
        patch(path, lambda data: data.__setitem__(-9, data[-9] ^ 1))
    report = check_corpus(root, workers=2, decode=False, max_faults=3)
    shards = len(list(root.rglob("*.mds")))
    value = json.loads(report.to_json())
    assert value["counts"] == {"shard_hash": shards}
    assert len(value["faults"]) == 3
    assert value["faults"][0].keys() == {"kind", "detail", "bucket", "shard", "index", "image_id"}
    assert value["ok"] is False
    assert value["bytes_per_second"] > 0
    text = report.to_text(limit=2)
    assert f"{shards} faults: shard_hash {shards}" in text
    assert f"{shards - 2} more" in text


def skip(root: Path, *places: tuple[str, int]) -> None:
    """Publish skip lists of (shard, index), with their reasons."""
    lists, rows = {}, []
    for name in sorted({name for name, _ in places}):
        bucket, basename = "/".join(name.split("/")[:2]), name.split("/", 2)[2]
        entry = next(entry for entry in mds.read_index(root / bucket) if entry["raw_data"]["basename"] == basename)
        indices = sorted(index for found, index in places if found == name)
        lists[name] = SkipList(entry["samples"], entry["raw_data"]["bytes"], 1, np.array(indices, np.int64))
        tier, key = corpus.split_bucket(bucket)
        rows += [{"image_id": "x", "tier": tier, "bucket": key, "shard": basename, "index": index, "reasons": ["r"]} for index in indices]
    digest = skiplist.write_pack(root, lists)
    pq.write_table(pa.Table.from_pylist(rows, skiplist.ROWS_SCHEMA), skiplist.reasons_path(root, digest))
    skiplist.publish(root, digest)


def test_sound_skip_lists_are_counted(root: Path) -> None:
    skip(root, (f"{BUCKET}/{SHARD}", 0), (f"{BUCKET}/{SHARD}", 2), ("1024/1.000/export_b/shard.00000.mds", 1))
    report = check_corpus(root, workers=1)
    assert (report.faults, report.notes, report.skipped, report.skips) == ([], [], 3, skiplist.current_digest(root))
    assert "3 of them skipped" in report.to_text()


def foreign_sidecar(root: Path) -> None:
    other = root / BUCKET / "export_a/shard.00000.mds.skip"
    other.write_bytes((root / BUCKET / f"{SHARD}.skip").read_bytes())


def flip(path: Path, place: int) -> None:
    patch(path, lambda data: data.__setitem__(place, data[place] ^ 1))


SKIP_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of the pack": (lambda root: flip(next((root / "skips").glob("*.pack")), 40), "skips_unreadable"),
    "a lost pack": (lambda root: next((root / "skips").glob("*.pack")).unlink(), "skips_unreadable"),
    "a pointer to nothing": (lambda root: (root / "skips/current").write_text("0" * 32), "skips_unreadable"),
    "a byte of a list beside its shard": (lambda root: flip(root / BUCKET / f"{SHARD}.skip", -1), "skips_sidecar"),
    "a lost list beside its shard": (lambda root: (root / BUCKET / f"{SHARD}.skip").unlink(), "skips_sidecar"),
    "a list beside another shard": (foreign_sidecar, "skips_sidecar"),
    "lost reasons": (lambda root: next((root / "skips").glob("*.parquet")).unlink(), "skips_reasons"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SKIP_FAULTS)
def test_each_fault_of_skip_lists_is_named(root: Path, fault: str) -> None:
    skip(root, (f"{BUCKET}/{SHARD}", 0))
    plant, kind = SKIP_FAULTS[fault]
    plant(root)
    assert kinds_of(root) == {kind}


def test_lists_and_reasons_that_differ_are_named(root: Path) -> None:
    skip(root, (f"{BUCKET}/{SHARD}", 0), (f"{BUCKET}/{SHARD}", 1))
    path = next((root / "skips").glob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 1), path)
    (fault,) = check_corpus(root, workers=1).faults
    assert (fault.kind, fault.detail) == ("skips_reasons", "sample 1 is skipped without a reason")


def test_skip_lists_of_a_shard_that_is_another_now_are_named(root: Path) -> None:
    skip(root, (f"{BUCKET}/{SHARD}", 0))
    name, found = next(iter(skiplist.read(root).lists.items()))
    wrong = SkipList(found.samples, found.shard_bytes + 1, 1, found.skipped)
    digest = skiplist.write_pack(root, {name: wrong})
    shutil.copy(next((root / "skips").glob("*.parquet")), skiplist.reasons_path(root, digest))
    skiplist.publish(root, digest)
    assert kinds_of(root) == {"skips_shard"}


def test_a_release_that_was_is_no_stray_file(tmp_path: Path) -> None:
    whole = make_corpus(tmp_path)
    corpus.write_release(tmp_path, whole.model_copy(update={"config_digest": "of another day"}))
    assert list((tmp_path / corpus.RELEASES).iterdir())
    report = check_corpus(tmp_path, workers=1)
    assert report.ok and report.notes == []
