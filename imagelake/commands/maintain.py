"""`imagelake maintain`: what keeps a lake quick, and what dead runs left behind."""

from __future__ import annotations

import shutil

from imagelake import runner, session
from imagelake.commands import options
from imagelake.commands.options import ConfigFiles, DryRun, Overrides
from imagelake.config import Config
from imagelake.errors import EXIT_OK


def maintain(config: ConfigFiles = None, set_: Overrides = None, dry_run: DryRun = False) -> None:
    """Compact the index of pictures, and remove what dead runs left in it.

    Safe to run at any time but during dedup; a second run right after does nothing.
    """
    options.end(lambda: _maintain(options.load(config, set_), dry_run))


def _maintain(cfg: Config, dry_run: bool) -> int:
    from imagelake import hashindex

    lake = runner.require_lake(cfg)
    would = "would be " if dry_run else ""
    index = hashindex.current(lake)
    if index is not None and len(index.folders) > 1:
        if not dry_run:
            with session.build(cfg.spark) as spark:
                hashindex.compact(spark, lake)
        print(f"picture index: {len(index.folders)} batches of {index.rows:,} pictures {would}made one")
    else:
        print("picture index: nothing to compact")
    orphans = hashindex.orphans(lake)
    if not dry_run:
        for folder in orphans:
            shutil.rmtree(folder)
    print(f"picture index: {len(orphans)} folders of dead runs {would}removed")
    return EXIT_OK
