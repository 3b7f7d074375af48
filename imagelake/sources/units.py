"""What travels between listing, planning and reading: source files, units of work, records. Plain data with a JSON
form.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from imagelake.captions import clean_caption
from imagelake.errors import RetryableError

# Larger members and files are rejected unread: nobody's photograph, but anybody's attack.
MAX_IMAGE_BYTES = 256 << 20
MAX_CAPTION_BYTES = 1 << 20

# Names that suggest an image. Whether it is one, and one that can be used, is decided by content, later.
IMAGE_EXTENSIONS = frozenset(
    [
        "apng",
        "avif",
        "bmp",
        "bw",
        "dds",
        "eps",
        "gif",
        "heic",
        "heif",
        "ico",
        "j2k",
        "jfif",
        "jp2",
        "jpe",
        "jpeg",
        "jpg",
        "jxl",
        "mpo",
        "pbm",
        "pgm",
        "png",
        "pnm",
        "ppm",
        "psd",
        "qoi",
        "svg",
        "tga",
        "tif",
        "tiff",
        "webp",
    ]
)

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")
_FAULT_MARK = re.compile(r"!(?=[a-z0-9_]+\Z)")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source, pinned by size and modification time.

    `path` is absolute. `key` is the path below the folder or the fixed part of the glob, POSIX, valid Unicode (see
    escape_name), unique in the source. `is_sidecar`: holds captions or metadata of other files and is no image
    candidate.
    """

    source: str
    path: str
    key: str
    size: int
    mtime_ns: int
    is_sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task reads. webdataset: one tar (start 0, stop its bytes). parquet: row groups start to stop of one
    file. folder: files[start:stop], with the metadata files in `sidecars`; start = stop = 0 stands for the faults of
    the one metadata file.
    """

    source: str
    format: str
    files: tuple[SourceFile, ...]
    start: int
    stop: int
    size_bytes: int
    sidecars: tuple[SourceFile, ...] = ()

    def to_json(self) -> str:
        """ASCII JSON; names that are not valid UTF-8 survive the round trip."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Unit:
        values: dict[str, Any] = json.loads(text)
        for name in ("files", "sidecars"):
            values[name] = tuple(SourceFile(**file) for file in values[name])
        return cls(**values)


@dataclass(slots=True)
class Record:
    """One sample met in a source, or one fault.

    `source_key` is unique in the source. `captions` has every name of the spec, null where the sample has none.
    `fault` null: a sample, `image` its bytes as received, unjudged. `fault` set: nothing to keep, image null, and
    `fault_detail` says what was met.
    """

    source_key: str
    source_uri: str
    image: bytes | None = None
    captions: dict[str, str | None] = field(default_factory=dict)
    license: str | None = None
    attribution: str | None = None
    fault: str | None = None
    fault_detail: str | None = None


def escape_name(name: str) -> str:
    """`name` as valid Unicode that two names never share.

    Bytes that are not UTF-8 and control characters become \\xNN, a backslash becomes two. A trailing "!word" gets its
    "!" escaped, because this is how the keys of faults end.
    """
    return _FAULT_MARK.sub(r"\\x21", _UNPRINTABLE.sub(_escape, name))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x5C:
        return r"\\"
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode's stand-in for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def extension_of(name: str) -> str:
    """The lower-case text after the last dot; "" without one and for dot names (".hidden")."""
    stem, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension.lower() if dot and stem else ""


def text_of(value: object) -> str | None:
    """A caption, licence or attribution out of a parsed value; of a list the first text in it; null for an object."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = (clean_caption(item) for item in values if not isinstance(item, dict | list | tuple))
    return next((text for text in texts if text is not None), None)


def at_path(value: object, path: tuple[str, ...]) -> object:
    """What lies at a dotted path in parsed JSON; numbers index lists; null where the path leads nowhere."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def pin(source: str, path: Path, key: str, *, is_sidecar: bool = False) -> SourceFile:
    """The file as it is now, links followed. Raises OSError."""
    stat = path.stat()
    return SourceFile(source, str(path), key, stat.st_size, stat.st_mtime_ns, is_sidecar)


def check_unchanged(file: SourceFile, stat: os.stat_result) -> None:
    """Raises RetryableError when the file is not the one that was listed: half of one file and half of another is
    nobody's data.
    """
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        raise RetryableError(
            f"{file.path}: changed since it was listed ({file.size} bytes then, {stat.st_size} now): run again when the source is still"
        )


def changed(file: SourceFile, error: OSError) -> RetryableError:
    return RetryableError(f"{file.path}: was listed, now {error.strerror or error}: run again when the source is still")
