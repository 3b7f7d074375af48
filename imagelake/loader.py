"""Opens a corpus for training: one mosaicml-streaming stream per bucket, mixed by weights. Needs neither Spark nor Lance.

dataset = CorpusDataset("corpus", weights={"512": 0.3, "1024": 0.7}, batch_size=32)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=8, collate_fn=list)
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streaming import Stream, StreamingDataset
from streaming.base.constant import SHM_TO_CLEAN
from streaming.base.dataset import _ShardState
from streaming.base.format import Reader
from streaming.base.format.mds import MDSReader
from streaming.base.world import World

from imagelake import chunked, corpus, mds, mix, skiplist
from imagelake.corpus import Release
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.skiplist import NOTHING, Generation
from imagelake.skipping import CheckedSkips, kept_shards

SHUFFLE_SEED = 9176
PURE_BATCHING = ("per_stream", "device_per_stream")
# A block of shared memory that nobody maps and that is older than this was left by a process that was killed.
STALE_AFTER_SECONDS = 60.0

_SHARED_MEMORY = Path("/dev/shm")
_PROCESSES = Path("/proc")
_BLOCK = re.compile(r"\d{6}_(?:" + "|".join(map(re.escape, SHM_TO_CLEAN)) + ")")


class CorpusStream(Stream):
    """One bucket of a corpus, without what `skips` names of it.

    What a trainer may see of a shard is decided here, in `get_shards`, below partitioning: a shard that shows fewer samples makes a smaller
    sample space, which is then divided evenly over ranks. Dropping samples later would give ranks unequal counts.
    """

    skip_digest = ""

    def __init__(self, *, bucket: str, skips: Generation = NOTHING, decode_images: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.bucket = bucket
        self.skips = skips
        self.decode_images = decode_images

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        """The readers of this bucket's shards, in the index's order, each showing what is kept of it."""
        every = super().get_shards(world, allow_unsafe_types)
        lists = self.skips.lists
        shards, self.skip_digest = kept_shards(every, lambda basename: lists.get(f"{self.bucket}/{basename}"), f"bucket {self.bucket}")
        self.skips = NOTHING  # the readers have what they need; workers get a copy of this stream
        if not self.decode_images:
            for shard in shards:
                if isinstance(shard, MDSReader):
                    shard.column_encodings = ["bytes" if name == "jpeg" else name for name in shard.column_encodings]
        return shards


class CorpusDataset(CheckedSkips, StreamingDataset):
    """The samples of a corpus as dicts: `image` a PIL image (bytes of a JPEG with decode_images=False), the other columns as stored.

    root: the corpus folder. tiers: which ones, default all.
    weights: share of each tier ("512") or bucket ("512/1.000") in an epoch, any positive scale; a tier's share is divided over its buckets
        by their samples. Every selected bucket must be covered; weight 0 leaves it out. Default: in proportion to the samples.
    batch_size: samples per rank, the same as the DataLoader's.
    epoch_size: samples an epoch over all ranks; default as many as the selected buckets hold. Without weights and epoch_size each sample
        is seen once an epoch (where ranks do not divide the samples, a few are repeated to even them out).
    batching_method: "random" mixes buckets within a batch. "chunked" gives batches of one bucket, thus of one image size, in an order that
        is the same for any number of nodes, ranks and workers; it leaves out what does not fill a chunk of its bucket. "per_stream" (all
        ranks the same bucket) and "device_per_stream" are upstream's ways to such batches: neither can be resumed on another world, and
        both need at least one batch in each bucket.
    chunk_samples: samples of a chunk, a multiple of batch_size, which is the default. Keep it when batch_size changes in mid-epoch.
    skips: which skip lists hold: "current", a generation's digest to pin it, or None for none of them. What they name is never yielded;
        what is kept is seen once an epoch, in equal counts by all ranks. A bucket of which nothing is kept is left out.
    on_changed_skips: what load_state_dict does with the state of an epoch under other lists: "raise", or "restart" that epoch.
    cache: folder for copies of the shards, for a corpus on slow storage; cache_limit (bytes, or "200gb") is its size. Without a cache
        there is no limit to set: upstream would delete the corpus itself to stay below it.
    clean_shared_memory: remove what killed trainers of this user left in /dev/shm. Turn off where containers share /dev/shm but do not
        see each other's processes.
    worker_epoch: the epoch, from 0, that this process iterates, which with num_workers is a DataLoader's worker.
    Other keywords are StreamingDataset's. Raises ConfigError for what is not a corpus, and for arguments that do not fit it.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        batch_size: int,
        tiers: Sequence[int] | None = None,
        weights: Mapping[str, float] | None = None,
        epoch_size: int | None = None,
        shuffle: bool = True,
        shuffle_seed: int = SHUFFLE_SEED,
        batching_method: str = "random",
        chunk_samples: int | None = None,
        num_canonical_nodes: int | None = None,
        decode_images: bool = True,
        skips: str | None = skiplist.CURRENT,
        on_changed_skips: str = "raise",
        cache: str | Path | None = None,
        cache_limit: int | str | None = None,
        clean_shared_memory: bool = True,
        **options: Any,
    ) -> None:
        if cache_limit is not None and cache is None:
            raise ConfigError("cache_limit without cache would delete shards of the corpus itself: give a cache folder too")
        root = Path(root)
        self.release = corpus.read_release(root)
        self._failure: Exception | None = None
        self.worker_epoch = 0
        self.check_choice(on_changed_skips)
        generation = NOTHING if skips is None else skiplist.read(root, skips)
        self.skips = generation.digest
        shares = select(self.release, tiers, weights, generation)
        streams = [
            CorpusStream(bucket=name, skips=generation, decode_images=decode_images, proportion=None if weights is None else share,
                         **_place(root, name, cache))
            for name, share in shares.items()
        ]  # fmt: skip
        if clean_shared_memory and World.detect().is_local_leader:
            remove_stale_shared_memory()
        is_chunked = batching_method == chunked.NAME
        with self.equal_ranks():
            super().__init__(streams=streams, batch_size=batch_size, epoch_size=epoch_size, shuffle=shuffle,
                             shuffle_seed=shuffle_seed, batching_method="random" if is_chunked else batching_method,
                             cache_limit=cache_limit, num_canonical_nodes=num_canonical_nodes, **options)  # fmt: skip
        self.chunk_samples = chunk_samples or batch_size
        if is_chunked:
            self.batching_method = chunked.NAME  # upstream knows its own by name only
            self._require_a_chunk(batch_size)
        if batching_method in PURE_BATCHING:
            self._require_full_batches(batch_size, batching_method)

    def _require_a_chunk(self, batch_size: int) -> None:
        """Warn of buckets that fill no chunk, and fail where none does or where a device batch is no part of a chunk."""
        if self.chunk_samples % batch_size:
            raise ConfigError(f"chunk_samples {self.chunk_samples} is no multiple of batch_size {batch_size}")
        small = [f"{stream.bucket} ({stream.choose})" for stream in self.streams if stream.choose < self.chunk_samples]
        if len(small) == len(self.streams):
            raise ConfigError(f"no bucket has {self.chunk_samples} samples an epoch, a chunk: {', '.join(small)}; lower batch_size")
        if small:
            warnings.warn(f"never seen, for they fill no chunk of {self.chunk_samples} samples: {', '.join(small)}", stacklevel=3)

    def _require_full_batches(self, batch_size: int, batching_method: str) -> None:
        """Upstream fails for a bucket below one batch, in the middle of the first epoch; fail now, and name it."""
        world = self._parallel_rank_world
        needed = batch_size * (world.num_ranks if batching_method == "per_stream" else world.num_nodes)
        small = [f"{s.bucket} ({s.choose})" for s in self.streams if isinstance(s, CorpusStream) and s.choose < needed]
        if small:
            raise ConfigError(
                f"batching_method {batching_method!r} needs {needed} samples an epoch from each bucket; too few: {', '.join(small)}. "
                'Lower batch_size, leave these buckets out (weight 0), or use "random"'
            )

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard; a failure is remembered for __iter__.

        Upstream then leaves the shard marked as being fetched, and the other workers wait for ever. Marked as present, it lets each of them
        go on to read it, find no file, try for itself and fail for itself.
        """
        try:
            super().prepare_shard(shard_id, blocking)
        except Exception as error:
            self._failure = error
            if self._shard_states[shard_id] == _ShardState.PREPARING:
                self._shard_states[shard_id] = _ShardState.LOCAL
            raise

    def _resume_incr_epoch(self) -> tuple[int, int]:
        # Upstream tells the next epoch in shared memory, which a worker may read before it is written.
        self.worker_epoch, sample_in_epoch = super()._resume_incr_epoch()
        return self.worker_epoch, sample_in_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The samples of this rank and worker. Raises ImagelakeError when a shard cannot be had: upstream would end the epoch early."""
        try:
            yield from super().__iter__()
        except Exception:
            if self._failure is None:
                raise
            self._event.set()
        if self._failure is not None:
            raise ImagelakeError(f"the epoch ended early: a shard could not be read: {self._failure}") from self._failure


