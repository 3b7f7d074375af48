"""The files that loader-config writes, used as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from streaming import Stream, StreamingDataset
from typer.testing import CliRunner

from imagelake import corpus, loaderconfig
from imagelake.cli import app
from imagelake.corpus import BucketSummary, Release
from imagelake.errors import ConfigError
from imagelake.loaderconfig import Figures
from imagelake.paths import PROJECT
from imagelake.skiplist import NOTHING
from tests.corpus_fixture import COLUMNS, ROWS, make_corpus, sample, skip

pytestmark = pytest.mark.usefixtures("closed_datasets")
SQUARE, WIDE, LARGE = ROWS

# What imagelake.prx needs of PRX, after its public training code: a stream class that reads the index itself, and a dataset that makes its
# streams from folders and opens StreamingDataset by name.
PRX = """
import json
from dataclasses import dataclass
from pathlib import Path
from streaming import Stream, StreamingDataset
from streaming.base.format import reader_from_json

class PatchedStream(Stream):
    def __init__(self, index_file="index.json", *args, **options):
        super().__init__(*args, **options)
        self.index_file = index_file

    def get_shards(self, world, allow_unsafe_types):
        index = json.loads(Path(self.local, self.index_file).read_text())
        return [reader_from_json(self.local, self.split, entry) for entry in index["shards"]]

@dataclass
class StreamingConfig:
    cache_limit: str = "1tb"
    shuffle: bool = False
    batching_method: str = "per_stream"

@dataclass
class ProcessedConfig:
    caption_keys: list
    text_tower: str
    has_text_latents: bool
    has_mask_text_latents: bool
    transforms: list
    transforms_targets: list

@dataclass
class DataLoaderConfig:
    drop_last: bool
    prefetch_factor: int
    num_workers: int
    persistent_workers: bool
    pin_memory: bool

class StreamingProcessedDataset(StreamingDataset):
    def __init__(self, local, streaming, processed, dataloader, remote=None, proportions=None):
        streams = [PatchedStream(local=folder, remote=None, index_file="index.json") for folder in local]
        StreamingDataset.__init__(self, streams=streams, batch_size=1, shuffle=streaming.shuffle, cache_limit=streaming.cache_limit,
                                  batching_method=streaming.batching_method)
        self.processed = processed
"""
TRAIN = """
import importlib, json, sys, yaml

