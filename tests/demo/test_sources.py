"""The demo's sources: what they hold is what is promised of them, read by our readers and judged by our own facts."""

from __future__ import annotations

import filecmp
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo import sources
from demo.pictures import all_pictures
from imagelake import buckets
from imagelake.sources import Record, list_files, load_sources, plan_units, read_unit
from udfs.facts import Facts, image_facts

MAX_BYTES = 40_000_000
MIN_PIXELS = 384 * 384
REQUIRED_CASES = (
    "resized copy",
    "re-encoded copy, JPEG",
    "re-encoded copy, WebP",
    "re-encoded copy, PNG",
    "copy turned by EXIF",
    "exact copy in another source",
    "too small",
    "JPEG cut at half",
    "text file named .jpg",
    "SVG named .png",
    "grey JPEG",
    "16-bit grey PNG",
    "CMYK JPEG",
    "transparent PNG",
    "extreme ratio",
    "tar member twice",
    "flat picture",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    sources.make_sources(out)
    return out


@pytest.fixture(scope="module")
def expected(made: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((made / "expected.json").read_text(encoding="utf-8"))
    return rows


@pytest.fixture(scope="module")
def records(made: Path) -> dict[tuple[str, str], Record]:
    specs = load_sources(made / "sources.yaml")
    units = [(spec, unit) for spec in specs for unit in plan_units(spec, list_files(spec), 1 << 20)]
    return {(spec.name, record.source_key): record for spec, unit in units for record in read_unit(spec, unit)}


@pytest.fixture(scope="module")
def facts(records: dict[tuple[str, str], Record]) -> dict[tuple[str, str], Facts]:
    return {key: image_facts(record.image) for key, record in records.items() if record.image is not None}


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["source"], row["source_key"]


def test_two_runs_write_the_same_bytes_and_times(made: Path, tmp_path: Path) -> None:
    sources.make_sources(tmp_path)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(made, tmp_path, map(str, files), shallow=False)[1:] == ([], [])
    assert {(tmp_path / file).stat().st_mtime_ns for file in files} == {sources.MTIME_S * 10**9}
    assert sum((made / file).stat().st_size for file in files) < MAX_BYTES


def test_readers_find_each_promised_record_with_its_caption_and_no_other(
    expected: list[dict[str, Any]], records: dict[tuple[str, str], Record]
) -> None:
    assert len(expected) == len({row["name"] for row in expected}) >= 60
    assert sorted(records) == sorted(map(key, expected))
    assert {key: record.captions["alt"] for key, record in records.items()} == {key(row): row["caption"] for row in expected}


def test_every_kind_of_case_is_planted(expected: list[dict[str, Any]]) -> None:
    cases = [row["case"] for row in expected]
    assert [case for case in REQUIRED_CASES if not any(found.startswith(case) for found in cases)] == []
    assert Counter(row["source"] for row in expected).keys() == {"photos", "web", "hub"}


def test_defects_are_the_promised_ones(
    expected: list[dict[str, Any]], records: dict[tuple[str, str], Record], facts: dict[tuple[str, str], Facts]
) -> None:
    for row in expected:
        found = facts[key(row)].defect if key(row) in facts else records[key(row)].fault
        assert found == (row["reason"] if row["stage"] == "ingest" else None), row["name"]


def test_only_what_is_too_small_or_too_thin_is_rejected_by_the_filter(
    expected: list[dict[str, Any]], facts: dict[tuple[str, str], Facts]
) -> None:
    for row in (row for row in expected if row["stage"] != "ingest"):
        width, height = facts[key(row)].width, facts[key(row)].height
        assert width is not None and height is not None
        too_thin = max(width, height) > 2 * min(width, height)
        reason = "below_min_pixels" if width * height < MIN_PIXELS else "aspect_ratio" if too_thin else None
        assert reason == (row["reason"] if row["stage"] == "filter" else None), row["name"]


def test_a_duplicate_has_the_hash_of_its_keeper_and_ranks_below_it(
    expected: list[dict[str, Any]], facts: dict[tuple[str, str], Facts]
) -> None:
    duplicates = [row for row in expected if row["outcome"] == "duplicate"]
    assert len(duplicates) >= 6
    for row in duplicates:
        loser, keeper = facts[key(row)], facts[key(row["keeper"])]
        assert loser.phash is not None and loser.phash == keeper.phash, row["name"]
        assert (loser.sha256 == keeper.sha256) == (row["kind"] == "sha256"), row["name"]
        assert _rank(loser) <= _rank(keeper), row["name"]


def test_pictures_that_are_kept_are_no_copies_of_each_other(expected: list[dict[str, Any]], facts: dict[tuple[str, str], Facts]) -> None:
    kept = [facts[key(row)] for row in expected if row["outcome"] == "kept"]
    hashes = Counter((found.phash, found.phash_black) for found in kept if not found.is_flat)
    assert [pair for pair, count in hashes.items() if count > 1] == []
    assert max(Counter(found.sha256 for found in kept).values()) == 1
    assert sum(bool(found.is_flat) for found in kept) == 2


def test_kept_pictures_fill_most_shapes_and_two_tiers(expected: list[dict[str, Any]], facts: dict[tuple[str, str], Facts]) -> None:
    sizes = np.array([(facts[key(row)].width, facts[key(row)].height) for row in expected if row["outcome"] == "kept"], np.int64)
    tier, width, height, in_range = buckets.assign(sizes[:, 0], sizes[:, 1])
    assert in_range.all()
    assert set(tier.tolist()) == {512, 1024}
    assert len({(t, w, h) for t, w, h in zip(tier, width, height, strict=True) if t == 512}) >= 11


def test_every_picture_is_described_by_a_sentence() -> None:
    short = [picture.name for picture in all_pictures().values() if len(picture.caption) < 60 or not picture.caption.endswith(".")]
    assert short == []


def _rank(found: Facts) -> tuple[int, int]:
    return (found.width or 0) * (found.height or 0), found.byte_size
