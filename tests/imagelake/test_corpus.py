from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagelake import corpus
from imagelake.corpus import BucketSummary, Release
from imagelake.errors import ConfigError
from tests.corpus_fixture import EXPORTS, ROWS, make_corpus


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder)
    return folder


def test_a_release_is_read_as_it_was_written(root: Path) -> None:
    release = corpus.read_release(root)
    assert release.release == release.digest()
    assert {name: bucket.rows for name, bucket in release.buckets.items()} == ROWS
    assert corpus.write_release(root, release) == release


def test_release_json_has_the_documented_shape(root: Path) -> None:
    value = json.loads((root / "release.json").read_text())
    assert value["format_version"] == 1
    assert value["created_from"] == {"curated": 3}
    assert value["buckets"]["512/1.000"].keys() == {"rows", "shards", "bytes", "index_digest"}
    assert value["exports"] == list(EXPORTS)


def test_the_digest_changes_with_any_content_but_not_with_the_order_of_keys(root: Path) -> None:
    release = corpus.read_release(root)
    assert release.model_copy(update={"rows": 27}).digest() != release.digest()
    turned = Release.model_validate(dict(reversed(list(release.model_dump().items()))))
    assert turned.digest() == release.digest()


def test_the_digest_of_a_bucket_changes_with_the_hash_of_a_shard() -> None:
    entry = {"samples": 2, "raw_data": {"basename": "e/s", "bytes": 5, "hashes": {"xxh3_64": "a"}}}
    other = {"samples": 2, "raw_data": {"basename": "e/s", "bytes": 5, "hashes": {"xxh3_64": "b"}}}
    first, second = BucketSummary.of([entry]), BucketSummary.of([other])
    assert (first.rows, first.shards, first.bytes) == (second.rows, second.shards, second.bytes) == (2, 1, 5)
    assert first.index_digest != second.index_digest


def test_what_is_not_a_corpus_is_a_config_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        corpus.read_release(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"not a corpus: it has no release\.json"):
        corpus.read_release(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 2}, "reads format 1 only"),
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"rows": -1}, "rows"),
        ({"buckets": {"../x": {"rows": 1, "shards": 1, "bytes": 1}}}, "is not <tier>/<aspect ratio>"),
        ({"exports": ["../../x"]}, "is not the name of an export"),
    ],
)
def test_a_release_that_does_not_fit_is_named_with_its_key(root: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    value = json.loads((root / "release.json").read_text()) | change
    (tmp_path / "release.json").write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=words) as error:
        corpus.read_release(tmp_path)
    assert str(tmp_path / "release.json") in str(error.value)


def test_a_torn_release_is_a_config_error(root: Path, tmp_path: Path) -> None:
    data = (root / "release.json").read_bytes()
    (tmp_path / "release.json").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="not a release"):
        corpus.read_release(tmp_path)


def test_buckets_come_by_tier_as_a_number_then_from_tall_to_wide(root: Path) -> None:
    assert corpus.published_buckets(root) == ["512/1.000", "512/1.286", "1024/1.000"]
    assert list(corpus.read_release(root).buckets) == ["512/1.000", "512/1.286", "1024/1.000"]


def test_rows_are_one_file_or_a_folder_of_files_without_sparks_own(tmp_path: Path) -> None:
    assert corpus.rows_files(tmp_path, "a") == []
    one = corpus.rows_path(tmp_path, "a")
    one.parent.mkdir()
    one.write_bytes(b"x")
    assert corpus.rows_files(tmp_path, "a") == [one]
    folder = corpus.rows_path(tmp_path, "b")
    folder.mkdir()
    for name in ("part-1.parquet", "part-0.parquet", "_SUCCESS", ".part-0.parquet.crc", "_metadata.parquet"):
        (folder / name).write_bytes(b"x")
    assert [p.name for p in corpus.rows_files(tmp_path, "b")] == ["part-0.parquet", "part-1.parquet"]


def test_names_of_buckets_and_shards() -> None:
    assert corpus.split_bucket(corpus.bucket_name(512, "1.000")) == (512, "1.000")
    assert corpus.shard_basename("export_a", 7) == "export_a/shard.00007.mds"
    with pytest.raises(ValueError, match="not the name of a bucket"):
        corpus.split_bucket("512/../1.000")
