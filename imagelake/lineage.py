"""The way of one record, from its place in a source to its place in a shard, and back. Reads no image, and needs no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from imagelake import columns as C
from imagelake import corpus, deltalog, mds, skiplist, tables
from imagelake.errors import ConfigError
from imagelake.sources.tarscan import TarScan, why_no_tar
from imagelake.sources.units import escape_name

FACTS = tuple(name for name in tables.SAMPLES.schema.names if name != C.IMAGE)


def trace(lake: Path, root: Path, image_id: str) -> dict[str, Any]:
    """What each table says of a record, in the data's order: source, sample, rejects, duplicates, curated, corpus. None or [] where it says
    nothing. `outcome` is the sum of it.

    Raises ConfigError when no table knows the id.
    """
    group = duplicate_group(lake, image_id)
    records = {row[C.IMAGE_ID]: row for row in deltalog.lookup(lake, tables.SAMPLES, C.IMAGE_ID, [image_id, *group_ids(group)], FACTS)}
    rejects = deltalog.lookup(lake, tables.REJECTS, C.IMAGE_ID, [image_id], tables.REJECTS.schema.names)
    released = corpus.is_released(root)
    found: dict[str, Any] = {
        C.IMAGE_ID: image_id,
        "outcome": "",
        "source": None,
        "sample": records.get(image_id),
        "rejects": [{name: row[name] for name in (C.STAGE, C.REASON, C.DETAIL, C.RUN_ID)} for row in rejects],
        "duplicates": group,
        "curated": curated_row(lake, image_id, records),
        "corpus": [_placed(root, row) for row in skiplist.places(root, image_id)] if released else [],
    }
    if not any(found[part] for part in ("sample", "rejects", "duplicates", "curated", "corpus")):
        where = f"the rows of {root}" if released else f"a corpus at {root}, which is not released"
        raise ConfigError(f"{image_id}: not in samples, rejects, duplicates or curated of {lake}, nor in {where}")
    found["outcome"] = _outcome(found)
    if image_id in records:
        found["source"] = origin(lake, records[image_id])
    for member in (group or {}).get("losers", ()):
        member |= {name: records.get(member[C.IMAGE_ID], {}).get(name) for name in (C.SOURCE, C.SOURCE_KEY)}
    return found


def _outcome(found: Mapping[str, Any]) -> str:
    trained = [place["shard"] for place in found["corpus"] if not place["skipped"]]
    if found["curated"]:
        return f"kept, in {len(trained)} shards" if len(trained) > 1 else "kept, exported" if trained else "kept, not trained on"
    if found["rejects"]:
        return f"rejected: {', '.join(sorted(f'{row[C.STAGE]}:{row[C.REASON]}' for row in found['rejects']))}"
    if found["duplicates"] and found["duplicates"]["keeper_id"] != found[C.IMAGE_ID]:
        return f"duplicate of {found['duplicates']['keeper_id']}"
    return "not curated yet" if found["sample"] else "unknown to the samples"


def origin(lake: Path, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The file that a record was read from, its place in there (a tar's member, a row), and whether the file is still what it was.

    `offset_bytes` and `size_bytes` of a member are looked up in the tar as long as it did not change.
    """
    uri, key = urlsplit(sample[C.SOURCE_URI]), sample[C.SOURCE_KEY]
    path, place = Path(unquote(uri.path, errors="surrogateescape")), unquote(uri.fragment, errors="surrogateescape")
    keys = [key, *(key[: cut.start()] for cut in re.finditer("[/#]", key))]
    pins = deltalog.lookup(lake, tables.SOURCE_FILES, "key", keys, tables.SOURCE_FILES.schema.names)
    pin = max((row for row in pins if row[C.SOURCE] == sample[C.SOURCE]), key=lambda row: len(row["key"]), default=None)
    found: dict[str, Any] = {C.SOURCE: sample[C.SOURCE], C.SOURCE_KEY: key, "file": escape_name(str(path)), "file_is": _state(path, pin)}
    if place.isdigit():
        found["row"] = int(place)
    elif place:
        found["member"] = escape_name(place)
        if found["file_is"] == "unchanged":
            found |= _member(path, place)
    return found


def _state(path: Path, pin: Mapping[str, Any] | None) -> str:
    try:
        facts = path.stat()
    except OSError:
        return "gone"
    if pin is None:
        return "of unknown state"
    return "unchanged" if (facts.st_size, facts.st_mtime_ns) == (pin["size_bytes"], pin["mtime_ns"]) else "changed since"


