from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import config, delta, ledger, tables
from imagelake.config import Config, FilterConfig, GeometryConfig
from imagelake.errors import ConfigError
from jobs import filter as job
from tests.lake_fixture import executed_plan, sample, samples_frame, table_frame


def shape(width: int, height: int, **changes: Any) -> dict[str, Any]:
    return sample(f"{width}x{height}", width=width, height=height, **changes)


ROWS = [
    shape(384, 384),
    shape(383, 385),
    shape(704, 352),
    shape(705, 352),
    shape(352, 704),
    shape(352, 705),
    shape(1500, 600),
    shape(46341, 46341),
    sample("no licence", license=None),
    sample("other licence", license="proprietary"),
    sample("all wrong", width=900, height=90, license=None),
    sample("unreadable", width=None, height=None, defect="truncated"),
    sample("unreadable with a size", width=10, height=10, defect="truncated"),
]


@pytest.fixture(scope="module")
def samples(spark: SparkSession) -> DataFrame:
    return samples_frame(spark, ROWS).cache()


def reasons(samples: DataFrame, geometry: GeometryConfig | None = None, **rules: Any) -> dict[str, list[str]]:
    """image_id -> sorted reasons of the samples that are out."""
    found = job.rejects(samples, FilterConfig(**rules), geometry or GeometryConfig())
    rows = found.groupBy(C.IMAGE_ID).agg(F.sort_array(F.collect_list(C.REASON)).alias("reasons")).collect()
    return {row[C.IMAGE_ID]: row["reasons"] for row in rows}


def test_the_default_rules_and_their_edges(samples: DataFrame) -> None:
    assert reasons(samples) == {
        "383x385": ["below_min_pixels"],
        "705x352": ["aspect_ratio"],
        "352x705": ["aspect_ratio"],
        "1500x600": ["aspect_ratio"],
        "all wrong": ["aspect_ratio", "below_min_pixels"],
    }


def test_every_rule_that_a_sample_fails_is_a_row(samples: DataFrame) -> None:
    found = reasons(samples, min_side=400, max_aspect_ratio=1.9, licenses=("CC0-1.0", "CC-BY-4.0"))
    assert found == {
        "384x384": ["below_min_side"],
        "383x385": ["below_min_pixels", "below_min_side"],
        "704x352": ["aspect_ratio", "below_min_side"],
        "705x352": ["aspect_ratio", "below_min_side"],
        "352x704": ["aspect_ratio", "below_min_side"],
        "352x705": ["aspect_ratio", "below_min_side"],
        "1500x600": ["aspect_ratio"],
        "no licence": ["license"],
        "other licence": ["license"],
        "all wrong": ["aspect_ratio", "below_min_pixels", "below_min_side", "license"],
    }


def test_an_empty_list_permits_no_licence(samples: DataFrame) -> None:
    found = reasons(samples.where(F.col(C.IMAGE_ID).isin("384x384", "no licence")), licenses=())
    assert found == {"384x384": ["license"], "no licence": ["license"]}


def test_where_extremes_are_cropped_only_the_configured_ratio_rejects(samples: DataFrame) -> None:
    crop = GeometryConfig(out_of_range="crop")
    assert reasons(samples, crop, min_pixels=0) == {}
    assert reasons(samples, crop, min_pixels=0, max_aspect_ratio=2.5) == {"all wrong": ["aspect_ratio"]}


def test_a_reject_says_what_was_met(samples: DataFrame) -> None:
    frame = job.rejects(samples, FilterConfig(licenses=("CC0-1.0",)), GeometryConfig())
    assert frame.columns == tables.REJECTS.schema.names
    rows = {(row[C.IMAGE_ID], row[C.REASON]): row for row in frame.collect()}
    row = rows["all wrong", "license"]
    assert (row[C.SOURCE], row[C.SOURCE_KEY], row[C.STAGE], row[C.DETAIL]) == ("made", "all wrong.jpg", "filter", "900×90")
    assert rows["other licence", "license"][C.DETAIL] == "800×600 license proprietary"


