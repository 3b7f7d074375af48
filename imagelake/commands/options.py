"""Options that many commands share, and how a command ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from imagelake import query, runner
from imagelake.config import Config
from imagelake.stages import stage

ConfigFiles = Annotated[list[Path] | None, typer.Option("--config", metavar="FILE", help="YAML over conf/base.yaml; may be repeated.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated.")]
Sources = Annotated[Path | None, typer.Option("--sources", metavar="FILE", help="The sources.yaml to ingest.")]
CorpusFolder = Annotated[
    Path | None, typer.Argument(metavar="CORPUS", help="The corpus's folder; default: corpus.root of the configuration.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def load(files: list[Path] | None, overrides: list[str] | None, sources: Path | None = None) -> Config:
    return runner.load_config(files or [], overrides or [], None if sources is None else str(sources))


def of_corpus(cfg: Config, corpus: Path | None) -> Config:
    """The configuration for the corpus that was named, if one was."""
    return cfg if corpus is None else cfg.model_copy(update={"corpus": cfg.corpus.model_copy(update={"root": str(corpus)})})


def end(action: Callable[[], int]) -> None:
    """Run `action` and exit with its code; an error that a user can act on becomes one line."""
    raise typer.Exit(runner.guarded(action))


def job(name: str) -> Any:
    """The module of a stage. By name: nothing here imports jobs, and a command that needs none starts without Spark."""
    return importlib.import_module(stage(name).module)


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Rows in the order of their values, which is that of `columns`."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(str, row.values()))
    query.console(sys.stdout).print(table)
