"""How the streams of a corpus share an epoch. Needs no streaming: the loader and `imagelake plan` reckon with the same shares."""

from __future__ import annotations

import math
from collections.abc import Mapping

from imagelake.errors import ConfigError


def shares(rows: Mapping[str, int], weights: Mapping[str, float] | None) -> dict[str, float]:
    """Bucket name -> its share of an epoch (shares sum to 1), in the order of `rows`; those without samples or of weight 0 are left out.

    rows: bucket name ("512/1.000") -> samples. weights: of tiers ("512") or buckets; a tier's share is divided over its buckets by their
    samples. None: in proportion to the samples. Raises ConfigError for weights that are not clear, and when nothing is left.
    """
    rows = {name: count for name, count in rows.items() if count > 0}
    parts = {name: float(count) for name, count in rows.items()} if weights is None else _weighted(rows, weights)
    total = sum(parts.values())
    if not total:
        raise ConfigError("no samples are selected: the corpus is empty, everything is skipped, or every weight is 0")
    return {name: parts[name] / total for name in rows if parts[name]}


def _weighted(rows: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, float]:
    owner: dict[str, str] = {}
    for key, weight in weights.items():
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"weights[{key!r}] is {weight!r}: a number from 0 up is needed")
        members = [name for name in rows if key in (name, name.split("/")[0])]
        if not members:
            raise ConfigError(f"weights[{key!r}] names no selected tier or bucket; there are {', '.join(rows)}")
        for name in members:
            if name in owner:
                raise ConfigError(f"weights: {name} is weighted twice, by {owner[name]!r} and by {key!r}")
            owner[name] = key
    bare = [name for name in rows if name not in owner]
    if bare:
        raise ConfigError(f"weights: none for {', '.join(bare)}; give 0 to leave a bucket or a tier out")
    totals = {key: sum(rows[name] for name in rows if owner[name] == key) for key in weights}
    return {name: weights[owner[name]] * rows[name] / totals[owner[name]] for name in rows}
