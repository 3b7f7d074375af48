from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from imagelake import columns as C
from imagelake import corpus, lance, mds, releasediff
from imagelake.config import Config, ExportConfig
from imagelake.errors import GateError
from imagelake.releasediff import Side
from imagelake.tables import CURATED
from jobs import export as job
from tests.corpus_fixture import jpeg_bytes
from tests.lake_fixture import annotations, append_curated, curated, exchanged_columns, executed_plan

NAMES = ("alt", "seo")
COLUMNS = job.mds_columns(NAMES, "caption")
ROOM = 20_000
SAMPLES = (
    "tier int, bucket string, byte_size bigint, _rowaddr bigint, width int, height int, original_width int, original_height int, "
    "id string, source string, source_key string, license string, caption string, caption_alt string, caption_seo string"
)


def planned_sample(number: int, bucket: str = "1.000", tier: int = 512, **changes: Any) -> dict[str, Any]:
    row = {
        "tier": tier,
        "bucket": bucket,
        "byte_size": 1000 + (number * 7919) % 3000,
        "_rowaddr": number,
        "width": 512,
        "height": 512,
        "original_width": 600,
        "original_height": 600,
        "id": hashlib.sha256(f"{tier}/{bucket}/{number}".encode()).hexdigest()[:32],
        "source": "made",
        "source_key": f"{number}.jpg",
        "license": "",
        "caption": "ein Bild: Übung 図" * (number % 5),
        "caption_alt": "",
        "caption_seo": "x",
    }
    return row | changes


ROWS = [
    *(planned_sample(n) for n in range(60)),
    *(planned_sample(n, "2.000") for n in range(7)),
    *(planned_sample(n, tier=1024) for n in range(5)),
    *(planned_sample(n, "0.500", byte_size=50_000 if n == 3 else 900) for n in range(8)),
]


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(rows, SAMPLES)


def places(planned: DataFrame) -> dict[str, tuple[int, str, int, int]]:
    """id -> tier, bucket, shard, place."""
    rows = planned.collect()
    found = {row["id"]: (row["tier"], row["bucket"], row[job.SHARD], row[job.PLACE]) for row in rows}
    assert len(found) == len(rows), "a sample has two places"
    return found


@pytest.fixture(scope="module")
def plan(spark: SparkSession) -> dict[str, tuple[int, str, int, int]]:
    return places(job.plan(frame(spark, ROWS), COLUMNS, ROOM))


def members(plan: dict[str, tuple[int, str, int, int]]) -> dict[tuple[int, str, int], list[dict[str, Any]]]:
    """The samples of each shard, in the order of their places."""
    by_id = {row["id"]: row for row in ROWS}
    shards: dict[tuple[int, str, int], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for image_id, (tier, bucket, shard, place) in plan.items():
        shards[tier, bucket, shard].append((place, by_id[image_id]))
    return {shard: [row for _, row in sorted(found, key=lambda item: item[0])] for shard, found in shards.items()}


def shard_bytes(rows: list[dict[str, Any]]) -> int:
    def lengths(row: dict[str, Any]) -> dict[str, int]:
        return {name: len(row[name].encode()) for name in mds.variable_columns(COLUMNS) if name != "image"} | {"image": row["byte_size"]}

    return mds.shard_header_bytes(COLUMNS, ROOM) + sum(mds.sample_size(COLUMNS, lengths(row)) for row in rows)


def test_every_sample_has_one_place_in_its_own_bucket(plan: dict[str, tuple[int, str, int, int]]) -> None:
    assert {image_id: place[:2] for image_id, place in plan.items()} == {row["id"]: (row["tier"], row["bucket"]) for row in ROWS}


def test_shards_and_places_are_numbered_without_gaps(plan: dict[str, tuple[int, str, int, int]]) -> None:
    shards: dict[tuple[int, str], set[int]] = defaultdict(set)
    found: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for tier, bucket, shard, place in plan.values():
        shards[tier, bucket].add(shard)
        found[tier, bucket, shard].append(place)
    assert {bucket: sorted(numbers) for bucket, numbers in shards.items()} == {b: list(range(len(n))) for b, n in shards.items()}
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in found.values())


def test_a_shard_stays_within_the_limit_unless_one_sample_alone_does_not(plan: dict[str, tuple[int, str, int, int]]) -> None:
    sizes = {shard: (shard_bytes(rows), len(rows)) for shard, rows in members(plan).items()}
    assert max(size for shard, (size, _) in sizes.items() if shard[1] != "0.500") <= ROOM
    assert all(count == 1 for size, count in sizes.values() if size > ROOM)
    assert [count for size, count in sizes.values() if size > ROOM] == [1]


def test_the_planned_size_is_the_written_size(spark: SparkSession) -> None:
    rows = job.plan(frame(spark, ROWS), COLUMNS, ROOM).select("id", job.SIZE).collect()
    by_id = {row["id"]: row for row in ROWS}
    assert {row["id"]: row[job.SIZE] for row in rows} == {key: shard_bytes([row]) - shard_bytes([]) for key, row in by_id.items()}


