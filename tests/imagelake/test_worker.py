from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

from imagelake.paths import PROJECT
from imagelake.worker import without_archives


def archives(folder: Path) -> list[str]:
    """Module paths as Spark gives them to its workers."""
    names = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.4.jar")
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("pyspark/__init__.py", "")
            file.writestr("py4j/__init__.py", "")
    return [str(folder / name) for name in names]


def test_archives_leave_the_module_path_where_pyspark_is_installed(tmp_path: Path) -> None:
    users_own = str(tmp_path / "mine.zip")
    assert without_archives([*archives(tmp_path), users_own, *sys.path]) == [users_own, *sys.path]


def test_archives_stay_where_they_are_the_only_pyspark(tmp_path: Path) -> None:
    path = [*archives(tmp_path), str(tmp_path)]
    assert without_archives(path) == path


def test_preloading_leaves_lance_to_the_tasks() -> None:
    """Lance's threads do not survive a fork."""
    code = "import sys; from imagelake.worker import preload; preload(); print('lance' in sys.modules, 'jobs.curate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_worker_starts_with_the_jobs_imported(spark: SparkSession) -> None:
    def modules(_: object) -> list[tuple[bool, bool]]:
        import sys

        return [("jobs.curate" in sys.modules, any("pyspark.zip" in entry for entry in sys.path))]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(modules).collect() == [(True, False)]
