"""What the loader yields under skip lists, over worlds of every size: most of them as arrays, some as real processes."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World
from torch.utils.data import DataLoader

from imagelake import corpus, mds, skiplist
from imagelake.corpus import BucketSummary
from imagelake.errors import ConfigError
from imagelake.loader import CorpusDataset
from imagelake.paths import PROJECT
from imagelake.skiplist import SkipList, SkipListError
from imagelake.skipping import SkipListMixin
from tests.corpus_fixture import COLUMNS, SHAPES, jpeg_bytes

pytestmark = pytest.mark.usefixtures("closed_datasets")
ROWS = {"512/1.000": 83, "512/1.286": 41, "1024/1.000": 29}
PER_SHARD = 10
EXPORT = "00000-made"


picture = cache(jpeg_bytes)


def sample(bucket: str, number: int) -> dict[str, Any]:
    """A sample of a bucket that has one picture: nobody decodes it."""
    width, height = SHAPES[bucket]
    texts = {name: "" for name, encoding in COLUMNS.items() if encoding == "str"}
    numbers = {"width": width, "height": height, "original_width": width, "original_height": height}
    return texts | numbers | {"image": picture(width, height), "id": f"{bucket}#{number}"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    summaries = {}
    for bucket, count in ROWS.items():
        place = corpus.bucket_dir(folder, *corpus.split_bucket(bucket))
        entries = []
        for shard, first in enumerate(range(0, count, PER_SHARD)):
            name = corpus.shard_basename(EXPORT, shard)
            samples = [sample(bucket, number) for number in range(first, min(first + PER_SHARD, count))]
            entries.append(mds.write_shard(place / name, COLUMNS, samples, basename=name, fsync=False))
        mds.write_index(place, entries)
        summaries[bucket] = BucketSummary.of(entries)
    release = corpus.Release(created_from={}, config_digest="c", rows=sum(ROWS.values()), columns=COLUMNS, captions=(), buckets=summaries,
                             exports=(EXPORT,))  # fmt: skip
    corpus.write_release(folder, release)
    skiplist.publish(folder, generation(folder, skipped))
    return folder


def skipped(bucket: str, number: int) -> bool:
    """A third of all, one shard whole, the first and the last of another."""
    return number % 3 == 0 or 20 <= number < 30 or number in (40, 49, ROWS[bucket] - 1)


def generation(root: Path, skips: Any) -> str:
    lists = {}
    for bucket, count in ROWS.items():
        for entry in mds.read_index(corpus.bucket_dir(root, *corpus.split_bucket(bucket))):
            name = entry["raw_data"]["basename"]
            first = int(name.split(".")[-2]) * PER_SHARD
            indices = [index for index in range(entry["samples"]) if skips(bucket, first + index) and first + index < count]
            if indices:
                lists[f"{bucket}/{name}"] = SkipList(entry["samples"], entry["raw_data"]["bytes"], 1, np.array(indices, np.int64))
    return skiplist.write_pack(root, lists)


EVERY = {f"{bucket}#{number}" for bucket, count in ROWS.items() for number in range(count)}
KEPT = {f"{bucket}#{number}" for bucket, count in ROWS.items() for number in range(count) if not skipped(bucket, number)}


def dataset(root: Path, **options: Any) -> CorpusDataset:
    return CorpusDataset(root, **({"batch_size": 4, "decode_images": False, "num_canonical_nodes": 4} | options))


def batches(loaded: CorpusDataset, workers: int = 0) -> list[list[str]]:
    found = DataLoader(loaded, batch_size=loaded.batch_size, num_workers=workers, collate_fn=list)
    return [[values["id"] for values in batch] for batch in found]


def ids(loaded: CorpusDataset, workers: int = 0) -> list[str]:
    return list(itertools.chain.from_iterable(batches(loaded, workers)))


def worlds() -> list[World]:
    shapes = itertools.product((1, 2, 4), (1, 3, 8), (1, 2, 4))
    return [World(nodes, ranks, workers, 0) for nodes, ranks, workers in shapes]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_skipped_never_comes_and_each_kept_one_once(root: Path, workers: int, shuffle: bool) -> None:
    loaded = dataset(root, shuffle=shuffle, num_canonical_nodes=None)
    assert min(shard.samples for shard in loaded.shards) > 0, "a shard that is skipped whole is in the sample space"
    for _ in range(2):
        assert Counter(ids(loaded, workers)) == Counter(dict.fromkeys(KEPT, 1))


def test_no_lists_and_pinned_lists(root: Path) -> None:
    assert set(ids(dataset(root, skips=None))) == EVERY
    pinned = generation(root, lambda bucket, number: number == 0)
    assert set(ids(dataset(root, skips=pinned))) == EVERY - {f"{bucket}#0" for bucket in ROWS}
    with pytest.raises(ConfigError, match="has no generation 'f00d'"):
        dataset(root, skips="f00d")


def test_a_bucket_of_which_nothing_is_kept_is_left_out(root: Path) -> None:
    without = generation(root, lambda bucket, number: bucket == "512/1.286" or number == 7)
    assert {found.split("#")[0] for found in ids(dataset(root, skips=without))} == {"512/1.000", "1024/1.000"}
    with pytest.raises(ConfigError, match="names no selected tier or bucket"):
        dataset(root, skips=without, weights={"512/1.286": 1.0, "1024": 1, "512/1.000": 1})
    with pytest.raises(ConfigError, match="everything is skipped"):
        dataset(root, skips=generation(root, lambda bucket, number: True))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("algorithm", ["py1s", "py1e", "py1br", "py2s", "naive"])
@pytest.mark.parametrize("method", ["random", "chunked"])
def test_ranks_of_every_world_get_equal_counts_of_kept_samples(root: Path, seed: int, algorithm: str, method: str) -> None:
    loaded = dataset(root, batching_method=method, shuffle_algo=algorithm, shuffle_seed=seed, shuffle_block_size=64)
    assert loaded.num_samples == len(KEPT)
    for world in worlds():
        work = generate_work(method, loaded, world, 0, 0)
        counts = {int((rank >= 0).sum()) for node in work for rank in node}
        assert len(counts) == 1, f"{world}: ranks get {counts}"
        seen = Counter(work[work >= 0].tolist())
        ranks = world.num_nodes * world.ranks_per_node
        if method == "random":
            # All of them; a few twice, where ranks do not divide them.
            assert set(seen) == set(range(len(KEPT))) and seen.total() - len(KEPT) < 4 * ranks * world.workers_per_rank
        else:
            assert set(seen.values()) <= {1}
            # Left out: what fills no chunk of its bucket, and no step of all ranks.
            assert len(KEPT) - seen.total() < 4 * (len(ROWS) + ranks)


@pytest.mark.parametrize("shuffle", [True, False])
def test_chunked_batches_are_of_one_bucket_and_other_ones_each_epoch(root: Path, shuffle: bool) -> None:
    loaded = dataset(root, batching_method="chunked", shuffle=shuffle)
    epochs = [batches(loaded, workers=2), batches(loaded, workers=2)]
    for epoch in epochs:
        assert all(len(batch) == 4 and len({found.split("#")[0] for found in batch}) == 1 for batch in epoch)
        assert len(epoch) == sum(sum(found.startswith(f"{bucket}#") for found in KEPT) // 4 for bucket in ROWS)
    assert (epochs[0] != epochs[1]) == shuffle


@pytest.mark.parametrize("nodes", [1, 4])
def test_chunked_resumes_exactly_on_any_world(root: Path, nodes: int) -> None:
    loaded = dataset(root, batching_method="chunked", chunk_samples=8, num_canonical_nodes=nodes)
    whole = generate_work("chunked", loaded, World(1, 1, 1, 0), 3, 0).reshape(-1)
    for batch, consumed in itertools.product((2, 4, 8), (0, 16, 40)):
        loaded.batch_size = batch
        for world in worlds():
            work = generate_work("chunked", loaded, world, 3, consumed)
            # A step: each worker's next batch in turn, all nodes and ranks at once.
            steps = work.transpose(3, 2, 0, 1, 4).reshape(-1)
            steps = steps[steps >= 0]
            assert steps.tolist() == whole[consumed : consumed + len(steps)].tolist()
            assert len(whole) - consumed - len(steps) < batch * world.num_nodes * world.ranks_per_node
    with pytest.raises(ConfigError, match="no multiple of it"):
        generate_work("chunked", loaded, World(1, 1, 1, 0), 3, 4)


def test_chunks_that_can_not_be_are_named(root: Path) -> None:
    with pytest.raises(ConfigError, match="chunk_samples 6 is no multiple of batch_size 4"):
        dataset(root, batching_method="chunked", chunk_samples=6)
    with pytest.raises(ConfigError, match="no bucket has 400 samples an epoch"):
        dataset(root, batching_method="chunked", batch_size=400)
    with pytest.warns(UserWarning, match=r"never seen.*1024/1\.000 \(\d+\)"):
        dataset(root, batching_method="chunked", batch_size=16)


@pytest.mark.parametrize("method", ["random", "chunked"])
def test_an_epoch_left_in_the_middle_goes_on_with_exactly_the_rest(root: Path, method: str) -> None:
    first = dataset(root, batching_method=method, shuffle_seed=3)
    whole = batches(first)
    again = dataset(root, batching_method=method, shuffle_seed=3)
    running = iter(DataLoader(again, batch_size=4, collate_fn=list))
    seen = [[values["id"] for values in next(running)] for _ in range(5)]
    state = again.state_dict(5 * 4, from_beginning=True)
    resumed = dataset(root, batching_method=method, shuffle_seed=3)
    resumed.load_state_dict(state)
    assert seen + batches(resumed) == whole


def test_a_state_of_other_lists_is_refused_or_restarts_the_epoch(root: Path) -> None:
    before = dataset(root)
    next(iter(before))
    state = json.loads(json.dumps(before.state_dict(8, from_beginning=True)))
    other = generation(root, lambda bucket, number: number % 5 == 0)
    with pytest.raises(SkipListError, match="saved under the skip lists"):
        dataset(root, skips=other).load_state_dict(state)
    restarted = dataset(root, skips=other, on_changed_skips="restart")
    restarted.load_state_dict(state)
    assert set(ids(restarted)) == {found for found in EVERY if int(found.split("#")[1]) % 5}
    with pytest.raises(ConfigError, match="one of raise, restart"):
        dataset(root, on_changed_skips="ignore")


def test_a_list_of_another_shard_stops_the_loader(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus"
    subprocess.run(["cp", "-r", root, copy], check=True)
    digest = skiplist.current_digest(copy)
    assert digest is not None
    lists = skiplist.read(copy).lists
    name = next(iter(lists))
    foreign = SkipList(lists[name].samples, lists[name].shard_bytes + 1, 1, lists[name].skipped)
    skiplist.publish(copy, skiplist.write_pack(copy, {**lists, name: foreign}))
    with pytest.raises(SkipListError, match="made for a shard of"):
        dataset(copy)


class Theirs(StreamingDataset):
    """A dataset of somebody's own."""


