"""Commands that only read: `sql`, `report`, `doctor`, `version`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from imagelake import __version__, query, runner, session
from imagelake.commands import options
from imagelake.commands.options import ConfigFiles, Overrides
from imagelake.config import Config
from imagelake.errors import EXIT_OK, ConfigError


def sql(
    statement: Annotated[str | None, typer.Argument(metavar="STATEMENT", help="One SQL statement over the views.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A file with one statement, for example sql/reports/funnel.sql.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="One of table, csv, json.")] = "table",
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Ask the tables in SQL.

    They are samples, source_files, rejects, duplicates, curated, runs, checks, corpus_rows, skips. Ready-made questions are in sql/reports.
    """
    options.end(lambda: _sql(statement, file, format_, options.load(config, set_)))


def _sql(statement: str | None, file: Path | None, format_: str, cfg: Config) -> int:
    from pyspark.errors import PySparkException

    if (statement is None) == (file is None):
        raise ConfigError("sql: give either a statement or --file")
    if file is not None and not file.is_file():
        raise ConfigError(f"sql: {file} does not exist")
    query.check_format(format_)
    runner.require_lake(cfg)
    text = statement if file is None else file.read_text(encoding="utf-8")
    with session.build(cfg.spark) as spark:
        try:
            query.show(query.ask(spark, cfg, text or ""), format_, sys.stdout)
        except PySparkException as error:
            raise ConfigError(f"sql: {str(error).splitlines()[0]}") from error
    return EXIT_OK


def report(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The HTML file to write.")] = Path("build/report.html"),
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Write one HTML page of what was kept, rejected and why.

    The funnel, the duplicates, the buckets, and contact sheets.
    """
    options.end(lambda: _report(output, options.load(config, set_)))


def _report(output: Path, cfg: Config) -> int:
    from imagelake import gather
    from imagelake.report import summary_text

    runner.require_lake(cfg)
    with session.build(cfg.spark) as spark:
        data = gather.write_report(spark, cfg, output)
    print(summary_text(data))
    print(output)
    return EXIT_OK


def doctor(config: ConfigFiles = None, set_: Overrides = None) -> None:
    """Say what works on this machine and what doesn't."""
    from imagelake import diagnose

    options.end(lambda: diagnose.report(options.load(config, set_)))


def version() -> None:
    """Print the version."""
    print(__version__)
