"""What a training run needs to open a corpus, written with the corpus's own figures: a Python file, and a dataset configuration for PRX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from imagelake import buckets, corpus, skiplist
from imagelake.corpus import Release
from imagelake.errors import ConfigError
from imagelake.skiplist import Generation
from imagelake.storage import write_atomic

PYTHON, PRX = "train_data.py", "prx_dataset.yaml"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_SUGGESTED = 32
# A suggested batch size leaves out at most this share of the samples in an epoch.
LEFT_OUT = 0.05


@dataclass(frozen=True)
class Figures:
    """Of one corpus: its kept samples by bucket, in the release's order; `root` is absolute."""

    root: Path
    release: Release
    skips: Generation
    kept: Mapping[str, int]

    @classmethod
    def of(cls, root: Path) -> Figures:
        """Raises ConfigError for what is no corpus, and for one that has nothing to train on."""
        release, skips = corpus.read_release(root), skiplist.read(root)
        kept = {name: bucket.rows - skips.by_bucket[name] for name, bucket in release.buckets.items()}
        if not any(kept.values()):
            raise ConfigError(f"{root}: every sample is skipped: there is nothing to train on")
        if not corpus.caption_columns(release.columns):
            raise ConfigError(f"{root}: its samples have no caption; their columns are {', '.join(release.columns)}")
        return cls(root.resolve(), release, skips, kept)

    @property
    def tiers(self) -> list[int]:
        """The tiers that have something to train on."""
        return sorted({corpus.split_bucket(name)[0] for name, count in self.kept.items() if count})

    @property
    def batch_size(self) -> int:
        """The largest of BATCH_SIZES that leaves out few samples of an epoch in batches of one bucket."""
        most = LEFT_OUT * sum(self.kept.values())
        return max(size for size in BATCH_SIZES if size == 1 or (size <= MOST_SUGGESTED and self.left_out(size) <= most))

    def left_out(self, size: int) -> int:
        """Samples that fill no batch of their bucket, of one epoch."""
        return sum(count % size for count in self.kept.values())

    @property
    def captions(self) -> list[str]:
        """The caption columns, first the one that the stage `caption` made; the others came with the pictures."""
        given = {f"caption_{name}" for name in self.release.captions} - {"caption"}
        return sorted(corpus.caption_columns(self.release.columns), key=lambda name: (name != "caption", name in given, name))


def write(root: Path, out: Path) -> list[Path]:
    """Write both files into the folder `out`; returns their paths.

    Raises ConfigError for what is no corpus, and for a folder that cannot be made.
    """
    figures = Figures.of(root)
    texts = {out / PYTHON: python(figures), out / PRX: prx(figures)}
    try:
        for path, text in texts.items():
            write_atomic(path, text.encode())
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written: {error.strerror}") from error
    return list(texts)


