from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import delta, logs, tables
from imagelake.config import Config
from imagelake.errors import ConfigError, ImagelakeError
from imagelake.sources import Record, SourceSpec
from jobs import ingest as job
from tests.corpus_fixture import jpeg_bytes

SPEC = SourceSpec.model_validate(
    {"name": "made", "format": "folder", "path": "x", "license": "CC0-1.0", "captions": {"alt": "txt"}, "trust": ["nsfw_filtered"]}
)


def sources(folder: Path, *names: str) -> Path:
    """A sources.yaml over a folder of small images; the ones called .txt are captions."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = images / name
        seed = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:3], "big")
        data = f"caption of {path.stem}".encode() if path.suffix == ".txt" else jpeg_bytes(96, 64, seed)
        if "text" in name:
            data = b"<html>not an image</html>"
        if "torn" in name:
            data = data[: len(data) // 2]
        path.write_bytes(data)
    file = folder / "sources.yaml"
    file.write_text("sources:\n  - {name: made, format: folder, path: images, license: CC0-1.0, captions: {alt: txt}}\n")
    return file


def with_sources(cfg: Config, file: Path, **ingest: int) -> Config:
    return cfg.model_copy(update={"sources": str(file), "ingest": cfg.ingest.model_copy(update=ingest)})


def read(spark: SparkSession, cfg: Config, table: tables.Table) -> list[dict[str, Any]]:
    return [row.asDict() for row in delta.read(spark, Path(cfg.lake.root), table).collect()]


def test_an_image_id_is_128_bits_of_source_and_key() -> None:
    assert job.image_id("photos", "a/b.jpg") == hashlib.sha256(b"photos\0a/b.jpg").hexdigest()[:32]
    # The separator keeps these two apart; the value is stored for ever, so it is pinned.
    assert job.image_id("ab", "c") != job.image_id("a", "bc")
    assert job.image_id("web", "00000.tar/0001") == "c443586864e70ffbb6edf97934a2d0c5"


def test_a_readable_record_has_facts_and_no_defect() -> None:
    data = jpeg_bytes(96, 64)
    row = job.sample_row(SPEC, Record("k", "file:///k", data, {"alt": " Ein\x00 Text ", "none": float("nan")}, "CC0-1.0"), 10**8, "b")  # type: ignore[dict-item]
    assert list(row) == tables.SAMPLES.schema.names
    assert (row[C.WIDTH], row[C.HEIGHT], row[C.FORMAT], row[C.DEFECT]) == (96, 64, "jpeg", None)
    assert (row[C.SHA256], row[C.BYTE_SIZE]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert dict(row[C.CAPTIONS]) == {"alt": " Ein Text ", "none": None}
    assert (row[C.PHASH_VERSION], row[C.TRUST], row[C.INGEST_RUN]) == (1, ["nsfw_filtered"], "b")


def test_bytes_that_are_no_image_are_kept_with_their_defect() -> None:
    row = job.sample_row(SPEC, Record("k", "u", b"<html></html>"), 10**8, "b")
    assert (row[C.IMAGE], row[C.BYTE_SIZE], row[C.PHASH], row[C.PHASH_VERSION]) == (b"<html></html>", 13, None, None)
    assert row[C.DEFECT] is not None


def test_a_record_at_fault_is_not_decoded() -> None:
    row = job.sample_row(SPEC, Record("k!x", "u", None, fault="duplicate_member", fault_detail="twice"), 10**8, "b")
    assert (row[C.DEFECT], row[C.DEFECT_DETAIL], row[C.SHA256], row[C.IMAGE]) == ("duplicate_member", "twice", None, None)


def test_too_many_pixels_are_a_defect() -> None:
    assert job.sample_row(SPEC, Record("k", "u", jpeg_bytes(96, 64)), 96 * 64 - 1, "b")[C.DEFECT] == "too_many_pixels"


def test_batches_are_cut_by_bytes_and_lose_no_file() -> None:
    from imagelake.sources import SourceFile

    files = [SourceFile("s", f"/{n}", f"{n}", size, 0) for n, size in enumerate([5, 5, 5, 30, 1, 1])]
    assert [[int(file.key) for file in batch] for batch in job.batches(files, 10)] == [[0, 1], [2, 3], [4, 5]]
    assert list(job.batches([], 10)) == []


def test_without_sources_the_key_is_named(spark: SparkSession, lake: Config) -> None:
    with pytest.raises(ConfigError, match="--sources"):
        job.main(spark, lake)


def test_a_folder_is_ingested_once_and_grows(spark: SparkSession, lake: Config, tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.jpg")
    file = sources(tmp_path, "a.jpg", "a.txt", "b.jpg", "text.jpg", "torn.jpg", odd)
    cfg = with_sources(lake, file)

    result = job.main(spark, cfg)
    rows = {row[C.SOURCE_KEY]: row for row in read(spark, cfg, tables.SAMPLES)}
    assert set(rows) == {"a.jpg", "b.jpg", "text.jpg", "torn.jpg", "caf\\xe9.jpg"}
    assert (result.rows_in, result.kept, sum(result.rejected.values())) == (5, 3, 2)
    assert bytes(rows["a.jpg"][C.IMAGE]) == (tmp_path / "images" / "a.jpg").read_bytes()
    assert (rows["a.jpg"][C.CAPTIONS], rows["b.jpg"][C.CAPTIONS]) == ({"alt": "caption of a"}, {"alt": None})
    assert rows["a.jpg"][C.IMAGE_ID] == job.image_id("made", "a.jpg")
    defects = {key: row[C.DEFECT] for key, row in rows.items() if row[C.DEFECT]}
    assert set(defects) == {"text.jpg", "torn.jpg"}
    rejects = {row[C.SOURCE_KEY]: (row[C.STAGE], row[C.REASON]) for row in read(spark, cfg, tables.REJECTS)}
    assert rejects == {key: ("ingest", reason) for key, reason in defects.items()}
    versions = {table.name: delta.version(Path(cfg.lake.root), table) for table in tables.TABLES if table.format == "delta"}

    assert job.main(spark, cfg).nothing_to_do
    assert versions == {table.name: delta.version(Path(cfg.lake.root), table) for table in tables.TABLES if table.format == "delta"}

    sources(tmp_path, "c.jpg", "c.txt")
    assert job.main(spark, cfg).rows_in == 1
    grown = read(spark, cfg, tables.SAMPLES)
    assert sorted(row[C.SOURCE_KEY] for row in grown) == sorted([*rows, "c.jpg"])
    assert {row[C.SOURCE_KEY]: row[C.CAPTIONS] for row in grown}["c.jpg"] == {"alt": "caption of c"}

    (tmp_path / "images" / "b.jpg").write_bytes(jpeg_bytes(96, 64, 99))
    with pytest.raises(ImagelakeError, match=r"b\.jpg: changed since source 'made' was ingested"):
        job.main(spark, cfg)
    assert len(read(spark, cfg, tables.SAMPLES)) == 6


def test_captions_that_no_sample_has_are_warned_of(
    spark: SparkSession, lake: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(json_lines=True)
    file = sources(tmp_path, "a.jpg", "a.txt", "b.jpg")
    file.write_text("sources: [{name: made, format: folder, path: images, captions: {alt: txt, seo: caption}}]")
    job.main(spark, with_sources(lake, file))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "no_captions" in line]
    assert len(warnings) == 1 and "captions.seo: caption" in warnings[0]


def test_each_piece_of_work_is_a_task_of_its_own(spark: SparkSession, lake: Config, tmp_path: Path) -> None:
    cfg = with_sources(lake, sources(tmp_path, *(f"{n}.jpg" for n in range(5))), unit_bytes=1)
    job.main(spark, cfg)
    samples = delta.read(spark, Path(cfg.lake.root), tables.SAMPLES)
    assert len(samples.select(F.input_file_name()).distinct().collect()) == 5


def test_an_interrupted_ingest_converges(spark: SparkSession, lake: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = with_sources(lake, sources(tmp_path, "a.jpg", "text.jpg", "c.jpg"))
    append = delta.append

    def crash_at(name: str) -> Any:
        def crashing(frame: Any, root: Path, table: tables.Table, **options: Any) -> int:
            if table.name == name:
                raise RuntimeError(f"the power went out before {name}")
            return append(frame, root, table, **options)

        return crashing

    for name in ("samples", "rejects", "source_files"):
        monkeypatch.setattr(delta, "append", crash_at(name))
        with pytest.raises(RuntimeError, match=f"before {name}"):
            job.main(spark, cfg)
        monkeypatch.undo()
    # What came meanwhile is a batch of its own.
    sources(tmp_path, "d.jpg")
    result = job.main(spark, cfg)
    assert result.rows_in == 4
    assert sorted(row[C.SOURCE_KEY] for row in read(spark, cfg, tables.SAMPLES)) == ["a.jpg", "c.jpg", "d.jpg", "text.jpg"]
    assert [row[C.SOURCE_KEY] for row in read(spark, cfg, tables.REJECTS)] == ["text.jpg"]
    assert len(read(spark, cfg, tables.SOURCE_FILES)) == 4
    assert job.main(spark, cfg).nothing_to_do
    assert list((Path(cfg.lake.root) / "plans").iterdir()) == []
