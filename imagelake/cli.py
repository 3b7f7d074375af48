"""The command line: `imagelake run`, one command a stage, `sql`, `report`, `doctor`."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from imagelake import __version__, ledger, query, runner, session
from imagelake.config import Config
from imagelake.errors import EXIT_GATE, EXIT_OK, ConfigError
from imagelake.stages import STAGES, Stage, stage

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__, pretty_exceptions_enable=False)

ConfigFiles = Annotated[list[Path] | None, typer.Option("--config", metavar="FILE", help="YAML over conf/base.yaml; may be repeated.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated.")]
Sources = Annotated[Path | None, typer.Option("--sources", metavar="FILE", help="The sources.yaml to ingest.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]


def main() -> None:
    app()


def _config(files: list[Path] | None, overrides: list[str] | None, sources: Path | None = None) -> Config:
    return runner.load_config(files or [], overrides or [], None if sources is None else str(sources))


def _exit(action: Callable[[], int]) -> None:
    raise typer.Exit(runner.guarded(action))


@app.command()
def run(sources: Sources = None, config: ConfigFiles = None, set_: Overrides = None, dry_run: DryRun = False) -> None:
    """Run every stage, from sources to a verified corpus.

    A repeat does only what is new, and takes up what was interrupted.
    """
    _exit(lambda: _run(_config(config, set_, sources), dry_run))


def _run(cfg: Config, dry_run: bool) -> int:
    if cfg.sources is None:
        raise ConfigError("sources: no sources file given; use --sources sources.yaml")
    if dry_run:
        _print_plan(cfg)
        return 0
    from imagelake.corpus import is_released
    from imagelake.sources import list_files, load_sources

    for spec in load_sources(Path(cfg.sources)):  # what is wrong with the sources is said before Spark starts
        list_files(spec)
    for key, root in (("lake.root", cfg.lake.root), ("corpus.root", cfg.corpus.root)):
        runner.make_root(key, Path(root))
    table = Table("stage", "in", "kept", "out", "seconds", "per second")
    spark = session.build(cfg.spark)
    try:
        for step in STAGES:
            started = time.monotonic()
            result = runner.execute(step, cfg, spark)
            seconds = time.monotonic() - started
            if result.nothing_to_do:
                table.add_row(step.name, "–", "–", "nothing to do", f"{seconds:.1f}", "–")
                continue
            out = ", ".join(f"{reason} {count}" for reason, count in sorted(result.rejected.items())) or "–"
            rate = f"{result.rows_in / seconds:,.1f}"
            table.add_row(step.name, str(result.rows_in), str(result.kept), out, f"{seconds:.1f}", rate)
    finally:
        spark.stop()
    query.console(sys.stdout).print(table)
    kept_any = is_released(Path(cfg.corpus.root))
    print(f"corpus: {cfg.corpus.root}" if kept_any else "nothing was kept, so there is no corpus: the reasons are in rejects")
    return 0


def _print_plan(cfg: Config) -> None:
    from imagelake import deltalog, tables
    from imagelake.sources import list_files, load_sources, unread_metadata
    from imagelake.sources.manifest import compare

    console = query.console(sys.stdout)
    assert cfg.sources is not None
    hints: list[str] = []
    every: list[object] = []
    pinned = deltalog.read(Path(cfg.lake.root), tables.SOURCE_FILES)
    sources = Table("source", "format", "files", "bytes", "new", "known", "changed", "gone", title=f"sources of {cfg.sources}")
    for spec in load_sources(Path(cfg.sources)):
        files = list_files(spec)
        found = compare([spec], files, pinned)
        every += importlib.import_module(stage("ingest").module).new_files(found)  # refuses what the run would refuse
        counts = (len(part) for part in (found.new, found.known, found.changed, found.gone))
        sources.add_row(spec.name, spec.format, str(len(files)), f"{sum(file.size for file in files):,}", *map(str, counts))
        hints += unread_metadata(spec, files)
    console.print(sources)
    for hint in hints:
        console.print(f"hint: {hint}")
    console.print(f"new files to ingest: {len(every)}; without any, stages run only where their settings changed or a run was interrupted")
    stages = Table("stage", "does", "last good run", title=f"lake {cfg.lake.root}, corpus {cfg.corpus.root}, config {cfg.digest()}")
    for step in STAGES:
        last = ledger.last_good(Path(cfg.lake.root), step.name)
        stages.add_row(step.name, step.summary, last["started_at"] if last else "never")
    console.print(stages)


def _stage_command(step: Stage) -> None:
    def command(config: ConfigFiles = None, set_: Overrides = None, sources: Sources = None) -> None:
        _exit(lambda: runner.exit_code(runner.execute(step, _config(config, set_, sources))))

    command.__doc__ = f"{step.summary}\n\nExit code 99 when there is nothing to do."
    app.command(step.name)(command)


def filter_(
    config: ConfigFiles = None,
    set_: Overrides = None,
    sources: Sources = None,
    what_if: Annotated[
        list[str] | None, typer.Option("--what-if", metavar="KEY=VALUE", help="Print what another setting would change; may be repeated.")
    ] = None,
) -> None:
    """samples → rejects: resolution, shape and licence, by columns.

    Exit code 99 when there is nothing to do.
    """
    _exit(lambda: _filter(_config(config, set_, sources), _config(config, [*(set_ or []), *(what_if or [])], sources), bool(what_if)))


def _filter(cfg: Config, then: Config, only_ask: bool) -> int:
    if not only_ask:
        return runner.exit_code(runner.execute(stage("filter"), cfg))
    spark = session.build(cfg.spark)
    try:
        rows = importlib.import_module(stage("filter").module).what_if(spark, cfg, then)
    finally:
        spark.stop()
    table = Table("source", "readable samples", "kept now", "kept then", "newly out", "newly in", title="nothing was written")
    for row in rows:
        table.add_row(*map(str, row.values()))
    query.console(sys.stdout).print(table)
    return EXIT_OK


def verify(
    corpus: Annotated[Path | None, typer.Argument(help="The corpus; default: corpus.root of the configuration.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Read every shard of a corpus back, as the trainer would.

    Exit code 3 when something is off; the first faults are named.
    """
    _exit(lambda: _verify(corpus, json_, config, set_))


