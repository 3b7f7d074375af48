"""Batches of one stream, thus of one image size, in an order that does not depend on the world: `batching_method="chunked"`.

An epoch is a sequence of chunks; a chunk is `chunk_samples` samples of one stream. Each stream's samples keep their own shuffled order, and
the streams are interleaved at random in proportion to their chunks. A device batch is a chunk or an equal part of one, and a step takes as
many device batches as there are ranks, in order. So a run may go on with another number of nodes, ranks or workers, and another device
batch, as long as it divides the chunk: what comes next is the same.

Canonical nodes each own a part of every stream, and their chunks take turns: with as many physical nodes, and chunks as large as what a
node takes in one step, a node reads its own shards only.

What does not fill a chunk of its stream is left out of the epoch, fewer than `chunk_samples` samples of each stream, other ones each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from streaming.base.batching import batching_methods
from streaming.base.shuffle import get_shuffle
from streaming.base.world import World

from imagelake.errors import ConfigError

NAME = "chunked"
Ids = npt.NDArray[np.int64]


def generate_work(dataset: Any, world: World, epoch: int, sample_in_epoch: int) -> Ids:
    """Sample ids of an epoch from `sample_in_epoch` on: int64 [nodes, ranks a node, workers a rank, batches a worker, batch size], -1 where
    there is none. Raises ConfigError when the epoch was left in the middle of a device batch of today's size."""
    batch = int(dataset.batch_size)
    if sample_in_epoch % batch:
        raise ConfigError(f"batch_size {batch}: the epoch was left after {sample_in_epoch} samples, which is no multiple of it")
    order = chunks(dataset, epoch).reshape(-1)[sample_in_epoch:]
    step = batch * world.num_ranks
    steps = order[: len(order) // step * step].reshape(-1, world.num_nodes, world.ranks_per_node, batch)
    missing = -len(steps) % world.workers_per_rank
    padded = np.concatenate([steps, np.full((missing, *steps.shape[1:]), -1, np.int64)])
    # A rank's batches go to its workers in turn.
    by_worker = padded.reshape(-1, world.workers_per_rank, world.num_nodes, world.ranks_per_node, batch)
    work: Ids = by_worker.transpose(2, 3, 1, 0, 4)
    return work


def chunks(dataset: Any, epoch: int) -> Ids:
    """The epoch's chunks in order: int64 [chunks, chunk_samples], sample ids over all streams."""
    nodes, size = int(dataset.num_canonical_nodes), int(dataset.chunk_samples)
    random = np.random.default_rng([dataset.shuffle_seed, epoch]) if dataset.shuffle else None
    by_node: list[list[Ids]] = [[] for _ in range(nodes)]
    for stream in range(len(dataset.streams)):
        parts = np.array_split(_ordered(dataset, epoch, stream), nodes)
        rest = np.concatenate([part[len(part) // size * size :] for part in parts])
        for number, part in enumerate(parts):
            by_node[number].append(part[: len(part) // size * size].reshape(-1, size))
        # What is left of each node's part makes chunks too: they go where there is least.
        for chunk in rest[: len(rest) // size * size].reshape(-1, 1, size):
            least = min(range(nodes), key=lambda node: sum(map(len, by_node[node])))
            by_node[least].append(chunk)
    rows = [_interleaved(found, random) for found in by_node]
    turns = [row[turn] for turn in range(max(map(len, rows))) for row in rows if turn < len(row)]
    return np.array(turns, np.int64).reshape(-1, size)


def _ordered(dataset: Any, epoch: int, stream: int) -> Ids:
    """One stream's samples of an epoch in their own order: int64 [samples]."""
    units, samples = dataset.resample_streams(epoch, stream)
    if not dataset.shuffle:
        return np.asarray(samples)
    nodes = dataset.num_canonical_nodes
    if len(samples) < nodes:  # the shuffles need a sample for each canonical node
        return np.asarray(np.random.default_rng([dataset.shuffle_seed, epoch, stream]).permutation(samples))
    block = max(2, int((dataset.shuffle_block_size or max(4_000_000 // nodes, 1 << 18)) * dataset.streams[stream].proportion))
    return np.asarray(samples[get_shuffle(dataset.shuffle_algo, units, nodes, dataset.shuffle_seed, epoch, block)])


def _interleaved(lists: list[Ids], random: np.random.Generator | None) -> list[Ids]:
    """The rows of several lists as one, each list in its own order."""
    turns = np.repeat(np.arange(len(lists)), [len(rows) for rows in lists])
    if random is not None:
        random.shuffle(turns)
    iterators = [iter(rows) for rows in lists]
    return [next(iterators[turn]) for turn in turns]


batching_methods[NAME] = generate_work
