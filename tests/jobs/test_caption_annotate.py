from __future__ import annotations

from pathlib import Path

import pytest

from imagelake import captioner, lance
from imagelake import columns as C
from imagelake.captioner import Result, SourceCaptioner
from imagelake.config import CaptionConfig, Config
from imagelake.errors import ImagelakeError
from imagelake.tables import CURATED
from jobs import annotate, caption
from tests.lake_fixture import append_curated, curated, images_by_id


def named(*texts: str) -> list[dict[str, str]]:
    return [{"name": f"n{place}", "text": text} for place, text in enumerate(texts)]


@pytest.fixture
def root(lake: Config) -> Path:
    folder = Path(lake.lake.root)
    rows = [
        curated("a", captions=named("short", "the longest of all", "middle one")),
        curated("b", captions=named("one", "two")),
        curated("c", captions=[]),
        curated("d", captions=named("図の説明")),
    ]
    append_curated(folder, rows, "one", fragments=2)
    return folder


def captions(root: Path) -> dict[str, tuple[str | None, str | None]]:
    table = lance.scan(root, CURATED, [C.IMAGE_ID, "caption", "caption_status"])
    return {row[C.IMAGE_ID]: (row["caption"], row["caption_status"]) for row in table.to_pylist()}


EXPECTED = {"a": ("the longest of all", "ok"), "b": ("one", "ok"), "c": (None, "no_caption"), "d": ("図の説明", "ok")}


def test_captions_become_columns(lake: Config, root: Path) -> None:
    images = images_by_id(root)
    made = caption.main(lake)
    assert (made.rows_in, made.kept, made.rejected) == (4, 3, {"no_caption": 1})
    put = annotate.main(lake)
    assert (put.rows_in, put.kept) == (4, 4)
    assert captions(root) == EXPECTED
    stamps = set(lance.scan(root, CURATED, ["caption_fingerprint"])["caption_fingerprint"].to_pylist())
    assert stamps == {made.notes["fingerprint"]}
    assert images_by_id(root) == images


def test_second_runs_have_nothing_to_do(lake: Config, root: Path) -> None:
    caption.main(lake)
    annotate.main(lake)
    version = lance.version(root, CURATED)
    assert caption.main(lake).nothing_to_do
    assert annotate.main(lake).nothing_to_do
    assert lance.version(root, CURATED) == version


def test_an_interrupted_run_is_taken_up_where_it_stopped(lake: Config, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = lake.model_copy(update={"caption": CaptionConfig(part_rows=1)})
    write, done = captioner.write_part, 0

    def stop_after_two(folder: Path, results: list[Result]) -> Path:
        nonlocal done
        if done == 2:
            raise KeyboardInterrupt
        done += 1
        return write(folder, results)

    monkeypatch.setattr(captioner, "write_part", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        caption.main(small)
    monkeypatch.undo()
    assert caption.main(small).rows_in == 2
    annotate.main(small)
    assert captions(root) == EXPECTED


def test_new_rows_alone_are_captioned(lake: Config, root: Path) -> None:
    caption.main(lake)
    annotate.main(lake)
    append_curated(root, [curated("e", captions=named("new"))], "two")
    assert captions(root)["e"] == (None, None)
    assert caption.main(lake).rows_in == 1
    assert annotate.main(lake).kept == 1
    assert captions(root) == EXPECTED | {"e": ("new", "ok")}


def test_captions_of_pictures_that_left_are_not_put_back(lake: Config, root: Path) -> None:
    caption.main(lake)
    lance.delete_ids(root, CURATED, ["a"])
    assert annotate.main(lake).kept == 3
    assert captions(root) == {key: value for key, value in EXPECTED.items() if key != "a"}


def test_another_engine_replaces_the_captions_of_the_last(lake: Config, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shouting(SourceCaptioner):
        settings = {"engine": "shout"}  # noqa: RUF012

        def caption(self, rows):  # type: ignore[no-untyped-def]
            for result in super().caption(rows):
                yield Result(result.image_id, result.text and result.text.upper(), result.status)

    caption.main(lake)
    annotate.main(lake)
    monkeypatch.setitem(captioner.ENGINES, "source", Shouting)
    assert caption.main(lake).rows_in == 4
    annotate.main(lake)
    assert captions(root) == {key: (text and text.upper(), status) for key, (text, status) in EXPECTED.items()}


def test_a_second_caption_column_stands_beside_the_first(lake: Config, root: Path) -> None:
    caption.main(lake)
    annotate.main(lake)
    other = lake.model_copy(update={"caption": CaptionConfig(column="caption_vlm")})
    caption.main(other)
    annotate.main(other)
    assert captions(root) == EXPECTED
    assert {"caption_vlm", "caption_vlm_status", "caption_vlm_fingerprint"} <= set(lance.column_names(root, CURATED))


def test_without_curated_pictures_both_stages_say_so(lake: Config) -> None:
    for stage in (caption, annotate):
        with pytest.raises(ImagelakeError, match="no such table yet"):
            stage.main(lake)


def test_an_empty_table_has_nothing_to_caption(lake: Config) -> None:
    lance.create(Path(lake.lake.root), CURATED)
    assert caption.main(lake).nothing_to_do
    assert annotate.main(lake).nothing_to_do
