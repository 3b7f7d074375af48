"""What a run would do: the files of each source, and when each stage last ended well. Reads names, sizes and Delta's log, without Spark."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from imagelake import deltalog, ledger, tables
from imagelake.config import Config
from imagelake.sources import list_files, load_sources, unread_metadata
from imagelake.sources.manifest import compare
from imagelake.stages import STAGES, stage


def show(cfg: Config, sources: Path, console: Console) -> None:
    """Print the plan. Raises ConfigError for what the run would refuse."""
    lake = Path(cfg.lake.root)
    pinned = deltalog.read(lake, tables.SOURCE_FILES)
    specs = load_sources(sources)
    files = {spec.name: list_files(spec) for spec in specs}
    found = compare(specs, [file for listed in files.values() for file in listed], pinned)
    to_ingest = len(importlib.import_module(stage("ingest").module).new_files(found))
    counts = [Counter(file.source for file in part) for part in (found.new, found.known, found.changed)]
    counts.append(Counter(source for source, _ in found.gone))
    table = Table("source", "format", "files", "bytes", "new", "known", "changed", "gone", title=f"sources of {sources}")
    for spec in specs:
        listed = files[spec.name]
        size = f"{sum(file.size for file in listed):,}"
        table.add_row(spec.name, spec.format, str(len(listed)), size, *(str(part[spec.name]) for part in counts))
    console.print(table)
    for hint in (hint for spec in specs for hint in unread_metadata(spec, files[spec.name])):
        console.print(f"hint: {hint}")
    console.print(f"new files to ingest: {to_ingest}; without any, stages run only where their settings changed or a run was interrupted")
    stages = Table("stage", "does", "last good run", title=f"lake {lake}, corpus {cfg.corpus.root}, config {cfg.digest()}")
    for step in STAGES:
        last = ledger.last_good(lake, step.name)
        stages.add_row(step.name, step.summary, last["started_at"] if last else "never")
    console.print(stages)
