from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import httpcore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagelake.fetch.addresses import is_public, literal, parse_url
from imagelake.fetch.model import Environment, Failure, Fetched
from tests.imagelake.fetch.site import PICTURE, Internet, Site, World, answer, closing, collect, fetched

PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
PRIVATE = [
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1", "169.254.169.254", "168.63.129.16"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1", "2001:db8::1", "3fff::1"),
    *("2001::1", "5f00::1", "4000::1", "64:ff9b:1::1", "::127.0.0.1"),
    *("::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:c0a8:101::1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_is_not(address: str) -> None:
    assert not is_public(address)


SPELLINGS = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "0", "0.0.0.0"),
    *("localhost", "localhost.", "LOCALHOST", "images.localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1%25eth0]"),
    *("169.254.169.254", "2852039166", "0xa9fea9fe", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "[::]"),
    *("①②⑦.0.0.1", "１２７.0.0.1", "127。0。0。1", "user:password@127.0.0.1"),
]


class NoNetwork(httpcore.AsyncNetworkBackend):
    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise AssertionError(f"connected to {host}")


async def refuse_to_resolve(host: str, port: int) -> list[str]:
    raise AssertionError(f"asked for {host}")


@pytest.mark.parametrize("host", SPELLINGS)
def test_an_inner_address_in_any_spelling_is_refused_before_anything_is_sent(host: str) -> None:
    environment = World().environment(network=NoNetwork(), resolve=refuse_to_resolve)
    for scheme in ("http", "HTTPS"):
        (one,) = asyncio.run(collect([f"{scheme}://{host}/a.jpg"], environment, allow_private_addresses=False))
        assert (one.status, one.reason, one.attempts) == ("permanent", "blocked_address", 1)


@pytest.mark.parametrize(
    "host", ["example.org", "1.example.org", "0x7f.example.org", "256.256.256.256.example.org", "localhost.example.org"]
)
def test_a_name_is_no_address(host: str) -> None:
    assert literal(host) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "scheme"),
        ("ftp://example.org/a.jpg", "scheme"),
        ("data:image/png;base64,xx", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("gopher://example.org", "scheme"),
        ("", "bad_url"),
        ("example.org/a.jpg", "bad_url"),
        ("//example.org/a.jpg", "bad_url"),
        ("http://", "bad_url"),
        ("http:///a.jpg", "bad_url"),
        ("http://example.org:0/", "bad_url"),
        ("http://example.org:70000/", "bad_url"),
        ("http://example.org:x/", "bad_url"),
        ("http://[::1", "bad_url"),
        ("http://a\\b/", "bad_url"),
        ("http://a,b/", "bad_url"),
        ("http://a/\ud800", "bad_url"),
        ("http://exa\0mple.org/", "bad_url"),
        ("http://example.org/a\r\nHost: inside/", "bad_url"),
        ("http://example.org/" + "a" * 70_000, "bad_url"),
    ],
)
def test_what_is_no_url_to_fetch_is_said_so(url: str, reason: str) -> None:
    with pytest.raises(Failure, match=f"^{reason}$") as caught:
        parse_url(url)
    assert not caught.value.transient
    (one,) = asyncio.run(collect([url]))
    assert (one.url, one.status, one.reason) == (url, "permanent", reason)


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example"])
def test_what_can_be_no_name_is_no_url(host: str) -> None:
    (one,) = asyncio.run(collect([f"http://{host}/a.jpg"]))
    assert (one.status, one.reason) == ("permanent", "bad_url")


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://example.org", "http://[", "http://1.2.3."]))
@settings(max_examples=300, deadline=None)
def test_whatever_stands_in_a_list_is_a_url_or_a_reason(text: str, before: str) -> None:
    with contextlib.suppress(Failure):
        assert parse_url(before + text).scheme in ("http", "https")


def test_a_url_of_the_wild_is_read_as_browsers_do() -> None:
    url = parse_url(" http://Bücher.example/a b/ü.jpg?x=é#part ")
    assert (url.raw_host, url.raw_path) == (b"xn--bcher-kva.example", b"/a%20b/%C3%BC.jpg?x=%C3%A9")


def through(lookups: Sequence[Sequence[str]], routes: dict[str, Any], *urls: str, **policy: Any) -> tuple[list[Fetched], Internet, Site]:
    """Outcomes of http:// URLs of images.test, whose name resolves as `lookups` say, one after the other."""

    async def run() -> tuple[list[Fetched], Internet, Site]:
        async with Site(routes) as site:
            internet = Internet(site.port, World(), {"images.test": lookups})
            settings = {"allow_private_addresses": False, "attempts": 1, "connections": 1} | policy
            return await collect(urls, internet.environment(), **settings), internet, site

    return asyncio.run(run())


