from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streaming import MDSWriter, StreamingDataset

from imagelake import mds
from imagelake.errors import ConfigError
from tests.corpus_fixture import COLUMNS, jpeg_bytes, sample

BUCKET = "512/1.000"
SHAPE = (512, 512)


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Any]]:
    return [sample(BUCKET, number) for number in range(12)]


def size_of(values: dict[str, Any]) -> int:
    lengths = {n: len(v.encode() if isinstance(v, str) else v) for n, v in values.items() if not isinstance(v, int)}
    return mds.sample_size(COLUMNS, lengths)


def planned(samples: list[dict[str, Any]], size_limit: int) -> list[list[dict[str, Any]]]:
    """Cut where the sum of the sizes passes the limit: on sizes alone, as export does."""
    shards: list[list[dict[str, Any]]] = [[]]
    total = mds.shard_header_bytes(COLUMNS, size_limit)
    for values in samples:
        if shards[-1] and total + size_of(values) > size_limit:
            shards.append([])
            total = mds.shard_header_bytes(COLUMNS, size_limit)
        shards[-1].append(values)
        total += size_of(values)
    return shards


@pytest.mark.parametrize("size_limit", [mds.SIZE_LIMIT, 150_000, 100_000])
def test_shards_and_index_are_byte_for_byte_those_of_mdswriter(tmp_path: Path, samples: list[dict[str, Any]], size_limit: int) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with MDSWriter(columns=COLUMNS, out=str(theirs), hashes=["xxh3_64"], size_limit=size_limit) as writer:
        for values in samples:
            writer.write(values)
    entries = []
    for number, part in enumerate(planned(samples, size_limit)):
        name = f"shard.{number:05}.mds"
        entries.append(mds.write_shard(ours / name, COLUMNS, part, basename=name, shape=SHAPE, size_limit=size_limit))
    mds.write_index(ours, entries)
    assert {p.name: p.read_bytes() for p in ours.iterdir()} == {p.name: p.read_bytes() for p in theirs.iterdir()}
    assert len(entries) > 1 or size_limit == mds.SIZE_LIMIT


