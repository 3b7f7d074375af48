from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from imagelake import corpus, delta, lance, logs, runner, skiplist, tables
from imagelake.config import Config
from imagelake.errors import ConfigError
from imagelake.ledger import StageResult
from imagelake.stages import stage
from jobs import skips as job
from tests.corpus_fixture import EXPORTS, make_corpus
from tests.lake_fixture import append_curated, curated, table_frame


@pytest.fixture
def exported(lake: Config) -> Config:
    """A corpus of 26 samples whose pictures are all curated; the lake says nothing against any."""
    make_corpus(Path(lake.corpus.root))
    append_curated(Path(lake.lake.root), [curated(image_id, original_width=500 + n) for n, image_id in enumerate(ids(lake))], "all")
    return lake


def ids(cfg: Config) -> list[str]:
    root = Path(cfg.corpus.root)
    return sorted(row["image_id"] for export in EXPORTS for row in pq.read_table(corpus.rows_path(root, export)).to_pylist())


def with_where(cfg: Config, **where: str) -> Config:
    return cfg.model_copy(update={"skips": cfg.skips.model_copy(update={"where": where})})


def run(spark: SparkSession, cfg: Config) -> StageResult:
    """With its ledger row, and the check that follows it."""
    return runner.execute(stage("skips"), cfg, spark)


def reasons(cfg: Config) -> dict[str, list[str]]:
    """What the table of the generation that holds says, after its lists were found to say the same."""
    root = Path(cfg.corpus.root)
    generation = skiplist.read(root)
    rows = pq.read_table(skiplist.reasons_path(root, generation.digest)).to_pylist()
    listed = {(name, int(index)) for name, found in generation.lists.items() for index in found.skipped}
    assert {(f"{row['tier']}/{row['bucket']}/{row['shard']}", row["index"]) for row in rows} == listed
    return {row["image_id"]: row["reasons"] for row in rows}


def test_what_left_curated_is_skipped_with_its_reasons(spark: SparkSession, exported: Config) -> None:
    root, (lost, rejected, both, vanished, *_) = Path(exported.lake.root), ids(exported)
    assert run(spark, exported).kept == 26
    assert run(spark, exported).nothing_to_do
    assert not (Path(exported.corpus.root) / skiplist.FOLDER).exists()
    losers = [{"image_id": image_id, "keeper_id": ids(exported)[-1], "kind": "phash", "distance": 0} for image_id in (lost, both)]
    delta.append(table_frame(spark, tables.DUPLICATES, losers), root, tables.DUPLICATES, batch="d")
    rules = [
        {"image_id": image_id, "source": "made", "stage": "filter", "reason": reason}
        for image_id, reason in [(rejected, "license"), (rejected, "aspect_ratio"), (both, "license")]
    ]
    delta.append(table_frame(spark, tables.REJECTS, rules), root, tables.REJECTS, batch="r")
    lance.delete_ids(root, tables.CURATED, [lost, rejected, both, vanished])

    result = run(spark, exported)
    assert reasons(exported) == {
        lost: ["superseded"],
        rejected: ["filter:aspect_ratio", "filter:license"],
        both: ["filter:license", "superseded"],
        vanished: ["not_curated"],
    }
    assert (result.rows_in, result.kept) == (26, 22)
    assert result.rejected == {"superseded": 2, "filter:license": 2, "filter:aspect_ratio": 1, "not_curated": 1}
    digest = skiplist.current_digest(Path(exported.corpus.root))
    assert run(spark, exported).nothing_to_do
    shutil.rmtree(root / tables.RUNS.path)
    assert job.main(spark, exported).notes["skips"] == digest, "a repeat without its ledger row made another generation"


