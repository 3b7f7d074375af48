from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterator

import pytest

from imagelake.fetch import fetcher
from imagelake.fetch.fetcher import fetch_all
from imagelake.fetch.model import FetchPolicy
from tests.imagelake.fetch.site import PICTURE, Handler, Internet, Site, World, answer, closing, collect, endless, fetched


def test_a_picture_comes_with_what_the_server_says_of_it() -> None:
    (one,), site = fetched({"/a.jpg": answer(etag='"v1"', last_modified="Tue, 01 Dec 2026 10:00:00 GMT")}, "/a.jpg#top")
    assert (one.status, one.reason, one.body, one.attempts) == ("ok", "", PICTURE, 1)
    assert (one.etag, one.last_modified, one.next_attempt_at) == ('"v1"', "Tue, 01 Dec 2026 10:00:00 GMT", None)
    assert one.final_url == site.url("/a.jpg")
    _, headers = site.requests[-1]
    assert headers["host"] == f"127.0.0.1:{site.port}"
    assert headers["user-agent"].startswith("imagelake/")


def test_a_body_that_is_cut_is_tried_again() -> None:
    half = closing(answer(200, PICTURE[:5], length=len(PICTURE)))
    (one,), _ = fetched({"/a": [half, answer()]}, "/a")
    assert (one.status, one.body, one.attempts) == ("ok", PICTURE, 2)


@pytest.mark.parametrize(
    "cut",
    [
        answer(200, PICTURE[:5], length=len(PICTURE)),
        b"HTTP/1.1 200 .\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 .\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
    ],
)
def test_a_body_that_stays_short_is_retryable(cut: bytes) -> None:
    (one,), _ = fetched({"/a": closing(cut)}, "/a")
    assert (one.status, one.reason, one.body, one.attempts) == ("retryable", "short_body", None, 3)


def test_a_body_longer_than_announced_spoils_no_other() -> None:
    long = answer(200, PICTURE * 50, length=len(PICTURE))
    outcomes, _ = fetched({"/a": long, "/b": answer(200, b"b"), "/c": answer(200, b"c")}, "/a", "/b", "/c", connections=1)
    assert [outcome.body for outcome in outcomes] == [PICTURE, b"b", b"c"]


@pytest.mark.parametrize(
    "garbage", [b"", b"HTTP/1.1 200", b"\0\xff" * 100, b"HTTP/1.1 abc .\r\n\r\n", b"HTTP/1.1 200 .\r\nno colon\r\n\r\n"]
)
def test_no_answer_is_retryable(garbage: bytes) -> None:
    (one,), _ = fetched({"/a": closing(garbage)}, "/a")
    assert (one.status, one.reason, one.attempts) == ("retryable", "closed", 3)
    (one,), _ = fetched({"/a": [closing(garbage), answer()]}, "/a")
    assert (one.status, one.attempts) == ("ok", 2)


def test_endless_headers_are_given_up() -> None:
    (one,), _ = fetched({"/a": endless(b"HTTP/1.1 200 .\r\n", b"X-More: and more\r\n" * 100)}, "/a", attempts=1)
    assert (one.status, one.reason) == ("retryable", "closed")


def test_a_refused_connection_is_retryable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, and not listening
        (one,) = asyncio.run(collect([f"http://127.0.0.1:{held.getsockname()[1]}/a"]))
    assert (one.status, one.reason, one.attempts) == ("retryable", "connect_error", 3)


def test_a_server_that_says_nothing_is_given_up() -> None:
    (one,), _ = fetched({"/a": endless(b"", b"", 0.01)}, "/a", read_s=0.1, attempts=1)
    assert (one.status, one.reason) == ("retryable", "read_timeout")


def test_a_slow_drip_ends_at_the_deadline_and_frees_its_place() -> None:
    routes = {"/drip": endless(b"HTTP/1.1 200 .\r\n\r\n", b".", 0.01), "/b": answer()}
    (drip, other), _ = fetched(routes, "/drip", "/b", total_s=0.3, attempts=1, connections=1)
    assert (drip.status, drip.reason, drip.body) == ("retryable", "deadline", None)
    assert other.status == "ok"


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 .\r\n\r\n", b"HTTP/1.1 200 .\r\nContent-Length: 999999999999\r\n\r\n"])
def test_an_endless_body_ends_at_the_cap_and_frees_its_place(head: bytes) -> None:
    (endless_one, other), _ = fetched({"/a": endless(head, b"x" * 10_000), "/b": answer()}, "/a", "/b", max_bytes=100_000, connections=1)
    assert (endless_one.status, endless_one.reason, endless_one.body) == ("permanent", "too_large", None)
    assert other.status == "ok"


def test_a_body_of_just_the_cap_is_not_too_large() -> None:
    (one, other), _ = fetched({"/a": answer(200, b"12345"), "/b": answer(200, b"123456")}, "/a", "/b", max_bytes=5)
    assert (one.body, other.reason) == (b"12345", "too_large")


def test_connections_are_used_again() -> None:
    _, site = fetched({f"/{number}": answer(404 if number % 2 else 200) for number in range(50)}, *(f"/{n}" for n in range(50)), per_host=4)
    assert len(site.requests) == 51
    assert site.connections <= 4


