"""What the documents say is there, and what is there is said."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
from typer.main import get_command

from imagelake import views
from imagelake.cli import app
from imagelake.paths import PROJECT
from imagelake.stages import STAGES

README = (PROJECT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", [step.name for step in STAGES])
def test_each_stage_has_a_row_in_the_readme_that_links_its_file(step: str) -> None:
    assert f"| [{step}](jobs/{step}.py) |" in README
    assert (PROJECT / "jobs" / f"{step}.py").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_readme_or_is_a_stage(command: str) -> None:
    assert f"imagelake {command}" in README or command in {step.name for step in STAGES} | {"version"}


@pytest.mark.parametrize("view", views.NAMES)
def test_each_view_is_in_the_readme(view: str) -> None:
    assert f"`{view}`" in README


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not (PROJECT / link).exists()] == []


def test_make_alone_prints_the_targets_that_the_readme_names() -> None:
    printed = subprocess.run(["make", "--no-print-directory"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target} " in printed for target in ("setup", "demo", "test", "lint"))


def test_locked_requirements_have_hashes_and_name_no_index() -> None:
    for lock in (PROJECT / "requirements").glob("*.txt"):
        text = lock.read_text(encoding="utf-8")
        packages = re.findall(r"^[a-z0-9][^ =]*==", text, re.MULTILINE)
        assert packages and text.count("--hash=sha256:") >= len(packages)
        assert "://" not in text and "--index" not in text


def test_every_dependency_of_the_package_is_locked() -> None:
    wanted = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    locked = (PROJECT / "requirements/main.txt").read_text(encoding="utf-8")
    for requirement in wanted:
        name = re.split(r"[<>=!\[]", requirement)[0].replace(".", "-").lower()
        assert re.search(rf"^{re.escape(name)}==", locked, re.MULTILINE), name