def instantiate(value):
    # As Hydra does: each _target_ is called with its keys.
    if isinstance(value, list):
        return [instantiate(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    made = {key: instantiate(entry) for key, entry in value.items() if key != "_target_"}
    module, _, name = value["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**made)

dataset = instantiate(yaml.safe_load(open(sys.argv[1])))
(caption, weight), = dataset.processed.caption_keys
print(json.dumps({sample["id"]: sample[caption] for sample in dataset}))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The corpus of the fixture, with two samples of it skipped."""
    make_corpus(tmp_path / "corpus")
    skip(tmp_path / "corpus", {id_of(SQUARE, 0): ["tiny"], id_of(LARGE, 4): ["tiny"]})
    return tmp_path / "corpus"


def id_of(bucket: str, number: int) -> str:
    return str(sample(bucket, number, image=b"")["id"])


def kept_ids() -> set[str]:
    every = {id_of(bucket, number) for bucket, count in ROWS.items() for number in range(count)}
    return every - {id_of(SQUARE, 0), id_of(LARGE, 4)}


def figures(kept: dict[str, int]) -> Figures:
    buckets = {name: BucketSummary(rows=count, shards=1, bytes=1) for name, count in kept.items()}
    made = Release(created_from={}, config_digest="", rows=1, columns=COLUMNS, captions=("alt",), buckets=buckets, exports=())
    return Figures(Path("/c"), made, NOTHING, kept)


def run_script(path: Path, *words: str, paths: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), *paths])}
    command = [sys.executable, str(path), *words]
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, check=False)


def test_the_command_says_what_it_wrote(root: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["loader-config", str(root), "--out", str(tmp_path / "out" / "deep")])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [str(tmp_path / "out" / "deep" / name) for name in ("train_data.py", "prx_dataset.yaml")]
    assert all(Path(line).is_file() for line in done.stdout.splitlines())


def test_the_python_file_runs_as_it_is_written(root: Path, tmp_path: Path) -> None:
    path, _ = loaderconfig.write(root, tmp_path / "out")
    done = run_script(path)
    assert done.returncode == 0, done.stderr
    printed = re.fullmatch(r"1 samples of (\d+×\d+) pixels: '(.*)'\n", done.stdout)
    assert printed and printed[1] in ("512×512", "576×448", "1024×1024") and printed[2].startswith("picture ")


def test_an_epoch_of_it_is_every_kept_sample(root: Path, tmp_path: Path) -> None:
    path, _ = loaderconfig.write(root, tmp_path / "out")
    every = path.with_name("every.py")
    every.write_text("from train_data import loader\nfor batch in loader():\n    print(*(sample['id'] for sample in batch))\n")
    done = run_script(every)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(kept_ids())


def test_its_figures_are_the_corpuss(root: Path, tmp_path: Path) -> None:
    path, _ = loaderconfig.write(root, tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    assert f"release {corpus.read_release(root).release} of {root}: 26 samples, 2 skipped" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["512/1.000", "512×512", "4", "14", "13"] in rows and ["1024/1.000", "1024×1024", "2", "5", "4"] in rows
    assert ["4", "5", "4"] in rows and ["8", "1", "16", "512/1.286,", "1024/1.000"] in rows
    assert "TIERS = [512, 1024]\nBATCH_SIZE = 1 " in text


@pytest.mark.parametrize(
    ("kept", "size"),
    [
        ({SQUARE: 1}, 1),
        ({SQUARE: 64, WIDE: 64}, 32),
        ({SQUARE: 6400, WIDE: 5}, 32),
        ({SQUARE: 20, WIDE: 0}, 4),
        ({SQUARE: 100, WIDE: 4}, 4),
        ({SQUARE: 33}, 32),
        ({SQUARE: 3, WIDE: 3}, 1),
    ],
)
def test_the_batch_size_leaves_out_few_samples(kept: dict[str, int], size: int) -> None:
    found = figures(kept)
    assert found.batch_size == size
    assert found.left_out(size) <= 0.05 * sum(kept.values())


def test_the_prx_configuration_names_folders_that_load(root: Path, tmp_path: Path) -> None:
    _, path = loaderconfig.write(root, tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# @package dataset.train_dataset\n")
    found: dict[str, Any] = yaml.safe_load(text)
    assert [Path(folder).relative_to(root).as_posix() for folder in found["local"]] == ["512/1.000", "512/1.286", "1024/1.000"]
    dataset = StreamingDataset(streams=[Stream(local=folder) for folder in found["local"]], batch_size=1, shuffle=False)
    stored = list(dataset)
    assert len(stored) == 26
    assert all(key in values for values in stored for key, _ in found["processed"]["caption_keys"])
    assert all(target in values for values in stored for target in found["processed"]["transforms_targets"])
    assert found["streaming"]["cache_limit"] is None, "the reader would delete shards that are nowhere else"
    assert "# Caption columns beside caption: caption_alt.\n" in text


def test_prx_reads_only_what_is_kept(root: Path, tmp_path: Path) -> None:
    """By PRX's own way of opening a corpus, through the class that the configuration names."""
    _, path = loaderconfig.write(root, tmp_path / "out")
    package = tmp_path / "fake" / "prx" / "dataset"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "mds_dataset.py").write_text(PRX)
    (package / "transforms.py").write_text("class ArAwareResize:\n    def __init__(self, default_image_size, patch_size_pixels): pass\n")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    done = run_script(script, str(path), paths=(str(tmp_path / "fake"),))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == kept_ids()
    assert found[id_of(WIDE, 3)] == sample(WIDE, 3)["caption"]


def test_a_bucket_that_fills_no_batch_is_left_out_of_the_prx_configuration() -> None:
    text = loaderconfig.prx(figures({SQUARE: 6400, WIDE: 5, LARGE: 0}))
    assert yaml.safe_load(text)["local"] == [f"/c/{SQUARE}"]
    assert f"# Left out, for they hold less than 32: {WIDE}. The others hold 6400 and more:\n" in text


@pytest.mark.parametrize(
    ("columns", "captions", "first"),
    [
        (("caption", "caption_alt"), ("alt",), ["caption", "caption_alt"]),
        (("caption_alt", "caption_vlm"), ("alt",), ["caption_vlm", "caption_alt"]),
        (("caption", "caption_alt"), ("caption", "caption_alt"), ["caption", "caption_alt"]),
    ],
)
def test_the_main_caption_comes_first(columns: tuple[str, ...], captions: tuple[str, ...], first: list[str]) -> None:
    found = figures({SQUARE: 1})
    release = found.release.model_copy(update={"columns": dict.fromkeys(columns, "str"), "captions": captions})
    assert Figures(found.root, release, found.skips, found.kept).captions == first


@pytest.mark.parametrize("name", ["it's", 'say "x"', '"""', "back\\new", "Übung"])
def test_any_folder_name_makes_a_file_that_is_python(name: str) -> None:
    found = figures({SQUARE: 1})
    text = loaderconfig.python(Figures(Path("/") / name, found.release, found.skips, found.kept))
    namespace: dict[str, Any] = {"__name__": "imported"}
    exec(compile(text, "train_data.py", "exec"), namespace)
    assert namespace["CORPUS"] == f"/{name}" and f"/{name}: 1 samples" in namespace["__doc__"]


def test_mistakes_are_told(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a corpus"):
        loaderconfig.write(tmp_path, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out: .* cannot be written"):
        loaderconfig.write(root, tmp_path / "file" / "out")
    skip(root, {id_of(bucket, number): ["all"] for bucket, count in ROWS.items() for number in range(count)}, generation=2)
    with pytest.raises(ConfigError, match="every sample is skipped"):
        loaderconfig.write(root, tmp_path / "out")
