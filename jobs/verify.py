"""corpus -> report: every shard read back, as a trainer would, and checked against index, rows and release."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from imagelake import buckets, corpus, ledger, mds, progress, skipcheck, skiplist
from imagelake.config import Config
from imagelake.corpus import BucketSummary, Release
from imagelake.errors import ImagelakeError
from imagelake.ledger import StageResult
from imagelake.runner import run
from imagelake.shardcheck import UNREADABLE_ID, Fault, ShardResult, ShardTask, check_shard, hash_id, read_ids
from imagelake.verifyreport import VerifyReport, gate

# Called with the images and the bytes checked since the last call.
Progress = Callable[[int, int], None]

ROWS_PER_BATCH = 1 << 17
# Below this, starting processes takes longer than the work.
POOL_MIN_BYTES = 32 << 20


def check_corpus(
    root: Path,
    *,
    workers: int = 2,
    decode: bool = True,
    max_faults: int = 10_000,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Check a corpus whole, with `workers` processes (in this one when 1, or when the corpus is small).

    decode False leaves the compressed pixels unread; hashes still cover them. Raises ConfigError when `root` is not a corpus; whatever
    is wrong inside a corpus is a fault in the report.
    """
    root, started = Path(root), time.monotonic()
    release = corpus.read_release(root)
    report = VerifyReport(str(root), release.release, decode, max_faults)
    indexes = _indexes(root, release, report)
    tasks = [task for name, entries in indexes.items() for task in _tasks(root, release, name, entries, decode, max_faults, report)]
    results: dict[tuple[str, str], ShardResult] = {}
    for result in _run(tasks, workers):
        results[result.task.bucket, result.task.shard] = result
        report.merge(result.faults, result.counts)
        report.images += result.samples
        report.read_bytes += result.read_bytes
        if on_progress is not None:
            on_progress(result.samples, result.read_bytes)
    report.shards = len(results)
    if report.images != release.rows:
        report.add(Fault("rows_total", f"{report.images} samples in the shards, {release.rows} by the release"))
    _check_unique(results, release, report)
    _check_rows(root, release, results, report)
    _check_skips(root, indexes, report)
    _check_files(root, release, results, report)
    report.sort()
    report.seconds = time.monotonic() - started
    return report


def _indexes(root: Path, release: Release, report: VerifyReport) -> dict[str, list[dict[str, Any]]]:
    """The index entries of each bucket, and the release against them."""
    if release.release != release.digest():
        report.add(Fault("release_digest", f"release.json says {release.release}, its content gives {release.digest()}"))
    if sum(bucket.rows for bucket in release.buckets.values()) != release.rows:
        report.add(Fault("release_rows", "its rows are not the sum of its buckets'"))
    published = corpus.published_buckets(root)
    for name in sorted(set(published) - set(release.buckets)):
        report.add(Fault("bucket_unknown", "it has an index.json, but the release does not name it", name))
    found = {}
    for name, summary in release.buckets.items():
        if name not in published:
            report.add(Fault("index_missing", "the release names it, but it has no index.json", name))
            continue
        try:
            entries = mds.read_index(corpus.bucket_dir(root, *corpus.split_bucket(name)))
            actual = BucketSummary.of(entries)
        except (ImagelakeError, LookupError, TypeError, ValueError) as error:
            report.add(Fault("index_unreadable", f"{type(error).__name__}: {error}", name))
            continue
        found[name] = entries
        for key in ("rows", "shards", "bytes"):
            if getattr(actual, key) != getattr(summary, key):
                text = f"{key}: {getattr(actual, key)} by index.json, {getattr(summary, key)} by the release"
                report.add(Fault("bucket_counts", text, name))
        if summary.index_digest and summary.index_digest != actual.index_digest:
            report.add(Fault("index_digest", "index.json is not the one that the release was made with", name))
    return found


