from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import lance, lance_source
from imagelake.lance_source import LanceReader, ScanPlan, spark_type, to_sql
from imagelake.tables import CURATED
from tests.lake_fixture import annotations, append_curated, curated, executed_plan

CAPTIONS = {
    "a": "it's a dog",
    "b": 'a "quoted" dog',
    "c": "半角 ' 全角",
    "d": None,
    "e": "",
    "f": "1 = 1' OR '1' = '1",
    "g": "back\\slash `tick` %_",
}
SCORES = {"a": 0.5, "b": None, "c": math.nan, "d": -1.0, "e": math.inf, "f": 0.25, "g": 3.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A curated table with three fragments, awkward captions and a column of scores."""
    lake = tmp_path_factory.mktemp("lake")
    rows = [curated(key, **{C.WIDTH: 100 * place, C.SOURCE: f"s{place % 2}"}) for place, key in enumerate(CAPTIONS)]
    append_curated(lake, rows, "one", fragments=3)
    values = annotations(list(CAPTIONS), caption=list(CAPTIONS.values()), score=list(SCORES.values()), ok=[n % 2 == 0 for n in range(7)])
    lance.set_columns(lake, CURATED, C.IMAGE_ID, values)
    return lake / CURATED.path


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("lance").options(path=str(folder), **options).load()


def ids(frame: DataFrame) -> str:
    return "".join(sorted(row[C.IMAGE_ID] for row in frame.select(C.IMAGE_ID).collect()))


def pushed(folder: Path, *filters: ds.Filter) -> tuple[list[str], list[ds.Filter]]:
    """What the reader takes over, and what it leaves to Spark."""
    reader = LanceReader(ScanPlan.pin(str(folder), [], None, True))
    left = list(reader.pushFilters(list(filters)))
    return reader.where, left


def test_every_column_but_the_images_is_read(spark: SparkSession, folder: Path) -> None:
    frame = read(spark, folder)
    assert frame.columns == [name for name in CURATED.schema.names if name != C.IMAGE] + ["caption", "score", "ok"]
    rows = {row[C.IMAGE_ID]: row for row in frame.collect()}
    assert {key: row["caption"] for key, row in rows.items()} == CAPTIONS
    assert rows["b"][C.CAPTIONS][0].asDict() == {"name": "alt", "text": "alt of b"}
    assert rows["b"]["score"] is None


def test_images_are_read_when_they_are_asked_for(spark: SparkSession, folder: Path) -> None:
    rows = read(spark, folder, columns="image_id,image").where("image_id = 'b'").collect()
    assert [bytes(row[C.IMAGE]) for row in rows] == [curated("b")[C.IMAGE]]


def test_columns_narrow_the_scan_and_keep_their_order(spark: SparkSession, folder: Path) -> None:
    frame = read(spark, folder, columns=" width, image_id ,")
    assert frame.columns == [C.WIDTH, C.IMAGE_ID]
    assert ids(frame.where("width >= 200")) == "cdefg"


def test_a_column_that_is_not_there_is_named(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(PySparkException, match=r"has no column Width; it has image_id, "):
        read(spark, folder, columns="image_id,Width")


def test_a_path_is_required(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="the option 'path' is missing"):
        spark.read.format("lance").load()


def test_each_fragment_is_a_task(spark: SparkSession, folder: Path) -> None:
    assert read(spark, folder).rdd.getNumPartitions() == 3


def test_row_addresses_lead_to_the_images(spark: SparkSession, folder: Path) -> None:
    rows = read(spark, folder, columns="image_id", row_address="true").where("image_id IN ('c', 'f')").collect()
    table = lance.open_table(folder.parent, CURATED).scanner(columns=[C.IMAGE_ID], with_row_address=True).to_table()
    known = dict(zip(table[C.IMAGE_ID].to_pylist(), table[lance.ROW_ADDRESS].to_pylist(), strict=True))
    assert {row[C.IMAGE_ID]: row[lance.ROW_ADDRESS] for row in rows} == {"c": known["c"], "f": known["f"]}


def test_a_filter_on_the_row_address_is_answered(spark: SparkSession, folder: Path) -> None:
    frame = read(spark, folder, columns="image_id", row_address="true")
    row = frame.where("image_id = 'e'").first()
    assert row is not None
    assert ids(frame.where(F.col(lance.ROW_ADDRESS) == row[lance.ROW_ADDRESS])) == "e"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("caption = 'it\\'s a dog'", "a"),
        ("caption = 'a \"quoted\" dog'", "b"),
        ("caption = '半角 \\' 全角'", "c"),
        ("caption = '1 = 1\\' OR \\'1\\' = \\'1'", "f"),
        ("caption = 'back\\\\slash `tick` %_'", "g"),
        ("caption IN ('it\\'s a dog', '')", "ae"),
        ("caption IN ('nobody', NULL)", ""),
        ("caption = ''", "e"),
        ("caption IS NULL", "d"),
        ("caption IS NOT NULL", "abcefg"),
        ("caption <> ''", "abcfg"),
        ("NOT caption IN ('', 'it\\'s a dog')", "bcfg"),
        ("caption <=> NULL", "d"),
        ("caption LIKE '%dog%'", "ab"),
        ("caption > 'b'", "acg"),
        ("width = 300", "d"),
        ("WIDTH > 300 AND width <= 500", "ef"),
        ("width >= 500 OR width < 100", "afg"),
        ("width <> 300 AND source = 's1'", "bf"),
        ("score = double('NaN')", "c"),
        ("score = double('Infinity')", "e"),
        ("score > 1", "ceg"),
        ("score < double('Infinity')", "adfg"),
        ("score IS NULL", "b"),
        ("ok", "aceg"),
        ("NOT ok", "bdf"),
        ("ok = true AND width > 100", "ceg"),
        ("captions[0].text = 'alt of b'", "b"),
        ("length(caption) = 0", "e"),
    ],
)
def test_filters_keep_what_spark_would_keep(spark: SparkSession, folder: Path, condition: str, expected: str) -> None:
    assert ids(read(spark, folder).where(condition)) == expected


def test_what_lance_can_state_is_pushed_down(folder: Path) -> None:
    where, left = pushed(
        folder,
        ds.EqualTo((C.SOURCE,), "it's"),
        ds.GreaterThan((C.WIDTH,), 5),
        ds.In((C.IMAGE_ID,), ("a", "b'")),
        ds.IsNull(("caption",)),
        ds.Not(ds.LessThanOrEqual((C.WIDTH,), 7)),
    )
    assert left == []
    assert where == [
        "`source` = 'it''s'",
        "`width` > 5",
        "`image_id` IN ('a', 'b''')",
        "`caption` IS NULL",
        "NOT (`width` <= 7)",
    ]


@pytest.mark.parametrize(
    "condition",
    [
        ds.StringStartsWith(("caption",), "a"),
        ds.EqualNullSafe(("caption",), None),
        ds.In(("caption",), ("a", None)),
        ds.Not(ds.StringContains(("caption",), "a")),
        ds.EqualTo(("score",), math.nan),
        ds.LessThan(("score",), math.inf),
        ds.EqualTo((C.IMAGE,), b"x"),
        ds.EqualTo((lance.ROW_ADDRESS,), 3),
    ],
    ids=str,
)
def test_what_lance_would_answer_otherwise_is_left_to_spark(folder: Path, condition: ds.Filter) -> None:
    where, left = pushed(folder, condition)
    assert (where, left) == ([], [condition])


def test_spark_does_not_filter_again_what_was_pushed(spark: SparkSession, folder: Path) -> None:
    pushed_down = executed_plan(read(spark, folder).where("source = 's1'"))
    assert ") Filter" not in pushed_down
    assert ") Filter" in executed_plan(read(spark, folder).where("caption LIKE '%dog%'"))


def test_a_query_sees_one_version(spark: SparkSession, tmp_path: Path) -> None:
    version = append_curated(tmp_path, [curated("a")], "one")
    before = read(spark, tmp_path / CURATED.path)
    append_curated(tmp_path, [curated("b")], "two")
    assert ids(read(spark, tmp_path / CURATED.path)) == "ab"
    assert ids(read(spark, tmp_path / CURATED.path, version=str(version))) == "a"
    assert before.columns == read(spark, tmp_path / CURATED.path).columns


def test_a_view_over_a_table_works_in_sql(spark: SparkSession, folder: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW pictures USING lance OPTIONS (path '{folder}', columns 'image_id,caption')")
    try:
        rows = spark.sql("SELECT image_id FROM pictures WHERE caption = 'it\\'s a dog'").collect()
        assert [row.image_id for row in rows] == ["a"]
        assert spark.table("pictures").columns == ["image_id", "caption"]
    finally:
        spark.catalog.dropTempView("pictures")


def test_an_empty_table_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    lance.create(tmp_path, CURATED)
    assert read(spark, tmp_path / CURATED.path).count() == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(8), pa.binary()),
        (pa.list_(pa.float32(), 4), pa.list_(pa.float32())),
        (pa.list_(pa.uint8(), 8), pa.list_(pa.int16())),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC")),
        (pa.struct([("x", pa.uint8())]), pa.struct([("x", pa.int16())])),
        (pa.string(), pa.string()),
    ],
    ids=str,
)
def test_types_that_spark_lacks_are_widened(kind: pa.DataType, expected: pa.DataType) -> None:
    assert spark_type(kind) == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float16(), 0.5, 0.5),
        (pa.binary(8), b"12345678", b"12345678"),
        (pa.list_(pa.float32(), 3), [1.0, 2.0, None], [1.0, 2.0, None]),
        (pa.list_(pa.uint8(), 2), [255, 0], [255, 0]),
        (pa.struct([("x", pa.uint8())]), {"x": 200}, {"x": 200}),
        (pa.uint8(), None, None),
    ],
    ids=str,
)
def test_widening_keeps_values(kind: pa.DataType, value: Any, expected: Any) -> None:
    import numpy as np

    column = pa.array([np.float16(value)], kind) if kind == pa.float16() else pa.array([value], kind)
    assert lance_source._widened(column, spark_type(kind)).to_pylist() == [expected]


def test_to_sql_refuses_what_it_does_not_know() -> None:
    assert to_sql(ds.StringEndsWith(("caption",), "x")) is None