def select(
    release: Release, tiers: Sequence[int] | None, weights: Mapping[str, float] | None, skips: Generation = NOTHING
) -> dict[str, float]:
    """Bucket name -> its share of an epoch (shares sum to 1), in the release's order; those of weight 0 are left out, and those of which
    nothing is kept.

    Raises ConfigError for a tier or a weight that names nothing here, and for weights that are not clear.
    """
    present = sorted({corpus.split_bucket(name)[0] for name in release.buckets})
    unknown = sorted(set(tiers or ()) - set(present))
    if unknown:
        raise ConfigError(f"no tier {', '.join(map(str, unknown))} in this corpus; it has {', '.join(map(str, present))}")
    chosen = {name: bucket for name, bucket in release.buckets.items() if tiers is None or corpus.split_bucket(name)[0] in tiers}
    kept = {name: bucket.rows - skips.by_bucket[name] for name, bucket in chosen.items()}
    return mix.shares(kept, weights)


def _place(root: Path, name: str, cache: str | Path | None) -> dict[str, str]:
    folder = corpus.bucket_dir(root, *corpus.split_bucket(name))
    if not (folder / mds.INDEX).is_file():
        raise ConfigError(f"{folder}: the release names this bucket, but it has no {mds.INDEX}")
    return {"local": str(folder)} if cache is None else {"remote": str(folder), "local": str(Path(cache) / name)}