def _verify(corpus: Path | None, as_json: bool, files: list[Path] | None, overrides: list[str] | None) -> int:
    cfg = _config(files, overrides)
    root = corpus if corpus is not None else Path(cfg.corpus.root)
    job = importlib.import_module(stage("verify").module)
    report = job.check_corpus(root, workers=cfg.verify.workers)
    print(report.to_json() if as_json else report.to_text())
    return EXIT_OK if report.ok else EXIT_GATE


def skips(
    corpus: Annotated[Path | None, typer.Argument(help="The corpus; default: corpus.root of the configuration.")] = None,
    explain: Annotated[str | None, typer.Option("--explain", metavar="ID", help="Say why a sample is or is not skipped.")] = None,
    dry_run: DryRun = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Put on skip lists what is not to be trained on any more.

    Exported pictures that are curated no more, and those that a predicate of skips.where names. Shards stay as they are; the loader passes
    over what is skipped. Exit code 99 when nothing changed.
    """
    _exit(lambda: _skips(corpus, explain, dry_run, config, set_))


def _skips(corpus: Path | None, explain: str | None, dry_run: bool, files: list[Path] | None, overrides: list[str] | None) -> int:
    from imagelake import skiplist
    from imagelake.corpus import read_release

    cfg = _config(files, overrides)
    root = corpus if corpus is not None else Path(cfg.corpus.root)
    cfg = cfg.model_copy(update={"corpus": cfg.corpus.model_copy(update={"root": str(root)})})
    if explain is not None:
        print("\n".join(skiplist.explain(root, explain)))
        return EXIT_OK
    read_release(root)
    if not dry_run:
        return runner.exit_code(runner.execute(stage("skips"), cfg))
    table = Table("tier", "bucket", "reason", "samples", title=f"would be skipped in {root}")
    spark = session.build(cfg.spark)
    try:
        rows, released = importlib.import_module(stage("skips").module).preview(spark, cfg)
    finally:
        spark.stop()
    for row in rows:
        table.add_row(*map(str, row.values()))
    query.console(sys.stdout).print(table)
    print(f"{released} samples that are skipped now would be trained on again")
    return EXIT_OK


_OWN_COMMANDS: dict[str, Callable[..., None]] = {"filter": filter_, "skips": skips, "verify": verify}
for _step in STAGES:
    if _step.name in _OWN_COMMANDS:
        app.command(_step.name)(_OWN_COMMANDS[_step.name])
    else:
        _stage_command(_step)


@app.command()
def sql(
    statement: Annotated[str | None, typer.Argument(help="One SQL statement over the views.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A file with one statement, for example sql/reports/funnel.sql.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, csv or json")] = "table",
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Ask the tables in SQL.

    They are samples, source_files, rejects, duplicates, curated, runs, corpus_rows, skips. Ready-made questions are in sql/reports.
    """
    _exit(lambda: _sql(statement, file, format_, _config(config, set_)))


def _sql(statement: str | None, file: Path | None, format_: str, cfg: Config) -> int:
    from pyspark.errors import PySparkException

    if (statement is None) == (file is None):
        raise ConfigError("sql: give either a statement or --file")
    if file is not None and not file.is_file():
        raise ConfigError(f"sql: {file} does not exist")
    query.check_format(format_)
    if not Path(cfg.lake.root).is_dir():
        raise ConfigError(f"lake.root: {cfg.lake.root} does not exist; name the lake with --set lake.root=…")
    text = statement if file is None else file.read_text(encoding="utf-8")
    spark = session.build(cfg.spark)
    try:
        query.show(query.ask(spark, cfg, text or ""), format_, sys.stdout)
    except PySparkException as error:
        raise ConfigError(f"sql: {str(error).splitlines()[0]}") from error
    finally:
        spark.stop()
    return 0


@app.command()
def report(
    output: Annotated[Path, typer.Argument(help="The HTML file to write.")] = Path("build/report.html"),
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Write one HTML page of what was kept, rejected and why.

    The funnel, the duplicates, the buckets, and contact sheets.
    """
    _exit(lambda: _report(output, _config(config, set_)))


def _report(output: Path, cfg: Config) -> int:
    from imagelake import gather
    from imagelake.report import summary_text

    spark = session.build(cfg.spark)
    try:
        data = gather.write_report(spark, cfg, output)
    finally:
        spark.stop()
    print(summary_text(data))
    print(output)
    return 0


@app.command()
def doctor(config: ConfigFiles = None, set_: Overrides = None) -> None:
    """Say what works on this machine and what doesn't."""
    from imagelake import diagnose

    _exit(lambda: diagnose.report(_config(config, set_)))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


if __name__ == "__main__":
    main()
