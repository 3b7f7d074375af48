from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from imagelake import bucketplan, mds, skiplist
from imagelake.buckets import shapes
from imagelake.cli import app
from imagelake.corpus import bucket_dir
from imagelake.errors import ConfigError
from imagelake.loader import CorpusDataset
from imagelake.skiplist import SkipList
from tests import corpus_fixture
from tests.lake_fixture import append_curated, curated


def made(seed: int) -> dict[str, int]:
    """Samples of some buckets of two tiers, many of them few."""
    rng = random.Random(seed)
    names = [f"{tier}/{shape.key}" for tier in (512, 1024) for shape in shapes(tier)]
    return {name: rng.choice([0, 1, rng.randrange(60), rng.randrange(5000)]) for name in sorted(rng.sample(names, 12))}


def test_what_fills_no_batch_and_what_fills_one_for_each_rank() -> None:
    plan = bucketplan.plan({"512/1.000": 100, "512/1.286": 31, "512/0.500": 7, "1024/1.000": 33}, batch_size=8, world_size=4)
    told = {stream.name: (stream.batches, stream.left_over, stream.verdict) for stream in plan.streams}
    assert told == {
        "512/1.000": (12, 4, "enough"),
        "512/1.286": (3, 7, "thin"),
        "512/0.500": (0, 7, "never"),
        "1024/1.000": (4, 1, "enough"),
    }
    assert (plan.steps, plan.seen, plan.chosen) == (4, 128, 171)
    assert plan.to_add == {"512/1.286": 1, "512/0.500": 25}
    assert [(merge.source, merge.target, merge.chosen) for merge in plan.merges] == [
        ("512/0.500", "512/1.000", 107),
        ("512/1.286", "512/1.000", 138),
    ]
    assert [round(merge.cropped, 2) for merge in plan.merges] == [0.5, 0.22]


@pytest.mark.parametrize("seed", range(50))
def test_what_is_proposed_does_it(seed: int) -> None:
    rows, rng = made(seed), random.Random(seed)
    if not any(rows.values()):
        rows["512/1.000"] = 5
    batch_size, world_size = rng.choice([1, 4, 32]), rng.choice([1, 8])
    plan = bucketplan.plan(rows, batch_size=batch_size, world_size=world_size)
    added = {name: count + plan.to_add.get(name, 0) for name, count in rows.items() if count}
    for better in (
        bucketplan.plan(added, batch_size=batch_size, world_size=world_size),
        bucketplan.plan(rows, batch_size=batch_size, world_size=world_size, epoch_size=plan.smallest),
    ):
        assert {stream.verdict for stream in better.streams} == {"enough"} and not better.merges
    if plan.to_add:
        fewer = bucketplan.plan(rows, batch_size=batch_size, world_size=world_size, epoch_size=plan.smallest * 9 // 10)
        assert {stream.verdict for stream in fewer.streams} != {"enough"}
    merged = {stream.name: stream.chosen for stream in plan.streams}
    for merge in plan.merges:
        assert merge.source.split("/")[0] == merge.target.split("/")[0]
        merged[merge.target] += merged.pop(merge.source)  # each is there once, and what was given away takes nothing
        assert merged[merge.target] == merge.chosen
    assert sum(merged.values()) == plan.chosen


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    corpus_fixture.make_corpus(tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.mark.usefixtures("closed_datasets")
@pytest.mark.parametrize("weights", [None, {"512": 3.0, "1024/1.000": 1.0}])
def test_the_loader_yields_what_the_plan_says(corpus: Path, weights: dict[str, float] | None) -> None:
    dataset = CorpusDataset(corpus, batch_size=4, batching_method="chunked", weights=weights, epoch_size=40 if weights else None)
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=list))
    yielded = Counter(f"{batch[0]['width']}x{batch[0]['height']}" for batch in batches)
    release_rows = {name: bucket.rows for name, bucket in dataset.release.buckets.items()}
    plan = bucketplan.plan(release_rows, batch_size=4, weights=weights, epoch_size=40 if weights else None)
    sizes = {name: "x".join(map(str, shape)) for name, shape in corpus_fixture.SHAPES.items()}
    assert yielded == {sizes[stream.name]: stream.batches for stream in plan.streams}


def asked(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", *words])
    return done.exit_code, done.stdout, done.stderr


def test_a_corpus_is_counted_without_what_is_skipped(corpus: Path) -> None:
    code, out, _ = asked(str(corpus), "--batch-size", "7", "--world-size", "2", "--json")
    assert code == 0
    before = {stream["name"]: stream["samples"] for stream in json.loads(out)["streams"]}
    assert before == corpus_fixture.ROWS
    entry = mds.read_index(bucket_dir(corpus, 512, "1.000"))[0]
    skipped = SkipList(entry["samples"], entry["raw_data"]["bytes"], 1, np.array([0, 2]))
    lists = {f"512/1.000/{entry['raw_data']['basename']}": skipped}
    skiplist.publish(corpus, skiplist.write_pack(corpus, lists))
    code, out, _ = asked(str(corpus), "--batch-size", "7", "--world-size", "2")
    assert code == 0
    assert "12" in next(line for line in out.splitlines() if "512/1.000" in line)
    assert "merge 512/1.286 into 512/1.000" in out and "an epoch of" in out


def test_before_an_export_what_is_curated_is_counted(tmp_path: Path) -> None:
    append_curated(tmp_path, [curated(f"id{n}", width=512, bucket="1.000") for n in range(9)], "one")
    code, out, _ = asked("--set", f"lake.root={tmp_path}", "--set", f"corpus.root={tmp_path / 'none'}", "--batch-size", "4", "--json")
    assert code == 0
    (stream,) = json.loads(out)["streams"]
    assert (stream["name"], stream["samples"], stream["batches"]) == ("512/1.000", 9, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mix", "512"), "--mix 512: expected TIER=WEIGHT"),
        (("--mix", "2048=1"), "names no selected tier"),
        (("--mix", "512=1"), "none for 1024/1.000"),
    ],
)
def test_a_mistake_is_one_line(corpus: Path, words: tuple[str, ...], message: str) -> None:
    code, _, told = asked(str(corpus), *words)
    assert code == 2 and message in told and len(told.splitlines()) == 1


def test_nothing_to_count_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no samples are selected"):
        bucketplan.plan({"512/1.000": 0}, batch_size=1)
    code, _, told = asked("--set", f"lake.root={tmp_path}", "--set", f"corpus.root={tmp_path / 'none'}")
    assert code == 2 and "no curated pictures yet" in told
