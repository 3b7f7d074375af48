"""The demo from sources to a verified corpus: every planted case ends where it must, and repeats change nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

from imagelake.corpus import read_release
from imagelake.paths import PROJECT

from .conftest import Chain, content, environment, rows, shard_digests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTCOMES = """
SELECT samples.source, samples.source_key, samples.image_id,
  max(curated.image_id) IS NOT NULL AS kept,
  max(struct(keeper.source, keeper.source_key, duplicates.kind)) AS lost_to,
  sort_array(collect_set(struct(rejects.stage, rejects.reason))) AS rejected
FROM samples
LEFT JOIN curated ON curated.image_id = samples.image_id
LEFT JOIN duplicates ON duplicates.image_id = samples.image_id
LEFT JOIN samples AS keeper ON keeper.image_id = duplicates.keeper_id
LEFT JOIN rejects ON rejects.image_id = samples.image_id
GROUP BY ALL
"""


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession, demo: Chain) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["source"], row["source_key"]): row for row in rows(spark, demo.cfg, OUTCOMES)}


def test_every_planted_case_ends_where_it_must(outcomes: dict[tuple[str, str], dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    keys = {case["name"]: (case["source"], case["source_key"]) for case in expected}
    wrong = []
    for case in expected:
        seen = outcomes[keys[case["name"]]]
        rejected = {(reason["stage"], reason["reason"]) for reason in seen["rejected"] if reason["stage"]}
        lost_to = seen["lost_to"]
        if case["outcome"] == "kept":
            right = seen["kept"] and not rejected and not (lost_to and lost_to["kind"])
        elif case["outcome"] == "duplicate":
            keeper = {name: case["keeper"][name] for name in ("source", "source_key")}
            right = not seen["kept"] and lost_to == keeper | {"kind": case["kind"]}
        else:
            right = not seen["kept"] and (case["stage"], case["reason"]) in rejected
        if not right:
            wrong.append((case["name"], case["outcome"], case["reason"], seen))
    assert not wrong
    assert {case["outcome"] for case in expected} == {"kept", "duplicate", "rejected"}


def test_the_lake_holds_the_expected_samples_and_no_others(
    outcomes: dict[tuple[str, str], dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert set(outcomes) == {(case["source"], case["source_key"]) for case in expected}


def test_the_corpus_holds_each_kept_picture_once(spark: SparkSession, demo: Chain, expected: list[dict[str, Any]]) -> None:
    placed = Counter(row["image_id"] for row in rows(spark, demo.cfg, "SELECT image_id FROM corpus_rows"))
    assert set(placed.values()) == {1}
    assert len(placed) == sum(case["outcome"] == "kept" for case in expected) == read_release(demo.corpus).rows


def test_losers_captions_are_united_into_the_keepers(spark: SparkSession, demo: Chain, expected: list[dict[str, Any]]) -> None:
    texts = {row["source_key"]: {entry["text"] for entry in row["captions"]} for row in rows(spark, demo.cfg, "SELECT * FROM curated")}
    losers = [case for case in expected if case["outcome"] == "duplicate" and case["caption"]]
    assert losers
    assert all(case["caption"] in texts[case["keeper"]["source_key"]] for case in losers)


def test_every_stage_left_a_ledger_row_that_adds_up(demo: Chain) -> None:
    first = {row["stage"]: row for row in reversed(demo.ledger()) if row["status"] == "ok"}
    assert set(first) == {"ingest", "filter", "dedup", "curate", "caption", "annotate", "index", "export", "skips", "verify"}
    assert len({row["config_digest"] for row in first.values()}) == 1
    for stage in ("ingest", "dedup", "curate", "caption"):
        assert first[stage]["rows_in"] == first[stage]["kept"] + sum(first[stage]["rejected"].values()), stage


def test_the_corpus_verifies_and_a_flipped_byte_is_named(demo: Chain, tmp_path: Path) -> None:
    good = demo.call("verify", str(demo.corpus), "--json")
    assert good.returncode == 0 and not json.loads(good.stdout)["faults"]
    subprocess.run(["cp", "-r", str(demo.corpus), str(tmp_path / "copy")], check=True)
    shard = sorted((tmp_path / "copy").rglob("*.mds"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    bad = demo.call("verify", str(tmp_path / "copy"))
    assert bad.returncode == 3
    assert shard.name in bad.stdout + bad.stderr


def test_a_second_run_changes_nothing_and_says_so(demo: Chain) -> None:
    before, shards = content(demo.cfg), shard_digests(demo.corpus)
    release = (demo.corpus / "release.json").read_bytes()
    again = demo.run()
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.stdout.count("nothing to do") == 10
    assert (demo.corpus / "release.json").read_bytes() == release
    assert content(demo.cfg) == before and shard_digests(demo.corpus) == shards


def test_known_pictures_are_found_again_and_the_groups_are_shown(spark: SparkSession, demo: Chain, tmp_path: Path) -> None:
    (row,) = rows(spark, demo.cfg, "SELECT source_uri, samples.image_id FROM samples JOIN duplicates USING (image_id) "
                  "WHERE kind = 'phash' AND source_uri LIKE 'file:%' AND source_uri NOT LIKE '%#%' ORDER BY image_id LIMIT 1")  # fmt: skip
    file = Path(unquote(urlsplit(row["source_uri"]).path))
    (tmp_path / "page.jpg").write_text("<html>")
    asked = demo.call("dedup", "--query", str(file), str(tmp_path / "page.jpg"), str(tmp_path / "nowhere"), *demo.arguments)
    assert asked.returncode == 2
    (nearest,) = [line for line in asked.stdout.splitlines() if row["image_id"] in line]
    assert re.search(r"│\s*0\s*│", nearest)
    told = asked.stderr.splitlines()
    assert len(told) == 2 and "page.jpg: " in told[0] and "nowhere: No such file" in told[1]
    shown = demo.call("dedup", "--show", "3", "--output", str(tmp_path / "groups.html"), *demo.arguments)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "groups.html").read_text(encoding="utf-8")
    assert page.count("tag kept") == 3 and "data:image/jpeg;base64," in page
    idle = demo.call("maintain", *demo.arguments)
    assert idle.returncode == 0 and "nothing to compact" in idle.stdout, idle.stderr


def test_a_single_stage_with_nothing_to_do_exits_99_under_cli_and_spark_submit(demo: Chain) -> None:
    assert demo.call("caption", *demo.arguments).returncode == 99
    spark_submit = Path(demo.command()[0]).parent / "spark-submit"
    submitted = subprocess.run(
        [str(spark_submit), "jobs/filter.py", *demo.arguments], cwd=PROJECT, capture_output=True, text=True, env=environment(), check=False
    )
    assert submitted.returncode == 99, submitted.stderr[-3000:]


def test_plain_spark_sql_reads_the_curated_table_with_a_filter(demo: Chain) -> None:
    spark_sql = Path(demo.command()[0]).parent / "spark-sql"
    view = f"CREATE TEMPORARY VIEW curated USING lance OPTIONS (path '{demo.root / 'lake' / 'curated.lance'}', columns 'image_id,width')"
    asked = subprocess.run(
        [str(spark_sql), "-e", f"{view}; SELECT count(*) FROM curated WHERE width > 0"],
        cwd=demo.root, capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert asked.stdout.strip() == str(read_release(demo.corpus).rows), asked.stderr[-3000:]


def test_a_mistake_that_shows_only_when_a_statement_runs_is_one_line(demo: Chain) -> None:
    done = demo.call("sql", "SELECT assert_true(count(*) < 0) FROM samples", *demo.arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_other_settings_are_refused_once_pictures_are_encoded(demo: Chain) -> None:
    before = content(demo.cfg)
    done = demo.call("curate", *demo.arguments, "--set", "curate.jpeg_quality=80")
    assert done.returncode == 2 and "curate.*" in done.stderr
    assert content(demo.cfg) == before


def test_a_source_that_is_declared_otherwise_later_is_refused(demo: Chain, tmp_path: Path) -> None:
    text = demo.sources.read_text(encoding="utf-8").replace("path: ", f"path: {demo.sources.parent}/")
    (tmp_path / "sources.yaml").write_text(text.replace("    alt: txt", "    other: txt"))
    done = demo.call("ingest", "--sources", str(tmp_path / "sources.yaml"), *demo.arguments)
    assert done.returncode == 2 and "'web'" in done.stderr, done.stderr[-2000:]


def yielded(corpus: Path) -> set[str]:
    """The ids that a trainer gets in one epoch."""
    from imagelake.loader import CorpusDataset

    return {sample["id"] for sample in CorpusDataset(corpus, batch_size=1, decode_images=False)}


def test_a_stricter_filter_by_spark_submit_takes_pictures_from_trainers_and_a_laxer_one_gives_them_back(
    demo: Chain, tmp_path: Path
) -> None:
    chain = Chain(tmp_path, demo.sources)
    subprocess.run(["cp", "-r", str(demo.root / "lake"), str(demo.root / "corpus"), str(tmp_path)], check=True)
    before, shards = content(chain.cfg), shard_digests(chain.corpus)
    spark_submit = Path(demo.command()[0]).parent / "spark-submit"
    strict = [*chain.arguments, "--set", "filter.min_pixels=400000"]
    for job in ("filter", "dedup", "curate", "skips"):
        done = subprocess.run(
            [str(spark_submit), f"jobs/{job}.py", *strict], cwd=PROJECT, capture_output=True, text=True, env=environment(), check=False
        )
        assert done.returncode == 0, (job, done.stderr[-3000:])
    fewer = content(chain.cfg)
    assert 0 < len(fewer) < len(before)
    assert yielded(chain.corpus) == {row[0] for row in fewer}
    verified = chain.call("verify", str(chain.corpus), "--json")
    assert verified.returncode == 0 and json.loads(verified.stdout)["skipped"] == len(before) - len(fewer)
    (gone, *_) = {row[0] for row in before} - {row[0] for row in fewer}
    explained = chain.call("skips", str(chain.corpus), "--explain", gone)
    assert explained.returncode == 0 and "filter:below_min_pixels" in explained.stdout

    done = chain.run()
    assert done.returncode == 0, done.stderr[-4000:]
    assert content(chain.cfg) == before and shard_digests(chain.corpus) == shards
    assert yielded(chain.corpus) == {row[0] for row in before}


@pytest.mark.parametrize("table", ["samples", "curated.lance"])
def test_a_run_killed_in_the_middle_converges_to_the_clean_run(demo: Chain, tmp_path: Path, table: str) -> None:
    chain = Chain(tmp_path, demo.sources)
    process = subprocess.Popen(
        chain.command("run", "--sources", str(chain.sources), *chain.arguments),
        cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment(),
    )  # fmt: skip
    deadline = time.monotonic() + 400
    # Killed as soon as the table has its first data file: before its commit, or just after.
    while process.poll() is None and time.monotonic() < deadline:
        if any(path.suffix in {".parquet", ".lance"} for path in (tmp_path / "lake" / table).rglob("*")):
            break
        time.sleep(0.02)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = chain.run()
    assert done.returncode == 0, done.stderr[-4000:]
    assert content(chain.cfg) == content(demo.cfg)
    assert shard_digests(chain.corpus) == shard_digests(demo.corpus)
