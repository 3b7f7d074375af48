from __future__ import annotations

import asyncio

import pytest

from imagelake.fetch.model import Fetched
from tests.imagelake.fetch.site import PICTURE, Internet, Site, World, answer, collect, fetched


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(status: int) -> None:
    (one,), site = fetched({"/x/a": answer(status, location="../b?c=d#e"), "/b?c=d": answer()}, "/x/a")
    assert (one.status, one.body, one.attempts) == ("ok", PICTURE, 1)
    assert (one.url, one.final_url) == (site.url("/x/a"), site.url("/b?c=d"))


@pytest.mark.parametrize("hops", [5, 6])
def test_redirects_are_followed_so_far(hops: int) -> None:
    chain = {f"/{number}": answer(302, location=f"/{number + 1}") for number in range(hops)}
    (one,), site = fetched(chain | {f"/{hops}": answer()}, "/0", max_redirects=5)
    assert (one.status, one.reason) == (("ok", "") if hops == 5 else ("permanent", "redirect_limit"))
    assert len(site.paths) == 6


@pytest.mark.parametrize("location", ["/a", "/b", "/a#again"])
def test_a_redirect_to_where_we_were_is_a_loop(location: str) -> None:
    (one,), site = fetched({"/a": answer(302, location=location), "/b": answer(302, location="/a")}, "/a")
    assert (one.status, one.reason, one.attempts) == ("permanent", "redirect_loop", 1)
    assert len(site.paths) == len(set(site.paths))


@pytest.mark.parametrize("location", ["http://[::1", "http://a.example:x/", "http://exa\x7fmple.org/"])
def test_a_redirect_to_nowhere_is_permanent(location: str) -> None:
    (one,), _ = fetched({"/a": answer(302, location=location)}, "/a")
    assert (one.status, one.reason) == ("permanent", "bad_url")


def test_a_redirect_without_a_place_is_an_answer_like_others() -> None:
    (one,), _ = fetched({"/a": answer(302)}, "/a")
    assert (one.status, one.reason) == ("permanent", "http_302")


def test_an_error_behind_a_redirect_is_tried_again_from_the_start() -> None:
    (one,), site = fetched({"/a": answer(302, location="/b"), "/b": [answer(503), answer()]}, "/a")
    assert (one.status, one.attempts) == ("ok", 2)
    assert site.paths == ["/a", "/b"] * 2


def test_a_redirect_to_another_host_obeys_that_host() -> None:
    robots = answer(200, b"User-agent: *\nDisallow: /private")
    there = {"/robots.txt": robots, "/private": answer(), "/public": answer()}

    async def run() -> tuple[list[Fetched], Site]:
        async with Site(there) as second:
            here = {f"/{name}": answer(302, location=second.url(f"/{name}", host="localhost")) for name in ("private", "public")}
            async with Site(here) as first:
                return await collect(map(first.url, here)), second

    (private, public), second = asyncio.run(run())
    assert (private.status, private.reason) == ("permanent", "robots_txt")
    assert (public.status, public.final_url) == ("ok", second.url("/public", host="localhost"))
    assert second.paths == ["/public"]
    assert {headers["host"] for _, headers in second.requests} == {f"localhost:{second.port}"}


def test_two_hosts_that_redirect_to_each_other_do_not_wait_for_each_other_for_ever() -> None:
    async def run() -> list[Fetched]:
        paths = [f"/{number}" for number in range(20)]
        async with Site({}) as first, Site({}) as second:
            first.routes = {path: answer(302, location=second.url(path + "/end", host="second.test")) for path in paths}
            second.routes = {path: answer(302, location=first.url(path + "/end", host="first.test")) for path in paths}
            for site in (first, second):
                site.routes = dict(site.routes) | {f"{path}/end": answer() for path in paths}
            urls = [site.url(path, host) for path in paths for site, host in ((first, "first.test"), (second, "second.test"))]

            class Both(Internet):
                async def connect_tcp(self, host: str, port: int, *_: object, **__: object):  # type: ignore[no-untyped-def]
                    self.port = port
                    return await super().connect_tcp(host, port)

            internet = Both(0, World(), {"first.test": [["93.184.216.34"]], "second.test": [["93.184.216.35"]]})
            return await asyncio.wait_for(collect(urls, internet.environment(), per_host=1, connections=2), 30)

    assert {outcome.status for outcome in asyncio.run(run())} == {"ok"}
