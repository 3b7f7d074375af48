"""The rule of who may import whom, and the sizes that keep a file readable. Read from the syntax tree: nothing is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from imagelake.paths import PROJECT

OURS = ("imagelake", "jobs", "udfs", "airflow_dags", "demo", "pyspark_lance", "tests", "benchmarks")
MAY_IMPORT = {
    "udfs": {"udfs"},
    "imagelake": {"imagelake"},
    "jobs": {"jobs", "udfs", "imagelake"},
    "demo": {"demo", "imagelake"},
}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def files(*packages: str) -> list[Path]:
    found = {package: sorted((PROJECT / package).rglob("*.py")) for package in packages}
    assert all(found.values()), "a rule over a folder without files holds whatever it says"
    return [path for paths in found.values() for path in paths]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names of the modules that a file imports, those for type checkers alone left out."""
    return {name for node in _imports(tree(path), top_level_only) for name in _names(node)}


def _imports(node: ast.AST, top_level_only: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        elif not (top_level_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from _imports(child, top_level_only)


def _names(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if node.level:
        return {"." * node.level}  # refused in our packages by a test
    # `from imagelake import lance` imports imagelake.lance; `from udfs.facts import Facts` imports udfs.facts.
    assert node.module is not None
    return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}


def top(name: str) -> str:
    return name.split(".")[0]


def module_file(name: str) -> Path | None:
    """The file of one of our modules; None for names that are no module of ours."""
    base = PROJECT / Path(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def reached_from(name: str, *, top_level_only: bool) -> set[str]:
    """Every module that importing `name` leads to through our own modules, foreign ones by their full name."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        path = module_file(current) if top(current) in OURS else None
        if path is not None:
            pending += imported(path, top_level_only=top_level_only)
    return {found for found in seen if top(found) not in OURS or module_file(found)}


def named_in(path: Path, word: str) -> bool:
    """Whether the code (not its text) of a file uses a name, or imports a module of that name."""
    nodes = ast.walk(tree(path))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    return word in used | attributes or any(word in name.split(".") for name in imported(path))


@pytest.mark.parametrize(("package", "allowed"), MAY_IMPORT.items())
def test_each_package_imports_of_ours_only_what_it_may(package: str, allowed: set[str]) -> None:
    for path in files(package):
        ours = {name for name in imported(path) if top(name) in OURS}
        assert {top(name) for name in ours} <= allowed, f"{path.relative_to(PROJECT)} imports {sorted(ours)}"


def test_imports_are_absolute() -> None:
    for path in files("imagelake", "jobs", "udfs", "demo"):
        assert not {name for name in imported(path) if name.startswith(".")}, path


def test_no_job_imports_another_job() -> None:
    for path in files("jobs"):
        others = {name for name in imported(path) if top(name) == "jobs"}
        assert not others, f"{path.name} imports {sorted(others)}"


@pytest.mark.parametrize("name", ["imagelake.loader", "imagelake.text", "imagelake.loaderconfig", "imagelake.prx"])
def test_the_train_time_modules_reach_neither_spark_nor_lance(name: str) -> None:
    reached = {top(module) for module in reached_from(name, top_level_only=False)}
    assert reached.isdisjoint({"pyspark", "delta", "lance"}), f"it reaches {sorted(reached)}"


def test_the_fetcher_reaches_neither_spark_nor_lance() -> None:
    reached = {top(module) for module in reached_from("imagelake.fetch.fetcher", top_level_only=False)}
    assert "httpcore" in reached
    assert reached.isdisjoint({"pyspark", "delta", "lance"}), f"it reaches {sorted(reached)}"


def test_captions_are_collated_without_transformers() -> None:
    reached = {top(module) for module in reached_from("imagelake.text", top_level_only=True)}
    assert "torch" in reached and reached.isdisjoint({"streaming", "transformers"}), f"it reaches {sorted(reached)}"


def test_the_import_walk_follows_our_modules() -> None:
    # Without this the tests of what is not reached could pass because nothing is.
    assert {"imagelake.config", "imagelake.corpus", "streaming"} <= reached_from("imagelake.loader", top_level_only=False)
    assert "pyspark" in {top(name) for name in reached_from("jobs.export", top_level_only=True)}


@pytest.mark.parametrize("name", ["imagelake.lineage", "imagelake.releasediff"])
def test_questions_about_a_release_need_no_spark(name: str) -> None:
    assert "pyspark" not in {top(module) for module in reached_from(name, top_level_only=False)}


@pytest.mark.parametrize("name", ["jobs.caption", "jobs.annotate", "jobs.index", "imagelake.cli"])
def test_stages_outside_spark_start_without_it(name: str) -> None:
    reached = {top(module) for module in reached_from(name, top_level_only=True)}
    assert "pyspark" not in reached


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("lance", {"imagelake/lance.py"}),
        ("httpcore", {"imagelake/fetch/addresses.py", "imagelake/fetch/client.py", "imagelake/fetch/model.py"}),
        ("prx", {"imagelake/prx.py"}),
        ("vllm", set()),
        ("airflow", set()),
        ("transformers", {"imagelake/textmodel.py", "demo/textmodels.py"}),
    ],
)
def test_a_heavy_library_is_imported_in_one_place(library: str, places: set[str]) -> None:
    found = {
        str(path.relative_to(PROJECT))
        for path in files("imagelake", "jobs", "udfs", "demo")
        if any(top(name) == library for name in imported(path))
    }
    assert found == places


def test_shards_are_written_by_our_own_writer() -> None:
    assert [path for path in files("imagelake", "jobs", "udfs", "demo") if named_in(path, "MDSWriter")] == []
    assert any(named_in(path, "MDSWriter") for path in files("tests")), "the reference that ours is held against is gone"


def test_no_job_is_named_like_a_library() -> None:
    # Under spark-submit jobs/ is the first place where Python looks for modules.
    libraries = {name.lower() for name in importlib.metadata.packages_distributions()} - set(OURS)
    names = {path.stem for path in files("jobs")} - {"__init__"}
    assert "lance" in libraries
    assert not names & (libraries | {name.lower() for name in sys.stdlib_module_names})


def test_jobs_are_resolved_by_name_only() -> None:
    for path in files("imagelake"):
        assert not {name for name in imported(path) if top(name) in ("jobs", "udfs")}, path
    from imagelake.stages import STAGES

    for stage in STAGES:
        path = module_file(stage.module)
        assert path is not None, f"{stage.module} does not exist"
        functions = {node.name for node in tree(path).body if isinstance(node, ast.FunctionDef)}
        assert "main" in functions, f"{path.name} has no main"


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in files("imagelake", "jobs", "udfs"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines >= MAX_FILE_LINES:
            long.append(f"{path.relative_to(PROJECT)}: {lines} lines")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length >= MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(PROJECT)}: {node.name} has {length} lines")
    assert not long


def each_package() -> None:
    for package, allowed in MAY_IMPORT.items():
        test_each_package_imports_of_ours_only_what_it_may(package, allowed)


train_time = test_the_train_time_modules_reach_neither_spark_nor_lance


@pytest.mark.parametrize(
    ("file", "text", "rule", "message"),
    [
        ("udfs/a.py", "from imagelake import columns", each_package, "udfs/a.py imports"),
        ("imagelake/a.py", "def f():\n    import demo.cases", each_package, "imagelake/a.py imports"),
        ("jobs/a.py", "from demo import pictures", each_package, "jobs/a.py imports"),
        ("demo/a.py", "import jobs.a", each_package, "demo/a.py imports"),
        ("udfs/a.py", "from . import facts", test_imports_are_absolute, "a.py"),
        ("jobs/a.py", "from jobs import filter", test_no_job_imports_another_job, "a.py imports"),
        ("imagelake/loader.py", "def f():\n    import pyspark.sql", lambda: train_time("imagelake.loader"), "reaches"),
        ("imagelake/text.py", "def f():\n    import lance", lambda: train_time("imagelake.text"), "reaches"),
        ("imagelake/text.py", "import torch, transformers", test_captions_are_collated_without_transformers, "reaches"),
        (
            "imagelake/lineage.py",
            "def f():\n    import pyspark.sql",
            lambda: test_questions_about_a_release_need_no_spark("imagelake.lineage"),
            "pyspark",
        ),
        ("imagelake/cli.py", "if 1:\n    import pyspark", lambda: test_stages_outside_spark_start_without_it("imagelake.cli"), "pyspark"),
        ("jobs/a.py", "import lance", lambda: test_a_heavy_library_is_imported_in_one_place("lance", set()), "jobs/a.py"),
        ("demo/a.py", "from vllm import LLM", lambda: test_a_heavy_library_is_imported_in_one_place("vllm", set()), "demo/a.py"),
        ("jobs/a.py", "import streaming\nstreaming.MDSWriter()", test_shards_are_written_by_our_own_writer, "a.py"),
        ("jobs/json.py", "", test_no_job_is_named_like_a_library, "json"),
        ("imagelake/a.py", "from jobs import filter", test_jobs_are_resolved_by_name_only, "a.py"),
        ("jobs/ingest.py", "x = 1", test_jobs_are_resolved_by_name_only, "ingest.py has no main"),
        ("udfs/a.py", "x = 1\n" * MAX_FILE_LINES, test_files_and_functions_stay_short, "a.py: 300 lines"),
        ("udfs/a.py", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES, test_files_and_functions_stay_short, "f has 61 lines"),
    ],
)
def test_a_planted_breach_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, rule: Callable[[], None], message: str
) -> None:
    """Each rule over a tree that keeps them all, but for one file."""
    for package in ("imagelake", "jobs", "udfs", "demo", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "imagelake/loader.py").write_text("import streaming")
    (tmp_path / "tests/reference.py").write_text("from streaming import MDSWriter")
    monkeypatch.setattr(sys.modules[__name__], "PROJECT", tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(AssertionError, match=re.escape(message)):
        rule()