def test_shards_are_filled(plan: dict[str, tuple[int, str, int, int]]) -> None:
    # 60 samples of some 2.6 kB: eight shards would do, one sample a shard would be allowed by the limit too.
    assert len({place[2] for place in plan.values() if place[:2] == (512, "1.000")}) <= 12


def test_samples_of_a_bucket_are_shuffled(plan: dict[str, tuple[int, str, int, int]]) -> None:
    order = [row["_rowaddr"] for shard, rows in sorted(members(plan).items()) if shard[:2] == (512, "1.000") for row in rows]
    assert sorted(order) == list(range(60))
    assert order != sorted(order)


def test_the_plan_depends_on_the_rows_alone(spark: SparkSession, plan: dict[str, tuple[int, str, int, int]]) -> None:
    assert places(job.plan(frame(spark, ROWS[::-1]).repartition(5), COLUMNS, ROOM)) == plan


def lake_rows() -> list[dict[str, Any]]:
    shapes = [(512, 512, "1.000"), (576, 448, "1.286")]
    rows = []
    for number in range(14):
        width, height, key = shapes[number % 2]
        data = jpeg_bytes(width, height, number)
        captions = [{"name": "alt", "text": f"own {number}"}, {"name": "seo", "text": "s"}, {"name": "alt", "text": "a loser's"}]
        rows.append(curated(f"{number:032x}", data, width=width, height=height, bucket=key, captions=captions if number else []))
    return rows


@pytest.fixture(scope="module")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A curated table of 14 real JPEGs in two buckets, three fragments, captioned but for one."""
    folder = tmp_path_factory.mktemp("lake")
    rows = lake_rows()
    append_curated(folder, rows, "one", fragments=3)
    ids = [row[C.IMAGE_ID] for row in rows]
    lance.set_columns(folder, CURATED, C.IMAGE_ID, annotations(ids, caption=[None, *(f"caption {n}" for n in range(1, 14))]))
    return folder


@pytest.fixture
def cfg(lake: Config, lake_folder: Path) -> Config:
    return lake.model_copy(
        update={"lake": lake.lake.model_copy(update={"root": str(lake_folder)}), "export": ExportConfig(shard_bytes=200_000)}
    )


def test_texts_are_never_null_and_the_first_of_a_name_is_exported(spark: SparkSession, lake_folder: Path) -> None:
    found = job.samples(job.curated_rows(spark, lake_folder, None), ["alt", "seo", "never"], "caption")
    rows = {int(row["id"], 16): row.asDict() for row in found.collect()}
    texts = [name for name, encoding in job.mds_columns(["alt", "seo", "never"], "caption").items() if encoding == "str"]
    assert all(isinstance(row[name], str) for row in rows.values() for name in texts)
    assert (rows[0]["caption"], rows[0]["caption_alt"], rows[0]["caption_never"]) == ("", "", "")
    assert (rows[3]["caption"], rows[3]["caption_alt"], rows[3]["caption_seo"]) == ("caption 3", "own 3", "s")


def test_a_table_without_captions_yet_can_be_exported(spark: SparkSession, lake_folder: Path) -> None:
    found = job.samples(job.curated_rows(spark, lake_folder, None).drop("caption"), [], "caption")
    assert {row["caption"] for row in found.collect()} == {""}


def test_no_shuffle_carries_an_image(spark: SparkSession, lake_folder: Path) -> None:
    columns = job.mds_columns(["alt"], "caption")
    planned = job.plan(job.samples(job.curated_rows(spark, lake_folder, None), ["alt"], "caption"), columns, 1 << 18)
    whole = planned.repartition(4, C.TIER, C.BUCKET, job.SHARD).sortWithinPartitions(C.TIER, C.BUCKET, job.SHARD, job.PLACE)
    carried = exchanged_columns(whole)
    assert {"id", C.TIER, "_rowaddr"} <= carried, "the test no longer sees the exchanges"
    assert C.IMAGE not in carried
    assert "image#" not in executed_plan(whole)


def corpus_files(root: Path) -> dict[str, bytes]:
    """Every file of the corpus but Spark's own marks, rows by their content."""
    import pyarrow.parquet as pq

    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and "rows" not in path.parts}
    for export in (root / corpus.ROWS).glob("*"):
        rows = pq.read_table(export).sort_by("image_id").to_pylist() if export.exists() else []
        found[f"rows/{export.name}"] = repr(rows).encode()
    return found


