"""Which files a source's paths and globs mean, each with a key that is unique in the source."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from imagelake.errors import ConfigError
from imagelake.sources.spec import SourceSpec
from imagelake.sources.units import SourceFile, escape_name, pin

_WILDCARDS = re.compile(r"[*?\[]")


def expand(spec: SourceSpec) -> Iterator[tuple[str, Path, Path]]:
    """(key in sources.yaml, root, path) of everything that the source's paths mean, in their order; keys of files are
    relative to root.

    A path that exists is taken literally, whatever characters it has; any other with *, ? or [ is a glob, where **
    crosses folders, links to folders are not followed, and hidden names match only a pattern that starts with a dot.
    Raises ConfigError for what is not there.
    """
    for index, pattern in enumerate(spec.path):
        key = "path" if len(spec.path) == 1 else f"path[{index}]"
        path = Path(pattern).absolute()
        if path.exists():
            yield key, path if path.is_dir() else path.parent, path
        elif _WILDCARDS.search(pattern):
            root, matches = _glob(path)
            if not matches:
                raise ConfigError(f"{spec.origin}.{key}: no file matches {pattern}")
            yield from ((key, root, match) for match in matches)
        else:
            raise ConfigError(f"{spec.origin}.{key}: {pattern} does not exist")


def _glob(path: Path) -> tuple[Path, list[Path]]:
    fixed = next(index for index, part in enumerate(path.parts) if _WILDCARDS.search(part))
    root, pattern = Path(*path.parts[:fixed]), path.parts[fixed:]
    hidden = any(part.startswith(".") for part in pattern)
    found = root.glob(str(Path(*pattern))) if root.is_dir() else ()
    return root, sorted(match for match in found if hidden or not any(part.startswith(".") for part in match.relative_to(root).parts))


def archives(spec: SourceSpec, example: str) -> list[SourceFile]:
    """The regular files of a source whose paths name files (tars, Parquet), sorted by key. Raises ConfigError."""
    found = []
    for key, root, path in expand(spec):
        if path.is_dir():
            if root == path:
                raise ConfigError(f"{spec.origin}.{key}: {path} is a folder: give its files, such as {path}/{example}")
            continue
        name = escape_name(path.relative_to(root).as_posix())
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise ConfigError(f"{spec.origin}.{key}: {path} is no regular file")
            found.append(pin(spec.name, path, name))
        except OSError as error:
            raise ConfigError(f"{spec.origin}.{key}: {path} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{spec.origin}.path: matches folders only: give their files, such as {example}")
    return unique(spec, found)


def unique(spec: SourceSpec, files: Iterable[SourceFile]) -> list[SourceFile]:
    """Sorted by key, each file once. Raises ConfigError when two files would share a key, and so their samples an id."""
    paths = {file.path: file for file in reversed(list(files))}
    keys: dict[str, SourceFile] = {}
    for file in paths.values():
        if file.key in keys:
            raise ConfigError(
                f"{spec.origin}.path: {keys[file.key].path} and {file.path} have the same key {file.key!r}: "
                "make them two sources, or one glob that begins above both"
            )
        keys[file.key] = file
    return [keys[key] for key in sorted(keys)]
