"""`imagelake run`: every stage in one process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.table import Table

from imagelake import query, runner, session
from imagelake.commands import options
from imagelake.commands.options import ConfigFiles, DryRun, Overrides, Sources
from imagelake.config import Config
from imagelake.errors import EXIT_OK, ConfigError
from imagelake.ledger import StageResult
from imagelake.stages import STAGES, Stage


def run(sources: Sources = None, config: ConfigFiles = None, set_: Overrides = None, dry_run: DryRun = False) -> None:
    """Run every stage, from sources to a verified corpus.

    A repeat does only what is new, and takes up what was interrupted.
    """
    options.end(lambda: _run(options.load(config, set_, sources), dry_run))


def _run(cfg: Config, dry_run: bool) -> int:
    if cfg.sources is None:
        raise ConfigError("sources: no sources file given; use --sources sources.yaml")
    if dry_run:
        from imagelake import dryrun

        dryrun.show(cfg, Path(cfg.sources), query.console(sys.stdout))
        return EXIT_OK
    from imagelake.corpus import is_released
    from imagelake.sources import list_files, load_sources

    for spec in load_sources(Path(cfg.sources)):  # what is wrong with the sources is said before Spark starts
        list_files(spec)
    for key, root in (("lake.root", cfg.lake.root), ("corpus.root", cfg.corpus.root)):
        runner.make_root(key, Path(root))
    table = Table("stage", "in", "kept", "out", "seconds", "per second")
    with session.build(cfg.spark) as spark:
        for step in STAGES:
            started = time.monotonic()
            result = runner.execute(step, cfg, spark)
            table.add_row(*_cells(step, result, time.monotonic() - started))
    query.console(sys.stdout).print(table)
    kept_any = is_released(Path(cfg.corpus.root))
    print(f"corpus: {cfg.corpus.root}" if kept_any else "nothing was kept, so there is no corpus: the reasons are in rejects")
    return EXIT_OK


def _cells(step: Stage, result: StageResult, seconds: float) -> tuple[str, ...]:
    if result.nothing_to_do:
        return step.name, "–", "–", "nothing to do", f"{seconds:.1f}", "–"
    out = ", ".join(f"{reason} {count}" for reason, count in sorted(result.rejected.items())) or "–"
    return step.name, str(result.rows_in), str(result.kept), out, f"{seconds:.1f}", f"{result.rows_in / seconds:,.1f}"
