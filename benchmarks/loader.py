"""The loader with skip lists against a plain StreamingDataset, on the same shards and in one run.

    python benchmarks/loader.py [--images 6000] [--rounds 5] [--shards 20000] [--work build/bench-loader]

`skip_ratio`: images/s of CorpusDataset with 30 % skipped over those of StreamingDataset without, one process, images as bytes, rounds
interleaved. `start_s`: how much longer CorpusDataset takes to open a corpus of many shards, a third of them with a skip list, than
StreamingDataset takes (medians). The last line is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import StreamingDataset

from imagelake import corpus, mds, skiplist
from imagelake.loader import CorpusDataset
from imagelake.skiplist import SkipList

BUCKET, EXPORT, SHAPE = "1024/1.000", "00000-bench", (1024, 1024)
COLUMNS = {"image": "jpeg", "width": "int", "height": "int", "id": "str", "caption": "str"}


def picture() -> bytes:
    random = np.random.default_rng(0)
    small = Image.fromarray(random.integers(0, 256, (64, 64, 3), np.uint8))
    file = io.BytesIO()
    small.resize(SHAPE, Image.Resampling.BICUBIC).save(file, "JPEG", quality=92, subsampling="4:2:0")
    return file.getvalue()


def make_corpus(root: Path, images: int) -> list[dict[str, Any]]:
    """Shards of 500 images; returns their index entries."""
    shutil.rmtree(root, ignore_errors=True)
    place, image, entries = corpus.bucket_dir(root, *corpus.split_bucket(BUCKET)), picture(), []
    for shard, first in enumerate(range(0, images, 500)):
        name = corpus.shard_basename(EXPORT, shard)
        numbers = range(first, min(first + 500, images))
        samples = ({"image": image, "width": SHAPE[0], "height": SHAPE[1], "id": f"{n:032x}", "caption": f"picture {n}"} for n in numbers)
        entries.append(mds.write_shard(place / name, COLUMNS, samples, basename=name, fsync=False, size_limit=1 << 31))
    publish(root, entries)
    return entries


def publish(root: Path, entries: list[dict[str, Any]]) -> None:
    mds.write_index(corpus.bucket_dir(root, *corpus.split_bucket(BUCKET)), entries)
    summary = corpus.BucketSummary.of(entries)
    corpus.write_release(root, corpus.Release(created_from={}, config_digest="", rows=summary.rows, columns=COLUMNS, captions=(),
                                              buckets={BUCKET: summary}, exports=(EXPORT,)))  # fmt: skip


def skip(root: Path, entries: list[dict[str, Any]], share: float, every: int = 1) -> None:
    """Skip `share` of the samples of each `every`-th shard."""
    random = np.random.default_rng(1)
    lists = {}
    for entry in entries[::every]:
        indices = np.flatnonzero(random.random(entry["samples"]) < share)
        lists[f"{BUCKET}/{entry['raw_data']['basename']}"] = SkipList(entry["samples"], entry["raw_data"]["bytes"], 1, indices)
    skiplist.publish(root, skiplist.write_pack(root, lists))


def rate(open_dataset: Callable[[], StreamingDataset]) -> float:
    dataset = open_dataset()
    started = time.perf_counter()
    images = sum(1 for _ in dataset)
    return images / (time.perf_counter() - started)


def seconds(open_dataset: Callable[[], StreamingDataset]) -> float:
    started = time.perf_counter()
    open_dataset()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--work", type=Path, default=Path("build/bench-loader"))
    args = parser.parse_args()
    root = args.work / "corpus"
    skip(root, make_corpus(root, args.images), 0.3)
    folder = str(corpus.bucket_dir(root, *corpus.split_bucket(BUCKET)))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True}

    def plain() -> StreamingDataset:
        dataset = StreamingDataset(local=folder, **options)
        for shard in dataset.shards:  # images as bytes, as ours: decoding would hide the difference
            shard.column_encodings = ["bytes" if name == "jpeg" else name for name in shard.column_encodings]
        return dataset

    def ours() -> StreamingDataset:
        return CorpusDataset(root, decode_images=False, clean_shared_memory=False, **options)

    rates = [(rate(plain), rate(ours)) for _ in range(args.rounds + 1)][1:]
    plain_rate, our_rate = (statistics.median(column) for column in zip(*rates, strict=True))
    skip_ratio = statistics.median(mine / theirs for theirs, mine in rates)
    print(f"plain {plain_rate:10,.0f} images/s\nours  {our_rate:10,.0f} images/s, 30 % skipped")

    entry = mds.read_index(Path(folder))[0]
    many = [entry | {"raw_data": entry["raw_data"] | {"basename": corpus.shard_basename(EXPORT, n)}} for n in range(args.shards)]
    publish(root, many)
    skip(root, many, 0.3, every=3)
    starts = [(seconds(plain), seconds(ours)) for _ in range(3)]
    start_s = statistics.median(mine - theirs for theirs, mine in starts)
    print(f"{args.shards:,} shards: plain opens in {starts[-1][0]:.2f} s, ours in {starts[-1][1]:.2f} s")
    shutil.rmtree(args.work)
    print(json.dumps({"skip_ratio": round(skip_ratio, 3), "start_s": round(start_s, 3), "images": args.images, "shards": args.shards}))


if __name__ == "__main__":
    main()
