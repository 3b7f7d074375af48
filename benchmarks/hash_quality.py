"""How well the perceptual hash knows a picture again, against `imagehash.phash`; and what decoding at a fraction of the size costs it.

    python benchmarks/hash_quality.py [--limit N]

Photographs: those of the demo (scikit-image's) and, where they are, the shared ones (IMAGELAKE_SMALL_DATA, or ../shared/data/small
beside the project). Left out: what has no usable hash (flat), what is transparent, and a photograph whose bytes came before. Copies are
made of each, and the labelled copies of small/dups come on top. The table has one row for each kind of copy: pairs (photograph, copy), the
mean Hamming distance, and the percentage of pairs at distance 0, at most 1 and at most 2 (a median splits the bits evenly, so distances
are even but for a change of DC); `worse` and `better` are the pairs at which our distance is above and below that of imagehash.

true_…, imagehash_…, worse_pairs, better_pairs: over the true copies, which show all of the photograph and nothing else.
false_pairs: pairs of originals at distance 2 or less; each is printed, since two files may show one picture, and only eyes can tell.
equal_share, within_2_bits: of the JPEGs that are decoded at a fraction of their size, the share whose hash is that of Pillow's full decode,
and the share within 2 bits of it; decode_ratio: seconds of full decode and hash over those at the fraction. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import imagehash
import numpy as np
from PIL import Image, ImageDraw, ImageOps

from demo.pictures import all_pictures, shipped
from imagelake.paths import PROJECT
from udfs import jpeg
from udfs.facts import HASH_MIN_SIDE, image_facts
from udfs.phash import hamming, phash64

SMALL_DATA = Path(os.environ.get("IMAGELAKE_SMALL_DATA", PROJECT.parent / "shared" / "data" / "small"))


def saved(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **({"quality": 92} | options if format != "PNG" else options))
    return out.getvalue()


def resized(image: Image.Image, factor: float) -> bytes:
    return saved(image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC))


def cropped(image: Image.Image, share: float) -> bytes:
    dx, dy = round(image.width * share), round(image.height * share)
    return saved(image.crop((dx, dy, image.width - dx, image.height - dy)))


def turned_by_exif(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(image.transpose(Image.Transpose.ROTATE_90), exif=exif)


def watermarked(image: Image.Image) -> bytes:
    marked = image.copy()
    width, height = image.size
    text = Image.new("L", (60, 12))
    ImageDraw.Draw(text).text((2, 0), "STOCK PIX", fill=160)
    mask = text.resize((width // 4, height // 16), Image.Resampling.BICUBIC)
    marked.paste((255, 255, 255), (width * 2 // 3, height * 9 // 10), mask)
    return saved(marked)


# kind -> the bytes of a copy of an RGB photograph
TRUE_COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    **{f"resize {factor}": lambda image, factor=factor: resized(image, factor) for factor in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)},  # type: ignore[misc]
    **{f"jpeg q{quality}": lambda image, quality=quality: saved(image, quality=quality) for quality in (30, 50, 70, 80, 90, 95)},  # type: ignore[misc]
    "jpeg 4:4:4 progressive": lambda image: saved(image, quality=85, subsampling=0, progressive=True),
    "webp q80": lambda image: saved(image, "WEBP", quality=80),
    "webp q50": lambda image: saved(image, "WEBP", quality=50),
    "png": lambda image: saved(image, "PNG", compress_level=1),
    "grey": lambda image: saved(image.convert("L")),
    "turned by exif": turned_by_exif,
}
EDITS: dict[str, Callable[[Image.Image], bytes]] = {
    "crop 1 % each side": lambda image: cropped(image, 0.01),
    "crop 5 % each side": lambda image: cropped(image, 0.05),
    "watermark": watermarked,
    "flip": lambda image: saved(ImageOps.mirror(image)),
}
# Transforms of dups/labels.csv whose copies show all of the photograph and nothing else, so that an equal hash is to be hoped for.
SAME_PICTURE = ("jpeg-", "progressive", "webp", "png", "resize", "grayscale")


@dataclass(frozen=True)
class Hashes:
    ours: int
    theirs: imagehash.ImageHash


@dataclass(frozen=True)
class Photograph:
    name: str
    data: bytes
    image: Image.Image
    hashes: Hashes


def hashes_of(data: bytes) -> Hashes | None:
    """None for bytes whose hash is not compared: flat, transparent or unreadable."""
    facts = image_facts(data)
    if facts.phash is None or facts.is_flat or facts.phash_black is not None:
        return None
    return Hashes(facts.phash, imagehash.phash(Image.open(io.BytesIO(data))))


def photographs(limit: int | None) -> list[Photograph]:
    demo = sorted({shipped() / picture.file for picture in all_pictures().values()})
    shared = sorted(path for path in (SMALL_DATA / "photos").rglob("*") if path.is_file())
    found: dict[bytes, Photograph] = {}
    for path in (*demo, *shared):
        data = path.read_bytes()
        hashes = hashes_of(data) if data not in found else None
        if hashes is not None:
            found[data] = Photograph(path.name, data, ImageOps.exif_transpose(Image.open(path)).convert("RGB"), hashes)
    return list(found.values())[:limit]


def labelled() -> Iterator[tuple[str, Hashes, Hashes, bytes]]:
    """kind, hashes of the base and of its copy, bytes of the copy: of dups/labels.csv."""
    labels = SMALL_DATA / "dups" / "labels.csv"
    if not labels.is_file():
        print(f"{labels} does not exist: its pairs are left out; IMAGELAKE_SMALL_DATA names the folder of the small data set")
        return
    rows = list(csv.DictReader(labels.open(encoding="utf-8")))
    bases = {row["group"]: hashes_of((SMALL_DATA / row["path"]).read_bytes()) for row in rows if row["transform"] == "base"}
    for row in rows:
        data = (SMALL_DATA / row["path"]).read_bytes()
        base, copy = bases[row["group"]], hashes_of(data)
        if row["transform"] != "base" and base is not None and copy is not None:
            yield f"dups {row['transform']}", base, copy, data


def pairs(pictures: list[Photograph]) -> Iterator[tuple[str, Hashes, Hashes, bytes]]:
    for picture in pictures:
        for kind, copy in (TRUE_COPIES | EDITS).items():
            data = copy(picture.image)
            hashes = hashes_of(data)
            if hashes is not None:
                yield kind, picture.hashes, hashes, data
    yield from labelled()


def is_true(kind: str) -> bool:
    return kind in TRUE_COPIES or kind.removeprefix("dups ").startswith(SAME_PICTURE)


def false_pairs(pictures: list[Photograph]) -> int:
    """Prints the pairs of different pictures at distance 2 or less, and returns how many there are."""
    pairs = [(a.name, b.name, hamming(a.hashes.ours, b.hashes.ours)) for a, b in itertools.combinations(pictures, 2)]
    near = [pair for pair in pairs if pair[2] <= 2]
    for one, other, bits in near:
        print(f"{bits} bits apart: {one}, {other}")
    return len(near)


@dataclass
class Scaled:
    """Distances of the hash of a reduced decode to that of the full one, and the seconds of both."""

    bits: list[int]
    full_s: float = 0
    reduced_s: float = 0

    def add(self, data: bytes) -> None:
        frame = jpeg.frame_of(data) if data[:2] == b"\xff\xd8" else None
        if frame is None or min(frame.width, frame.height) < 2 * HASH_MIN_SIDE:
            return
        started = time.perf_counter()
        reduced = jpeg.decode(data, "GRAY", min_side=HASH_MIN_SIDE)
        if reduced is None:
            return
        hash_of_reduced, between = phash64(reduced), time.perf_counter()
        hash_of_full = phash64(np.asarray(Image.open(io.BytesIO(data)).convert("L")))
        self.bits.append(hamming(hash_of_full, hash_of_reduced))
        self.reduced_s += between - started
        self.full_s += time.perf_counter() - between


def share(bits: list[int], at_most: int) -> float:
    return sum(value <= at_most for value in bits) / len(bits) if bits else float("nan")


@dataclass
class Kind:
    """Distances of the pairs of one kind of copy, ours and those of imagehash, in the same order."""

    ours: list[int]
    theirs: list[int]

    @property
    def worse(self) -> int:
        return sum(a > b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def better(self) -> int:
        return sum(a < b for a, b in zip(self.ours, self.theirs, strict=True))


def row(bits: list[int]) -> str:
    return f"{np.mean(bits):6.2f} " + " ".join(f"{100 * share(bits, most):6.1f}" for most in (0, 1, 2))


def print_table(kinds: dict[str, Kind]) -> None:
    columns = f"{'bits':>6} {'=0':>6} {'≤1':>6} {'≤2':>6}"
    print(f"{'':36} {'ours':>27}   {'imagehash.phash':>27}")
    print(f"{'kind of copy':30} {'pairs':>5} {columns}   {columns} {'worse':>6} {'better':>6}")
    for name, kind in kinds.items():
        print(f"{name:30} {len(kind.ours):5} {row(kind.ours)}   {row(kind.theirs)} {kind.worse:6} {kind.better:6}", end="")
        print("" if is_true(name) else "  (an edit)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="photographs to take; default all")
    pictures = photographs(parser.parse_args().limit)
    kinds: dict[str, Kind] = defaultdict(lambda: Kind([], []))
    scaled = Scaled([])
    for name, base, copy, data in pairs(pictures):
        kinds[name].ours.append(hamming(base.ours, copy.ours))
        kinds[name].theirs.append(int(base.theirs - copy.theirs))
        scaled.add(data)
    for picture in pictures:
        scaled.add(picture.data)
    print(f"{len(pictures)} photographs")
    print_table(kinds)
    true = Kind([], [])
    for name, kind in kinds.items():
        if is_true(name):
            true = Kind(true.ours + kind.ours, true.theirs + kind.theirs)
    figures = {
        "equal_share": share(scaled.bits, 0),
        "within_2_bits": share(scaled.bits, 2),
        "decode_ratio": scaled.full_s / scaled.reduced_s if scaled.bits else float("nan"),
        "reduced_decodes": len(scaled.bits),
        "true_pairs": len(true.ours),
        "true_equal_share": share(true.ours, 0),
        "true_within_2_bits": share(true.ours, 2),
        "imagehash_equal_share": share(true.theirs, 0),
        "imagehash_within_2_bits": share(true.theirs, 2),
        "worse_pairs": true.worse,
        "better_pairs": true.better,
        "false_pairs": false_pairs(pictures),
    }
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
