"""The pictures of the demo: crops of what scikit-image ships, described in pictures.yaml."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

JPEG_QUALITY = 92
FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "tiff": "TIFF", "bmp": "BMP", "gif": "GIF"}


@dataclass(frozen=True)
class Picture:
    """One picture: `box` in pixels of the shipped file (null: all of it), `size` (width, height) in pixels after the crop."""

    name: str
    file: str
    box: tuple[int, int, int, int] | None
    size: tuple[int, int]
    source: str
    extension: str
    caption: str
    license: str | None
    attribution: str | None


def shipped() -> Path:
    """The folder with scikit-image's pictures, found without its slow import. Raises SystemExit when it is not installed."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit("scikit-image is not installed: run `make setup`")
    return Path(spec.origin).parent / "data"


def photographs(*files: str) -> list[Image.Image]:
    """Those of scikit-image's pictures that this version ships, RGB. Raises SystemExit when there are none."""
    found = [Image.open(shipped() / name).convert("RGB") for name in files if (shipped() / name).exists()]
    if not found:
        raise SystemExit(f"{shipped()}: none of {', '.join(files)}: run `make setup`")
    return found


def all_pictures() -> dict[str, Picture]:
    """Every picture of pictures.yaml by its name, in the file's order."""
    text = Path(__file__).with_name("pictures.yaml").read_text(encoding="utf-8")
    document: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {name: _picture(name, entry, document) for name, entry in document["pictures"].items()}


def _picture(name: str, entry: dict[str, Any], document: dict[str, dict[str, Any]]) -> Picture:
    license, attribution = document["files"][entry["file"]]
    box = tuple(entry["box"]) if "box" in entry else None
    return Picture(
        name=name,
        file=entry["file"],
        box=box,
        size=tuple(entry["size"]),
        source=entry["source"],
        extension=entry.get("extension", "jpg"),
        caption=document["captions"][name],
        license=license,
        attribution=attribution,
    )


@cache
def opened(file: str) -> Image.Image:
    """A shipped file, decoded: L, RGB or RGBA."""
    with Image.open(shipped() / file) as image:
        return image.copy()


def rendered(picture: Picture) -> Image.Image:
    """The picture's pixels at its size; grey and transparent ones stay so."""
    return opened(picture.file).resize(picture.size, Image.Resampling.LANCZOS, box=picture.box)


def encoded(image: Image.Image, extension: str, **options: Any) -> bytes:
    """Bytes of `image` in the format of an extension; options go to Pillow. The same image gives the same bytes."""
    format = FORMATS[extension.lower()]
    if format in ("JPEG", "WEBP"):
        options = {"quality": JPEG_QUALITY} | options
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()