def test_connections_that_nobody_uses_are_not_kept_without_end() -> None:
    async def run() -> int:
        async with Site({"/a": answer()}, think_s=0.02) as site:
            names = [f"{number}.test" for number in range(12)]
            internet = Internet(site.port, World(), {name: [["93.184.216.34"]] for name in names})
            outcomes = await collect([f"http://{name}/a" for name in names], internet.environment(), connections=2)
            assert {outcome.status for outcome in outcomes} == {"ok"}
            return site.most_open

    assert asyncio.run(run()) <= 2 + 2 + 1, "as many idle as at work, and one that is being closed"


@pytest.mark.parametrize(("limits", "most"), [({"connections": 3}, 3), ({"per_host": 2}, 2), ({"connections": 5, "per_host": 9}, 5)])
def test_requests_at_a_time_are_bounded(limits: dict[str, int], most: int) -> None:
    paths = [f"/{number}" for number in range(30)]
    outcomes, site = fetched({path: answer() for path in paths}, *paths, think_s=0.01, **limits)
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert site.most_active == most


def test_a_host_is_asked_no_sooner_than_its_delay() -> None:
    async def starts() -> list[float]:
        world = World()
        async with Site({f"/{number}": closing(answer()) for number in range(5)}) as site:
            internet = Internet(site.port, world)
            await collect(map(site.url, site.routes), internet.environment(), host_delay_s=3)
        return internet.dialled_at

    found = asyncio.run(starts())
    assert len(found) == 5, "robots.txt and the first picture share a connection"
    assert all(later - sooner >= 3 for sooner, later in itertools.pairwise(found))


def test_a_host_that_is_waited_for_holds_up_no_other() -> None:
    async def run() -> list[str]:
        slow = {f"/{number}": [answer(429, retry_after="30"), answer()] for number in range(6)}
        async with Site(slow) as first, Site({"/b": answer()}) as second:
            urls = [*map(first.url, slow), second.url("/b", host="localhost")]
            policy = FetchPolicy(connections=2, allow_private_addresses=True)
            return [outcome.url async for outcome in fetch_all(urls, policy, World().environment())]

    order = asyncio.run(run())
    assert len(order) == 7
    assert "localhost" in order[0]


def test_urls_are_read_no_further_than_there_is_room_for_bodies() -> None:
    async def run() -> tuple[int, int]:
        async with Site({f"/{number}": answer() for number in range(500)}) as site:
            policy = FetchPolicy(connections=4, per_host=4, allow_private_addresses=True)
            outcomes = fetch_all(map(site.url, site.routes), policy, World().environment())
            await anext(outcomes)
            await asyncio.sleep(0.3)
            before = len(site.paths)
            rest = [outcome async for outcome in outcomes]
            return before, len(rest)

    before, rest = asyncio.run(run())
    assert before <= 1 + 4 + 4, "bodies pile up while nobody takes them"
    assert rest == 499


def test_leaving_early_ends_everything() -> None:
    async def run() -> int:
        async with Site({f"/{number}": endless(b"HTTP/1.1 200 .\r\n\r\n", b".", 0.01) for number in range(9)} | {"/ok": answer()}) as site:
            policy = FetchPolicy(allow_private_addresses=True)
            async with contextlib.aclosing(fetch_all(map(site.url, ["/ok", *site.routes]), policy)) as outcomes:
                await anext(outcomes)
            await asyncio.sleep(0.1)
            return site.active

    assert asyncio.run(run()) == 0


def test_what_the_list_raises_is_raised() -> None:
    async def run() -> None:
        async with Site({"/a": answer(), "/drip": endless(b"HTTP/1.1 200 .\r\n\r\n", b".", 0.01)}) as site:

            def urls() -> Iterator[str]:
                yield site.url("/drip")
                yield site.url("/a")
                raise OSError("the list is torn")

            with pytest.raises(OSError, match="the list is torn"):
                async for _ in fetch_all(urls(), FetchPolicy(allow_private_addresses=True), World().environment()):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("broken", [endless(answer(404, b"", length=9), b"", 0.01), closing(answer(404, b"not", length=9))])
def test_a_refusal_whose_text_does_not_come_is_a_refusal(broken: Handler) -> None:
    (one,), _ = fetched({"/a": broken}, "/a", read_s=0.1)
    assert (one.status, one.reason, one.attempts) == ("permanent", "http_404", 1)


def test_hosts_are_forgotten_when_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "_HOSTS_REMEMBERED", 2)
    world = World()
    made = fetcher._Fetcher(FetchPolicy(), world.environment())
    made._host("waits").users = 1
    made._host("paused").next_start = world.now + 60
    made._host("due").next_start = world.now
    assert set(made._hosts) == {"waits", "paused", "due"}
    made._host("new")
    assert set(made._hosts) == {"waits", "paused", "due", "new"}, "twice as many as were left before"
    made._host("newer")
    assert set(made._hosts) == {"waits", "paused", "newer"}
    asyncio.run(made.close())


def test_no_urls_are_no_outcomes() -> None:
    assert asyncio.run(collect([])) == []


@pytest.mark.parametrize(("key", "value"), [("connections", 0), ("user_agent", ""), ("user_agent", "a\r\nX: y"), ("unheard_of", 1)])
def test_a_policy_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        FetchPolicy.model_validate({key: value})
