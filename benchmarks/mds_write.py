"""Writes the same JPEG samples as MDS shards with imagelake.mds and with streaming's MDSWriter, and compares.

Samples are held in memory, shards are 128 MiB, neither side waits for the disk (no fsync); the best of --rounds counts,
taken in turns. The shard files must be byte for byte the same. The last line is JSON: write_ratio is ours over theirs in bytes per second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter

from imagelake import mds

COLUMNS = {"image": "jpeg", "width": "int", "height": "int", "id": "str", "caption": "str", "source": "str"}
SIDE = 1024


def samples(count: int, distinct: int) -> list[dict[str, Any]]:
    """Pictures of about 1 MP and a quarter of a megabyte; `distinct` of them, each its own bytes object."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(distinct):
        small = Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8))
        smooth = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = (smooth + rng.integers(-4, 5, (SIDE, SIDE, 1))).clip(0, 255).astype(np.uint8)
        file = BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=92, subsampling="4:2:0")
        images.append(file.getvalue())
    return [
        {
            "image": bytes(bytearray(images[number % distinct])),
            "width": SIDE,
            "height": SIDE,
            "id": f"{number:032x}",
            "caption": "a caption of some words " * 8,
            "source": "made",
        }
        for number in range(count)
    ]


def write_ours(out: Path, values: list[dict[str, Any]]) -> None:
    entries: list[dict[str, Any]] = []
    header, constant = mds.shard_header_bytes(COLUMNS), mds.fixed_bytes(COLUMNS)
    begin, total = 0, header
    for at, sample in enumerate([*values, None]):
        text = 0 if sample is None else sum(len(sample[name].encode()) for name in ("id", "caption", "source"))
        size = 0 if sample is None else constant + len(sample["image"]) + text
        if sample is None or (total + size > mds.SIZE_LIMIT and at > begin):
            name = f"shard.{len(entries):05}.mds"
            part = values[begin:at]
            entries.append(mds.write_shard(out / name, COLUMNS, part, basename=name, shape=(SIDE, SIDE), fsync=False))
            begin, total = at, header
        total += size
    mds.write_index(out, entries)


def write_theirs(out: Path, values: list[dict[str, Any]]) -> None:
    with MDSWriter(columns=COLUMNS, out=str(out), hashes=[mds.HASH], size_limit=mds.SIZE_LIMIT) as writer:
        for sample in values:
            writer.write(sample)


def seconds(write: Callable[[Path, list[dict[str, Any]]], None], out: Path, values: list[dict[str, Any]]) -> float:
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    write(out, values)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None, help="folder to write below; default the system's temporary one")
    args = parser.parse_args()
    values = samples(args.samples, 16)
    size = sum(len(sample["image"]) for sample in values)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        times = [(seconds(write_ours, ours, values), seconds(write_theirs, theirs, values)) for _ in range(args.rounds)]
        for path in sorted(theirs.iterdir()):
            if path.read_bytes() != (ours / path.name).read_bytes():
                raise SystemExit(f"{path.name} differs")
    best_ours, best_theirs = (min(column) for column in zip(*times, strict=True))
    print(
        f"{len(values)} samples, {size / 1e6:.0f} MB: ours {size / best_ours / 1e9:.2f} GB/s, MDSWriter {size / best_theirs / 1e9:.2f} GB/s"
    )
    figures = {"write_ratio": best_theirs / best_ours, "ours_gb_s": size / best_ours / 1e9, "mdswriter_gb_s": size / best_theirs / 1e9}
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