def test_the_connection_goes_to_the_address_that_was_checked_and_the_host_stays_the_name() -> None:
    (one,), internet, site = through([["93.184.216.34"]], {"/a": answer()}, "http://images.test/a")
    assert one.body == PICTURE
    assert internet.dialled == ["93.184.216.34"]
    assert internet.lookups == ["images.test"]
    assert {headers["host"] for _, headers in site.requests} == {"images.test"}


@pytest.mark.parametrize("inside", ["127.0.0.1", "169.254.169.254", "fd00::1", "::ffff:10.0.0.1"])
def test_a_name_of_an_inner_address_is_refused(inside: str) -> None:
    for addresses in ([inside], ["93.184.216.34", inside]):
        (one,), internet, _ = through([addresses], {"/a": answer()}, "http://images.test/a", attempts=3)
        assert (one.status, one.reason, one.attempts) == ("permanent", "blocked_address", 1)
        assert internet.dialled == []


def test_a_name_that_changes_its_address_is_checked_for_each_connection() -> None:
    routes = {"/robots.txt": closing(answer(404)), "/a": answer()}
    (one,), internet, _ = through([["93.184.216.34"], ["169.254.169.254"]], routes, "http://images.test/a")
    assert (one.status, one.reason) == ("permanent", "blocked_address")
    assert internet.dialled == ["93.184.216.34"]


def test_a_name_without_an_address_is_retryable() -> None:
    (one,), _, _ = through([[]], {}, "http://images.test/a", attempts=2)
    assert (one.status, one.reason, one.attempts) == ("retryable", "dns_error", 2)


def test_a_name_that_nobody_knows_is_retryable() -> None:
    (one,) = asyncio.run(collect(["http://nobody-has-this.invalid/a"], attempts=2))
    assert (one.status, one.reason, one.attempts) == ("retryable", "dns_error", 2)


def test_a_name_server_that_hangs_is_given_up() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    environment = Environment(resolve=hang)
    (one,) = asyncio.run(collect(["http://images.test/a"], environment, attempts=1, connect_s=0.1))
    assert (one.status, one.reason) == ("retryable", "connect_timeout")


def test_the_next_address_is_tried_where_the_first_does_not_answer() -> None:
    class HalfDead(Internet):
        async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
            stream = await super().connect_tcp(host, port)
            if host == "2606:2800:220:1::1":
                await stream.aclose()
                raise httpcore.ConnectTimeout
            return stream

    async def run() -> tuple[Fetched, list[str]]:
        async with Site({"/a": answer()}) as site:
            internet = HalfDead(site.port, World(), {"images.test": [["2606:2800:220:1::1", "93.184.216.34"]]})
            (one,) = await collect(["http://images.test/a"], internet.environment(), allow_private_addresses=False)
            return one, internet.dialled

    one, dialled = asyncio.run(run())
    assert (one.status, one.attempts) == ("ok", 1)
    assert dialled == ["2606:2800:220:1::1", "93.184.216.34"]


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1:PORT/b", "http://localhost:PORT/b", "//169.254.169.254/latest/meta-data", "http://2130706433/b"),
        *("http://0177.0.0.1/b", "http://[::1]:PORT/b", "https://10.1.2.3/b", "http://inside.test/b"),
    ],
)
def test_a_redirect_to_an_inner_address_is_refused(location: str) -> None:
    async def run() -> tuple[Fetched, Internet, Site]:
        async with Site({"/a": answer(302, location=location), "/b": answer()}) as site:
            hosts = {"images.test": [["93.184.216.34"]], "inside.test": [["192.168.0.7"]]}
            internet = Internet(site.port, World(), hosts)
            (one,) = await collect(["http://images.test/a"], internet.environment(), allow_private_addresses=False)
            return one, internet, site

    one, internet, site = asyncio.run(run())
    assert (one.status, one.reason, one.body, one.attempts) == ("permanent", "blocked_address", None, 1)
    assert set(internet.dialled) == {"93.184.216.34"}
    assert site.paths == ["/a"]


@pytest.mark.parametrize("location", ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://example.org/a", "data:image/png;base64,xx"])
def test_a_redirect_to_another_scheme_is_refused(location: str) -> None:
    (one,), _ = fetched({"/a": answer(302, location=location)}, "/a")
    assert (one.status, one.reason, one.attempts) == ("permanent", "scheme", 1)