def _member(path: Path, name: str) -> dict[str, int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if why_no_tar(descriptor) is None:
            for member in TarScan(descriptor, path.stat().st_size):
                if member.name == name:
                    return {"offset_bytes": member.offset, "size_bytes": member.size}
        return {}
    finally:
        os.close(descriptor)


def duplicate_group(lake: Path, image_id: str) -> dict[str, Any] | None:
    """The keeper of a record's picture and the losers, the record's own row among them; None where it has no copy."""
    names = tables.DUPLICATES.schema.names
    own = deltalog.lookup(lake, tables.DUPLICATES, C.IMAGE_ID, [image_id], names)
    keeper = own[0][C.KEEPER_ID] if own else image_id
    losers = deltalog.lookup(lake, tables.DUPLICATES, C.KEEPER_ID, [keeper], names)
    if not losers:
        return None
    members = [{name: row[name] for name in (C.IMAGE_ID, C.KIND, C.DISTANCE, C.WON_BY)} for row in losers]
    return {"keeper_id": keeper, "losers": sorted(members, key=lambda row: str(row[C.IMAGE_ID]))}


def group_ids(group: Mapping[str, Any] | None) -> list[str]:
    return [group["keeper_id"], *(member[C.IMAGE_ID] for member in group["losers"])] if group else []


def curated_row(lake: Path, image_id: str, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The curated columns of a picture. Each of its captions says whose it was (`of`, from `records`), each annotation that is a caption
    which of them it equals (`<column>_equals`)."""
    from imagelake import lance

    if not lance.exists(lake, tables.CURATED):
        return None
    names = [name for name in lance.column_names(lake, tables.CURATED) if name not in tables.CURATED.bytes_columns]
    quoted = image_id.replace("'", "''")
    rows = lance.scan(lake, tables.CURATED, names, where=f"{C.IMAGE_ID} = '{quoted}'").to_pylist()
    if not rows:
        return None
    row: dict[str, Any] = rows[0]
    captions = row[C.CAPTIONS] or []
    for caption in captions:
        caption["of"] = [other for other, record in records.items() if (record[C.CAPTIONS] or {}).get(caption["name"]) == caption["text"]]
    for name in [name for name in names if f"{name}_fingerprint" in names and row[name] is not None]:
        row[f"{name}_equals"] = sorted({caption["name"] for caption in captions if caption["text"] == row[name]})
    return row


def _placed(root: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    bucket = corpus.bucket_name(row["tier"], row["bucket"])
    place = {"corpus": str(root), "tier": row["tier"], "bucket": row["bucket"], "shard": f"{bucket}/{row['shard']}"}
    return place | {"index": row["index"], "skipped": row["reasons"]}


def image_id_at(root: Path, shard: str, index: int) -> str:
    """The id of the sample that a shard stores at `index`, counted from 0 and with what is skipped.

    `shard` is a path, or the shard's place in the corpus. Raises ConfigError for what is no shard of it, and for an index that it lacks.
    """
    release = corpus.read_release(root)
    bucket, name = _shard_name(root, shard)
    tier, key = corpus.split_bucket(bucket)
    entries = {entry["raw_data"]["basename"]: entry for entry in mds.read_index(corpus.bucket_dir(root, tier, key))}
    if name not in entries:
        raise ConfigError(f"{shard}: no index of {root} names this shard")
    samples = entries[name]["samples"]
    if not 0 <= index < samples:
        raise ConfigError(f"--index {index}: {shard} has {samples} samples, 0 to {samples - 1}")
    filters = [("tier", "==", tier), ("bucket", "==", key), ("shard", "==", name), ("index", "==", index)]
    for file in [file for export in release.exports for file in corpus.rows_files(root, export)]:
        for row in pq.read_table(file, columns=["image_id"], filters=filters, partitioning=None).to_pylist():
            return str(row["image_id"])
    raise ConfigError(f"{shard}, sample {index}: not among the rows of {root}; `imagelake verify {root}` says more")


def _shard_name(root: Path, shard: str) -> tuple[str, str]:
    """(bucket, basename) of a shard named by its path, or by its place in the corpus."""
    path = Path(shard) if Path(shard).exists() else root / shard
    parts = Path(os.path.relpath(path.resolve(), root.resolve())).parts
    if len(parts) in (3, 4) and corpus.is_bucket("/".join(parts[:2])):
        return "/".join(parts[:2]), "/".join(parts[2:])
    raise ConfigError(f"{shard}: no shard of {root}; one is named <tier>/<bucket>/<export>/shard.00000{corpus.SHARD_SUFFIX}")


def to_text(found: Mapping[str, Any]) -> str:
    """The same for people: a heading for each part, a line for each fact that is there."""
    lines = [f"{found[C.IMAGE_ID]}  {found['outcome']}"]
    for part in ("source", "sample", "rejects", "duplicates", "curated", "corpus"):
        lines += ["", part, *(f"  {line}" for line in _lines(found[part]))]
    return "\n".join(lines)


def _lines(value: Any) -> Iterator[str]:
    entries: Sequence[Any] = value if isinstance(value, list) else [value] if value else []
    if not entries:
        yield "–"
    for entry in entries:
        if entries is value:
            yield ", ".join(f"{name} {_flat(fact)}" for name, fact in entry.items() if fact is not None)
            continue
        for name, fact in entry.items():
            if isinstance(fact, list) and fact and isinstance(fact[0], dict):
                yield name
                yield from (f"  {line}" for line in _lines(fact))
            elif fact is not None:
                yield f"{name}  {_flat(fact)}"


def _flat(fact: Any) -> str:
    if isinstance(fact, dict):
        return "; ".join(f"{name}: {text}" for name, text in fact.items()) or "–"
    return ", ".join(map(str, fact)) or "–" if isinstance(fact, list) else str(fact)
