"""Lineage over a lake that the real stages made: what is said of a record is what the sources hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from imagelake import corpus, deltalog, lineage, mds, runner, tables
from imagelake.cli import app
from imagelake.config import Config
from imagelake.errors import ConfigError
from imagelake.stages import stage
from jobs.ingest import image_id
from tests.corpus_fixture import jpeg_bytes
from tests.pipeline_fixture import made, run_stages

A, B, C = (image_id("web", f"web.tar/x/{name}") for name in "abc")
HUB, COPY = (image_id("hub", f"hub.parquet#{row}") for row in range(2))
LARGE, SMALL = (image_id("photos", f"{name}.jpg") for name in ("large", "small"))


@pytest.fixture(scope="module")
def cfg(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Every record has gone its way; then a predicate put the large photo on a skip list."""
    cfg = made(tmp_path_factory.mktemp("made"))
    run_stages(spark, cfg)
    where = {"large": "tier = 1024"}
    runner.execute(stage("skips"), cfg.model_copy(update={"skips": cfg.skips.model_copy(update={"where": where})}), spark)
    return cfg


def trace(cfg: Config, record: str) -> dict[str, Any]:
    return lineage.trace(Path(cfg.lake.root), Path(cfg.corpus.root), record)


def call(cfg: Config, *words: str) -> Result:
    return CliRunner().invoke(app, ["lineage", *words, "--set", f"lake.root={cfg.lake.root}", "--set", f"corpus.root={cfg.corpus.root}"])


def test_a_member_of_a_tar_is_found_where_it_lies(cfg: Config) -> None:
    found = trace(cfg, A)["source"]
    assert (found["source"], found["source_key"], found["member"], found["file_is"]) == ("web", "web.tar/x/a", "x/a.jpg", "unchanged")
    with Path(found["file"]).open("rb") as tar:
        tar.seek(found["offset_bytes"])
        assert tar.read(found["size_bytes"]) == jpeg_bytes(640, 640, 0)


def test_a_row_of_a_table_and_a_file_of_a_folder_are_named(cfg: Config) -> None:
    hub, photo = trace(cfg, HUB)["source"], trace(cfg, LARGE)["source"]
    assert (Path(hub["file"]).name, hub["row"], hub["file_is"]) == ("hub.parquet", 0, "unchanged")
    assert (Path(photo["file"]).name, photo["file_is"]) == ("large.jpg", "unchanged")
    assert "member" not in photo and "row" not in photo


def test_a_file_that_changed_or_went_is_said_to(cfg: Config) -> None:
    path = Path(trace(cfg, SMALL)["source"]["file"])
    facts, data = path.stat(), path.read_bytes()
    path.write_bytes(data + b"x")
    assert trace(cfg, SMALL)["source"]["file_is"] == "changed since"
    path.unlink()
    assert trace(cfg, SMALL)["source"]["file_is"] == "gone"
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert trace(cfg, SMALL)["source"]["file_is"] == "unchanged"


def test_a_kept_picture_lies_where_it_is_said_to(cfg: Config) -> None:
    from streaming.base.format import reader_from_json

    found = trace(cfg, HUB)
    assert (found["outcome"], found["rejects"], found["duplicates"]) == ("kept, exported", [], None)
    assert (found["sample"]["width"], found["sample"]["height"], found["sample"]["captions"]) == (700, 560, {"alt": "hub 0"})
    assert (found["curated"]["tier"], found["curated"]["bucket"], found["curated"]["caption"]) == (512, "1.286", "hub 0")
    (place,) = found["corpus"]
    assert (place["tier"], place["bucket"], place["skipped"]) == (512, "1.286", [])
    folder = Path(cfg.corpus.root) / "512" / "1.286"
    (entry,) = (entry for entry in mds.read_index(folder) if place["shard"].endswith(entry["raw_data"]["basename"]))
    assert reader_from_json(str(folder), None, entry)[place["index"]]["id"] == HUB
    assert "image" not in found["sample"] and "image" not in found["curated"]


def test_a_copy_leads_to_its_keeper_and_the_keeper_to_its_copies(cfg: Config) -> None:
    keeper, loser = sorted([B, COPY])
    kept, lost = trace(cfg, keeper), trace(cfg, loser)
    assert (kept["outcome"], lost["outcome"]) == ("kept, exported", f"duplicate of {keeper}")
    assert kept["duplicates"] == lost["duplicates"]
    (member,) = lost["duplicates"]["losers"]
    assert (member["image_id"], member["kind"], member["won_by"]) == (loser, "sha256", "image_id")
    assert {member["source"], kept["source"]["source"]} == {"web", "hub"}
    assert lost["curated"] is None and lost["corpus"] == []


def test_captions_say_whose_they_were(cfg: Config) -> None:
    curated = trace(cfg, min(B, COPY))["curated"]
    assert {caption["text"]: caption["of"] for caption in curated["captions"]} == {"web b": [B], "a longer text of hub 1": [COPY]}
    assert (curated["caption"], curated["caption_equals"]) == ("a longer text of hub 1", ["alt"])


