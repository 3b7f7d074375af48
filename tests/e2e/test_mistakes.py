"""What a user gets wrong: one clear error that names the file and the key, exit 2, and nothing written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from .conftest import Chain

MISTAKES = {
    "missing path": ("{name: a, format: folder, path: nowhere}", ("nowhere",)),
    "unknown format": ("{name: a, format: zip, path: pictures}", ("format", "webdataset")),
    "unknown key": ("{name: a, format: folder, path: pictures, captoins: {alt: txt}}", ("captoins", "captions")),
    "unreadable tar": ("{name: a, format: webdataset, path: broken.tar}", ("broken.tar",)),
    "glob without a match": ("{name: a, format: webdataset, path: 'pictures/*.tar'}", ("path", "pictures/*.tar")),
    "empty folder": ("{name: a, format: folder, path: empty}", ("empty", "no files")),
    "wrong column": ("{name: a, format: parquet, path: good.parquet, image: picture}", ("good.parquet", "picture", "image")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("mistakes")
    (root / "pictures").mkdir()
    (root / "empty").mkdir()
    (root / "pictures" / "a.jpg").write_bytes(b"not an image")
    (root / "broken.tar").write_bytes(b"this is no tar" * 100)
    pq.write_table(pa.table({"image": [b"x"]}), root / "good.parquet")
    return root


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_sources_is_named_with_exit_2(folder: Path, mistake: str) -> None:
    entry, named = MISTAKES[mistake]
    sources = folder / f"{mistake.replace(' ', '-')}.yaml"
    sources.write_text(f"sources: [{entry}]")
    chain = Chain(folder / "chain", sources)
    done = chain.run()
    assert done.returncode == 2, done.stderr[-2000:]
    message = done.stderr.strip().splitlines()[-1]
    assert sources.name in message and all(word in message for word in named), message
    assert "Traceback" not in done.stderr
    assert not (folder / "chain").exists()


def test_an_unknown_configuration_key_is_named_with_the_nearest_known_one(folder: Path) -> None:
    done = Chain(folder / "chain", folder / "x.yaml").call("run", "--set", "filter.min_pixel=5")
    assert done.returncode == 2
    assert "filter.min_pixel" in done.stderr and "filter.min_pixels" in done.stderr


def test_a_root_that_cannot_be_made_is_named_before_spark_starts(folder: Path) -> None:
    (folder / "fine.yaml").write_text("sources: [{name: a, format: folder, path: pictures}]")
    chain = Chain(folder / "good.parquet", folder / "fine.yaml")  # a file, where the lake's folder should be
    done = chain.run()
    assert done.returncode == 2
    assert "lake.root" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [("sql", "SELECT 1"), ("report", "page.html"), ("filter", "--what-if", "filter.min_pixels=4"), ("export",)],
    ids=lambda words: words[0],
)
def test_asking_a_lake_that_is_not_there_says_so(folder: Path, words: tuple[str, ...]) -> None:
    done = Chain(folder / "nowhere", folder / "x.yaml").call(*words, "--set", f"lake.root={folder / 'nowhere'}")
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()  # and nothing of Spark's, which was not started
    assert "lake.root" in message and "imagelake ingest" in message
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("corpus", ["good.parquet", "empty"])
def test_verifying_what_is_no_corpus_is_a_mistake(folder: Path, corpus: str) -> None:
    done = Chain(folder, folder / "x.yaml").call("verify", str(folder / corpus))
    assert done.returncode == 2
    (message,) = done.stderr.splitlines()
    assert corpus in message


def test_a_dry_run_lists_sources_and_stages_and_writes_nothing(folder: Path) -> None:
    with tarfile.open(folder / "ok.tar", "w") as tar:
        member = tarfile.TarInfo("1.jpg")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    (folder / "ok.yaml").write_text("sources: [{name: tars, format: webdataset, path: ok.tar}]")
    done = Chain(folder / "dry", folder / "ok.yaml").call(
        "run", "--dry-run", "--sources", str(folder / "ok.yaml"), "--set", f"lake.root={folder / 'dry'}"
    )
    assert done.returncode == 0, done.stderr
    assert "tars" in done.stdout and "dedup" in done.stdout and "new files to ingest: 1" in done.stdout
    assert not (folder / "dry").exists()
