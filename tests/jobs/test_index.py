from __future__ import annotations

from pathlib import Path

import pytest

from imagelake import columns as C
from imagelake import lance
from imagelake.config import Config
from imagelake.errors import ImagelakeError
from imagelake.tables import CURATED
from jobs import index as job
from tests.lake_fixture import annotations, append_curated, curated, images_by_id


@pytest.fixture
def root(lake: Config) -> Path:
    """A curated table of six fragments with a caption on every second row."""
    folder = Path(lake.lake.root)
    rows = [curated(f"{n:02}") for n in range(12)]
    append_curated(folder, rows, "one", fragments=6)
    ids = [row[C.IMAGE_ID] for row in rows][::2]
    lance.set_columns(folder, CURATED, C.IMAGE_ID, annotations(ids, caption=[f"a boat number {image_id}" for image_id in ids]))
    return folder


def eager(lake: Config) -> Config:
    """Compacts however few fragments there are."""
    return lake.model_copy(update={"index": lake.index.model_copy(update={"min_fragments": 1})})


def test_indices_are_built_and_small_fragments_merged(lake: Config, root: Path) -> None:
    images = images_by_id(root)
    before = lance.version(root, CURATED)
    result = job.main(eager(lake))
    assert (result.rows_in, result.kept) == (12, 12)
    assert result.read_versions == {"curated": before}
    assert result.written_versions == {"curated": lance.version(root, CURATED)}
    assert (result.notes["fragments_before"], result.notes["fragments_after"]) == ("6", "1")
    assert set(result.notes["indices"].split(",")) == {
        "image_id_btree",
        "sha256_btree",
        "tier_bitmap",
        "bucket_bitmap",
        "source_bitmap",
        "caption_fts",
    }
    assert images_by_id(root) == images


def test_a_few_fragments_are_left_alone(lake: Config, root: Path) -> None:
    assert job.main(lake).notes["fragments_after"] == "6"


def test_a_second_run_has_nothing_to_do(lake: Config, root: Path) -> None:
    job.main(lake)
    version = lance.version(root, CURATED)
    assert job.main(lake).nothing_to_do
    assert lance.version(root, CURATED) == version


def test_new_rows_are_indexed_by_the_next_run(lake: Config, root: Path) -> None:
    job.main(lake)
    append_curated(root, [curated("new", source="other")], "two")
    lance.set_columns(root, CURATED, C.IMAGE_ID, annotations(["new"], caption=["a lighthouse"]))
    assert not job.main(lake).nothing_to_do
    found = lance.open_table(root, CURATED).to_table(full_text_query="lighthouse", columns=[C.IMAGE_ID])
    assert found[C.IMAGE_ID].to_pylist() == ["new"]
    assert lance.scan(root, CURATED, [C.IMAGE_ID], where="source = 'other'")[C.IMAGE_ID].to_pylist() == ["new"]
    assert job.main(lake).nothing_to_do


def test_without_captions_the_full_text_index_comes_later(lake: Config) -> None:
    folder = Path(lake.lake.root)
    append_curated(folder, [curated("a")], "one")
    assert "caption_fts" not in job.main(lake).notes["indices"]
    lance.set_columns(folder, CURATED, C.IMAGE_ID, annotations(["a"], caption=["x"]))
    assert "caption_fts" in job.main(lake).notes["indices"]


def test_an_empty_table_settles(lake: Config) -> None:
    lance.create(Path(lake.lake.root), CURATED)
    job.main(lake)
    assert job.main(lake).nothing_to_do


def test_a_lake_without_the_table_is_a_clear_error(lake: Config) -> None:
    with pytest.raises(ImagelakeError, match="no such table yet"):
        job.main(lake)
