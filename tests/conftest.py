"""Fixtures that every test may ask for: one Spark session a run, a lake of one's own, the shared small data set."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from imagelake import config
from imagelake.config import Config
from imagelake.paths import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_DATA = Path(os.environ.get("IMAGELAKE_SMALL_DATA", PROJECT.parent / "shared" / "data" / "small"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of a test run: it costs seconds to start, so tests share it and leave no setting changed."""
    from imagelake import session

    folder = tmp_path_factory.mktemp("spark")
    cfg = config.load(overrides=["spark.master=local[2]"]).spark
    conf = {
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "false",
    }
    built = session.build(cfg.model_copy(update={"conf": conf}), "imagelake-tests")
    yield built
    built.stop()


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Logging set up in one test must not write to the stream that was captured there."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def closed_datasets() -> Iterator[None]:
    """Close what the test's datasets hold open. Upstream does so when the process ends; until then each one keeps a dozen descriptors, and
    above 1,024 of them Spark's driver can't wait for its sockets."""
    yield
    from streaming.base.shared import SharedMemory

    gc.collect()
    for block in [found for found in gc.get_objects() if isinstance(found, SharedMemory)]:
        with contextlib.suppress(BufferError):
            block.cleanup()
        atexit.unregister(block.cleanup)


@pytest.fixture
def lake(tmp_path: Path) -> Config:
    """A configuration whose lake and corpus are empty folders of this test."""
    return config.load(overrides=[f"lake.root={tmp_path / 'lake'}", f"corpus.root={tmp_path / 'corpus'}"])


@pytest.fixture(scope="session")
def small_data() -> Path:
    """The folder of the shared small data set; the test is skipped where there is none."""
    if not SMALL_DATA.is_dir():
        pytest.skip(f"{SMALL_DATA} does not exist; IMAGELAKE_SMALL_DATA names the folder of the small data set")
    return SMALL_DATA
