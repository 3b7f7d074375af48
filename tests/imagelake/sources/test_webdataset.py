"""WebDataset tars: which members make which record, and what a hostile or broken tar gives."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagelake.errors import ConfigError, RetryableError
from imagelake.sources import Record, SourceSpec, Unit, list_files, plan_units, read_unit, units
from imagelake.sources.webdataset import split_name

END_BLOCKS = 1024


def member(name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, format: int = tarfile.PAX_FORMAT) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, "target" if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
    padding = -len(data) % 512
    return info.tobuf(format, "utf-8", "surrogateescape") + data + b"\0" * padding


def tar(*members: tuple[str, bytes], end: bool = True) -> bytes:
    return b"".join(member(*each) for each in members) + b"\0" * (END_BLOCKS if end else 0)


def read(folder: Path, data: bytes, name: str = "s.tar", **spec: object) -> list[Record]:
    (folder / name).write_bytes(data)
    values = {"name": "web", "format": "webdataset", "path": str(folder / name), "captions": {"alt": "txt"}} | spec
    source = SourceSpec.model_validate(values)
    records = []
    for unit in plan_units(source, list_files(source)):
        records += list(read_unit(source, Unit.from_json(unit.to_json())))
    assert len({record.source_key for record in records}) == len(records)
    return records


def rows(records: list[Record]) -> dict[str, tuple[bytes | None, str | None]]:
    return {record.source_key: (record.image, record.captions["alt"]) for record in records if record.fault is None}


def faults(records: list[Record]) -> dict[str, str]:
    return {record.source_key: record.fault for record in records if record.fault is not None}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("22.0/1.1.png", ("22.0/1", "1.png")),
        ("a.jpg", ("a", "jpg")),
        ("./a.tar.gz", ("./a", "tar.gz")),
        ("d.x/e/f.seg.png", ("d.x/e/f", "seg.png")),
        ("line\nbreak.jpg", ("line\nbreak", "jpg")),
        ("README", None),
        (".hidden.jpg", None),
        ("d/._x.jpg", None),
        ("a.b/c", None),
        ("trailing.", None),
    ],
)
def test_the_extension_is_everything_after_the_first_dot_of_the_base_name(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name) == parts


@given(st.text(st.sampled_from("ab./\n"), max_size=12))
def test_the_key_rule_is_webdatasets_for_every_name_that_has_a_stem(name: str) -> None:
    parts = split_name(name)
    reference = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name, re.DOTALL)
    base = name.rpartition("/")[2]
    if base.startswith(".") or not base.partition(".")[2]:
        assert parts is None
    else:
        assert reference is not None
        assert parts == reference.groups()


def test_a_sample_has_image_caption_and_address(tmp_path: Path) -> None:
    (record,) = read(tmp_path, tar(("d/0 1.jpg", b"image"), ("d/0 1.txt", b"a cat\n")), license="CC0-1.0", attribution="us")
    assert (record.source_key, record.image, record.captions, record.fault) == ("s.tar/d/0 1", b"image", {"alt": "a cat"}, None)
    assert record.source_uri == (tmp_path / "s.tar").as_uri() + "#d/0%201.jpg"
    assert (record.license, record.attribution) == ("CC0-1.0", "us")


def test_interleaved_members_are_joined(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("0.jpg", b"i0"), ("1.jpg", b"i1"), ("0.txt", b"t0"), ("1.txt", b"t1")))
    assert rows(records) == {"s.tar/0": (b"i0", "t0"), "s.tar/1": (b"i1", "t1")}
    assert len(records) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=700), st.booleans()), max_size=12), st.randoms())
def test_any_order_of_members_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, bool]], rng: random.Random
) -> None:
    members, expected = [], {}
    for number, (image, with_caption) in enumerate(samples):
        members.append((f"k{number}.jpg", image))
        if with_caption:
            members.append((f"k{number}.txt", f"caption {number}".encode()))
        expected[f"s.tar/k{number}"] = (image, f"caption {number}" if with_caption else None)
    rng.shuffle(members)
    records = read(tmp_path_factory.mktemp("order"), tar(*members))
    assert rows(records) == expected
    assert faults(records) == {}


def test_a_member_met_twice_is_kept_once_and_each_repeat_is_a_fault(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("a.jpg", b"1"), ("a.jpg", b"2"), ("a.JPG", b"3"), ("a.jpg", b"4"), ("b.jpg", b"5")))
    assert rows(records) == {"s.tar/a": (b"1", None), "s.tar/b": (b"5", None)}
    assert faults(records) == dict.fromkeys(["s.tar/a.jpg!2", "s.tar/a.JPG!2", "s.tar/a.jpg!3"], "duplicate_member")


def test_the_first_of_a_repeated_member_wins_in_a_long_tar_too(tmp_path: Path) -> None:
    order = [(f"{number}.jpg", f"{number} {turn}".encode()) for turn in range(3) for number in random.Random(turn).sample(range(200), 200)]
    records = read(tmp_path, tar(*order))
    assert rows(records) == {f"s.tar/{number}": (f"{number} 0".encode(), None) for number in range(200)}
    assert len(faults(records)) == 400


def test_a_second_image_of_a_sample_is_a_fault_whatever_its_kind(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("a.png", b"png"), ("a.jpg", b"jpg")))
    assert rows(records) == {"s.tar/a": (b"png", None)}
    assert faults(records) == {"s.tar/a.jpg!duplicate_image": "duplicate_image"}


@pytest.mark.parametrize("extension", ["JPG", "jpeg", "WebP", "1.png", "heic", "jxl"])
def test_image_extensions_are_known_in_any_case_and_depth(tmp_path: Path, extension: str) -> None:
    assert rows(read(tmp_path, tar((f"a.{extension}", b"i")))) == {"s.tar/a": (b"i", None)}


def test_dotted_extensions_find_their_caption(tmp_path: Path) -> None:
    assert rows(read(tmp_path, tar(("22.0/1.1.png", b"i"), ("22.0/1.1.txt", b"t")))) == {"s.tar/22.0/1": (b"i", "t")}


def test_image_may_name_the_extensions_that_hold_it(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("a.mask.png", b"mask"), ("a.photo", b"photo")), image="photo;jpg")
    assert rows(records) == {"s.tar/a": (b"photo", None)}


def test_captions_only_is_no_image(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("a.txt", b"t"), ("b.jpg", b"i")))
    assert rows(records) == {"s.tar/b": (b"i", None)}
    assert faults(records) == {"s.tar/a": "no_image"}


def test_json_members_give_captions_licence_and_attribution(tmp_path: Path) -> None:
    meta = {"meta": {"caption": "deep", "list": [None, "", "first"]}, "license": "CC-BY-4.0", "nan": float("nan"), "by": "someone"}
    spec = {
        "captions": {
            "alt": "json:meta.caption",
            "list": "json:meta.list",
            "nan": "json:nan",
            "none": "json:no.such",
            "item": "json:meta.list.2",
        },
        "license_column": "json:license",
        "attribution_column": "json:by",
        "license": "default",
    }
    first, second = read(tmp_path, tar(("a.jpg", b"i"), ("a.json", json.dumps(meta).encode()), ("b.jpg", b"i")), **spec)
    assert first.captions == {"alt": "deep", "list": "first", "nan": None, "none": None, "item": "first"}
    assert (first.license, first.attribution) == ("CC-BY-4.0", "someone")
    assert (second.license, second.attribution) == ("default", None)


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000, b"\xff\xfe", b"1" * 5000])
def test_json_that_cannot_be_read_is_a_fault_beside_the_row(tmp_path: Path, data: bytes) -> None:
    records = read(tmp_path, tar(("a.jpg", b"i"), ("a.json", data)), captions={"alt": "json:caption"})
    assert rows(records) == {"s.tar/a": (b"i", None)}
    assert faults(records) == {"s.tar/a.json!bad_json": "bad_json"}


def test_caption_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    assert rows(read(tmp_path, tar(("a.jpg", b"i"), ("a.txt", b"\xef\xbb\xbfcaf\xe9\x00")))) == {"s.tar/a": (b"i", "caf\ufffd")}


def test_members_past_the_limits_are_faults_and_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_IMAGE_BYTES", 10)
    monkeypatch.setattr(units, "MAX_CAPTION_BYTES", 10)
    records = read(tmp_path, tar(("a.jpg", b"i" * 11), ("b.jpg", b"i" * 10), ("b.txt", b"t" * 11), ("c.jpg", b"i"), ("c.txt", b"t" * 10)))
    assert rows(records) == {"s.tar/b": (b"i" * 10, None), "s.tar/c": (b"i", "t" * 10)}
    assert faults(records) == {"s.tar/a": "too_many_bytes", "s.tar/b.txt!caption_too_large": "caption_too_large"}


@pytest.mark.parametrize("name", ["README", ".hidden.jpg", "d/._0.jpg", "trailing."])
def test_a_name_without_key_or_extension_is_a_fault_with_the_name(tmp_path: Path, name: str) -> None:
    records = read(tmp_path, tar((name, b"x"), ("a.jpg", b"i")))
    assert rows(records) == {"s.tar/a": (b"i", None)}
    assert faults(records) == {f"s.tar/{name}!unparsable_name": "unparsable_name"}
    assert name in (records[0].fault_detail or "")


@pytest.mark.parametrize("name", ["/etc/x.jpg", "../x.jpg", "a/../../x.jpg", "../" + "long/" * 60 + "x.jpg"])
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_that_lead_elsewhere_are_unsafe(tmp_path: Path, name: str, format: int) -> None:
    records = read(tmp_path, member(name, b"x", format=format) + tar(("a.jpg", b"i")))
    assert rows(records) == {"s.tar/a": (b"i", None)}
    assert list(faults(records).values()) == ["unsafe_member"]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S", b"Z"])
def test_links_devices_and_unknown_members_are_unsafe(tmp_path: Path, kind: bytes) -> None:
    records = read(tmp_path, member("x.jpg", kind=kind) + member("x.jpg", kind=kind) + tar(("a.jpg", b"i")))
    assert rows(records) == {"s.tar/a": (b"i", None)}
    assert faults(records) == {"s.tar/x.jpg!unsafe_member": "unsafe_member", "s.tar/x.jpg!unsafe_member_2": "unsafe_member"}


def test_folders_and_global_headers_are_no_samples(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 600}) as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        info = tarfile.TarInfo("d/" + "é" * 200 + ".jpg")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"i"))
    assert rows(read(tmp_path, data.getvalue())) == {"s.tar/d/" + "é" * 200: (b"i", None)}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_dialect_of_long_and_foreign_names_reads_as_tarfile_reads_it(tmp_path: Path, format: int) -> None:
    names = ["a.jpg", "d/" * 60 + "b.jpg", "日本.jpg", os_name := "byte\udcff.jpg"]
    names += [] if format == tarfile.USTAR_FORMAT else ["n" * 300 + ".jpg"]
    records = read(tmp_path, b"".join(member(name, name.encode("utf-8", "surrogateescape"), format=format) for name in names) + tar())
    with tarfile.open(tmp_path / "s.tar", encoding="utf-8") as archive:
        assert archive.getnames() == names
    assert [record.image for record in records] == [name.encode("utf-8", "surrogateescape") for name in names]
    assert records[names.index(os_name)].source_key == r"s.tar/byte\xff"


def test_keys_of_samples_never_meet_keys_of_faults(tmp_path: Path) -> None:
    records = read(
        tmp_path, tar(("README", b""), ("README!unparsable_name.jpg", b"i"), ("!incomplete.jpg", b"j"), ("wow!.jpg", b"k"), end=False)
    )
    assert len(rows(records)) == 3
    assert "s.tar/wow!" in rows(records)
    assert sorted(faults(records).values()) == ["shard_incomplete", "unparsable_name"]


def cut_points() -> list[tuple[str, int, list[str], list[str]]]:
    """Three samples of image and caption, 512 bytes of header and of data each: what a cut at a byte leaves."""
    whole = ["s.tar/0", "s.tar/1"]
    return [
        ("in the last image", 4 * 1024 + 512 + 3, whole, ["shard_incomplete", "truncated_member"]),
        ("in the last caption", 5 * 1024 + 512 + 3, whole, ["shard_incomplete", "truncated_member"]),
        ("in a header", 4 * 1024 + 100, whole, ["shard_incomplete"]),
        ("at a boundary", 4 * 1024, whole, ["shard_incomplete"]),
        ("before the end blocks", 6 * 1024, [*whole, "s.tar/2"], ["shard_incomplete"]),
        ("between the end blocks", 6 * 1024 + 512, [*whole, "s.tar/2"], []),
    ]


@pytest.mark.parametrize(("where", "at", "kept", "reasons"), cut_points(), ids=[point[0] for point in cut_points()])
def test_a_cut_tar_keeps_its_whole_rows_and_says_so(tmp_path: Path, where: str, at: int, kept: list[str], reasons: list[str]) -> None:
    members = [(f"{n}.{kind}", b"x" * 400) for n in range(3) for kind in ("jpg", "txt")]
    records = read(tmp_path, tar(*members)[:at])
    assert sorted(rows(records)) == kept
    assert sorted(faults(records).values()) == reasons
    if reasons:
        assert "s.tar!incomplete" in faults(records)


@settings(max_examples=60, deadline=None)
@given(st.integers(513, 7 * 1024))
def test_wherever_a_tar_is_cut_the_rows_are_whole(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    members = [(f"{n}.{kind}", f"{n}{kind}".encode() * 100) for n in range(3) for kind in ("jpg", "txt")]
    records = read(tmp_path_factory.mktemp("cut"), tar(*members)[:at])
    for key, (image, caption) in rows(records).items():
        assert image == f"{key[-1]}jpg".encode() * 100
        assert caption in (f"{key[-1]}txt" * 100, None)
    assert ("s.tar!incomplete" in faults(records)) == (at < 6 * 1024 + 512)


def test_a_broken_header_ends_the_shard_with_a_fault(tmp_path: Path) -> None:
    data = bytearray(tar(("0.jpg", b"i"), ("1.jpg", b"j"), ("2.jpg", b"k")))
    data[1024 + 10] ^= 1
    records = read(tmp_path, bytes(data))
    assert rows(records) == {"s.tar/0": (b"i", None)}
    assert faults(records) == {"s.tar!incomplete": "shard_incomplete"}


def test_a_second_archive_behind_the_first_is_not_lost_in_silence(tmp_path: Path) -> None:
    records = read(tmp_path, tar(("0.jpg", b"i")) + tar(("1.jpg", b"j")))
    assert rows(records) == {"s.tar/0": (b"i", None)}
    assert faults(records) == {"s.tar!incomplete": "shard_incomplete"}


def pax_record(key: str, value: str) -> bytes:
    """ "LENGTH KEY=VALUE\\n", where the length counts its own digits too."""
    rest = f" {key}={value}\n"
    length = len(rest) + 1
    while len(f"{length}{rest}") != length:
        length += 1
    return f"{length}{rest}".encode()


def test_a_huge_extended_header_is_not_read_into_memory(tmp_path: Path) -> None:
    """The header is well formed: only its size speaks against it."""
    small, huge = pax_record("comment", "x" * 1000), pax_record("comment", "x" * (2 << 20))
    data = member("h", small, kind=tarfile.XHDTYPE) + member("s.jpg", b"s")
    data += member("h", huge, kind=tarfile.XHDTYPE) + member("a.jpg", b"i") + tar(("b.jpg", b"j"))
    records = read(tmp_path, data)
    assert rows(records) == {"s.tar/s": (b"s", None), "s.tar/b": (b"j", None)}
    assert faults(records) == {"s.tar/a.jpg!unsafe_member": "unsafe_member"}


def test_the_size_in_an_extended_header_counts(tmp_path: Path) -> None:
    """Members past 8 GiB have their size there, and 0 in the old header."""
    old = tarfile.TarInfo("a.jpg").tobuf(tarfile.USTAR_FORMAT)
    data = member("h", pax_record("size", "600"), kind=tarfile.XHDTYPE) + old + b"i" * 600 + b"\0" * 424 + tar(("b.jpg", b"j"))
    assert rows(read(tmp_path, data)) == {"s.tar/a": (b"i" * 600, None), "s.tar/b": (b"j", None)}


def test_a_size_past_the_end_or_below_zero_ends_the_shard(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("a.jpg")
    huge.size = 1 << 60
    assert set(faults(read(tmp_path, huge.tobuf(tarfile.GNU_FORMAT)))) == {"s.tar/a", "s.tar!incomplete"}
    negative = tarfile.TarInfo("b.jpg")
    negative.size = -(1 << 40)
    assert "s.tar!incomplete" in faults(read(tmp_path, tar(("a.jpg", b"i"), end=False) + negative.tobuf(tarfile.GNU_FORMAT)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "is empty"), (b"text", "is no tar"), (b"x" * 2048, "is no tar"), (gzip.compress(tar(("a.jpg", b"i"))), "is compressed")],
)
def test_a_file_that_is_no_tar_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"source 'web'\.path: .*s\.tar {reason}"):
        read(tmp_path, data)


def test_an_archive_without_members_has_no_samples(tmp_path: Path) -> None:
    assert read(tmp_path, tar()) == []


def test_a_tar_that_changed_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(tar(("a.jpg", b"i")))
    spec = SourceSpec(name="web", format="webdataset", path=(str(tmp_path / "*.tar"),))
    (unit,) = plan_units(spec, list_files(spec))
    (tmp_path / "s.tar").write_bytes(tar(("a.jpg", b"i"), ("b.jpg", b"j")))
    with pytest.raises(RetryableError, match=r"s\.tar: changed"):
        list(read_unit(spec, unit))
    (tmp_path / "s.tar").unlink()
    with pytest.raises(RetryableError, match="No such file"):
        list(read_unit(spec, unit))


def test_memory_holds_an_index_and_one_image(tmp_path: Path) -> None:
    """30 MiB of images, all images before all captions, read within 8 MiB."""
    path = tmp_path / "big.tar"
    with path.open("wb") as out:
        for number in range(30):
            out.write(member(f"{number}.jpg", bytes(1 << 20)))
        for number in range(30):
            out.write(member(f"{number}.txt", b"t"))
        out.write(bytes(END_BLOCKS))
    spec = SourceSpec(name="web", format="webdataset", path=(str(path),), captions={"alt": "txt"})
    (unit,) = plan_units(spec, list_files(spec))
    tracemalloc.start()
    count = sum(record.image is not None and record.captions["alt"] == "t" for record in read_unit(spec, unit))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30
    assert peak < 8 << 20
