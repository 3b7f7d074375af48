"""What is said to differ between two releases, on corpora that differ in a known way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from imagelake import corpus, delta, releasediff, tables
from imagelake.cli import app
from imagelake.config import Config
from imagelake.errors import ConfigError
from imagelake.releasediff import Change, Parts, Side
from tests.corpus_fixture import EXPORTS, ROWS, jpeg_bytes, make_corpus, sample, skip
from tests.lake_fixture import table_frame

SQUARE, WIDE, LARGE = ROWS


def id_of(bucket: str, number: int) -> str:
    return str(sample(bucket, number, image=b"")["id"])


def new_id(number: int) -> str:
    return f"{number:x}" * 32


# Of the second corpus: two that went, one of them for another record; one that moved to another bucket; one with other texts, and one
# with one other text; one with another picture.
CHANGES: dict[tuple[str, int], dict[str, Any]] = {
    (SQUARE, 0): {"id": new_id(1), "source": "late"},
    (SQUARE, 1): {"id": new_id(2)},
    (SQUARE, 2): {"caption": "new", "caption_alt": "new"},
    (SQUARE, 3): {"caption_alt": "new"},
    (SQUARE, 4): {"image": jpeg_bytes(512, 512, 99)},
    (WIDE, 0): {"id": id_of(LARGE, 0)},
    (LARGE, 0): {"id": new_id(3), "source": "late"},
}
GONE = sorted([id_of(SQUARE, 0), id_of(SQUARE, 1), id_of(WIDE, 0)])


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpora")
    make_corpus(folder / "a")
    make_corpus(folder / "b", CHANGES)
    return folder / "a", folder / "b"


def changes(a: Path, b: Path, **options: Any) -> dict[str, Change]:
    found = releasediff.compare(Side.of(a), Side.of(b), **options).changes
    return {kind: change for kind, change in found.items() if change.samples}


@pytest.mark.parametrize("rows_at_once", [1000, 3])
def test_each_kind_of_change_is_counted_and_named(roots: tuple[Path, Path], rows_at_once: int) -> None:
    found = changes(*roots, rows_at_once=rows_at_once)
    assert {kind: change.samples for kind, change in found.items()} == {
        "added": 3, "removed": 3, "recaptioned": 3, "repictured": 2, "rebucketed": 1,
    }  # fmt: skip
    assert found["added"].by_source == {"late": 2, "made": 1}
    assert found["added"].first == [{"image_id": new_id(number), "source": "made" if number == 2 else "late"} for number in (1, 2, 3)]
    assert [entry["image_id"] for entry in found["removed"].first] == GONE
    assert found["removed"].why == {"unknown": 3}
    assert found["rebucketed"].first == [{"image_id": id_of(LARGE, 0), "source": "made", "why": ["1024/1.000 → 512/1.286"]}]
    # The one that moved has the texts and the picture of the one whose place it took.
    assert found["recaptioned"].why == {"caption": 2, "caption_alt": 2}
    assert {entry["image_id"]: sorted(entry["why"]) for entry in found["recaptioned"].first} == {
        id_of(SQUARE, 2): ["caption", "caption_alt"],
        id_of(SQUARE, 3): ["caption_alt"],
        id_of(LARGE, 0): ["caption"],
    }
    assert {entry["image_id"] for entry in found["repictured"].first} == {id_of(SQUARE, 4), id_of(LARGE, 0)}


def test_the_same_twice_differs_in_nothing(roots: tuple[Path, Path]) -> None:
    assert changes(roots[0], roots[0]) == {}
    text = releasediff.to_text(releasediff.compare(Side.of(roots[0]), Side.of(roots[0])))
    assert "no sample differs" in text


def test_the_first_samples_are_the_first_of_all_slices(roots: tuple[Path, Path]) -> None:
    found = changes(*roots, rows_at_once=2, first=2)
    assert [entry["image_id"] for entry in found["removed"].first] == GONE[:2]
    assert found["removed"].samples == 3


def test_parts_hold_each_row_once(roots: tuple[Path, Path], tmp_path: Path) -> None:
    scan = Side.of(roots[0]).rows(["caption"])
    whole = Parts(scan, 0, tmp_path / "0").read("").sort_by("image_id")
    assert len(whole) == 26 and whole["caption"].null_count == 0
    for digits in (1, 2):
        parts = Parts(scan, digits, tmp_path / str(digits))
        read = [parts.read(prefix) for prefix in sorted(parts.prefixes)]
        assert len(read) > 5 and max(map(len, read)) < 26
        assert pa.concat_tables(part.sort_by("image_id") for part in read).equals(whole)
        assert parts.read("none").equals(whole.slice(0, 0))


@pytest.mark.parametrize("rows_at_once", [1000, 2])
def test_removed_samples_have_the_reasons_of_the_lake_and_of_the_lists(
    spark: SparkSession, lake: Config, roots: tuple[Path, Path], tmp_path: Path, rows_at_once: int
) -> None:
    root = Path(lake.lake.root)
    make_corpus(tmp_path / "a")
    one, two, three = GONE
    skip(tmp_path / "a", {three: ["tiny"], one: ["superseded"]})
    loser = [{"image_id": one, "keeper_id": two, "kind": "phash", "distance": 0}, {"image_id": "0", "keeper_id": two, "kind": "phash"}]
    delta.append(table_frame(spark, tables.DUPLICATES, loser), root, tables.DUPLICATES, batch="d")
    rules = [(one, "filter", "license"), (id_of(SQUARE, 5), "filter", "license"), (two, "curate", "truncated")]
    rejects = [{"image_id": record, "stage": stage, "reason": reason} for record, stage, reason in rules]
    delta.append(table_frame(spark, tables.REJECTS, rejects), root, tables.REJECTS, batch="r")

    found = changes(tmp_path / "a", roots[1], lake=root, rows_at_once=rows_at_once)["removed"]
    assert (found.samples, found.why) == (3, {"superseded": 1, "filter:license": 1, "curate:truncated": 1, "tiny": 1})
    assert {entry["image_id"]: sorted(entry["why"]) for entry in found.first} == {
        one: ["filter:license", "superseded"], two: ["curate:truncated"], three: ["tiny"],
    }  # fmt: skip
    assert changes(tmp_path / "a", roots[1])["removed"].why == {"superseded": 1, "tiny": 1, "unknown": 1}


def test_what_was_skipped_and_shown_again_between_two_generations(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    ids = [id_of(SQUARE, number) for number in range(4)]
    first = skip(tmp_path, {ids[0]: ["tiny"], ids[1]: ["tiny", "old"], ids[2]: ["old"]})
    second = skip(tmp_path, {ids[2]: ["old", "tiny"], ids[3]: ["grey"]}, generation=2)
    a, b = Side.of(tmp_path, first), Side.of(tmp_path, second)
    found = {kind: change for kind, change in releasediff.compare(a, b).changes.items() if change.samples}
    assert {kind: (change.samples, dict(change.why), dict(change.by_source)) for kind, change in found.items()} == {
        "skipped": (1, {"grey": 1}, {"made": 1}),
        "unskipped": (2, {"tiny": 2, "old": 1}, {"made": 2}),
    }
    assert changes(tmp_path, tmp_path) == {}
    assert releasediff.compare(Side.of(tmp_path, None), b).changes["skipped"].samples == 2


def test_a_release_that_was_is_kept_and_can_be_compared(tmp_path: Path) -> None:
    whole = make_corpus(tmp_path)
    buckets = {name: bucket.model_copy(update={"rows": ROWS[name] // 2}) for name, bucket in whole.buckets.items()}
    earlier = whole.model_copy(update={"exports": EXPORTS[:1], "rows": 13 - 1, "buckets": buckets})
    corpus.write_release(tmp_path, earlier)
    corpus.write_release(tmp_path, whole)
    corpus.write_release(tmp_path, whole)
    kept = sorted(path.name for path in (tmp_path / "releases").iterdir())
    assert kept == [f"00001-{earlier.digest()}.release", f"00002-{whole.release}.release"]
    found = changes(tmp_path / "releases" / kept[0], tmp_path / "release.json")
    assert list(found) == ["added"] and found["added"].samples == 7 + 4 + 3
    assert list(changes(tmp_path, tmp_path / "releases" / kept[0])) == ["removed"]


def test_a_release_away_from_its_corpus_is_refused(roots: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "release.json").write_bytes((roots[0] / "release.json").read_bytes())
    with pytest.raises(ConfigError, match="has no rows of export export_a: name the release where it lies, in its corpus"):
        Side.of(tmp_path / "release.json")


def test_rows_of_an_older_export_are_compared_by_what_they_have(roots: tuple[Path, Path], tmp_path: Path) -> None:
    make_corpus(tmp_path)
    for export in EXPORTS:
        path = corpus.rows_path(tmp_path, export)
        pq.write_table(pq.read_table(path).select(corpus.ROWS_SCHEMA.names), path)
    found = releasediff.compare(Side.of(tmp_path), Side.of(roots[1]))
    assert {kind: change.samples for kind, change in found.changes.items() if change.samples} == {"added": 3, "removed": 3, "rebucketed": 1}
    assert found.changes["removed"].by_source == {"unknown": 3}
    assert found.uncompared == 23
    assert "captions of 23 samples were not compared" in releasediff.to_text(found)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["diff", *words])


def test_the_command_prints_json_and_text(roots: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = map(str, roots)
    value = json.loads(call(a, b, "--json", "--set", f"lake.root={tmp_path / 'none'}").stdout)
    assert value["lake"] is None
    assert [side["path"] for side in value["releases"]] == [a, b]
    assert value["releases"][0]["created_from"] == {"curated": 3} and value["releases"][0]["samples"] == 26
    assert value["changes"]["removed"] == {
        "samples": 3, "by_source": {"made": 3}, "why": {"unknown": 3},
        "first": [{"image_id": record, "source": "made", "why": ["unknown"]} for record in GONE],
    }  # fmt: skip
    text = call(a, b).stdout
    assert "added 3\n   by source: late 2, made 1\n" in text
    assert f"rebucketed 1\n   by source: made 1\n   why: 1024/1.000 → 512/1.286 1\n   {id_of(LARGE, 0)}, made" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("/nowhere", "{a}"), "/nowhere: no such folder"),
        (("{a}/512", "{a}"), "not a corpus"),
        (("{a}", "{a}/512/1.000/index.json"), "not a release"),
        (("{a}", "{a}", "--skips-a", "f00d"), "has no generation 'f00d'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(roots: tuple[Path, Path], words: tuple[str, ...], told: str) -> None:
    done = call(*(word.format(a=roots[0]) for word in words))
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert told in line
