from __future__ import annotations

from collections.abc import Iterator

import pytest

from imagelake import config, diagnose
from imagelake.config import Config
from imagelake.diagnose import Finding

LONG = "a remedy that is longer than any terminal is wide: " + "word " * 60


def test_a_finding_that_needs_a_remedy_fails_and_is_printed_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(_: Config) -> Iterator[Finding]:
        yield Finding("tool", "[1.2] seen", LONG)

    monkeypatch.setattr(diagnose, "CHECKS", (check,))
    assert diagnose.report(config.load()) == 1
    printed = capsys.readouterr().out
    assert LONG in printed and "[1.2] seen" in printed  # a pipe has no width, and what is seen is no markup
