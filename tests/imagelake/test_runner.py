from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagelake import ledger, logs, runner, session
from imagelake.config import Config
from imagelake.errors import ConfigError, GateError, RetryableError
from imagelake.ledger import StageResult
from imagelake.stages import STAGES, Stage, stage

OUTSIDE_SPARK = Stage("index", "", ("index",), needs_spark=False)
RESULT = StageResult(5, 4, {"x": 1}, {"samples": 3}, {"rejects": 4}, {"note": "n"})


def execute(cfg: Config, main: Any, step: Stage = OUTSIDE_SPARK) -> StageResult:
    return runner.execute(step, cfg, main=main)


def only_run(cfg: Config) -> dict[str, Any]:
    (row,) = ledger.runs(Path(cfg.lake.root))
    return row


def test_a_run_leaves_a_row_with_its_figures(lake: Config) -> None:
    assert execute(lake, lambda _: RESULT) == RESULT
    row = only_run(lake)
    assert (row["stage"], row["status"], row["rows_in"], row["kept"], row["rejected"]) == ("index", "ok", 5, 4, {"x": 1})
    assert (row["read_versions"], row["written_versions"], row["notes"]) == ({"samples": 3}, {"rejects": 4}, {"note": "n"})
    assert (row["config_digest"], row["stage_digest"]) == (lake.digest(), lake.digest(["index"]))
    assert row["error"] is None


def test_a_stage_that_found_its_work_done_says_so(lake: Config) -> None:
    result = execute(lake, lambda _: StageResult(nothing_to_do=True))
    assert runner.exit_code(result) == 99
    assert only_run(lake)["status"] == "nothing_to_do"
    assert runner.exit_code(RESULT) == 0


@pytest.mark.parametrize("step", [step for step in STAGES if step.reads], ids=lambda step: step.name)
def test_a_stage_of_a_lake_without_its_table_says_what_comes_first(
    lake: Config, tmp_path: Path, step: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(json_lines=True)
    root = tmp_path / "nowhere"
    cfg = lake.model_copy(update={"lake": lake.lake.model_copy(update={"root": str(root)})})
    with pytest.raises(ConfigError, match=r"lake\.root: .*nowhere does not exist"):
        runner.execute(step, cfg)
    assert not root.exists()
    root.mkdir()
    assert runner.exit_code(runner.execute(step, cfg)) == 99
    assert f"has no table {step.reads} yet: `imagelake " in capsys.readouterr().err
    assert not any(root.iterdir())


@pytest.mark.parametrize("error", [ValueError("broken"), GateError("rule"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_a_failure_is_raised_and_leaves_a_row(lake: Config, error: BaseException) -> None:
    def fail(_: Config) -> StageResult:
        raise error

    with pytest.raises(type(error)):
        execute(lake, fail)
    row = only_run(lake)
    assert (row["status"], row["error"]) == ("failed", f"{type(error).__name__}: {error}")


def test_the_message_of_a_failure_is_kept_short(lake: Config) -> None:
    def fail(_: Config) -> StageResult:
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match="x"):
        execute(lake, fail)
    assert len(only_run(lake)["error"]) == 2000


def test_a_session_that_cannot_start_is_a_failed_run(lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("a jar is missing")

    monkeypatch.setattr(session, "build", refuse)
    with pytest.raises(ConfigError):
        execute(lake, lambda *_: RESULT, stage("ingest"))
    assert only_run(lake)["error"] == "ConfigError: a jar is missing"


def test_log_lines_carry_the_runs_id(lake: Config, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json_lines=True)
    execute(lake, lambda _: RESULT)
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["event"], line["stage"], line["rows_in"], line["note"]) == ("ok", "index", 5, "n")
    assert line["run_id"] == only_run(lake)["run_id"]


def raiser(error: BaseException) -> Any:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("wrong key"), 2), (GateError("broken rule"), 3), (RetryableError("try again"), 75), (KeyboardInterrupt(), 1)],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_users_can_act_on_are_a_message_and_a_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.guarded(raiser(error)) == code
    message = capsys.readouterr().err
    assert str(error) in message
    assert "Traceback" not in message


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        runner.guarded(raiser(ZeroDivisionError("ours")))


def test_a_job_file_exits_with_the_stages_code(lake: Config) -> None:
    arguments = ["--set", f"lake.root={lake.lake.root}"]
    for result, code in [(RESULT, 0), (StageResult(nothing_to_do=True), 99)]:
        with pytest.raises(SystemExit) as caught:
            runner.run(lambda _, result=result: result, "verify", arguments)  # type: ignore[misc]
        assert caught.value.code == code


def test_a_job_file_exits_2_on_a_bad_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.run(lambda _: RESULT, "index", ["--set", "filter.min_pixel=3"])
    assert caught.value.code == 2
    assert "did you mean 'filter.min_pixels'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["s: y.yaml", "a #b.yaml", "[x].yaml", "${y}.yaml"])
def test_the_sources_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert runner.load_config([], [], str(tmp_path / name)).sources == str(tmp_path / name)


def noted(cfg: Config, result: StageResult) -> None:
    execute(cfg, lambda _: result, Stage("filter", "", ("filter", "geometry"), needs_spark=False))


def test_unchanged_means_same_inputs_and_same_settings(lake: Config) -> None:
    assert not runner.unchanged(lake, "filter", {"samples": 3})
    noted(lake, RESULT)
    assert runner.unchanged(lake, "filter", {"samples": 3})
    assert not runner.unchanged(lake, "filter", {"samples": 4})
    assert not runner.unchanged(lake, "dedup", {"samples": 3})
    stricter = lake.model_copy(update={"filter": lake.filter.model_copy(update={"min_pixels": 1})})
    assert not runner.unchanged(stricter, "filter", {"samples": 3})
    elsewhere = lake.model_copy(update={"verify": lake.verify.model_copy(update={"workers": 7})})
    assert runner.unchanged(elsewhere, "filter", {"samples": 3})


def test_a_failed_run_makes_nothing_stand(lake: Config) -> None:
    noted(lake, RESULT)
    with pytest.raises(ZeroDivisionError):
        execute(lake, lambda _: 1 // 0, Stage("filter", "", ("filter", "geometry"), needs_spark=False))
    # The last good run stands: a failed stage writes whole tables or nothing.
    assert runner.unchanged(lake, "filter", {"samples": 3})


def test_the_sections_of_a_stage_are_sections_of_the_configuration() -> None:
    for step in STAGES:
        assert set(step.sections) <= set(Config.model_fields), step.name