class Mine(SkipListMixin, Theirs):
    pass


def test_the_mixin_gives_a_dataset_of_ones_own_the_lists_beside_its_shards(root: Path, tmp_path: Path) -> None:
    folder = root / "512" / "1.000"
    expected = {found for found in KEPT if found.startswith("512/1.000#")}
    places: list[dict[str, str]] = [{"local": str(folder)}, {"remote": str(folder), "local": str(tmp_path / "cache")}]
    for place in places:
        mine = Mine(**place, batch_size=4, shuffle=True)
        assert isinstance(mine, Theirs) and len(mine) == len(expected)
        assert {mine[index]["id"] for index in range(len(mine))} == expected if "remote" not in place else True
        assert {values["id"] for values in mine} == expected
    assert Theirs(local=str(folder), batch_size=4).num_samples == ROWS["512/1.000"]


RANK = """
import json, sys
from torch.utils.data import DataLoader
from imagelake.loader import CorpusDataset
root, out, skips = sys.argv[1:]
dataset = CorpusDataset(root, batch_size=2, decode_images=False, skips=skips, num_canonical_nodes=2)
found = [[values["id"] for values in batch] for batch in DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list)]
json.dump(found, open(out, "w"))
"""


def ranks(root: Path, folder: Path, *skips: str) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks as a launcher starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(root), str(folder / f"{rank}.json"), skips[rank]],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=PROJECT, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess("rank", p.returncode, *output) for p, output in zip(started, outputs, strict=True)]


def test_two_real_ranks_share_the_kept_samples_evenly(root: Path, tmp_path: Path) -> None:
    current = str(skiplist.current_digest(root))
    done = ranks(root, tmp_path, current, current)
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    found = [list(itertools.chain.from_iterable(json.loads((tmp_path / f"{rank}.json").read_text()))) for rank in range(2)]
    assert len(found[0]) == len(found[1])
    assert set(found[0]) | set(found[1]) == KEPT
    assert len(found[0]) + len(found[1]) - len(KEPT) < 8


def test_ranks_that_see_different_lists_stop(root: Path, tmp_path: Path) -> None:
    other = generation(root, lambda bucket, number: number == 5)
    done = ranks(root, tmp_path, str(skiplist.current_digest(root)), other)
    for process in done:
        assert process.returncode != 0 and "the ranks see different skip lists" in str(process.stderr)