def _tasks(
    root: Path,
    release: Release,
    name: str,
    entries: list[dict[str, Any]],
    decode: bool,
    max_faults: int,
    report: VerifyReport,
) -> Iterator[ShardTask]:
    """One task for each shard that an index names in a way that can be followed."""
    tier, key = corpus.split_bucket(name)
    known = {shape.key: (shape.width, shape.height) for shape in (buckets.shapes(tier) if tier in buckets.TIERS else ())}
    if key not in known:
        report.add(Fault("bucket_shape", "no tier has such a bucket", name))
    seen = set()
    for entry in entries:
        try:
            raw = entry["raw_data"]
            shard, samples, size, digest = raw["basename"], entry["samples"], raw["bytes"], raw["hashes"][mds.HASH]
        except (KeyError, TypeError) as error:
            report.add(Fault("index_entry", f"an entry of index.json lacks {error}", name))
            continue
        if not mds.is_basename(shard):
            report.add(Fault("shard_name", "not inside the bucket, at most one folder deep", name, shard))
        elif shard in seen:
            report.add(Fault("shard_twice", "index.json names it twice", name, shard))
        else:
            seen.add(shard)
            if shard.split("/")[0] not in release.exports:
                report.add(Fault("export_unknown", "the release names no such export", name, shard))
            columns = dict(zip(entry.get("column_names", ()), entry.get("column_encodings", ()), strict=False))
            if columns != release.columns:
                report.add(Fault("index_columns", "its columns are not those of the release", name, shard))
            path = corpus.bucket_dir(root, tier, key) / shard
            yield ShardTask(str(path), name, shard, samples, size, digest, release.columns, known.get(key),
                            release.jpeg_quality, decode, max_faults)  # fmt: skip


