"""The HTML report: what it must show, and that no text of a source becomes markup."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import pytest
from PIL import Image

from imagelake.report import (
    BucketCounts,
    DuplicateGroup,
    Kept,
    Loser,
    Picture,
    Rejected,
    ReportData,
    SourceCounts,
    StageRun,
    render_report,
    summary_text,
    thumbnail,
)

HOSTILE = "</bdi></li><script>alert('x')</script> <img src=x onerror=alert(1)> \u202egpj.exe\u202c & \"quoted\" javascript:alert(2)"
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Elements, attributes and texts of a page; fails on tags that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def text(self) -> str:
        return " ".join(" ".join(text for inside, text in self.texts if "style" not in inside).split())


def jpeg(colour: str = "teal") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(out, "JPEG")
    return out.getvalue()


def picture(key: str, **changes: object) -> Picture:
    fields: dict[str, object] = {"image_id": "0" * 32, "source": "web", "width": 640, "height": 480, "thumbnail": jpeg()}
    return Picture(source_key=key, **fields | changes)  # type: ignore[arg-type]


@pytest.fixture
def data() -> ReportData:
    return ReportData(
        release="a1b2c3d4",
        config_digest="99aa88bb",
        lake_root="build/a lake",
        corpus_root="build/corpus",
        sources=[
            SourceCounts("web", 1200, 1000, 150, {"ingest: truncated": 30, "filter: below_min_pixels": 20}),
            SourceCounts("<b>photos</b>", 10, 9, 0, {"ingest: truncated": 1}),
        ],
        buckets=[BucketCounts(512, "1.000", 512, 512, 900, 45_000_000), BucketCounts(1024, "0.500", 704, 1408, 109, 20_000_000)],
        duplicate_groups=[
            DuplicateGroup("phash-1-00", picture("large"), [Loser(picture("small", width=320, height=240), "phash", 2, "pixels")], 12)
        ],
        duplicate_groups_total=140,
        kept=[Kept(picture("first", captions=[HOSTILE, "A second caption."]), 512, "1.000"), Kept(picture("bare"), 512, "1.286")],
        rejected=[Rejected(picture("cut<i>", thumbnail=None, width=None, height=None), "ingest", "truncated", HOSTILE)],
        runs=[StageRun("ingest", "done", 2.0, 1210, 1179)],
    )


def test_every_figure_is_on_the_page(data: ReportData) -> None:
    text = Page(render_report(data)).text()
    for shown in (
        "1,210 records in",
        "1,009 kept",
        "150 duplicates",
        "51 rejected",
        "ingest: truncated 31",
        "filter: below_min_pixels 20",
        "140 groups",
        "keeper 640 × 480 web / large",
        "phash, 2 bits 320 × 240 web / small lost by pixels",
        "and 11 more",
        "1024 0.500 704 × 1408 109 20.0 MB",
        "512/1.000",
        "A second caption.",
        "no caption",
        "truncated by ingest",
        "ingest done 2.0 1,210 1,179 605.0",
        "a1b2c3d4",
        "99aa88bb",
        "'lake.root=build/a lake'",
    ):
        assert shown in text, shown


def test_texts_of_sources_never_become_markup(data: ReportData) -> None:
    page = Page(render_report(data))
    tags = {tag for tag, _ in page.tags}
    assert tags.isdisjoint({"script", "i", "iframe", "object", "form"})
    assert [attributes for tag, attributes in page.tags if any(name.startswith("on") for name in attributes)] == []
    assert HOSTILE in " ".join(text for _, text in page.texts)
    assert {attributes["src"][:22] for tag, attributes in page.tags if tag == "img" and attributes["src"]} == {"data:image/jpeg;base64"}


def test_a_direction_override_is_confined_to_its_own_element(data: ReportData) -> None:
    page = Page(render_report(data))
    overrides = [inside for inside, text in page.texts if "\u202e" in text]
    assert len(overrides) == 2
    assert {inside[-1] for inside in overrides} == {"bdi"}


def test_nothing_is_fetched_and_nothing_runs(data: ReportData) -> None:
    html = render_report(data)
    page = Page(html)
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("href", "src") and value]
    assert all(link.startswith(("#", "data:image/jpeg;base64,")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= {attributes.get("id") for _, attributes in page.tags}
    assert any("default-src 'none'" in (attributes.get("content") or "") for tag, attributes in page.tags if tag == "meta")
    assert "url(" not in html and "@import" not in html
    assert html.lstrip().startswith("<!DOCTYPE html>")


def test_an_empty_lake_gives_a_page_too() -> None:
    empty = ReportData("", "99aa88bb", "lake", "corpus", sources=[])
    text = Page(render_report(empty)).text()
    assert "0 records in" in text and "nothing curated yet" in text
    assert "duplicate groups: 0" in summary_text(empty)


def test_records_that_are_in_no_outcome_are_a_warning(data: ReportData) -> None:
    assert "neither kept" not in render_report(data)
    lost = ReportData("", "", "lake", "corpus", sources=[SourceCounts("web", 5, 3, 1, {})])
    assert "1 records are neither kept, duplicate nor rejected." in Page(render_report(lost)).text()


def test_the_summary_shows_control_characters_instead_of_obeying_them() -> None:
    hostile = SourceCounts("web\x1b[2J\u202e", 1, 1, 0, {})
    text = summary_text(ReportData("", "", "lake", "corpus", sources=[hostile]))
    assert "\\x1b[2J\\u202e" in text
    assert text.isprintable() or set(text) - {"\n"} == {char for char in text if char.isprintable()}


def test_the_same_data_gives_the_same_page(data: ReportData) -> None:
    assert render_report(data) == render_report(data)


def test_a_thumbnail_is_upright_opaque_and_without_metadata() -> None:
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a secret place"
    Image.new("RGB", (1200, 600), "teal").save(out, "JPEG", exif=exif)
    small = thumbnail(out.getvalue(), 100)
    assert Image.open(io.BytesIO(small)).size == (50, 100)
    assert b"secret" not in small
    clear = io.BytesIO()
    Image.new("RGBA", (64, 64), (255, 0, 0, 0)).save(clear, "PNG")
    assert Image.open(io.BytesIO(thumbnail(clear.getvalue()))).getpixel((32, 32)) == (255, 255, 255)


def test_a_16_bit_thumbnail_is_scaled_and_not_clipped() -> None:
    out = io.BytesIO()
    Image.new("I;16", (64, 64), 128 * 257).save(out, "PNG")
    level = Image.open(io.BytesIO(thumbnail(out.getvalue()))).getpixel((32, 32))
    assert isinstance(level, tuple) and all(abs(channel - 128) <= 1 for channel in level)
