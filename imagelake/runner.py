"""Runs a stage: session, ledger row, checks, exit code. The CLI, spark-submit and Airflow all come through here."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from imagelake import config, ledger, logs, session, tables
from imagelake.errors import EXIT_FAILURE, EXIT_NOTHING_TO_DO, EXIT_OK, ConfigError, ImagelakeError
from imagelake.ledger import StageResult
from imagelake.stages import Stage, stage, writer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from imagelake.config import Config

Main = Callable[..., StageResult]


def run(main: Main, name: str, argv: Sequence[str] | None = None) -> None:
    """Entry point of a job file under spark-submit: parse, run, exit."""
    parser = argparse.ArgumentParser(description=stage(name).summary)
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML over conf/base.yaml; may be repeated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="override one key")
    parser.add_argument("--sources", metavar="FILE", help="sources.yaml")
    args = parser.parse_args(argv)
    sys.exit(guarded(lambda: _run_one(main, name, args)))


def _run_one(main: Main, name: str, args: argparse.Namespace) -> int:
    cfg = load_config(args.config, args.overrides, args.sources)
    return exit_code(execute(stage(name), cfg, main=main))


def load_config(files: Sequence[str | Path], overrides: Sequence[str], sources: str | None = None) -> Config:
    """`sources` is a path and taken as it is: an override would be read as YAML, where ": " and " #" mean something."""
    cfg = config.load(files, overrides)
    return cfg if sources is None else cfg.model_copy(update={"sources": str(Path(sources).resolve())})


def guarded(action: Callable[[], int]) -> int:
    """Run `action`; an error that a user can act on becomes its message and its exit code."""
    logs.configure()
    try:
        return action()
    except ImagelakeError as error:
        print(f"imagelake: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("imagelake: interrupted; the same command takes up where it stopped", file=sys.stderr)
        return EXIT_FAILURE


def exit_code(result: StageResult) -> int:
    return EXIT_NOTHING_TO_DO if result.nothing_to_do else EXIT_OK


def execute(step: Stage, cfg: Config, spark: SparkSession | None = None, main: Main | None = None) -> StageResult:
    """Run one stage and write its ledger row, whatever its end. `spark` None: a session is made when the stage needs one.

    Checks of the stage run after it; a broken rule raises GateError.
    """
    main = main or importlib.import_module(step.module).main
    run_id, started_at, clock = ledger.new_run_id(), datetime.now(UTC), time.monotonic()
    log = logs.logger()
    lake = Path(cfg.lake.root) if step.reads is None else require_lake(cfg)
    if step.reads is not None and not (lake / tables.named(step.reads).path).is_dir():
        first = f"`imagelake {writer_of(step.reads)}` first"
        log.info("nothing_to_do", stage=step.name, why=f"lake.root {lake} has no table {step.reads} yet: {first}")
        return StageResult(nothing_to_do=True)
    make_root("lake.root", lake)
    ledger.CURRENT_RUN.set(run_id)
    structlog.contextvars.bind_contextvars(run_id=run_id, stage=step.name)
    common: dict[str, Any] = {"run_id": run_id, "stage": step.name, "started_at": started_at, "config_digest": cfg.digest(),
                              "stage_digest": cfg.digest(step.sections)}  # fmt: skip
    try:
        if step.needs_spark and spark is None:
            spark = session.build(cfg.spark)
        result = main(spark, cfg) if step.needs_spark else main(cfg)
        # A rule that a run before this one broke stays broken while nothing new is done.
        owes_checks = not result.nothing_to_do or ledger.last_failed(lake, step.name)
        if spark is not None and step.checks and owes_checks:
            from imagelake import checks

            checks.enforce(spark, cfg, step.checks, stage=step.name)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"[:2000]
        with contextlib.suppress(OSError):  # a full disk is what went wrong, not what is told of it
            ledger.record(lake, status="failed", seconds=time.monotonic() - clock, result=StageResult(), error=message, **common)
        raise
    finally:
        structlog.contextvars.unbind_contextvars("run_id", "stage")
    seconds = time.monotonic() - clock
    status = "nothing_to_do" if result.nothing_to_do else "ok"
    ledger.record(lake, status=status, seconds=seconds, result=result, **common)
    log.info(status, run_id=run_id, stage=step.name, seconds=round(seconds, 2), **summary(result, seconds))
    return result


def require_lake(cfg: Config) -> Path:
    """The lake's folder. Raises ConfigError when it does not exist: asked before Spark starts by whatever reads from it."""
    lake = Path(cfg.lake.root)
    if not lake.is_dir():
        raise ConfigError(f"lake.root: {lake} does not exist: name a lake with --set lake.root=…, or make it with `imagelake ingest`")
    return lake


def make_root(key: str, folder: Path) -> None:
    """Make a root folder unless it is there. Raises ConfigError that names the key when it can't be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: {folder} can't be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{key}: {folder} is not writable")


def summary(result: StageResult, seconds: float) -> dict[str, Any]:
    """The figures of a run that people read first."""
    if result.nothing_to_do:
        return {}
    figures: dict[str, Any] = {"rows_in": result.rows_in, "kept": result.kept, "rejected": dict(result.rejected)}
    if result.rows_in:
        figures["rows_per_second"] = round(result.rows_in / max(seconds, 1e-9), 1)
    return figures | dict(result.notes)


def unchanged(cfg: Config, step_name: str, read_versions: Mapping[str, int]) -> bool:
    """Whether the last good run of a stage read these versions under this configuration: then its result stands."""
    last = ledger.last_good(Path(cfg.lake.root), step_name)
    return (
        last is not None and last["read_versions"] == dict(read_versions) and last["stage_digest"] == cfg.digest(stage(step_name).sections)
    )
