"""`imagelake plan`: whether a corpus fills the batches of a training run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from imagelake import query, runner
from imagelake.bucketplan import Plan
from imagelake.commands import options
from imagelake.commands.options import AsJson, ConfigFiles, CorpusFolder, Overrides
from imagelake.config import Config
from imagelake.errors import EXIT_OK, ConfigError


def plan(
    corpus: CorpusFolder = None,
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Samples of a device batch.")] = 32,
    world_size: Annotated[int, typer.Option("--world-size", metavar="N", min=1, help="Ranks.")] = 1,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", metavar="TIER=WEIGHT", help="Share of a tier or a bucket (512/1.000); may be repeated."),
    ] = None,
    epoch_size: Annotated[int | None, typer.Option("--epoch-size", metavar="N", min=1, help="Samples of an epoch; default: all.")] = None,
    json_: AsJson = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Say which streams are too thin for a batch size and a world, and what would help.

    Counts what the loader would yield of a corpus, or, where none is released yet, what is curated. No image is read.
    """
    options.end(
        lambda: _plan(options.of_corpus(options.load(config, set_), corpus), batch_size, world_size, _weights(mix or []), epoch_size, json_)
    )


def _plan(cfg: Config, batch_size: int, world_size: int, weights: dict[str, float] | None, epoch_size: int | None, as_json: bool) -> int:
    from imagelake import bucketplan

    where, rows = _rows(cfg)
    found = bucketplan.plan(rows, batch_size=batch_size, world_size=world_size, weights=weights, epoch_size=epoch_size)
    if as_json:
        print(json.dumps(asdict(found) | {"chosen": found.chosen, "seen": found.seen, "steps": found.steps}, indent=2))
    else:
        _print(found, where)
    return EXIT_OK


def _weights(mix: list[str]) -> dict[str, float] | None:
    """Raises ConfigError that names the option which is no pair of a stream and a number."""
    weights = {}
    for entry in mix:
        name, _, weight = entry.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ConfigError(f"--mix {entry}: expected TIER=WEIGHT, for example --mix 512=0.7 --mix 1024=0.3") from None
    return weights or None


def _rows(cfg: Config) -> tuple[str, dict[str, int]]:
    """Samples by bucket, and where they were counted."""
    from imagelake import columns as C
    from imagelake import corpus, lance, skiplist, tables

    root = Path(cfg.corpus.root)
    if corpus.is_released(root):
        skips = skiplist.read(root)
        buckets = corpus.read_release(root).buckets
        return f"corpus {root}", {name: bucket.rows - skips.by_bucket[name] for name, bucket in buckets.items()}
    lake = runner.require_lake(cfg)
    if not lance.exists(lake, tables.CURATED):
        raise ConfigError(f"{root} is no corpus, and lake.root {lake} has no curated pictures yet")
    counts = lance.scan(lake, tables.CURATED, [C.TIER, C.BUCKET]).group_by([C.TIER, C.BUCKET]).aggregate([([], "count_all")])
    found = {f"{row[C.TIER]}/{row[C.BUCKET]}": row["count_all"] for row in counts.to_pylist()}
    return f"curated pictures of {lake}", dict(sorted(found.items()))


def _print(plan: Plan, where: str) -> None:
    rows = [
        {
            "stream": stream.name,
            "samples": f"{stream.samples:,}",
            "an epoch": f"{stream.chosen:,}",
            "batches": f"{stream.batches:,}",
            "left over": stream.left_over,
            "verdict": stream.verdict,
        }
        for stream in plan.streams
    ]
    options.print_table(("stream", "samples", "an epoch", "batches", "left over", "verdict"), rows, where)
    out = query.console(sys.stdout)
    ranks = f"{plan.world_size} × {plan.batch_size}"
    out.print(f"an epoch: {plan.steps:,} steps of {ranks}, {plan.seen:,} of {plan.chosen:,} samples")
    if not plan.to_add:
        out.print("every stream fills a batch of each rank")
        return
    for merge in plan.merges:
        becomes = f"{merge.chosen:,} samples, {merge.batches:,} batches; {merge.cropped:.0%} of a picture is cropped"
        out.print(f"merge {merge.source} into {merge.target}: {becomes}")
    missing = ", ".join(f"{name} {count:,}" for name, count in plan.to_add.items())
    out.print(f"or add samples: {missing}")
    out.print(f"or an epoch of {plan.smallest:,} samples in these proportions: then every stream fills a batch of each rank")
