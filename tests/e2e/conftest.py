"""The chain as a user runs it: the command line in a process of its own, on sources made for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagelake import config
from imagelake.config import Config
from imagelake.paths import PROJECT


@dataclass(frozen=True)
class Chain:
    """One lake and one corpus, and the command line pointed at them."""

    root: Path
    sources: Path

    @property
    def cfg(self) -> Config:
        return config.load([PROJECT / "conf/local.yaml"], self.overrides)

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def overrides(self) -> list[str]:
        return [
            f"lake.root={self.root / 'lake'}",
            f"corpus.root={self.corpus}",
            "spark.conf.spark.driver.memory=2g",
            "spark.master=local[2]",
        ]

    @property
    def arguments(self) -> list[str]:
        return ["--config", "conf/local.yaml", *(part for override in self.overrides for part in ("--set", override))]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "imagelake.cli", *words]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), cwd=PROJECT, capture_output=True, text=True, check=False, env=environment())

    def run(self) -> subprocess.CompletedProcess[str]:
        return self.call("run", "--sources", str(self.sources), *self.arguments)

    def ledger(self) -> list[dict[str, Any]]:
        from imagelake import ledger

        return list(ledger.runs(self.root / "lake"))


def environment() -> dict[str, str]:
    """The environment activated, as `source .venv/bin/activate` does, and nothing of this process's Spark."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def demo_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "sources"
    subprocess.run([sys.executable, "-m", "demo.sources", str(folder)], cwd=PROJECT, check=True)
    return folder


@pytest.fixture(scope="session")
def demo(demo_sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The demo's sources, run once from end to end."""
    chain = Chain(tmp_path_factory.mktemp("demo-chain"), demo_sources / "sources.yaml")
    done = chain.run()
    assert done.returncode == 0, done.stderr[-4000:]
    return chain


@pytest.fixture(scope="session")
def expected(demo_sources: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((demo_sources / "expected.json").read_text(encoding="utf-8"))
    return cases


def rows(spark: Any, cfg: Config, statement: str) -> list[dict[str, Any]]:
    from imagelake import query

    return [row.asDict(recursive=True) for row in query.ask(spark, cfg, statement).collect()]


def content(cfg: Config) -> list[tuple[str, str, str, int, str]]:
    """(image_id, sha256 of the stored image, captions, tier, bucket), sorted: what a corpus is made of."""
    import hashlib

    from imagelake import columns as C
    from imagelake import lance, tables

    lake = Path(cfg.lake.root)
    version = lance.version(lake, tables.CURATED)
    names = [C.IMAGE_ID, C.CAPTIONS, C.CAPTION, C.TIER, C.BUCKET]
    found = lance.head(lake, tables.CURATED, names, 1_000_000, at=version)
    images = lance.BlobReader.open(lake, tables.CURATED, C.IMAGE, version).fetch([row[lance.ROW_ADDRESS] for row in found])
    return sorted(
        (row[C.IMAGE_ID], hashlib.sha256(image).hexdigest(), json.dumps([row[C.CAPTIONS], row[C.CAPTION]]), row[C.TIER], row[C.BUCKET])
        for row, image in zip(found, images, strict=True)
    )


def shard_digests(corpus: Path) -> dict[str, str]:
    """Relative path of every shard -> sha256 of its bytes."""
    import hashlib

    return {str(path.relative_to(corpus)): hashlib.sha256(path.read_bytes()).hexdigest() for path in corpus.rglob("*.mds")}
