"""The process that Spark forks its Python workers from, with what every task needs imported once, before the first fork.

    --conf spark.python.daemon.module=imagelake.worker

It also takes Spark's own archives off the module path, where pyspark is installed as plain files. Before each task a worker drops the
import system's caches, and Python then reads the directory of each archive on the path again: 0.7 s of processor time a task for
pyspark.zip and a jar. Lance is not fork-safe, and is left to the tasks that need it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from imagelake.stages import STAGES

_SPARKS_OWN = re.compile(r"/(pyspark\.zip|py4j-[^/]*\.zip|spark-core_[^/]*\.jar)(/|$)")


def without_archives(path: Sequence[str]) -> list[str]:
    """The module path without Spark's own archives; as it is where these are the only place of pyspark or of py4j."""
    others = [entry for entry in path if not _SPARKS_OWN.search(entry)]
    return others if all(PathFinder.find_spec(name, others) for name in ("pyspark", "py4j")) else list(path)


def preload() -> None:
    """Import what tasks run."""
    for name in ("pyspark.worker", *(step.module for step in STAGES if step.needs_spark)):
        importlib.import_module(name)


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    for entry in set(sys.path_importer_cache) - set(sys.path):
        del sys.path_importer_cache[entry]
    from pyspark.daemon import manager

    preload()
    manager()


if __name__ == "__main__":
    main()