def _run(tasks: list[ShardTask], workers: int) -> Iterator[ShardResult]:
    if workers <= 1 or len(tasks) <= 1 or sum(task.size_bytes for task in tasks) < POOL_MIN_BYTES:
        yield from map(check_shard, tasks)
        return
    # spawn: a fork of a process with threads (Spark's gateway, a progress bar) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context) as pool:
        futures = {pool.submit(check_shard, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise ImagelakeError("a verify worker died: out of memory, or a shard that crashes the decoder") from error


def _check_unique(results: dict[tuple[str, str], ShardResult], release: Release, report: VerifyReport) -> None:
    """No id twice in the corpus. Hashes find candidates; the ids themselves decide."""
    ordered = [results[place] for place in sorted(results)]
    hashes = np.concatenate([result.id_hashes for result in ordered] or [np.zeros(0, np.uint64)])
    values, counts = np.unique(hashes, return_counts=True)
    repeated = values[(counts > 1) & (values != UNREADABLE_ID)]
    if not len(repeated):
        return
    first: dict[str, str] = {}
    for result in ordered:
        indices = np.flatnonzero(np.isin(result.id_hashes, repeated))
        ids = read_ids(Path(result.task.path), release.columns) if len(indices) else []
        for index in indices.tolist():
            place = f"{result.task.bucket}, {result.task.shard}, sample {index}"
            if ids[index] in first:
                text = f"its id is also at {first[ids[index]]}"
                report.add(Fault("id_twice", text, result.task.bucket, result.task.shard, index, ids[index]))
            first.setdefault(ids[index], place)


def _check_rows(root: Path, release: Release, results: dict[tuple[str, str], ShardResult], report: VerifyReport) -> None:
    """rows/ names each sample of the shards once, at its place, and nothing else."""
    found: dict[tuple[str, str], list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]] = {}
    for export in release.exports:
        files = corpus.rows_files(root, export)
        if not files:
            report.add(Fault("rows_missing", f"rows/{export}.parquet is missing"))
        for file in files:
            try:
                for place, index, hashes in _read_rows(file):
                    found.setdefault(place, []).append((index, hashes))
            except (OSError, pa.ArrowException, KeyError, TypeError) as error:
                report.add(Fault("rows_unreadable", f"{file.relative_to(root)}: {error}"))
    for bucket, shard in sorted(found.keys() - results.keys()):
        report.add(Fault("rows_unknown_shard", "rows/ names a shard that no index names", bucket, shard))
    for (bucket, shard), result in results.items():
        if not result.samples:
            continue  # the shard could not be read, and has its fault
        parts = found.get((bucket, shard), [])
        index = np.concatenate([part[0] for part in parts] or [np.zeros(0, np.int64)])
        hashes = np.concatenate([part[1] for part in parts] or [np.zeros(0, np.uint64)])
        inside = (index >= 0) & (index < result.samples)
        times = np.bincount(index[inside], minlength=result.samples)
        for kind, count in (("names none of", int((times == 0).sum())), ("names twice", int((times > 1).sum()))):
            if count:
                report.add(Fault("rows_count", f"rows/ {kind} {count} samples of this shard", bucket, shard))
        if not inside.all():
            report.add(Fault("rows_index", f"rows/ names {int((~inside).sum())} samples beyond its end", bucket, shard))
        stored = result.id_hashes[index[inside]]
        for at in index[inside][(stored != hashes[inside]) & (stored != UNREADABLE_ID)].tolist():
            report.add(Fault("rows_id", "rows/ has another id at this place", bucket, shard, at))


def _read_rows(file: Path) -> Iterator[tuple[tuple[str, str], npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """(bucket, shard), places int64 [n] and id hashes uint64 [n] of the rows of one Parquet file, in pieces."""
    for batch in pq.ParquetFile(file).iter_batches(ROWS_PER_BATCH, columns=corpus.ROWS_SCHEMA.names):
        columns = batch.to_pydict()
        hashes = np.fromiter((hash_id(value or "") for value in columns["image_id"]), np.uint64, len(batch))
        index = np.array(columns["index"], np.int64)
        names = [f"{t}/{b}\0{s}" for t, b, s in zip(columns["tier"], columns["bucket"], columns["shard"], strict=True)]
        places, codes = np.unique(np.array(names, object), return_inverse=True)
        for code, place in enumerate(places):
            bucket, _, shard = place.partition("\0")
            yield (bucket, shard), index[codes == code], hashes[codes == code]


def _check_skips(root: Path, indexes: dict[str, list[dict[str, Any]]], report: VerifyReport) -> None:
    generation, faults = skipcheck.check(root, indexes)
    for fault in faults:
        report.add(fault)
    if generation is not None:
        report.skips = generation.digest
        report.skipped = sum(len(found.skipped) for found in generation.lists.values())


def _check_files(root: Path, release: Release, results: dict[tuple[str, str], ShardResult], report: VerifyReport) -> None:
    """No file that readers would take for an index or a stream; what nothing names is noted."""
    named = {root / corpus.RELEASE} | {Path(result.task.path) for result in results.values()}
    named |= {root / bucket / mds.INDEX for bucket in release.buckets}
    named |= {skiplist.sidecar(root, f"{result.task.bucket}/{result.task.shard}") for result in results.values()}
    folders = [*(corpus.rows_path(root, export) for export in release.exports), root / skiplist.FOLDER, root / corpus.RELEASES]
    for path in root.rglob("*"):
        if path in named or not path.is_file() or any(path == folder or folder in path.parents for folder in folders):
            continue
        relative = path.relative_to(root).as_posix()
        if path.name.endswith(mds.INDEX):
            if relative.removesuffix(f"/{mds.INDEX}") not in corpus.published_buckets(root):
                report.add(Fault("stray_index", f"{relative}: readers would take it for an index"))
        else:
            report.notes.append(f"{relative}: no index names it")


def main(cfg: Config) -> StageResult:
    """Verify the corpus unless this release was verified before with these skip lists; `imagelake verify` reads it at any time."""
    root = Path(cfg.corpus.root)
    if not corpus.is_released(root):
        return StageResult(nothing_to_do=True)  # nothing was kept, so nothing was exported
    release = corpus.read_release(root)
    state = {"release": release.release, "skips": skiplist.current_digest(root) or ""}
    last = ledger.last_good(Path(cfg.lake.root), "verify")
    if last is not None and last["notes"] == state:
        return StageResult(nothing_to_do=True)
    with progress.meter("verify", total=release.rows) as meter:
        report = check_corpus(root, workers=cfg.verify.workers, on_progress=lambda images, _: meter.add(images))
    gate(report)
    return StageResult(report.images, report.images, notes=state)


if __name__ == "__main__":
    run(main, "verify")
