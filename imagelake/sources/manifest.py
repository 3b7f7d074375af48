"""What of a source is new: its files against those that were ingested, which the table source_files pins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from imagelake import columns as C
from imagelake.config import digest_of
from imagelake.sources.spec import SourceSpec
from imagelake.sources.units import SourceFile


@dataclass
class Comparison:
    """Files by what happened to them since the last ingest. gone: (source, key) of what was ingested and is not there now.

    redeclared: sources that were ingested under another declaration, name -> where it stands now.
    """

    new: list[SourceFile] = field(default_factory=list)
    known: list[SourceFile] = field(default_factory=list)
    changed: list[SourceFile] = field(default_factory=list)
    gone: list[tuple[str, str]] = field(default_factory=list)
    redeclared: dict[str, str] = field(default_factory=dict)


def spec_digest(spec: SourceSpec) -> str:
    """Of all that decides what is read from a file: everything but where the files lie."""
    return digest_of(spec.model_dump(mode="json", exclude={"path"}))


def compare(specs: Sequence[SourceSpec], files: Sequence[SourceFile], pinned: pa.Table) -> Comparison:
    """`files` of `specs` against `pinned`, the rows of source_files.

    A metadata file may grow beside new images: they find their captions in it, while what was ingested stays as it is.
    """
    declared = {spec.name: spec_digest(spec) for spec in specs}
    known = {(row[C.SOURCE], row["key"]): row for row in pinned.to_pylist() if row[C.SOURCE] in declared}
    others = {name for (name, _), row in known.items() if row["spec_digest"] != declared[name]}
    found = Comparison(redeclared={spec.name: spec.origin for spec in specs if spec.name in others})
    for file in files:
        row = known.pop((file.source, file.key), None)
        if row is None:
            found.new.append(file)
        elif (row["size_bytes"], row["mtime_ns"]) == (file.size, file.mtime_ns) or file.is_sidecar:
            found.known.append(file)
        else:
            found.changed.append(file)
    found.gone = sorted(known)
    return found
