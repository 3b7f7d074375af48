from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from imagelake import ledger, query, views
from imagelake.config import Config
from imagelake.errors import ConfigError
from imagelake.ledger import StageResult
from imagelake.paths import SQL

STATEMENT = """
SELECT * FROM VALUES
  (1, 'a "b", c', map('x', 1L), array(named_struct('n', 'ü')), CAST(NULL AS STRING), TIMESTAMP '2024-05-06 07:08:09'),
  (2, '図\nzwei', map(), array(), '', NULL)
AS t(id, text, counts, list, nothing, at) ORDER BY id
"""


@pytest.fixture
def empty_views(spark: SparkSession, lake: Config) -> Iterator[Config]:
    """A lake with one run in its ledger and nothing else; its views go with the test."""
    result = StageResult(10, 7, {"license": 3}, {"samples": 4}, {}, {"batches": "ü"})
    ledger.record(
        Path(lake.lake.root),
        run_id="r1",
        stage="filter",
        status="ok",
        started_at=datetime(2024, 5, 6, 12, tzinfo=UTC),
        seconds=2.5,
        config_digest="c",
        stage_digest="s",
        result=result,
    )
    yield lake
    for name in views.NAMES:
        spark.catalog.dropTempView(name)


def shown(spark: SparkSession, statement: str, format_: str) -> str:
    out = io.StringIO()
    query.show(spark.sql(statement), format_, out)
    return out.getvalue()


def test_json_is_one_object_a_line(spark: SparkSession) -> None:
    rows = [json.loads(line) for line in shown(spark, STATEMENT, "json").splitlines()]
    assert rows == [
        {"id": 1, "text": 'a "b", c', "counts": {"x": 1}, "list": [{"n": "ü"}], "nothing": None, "at": "2024-05-06 07:08:09"},
        {"id": 2, "text": "図\nzwei", "counts": {}, "list": [], "nothing": "", "at": None},
    ]


def test_csv_has_a_header_and_quotes_what_needs_it(spark: SparkSession) -> None:
    header, first, second = csv.reader(io.StringIO(shown(spark, STATEMENT, "csv")))
    assert header == ["id", "text", "counts", "list", "nothing", "at"]
    assert first == ["1", 'a "b", c', '{"x": 1}', '[{"n": "ü"}]', "", "2024-05-06 07:08:09"]
    assert second == ["2", "図\nzwei", "{}", "[]", "", ""]


def test_two_columns_of_one_name_are_two_columns(spark: SparkSession) -> None:
    assert shown(spark, "SELECT 1 AS a, 2 AS a, struct(3 AS x) AS s", "csv").splitlines() == ["a,a,s", '1,2,"{""x"": 3}"']


def test_a_table_shows_every_value_whole(spark: SparkSession) -> None:
    # Not a terminal: nothing may be cut to a width that nobody has.
    ids = [f"{n:032x}" for n in range(3)]
    statement = f"SELECT * FROM VALUES {', '.join(repr((i, i[::-1], i, i)) for i in ids)} AS t(one, two, three, four)"
    text = shown(spark, statement, "table")
    assert all(image_id in text and image_id[::-1] in text for image_id in ids)
    assert "four" in text


def test_markup_in_values_is_text(spark: SparkSession) -> None:
    assert "[red]x[/red]" in shown(spark, "SELECT '[red]x[/red]' AS t", "table")


def test_a_long_table_says_that_there_is_more(spark: SparkSession) -> None:
    assert "the first 1000 rows" in shown(spark, "SELECT id FROM range(1001)", "table")
    assert "the first 1000 rows" not in shown(spark, "SELECT id FROM range(1000)", "table")
    assert len(shown(spark, "SELECT id FROM range(1001)", "json").splitlines()) == 1001


def test_an_unknown_format_is_named(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="unknown format 'xml'; one of table, csv, json"):
        query.show(spark.range(1), "xml", io.StringIO())


def test_runs_can_be_asked(spark: SparkSession, empty_views: Config) -> None:
    row = query.ask(spark, empty_views, "SELECT stage, kept, rejected, seconds, year(started_at) AS year, notes FROM runs;").first()
    assert row is not None
    assert row.asDict() == {
        "stage": "filter",
        "kept": 7,
        "rejected": {"license": 3},
        "seconds": 2.5,
        "year": 2024,
        "notes": {"batches": "ü"},
    }


@pytest.mark.parametrize(
    ("statement", "word"),
    [("SELECT nothing_here FROM samples", "nothing_here"), ("SELECT 1 FROM nowhere", "nowhere"), ("SELEC 1", "SELEC")],
)
def test_a_wrong_statement_is_explained(spark: SparkSession, empty_views: Config, statement: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        query.ask(spark, empty_views, statement)
    message = str(caught.value)
    assert word in message
    assert "corpus_rows" in message
    assert "\tat " not in message


@pytest.mark.parametrize("report", sorted((SQL / "reports").glob("*.sql")), ids=lambda path: path.stem)
def test_every_report_runs_on_an_empty_lake(spark: SparkSession, empty_views: Config, report: Path) -> None:
    found = query.ask(spark, empty_views, report.read_text(encoding="utf-8")).collect()
    assert len(found) == (1 if report.stem == "runs" else 0)