def remove_stale_shared_memory(stale_after_seconds: float = STALE_AFTER_SECONDS) -> list[str]:
    """Remove streaming's blocks in shared memory that this user's killed processes left behind; returns their names.

    A block goes when it is this user's, older than `stale_after_seconds` and mapped by no process. Upstream's own cleaning takes every
    block, also those of a trainer that runs. A trainer maps what it finds when it starts, so blocks that were stale then go only
    after its end. Does nothing without /dev/shm and /proc.
    """
    if not (_SHARED_MEMORY.is_dir() and _PROCESSES.is_dir()):
        return []
    mine = _PROCESSES.joinpath("self").stat().st_uid
    blocks = {}
    for path in _SHARED_MEMORY.iterdir():
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        old = time.time() - facts.st_mtime > stale_after_seconds and time.time() - facts.st_ctime > stale_after_seconds
        if _BLOCK.fullmatch(path.name) and facts.st_uid == mine and old:
            blocks[str(path)] = path
    if not blocks:
        return []
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # Gone meanwhile, or another user's, who cannot map a block that only this user may open.
            continue
        for line in text.splitlines():
            blocks.pop(line.partition("/")[1] + line.partition("/")[2], None)
    for path in blocks.values():
        path.unlink(missing_ok=True)
    return sorted(path.name for path in blocks.values())
