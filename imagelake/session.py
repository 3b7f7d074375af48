"""The one way to a Spark session: local or cluster, Delta and Lance ready, UTC, no network after setup."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from imagelake.errors import ConfigError
from imagelake.paths import CLASS_ARCHIVE, CONF, JAR_DIGESTS, JARS, PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from imagelake.config import SparkConfig

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# What the stages rely on, whatever a properties file says.
FIXED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Where Spark makes an empty folder as soon as it hears of a table: ours lie elsewhere.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "imagelake-warehouse"),
}


def build(cfg: SparkConfig, app_name: str = "imagelake") -> SparkSession:
    """A session with Delta from .jars/ (checked by sha256) and the `lance` data source.

    Under spark-submit the JVM runs already: its master and jars stay, and `cfg.master` is ignored. Raises ConfigError when a jar is
    missing or is not the one that was locked.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in properties(cfg).items():
        builder = builder.config(key, value)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        jars = [str(jar) for jar in checked_jars()]
        if _is_local(cfg):
            # On the class path of the one process, not loaded by Spark: only there can classes come from the archive.
            builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(jars))
            builder = builder.config("spark.python.daemon.module", "imagelake.worker")
        else:
            builder = builder.config("spark.jars", ",".join(jars))
        if cfg.master is not None:
            builder = builder.master(cfg.master)
    with _bare_class_path(cfg):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # PySpark logs each failed analysis as a page of JSON, beside the exception that says the same.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from imagelake.lance_source import LanceDataSource

    spark.dataSource.register(LanceDataSource)
    return spark


def properties(cfg: SparkConfig) -> dict[str, str]:
    """Spark properties: the file's, then the configuration's own, then what the stages rely on."""
    chosen = read_properties(CONF / cfg.properties) | dict(cfg.conf)
    return chosen | FIXED | {JAVA_OPTIONS: " ".join([_java_options(), *_shared_classes(), chosen.get(JAVA_OPTIONS, "")]).strip()}


def read_properties(path: Path) -> dict[str, str]:
    """A file of `key value` lines, as spark-submit's --properties-file takes it. Raises ConfigError when it is absent."""
    if not path.is_file():
        raise ConfigError(f"spark.properties: {path} does not exist")
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {key: value.strip() for key, value in (ln.split(maxsplit=1) for ln in lines if ln and ln[0] != "#")}


def checked_jars() -> list[Path]:
    """The locked jars in .jars/, each checked against requirements/jars.sha256."""
    jars = []
    for line in JAR_DIGESTS.read_text(encoding="utf-8").splitlines():
        expected, name = line.split()
        path = JARS / Path(name).name
        if not path.is_file():
            raise ConfigError(f"{path} is missing: run `make setup`")
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise ConfigError(f"{path} is not the locked file: remove it and run `make setup`")
        jars.append(path)
    return jars


def write_spark_defaults() -> Path:
    """Give plain spark-submit and spark-sql of this environment Delta and the Lance source; returns the file written."""
    import pyspark

    path = Path(pyspark.__file__).parent / "conf" / "spark-defaults.conf"
    path.parent.mkdir(exist_ok=True)
    values = FIXED | {
        "spark.jars": ",".join(map(str, checked_jars())),
        JAVA_OPTIONS: _java_options(),
        "spark.pyspark.python": sys.executable,
        "spark.driver.memory": "4g",
    }
    path.write_text("".join(f"{key} {value}\n" for key, value in sorted(values.items())), encoding="utf-8")
    return path


def _is_local(cfg: SparkConfig) -> bool:
    return (cfg.master or "").startswith("local")


@contextlib.contextmanager
def _bare_class_path(cfg: SparkConfig) -> Iterator[None]:
    """Start a local Java without Spark's folder of configuration, which is pyspark's own and says what `properties` says.

    Java uses no class archive with a class path on which a folder with files stands.
    """
    ours = _is_local(cfg) and not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys()
    if ours:
        os.environ["SPARK_CONF_DIR"] = str(JARS / "no-spark-conf")
    try:
        yield
    finally:
        if ours:
            del os.environ["SPARK_CONF_DIR"]


def _shared_classes() -> list[str]:
    """Java's options for the class archive of `make setup`, which takes some ten seconds off the start of a run; Java passes over an
    archive that is not of its version or of its class path."""
    return [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off,cds+dynamic=off"] if CLASS_ARCHIVE.is_file() else []


def _java_options() -> str:
    return f"-Dlog4j2.configurationFile={(PROJECT / 'conf/spark/log4j2.properties').as_uri()}"


if __name__ == "__main__":
    print(write_spark_defaults())