def summary(figures: Figures) -> list[str]:
    """What the corpus holds, as lines of text for a file's head."""
    release, skipped = figures.release, figures.skips.skipped
    lists = f"skip lists {figures.skips.digest}" if figures.skips.digest else "no skip lists"
    head = f"release {release.release} of {figures.root}: {release.rows} samples, {skipped} skipped ({lists})"
    counts = figures.kept.values()
    by_bucket = [
        (name, _size(name), str(release.buckets[name].shards), str(release.buckets[name].rows), str(kept))
        for name, kept in figures.kept.items()
    ]
    by_size = [
        (str(size), str(sum(count // size for count in counts)), str(figures.left_out(size)), ", ".join(_small(figures, size)))
        for size in BATCH_SIZES
        if max(counts) >= size
    ]
    return [
        head,
        "",
        *_table(("bucket", "pixels", "shards", "samples", "kept"), by_bucket),
        "",
        f"A sample's columns: {', '.join(sorted(release.columns))}.",
        "",
        "Batches of one bucket, on one rank:",
        *_table(("batch size", "batches an epoch", "samples left out", "buckets never seen"), by_size),
    ]


def _size(name: str) -> str:
    tier, key = corpus.split_bucket(name)
    shapes = buckets.shapes(tier) if tier in buckets.TIERS else ()
    return next((f"{shape.width}×{shape.height}" for shape in shapes if shape.key == key), "–")


def _small(figures: Figures, size: int) -> list[str]:
    return [name for name, count in figures.kept.items() if count < size]


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heading, *rows)]


def python(figures: Figures) -> str:
    """A Python file that opens the corpus and, run as a script, reads its first batch."""
    text = "\n".join(["Made by `imagelake loader-config`.", "", *summary(figures)]).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return f'''"""{text}
"""

from torch.utils.data import DataLoader

from imagelake.loader import CorpusDataset

CORPUS = {str(figures.root)!r}
TIERS = {figures.tiers!r}
BATCH_SIZE = {figures.batch_size}  # samples of a rank in a step: all of one bucket, thus of one size
WORKERS = 2


def dataset() -> CorpusDataset:
    """What is kept of the corpus. skips: a digest in place of "current" pins the lists."""
    return CorpusDataset(CORPUS, tiers=TIERS, batch_size=BATCH_SIZE, batching_method="chunked", skips="current")


def loader() -> DataLoader:
    """Batches as lists of samples."""
    return DataLoader(dataset(), batch_size=BATCH_SIZE, num_workers=WORKERS, collate_fn=list)


if __name__ == "__main__":
    batch = next(iter(loader()))
    print(f"{{len(batch)}} samples of {{batch[0]['width']}}×{{batch[0]['height']}} pixels: {{batch[0]['{figures.captions[0]}']!r}}")
'''


def prx(figures: Figures) -> str:
    """A dataset configuration in the shape of PRX's configs/yamls/dataset/*.yaml, with the bucket folders in their order.

    A bucket that fills no batch is left out: with it, `device_per_stream` fails or gives ranks unequal counts. No cache limit: with shards
    that are nowhere else, the reader would delete them to keep to it.
    """
    size = figures.batch_size
    left_out = [name for name in _small(figures, size) if figures.kept[name]]
    folders = [str(figures.root / name) for name, count in figures.kept.items() if count >= size]
    listed = [count for count in figures.kept.values() if count >= size]
    caption, *other = figures.captions
    body: dict[str, Any] = {
        "_target_": "imagelake.prx.StreamingProcessedDataset",
        "local": folders,
        "streaming": {
            "_target_": "prx.dataset.mds_dataset.StreamingConfig",
            "cache_limit": None,
            "shuffle": True,
            "batching_method": "device_per_stream",
        },
        "processed": {
            "_target_": "prx.dataset.mds_dataset.ProcessedConfig",
            "caption_keys": [[caption, 1.0]],
            "text_tower": "${diffusion_text_tower.preset_name}",
            "has_text_latents": False,
            "has_mask_text_latents": False,
            "transforms": [
                {
                    "_target_": "prx.dataset.transforms.ArAwareResize",
                    "default_image_size": "${image_size}",
                    "patch_size_pixels": "${patch_size_pixels}",
                }
            ],
            "transforms_targets": ["image"],
        },
        "dataloader": {
            "_target_": "prx.dataset.mds_dataset.DataLoaderConfig",
            "drop_last": True,
            "prefetch_factor": 2,
            "num_workers": 8,
            "persistent_workers": True,
            "pin_memory": True,
        },
    }
    notes = [
        "Made by `imagelake loader-config`. The shards hold captions and no text latents: PRX computes them as it trains.",
        *summary(figures),
        "",
        f"Pictures stay as they are with image_size {' or '.join(map(str, figures.tiers))} and patch_size_pixels image_size",
        f"/ {buckets.PATCHES_PER_SIDE}; those of another tier are resized.",
        f"Caption columns beside {caption}: {', '.join(other) or 'none'}.",
        f"Left out, for they hold less than {size}: {', '.join(left_out) or 'none'}. The others hold {min(listed)} and more:",
        "a device's batch, times the nodes, must not be larger.",
    ]
    head = "".join(f"# {line}".rstrip() + "\n" for line in notes)
    return f"# @package dataset.train_dataset\n{head}\n{yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=1000)}"