def test_streaming_reads_back_what_was_written_one_folder_deep(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    entry = mds.write_shard(tmp_path / "e" / "shard.00000.mds", COLUMNS, samples, basename="e/shard.00000.mds")
    mds.write_index(tmp_path, [entry])
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    for index, values in enumerate(samples):
        found = dataset[index]
        assert found.pop("image").size == SHAPE
        assert found == {name: value for name, value in values.items() if name != "image"}


def test_the_size_of_a_shard_is_known_before_it_is_written(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    entry = mds.write_shard(tmp_path / "s.mds", COLUMNS, samples, basename="s.mds")
    expected = mds.shard_header_bytes(COLUMNS) + sum(map(size_of, samples))
    assert entry["raw_data"]["bytes"] == expected == (tmp_path / "s.mds").stat().st_size
    constant = mds.fixed_bytes(COLUMNS)
    assert size_of(samples[0]) - constant == sum(
        len(v.encode() if isinstance(v, str) else v) for v in samples[0].values() if not isinstance(v, int)
    )
    assert mds.variable_columns({"b": "str", "a": "jpeg", "c": "int"}) == ["a", "b"]


def test_the_same_samples_give_the_same_bytes_and_replace_the_file(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    path = tmp_path / "s.mds"
    first = mds.write_shard(path, COLUMNS, samples, basename="s.mds")
    data = path.read_bytes()
    assert mds.write_shard(path, COLUMNS, iter(samples), basename="s.mds") == first
    assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["s.mds"]


GREY = jpeg_bytes(512, 512, mode="L")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": GREY}, "1 colour components"),
        ({"image": jpeg_bytes(512, 480)}, "512x480 pixels, but the bucket's shape is 512x512"),
        ({"image": jpeg_bytes(512, 512)[:-2]}, "does not end with the JPEG marker EOI"),
        ({"image": b"\x89PNG"}, "does not start with the JPEG marker SOI"),
        ({"image": None}, "is NoneType, not bytes"),
        ({"caption": None}, "column 'caption' is NoneType, not str"),
        ({"caption": "\ud800"}, "surrogates not allowed"),
        ({"id": ""}, "column 'id' is empty"),
        ({"width": 511}, "column 'width' is 511, but the bucket's is 512"),
        ({"original_width": 1.5}, "column 'original_width' is float, not int"),
        ({"original_width": 1 << 63}, "column 'original_width' int too big"),
        ({"surprise": 1}, "columns not asked for: ['surprise']"),
    ],
)
def test_a_sample_that_readers_could_not_use_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    good, bad = sample(BUCKET, 0), sample(BUCKET, 1, **changes)
    with pytest.raises(mds.MdsError) as error:
        mds.write_shard(tmp_path / "s.mds", COLUMNS, [good, bad], basename="s.mds", shape=SHAPE)
    assert words in str(error.value)
    assert f"sample 1, id {bad['id']!r}" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    values = sample(BUCKET, 0)
    del values["caption_alt"]
    with pytest.raises(mds.MdsError, match=r"columns missing: \['caption_alt'\]"):
        mds.write_shard(tmp_path / "s.mds", COLUMNS, [values], basename="s.mds")


def test_shards_beyond_the_limits_and_empty_ones_are_refused(
    tmp_path: Path, samples: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.mds"
    assert mds.write_shard(path, COLUMNS, samples[:1], basename="s.mds", size_limit=1 << 10)["samples"] == 1
    path.unlink()
    with pytest.raises(mds.MdsError, match="size limit"):
        mds.write_shard(path, COLUMNS, samples, basename="s.mds", size_limit=50_000)
    with pytest.raises(mds.MdsError, match="at least one sample"):
        mds.write_shard(path, COLUMNS, [], basename="s.mds")
    monkeypatch.setattr(mds, "MAX_SHARD_BYTES", 100_000)
    with pytest.raises(mds.MdsError, match="4 GiB"):
        mds.write_shard(path, COLUMNS, samples, basename="s.mds")
    assert not path.exists()


def test_a_shard_is_whole_when_the_system_writes_it_in_small_pieces(
    tmp_path: Path, samples: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = mds.write_shard(tmp_path / "s.mds", COLUMNS, samples, basename="s.mds")
    expected, writev = (tmp_path / "s.mds").read_bytes(), os.writev
    monkeypatch.setattr("os.writev", lambda descriptor, parts: writev(descriptor, [b"".join(parts)[:12_345]]))
    assert mds.write_shard(tmp_path / "s.mds", COLUMNS, samples, basename="s.mds") == entry
    assert (tmp_path / "s.mds").read_bytes() == expected


def test_a_full_disk_leaves_the_old_shard_and_no_other_file(
    tmp_path: Path, samples: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.mds"
    mds.write_shard(path, COLUMNS, samples[:2], basename="s.mds")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        mds.write_shard(path, COLUMNS, samples, basename="s.mds")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.mds"]


@pytest.mark.parametrize("name", ["../s.mds", "/s.mds", "a/b/s.mds", "a//s.mds", "", ".hidden/s.mds", "a\\s.mds"])
def test_an_index_names_only_shards_inside_its_bucket(tmp_path: Path, name: str) -> None:
    with pytest.raises(mds.MdsError, match="not inside the bucket"):
        mds.write_index(tmp_path, [{"raw_data": {"basename": name}}])
    assert not (tmp_path / "index.json").exists()


def test_an_index_names_no_shard_twice(tmp_path: Path) -> None:
    with pytest.raises(mds.MdsError, match="named twice"):
        mds.write_index(tmp_path, [{"raw_data": {"basename": "e/s.mds"}}] * 2)


def test_an_unpublished_bucket_has_no_entries_and_a_broken_index_is_an_error(tmp_path: Path) -> None:
    assert mds.read_index(tmp_path) == []
    for text in ("", "[]", '{"version": 1, "shards": []}', '{"version": 2}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(mds.MdsError, match="index"):
            mds.read_index(tmp_path)


def test_entries_survive_writing_and_reading_the_index(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    entry = mds.write_shard(tmp_path / "e" / "s.mds", COLUMNS, samples, basename="e/s.mds")
    mds.write_index(tmp_path, [entry])
    assert mds.read_index(tmp_path) == [entry]
    assert json.loads((tmp_path / "index.json").read_text())["version"] == 2


def test_an_unknown_encoding_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'image': unknown encoding 'png'"):
        mds.layout({"image": "png"})


def test_the_writer_imports_neither_streaming_nor_torch_nor_spark() -> None:
    code = "import sys, imagelake.mds; print([m for m in ('streaming', 'torch', 'pyspark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