def check(root: Path, expected: set[str]) -> None:
    """Every expected image is in the corpus once, byte for byte, where rows/ says it is."""
    from streaming.base.format import reader_from_json

    stored = {row[C.IMAGE_ID]: row for row in lake_rows()}
    found = {}
    for name in corpus.published_buckets(root):
        folder = corpus.bucket_dir(root, *corpus.split_bucket(name))
        for entry in mds.read_index(folder):
            reader = reader_from_json(str(folder), None, entry)
            for index in range(len(reader)):
                value = reader.get_sample_data(index)
                decoded = reader.decode_sample(value)
                assert decoded["id"] not in found
                found[decoded["id"]] = (name, entry["raw_data"]["basename"], index)
                assert stored[decoded["id"]][C.IMAGE] in value
    assert set(found) == expected
    release = corpus.read_release(root)
    assert release.rows == len(expected)
    assert sum(bucket.rows for bucket in release.buckets.values()) == len(expected)


IDS = [row[C.IMAGE_ID] for row in lake_rows()]


def test_an_export_an_interruption_and_a_later_export(
    spark: SparkSession, cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(cfg.corpus.root)

    def crash(*_: object) -> None:
        raise RuntimeError("the power went out")

    with monkeypatch.context() as patched:
        patched.setattr(corpus, "write_release", crash)
        with pytest.raises(RuntimeError, match="power went out"):
            job.main(spark, cfg)
    assert corpus.published_buckets(root), "the crash came before the indexes"
    left = corpus_files(root)

    result = job.main(spark, cfg)
    assert (result.rows_in, result.kept) == (14, 14)
    after = corpus_files(root)
    assert {name: after[name] for name in left} == left
    assert set(after) - set(left) == {corpus.RELEASE}
    check(root, set(IDS))
    assert int(result.notes["shards"]) > 2

    assert job.main(spark, cfg).nothing_to_do

    # A later export of new pictures adds shards of its own, and leaves those that are there.
    lake_root = tmp_path / "grown"
    shutil.copytree(cfg.lake.root, lake_root)
    new = curated("f" * 32, jpeg_bytes(512, 512, 0), captions=[{"name": "unknown", "text": "a new name"}])
    append_curated(lake_root, [new], "two")
    grown = cfg.model_copy(update={"lake": cfg.lake.model_copy(update={"root": str(lake_root)})})
    later = job.main(spark, grown)
    assert (later.rows_in, later.notes["shards"]) == (1, "1")
    final = corpus_files(root)
    assert {name: final[name] for name in after if name.endswith(corpus.SHARD_SUFFIX)} == {
        name: data for name, data in after.items() if name.endswith(corpus.SHARD_SUFFIX)
    }
    assert corpus.read_release(root).exports[0] == result.notes["export"]
    assert corpus.read_release(root).rows == 15
    (former,) = (root / corpus.RELEASES).iterdir()
    assert former.read_bytes() == after[corpus.RELEASE], "the release that was is kept"

    # Another set of columns can't join a released corpus.
    renamed = grown.model_copy(update={"caption": grown.caption.model_copy(update={"column": "caption_vlm"})})
    with pytest.raises(GateError, match="the released corpus has columns"):
        job.main(spark, renamed)


def test_two_exports_tell_whose_captions_and_pictures_changed(spark: SparkSession, cfg: Config, tmp_path: Path) -> None:
    """By what rows/ records of each sample: the digests are the same where the texts and the original are."""
    job.main(spark, cfg)
    lake, later = tmp_path / "later", tmp_path / "later-corpus"
    shutil.copytree(cfg.lake.root, lake)
    lance.set_columns(lake, CURATED, C.IMAGE_ID, annotations([IDS[3]], caption=["another"]))
    lance.delete_ids(lake, CURATED, [IDS[4], IDS[5]])
    append_curated(lake, [lake_rows()[4] | {C.SHA256: "f" * 64}], "two")
    job.main(
        spark,
        cfg.model_copy(
            update={
                "lake": cfg.lake.model_copy(update={"root": str(lake)}),
                "corpus": cfg.corpus.model_copy(update={"root": str(later)}),
            }
        ),
    )
    found = releasediff.compare(Side.of(Path(cfg.corpus.root)), Side.of(later)).changes
    assert {kind: [entry["image_id"] for entry in change.first] for kind, change in found.items() if change.samples} == {
        "removed": [IDS[5]],
        "recaptioned": [IDS[3], IDS[4]],
        "repictured": [IDS[4]],
    }
    # The row that was added anew has no annotation.
    assert found["recaptioned"].why == {"caption": 2} and found["removed"].by_source == {"made": 1}


def test_required_captions_are_required(spark: SparkSession, cfg: Config) -> None:
    required = cfg.model_copy(update={"export": ExportConfig(captions_required=True)})
    with pytest.raises(GateError, match=f"no caption for {'0' * 32}$"):
        job.main(spark, required)
    assert not (Path(cfg.corpus.root) / corpus.RELEASE).exists()


def test_a_lake_without_pictures_has_nothing_to_export(spark: SparkSession, lake: Config) -> None:
    assert job.main(spark, lake).nothing_to_do
    lance.create(Path(lake.lake.root), CURATED)
    assert job.main(spark, lake).nothing_to_do