def test_images_are_not_read(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    delta.append(samples_frame(spark, ROWS), root, tables.SAMPLES, batch="one")
    plan = executed_plan(job.rejects(delta.read(spark, root, tables.SAMPLES).drop(C.IMAGE), lake.filter, lake.geometry))
    assert "ReadSchema: struct<" in plan
    assert "image:binary" not in plan
    assert "image#" not in plan


def test_the_stage_replaces_its_own_rejects_and_rests_when_nothing_changed(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    delta.append(samples_frame(spark, ROWS).coalesce(1), root, tables.SAMPLES, batch="one")
    ingest = {"image_id": "unreadable", "source": "made", "stage": "ingest", "reason": "truncated"}
    delta.append(table_frame(spark, tables.REJECTS, [ingest]), root, tables.REJECTS, batch="one")

    result = job.main(spark, lake)
    assert (result.rows_in, result.kept) == (11, 6)
    assert result.rejected == {"below_min_pixels": 2, "aspect_ratio": 4}
    assert result.read_versions == {"samples": 0}
    note(root, lake, result)
    assert job.main(spark, lake).nothing_to_do

    looser = lake.model_copy(update={"filter": FilterConfig(min_pixels=0)})
    again = job.main(spark, looser)
    assert (again.kept, again.rejected) == (7, {"aspect_ratio": 4})
    left = delta.read(spark, root, tables.REJECTS).groupBy(C.STAGE).count().collect()
    assert {row[C.STAGE]: row["count"] for row in left} == {"ingest": 1, "filter": 4}


def note(root: Path, cfg: Config, result: ledger.StageResult) -> None:
    """Record a run as the runner does."""
    from datetime import UTC, datetime

    ledger.record(root, run_id=ledger.new_run_id(), stage="filter", status="ok", started_at=datetime.now(UTC), seconds=1, result=result,
                  config_digest=cfg.digest(), stage_digest=cfg.digest(["filter", "geometry"]))  # fmt: skip


def test_rules_of_trust_captions_and_ones_own(spark: SparkSession) -> None:
    rows = [
        sample("trusted", trust=["nsfw_filtered", "deduplicated"], captions={"alt": "a long caption", "seo": None}),
        sample("untrusted", trust=["deduplicated"], captions={"alt": "short"}),
        sample("silent", trust=None, captions={"alt": None}, format="gif"),
        sample("bare", trust=["nsfw_filtered"], captions={}, license=None),
    ]
    frame = samples_frame(spark, rows)
    own = {"gif": "format = 'gif'", "foreign": "license <> 'CC0-1.0'"}
    assert reasons(frame, trust=("nsfw_filtered",), min_caption_chars=6, where=own) == {
        "untrusted": ["caption_length", "trust_required"],
        "silent": ["caption_length", "gif", "trust_required"],
        "bare": ["caption_length"],
    }


def test_the_longest_caption_decides_the_language_and_no_caption_is_no_reason(spark: SparkSession) -> None:
    rows = [
        sample("english", captions={"alt": "A red bicycle leans on a wall in the old town.", "seo": "Fahrrad"}),
        sample("german", captions={"alt": "Ein rotes Fahrrad lehnt an einer Mauer in der Altstadt.", "seo": "a bicycle"}),
        sample("japanese", captions={"alt": "古い町の壁に赤い自転車が立てかけてある"}),
        sample("number", captions={"alt": "2034-17"}),
        sample("silent", captions={"alt": None}),
        sample("bare", captions={}),
    ]
    frame = samples_frame(spark, rows)
    assert reasons(frame, languages=("en", "ja")) == {"german": ["language"]}
    assert reasons(frame, languages=("fr",)) == {name: ["language"] for name in ("english", "german", "japanese")}
    assert "EvalPython" not in executed_plan(job.rejects(frame, FilterConfig(), GeometryConfig()))  # where it is not asked for


@pytest.mark.parametrize("predicate", ["no_such_column = 1", "format ="])
def test_a_predicate_that_is_none_names_its_key(samples: DataFrame, predicate: str) -> None:
    with pytest.raises(ConfigError, match=r"filter\.where\.bad: "):
        reasons(samples, where={"bad": predicate})


def test_a_rule_of_ones_own_can_not_take_a_name_that_is_built_in() -> None:
    with pytest.raises(ConfigError, match=r"filter\.where: .*license: the name of a rule that is built in"):
        config.load(overrides=["filter.where.license='true'"])


def test_what_if_tells_and_writes_nothing(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    rows = [shape(384, 384), shape(600, 600), shape(300, 300), sample("unreadable", width=None, height=None, defect="truncated")]
    delta.append(samples_frame(spark, [row | {"source": "one"} for row in rows]), root, tables.SAMPLES, batch="a")
    then = lake.model_copy(update={"filter": FilterConfig(min_pixels=500 * 500)})
    assert job.what_if(spark, lake, then) == [{"source": "one", "samples": 3, "kept_now": 2, "kept_then": 1, "newly_out": 1, "newly_in": 0}]
    assert job.what_if(spark, then, lake)[0]["newly_in"] == 1
    assert delta.version(root, tables.REJECTS) == -1
