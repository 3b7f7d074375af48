from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from imagelake import skiplist
from imagelake.errors import ConfigError
from imagelake.skiplist import NOTHING, SkipList, SkipListError

SHARD = "512/1.000/00000-ab/shard.00000.mds"
OTHER = "512/1.286/00000-ab/shard.00000.mds"


def made(*skipped: int, samples: int = 10, shard_bytes: int = 5000, generation: int = 1) -> SkipList:
    return SkipList(samples, shard_bytes, generation, np.array(skipped, np.int64))


def written(root: Path, **lists: SkipList) -> str:
    names = {"first": SHARD, "other": OTHER}
    return skiplist.write_pack(root, {names[name]: found for name, found in lists.items()})


def test_a_list_comes_back_as_it_was() -> None:
    found = SkipList.decode(made(0, 3, 9).encode(), "x")
    assert (found.samples, found.shard_bytes, found.generation, found.skipped.tolist()) == (10, 5000, 1, [0, 3, 9])


def test_the_format_does_not_change_unnoticed() -> None:
    expected = "494c534b495030310a00000002000000881300000000000001000000000000000300000009000000"
    assert made(3, 9).encode()[:-4].hex() == expected


@pytest.mark.parametrize("cut", [0, 8, 31, 32, 40, 43])
def test_a_torn_list_is_refused(cut: int) -> None:
    with pytest.raises(SkipListError, match="torn"):
        SkipList.decode(made(3, 9).encode()[:cut], "x")


def test_any_changed_byte_is_refused() -> None:
    data = made(3, 9).encode()
    for place in range(len(data)):
        with pytest.raises(SkipListError):
            SkipList.decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "x")


@pytest.mark.parametrize("skipped", [(3, 3), (4, 3), (3, 10)])
def test_indices_that_are_no_ascending_ones_of_the_shard_are_refused(skipped: tuple[int, ...]) -> None:
    with pytest.raises(SkipListError, match="not ascending ones below 10"):
        SkipList.decode(made(*skipped).encode(), "x")


@pytest.mark.parametrize("shard", [(11, 5000), (10, 5001)])
def test_a_list_of_another_shard_is_refused(shard: tuple[int, int]) -> None:
    made(1).require_shard(SHARD, 10, 5000)
    with pytest.raises(SkipListError, match="made for a shard of 10 samples and 5000 bytes"):
        made(1).require_shard(SHARD, *shard)


def test_without_a_generation_nothing_is_skipped(tmp_path: Path) -> None:
    assert skiplist.read(tmp_path) is NOTHING
    assert skiplist.current_digest(tmp_path) is None


def test_a_published_generation_holds_and_the_one_before_can_be_pinned(tmp_path: Path) -> None:
    first = written(tmp_path, first=made(1, 2), other=made(0))
    skiplist.publish(tmp_path, first)
    second = written(tmp_path, first=made(1, generation=2))
    assert skiplist.read(tmp_path).digest == first, "a generation that was not published held already"
    skiplist.publish(tmp_path, second)
    now, before = skiplist.read(tmp_path), skiplist.read(tmp_path, first)
    assert {name: found.skipped.tolist() for name, found in now.lists.items()} == {SHARD: [1]}
    assert {name: found.skipped.tolist() for name, found in before.lists.items()} == {SHARD: [1, 2], OTHER: [0]}
    assert (now.number, before.number) == (2, 1)
    assert (before.by_bucket["512/1.000"], before.by_bucket["512/1.286"], before.by_bucket["512/1.1"]) == (2, 1, 0)


def test_the_lists_beside_shards_are_those_of_the_generation_that_holds(tmp_path: Path) -> None:
    skiplist.publish(tmp_path, written(tmp_path, first=made(1, 2), other=made(0)))
    skiplist.publish(tmp_path, written(tmp_path, first=made(1, generation=2)))
    assert [path.relative_to(tmp_path).as_posix() for path in skiplist.sidecars(tmp_path)] == [f"{SHARD}.skip"]
    assert SkipList.decode((tmp_path / f"{SHARD}.skip").read_bytes(), "x").skipped.tolist() == [1]


def test_a_pack_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    digest = written(tmp_path, first=made(1))
    skiplist.publish(tmp_path, digest)
    path = tmp_path / "skips" / f"{digest}.pack"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SkipListError, match="not those of its name"):
        skiplist.read(tmp_path)
    path.unlink()
    with pytest.raises(SkipListError, match="is missing, and current names it"):
        skiplist.read(tmp_path)


def test_a_pointer_that_is_none_is_refused(tmp_path: Path) -> None:
    skiplist.publish(tmp_path, written(tmp_path, first=made(1)))
    for text in (b"", b"../x", b"\xff", b"0" * 31):
        (tmp_path / "skips" / "current").write_bytes(text)
        with pytest.raises(SkipListError, match="names no generation"):
            skiplist.read(tmp_path)


def test_an_unknown_pin_names_those_there_are(tmp_path: Path) -> None:
    digest = written(tmp_path, first=made(1))
    with pytest.raises(ConfigError, match=f"has no generation 'f00d'; it has {digest}"):
        skiplist.read(tmp_path, "f00d")


def test_the_same_lists_are_the_same_generation(tmp_path: Path) -> None:
    one, two = {SHARD: made(1), OTHER: made(2)}, {OTHER: made(2), SHARD: made(1)}
    assert skiplist.pack(one) == skiplist.pack(two)
    assert skiplist.digest_of_pack(skiplist.pack(one)) != skiplist.digest_of_pack(skiplist.pack({SHARD: made(2), OTHER: made(1)}))
