"""bytes -> bucket JPEG and bytes -> perceptual hash, against the plain way, on one core.

    python benchmarks/pixels.py [--rounds 7] [--core N]

Images: scikit-image's colour photographs, mirrored side by side at their own resolution (nothing is enlarged, so the detail and the bytes a
pixel are a photograph's) and cut to 0.6, 1, 2, 4 and 8 MP; JPEG, quality 90 to 95, no EXIF, no ICC profile.

pixels: `bucket_jpeg` against Pillow's open, exif_transpose, convert("RGB"), resize LANCZOS, save(quality=92), to the shape that the image's
bucket has. phash: all of `image_facts` (sha256, header, hash, flat flag) against `imagehash.phash(Image.open(…))`. Both ways take turns on
the same image; a time is the best of the rounds. A ratio is the plain way's seconds over ours, summed over the images: of one size in the
table, of all sizes in the last line, where the large images weigh most. psnr_db: our JPEG against the plain way's, both decoded.

The last line is JSON: pixels_ratio, phash_ratio, psnr_db_min.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import imagehash
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from demo.pictures import photographs
from imagelake import buckets
from udfs.facts import image_facts
from udfs.pixels import bucket_jpeg

PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "retina.jpg", "rocket.jpg")
SIZES = {"0.6": (930, 645), "1": (1200, 834), "2": (1414, 1414), "4": (2450, 1634), "8": (3264, 2448)}
QUALITIES = (90, 92, 95)


@dataclass
class Figures:
    """Seconds of each way summed over images, and the PSNR of each image in dB."""

    ours_s: float
    plain_s: float
    our_hash_s: float
    plain_hash_s: float
    psnr_db: list[float]


def photograph_of(picture: Image.Image, size: tuple[int, int], quality: int) -> bytes:
    pixels = np.asarray(picture)
    pad = [(0, max(0, size[1] - picture.height)), (0, max(0, size[0] - picture.width)), (0, 0)]
    mirrored = np.pad(pixels, pad, mode="symmetric")[: size[1], : size[0]]
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mirrored)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def plain_pixels(data: bytes, width: int, height: int) -> bytes:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    buffer = io.BytesIO()
    image.resize((width, height), Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def plain_hash(data: bytes) -> object:
    return imagehash.phash(Image.open(io.BytesIO(data)))


def best_of(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """The least seconds of each way; they take turns, so that a busy moment of the machine falls on all alike."""
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        for number, way in enumerate(ways):
            start = time.perf_counter()
            way()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def psnr_db(one: bytes, other: bytes) -> float:
    a, b = (np.asarray(Image.open(io.BytesIO(data)), np.float64) for data in (one, other))
    return float(10 * np.log10(255**2 / max(float(((a - b) ** 2).mean()), 1e-9)))


def shape_of(size: tuple[int, int]) -> tuple[int, int]:
    def one(value: int) -> npt.NDArray[np.int64]:
        return np.array([value], np.int64)

    _, width, height, in_range = buckets.assign(one(size[0]), one(size[1]))
    assert in_range.all(), size
    return int(width[0]), int(height[0])


def measure(images: list[bytes], shape: tuple[int, int], rounds: int) -> Figures:
    figures = Figures(0, 0, 0, 0, [])
    for data in images:
        ours, plain, our_hash, plain_hash_s = best_of(
            rounds,
            lambda data=data: bucket_jpeg(data, *shape),  # type: ignore[misc]
            lambda data=data: plain_pixels(data, *shape),  # type: ignore[misc]
            lambda data=data: image_facts(data),  # type: ignore[misc]
            lambda data=data: plain_hash(data),  # type: ignore[misc]
        )
        figures.ours_s += ours
        figures.plain_s += plain
        figures.our_hash_s += our_hash
        figures.plain_hash_s += plain_hash_s
        figures.psnr_db.append(psnr_db(bucket_jpeg(data, *shape), plain_pixels(data, *shape)))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="bucket JPEG and perceptual hash against the plain way, on one core")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, help="which core; the last one by default")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core})
    pictures = photographs(*PICTURES)
    print(f"{'MP':>4} {'to':>10} {'images':>6} {'bytes/px':>8} {'ours ms':>8} {'plain ms':>8} {'ratio':>6}", end=" ")
    print(f"{'facts ms':>8} {'imagehash':>9} {'ratio':>6} {'psnr dB':>8}")
    total: list[Figures] = []
    for name, size in SIZES.items():
        images = [photograph_of(picture, size, QUALITIES[i % len(QUALITIES)]) for i, picture in enumerate(pictures)]
        shape = shape_of(size)
        f = measure(images, shape, arguments.rounds)
        total.append(f)
        per_image = 1000 / len(images)
        bytes_per_pixel = sum(map(len, images)) / len(images) / (size[0] * size[1])
        print(f"{name:>4} {shape[0]:>5}x{shape[1]:<4} {len(images):>6} {bytes_per_pixel:>8.2f} {f.ours_s * per_image:>8.2f}", end=" ")
        print(f"{f.plain_s * per_image:>8.2f} {f.plain_s / f.ours_s:>6.2f} {f.our_hash_s * per_image:>8.2f}", end=" ")
        print(f"{f.plain_hash_s * per_image:>9.2f} {f.plain_hash_s / f.our_hash_s:>6.2f} {min(f.psnr_db):>8.1f}", flush=True)
    print(
        json.dumps(
            {
                "pixels_ratio": round(sum(f.plain_s for f in total) / sum(f.ours_s for f in total), 3),
                "phash_ratio": round(sum(f.plain_hash_s for f in total) / sum(f.our_hash_s for f in total), 3),
                "psnr_db_min": round(min(min(f.psnr_db) for f in total), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
