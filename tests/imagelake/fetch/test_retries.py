from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from tests.imagelake.fetch.site import PICTURE, Site, World, answer, collect, fetched


def test_an_error_that_passes_is_tried_again_later_each_time() -> None:
    world = World()
    (one,), _ = fetched({"/a": [answer(500), answer(502), answer()]}, "/a", world=world, backoff_s=2)
    assert (one.status, one.body, one.attempts) == ("ok", PICTURE, 3)
    assert world.slept == [2, 4]


def test_half_of_the_wait_is_left_to_chance() -> None:
    async def slept(random: float) -> list[float]:
        world = World()
        async with Site({"/a": [answer(500), answer()]}) as site:
            await collect([site.url("/a")], world.environment(random), backoff_s=2)
        return world.slept

    assert [asyncio.run(slept(random)) for random in (0, 0.5, 1)] == [[1], [1.5], [2]]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_stays_retryable_with_the_time_of_the_next_try(status: int) -> None:
    world = World()
    (one,), site = fetched({"/a": answer(status)}, "/a", world=world, attempts=3, backoff_s=2)
    assert (one.status, one.reason, one.body, one.attempts) == ("retryable", f"http_{status}", None, 3)
    assert one.next_attempt_at == world.now + 8
    assert site.paths == ["/a"] * 3


@pytest.mark.parametrize("status", [204, 206, 304, 400, 401, 403, 404, 410, 451])
def test_what_will_not_pass_is_asked_once(status: int) -> None:
    (one,), site = fetched({"/a": answer(status, b"" if status in (204, 304) else b"no")}, "/a")
    assert (one.status, one.reason, one.attempts, one.next_attempt_at) == ("permanent", f"http_{status}", 1, None)
    assert site.paths == ["/a"]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds_is_waited_for(status: int) -> None:
    world = World()
    (one,), _ = fetched({"/a": [answer(status, retry_after="7"), answer()]}, "/a", world=world)
    assert (one.status, one.attempts) == ("ok", 2)
    assert sum(world.slept) == 7


def test_retry_after_as_a_date_is_read_by_the_clock_of_the_server() -> None:
    a_day_late = World().now - 86_400
    reply = answer(503, retry_after=formatdate(a_day_late + 9, usegmt=True), date=formatdate(a_day_late, usegmt=True))
    world = World()
    fetched({"/a": [reply, answer()]}, "/a", world=world)
    assert sum(world.slept) == 9


@pytest.mark.parametrize("zone", [" GMT", " -0000", ""])
def test_retry_after_as_a_date_without_a_clock_is_read_by_ours(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        world = World()
        at = formatdate(world.now + 11, usegmt=True).replace(" GMT", zone)
        fetched({"/a": [answer(503, retry_after=at), answer()]}, "/a", world=world)
        assert sum(world.slept) == 11
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("value", ["soon", "-5", "", "٣", "Thu, 99 Foo 2026", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_retry_after_that_says_nothing_is_no_reason_to_wait_longer(value: str) -> None:
    world = World()
    (one,), _ = fetched({"/a": [answer(429, retry_after=value), answer()]}, "/a", world=world, backoff_s=2)
    assert one.status == "ok"
    assert world.slept == [2]


@pytest.mark.parametrize(("value", "seconds"), [("3600", 3600), ("9" * 30, 86_400)])
def test_a_long_retry_after_is_left_to_a_later_run_and_capped(value: str, seconds: float) -> None:
    world = World()
    (one,), site = fetched({"/a": answer(429, retry_after=value)}, "/a", world=world)
    assert (one.status, one.reason, one.attempts) == ("retryable", "http_429", 1)
    assert one.next_attempt_at == world.now + seconds
    assert (site.paths, world.slept) == (["/a"], [])


@pytest.mark.parametrize("limit", ["per_host", "connections"])
def test_a_host_that_asks_for_an_hour_is_asked_for_nothing_else(limit: str) -> None:
    paths = [f"/{number}" for number in range(20)]
    outcomes, site = fetched({path: answer(429, retry_after="3600") for path in paths}, *paths, **{limit: 1})
    assert len(site.paths) == 1
    assert {outcome.reason for outcome in outcomes} == {"http_429", "host_paused"}
    assert {outcome.status for outcome in outcomes} == {"retryable"}
    assert {outcome.next_attempt_at for outcome in outcomes} == {World().now + 3600}
