from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from imagelake import config, session
from imagelake.errors import ConfigError


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A .jars/ folder of small files, and a lock file that names them."""
    lines = []
    for name in names:
        (folder / name).write_bytes(name.encode())
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  .jars/{name}\n")
    (folder / "jars.sha256").write_text("".join(lines))
    monkeypatch.setattr(session, "JARS", folder)
    monkeypatch.setattr(session, "JAR_DIGESTS", folder / "jars.sha256")


def test_the_locked_jars_are_there_and_whole() -> None:
    names = sorted(path.name for path in session.checked_jars())
    assert [name.rpartition("-")[0] for name in names] == ["delta-spark_4.1_2.13", "delta-storage"]


def test_jars_with_the_locked_digest_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(tmp_path, monkeypatch, "a.jar", "b.jar")
    assert session.checked_jars() == [tmp_path / "a.jar", tmp_path / "b.jar"]


def test_another_jar_under_a_locked_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(tmp_path, monkeypatch, "a.jar", "b.jar")
    (tmp_path / "b.jar").write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"b\.jar is not the locked file: remove it and run `make setup`"):
        session.checked_jars()


def test_a_missing_jar_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(tmp_path, monkeypatch, "a.jar")
    (tmp_path / "a.jar").unlink()
    with pytest.raises(ConfigError, match=r"a\.jar is missing: run `make setup`"):
        session.checked_jars()


def test_properties_are_the_files_then_the_configurations_then_ours() -> None:
    cfg = config.load().spark.model_copy(update={"conf": {"spark.driver.memory": "9g", "spark.sql.session.timeZone": "Asia/Tokyo"}})
    found = session.properties(cfg)
    assert found["spark.driver.memory"] == "9g"
    assert found["spark.sql.shuffle.partitions"] == "4"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.python.filterPushdown.enabled"] == "true"


def test_the_class_archive_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLASS_ARCHIVE", tmp_path / "classes.jsa")
    flag = f"-XX:SharedArchiveFile={tmp_path / 'classes.jsa'}"
    assert flag not in session.properties(config.load().spark)[session.JAVA_OPTIONS].split()
    (tmp_path / "classes.jsa").touch()
    assert flag in session.properties(config.load().spark)[session.JAVA_OPTIONS].split()


def test_java_takes_spark_classes_from_the_archive(spark: SparkSession) -> None:
    if not session.CLASS_ARCHIVE.is_file():
        pytest.skip("`make setup` made no class archive here")
    maps = Path(f"/proc/{spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
    assert str(session.CLASS_ARCHIVE) in maps


def test_what_is_set_for_java_does_not_stay_in_the_environment(spark: SparkSession) -> None:
    assert spark.sparkContext.master.startswith("local")
    assert "SPARK_CONF_DIR" not in os.environ


def test_a_properties_file_is_read_as_spark_submit_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "x.conf"
    file.write_text("# a comment\n\nspark.a    1\n  spark.b  two words  \n")
    assert session.read_properties(file) == {"spark.a": "1", "spark.b": "two words"}


def test_a_missing_properties_file_names_its_key() -> None:
    cfg = config.load(overrides=["spark.properties=spark/nowhere.conf"]).spark
    with pytest.raises(ConfigError, match=r"spark\.properties: .*nowhere\.conf does not exist"):
        session.properties(cfg)


def test_no_credential_stands_in_the_properties_that_we_ship() -> None:
    for file in (session.CONF / "spark").glob("*.conf"):
        assert not [key for key in session.read_properties(file) if any(word in key for word in ("secret", "password", "token"))]


def test_the_session_is_utc_and_knows_delta_and_lance(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.catalog.spark_catalog") == "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    row = spark.sql("SELECT CAST(TIMESTAMP '2024-07-01 12:00:00' AS BIGINT) AS seconds").first()
    assert row is not None
    assert row["seconds"] == 1719835200
