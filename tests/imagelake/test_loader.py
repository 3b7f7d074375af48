from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader

from imagelake import corpus, loader
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.loader import CorpusDataset, select
from tests.corpus_fixture import ROWS, SHAPES, jpeg_bytes, make_corpus, sample

pytestmark = pytest.mark.usefixtures("closed_datasets")
EVERY_ID = {sample(bucket, number, image=b"")["id"] for bucket, count in ROWS.items() for number in range(count)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder)
    return folder


def epoch(dataset: CorpusDataset, workers: int = 0, batch_size: int = 2) -> list[list[dict[str, Any]]]:
    return list(DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list))


def ids(batches: list[list[dict[str, Any]]]) -> list[str]:
    return [values["id"] for batch in batches for values in batch]


def bucket_of(values: dict[str, Any]) -> str:
    (name,) = (name for name, shape in SHAPES.items() if shape == (values["width"], values["height"]))
    return name


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_comes_exactly_once_an_epoch(root: Path, workers: int, shuffle: bool) -> None:
    dataset = CorpusDataset(root, batch_size=2, shuffle=shuffle, decode_images=False)
    for _ in range(2):
        found = ids(epoch(dataset, workers))
        assert Counter(found) == Counter(dict.fromkeys(EVERY_ID, 1))


def test_two_epochs_differ_in_order_and_the_same_seed_gives_the_same_order(root: Path) -> None:
    first, again = (CorpusDataset(root, batch_size=2, shuffle_seed=5, decode_images=False) for _ in range(2))
    orders = [ids(epoch(first)), ids(epoch(first))]
    assert orders[0] != orders[1]
    assert [ids(epoch(again)), ids(epoch(again))] == orders


def test_images_are_decoded_or_left_as_the_bytes_that_were_stored(root: Path) -> None:
    decoded = CorpusDataset(root, batch_size=2, shuffle=False)[0]
    stored = CorpusDataset(root, batch_size=2, shuffle=False, decode_images=False)[0]
    assert isinstance(decoded["image"], Image.Image)
    assert (decoded["image"].mode, decoded["image"].size) == ("RGB", SHAPES["512/1.000"])
    assert stored["image"] == jpeg_bytes(*SHAPES["512/1.000"], 0)
    assert stored["caption"] == decoded["caption"] == sample("512/1.000", 0)["caption"]


def test_decoded_images_come_through_worker_processes(root: Path) -> None:
    batches = epoch(CorpusDataset(root, batch_size=2), workers=2)
    for values in (values for batch in batches for values in batch):
        assert values["image"].size == (values["width"], values["height"])
        assert values["image"].convert("RGB").getpixel((0, 0)) is not None


def test_tiers_select_whole_tiers(root: Path) -> None:
    dataset = CorpusDataset(root, batch_size=1, tiers=[1024], decode_images=False)
    assert {bucket_of(values) for batch in epoch(dataset, batch_size=1) for values in batch} == {"1024/1.000"}
    assert len(ids(epoch(dataset, batch_size=1))) == ROWS["1024/1.000"]


def test_weights_set_the_share_of_each_tier_in_an_epoch(root: Path) -> None:
    dataset = CorpusDataset(root, batch_size=4, weights={"512": 1, "1024": 3}, epoch_size=400, decode_images=False)
    count = Counter(bucket_of(values) for batch in epoch(dataset, batch_size=4) for values in batch)
    assert count.total() == 400
    assert abs(count["1024/1.000"] - 300) <= 3
    # Within the tier by samples: 14 to 7.
    assert abs(count["512/1.000"] - 67) <= 3


def test_a_bucket_of_weight_zero_is_left_out(root: Path) -> None:
    dataset = CorpusDataset(root, batch_size=1, weights={"512/1.000": 0, "512/1.286": 1, "1024": 0}, decode_images=False)
    assert {bucket_of(values) for batch in epoch(dataset, batch_size=1) for values in batch} == {"512/1.286"}


