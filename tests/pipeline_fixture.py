"""A small lake and its corpus, made by the real stages: a tar, a Parquet file and a folder, with a copy and a picture that is too small."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from imagelake import config, runner
from imagelake.config import Config
from imagelake.stages import STAGES
from tests.corpus_fixture import jpeg_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = """
sources:
  - {name: web, format: webdataset, path: web.tar, captions: {alt: txt}}
  - {name: hub, format: parquet, path: hub.parquet, captions: {alt: caption}}
  - {name: photos, format: folder, path: photos, license: CC0-1.0}
"""


def write_sources(folder: Path) -> Path:
    """web.tar: a, b, c. hub.parquet: a row of its own, and the picture of web.tar's b. photos: one, and one that is too small."""
    (folder / "photos").mkdir(parents=True)
    with tarfile.open(folder / "web.tar", "w") as tar:
        for number, name in enumerate("abc"):
            for suffix, data in (("jpg", jpeg_bytes(640, 640, number)), ("txt", f"web {name}".encode())):
                member = tarfile.TarInfo(f"x/{name}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    images, captions = [jpeg_bytes(700, 560, 10), jpeg_bytes(640, 640, 1)], ["hub 0", "a longer text of hub 1"]
    pq.write_table(pa.table({"image": images, "caption": captions}), folder / "hub.parquet")
    (folder / "photos" / "large.jpg").write_bytes(jpeg_bytes(1100, 1100, 20))
    (folder / "photos" / "small.jpg").write_bytes(jpeg_bytes(300, 300, 21))
    (folder / "sources.yaml").write_text(SOURCES)
    return folder / "sources.yaml"


def made(folder: Path) -> Config:
    """The configuration of a lake and a corpus below `folder`, whose sources are written there."""
    sources = write_sources(folder / "sources")
    return config.load(overrides=[f"lake.root={folder / 'lake'}", f"corpus.root={folder / 'corpus'}"]).model_copy(
        update={"sources": str(sources)}
    )


def run_stages(spark: SparkSession, cfg: Config) -> None:
    """Every stage but verify."""
    for step in STAGES[:-1]:
        runner.execute(step, cfg, spark)
