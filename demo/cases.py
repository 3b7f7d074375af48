"""The planted variants: each is one sample whose fate is known, beside the plain pictures."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from demo.pictures import Picture, all_pictures, encoded, opened, rendered
from demo.samples import KEPT, Sample, Source, duplicate_of, image_id, rejected, source_keys

EXIF_ORIENTATION = 0x0112
ROTATED_RIGHT = 6  # stored pixels must be turned 90° to the right to stand upright


def all_samples() -> list[Sample]:
    """Plain pictures and planted variants, in no particular order."""
    pictures = all_pictures()
    planted = [sample for make in CASES for sample in make(pictures)]
    taken = {sample.name for sample in planted}
    samples = [plain(picture) for picture in pictures.values() if picture.name not in taken] + planted
    losers = {"cat": duplicate_of("cat-png")}  # a plain picture may lose to its copy
    samples = [dataclasses.replace(s, expected=losers[s.name]) if s.name in losers else s for s in samples]
    return _settle_exact_copies(samples)


def plain(picture: Picture, **changes: Any) -> Sample:
    """A picture as it is, or with some fields of its sample changed."""
    data = changes.pop("data", None) or encoded(rendered(picture), changes.get("extension", picture.extension))
    fields: dict[str, Any] = {
        "name": picture.name,
        "source": picture.source,
        "extension": picture.extension,
        "caption": picture.caption,
        "license": picture.license,
        "attribution": picture.attribution,
    }
    return Sample(data=data, **fields | changes)


def copies(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Copies of a picture in other sizes and encodings: the one with most pixels is kept, then the one with most bytes."""

    def copy(of: str, suffix: str, source: Source, case: str, caption: str, **changes: Any) -> Sample:
        return plain(
            pictures[of], name=f"{of}-{suffix}", source=source, case=case, caption=caption, **{"expected": duplicate_of(of)} | changes
        )

    # Only pictures whose hash withstands far stronger changes than these: near a limit a copy may differ by a bit or two.
    small = rendered(pictures["motorcycle-engine"]).resize((450, 382), Image.Resampling.LANCZOS)
    caption = "The engine of a red motorcycle, in a small copy."
    yield copy("motorcycle-engine", "small", "web", "resized copy", caption, extension="jpg", data=encoded(small, "jpg"))
    half = rendered(pictures["retina-disc"]).resize((620, 520), Image.Resampling.LANCZOS)
    caption = "The optic disc of a human eye at half its size."
    yield copy("retina-disc", "half", "hub", "resized copy, of another tier", caption, extension="jpg", data=encoded(half, "jpg"))
    coarse = encoded(rendered(pictures["launch-pad"]), "jpg", quality=60)
    yield copy("launch-pad", "q60", "hub", "re-encoded copy, JPEG", "A launch pad at dusk.", extension="jpg", data=coarse)
    webp = encoded(rendered(pictures["coffee"]), "webp", quality=85)
    yield copy("coffee", "webp", "photos", "re-encoded copy, WebP", "Espresso on a wooden table.", extension="webp", data=webp)
    png = encoded(rendered(pictures["cat"]), "png")
    yield copy(
        "cat", "png", "web", "re-encoded copy, PNG: more bytes, so it is kept", "A tabby cat.", extension="png", data=png, expected=KEPT
    )
    turned = rendered(pictures["cat-eyes"]).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = ROTATED_RIGHT
    data = encoded(turned, "jpg", quality=80, exif=exif)
    yield copy("cat-eyes", "turned", "photos", "copy turned by EXIF", "The green eyes of a tabby cat.", extension="jpg", data=data)
    yield copy("tissue", "again", "hub", "exact copy in another source", "Glands of the colon, stained brown.", extension="jpg")


def _settle_exact_copies(samples: list[Sample]) -> list[Sample]:
    """Which of two equal files is kept is a matter of their ids: set it by the rule."""
    keys = source_keys(samples)
    pair = sorted((s for s in samples if s.name in ("tissue", "tissue-again")), key=lambda s: image_id(s.source, keys[s.name]))
    keeper, loser = pair
    settled = {keeper.name: KEPT, loser.name: duplicate_of(keeper.name, "sha256")}
    return [dataclasses.replace(s, expected=settled[s.name]) if s.name in settled else s for s in samples]