def test_shares_are_by_samples_unless_weights_say_otherwise(root: Path) -> None:
    release = corpus.read_release(root)
    assert select(release, None, None) == {name: rows / sum(ROWS.values()) for name, rows in ROWS.items()}
    assert select(release, None, {"512": 1, "1024": 1}) == pytest.approx({"512/1.000": 1 / 3, "512/1.286": 1 / 6, "1024/1.000": 1 / 2})
    assert select(release, None, {"512/1.000": 0, "512/1.286": 2, "1024": 0}) == {"512/1.286": 1}
    assert list(select(release, [512], None)) == ["512/1.000", "512/1.286"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tiers": [768]}, "no tier 768 in this corpus; it has 512, 1024"),
        ({"weights": {"2048": 1}}, r"weights\['2048'\] names no selected tier or bucket; there are 512/1.000"),
        ({"weights": {"512": 1}}, "weights: none for 1024/1.000"),
        ({"weights": {"512": 1, "512/1.000": 1, "1024": 1}}, "512/1.000 is weighted twice, by '512' and by '512/1.000'"),
        ({"weights": {"512": -1, "1024": 1}}, "a number from 0 up"),
        ({"weights": {"512": float("nan"), "1024": 1}}, "a number from 0 up"),
        ({"weights": {"512": 0, "1024": 0}}, "no samples are selected"),
        ({"cache_limit": "1gb"}, "would delete shards of the corpus itself"),
        ({"batching_method": "device_per_stream", "batch_size": 6}, r"too few: 1024/1.000 \(5\)"),
    ],
)
def test_arguments_that_do_not_fit_the_corpus_are_config_errors(root: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CorpusDataset(root, **{"batch_size": 2} | options)


def test_what_is_not_a_corpus_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a corpus"):
        CorpusDataset(tmp_path, batch_size=2)
    make_corpus(tmp_path)
    (tmp_path / "512/1.000/index.json").unlink()
    with pytest.raises(ConfigError, match=r"512/1\.000: the release names this bucket"):
        CorpusDataset(tmp_path, batch_size=2)


@pytest.mark.parametrize("method", loader.PURE_BATCHING)
@pytest.mark.parametrize("workers", [0, 2])
def test_pure_batching_gives_batches_of_one_shape(root: Path, method: str, workers: int) -> None:
    batches = epoch(CorpusDataset(root, batch_size=2, batching_method=method, decode_images=False), workers)
    assert len(batches) == sum(rows // 2 for rows in ROWS.values())
    assert all(len(batch) == 2 and len(set(map(bucket_of, batch))) == 1 for batch in batches)
    assert len(ids(batches)) == len(set(ids(batches)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_cannot_be_had_raises_instead_of_ending_the_epoch(tmp_path: Path, workers: int) -> None:
    make_corpus(tmp_path)
    (tmp_path / "512/1.000/export_b/shard.00001.mds").unlink()
    dataset = CorpusDataset(tmp_path, batch_size=2, decode_images=False)
    with pytest.raises(Exception, match="shard") as error:
        epoch(dataset, workers)
    assert workers or isinstance(error.value, ImagelakeError)


def test_a_failed_download_raises_instead_of_ending_the_epoch(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus")
    dataset = CorpusDataset(tmp_path / "corpus", batch_size=2, cache=tmp_path / "cache", decode_images=False)
    (tmp_path / "corpus/512/1.286/export_b/shard.00000.mds").unlink()
    with pytest.raises(ImagelakeError, match="the epoch ended early"):
        epoch(dataset)


def test_a_cache_holds_copies_and_its_limit_leaves_the_corpus_alone(root: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_size for path in (root / "512").rglob("*.mds")}
    limit = 4 * max(before.values()) + (1 << 16)
    dataset = CorpusDataset(root, batch_size=2, tiers=[512], cache=tmp_path, cache_limit=limit, decode_images=False)
    found = ids(epoch(dataset))
    assert len(set(found)) == len(found) == ROWS["512/1.000"] + ROWS["512/1.286"]
    assert {path: path.stat().st_size for path in (root / "512").rglob("*.mds")} == before
    assert 0 < sum(path.stat().st_size for path in tmp_path.rglob("*.mds")) <= limit < sum(before.values())


def train_until_killed(root: Path, cache: Path, ready: Connection) -> None:
    dataset = CorpusDataset(root, batch_size=2, cache=cache, clean_shared_memory=False)
    ready.send(dataset._shm_prefix_int)
    signal.pause()


def test_shared_memory_of_a_killed_trainer_is_removed_and_that_of_a_living_one_is_kept(root: Path, tmp_path: Path) -> None:
    # fork: a new interpreter would import streaming for seconds. No threads of this process matter to the child.
    context = multiprocessing.get_context("fork")
    trainers: list[ForkProcess] = []
    prefixes: list[str] = []
    for name in ("living", "dead"):
        ours, theirs = context.Pipe()
        trainers.append(context.Process(target=train_until_killed, args=(root, tmp_path / name, theirs), daemon=True))
        trainers[-1].start()
        prefixes.append(f"{ours.recv():06}_")
    try:
        living, dead = prefixes
        trainers[1].kill()
        trainers[1].join()
        assert blocks(dead)
        kept = blocks(living)
        young = [name for name in loader.remove_stale_shared_memory() if name.startswith(dead)]
        assert young == [], "young blocks may belong to a trainer that is starting"
        time.sleep(0.1)
        removed = loader.remove_stale_shared_memory(stale_after_seconds=0.05)
        assert [name for name in removed if name.startswith(dead)]
        assert blocks(dead) == set()
        assert blocks(living) == kept != set()
        # With the blocks still there, upstream says "Reused local directory".
        CorpusDataset(root, batch_size=2, cache=tmp_path / "dead")
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.join()
        for name in set().union(*map(blocks, prefixes)):
            Path("/dev/shm", name).unlink()


def blocks(prefix: str) -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(prefix)}


def test_the_loader_imports_neither_spark_nor_lance() -> None:
    code = "import sys, imagelake.loader; print([m for m in ('pyspark', 'lance') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