def test_a_rejected_record_has_its_reasons(cfg: Config) -> None:
    found = trace(cfg, SMALL)
    assert found["outcome"] == "rejected: filter:below_min_pixels"
    (row,) = found["rejects"]
    assert (row["stage"], row["reason"], row["detail"]) == ("filter", "below_min_pixels", "300×300 license CC0-1.0")
    assert found["curated"] is None and found["corpus"] == []


def test_a_skipped_sample_says_why(cfg: Config) -> None:
    found = trace(cfg, LARGE)
    assert (found["outcome"], found["corpus"][0]["skipped"]) == ("kept, not trained on", ["large"])


def test_back_from_a_shard_by_any_name_of_it(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(cfg.corpus.root)
    for record in (A, C, HUB, LARGE):
        (place,) = trace(cfg, record)["corpus"]
        assert lineage.image_id_at(root, place["shard"], place["index"]) == record
        assert lineage.image_id_at(root, str(root / place["shard"]), place["index"]) == record
        monkeypatch.chdir(root / str(place["tier"]))
        assert lineage.image_id_at(root, place["shard"].partition("/")[2], place["index"]) == record


@pytest.mark.parametrize(
    ("shard", "index", "words"),
    [
        ("{shard}", 9, r"--index 9: .* has 1 samples, 0 to 0"),
        ("{shard}", -1, r"--index -1"),
        ("512/1.286/nothing/shard.00000.mds", 0, "no index of .* names this shard"),
        ("512/shard.00000.mds", 0, "no shard of"),
        ("release.json", 0, "no shard of"),
        ("{root}/512/1.286/nothing/shard.00000.mds", 0, "no index of .* names this shard"),
    ],
)
def test_a_place_that_is_none_is_a_mistake(cfg: Config, shard: str, index: int, words: str) -> None:
    root, (place,) = Path(cfg.corpus.root), trace(cfg, HUB)["corpus"]
    with pytest.raises(ConfigError, match=words):
        lineage.image_id_at(root, shard.format(shard=place["shard"], root=root), index)


def test_the_command_prints_the_same_from_both_ends(cfg: Config) -> None:
    (place,) = trace(cfg, HUB)["corpus"]
    forth, back = call(cfg, HUB, "--json"), call(cfg, "--shard", place["shard"], "--index", str(place["index"]), "--json")
    assert (forth.exit_code, back.exit_code) == (0, 0)
    assert json.loads(forth.stdout) == json.loads(back.stdout) == trace(cfg, HUB)
    text = call(cfg, HUB).stdout
    assert text.startswith(f"{HUB}  kept, exported\n") and "row  0" in text and place["shard"] in text and "of " + HUB in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nobody",), "nobody: not in samples, rejects, duplicates or curated of "),
        (("it's",), "it's: not in samples"),
        ((), "either an IMAGE_ID, or --shard and --index"),
        (("nobody", "--shard", "x", "--index", "0"), "either an IMAGE_ID"),
        (("--shard", "x"), "either an IMAGE_ID"),
        (("nobody", "--set", "lake.root=/nowhere"), "lake.root: /nowhere does not exist"),
        (("--shard", "x", "--index", "0", "--corpus", "/nowhere"), "/nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(cfg: Config, words: tuple[str, ...], told: str) -> None:
    settings = ["--set", f"lake.root={cfg.lake.root}", "--set", f"corpus.root={cfg.corpus.root}"]
    done = CliRunner().invoke(app, ["lineage", *settings, *words])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert told in line


def test_a_lake_without_a_corpus_is_asked_all_the_same(cfg: Config, tmp_path: Path) -> None:
    assert lineage.trace(Path(cfg.lake.root), tmp_path, HUB)["corpus"] == []
    with pytest.raises(ConfigError, match=r"a corpus at .*, which is not released"):
        lineage.trace(Path(cfg.lake.root), tmp_path, "nobody")


def test_lookups_find_what_spark_finds(spark: SparkSession, cfg: Config) -> None:
    from imagelake import delta

    lake = Path(cfg.lake.root)
    for table in (tables.REJECTS, tables.DUPLICATES):
        expected = sorted((row.asDict() for row in delta.read(spark, lake, table).collect()), key=str)
        assert expected and sorted(deltalog.read(lake, table).to_pylist(), key=str) == expected
    names = [name for name in tables.SAMPLES.schema.names if name != "image"]
    rows = {row["image_id"]: row.asDict() for row in delta.read(spark, lake, tables.SAMPLES).select(names).collect()}
    assert deltalog.lookup(lake, tables.SAMPLES, "image_id", [HUB], names) == [rows[HUB]]
    assert len(deltalog.lookup(lake, tables.SAMPLES, "source", ["web", "hub"], ["image_id"])) == 5


def test_a_release_says_what_its_pictures_were_curated_from(cfg: Config) -> None:
    lake, release = Path(cfg.lake.root), corpus.read_release(Path(cfg.corpus.root))
    for table in (tables.SAMPLES, tables.REJECTS, tables.DUPLICATES):
        assert release.created_from[table.name] == deltalog.version(lake, table)
    assert release.config_digest == cfg.digest() and "curated" in release.created_from
