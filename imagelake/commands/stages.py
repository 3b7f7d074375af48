"""One command a stage; those of filter, dedup, skips and verify answer questions too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from imagelake import runner, session
from imagelake.commands import options
from imagelake.commands.options import AsJson, ConfigFiles, CorpusFolder, DryRun, Overrides, Sources
from imagelake.config import Config
from imagelake.errors import EXIT_CONFIG, EXIT_GATE, EXIT_OK, ConfigError
from imagelake.stages import STAGES, Stage, stage


def add_to(app: typer.Typer) -> None:
    own: dict[str, Callable[..., None]] = {"filter": filter_, "dedup": dedup, "skips": skips, "verify": verify}
    for step in STAGES:
        app.command(step.name)(own[step.name] if step.name in own else _plain(step))


def _plain(step: Stage) -> Callable[..., None]:
    def command(config: ConfigFiles = None, set_: Overrides = None, sources: Sources = None) -> None:
        options.end(lambda: _execute(step.name, options.load(config, set_, sources)))

    command.__doc__ = f"{step.summary}.\n\nExit code 99 when there is nothing to do."
    return command


def _execute(name: str, cfg: Config) -> int:
    return runner.exit_code(runner.execute(stage(name), cfg))


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
    options.end(lambda: _what_if(config, set_, what_if) if what_if else _execute("filter", options.load(config, set_, sources)))


def _what_if(files: list[Path] | None, overrides: list[str] | None, what_if: list[str]) -> int:
    cfg, then = options.load(files, overrides), options.load(files, [*(overrides or []), *what_if])
    runner.require_lake(cfg)
    with session.build(cfg.spark) as spark:
        rows = options.job("filter").what_if(spark, cfg, then)
    columns = ("source", "readable samples", "kept now", "kept then", "newly out", "newly in")
    options.print_table(columns, rows, "nothing was written")
    return EXIT_OK


def dedup(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Images to look for, with --query.")] = None,
    query: Annotated[bool, typer.Option("--query", help="Print which known pictures are most like each FILE.")] = False,
    nearest: Annotated[int, typer.Option("--nearest", metavar="N", min=1, help="How many of them.")] = 5,
    show: Annotated[int | None, typer.Option("--show", metavar="N", min=1, help="Write a page of the N largest groups.")] = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="That page.")] = Path("build/duplicates.html"),
    config: ConfigFiles = None,
    set_: Overrides = None,
    sources: Sources = None,
) -> None:
    """samples → duplicates: equal bytes, then equal pictures.

    Exit code 99 when there is nothing to do. With --query or --show nothing is done but to answer.
    """
    options.end(lambda: _dedup(options.load(config, set_, sources), files or [], nearest if query else None, show, output))


def _dedup(cfg: Config, files: list[Path], nearest: int | None, show: int | None, output: Path) -> int:
    if bool(files) != (nearest is not None):
        raise ConfigError("dedup: --query and the images to look for belong together: imagelake dedup --query FILE...")
    if not files and show is None:
        return _execute("dedup", cfg)
    lake = runner.require_lake(cfg)
    columns = ("image", "bits apart", "image_id", "source", "width", "height")
    found, unreadable = options.job("dedup").query(cfg, files, nearest) if files else ([], {})
    if found:
        options.print_table(columns, found, "the nearest known pictures")
    for file, why in unreadable.items():
        print(f"imagelake: {file}: {why}", file=sys.stderr)
    if show is not None:
        from imagelake import gather

        with session.build(cfg.spark) as spark:
            shown = gather.write_groups(spark, cfg, output, show)
        print(f"{shown} groups: {output}" if shown else f"lake.root: {lake} has no duplicates")
    return EXIT_CONFIG if unreadable else EXIT_OK


def verify(corpus: CorpusFolder = None, json_: AsJson = False, config: ConfigFiles = None, set_: Overrides = None) -> None:
    """Read every shard of a corpus back, as the trainer would.

    Exit code 3 when something is off; the first faults are named.
    """
    options.end(lambda: _verify(options.of_corpus(options.load(config, set_), corpus), json_))


def _verify(cfg: Config, as_json: bool) -> int:
    report = options.job("verify").check_corpus(Path(cfg.corpus.root), workers=cfg.verify.workers)
    print(report.to_json() if as_json else report.to_text())
    return EXIT_OK if report.ok else EXIT_GATE


def skips(
    corpus: CorpusFolder = None,
    explain: Annotated[str | None, typer.Option("--explain", metavar="ID", help="Say why a sample is or is not skipped.")] = None,
    dry_run: DryRun = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Put on skip lists what is not to be trained on any more.

    Exported pictures that are curated no more, and those that a predicate of skips.where names. Shards stay as they are; the loader passes
    over what is skipped. Exit code 99 when nothing changed.
    """
    options.end(lambda: _skips(options.of_corpus(options.load(config, set_), corpus), explain, dry_run))


def _skips(cfg: Config, explain: str | None, dry_run: bool) -> int:
    from imagelake import skiplist
    from imagelake.corpus import read_release

    root = Path(cfg.corpus.root)
    if explain is not None:
        print("\n".join(skiplist.explain(root, explain)))
        return EXIT_OK
    read_release(root)
    if not dry_run:
        return _execute("skips", cfg)
    with session.build(cfg.spark) as spark:
        rows, released = options.job("skips").preview(spark, cfg)
    options.print_table(("tier", "bucket", "reason", "samples"), rows, f"would be skipped in {root}")
    print(f"{released} samples that are skipped now would be trained on again")
    return EXIT_OK
