"""Units of work and keys: what travels to a task, and names that never meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from imagelake.sources import SourceFile, Unit
from imagelake.sources.units import at_path, escape_name, extension_of, text_of

# What os.fsdecode makes of any file name, and some that look like our escapes.
NAMES = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text("\\x!u2a0\n/d", max_size=8)


@given(NAMES, NAMES)
def test_two_names_never_share_a_key_and_every_key_is_unicode(one: str, other: str) -> None:
    assert (escape_name(one) == escape_name(other)) == (one == other)
    assert escape_name(one).encode("utf-8").decode("utf-8") == escape_name(one)


@given(NAMES, st.sampled_from(["incomplete", "2", "unsafe_member_2"]), NAMES)
def test_no_name_has_the_key_of_a_fault(name: str, fault: str, faulty: str) -> None:
    assert escape_name(name) != f"{escape_name(faulty)}!{fault}"


def test_ordinary_names_are_their_own_keys() -> None:
    for name in ("a b/ünïcødé-日本語.jpg", "quote'\"comma,.jpg", "wow!.jpg", "#1%20.png"):
        assert escape_name(name) == name


@given(st.lists(st.builds(SourceFile, st.text(), NAMES, NAMES.map(escape_name), st.integers(0), st.integers(), st.booleans()), max_size=3))
def test_a_unit_survives_json(files: list[SourceFile]) -> None:
    unit = Unit("s", "folder", tuple(files), 0, len(files), 7, tuple(files[:1]))
    assert unit.to_json().isascii()
    assert Unit.from_json(unit.to_json()) == unit


def test_extensions_are_lower_case_and_dot_names_have_none() -> None:
    assert [extension_of(name) for name in ("a.JPG", "d.x/a", ".hidden", "a.tar.gz", "a.")] == ["jpg", "", "", "gz", ""]


def test_paths_lead_into_json_or_nowhere() -> None:
    value = {"a": [{"b": "x"}], "c": None}
    assert at_path(value, ("a", "0", "b")) == "x"
    assert [at_path(value, path) for path in (("a", "1"), ("a", "b"), ("c", "d"), ("x",), ("a", "-1"))] == [None] * 5


def test_text_is_the_first_of_a_list_and_none_of_an_object() -> None:
    assert text_of(["", None, float("nan"), ["nested"], {"x": 1}, "first", "second"]) == "first"
    assert text_of({"a": "b"}) is None
    assert text_of([]) is None
