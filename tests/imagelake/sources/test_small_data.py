"""Files that others made: every one ends in exactly one record."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

import pytest

from imagelake.errors import ConfigError
from imagelake.sources import Record, SourceSpec, list_files, plan_units, read_unit

SMALL = Path(os.environ.get("IMAGELAKE_SMALL_DATA", Path(__file__).parents[4] / "shared/data/small"))
pytestmark = pytest.mark.skipif(not SMALL.is_dir(), reason=f"the small data set is not at {SMALL}")


def read(format: str, path: str, **values: object) -> list[Record]:
    spec = SourceSpec.model_validate({"name": "small", "format": format, "path": str(SMALL / path)} | values)
    return [record for unit in plan_units(spec, list_files(spec)) for record in read_unit(spec, unit)]


def manifest() -> dict[str, str]:
    lines = (SMALL / "MANIFEST.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return {cells[0]: cells[4] for cells in (line.split("\t") for line in lines)}


def test_every_file_of_the_manifest_ends_in_one_record_with_its_bytes() -> None:
    captions = {"alt": "captions.jsonl:captions"}
    records = read("folder", ".", captions=captions, file_column="path")
    assert Counter(record.fault for record in records) == {None: len(records)}
    hashes = Counter((record.source_key, hashlib.sha256(record.image or b"").hexdigest()) for record in records)
    expected = manifest()
    assert len(expected) == 465
    assert all(hashes[name, digest] == 1 for name, digest in expected.items())
    # Beside them the two other tables of the folder; captions.jsonl is read as metadata.
    assert {record.source_key for record in records} - expected.keys() == {"MANIFEST.tsv", "dups/labels.csv"}
    assert sum(record.captions["alt"] is not None for record in records) == 97


def test_webdataset_tars_read_whole() -> None:
    records = read("webdataset", "sources/webdataset/*.tar", captions={"alt": "txt"})
    assert Counter(record.fault for record in records) == {None: 7}
    assert all(record.image and record.image.startswith(b"\xff\xd8") for record in records)
    assert {record.captions["alt"] for record in records} == {None}


def test_a_hugging_face_file_without_bytes_gives_a_fault_a_row() -> None:
    records = read("parquet", "sources/hf-parquet/r1mm_*.parquet", captions={"alt": "problem"})
    assert Counter(record.fault for record in records) == {"no_image": 2389}
    assert len({record.source_key for record in records}) == 2389
    assert all(record.captions["alt"] for record in records)


def test_binary_of_any_kind_is_read_and_left_to_be_judged() -> None:
    (record,) = read(
        "parquet", "sources/misc-parquet/daft_common-crawl-sample.parquet", image="warc_content", captions={"alt": "warc_headers"}
    )
    assert record.image and record.captions["alt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("sources/hf-parquet/opencole_*.parquet", "is no readable Parquet file"),
        ("sources/hf-parquet/datajuicer_*.parquet", "column 'image_bytes' is list"),
        ("sources/laion-metadata/*.parquet", "no column 'image_bytes'. It has: url, txt"),
        ("sources/webdataset/*.json", "is no readable Parquet file"),
    ],
)
def test_files_without_images_are_named_before_anything_is_read(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read("parquet", path, image="image_bytes")
