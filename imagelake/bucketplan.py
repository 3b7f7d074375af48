"""Which streams of a corpus are too thin for a batch size and a world, and what to do about them. Pure: counts in, plan out.

A batch holds pictures of one size, so what does not fill a batch of its stream is left out of the epoch (the loader's "chunked" batches);
where all ranks take the same stream in a step, so is what does not fill a batch of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from imagelake import mix


@dataclass(frozen=True)
class Stream:
    """One bucket of one tier, "512/1.000". samples: in the corpus; chosen: in an epoch; batches: full device batches that `chosen` makes.

    verdict: "never" (it fills no batch), "thin" (fewer batches than ranks) or "enough".
    """

    name: str
    samples: int
    chosen: int
    batches: int
    left_over: int
    verdict: str

    @property
    def tier(self) -> str:
        return self.name.split("/")[0]

    @property
    def ratio(self) -> float:
        """Width / height."""
        return float(self.name.split("/")[1])


@dataclass(frozen=True)
class Merge:
    """A proposal: take the pictures of `source` in the shape of `target`, whose share in `cropped` of their area would be cut off."""

    source: str
    target: str
    chosen: int
    batches: int
    cropped: float


@dataclass(frozen=True)
class Plan:
    """batch_size: samples of a device batch; world_size: ranks. smallest: samples of an epoch, or of a corpus in these proportions, with
    which every stream fills a batch of each rank. to_add: samples that would do it too, added where they are missing."""

    batch_size: int
    world_size: int
    streams: tuple[Stream, ...]
    merges: tuple[Merge, ...]
    smallest: int
    to_add: Mapping[str, int]

    @property
    def chosen(self) -> int:
        return sum(stream.chosen for stream in self.streams)

    @property
    def seen(self) -> int:
        """Samples of an epoch that are in a full batch."""
        return self.steps * self.world_size * self.batch_size

    @property
    def steps(self) -> int:
        return sum(stream.batches for stream in self.streams) // self.world_size


def plan(
    rows: Mapping[str, int],
    *,
    batch_size: int,
    world_size: int = 1,
    weights: Mapping[str, float] | None = None,
    epoch_size: int | None = None,
) -> Plan:
    """rows: samples by bucket name. weights and epoch_size: as the loader takes them. Raises ConfigError for weights that are not clear."""
    shares = mix.shares(rows, weights)
    total = epoch_size or sum(rows[name] for name in shares)
    streams = tuple(_stream(name, rows[name], int(share * total + 1e-6), batch_size, world_size) for name, share in shares.items())
    needed = batch_size * world_size
    return Plan(
        batch_size,
        world_size,
        streams,
        _merges(streams, batch_size, world_size),
        max(math.ceil(needed / share) for share in shares.values()),
        {stream.name: needed - stream.chosen for stream in streams if stream.chosen < needed},
    )


def _stream(name: str, samples: int, chosen: int, batch_size: int, world_size: int) -> Stream:
    batches, left_over = divmod(chosen, batch_size)
    verdict = "never" if not batches else "thin" if batches < world_size else "enough"
    return Stream(name, samples, chosen, batches, left_over, verdict)


def _merges(streams: tuple[Stream, ...], batch_size: int, world_size: int) -> tuple[Merge, ...]:
    """Each stream that is not enough, the thinnest first, goes to the stream of its tier whose shape is nearest. What became enough by that
    stays."""
    chosen = {stream.name: stream.chosen for stream in streams}
    by_name = {stream.name: stream for stream in streams}
    found = []
    for stream in sorted(streams, key=lambda stream: (stream.chosen, stream.name)):
        if chosen[stream.name] >= batch_size * world_size:
            continue
        others = [other for name, other in by_name.items() if name in chosen and other.tier == stream.tier and name != stream.name]
        if not others:
            continue
        target = min(others, key=lambda other: (abs(math.log(other.ratio / stream.ratio)), -chosen[other.name], other.name))
        chosen[target.name] += chosen.pop(stream.name)
        ratios = sorted((stream.ratio, target.ratio))
        found.append(Merge(stream.name, target.name, chosen[target.name], chosen[target.name] // batch_size, 1 - ratios[0] / ratios[1]))
    return tuple(found)
