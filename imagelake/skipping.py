"""Skip lists for mosaicml-streaming, below partitioning: a shard shows its kept samples only, so ranks stay equal.

CorpusDataset does this by itself. A trainer that has a StreamingDataset of its own mixes it in:

    class Mine(SkipListMixin, TheirDataset): ...

The mixin reads the lists that lie beside the shards (`<shard>.skip`), on the streams' local folder or their remote.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from streaming import Stream
from streaming.base.distributed import maybe_init_dist
from streaming.base.format import Reader
from streaming.base.format.mds import MDSReader
from streaming.base.stream import streams_registry
from streaming.base.world import World
from torch import distributed

from imagelake.errors import ConfigError
from imagelake.skiplist import SUFFIX, SkipList, SkipListError

STATE_KEY = "skips"
ON_CHANGE = ("raise", "restart")


class SkippingReader(MDSReader):
    """A shard of which only the kept samples are seen: `samples` counts them, and they are numbered without gaps."""

    _before: Any

    def get_sample_data(self, idx: int) -> bytes:
        data: bytes = super().get_sample_data(self.stored_index(idx))
        return data

    def stored_index(self, kept_index: int) -> int:
        """The place in the shard of the kept sample `kept_index`."""
        return kept_index + int(np.searchsorted(self._before, kept_index, side="right"))


def show_kept(shard: MDSReader, found: SkipList) -> None:
    """Make a reader show the kept samples only. Raises SkipListError when the list is another shard's."""
    found.require_shard(shard.raw_data.basename, shard.samples, shard.raw_data.bytes)
    shard.__class__ = SkippingReader
    assert isinstance(shard, SkippingReader)
    # How many kept samples stand before each skipped one: as many skipped ones come before the n-th kept as have at most n.
    shard._before = (found.skipped - np.arange(len(found.skipped))).astype(np.uint32)
    shard.samples -= len(found.skipped)


def kept_shards(shards: Iterable[Reader], list_of: Callable[[str], SkipList | None], name: str) -> tuple[list[Reader], str]:
    """The readers with what is skipped hidden, fully skipped shards left out; and a digest of the lists as they apply here.

    Raises ConfigError when nothing is left of `name`, SkipListError for a list that does not fit.
    """
    digest = hashlib.sha256()
    kept: list[Reader] = []
    for shard in shards:
        assert isinstance(shard, MDSReader)
        found = list_of(shard.raw_data.basename)
        if found is not None and len(found.skipped):
            digest.update(f"{shard.raw_data.basename}\0".encode() + found.skipped.tobytes())
            show_kept(shard, found)
        if shard.samples:
            kept.append(shard)
    if not kept:
        raise ConfigError(f"{name}: every sample is skipped; leave it out")
    return kept, digest.hexdigest()[:16]


def _sidecar(stream: Stream, basename: str) -> SkipList | None:
    local = Path(stream.local, stream.split or "", basename + SUFFIX)
    if not local.is_file() and stream.remote:
        remote = Path(stream.remote, stream.split or "", basename + SUFFIX)
        if "://" in str(stream.remote):
            raise ConfigError(f"{stream.remote}: skip lists beside shards are read from folders; give the corpus to CorpusDataset")
        local = remote
    return SkipList.decode(local.read_bytes(), str(local)) if local.is_file() else None


def _get_kept_shards(stream: Stream, get_shards: Callable[..., list[Reader]], world: World, allow_unsafe_types: bool) -> list[Reader]:
    shards, digest = kept_shards(get_shards(world, allow_unsafe_types), functools.partial(_sidecar, stream), str(stream.local))
    stream.skip_digest = digest  # type: ignore[attr-defined]
    return shards


class SidecarStream(Stream):
    """A stream that honours the lists beside its shards."""

    skip_digest = ""

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        return _get_kept_shards(self, super().get_shards, world, allow_unsafe_types)


streams_registry.register("imagelake_sidecars", func=SidecarStream)


class CheckedSkips:
    """A dataset that knows which skip lists it was opened with: ranks must agree, and a checkpoint must be resumed under the same.

    `on_changed_skips`: what a resume under other lists does: "raise" (default) or "restart" the epoch under the new ones.
    """

    streams: Any
    on_changed_skips: str

    def check_choice(self, on_changed_skips: str) -> None:
        if on_changed_skips not in ON_CHANGE:
            raise ConfigError(f"on_changed_skips is {on_changed_skips!r}: one of {', '.join(ON_CHANGE)}")
        self.on_changed_skips = on_changed_skips

    @property
    def skip_digest(self) -> str:
        """Of the lists as they apply to the streams of this dataset."""
        return hashlib.sha256("".join(stream.skip_digest for stream in self.streams).encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def equal_ranks(self) -> Iterator[None]:
        """Around the opening of the dataset. Raises SkipListError on every rank when they opened other lists: they would cut the epoch
        differently, and wait for each other for ever."""
        is_ours = maybe_init_dist()  # streaming would do it within, and end it before the ranks can compare
        try:
            yield
            if distributed.is_available() and distributed.is_initialized():
                found: list[Any] = [None] * distributed.get_world_size()
                distributed.all_gather_object(found, self.skip_digest)
                if len(set(found)) > 1:
                    raise SkipListError(
                        f"the ranks see different skip lists: {', '.join(map(str, found))}; pin one generation by its digest"
                    )
        finally:
            if is_ours:
                distributed.destroy_process_group()

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict(num_samples, from_beginning)  # type: ignore[misc]
        return state | {STATE_KEY: self.skip_digest}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Raises SkipListError for a state that was saved under other lists, unless the epoch is to be restarted."""
        if obj.get("sample_in_epoch") and obj.get(STATE_KEY, self.skip_digest) != self.skip_digest:
            if self.on_changed_skips == "raise":
                raise SkipListError(
                    f"this state was saved under the skip lists {obj[STATE_KEY]}, the dataset has {self.skip_digest}: what is left of the "
                    'epoch is not the same. Pin the generation of that time, or open the dataset with on_changed_skips="restart"'
                )
            obj = obj | {"sample_in_epoch": 0}
        super().load_state_dict(obj)  # type: ignore[misc]


class SkipListMixin(CheckedSkips):
    """Gives any StreamingDataset class the skip lists beside its shards; put it first among the bases. Keywords are those of the class,
    and on_changed_skips."""

    def __init__(self, *args: Any, on_changed_skips: str = "raise", **options: Any) -> None:
        self.check_choice(on_changed_skips)
        for stream in options.get("streams") or ():
            stream.get_shards = functools.partial(_get_kept_shards, stream, stream.get_shards)
        if not options.get("streams"):
            options.setdefault("stream_name", "imagelake_sidecars")
        with self.equal_ranks():
            super().__init__(*args, **options)
