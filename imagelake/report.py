"""One HTML page that shows a run: the funnel, the duplicates, the shapes, and contact sheets of what was kept and what was rejected.

Rendering is pure: it knows no table and reads no clock, so the same data gives the same page. Every text from a source is hostile until it
is escaped, which the template does by itself.
"""

from __future__ import annotations

import base64
import io
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

THUMBNAIL_SIDE = 224
THUMBNAIL_QUALITY = 78


@dataclass(frozen=True)
class Picture:
    """One record as it is shown. `width` and `height` in pixels, upright; `thumbnail` JPEG bytes, null where nothing can be shown."""

    image_id: str
    source: str
    source_key: str
    width: int | None = None
    height: int | None = None
    thumbnail: bytes | None = field(default=None, repr=False)
    captions: Sequence[str] = ()


@dataclass(frozen=True)
class Kept:
    """`tier` and `bucket` as in the corpus: 512 and "1.000"."""

    picture: Picture
    tier: int
    bucket: str


@dataclass(frozen=True)
class Rejected:
    picture: Picture
    stage: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True)
class Loser:
    """`kind` of likeness: "sha256" or "phash"; `distance` in bits of the hash; `won_by`: what decided for the keeper."""

    picture: Picture
    kind: str
    distance: int
    won_by: str


@dataclass(frozen=True)
class DuplicateGroup:
    """A keeper and some of the `losers_total` that lost to it."""

    group_id: str
    keeper: Picture
    losers: Sequence[Loser]
    losers_total: int


@dataclass(frozen=True)
class SourceCounts:
    """What became of one source's records; `rejected` counts by "stage: reason", one reason a record."""

    source: str
    rows_in: int
    kept: int
    duplicates: int
    rejected: Mapping[str, int]


@dataclass(frozen=True)
class BucketCounts:
    """One shape: `width` × `height` pixels, `image_bytes` of all its JPEGs together."""

    tier: int
    bucket: str
    width: int
    height: int
    images: int
    image_bytes: int


@dataclass(frozen=True)
class StageRun:
    """The last run of a stage. `status` as in the ledger; `seconds` of wall clock."""

    stage: str
    status: str
    seconds: float
    rows_in: int
    kept: int

    @property
    def rows_per_second(self) -> float:
        return self.rows_in / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class ReportData:
    """All that the page shows. The contact sheets may hold fewer pictures than there are: the counts say how many there are."""

    release: str
    config_digest: str
    lake_root: str
    corpus_root: str
    sources: Sequence[SourceCounts]
    buckets: Sequence[BucketCounts] = ()
    duplicate_groups: Sequence[DuplicateGroup] = ()
    duplicate_groups_total: int = 0
    kept: Sequence[Kept] = ()
    rejected: Sequence[Rejected] = ()
    runs: Sequence[StageRun] = ()
    title: str = "imagelake"

    @property
    def rows_in(self) -> int:
        return sum(source.rows_in for source in self.sources)

    @property
    def kept_total(self) -> int:
        return sum(source.kept for source in self.sources)

    @property
    def duplicates_total(self) -> int:
        return sum(source.duplicates for source in self.sources)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """(stage: reason, records) over all sources, most frequent first."""
        total: Counter[str] = Counter()
        for source in self.sources:
            total.update(source.rejected)
        return sorted(total.items(), key=lambda item: (-item[1], item[0]))

    @property
    def rejected_total(self) -> int:
        return sum(count for _, count in self.reasons)

    @property
    def unaccounted(self) -> int:
        """Records that are in none of the three: 0 in a lake that is whole."""
        return self.rows_in - self.kept_total - self.duplicates_total - self.rejected_total

    @property
    def sql(self) -> list[tuple[str, str]]:
        """(question, command to type)."""
        command = f"imagelake sql --set {shlex.quote(f'lake.root={self.lake_root}')} --set {shlex.quote(f'corpus.root={self.corpus_root}')}"
        return [(question, f"{command} {ask}") for question, ask in _QUESTIONS]


_QUESTIONS = (
    ("What became of each source's records?", "--file sql/reports/funnel.sql"),
    ("Why was something rejected?", '"SELECT source, source_key, stage, reason, detail FROM rejects ORDER BY reason"'),
    ("Which copies were found?", "--file sql/reports/duplicate_groups.sql"),
    ("How do the shapes fill?", "--file sql/reports/buckets.sql"),
    ("How long did each stage take?", "--file sql/reports/runs.sql"),
)


def render_report(data: ReportData) -> str:
    """The page as one self-contained HTML text: styles inside, pictures as data URIs, no script, nothing fetched."""
    return _render("report.html.j2", data=data)


def render_groups(lake_root: str, groups: Sequence[DuplicateGroup], groups_total: int) -> str:
    """A contact sheet of duplicate groups, as one self-contained HTML text too."""
    return _render("duplicates.html.j2", lake_root=lake_root, groups=groups, groups_total=groups_total)


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("imagelake"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": _number, "size": _size, "data_uri": _data_uri, "percent": _percent}
    return environment.get_template(template).render(**values)


def summary_text(data: ReportData) -> str:
    """The figures of the page in a few lines for a terminal."""
    lines = [f"{'source':16} {'in':>8} {'kept':>8} {'duplicate':>10} {'rejected':>9}"]
    rows = [(s.source, s.rows_in, s.kept, s.duplicates, sum(s.rejected.values())) for s in data.sources]
    rows.append(("all", data.rows_in, data.kept_total, data.duplicates_total, data.rejected_total))
    lines += [f"{_printable(name):16} {rows_in:8,} {kept:8,} {lost:10,} {out:9,}" for name, rows_in, kept, lost, out in rows]
    lines += ["", "rejected"] + [f"  {_printable(reason):32} {count:8,}" for reason, count in data.reasons]
    lines += ["", f"duplicate groups: {data.duplicate_groups_total:,}"]
    for group in data.duplicate_groups[:10]:
        losers = ", ".join(f"{_printable(x.picture.source)}/{_printable(x.picture.source_key)} ({x.kind})" for x in group.losers)
        losers += f" and {group.losers_total - len(group.losers):,} more" if len(group.losers) < group.losers_total else ""
        lines.append(f"  {_printable(group.keeper.source)}/{_printable(group.keeper.source_key)} ← {losers}")
    lines += ["", "shapes"]
    lines += [f"  {b.tier}/{b.bucket} {b.width:>5} × {b.height:<5} {b.images:8,} images {_size(b.image_bytes):>10}" for b in data.buckets]
    return "\n".join(lines)


def thumbnail(image: bytes, side: int = THUMBNAIL_SIDE) -> bytes:
    """A readable image -> JPEG bytes that fit in side × side pixels, transparent parts on white; EXIF and other metadata are left out.

    For images that ingest has read: raises what Pillow raises for others.
    """
    from PIL import ImageOps

    with Image.open(io.BytesIO(image)) as opened:
        opened.draft("RGB", (side, side))
        upright = ImageOps.exif_transpose(opened)
        if upright.mode.startswith("I;16") or upright.mode == "I":
            upright = upright.point(lambda level: level / 257).convert("L")
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        small = upright.convert("RGB")
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=THUMBNAIL_QUALITY)
    return out.getvalue()


def _number(value: int) -> str:
    return f"{value:,}"


def _percent(part: float, whole: float) -> str:
    """Share in percent with a decimal, as CSS and people read it; 0 of 0 is 0."""
    return f"{100 * part / whole if whole else 0:.1f}%"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _data_uri(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def _printable(text: str) -> str:
    """Source texts on a terminal: control and direction characters would be obeyed there, so they are shown as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
