from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagelake import captioner
from imagelake.captioner import RESULT_SCHEMA, Result, SourceCaptioner


def row(image_id: str, *texts: str | None) -> dict[str, object]:
    return {"image_id": image_id, "captions": [{"name": f"n{place}", "text": text} for place, text in enumerate(texts)]}


def caption_of(*texts: str | None) -> tuple[str | None, str]:
    (result,) = SourceCaptioner().caption([row("a", *texts)])
    return result.text, result.status


def test_the_longest_caption_is_taken() -> None:
    assert caption_of("a dog", "a brown dog on grass", "dog") == ("a brown dog on grass", "ok")


def test_on_a_tie_the_first_is_taken() -> None:
    assert caption_of("one", "two", "six") == ("one", "ok")


def test_length_is_counted_in_characters() -> None:
    assert caption_of("日本語日本語", "日本 eight!!") == ("日本 eight!!", "ok")
    assert caption_of("日本語日本語", "short") == ("日本語日本語", "ok")


@pytest.mark.parametrize("texts", [(), (None,), ("",), (None, "")])
def test_a_picture_without_a_caption_is_a_row_with_a_status(texts: tuple[str | None, ...]) -> None:
    assert caption_of(*texts) == (None, "no_caption")


def test_a_null_list_of_captions_is_no_caption() -> None:
    (result,) = SourceCaptioner().caption([{"image_id": "a", "captions": None}])
    assert (result.text, result.status) == (None, "no_caption")


def test_every_row_has_one_result() -> None:
    results = SourceCaptioner().caption([row("a", "x"), row("b"), row("c", "y")])
    assert [result.image_id for result in results] == ["a", "b", "c"]


def test_the_fingerprint_tells_engines_settings_and_columns_apart() -> None:
    class Other(SourceCaptioner):
        settings = {"engine": "source", "version": 2}  # noqa: RUF012

    keys = {
        captioner.fingerprint(SourceCaptioner(), "caption"),
        captioner.fingerprint(SourceCaptioner(), "caption_vlm"),
        captioner.fingerprint(Other(), "caption"),
    }
    assert len(keys) == 3
    assert captioner.fingerprint(SourceCaptioner(), "caption") in keys


RESULTS = [Result("b", "two", "ok"), Result("a", None, "no_caption"), Result("c", "drei: Übung 図", "ok")]


def test_parts_are_read_as_they_were_written(tmp_path: Path) -> None:
    captioner.write_part(tmp_path, RESULTS)
    captioner.write_part(tmp_path, [Result("d", "four", "too_long", "length", 300, 3, 1.5)])
    table = captioner.read_parts(tmp_path)
    assert table.schema == RESULT_SCHEMA
    found = {entry["image_id"]: Result(**entry) for entry in table.to_pylist()}
    assert found == {result.image_id: result for result in [*RESULTS, Result("d", "four", "too_long", "length", 300, 3, 1.5)]}


def test_the_same_results_in_any_order_are_one_file(tmp_path: Path) -> None:
    first = captioner.write_part(tmp_path, RESULTS)
    content = first.read_bytes()
    assert captioner.write_part(tmp_path, RESULTS[::-1]) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert first.read_bytes() == content


def test_the_same_results_at_another_pace_are_the_same_part(tmp_path: Path) -> None:
    first = captioner.write_part(tmp_path, [Result("a", "x", "ok", seconds=0.1)])
    assert captioner.write_part(tmp_path, [Result("a", "x", "ok", seconds=0.2)]) == first


def test_other_results_are_another_part(tmp_path: Path) -> None:
    paths = {captioner.write_part(tmp_path, [Result("a", text, status)]) for text, status in [("x", "ok"), ("y", "ok"), ("x", "refused")]}
    assert len(paths) == 3


def test_no_folder_is_no_results(tmp_path: Path) -> None:
    table = captioner.read_parts(tmp_path / "never")
    assert (len(table), table.schema) == (0, RESULT_SCHEMA)


def test_a_torn_temporary_file_is_not_read(tmp_path: Path) -> None:
    part = captioner.write_part(tmp_path, RESULTS)
    (tmp_path / f".{part.name}.0011.tmp").write_bytes(part.read_bytes()[:100])
    assert len(captioner.read_parts(tmp_path)) == 3


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        captioner.write_part(tmp_path, RESULTS)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_two_processes_finished_appears_once(tmp_path: Path) -> None:
    captioner.write_part(tmp_path, [Result("a", "one", "ok"), Result("b", "two", "ok")])
    captioner.write_part(tmp_path, [Result("b", "zwei", "ok"), Result("c", "three", "ok")])
    table = captioner.read_parts(tmp_path)
    assert sorted(table["image_id"].to_pylist()) == ["a", "b", "c"]
    # Which of the two it is depends on the names of the files alone: the same for every reader.
    first = pq.read_table(sorted(tmp_path.glob("part-*.parquet"))[0])
    expected = {entry["image_id"]: entry["text"] for entry in first.to_pylist()}["b"]
    texts = {entry["image_id"]: entry["text"] for entry in table.to_pylist()}
    assert texts == {"a": "one", "b": expected, "c": "three"}
    assert captioner.read_parts(tmp_path).equals(table)


def test_many_parts_with_many_rows_stay_aligned(tmp_path: Path) -> None:
    for part in range(5):
        captioner.write_part(tmp_path, [Result(f"{n:05}", f"text {n}", "ok") for n in range(part * 900, part * 900 + 1000)])
    table = captioner.read_parts(tmp_path)
    assert len(table) == len(set(table["image_id"].to_pylist())) == 4600
    assert pa.compute.all(pa.compute.equal(table["text"].cast(pa.string()), _expected(table))).as_py()


def _expected(table: pa.Table) -> pa.Array:
    return pa.array([f"text {int(image_id)}" for image_id in table["image_id"].to_pylist()])