def test_a_predicate_skips_what_it_is_true_for_and_withdrawn_shows_it_again(
    spark: SparkSession, exported: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(exported.corpus.root)
    narrow = with_where(exported, narrow="original_width < 502", unknown="attribution = 'x'")
    preview, released = job.preview(spark, narrow)
    assert sum(row["count"] for row in preview) == 2 and {row["reason"] for row in preview} == {"narrow"} and released == 0
    assert skiplist.current_digest(root) is None, "a preview wrote"
    job.main(spark, narrow)
    first = skiplist.current_digest(root)
    assert reasons(exported) == {image_id: ["narrow"] for image_id in ids(exported)[:2]}
    assert job.preview(spark, exported) == ([], 2)
    logs.configure(json_lines=True)
    assert job.main(spark, exported).notes["released"] == "2"
    assert "2 samples that were skipped are trained on again" in capsys.readouterr().err
    assert skiplist.read(root).lists == {} and not skiplist.sidecars(root)
    assert first is not None and sum(len(found.skipped) for found in skiplist.read(root, first).lists.values()) == 2


@pytest.mark.parametrize("predicate", ["no_such_column = 1", "1 +"])
def test_a_predicate_that_is_none_names_its_key(spark: SparkSession, exported: Config, predicate: str) -> None:
    with pytest.raises(ConfigError, match=r"skips\.where\.bad: "):
        job.main(spark, with_where(exported, bad=predicate))


def test_an_interrupted_run_converges(spark: SparkSession, exported: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cfg = Path(exported.corpus.root), with_where(exported, narrow="original_width < 504")
    write, written = skiplist.write_atomic, []

    def crash(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError("the disk is full")
        write(path, data)

    monkeypatch.setattr(skiplist, "write_atomic", crash)
    with pytest.raises(OSError, match="disk is full"):
        job.main(spark, cfg)
    assert skiplist.current_digest(root) is None
    monkeypatch.undo()
    job.main(spark, cfg)
    assert len(reasons(exported)) == 4
    lists = skiplist.read(root).lists
    assert {path.relative_to(root).as_posix() for path in skiplist.sidecars(root)} == {f"{name}.skip" for name in lists}


def test_explain_says_why(spark: SparkSession, exported: Config) -> None:
    root = Path(exported.corpus.root)
    job.main(spark, with_where(exported, narrow="original_width < 501"))
    (why,), (why_not,) = (skiplist.explain(root, image_id) for image_id in ids(exported)[:2])
    assert why.endswith(": narrow") and "shard.0000" in why
    assert why_not.endswith(": not skipped")
    with pytest.raises(ConfigError, match="no sample of"):
        skiplist.explain(root, "nobody")


def test_another_lake_skips_nothing(spark: SparkSession, exported: Config) -> None:
    root = Path(exported.lake.root)
    lance.delete_ids(root, tables.CURATED, ids(exported))
    append_curated(root, [curated("a stranger")], "other")
    with pytest.raises(ConfigError, match="none of the 26 pictures"):
        job.main(spark, exported)
    assert skiplist.current_digest(Path(exported.corpus.root)) is None


def test_counts_spare_the_query_only_where_they_prove_that_nothing_is_gone(spark: SparkSession, exported: Config) -> None:
    lake, root = Path(exported.lake.root), Path(exported.corpus.root)
    release = corpus.read_release(root)
    current = {tables.CURATED.name: lance.version(lake, tables.CURATED)}
    assert not job.all_curated(lake, release, current), "a version after the export proves nothing"
    made_of_it = release.model_copy(update={"created_from": current})
    assert job.all_curated(lake, made_of_it, current)
    assert not job.all_curated(lake, made_of_it.model_copy(update={"rows": 27}), current)


def test_without_a_corpus_there_is_nothing_to_skip(spark: SparkSession, lake: Config) -> None:
    assert job.main(spark, lake).nothing_to_do


def test_the_views_show_what_is_skipped(spark: SparkSession, exported: Config) -> None:
    from imagelake import views

    job.main(spark, with_where(exported, narrow="original_width < 501"))
    views.register(spark, exported)
    row: Any = spark.sql("SELECT image_id, reasons FROM skips").first()
    assert (row["image_id"], row["reasons"]) == (ids(exported)[0], ["narrow"])
