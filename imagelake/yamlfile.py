"""YAML files as people write them: what is wrong with one is named by its file and line."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import Reader

from imagelake.errors import ConfigError


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: YAML would keep the last and say nothing of what it lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """The document of a file, of plain types only. Raises ConfigError for what is no YAML, OSError for what can't be read."""
    try:
        return yaml.load(read_text(path), _UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {fault(error)}") from error


def read_text(path: Path) -> str:
    """The text of a YAML file. Raises ConfigError for bytes and characters that no YAML has, OSError for what can't be read."""
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not YAML: line {line}: not UTF-8") from error
    odd = Reader.NON_PRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise ConfigError(f"{path}: not YAML: line {line}: character {odd[0]!r} has no place in YAML")
    return text


def fault(error: Exception) -> str:
    """What is wrong with a text that is not YAML, and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    problem = getattr(error, "problem", None) or getattr(error, "context", None)
    return f"not YAML: line {mark.line + 1}, column {mark.column + 1}: {problem}"
