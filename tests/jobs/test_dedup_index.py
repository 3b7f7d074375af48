"""dedup over its index: batch by batch the same as all at once, whatever is interrupted, and without moving what is indexed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from imagelake import columns as C
from imagelake import delta, hashindex, runner, tables
from imagelake.config import Config
from imagelake.stages import stage
from jobs import dedup as job
from tests.lake_fixture import executed_plan, sample, samples_frame, table_frame

Rows = list[dict[str, Any]]
Losers = dict[str, tuple[Any, ...]]


def pictures(seed: int, count: int = 120) -> Rows:
    """Rows of which many share bytes or a picture; some are flat, some transparent, some of a source that was deduplicated."""
    rng = random.Random(seed)
    rows: Rows = []
    for n in range(count):
        picture = rng.randrange(count // 2)
        apart = rng.random() < 0.3
        row = sample(f"id{n:04d}", phash=picture - 20, width=rng.choice([600, 800, 1000]), byte_size=rng.choice([1000, 2000]))
        row |= {C.SHA256: f"{picture:032x}{rng.randrange(2):032x}"} if rng.random() < 0.5 else {}
        row |= {C.SOURCE: "clean", C.TRUST: ["deduplicated"]} if apart else {}
        # Facts of bytes: the same for the same sha256.
        same_bytes = next((known for known in rows if known[C.SHA256] == row[C.SHA256]), None)
        row |= {C.IS_FLAT: picture % 7 == 0, C.PHASH_BLACK: picture if picture % 5 == 0 else None}
        if same_bytes is not None:
            row |= {name: same_bytes[name] for name in (C.PHASH, C.PHASH_BLACK, C.IS_FLAT, C.WIDTH, C.BYTE_SIZE)}
        rows.append(row)
    return rows


def brute_force(rows: Rows) -> Losers:
    """image_id -> (keeper, kind), by comparing everything with everything."""

    def picture(row: dict[str, Any]) -> Any:
        black = row[C.PHASH] if row[C.PHASH_BLACK] is None else row[C.PHASH_BLACK]
        return row[C.SHA256] if row[C.IS_FLAT] else (row[C.PHASH], black)

    def rank(row: dict[str, Any]) -> Any:
        return -row[C.WIDTH] * row[C.HEIGHT], -row[C.BYTE_SIZE], row[C.SHA256], row[C.IMAGE_ID]

    found: Losers = {}
    for row in rows:
        keeper = min((other for other in rows if picture(other) == picture(row)), key=rank)
        apart = "deduplicated" in row[C.TRUST] and keeper[C.SOURCE] == row[C.SOURCE]
        if keeper is not row and not apart:
            found[row[C.IMAGE_ID]] = (keeper[C.IMAGE_ID], "sha256" if keeper[C.SHA256] == row[C.SHA256] else "phash")
    return found


def add(spark: SparkSession, cfg: Config, rows: Rows, batch: str) -> None:
    """What ingest and filter leave of a batch."""
    frame = samples_frame(spark, [row | {C.INGEST_RUN: batch} for row in rows]).coalesce(1)
    delta.append(frame, Path(cfg.lake.root), tables.SAMPLES, batch=batch)
    runner.execute(stage("filter"), cfg, spark)


def dedup(spark: SparkSession, cfg: Config) -> Losers:
    result = runner.execute(stage("dedup"), cfg, spark)
    found = losers(spark, cfg)
    if not result.nothing_to_do:
        assert (result.rows_in - result.kept, sum(result.rejected.values())) == (len(found), len(found))
    return found


def losers(spark: SparkSession, cfg: Config) -> Losers:
    rows = delta.read(spark, Path(cfg.lake.root), tables.DUPLICATES).collect()
    assert len({row[C.IMAGE_ID] for row in rows}) == len(rows), "a loser stands twice"
    return {row[C.IMAGE_ID]: (row[C.KEEPER_ID], row[C.KIND]) for row in rows}


@pytest.fixture
def rebuilds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that everything is judged."""
    seen: list[str] = []
    rebuild = job.rebuild

    def counted(*args: Any) -> Any:
        seen.append("rebuild")
        return rebuild(*args)

    monkeypatch.setattr(job, "rebuild", counted)
    return seen


