"""Tars -> verified corpus: the whole chain against a plain converter, on the same images, with as many workers.

    python benchmarks/end_to_end.py [--images 6000] [--workers 2] [--work build/bench]

The plain converter is what a user would write instead: a process pool, one tar a task; Pillow decodes, converts, resizes with Lanczos and
saves at quality 92; MDSWriter writes one folder a bucket. It does not filter, deduplicate, caption, index, or verify. Ours runs every
stage, the start of Spark included. Both are timed as whole processes, one after the other. The last line is JSON: `end_to_end_ratio` is
the plain converter's seconds over ours.

Images: about 1 MP, JPEG quality 90, from scikit-image's pictures by crop, blend and noise, each with its own perceptual hash.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from demo.pictures import photographs
from imagelake import buckets

SIZES = ((1280, 854), (1024, 1024), (1200, 900), (900, 1200), (1365, 768), (1152, 864))
PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "retina.jpg", "hubble_deep_field.jpg")
IMAGES_PER_TAR = 250


def make_tar(path: Path, first: int, count: int) -> None:
    """`count` distinct images from number `first` on, each with a caption."""
    pictures = photographs(*PICTURES)
    with tarfile.open(path.with_suffix(".tmp"), "w") as tar:
        for number in range(first, first + count):
            random = np.random.default_rng(number)
            size = SIZES[number % len(SIZES)]
            layers = [crop(pictures[random.integers(len(pictures))], size, random) for _ in range(2)]
            mixed = Image.blend(layers[0], layers[1], float(random.uniform(0.25, 0.5)))
            noisy = np.asarray(mixed, np.int16) + random.normal(0, 4, (size[1], size[0], 1)).astype(np.int16)
            image = io.BytesIO()
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(image, "JPEG", quality=90)
            add(tar, f"{number:08d}.jpg", image.getvalue())
            add(tar, f"{number:08d}.txt", f"A blend of two photographs, number {number}.".encode())
    path.with_suffix(".tmp").rename(path)


def crop(picture: Image.Image, size: tuple[int, int], random: np.random.Generator) -> Image.Image:
    scale = random.uniform(0.35, 0.95)
    width = picture.width * scale
    height = min(width * size[1] / size[0], picture.height)
    left, top = random.uniform(0, picture.width - width), random.uniform(0, picture.height - height)
    part = picture.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def make_images(folder: Path, images: int, workers: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, images, IMAGES_PER_TAR)
    tars = [folder / f"{start // IMAGES_PER_TAR:05d}.tar" for start in starts]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(make_tar, tar, start, min(IMAGES_PER_TAR, images - start))
            for tar, start in zip(tars, starts, strict=True)
            if not tar.exists()
        ]
        for job in jobs:
            job.result()
    return tars


def convert(tar_path: Path) -> list[dict[str, object]]:
    """One tar, the plain way."""
    samples = []
    with tarfile.open(tar_path) as tar:
        images, captions = {}, {}
        for member in tar:
            data = tar.extractfile(member).read()  # type: ignore[union-attr]
            key, _, extension = member.name.partition(".")
            (images if extension == "jpg" else captions)[key] = data
    for key, data in images.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        tier, width, height, _ = (int(found[0]) for found in buckets.assign(np.array([image.width]), np.array([image.height])))
        out = io.BytesIO()
        image.resize((width, height), Image.Resampling.LANCZOS).save(out, "JPEG", quality=92)
        samples.append({"bucket": f"{tier}/{width / height:.3f}", "id": key, "image": out.getvalue(), "width": width, "height": height,
                        "caption": captions[key].decode()})  # fmt: skip
    return samples


def plain_converter(tars: list[Path], out: Path, workers: int) -> None:
    from streaming import MDSWriter

    columns = {"id": "str", "image": "jpeg", "width": "int", "height": "int", "caption": "str"}
    writers: dict[str, MDSWriter] = {}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for samples in pool.map(convert, tars):
            for sample in samples:
                bucket = str(sample.pop("bucket"))
                if bucket not in writers:
                    writers[bucket] = MDSWriter(out=str(out / bucket), columns=columns, size_limit=1 << 27, hashes=["xxh3_64"])
                writers[bucket].write(sample)
    for writer in writers.values():
        writer.finish()


def run_plain(folder: Path, work: Path, workers: int) -> float:
    shutil.rmtree(work / "plain", ignore_errors=True)
    command = [sys.executable, __file__, "--plain", str(folder), "--work", str(work), "--workers", str(workers)]
    return timed(command)


def run_ours(folder: Path, work: Path, workers: int) -> float:
    for name in ("lake", "corpus"):
        shutil.rmtree(work / name, ignore_errors=True)
    sources = {"sources": [{"name": "bench", "format": "webdataset", "path": f"{folder.resolve()}/*.tar", "captions": {"alt": "txt"}}]}
    (work / "sources.yaml").write_text(json.dumps(sources))
    settings = {"spark.master": f"local[{workers}]", "lake.root": work / "lake", "corpus.root": work / "corpus", "verify.workers": workers}
    command = [sys.executable, "-m", "imagelake.cli", "run", "--sources", str(work / "sources.yaml"), "--config", "conf/local.yaml"]
    return timed([*command, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))])


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


def stage_rates(lake: Path, images: int) -> Iterator[tuple[str, float, float]]:
    from imagelake import ledger

    for row in ledger.runs(lake):
        yield row["stage"], row["seconds"], images / max(row["seconds"], 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/bench"))
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain_converter(sorted(args.plain.glob("*.tar")), args.work / "plain", args.workers)
        return
    folder = args.work / f"tars-{args.images}"
    make_images(folder, args.images, args.workers)
    plain = run_plain(folder, args.work, args.workers)
    ours = run_ours(folder, args.work, args.workers)
    print(f"plain converter {plain:6.1f} s {args.images / plain:8.1f} images/s")
    print(f"imagelake run   {ours:6.1f} s {args.images / ours:8.1f} images/s")
    stages = {}
    for name, seconds, rate in stage_rates(args.work / "lake", args.images):
        print(f"  {name:10} {seconds:10.1f} s {rate:10.1f} images/s")
        stages[name] = round(seconds, 2)
    print(json.dumps({"end_to_end_ratio": round(plain / ours, 3), "plain_s": round(plain, 1), "ours_s": round(ours, 1),
                      "images": args.images, "workers": args.workers, "stage_s": stages}))  # fmt: skip


if __name__ == "__main__":
    main()
