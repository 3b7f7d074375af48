from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from imagelake import columns as C
from imagelake import delta, jpeg, lance, tables
from imagelake.buckets import Bucket
from imagelake.config import Config, CurateConfig
from imagelake.errors import ImagelakeError
from imagelake.tables import CURATED
from jobs import curate as job
from tests.corpus_fixture import jpeg_bytes
from tests.lake_fixture import exchanged_columns, executed_plan, images_by_id, sample, samples_frame, table_frame
from udfs.decode import Defect


def duplicate(image_id: str, keeper_id: str) -> dict[str, Any]:
    return {"image_id": image_id, "keeper_id": keeper_id, "kind": "phash", "distance": 0}


def reject(image_id: str, reason: str = "license") -> dict[str, Any]:
    return {"image_id": image_id, "source": "made", "stage": "filter", "reason": reason}


def united(
    spark: SparkSession, rows: list[dict[str, Any]], losers: list[dict[str, Any]], limit: int = 16
) -> dict[str, list[tuple[str, str]]]:
    frame = job.united_captions(samples_frame(spark, rows), table_frame(spark, tables.DUPLICATES, losers), limit)
    return {row[C.IMAGE_ID]: [(entry["name"], entry["text"]) for entry in row[C.CAPTIONS]] for row in frame.collect()}


CAPTIONED = [
    sample("single", captions={"alt": "one", "title": None}),
    sample("mute", captions={"alt": None}),
    sample("keeper", captions={"title": "own title", "alt": "own"}),
    sample("loser a", captions={"alt": "from a", "seo": "same"}),
    sample("loser b", captions={"alt": "own", "seo": "same", "note": "from b"}),
    sample("mute keeper"),
    sample("its loser", captions={"alt": "kept all the same"}),
]
LOSERS = [duplicate("loser b", "keeper"), duplicate("loser a", "keeper"), duplicate("its loser", "mute keeper")]


def test_captions_are_united_own_first_and_equal_ones_once(spark: SparkSession) -> None:
    expected = {
        "single": [("alt", "one")],
        "keeper": [("alt", "own"), ("title", "own title"), ("alt", "from a"), ("seo", "same"), ("note", "from b")],
        "mute keeper": [("alt", "kept all the same")],
    }
    assert united(spark, CAPTIONED, LOSERS) == expected
    assert united(spark, CAPTIONED[::-1], LOSERS[::-1]) == expected
    assert united(spark, CAPTIONED, LOSERS, limit=3)["keeper"] == expected["keeper"][:3]


