"""A tiny corpus: two tiers, three buckets, two exports, some shards; made with the writer that export uses."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from imagelake import corpus, mds, skiplist
from imagelake.corpus import BucketSummary, Release
from imagelake.skiplist import SkipList

COLUMNS = {
    "image": "jpeg",
    "width": "int",
    "height": "int",
    "original_width": "int",
    "original_height": "int",
    "id": "str",
    "caption": "str",
    "caption_alt": "str",
    "source": "str",
    "source_key": "str",
    "license": "str",
}
SHAPES = {"512/1.000": (512, 512), "512/1.286": (576, 448), "1024/1.000": (1024, 1024)}
ROWS = {"512/1.000": 14, "512/1.286": 7, "1024/1.000": 5}
EXPORTS = ("export_a", "export_b")
SAMPLES_PER_SHARD = 4


def jpeg_bytes(width: int, height: int, seed: int = 0, mode: str = "RGB", quality: int = 92, **options: Any) -> bytes:
    """A smooth random picture with a little noise, as Pillow writes it: 4:2:0, no metadata unless `options` say so."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(small).astype(np.int16) + rng.integers(-6, 7, (height, width, 1))
    file = BytesIO()
    options = {"subsampling": "4:2:0"} | options
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode).save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def sample(bucket: str, number: int, **changes: Any) -> dict[str, Any]:
    """The n-th sample of a bucket; `changes` replaces columns."""
    width, height = SHAPES[bucket]
    values = {
        "image": changes["image"] if "image" in changes else jpeg_bytes(width, height, number),
        "width": width,
        "height": height,
        "original_width": width + number,
        "original_height": height + number,
        "id": hashlib.sha256(f"{bucket}\0{number}".encode()).hexdigest()[:32],
        "caption": f"picture {number} of {bucket}: Übung, 図, 🖼",
        "caption_alt": "" if number % 2 else "alt",
        "source": "made",
        "source_key": f"{bucket}#{number}",
        "license": "CC0-1.0",
    }
    return values | changes


def compared(values: dict[str, Any]) -> dict[str, Any]:
    """What the rows of an export say of a sample beside its place."""

    def digest(data: bytes) -> int:
        return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)

    captions = [digest(values[name].encode()) for name in corpus.caption_columns(COLUMNS)]
    return {"source": values["source"], "picture": digest(values["image"]), "captions": captions}


def make_corpus(root: Path, changes: dict[tuple[str, int], dict[str, Any]] | None = None) -> Release:
    """Write the corpus and return its release. `changes`: (bucket, number) -> columns to replace in that sample."""
    changes = changes or {}
    rows: dict[str, list[dict[str, Any]]] = {export: [] for export in EXPORTS}
    summaries = {}
    for bucket, count in ROWS.items():
        tier, key = corpus.split_bucket(bucket)
        folder = corpus.bucket_dir(root, tier, key)
        entries = []
        for export, numbers in zip(EXPORTS, (range(count // 2), range(count // 2, count)), strict=True):
            for shard, first in enumerate(range(numbers.start, numbers.stop, SAMPLES_PER_SHARD)):
                part = numbers[first - numbers.start :][:SAMPLES_PER_SHARD]
                samples = [sample(bucket, n, **changes.get((bucket, n), {})) for n in part]
                name = corpus.shard_basename(export, shard)
                entries.append(mds.write_shard(folder / name, COLUMNS, samples, basename=name, fsync=False))
                rows[export] += [
                    {"image_id": values["id"], "tier": tier, "bucket": key, "shard": name, "index": index} | compared(values)
                    for index, values in enumerate(samples)
                ]
        mds.write_index(folder, entries)
        summaries[bucket] = BucketSummary.of(entries)
    for export, values in rows.items():
        path = corpus.rows_path(root, export)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(values, corpus.EXPORTED_SCHEMA), path)
    return corpus.write_release(
        root,
        Release(
            created_from={"curated": 3},
            config_digest="0123456789abcdef",
            rows=sum(ROWS.values()),
            columns=COLUMNS,
            captions=("caption", "caption_alt"),
            buckets=summaries,
            exports=EXPORTS,
        ),
    )


def skip(root: Path, reasons: dict[str, list[str]], generation: int = 1) -> str:
    """Publish lists that skip the samples named; returns the generation's digest."""
    release = corpus.read_release(root)
    rows = [row for export in release.exports for row in pq.read_table(corpus.rows_path(root, export)).to_pylist()]
    rows = [row | {"reasons": reasons[row["image_id"]]} for row in rows if row["image_id"] in reasons]
    lists = {}
    for bucket in release.buckets:
        for entry in mds.read_index(corpus.bucket_dir(root, *corpus.split_bucket(bucket))):
            name = f"{bucket}/{entry['raw_data']['basename']}"
            indices = sorted(row["index"] for row in rows if f"{row['tier']}/{row['bucket']}/{row['shard']}" == name)
            if indices:
                lists[name] = SkipList(entry["samples"], entry["raw_data"]["bytes"], generation, np.array(indices, np.int64))
    digest = skiplist.write_pack(root, lists)
    skiplist.reasons_path(root, digest).mkdir()
    table = pa.Table.from_pylist([{name: row[name] for name in skiplist.ROWS_SCHEMA.names} for row in rows], skiplist.ROWS_SCHEMA)
    pq.write_table(table, skiplist.reasons_path(root, digest) / "part-0.parquet")
    skiplist.publish(root, digest)
    return digest