def split(rows: Rows, seed: int, parts: int) -> list[Rows]:
    rng = random.Random(seed)
    shuffled = rng.sample(rows, len(rows))
    cuts = sorted(rng.sample(range(1, len(rows)), parts - 1))
    return [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.mark.parametrize("seed", [1])
def test_batch_by_batch_the_result_is_that_of_all_at_once(spark: SparkSession, lake: Config, rebuilds: list[str], seed: int) -> None:
    rows = pictures(seed)
    seen: Rows = []
    for number, part in enumerate(split(rows, seed, 3)):
        seen += part
        add(spark, lake, part, f"batch {number}")
        assert dedup(spark, lake) == brute_force(seen)
    assert rebuilds == ["rebuild"]
    index = hashindex.current(Path(lake.lake.root))
    assert index is not None and (len(index.folders), index.rows) == (3, len(rows))
    compacted = hashindex.compact(spark, Path(lake.lake.root))
    assert compacted is not None and (len(compacted.folders), compacted.rows) == (1, len(rows))
    assert hashindex.compact(spark, Path(lake.lake.root)) is None
    better = sample("late", phash=5 - 20, width=1100, source="other", phash_black=5)
    add(spark, lake, [better], "late")
    assert dedup(spark, lake) == brute_force([*rows, better])
    assert rebuilds == ["rebuild"]


def test_a_better_copy_that_comes_later_becomes_the_keeper_of_all(spark: SparkSession, lake: Config) -> None:
    rows = [sample("a", phash=1, width=900), sample("b", phash=1), sample("other", phash=2, width=900), sample("other copy", phash=2)]
    add(spark, lake, rows, "one")
    assert dedup(spark, lake) == {"b": ("a", "phash"), "other copy": ("other", "phash")}
    add(spark, lake, [sample("best", phash=1, width=1000)], "two")
    found = dedup(spark, lake)
    assert (found["a"], found["b"]) == (("best", "phash"), ("best", "phash"))
    untouched = delta.read(spark, Path(lake.lake.root), tables.DUPLICATES).where("group_id = 'phash-1-0000000000000002'").collect()
    touched = delta.read(spark, Path(lake.lake.root), tables.DUPLICATES).where("keeper_id = 'best'").collect()
    assert {row[C.RUN_ID] for row in untouched}.isdisjoint({row[C.RUN_ID] for row in touched})


@pytest.mark.parametrize("step", ["write", "upsert", "commit"])
def test_an_interrupted_batch_is_judged_again_and_its_dead_folder_is_not_seen(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    rows = pictures(4)
    add(spark, lake, rows[:80], "one")
    dedup(spark, lake)
    add(spark, lake, rows[80:], "two")
    with monkeypatch.context() as patch:
        module: Any = delta if step == "upsert" else hashindex
        real = getattr(module, step)

        def killed(*args: Any) -> None:
            if step != "commit":
                real(*args)
            raise KeyboardInterrupt

        patch.setattr(module, step, killed)
        with pytest.raises(KeyboardInterrupt):
            dedup(spark, lake)
    assert dedup(spark, lake) == brute_force(rows)
    root = Path(lake.lake.root)
    index = hashindex.current(root)
    assert index is not None and index.rows == len(rows)
    assert not hashindex.orphans(root)  # a run might still be writing it
    (dead,) = hashindex.orphans(root, older_than_seconds=0)
    assert {path.name for path in (root / hashindex.FOLDER).glob("part-*")} - {dead.name} == set(index.folders)


def changed(cfg: Config, **sections: dict[str, Any]) -> Config:
    return cfg.model_copy(update={name: getattr(cfg, name).model_copy(update=values) for name, values in sections.items()})


def test_everything_is_judged_again_where_the_index_does_not_fit(spark: SparkSession, lake: Config, rebuilds: list[str]) -> None:
    rows = [sample("a", phash=1, width=1100), sample("b", phash=1), sample("c", phash=1, width=700)]
    add(spark, lake, rows, "one")
    dedup(spark, lake)
    # another rule of the filter
    strict = changed(lake, filter={"where": {"wide": "width > 1000"}})
    add(spark, strict, [sample("d", phash=9)], "two")
    assert dedup(spark, strict) == {"c": ("b", "phash")}
    assert len(rebuilds) == 2
    # a later stage rejected the keeper
    root = Path(lake.lake.root)
    delta.append(table_frame(spark, tables.REJECTS, [{"image_id": "b", "stage": "curate", "reason": "x"}]), root, tables.REJECTS, batch="x")
    assert dedup(spark, strict) == {}
    assert len(rebuilds) == 3
    # the filter has not seen the newest samples
    delta.append(samples_frame(spark, [sample("e", phash=1, ingest_run="three")]), root, tables.SAMPLES, batch="three")
    assert dedup(spark, strict) == {"c": ("e", "phash")}
    assert len(rebuilds) == 4
    # hashes of another version
    add(spark, strict, [sample("f", phash=1, phash_version=2), sample("g", phash=1, width=900, phash_version=2)], "four")
    assert dedup(spark, strict) == {"c": ("e", "phash"), "f": ("g", "phash")}
    assert len(rebuilds) == 5
    # only equal bytes
    assert dedup(spark, changed(strict, dedup={"perceptual": False})) == {}
    assert len(rebuilds) == 6


def test_near_pictures_are_duplicates_within_max_distance_only(spark: SparkSession, lake: Config) -> None:
    rows = [sample("a", phash=0b0, width=1100), sample("b", phash=0b11, width=1000), sample("c", phash=0b1111, width=900)]
    rows += [sample("b copy", phash=0b11), sample("far", phash=-1), sample("flat", phash=0b1, is_flat=True)]
    add(spark, lake, rows, "one")
    assert dedup(spark, lake) == {"b copy": ("b", "phash")}
    near = changed(lake, dedup={"max_distance": 2})
    # c is near b, which is lost to a; it is not near a
    assert dedup(spark, near) == {"b": ("a", "phash"), "b copy": ("a", "phash")}
    found = {row[C.IMAGE_ID]: row for row in delta.read(spark, Path(lake.lake.root), tables.DUPLICATES).collect()}
    assert {name: (row[C.DISTANCE], row[C.GROUP_ID]) for name, row in found.items()} == {
        "b": (2, "phash-1-0000000000000000"),
        "b copy": (2, "phash-1-0000000000000000"),
    }
    assert dedup(spark, changed(lake, dedup={"max_distance": 4})) == {name: ("a", "phash") for name in ("b", "b copy", "c")}


def index_scans(plan: str) -> list[str]:
    return [block for block in plan.split("\n\n") if re.match(r"\s*\(\d+\) Scan parquet", block) and "picture_index" in block]


def test_no_exchange_lies_above_the_index(spark: SparkSession, lake: Config) -> None:
    """Neither when it is grouped nor when a batch joins it; what is exchanged then are the members of the groups that were met."""
    rows = pictures(5)
    add(spark, lake, rows[:100], "one")
    dedup(spark, lake)
    root = Path(lake.lake.root)
    index = hashindex.current(root)
    assert index is not None
    old = hashindex.frame(spark, root, index.folders, index.buckets)
    whole = executed_plan(job.duplicates(old))
    assert len(index_scans(whole)) == 2 and all("Bucketed: true" in block for block in index_scans(whole))
    assert "Exchange" not in whole
    members = job.members_of(job.candidates(samples_frame(spark, rows[100:]), table_frame(spark, tables.REJECTS, [])))
    added = hashindex.frame(spark, root, [hashindex.write(members, root, index.buckets)], index.buckets)
    met = executed_plan(job.touched(old, added))
    # The third is that of the batch itself, whose rows are only added.
    assert ["Bucketed: true" in block for block in index_scans(met)] == [True, True, False]
    assert "Exchange" not in met
    assert "image:binary" not in whole + met