def test_survivors_are_readable_and_neither_rejected_nor_lost(spark: SparkSession) -> None:
    rows = [sample("a"), sample("broken", defect="truncated"), sample("rejected"), sample("loser"), sample("keeper")]
    rejects = table_frame(spark, tables.REJECTS, [reject("rejected"), reject("rejected", "aspect_ratio")])
    found = job.survivors(samples_frame(spark, rows), rejects, table_frame(spark, tables.DUPLICATES, [duplicate("loser", "keeper")]))
    assert sorted(row[C.IMAGE_ID] for row in found.collect()) == ["a", "keeper"]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Ten images in row groups of three, in a folder whose name must be escaped in a URI."""
    folder = tmp_path / "a b%c"
    folder.mkdir()
    table = pa.table({C.IMAGE_ID: [f"{n}" for n in range(10)], C.IMAGE: [bytes([n]) * 5 for n in range(10)]})
    pq.write_table(table, folder / "part.parquet", row_group_size=3)
    return folder / "part.parquet"


def test_the_wanted_images_of_a_file_are_read(parquet: Path) -> None:
    assert list(job.images_in(parquet.as_uri(), {"7", "2", "0"})) == [("0", b"\0" * 5), ("2", b"\2" * 5), ("7", b"\7" * 5)]


def test_row_groups_without_a_wanted_image_are_not_read(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = pq.ParquetFile.read_row_group, []

    def watched(self: pq.ParquetFile, group: int, columns: list[str], **options: Any) -> pa.Table:
        if C.IMAGE in columns:
            asked.append(group)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    list(job.images_in(parquet.as_uri(), {"4"}))
    assert asked == [1]


def test_a_file_that_lacks_a_planned_image_is_an_error(parquet: Path) -> None:
    with pytest.raises(ImagelakeError, match=r"part\.parquet: 2 images planned, 1 found"):
        list(job.images_in(parquet.as_uri(), {"4", "never"}))


def test_each_sample_gets_the_tier_and_bucket_of_its_size() -> None:
    rows = [{C.IMAGE_ID: f"{w}x{h}", C.WIDTH: w, C.HEIGHT: h} for w, h in [(512, 512), (2000, 1000), (400, 800), (4096, 4096)]]
    found = {image_id: row[job.SHAPE] for image_id, row in job.with_shapes(rows, (512, 1024)).items()}
    assert found == {
        "512x512": Bucket(512, 512, 512),
        "2000x1000": Bucket(1024, 1408, 704),
        "400x800": Bucket(512, 352, 704),
        "4096x4096": Bucket(1024, 1024, 1024),
    }


def test_a_curated_row_is_what_the_table_declares() -> None:
    planned = sample("a", width=800, height=790, captions=None, shape=Bucket(512, 512, 512))
    row = job.curated_row(planned, jpeg_bytes(800, 790), CurateConfig(), False, 10**8)
    assert set(row) == set(CURATED.schema.names)
    info = jpeg.parse(row[C.IMAGE])
    assert (info.width, info.height, row[C.WIDTH], row[C.HEIGHT], row[C.TIER], row[C.BUCKET]) == (512, 512, 512, 512, 512, "1.000")
    assert (row[C.ORIGINAL_WIDTH], row[C.ORIGINAL_HEIGHT], row[C.BYTE_SIZE]) == (800, 790, len(row[C.IMAGE]))
    assert (row[C.SHA256], row[C.CAPTIONS]) == (planned[C.SHA256], [])
    with pytest.raises(Defect):
        job.curated_row(planned, b"no image", CurateConfig(), False, 10**8)


PICTURES = {"a": (600, 600), "b": (1200, 600), "c": (700, 700), "keeper": (800, 600), "loser": (400, 300)}


def fill(spark: SparkSession, root: Path) -> None:
    """Real JPEGs in one file of samples, bytes that fail although their facts were fine in another."""
    rows = [
        sample(image_id, image=jpeg_bytes(w, h, n), width=w, height=h, captions={"alt": f"of {image_id}"})
        for n, (image_id, (w, h)) in enumerate(PICTURES.items())
    ]
    delta.append(samples_frame(spark, rows).coalesce(1), root, tables.SAMPLES, batch="one")
    delta.append(
        samples_frame(spark, [sample("rotten", image=b"\xff\xd8\xff" + bytes(100))]).coalesce(1), root, tables.SAMPLES, batch="two"
    )
    delta.append(table_frame(spark, tables.REJECTS, [reject("c")]), root, tables.REJECTS, batch="one")
    delta.append(table_frame(spark, tables.DUPLICATES, [duplicate("loser", "keeper")]), root, tables.DUPLICATES, batch="one")


def curated(root: Path) -> dict[str, dict[str, Any]]:
    names = [C.IMAGE_ID, C.TIER, C.BUCKET, C.WIDTH, C.HEIGHT, C.CAPTIONS]
    return {row[C.IMAGE_ID]: row for row in lance.scan(root, CURATED, names).to_pylist()}


def test_the_stage_keeps_rejects_repeats_and_takes_out(spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(lake.lake.root)
    fill(spark, root)

    # Interrupted after the rejects and before the commit: nothing is shown yet, and nothing is doubled later.
    def crash(*_: object) -> int:
        raise RuntimeError("the power went out")

    monkeypatch.setattr(lance, "commit_append", crash)
    with pytest.raises(RuntimeError, match="power went out"):
        job.main(spark, lake)
    monkeypatch.undo()
    assert curated(root) == {}

    result = job.main(spark, lake)
    assert (result.kept, result.notes["removed"]) == (3, "0")
    rows = curated(root)
    assert {image_id: (row[C.TIER], row[C.BUCKET], row[C.WIDTH], row[C.HEIGHT]) for image_id, row in rows.items()} == {
        "a": (512, "1.000", 512, 512),
        "b": (512, "2.000", 704, 352),
        "keeper": (512, "1.286", 576, 448),
    }
    assert rows["keeper"][C.CAPTIONS] == [{"name": "alt", "text": "of keeper"}, {"name": "alt", "text": "of loser"}]
    failures = delta.read(spark, root, tables.REJECTS).where("stage = 'curate'").collect()
    assert [row[C.IMAGE_ID] for row in failures] == ["rotten"]
    assert failures[0][C.REASON]

    version = lance.version(root, CURATED)
    job.main(spark, lake)
    assert lance.version(root, CURATED) == version, "a repeat without its ledger row wrote again"

    # A stricter rule takes out what was kept; what was out comes in.
    delta.replace(table_frame(spark, tables.REJECTS, [reject("a")]), root, tables.REJECTS, where="stage = 'filter'")
    changed = job.main(spark, lake)
    assert changed.notes["removed"] == "1"
    assert sorted(curated(root)) == ["b", "c", "keeper"]


def test_captions_follow_the_duplicates_that_come_and_go(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    fill(spark, root)
    delta.replace(table_frame(spark, tables.DUPLICATES, []), root, tables.DUPLICATES)
    job.main(spark, lake)
    before = images_by_id(root)
    late = [duplicate("loser", "keeper"), duplicate("b", "a")]
    delta.replace(table_frame(spark, tables.DUPLICATES, late), root, tables.DUPLICATES)
    assert job.main(spark, lake).notes["captions_renewed"] == "2"
    texts = {image_id: [caption["text"] for caption in row[C.CAPTIONS]] for image_id, row in curated(root).items()}
    assert texts == {"a": ["of a", "of b"], "keeper": ["of keeper", "of loser"]}
    delta.replace(table_frame(spark, tables.DUPLICATES, late[:1]), root, tables.DUPLICATES)
    assert job.main(spark, lake).notes["captions_renewed"] == "1"
    assert [caption["text"] for caption in curated(root)["a"][C.CAPTIONS]] == ["of a"]
    after = images_by_id(root)
    assert {image_id: after[image_id] for image_id in ("a", "keeper")} == {image_id: before[image_id] for image_id in ("a", "keeper")}


def test_each_file_of_samples_is_a_task_of_its_own(spark: SparkSession, lake: Config) -> None:
    root = Path(lake.lake.root)
    for n in range(5):
        made = samples_frame(spark, [sample(f"{n}", image=jpeg_bytes(600, 600, n), width=600, height=600)]).coalesce(1)
        delta.append(made, root, tables.SAMPLES, batch=f"{n}")
    assert job.main(spark, lake).notes["fragments"] == "5"


def test_no_shuffle_carries_an_image(spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(lake.lake.root)
    fill(spark, root)
    plans: list[DataFrame] = []

    def note(*arguments: Any) -> tuple[list[str], list[Any]]:
        plans.append(arguments[-1])
        return [], []

    monkeypatch.setattr(job, "_curate", note)
    job.main(spark, lake)
    plan = plans[0].repartition(4, job.FILE)
    carried = exchanged_columns(plan)
    assert {C.IMAGE_ID, C.SHA256, job.FILE} <= carried, "the test no longer sees the exchanges"
    assert C.IMAGE not in carried
    assert "image:binary" not in executed_plan(plan)
    assert {Path(row[job.FILE]).suffix for row in plan.collect()} == {".parquet"}


def test_a_lake_without_samples_has_nothing_to_curate(spark: SparkSession, lake: Config) -> None:
    assert job.main(spark, lake).nothing_to_do
