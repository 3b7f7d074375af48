"""Commands about released corpora: `lineage`, `diff`, `loader-config`. They read columns only and start no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from imagelake import loaderconfig, runner
from imagelake.commands import options
from imagelake.commands.options import AsJson, ConfigFiles, Overrides
from imagelake.config import Config
from imagelake.errors import EXIT_OK, ConfigError
from imagelake.skiplist import CURRENT

CorpusOption = Annotated[Path | None, typer.Option("--corpus", metavar="DIR", help="The corpus's folder; default: corpus.root.")]


def lineage(
    image_id: Annotated[str | None, typer.Argument(metavar="IMAGE_ID", help="The record's image_id.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", metavar="PATH", help="A shard of the corpus, with --index.")] = None,
    index: Annotated[int | None, typer.Option("--index", metavar="N", help="Place of the sample in --shard, from 0.")] = None,
    corpus: CorpusOption = None,
    json_: AsJson = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Say where a record came from, what each stage made of it, and in which shard it lies.

    Named by its id, or by the place in a shard where it is stored.
    """
    options.end(lambda: _lineage(options.of_corpus(options.load(config, set_), corpus), image_id, shard, index, json_))


def _lineage(cfg: Config, image_id: str | None, shard: str | None, index: int | None, as_json: bool) -> int:
    from imagelake import lineage

    if (image_id is None) == (shard is None) or (shard is None) != (index is None):
        raise ConfigError("lineage: give either an IMAGE_ID, or --shard and --index")
    lake, root = runner.require_lake(cfg), Path(cfg.corpus.root)
    if image_id is None:
        assert shard is not None and index is not None
        image_id = lineage.image_id_at(root, shard, index)
    found = lineage.trace(lake, root, image_id)
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else lineage.to_text(found))
    return EXIT_OK


def diff(
    a: Annotated[Path, typer.Argument(metavar="RELEASE_A", help="A corpus, or a release file in it (release.json, releases/…).")],
    b: Annotated[Path, typer.Argument(metavar="RELEASE_B", help="The same, of what came later.")],
    skips_a: Annotated[str, typer.Option("--skips-a", metavar="DIGEST", help="Generation of skip lists of A.")] = CURRENT,
    skips_b: Annotated[str, typer.Option("--skips-b", metavar="DIGEST", help="Generation of skip lists of B.")] = CURRENT,
    json_: AsJson = False,
    config: ConfigFiles = None,
    set_: Overrides = None,
) -> None:
    """Say what was added, removed, changed or skipped from one release to another, and why.

    The lake of the configuration, where it is there, says why samples were removed.
    """
    options.end(lambda: _diff(a, b, skips_a, skips_b, options.load(config, set_), json_))


def _diff(a: Path, b: Path, skips_a: str, skips_b: str, cfg: Config, as_json: bool) -> int:
    from imagelake import releasediff
    from imagelake.releasediff import Side

    lake = Path(cfg.lake.root)
    found = releasediff.compare(Side.of(a, skips_a), Side.of(b, skips_b), lake if lake.is_dir() else None)
    value = releasediff.to_dict(found) | {"lake": str(lake) if lake.is_dir() else None}
    print(json.dumps(value, ensure_ascii=False, indent=2) if as_json else releasediff.to_text(found))
    return EXIT_OK


def loader_config(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="The corpus's folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the two files.")] = Path("build/loader-config"),
) -> None:
    """Write a Python file and a PRX configuration that open a corpus for training.

    With the corpus's tiers, counts, and a batch size that fits its buckets.
    """
    options.end(lambda: _loader_config(corpus, out))


def _loader_config(corpus: Path, out: Path) -> int:
    for path in loaderconfig.write(corpus, out):
        print(path)
    return EXIT_OK