def colour_modes(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Pixels that are not 8-bit RGB: all are kept."""
    yield plain(pictures["cameraman"], case="grey JPEG")
    moon = opened("moon.png").resize((500, 530), Image.Resampling.BICUBIC, box=(140, 300, 340, 512))
    deep = Image.fromarray(np.asarray(moon, np.uint16) * 257)
    caption = "A cluster of black rocks on the grey lunar plain, with a trail of smaller dark spots above it and shallow pits all around."
    yield Sample("moon-boulders", "photos", "png", encoded(deep, "png"), caption, None, "scikit-image", case="16-bit grey PNG")
    shelves = opened("motorcycle_left.png").resize((700, 494), Image.Resampling.LANCZOS, box=(500, 0, 741, 170))
    caption = (
        "Cardboard boxes on a grey steel shelf against a wooden garage wall, a white plastic tub below them, and the chrome headlight of a "
        "motorcycle in the lower left corner."
    )
    attribution = pictures["motorcycle"].attribution
    yield Sample("garage-shelves", "web", "jpg", encoded(shelves.convert("CMYK"), "jpg"), caption, None, attribution, case="CMYK JPEG")
    yield plain(pictures["horse"], case="transparent PNG")
    yield plain(pictures["snake-logo"], case="transparent PNG")
    board = opened("chessboard_GRAY.png").resize((480, 480), Image.Resampling.NEAREST)
    frames = encoded(board, "gif", save_all=True, append_images=[board.transpose(Image.Transpose.FLIP_LEFT_RIGHT)], duration=500)
    caption = "A chessboard of eight by eight black and white squares, seen straight from above, without pieces."
    yield Sample("chessboard", "photos", "gif", frames, caption, None, "scikit-image", case="animated GIF: first frame")


def flat(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Pictures without any detail have the same perceptual hash, or none: they are no copies of each other."""
    for name, level in (("white", 255), ("grey", 128)):
        data = encoded(Image.new("RGB", (512, 512), (level,) * 3), "png")
        yield Sample(f"plain-{name}", "photos", "png", data, f"A plain {name} square.", "CC0-1.0", case="flat picture, not a duplicate")


def shapes(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Sizes and ratios at both sides of the limits."""
    yield plain(pictures["cat-nose"], case="exactly 384²")
    under = opened("gravel.png").resize((384, 383), Image.Resampling.LANCZOS, box=(40, 80, 300, 339))
    small = rejected("filter", "below_min_pixels")
    yield Sample(
        "gravel-stones", "hub", "jpg", encoded(under, "jpg"), "Sharp-edged stones.", "CC0-1.0", case="one row below 384²", expected=small
    )
    tiny = opened("grass.png").resize((300, 200), Image.Resampling.LANCZOS, box=(0, 0, 450, 300))
    yield Sample("grass-small", "photos", "jpg", encoded(tiny, "jpg"), "Trampled grass.", "CC0-1.0", case="too small", expected=small)
    scan = encoded(opened("microaneurysms.png"), "png")
    yield Sample("microaneurysms", "web", "png", scan, "Dark vessels in a retina.", "CC0-1.0", case="too small", expected=small)
    yield plain(pictures["coffee-table"], case="exactly 1:2")
    extreme = rejected("filter", "aspect_ratio")
    for name, source, file, size, box in _STRIPS:
        image = opened(file).resize(size, Image.Resampling.LANCZOS, box=box)
        case = f"extreme ratio, {size[0]} × {size[1]}"
        yield Sample(name, source, "jpg", encoded(image, "jpg"), f"A strip of {name.partition('-')[0]}.", None, case=case, expected=extreme)


_STRIPS: tuple[tuple[str, Source, str, tuple[int, int], tuple[int, int, int, int]], ...] = (
    ("motorcycle-strip", "web", "motorcycle_left.png", (1500, 300), (0, 200, 741, 348)),
    ("tower-strip", "photos", "rocket.jpg", (300, 1500), (0, 0, 85, 427)),
    ("handwriting-strip", "hub", "text.png", (896, 344), (0, 0, 448, 172)),
)


def unreadable(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Bytes that are no image that can be used: each is rejected alone, its neighbours stay."""

    def bad(name: str, source: Source, extension: str, data: bytes, case: str, reason: str) -> Sample:
        return Sample(name, source, extension, data, None, case=case, expected=rejected("ingest", reason))

    jpeg = encoded(rendered(pictures["rocket"]), "jpg", quality=95)
    yield bad("rocket-half", "web", "jpg", jpeg[: len(jpeg) // 2], "JPEG cut at half", "truncated")
    png = encoded(rendered(pictures["bricks-close"]), "png")
    yield bad("bricks-half", "photos", "png", png[: len(png) // 2], "PNG cut at half", "truncated")
    yield bad("notes", "photos", "jpg", b"Shopping list: coffee, cat food, gravel.\n", "text file named .jpg", "not_an_image")
    yield bad("drawing", "photos", "png", _SVG, "SVG named .png", "unsupported_format")
    yield bad("nothing", "photos", "jpg", b"", "empty file", "empty")
    yield bad("enormous", "hub", "png", _huge_png(30_000, 30_000), "PNG header of 900 MP", "too_many_pixels")


_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="512" height="512"><circle cx="256" cy="256" r="200" fill="teal"/></svg>\n'


def _huge_png(width: int, height: int) -> bytes:
    """A PNG of a hundred bytes that claims width × height pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def conflicts(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """A tar with two members of one name: the first wins."""
    other = io.BytesIO()
    rendered(pictures["launch-tower"]).save(other, "JPEG", quality=50)
    conflict = rejected("ingest", "duplicate_member")
    name = "rocket-alone"
    yield Sample(f"{name}-second", "web", "jpg", other.getvalue(), None, case="tar member twice", expected=conflict, member=name)


def captions(pictures: Mapping[str, Picture]) -> Iterator[Sample]:
    """Captions that are missing or hostile: the picture is kept."""
    yield plain(pictures["galaxies-left"], case="no caption", caption=None)
    yield plain(pictures["tissue-lumen"], case="null caption", caption=None)
    hostile = (
        "</td><script>alert('grass')</script> Grass & clover, \"trampled\" \u202egpj.exe\u202c seen from above: "
        "<img src=x onerror=alert(1)> javascript:alert(2) …"
    )
    yield plain(pictures["grass"], case="caption with markup and direction override", caption=hostile)


CASES: tuple[Callable[[Mapping[str, Picture]], Iterator[Sample]], ...] = (
    copies,
    colour_modes,
    flat,
    shapes,
    unreadable,
    conflicts,
    captions,
)
