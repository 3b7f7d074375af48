from __future__ import annotations

import asyncio
import re
import time

import pytest

from imagelake.fetch import robots
from imagelake.fetch.model import Failure
from tests.imagelake.fetch.site import PICTURE, World, answer, closing, endless, fetched

RULES = """
User-agent: *
Disallow: /all

User-agent: Other
Disallow: /

user-agent : imagelake/2.0 (bot)   # a version after the name
User-Agent: Third
Crawl-delay: 10
DISALLOW: /ours
Sitemap: http://example.org/map.xml
disallow: /more # and why

User-agent: imagelake
Disallow: /twice
"""


@pytest.mark.parametrize(
    ("token", "refused"), [("imagelake", ["/ours", "/more", "/twice"]), ("third", ["/ours", "/more"]), ("fourth", ["/all"])]
)
def test_the_rules_are_those_under_our_name_else_those_for_all(token: str, refused: list[str]) -> None:
    rules = robots.parse(RULES, token)
    assert [path for path in ("/all", "/ours", "/more", "/twice", "/") if not rules.allow(path)] == refused


@pytest.mark.parametrize(
    ("rules", "path", "allowed"),
    [
        ("Disallow: /a", "/a.jpg", False),
        ("Disallow: /a", "/b", True),
        ("Disallow: /a", "/A", True),
        ("Disallow:", "/a", True),
        ("Disallow: /", "/a", False),
        ("Disallow: /a/\nAllow: /a/b", "/a/b.jpg", True),
        ("Allow: /a/b\nDisallow: /a/", "/a/c.jpg", False),
        ("Disallow: /a\nAllow: /a", "/a", True),
        ("Allow: /a\nDisallow: /*.jpg", "/a.jpg", False),
        ("Disallow: /*.gif$", "/a.gif", False),
        ("Disallow: /*.gif$", "/a.gif?x", True),
        ("Disallow: /*.gif$", "/a.gif.gif", False),
        ("Disallow: /a$", "/a", False),
        ("Disallow: /a$", "/ab", True),
        ("Disallow: /a*b*c", "/axxbxxc/d", False),
        ("Disallow: /a*b*c", "/axxcxxb", True),
        ("Disallow: /ab*ab$", "/ab", True),
        ("Disallow: /*ab*ab", "/ab", True),
        ("Disallow: /*/x", "/x", True),
        ("Disallow: /?id=", "/?id=7", False),
        ("Disallow: /%7Eme", "/~me/a", False),
        ("Disallow: /~me", "/%7eme/a", False),
        ("Disallow: /a%2fb", "/a%2Fb", False),
        ("Disallow: /a%2fb", "/a/b", True),
        ("Disallow: /ü", "/%C3%BC", False),
        ("Disallow: a", "/a", True),
        ("Disallow /a", "/a", True),
    ],
)
def test_the_longest_pattern_that_matches_decides(rules: str, path: str, allowed: bool) -> None:
    for text in (f"User-agent: *\n{rules}", f"\ufeffUSER-AGENT:*\r\r\n{rules}\r\n".replace("\n", "\r\n")):
        assert robots.parse(text, "imagelake").allow(path) is allowed


def test_a_name_without_rules_is_free_where_others_are_not() -> None:
    assert robots.parse("User-agent: imagelake\nDisallow:\n\nUser-agent: *\nDisallow: /", "imagelake").allow("/a")


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "Disallow: /", "\0\xff", ":", "User-agent:\nDisallow: /"])
def test_what_is_no_robots_txt_allows_everything(text: str) -> None:
    assert robots.parse(text, "imagelake").allow("/a")


def test_a_hostile_pattern_keeps_nobody_busy() -> None:
    rules = robots.parse("User-agent: *\nDisallow: /" + "a*" * 200_000 + "b", "imagelake")
    start = time.process_time()
    assert rules.allow("/" + "a" * 60_000)
    assert time.process_time() - start < 5, "more than linear"


def test_a_path_that_is_disallowed_is_never_asked_for() -> None:
    routes = {"/robots.txt": answer(200, b"User-agent: imagelake\nDisallow: /private"), "/private/a": answer(), "/b": answer()}
    (private, public), site = fetched(routes, "/private/a", "/b")
    assert (private.status, private.reason, private.body) == ("permanent", "robots_txt", None)
    assert public.body == PICTURE
    assert site.paths == ["/b"]


def test_the_user_agent_is_the_name_in_robots_txt() -> None:
    routes = {"/robots.txt": answer(200, b"User-agent: GalleryBot\nDisallow: /"), "/a": answer()}
    (ours,), _ = fetched(routes, "/a")
    (theirs,), site = fetched(routes, "/a", user_agent="GalleryBot/2.1 (+https://gallery.example/bot)")
    assert (ours.status, theirs.reason) == ("ok", "robots_txt")
    assert site.requests[0][1]["user-agent"] == "GalleryBot/2.1 (+https://gallery.example/bot)"


def test_robots_txt_is_read_once() -> None:
    paths = [f"/{number}" for number in range(40)]
    _, site = fetched({path: answer() for path in paths}, *paths, think_s=0.01)
    assert [path for path, _ in site.requests].count("/robots.txt") == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_no_robots_txt_allows_everything(status: int) -> None:
    (one,), _ = fetched({"/robots.txt": answer(status, b"User-agent: *\nDisallow: /"), "/a": answer()}, "/a")
    assert one.status == "ok"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_robots_txt_that_cannot_be_read_now_allows_nothing_yet(status: int) -> None:
    (one,), site = fetched({"/robots.txt": answer(status), "/a": answer()}, "/a")
    assert (one.status, one.reason, one.attempts) == ("retryable", f"robots_http_{status}", 3)
    assert site.paths == []
    (one,), _ = fetched({"/robots.txt": [answer(status), answer(404)], "/a": answer()}, "/a")
    assert (one.status, one.attempts) == ("ok", 2)


def test_a_robots_txt_that_breaks_off_allows_nothing_yet() -> None:
    (one,), site = fetched({"/robots.txt": closing(answer(200, b"User-agent: *", length=999)), "/a": answer()}, "/a")
    assert (one.status, one.reason) == ("retryable", "short_body")
    assert site.paths == []


def test_a_failed_robots_txt_is_told_to_all_who_wait_for_it() -> None:
    paths = [f"/{number}" for number in range(20)]
    outcomes, site = fetched({"/robots.txt": answer(500)} | {path: answer() for path in paths}, *paths, think_s=0.05, attempts=1)
    assert {outcome.reason for outcome in outcomes} == {"robots_http_500"}
    assert len(site.requests) == 1


def test_robots_txt_is_followed_where_it_moved() -> None:
    routes = {"/robots.txt": answer(301, location="/r"), "/r": answer(200, b"User-agent: *\nDisallow: /a"), "/a": answer()}
    (one,), _ = fetched(routes, "/a")
    assert one.reason == "robots_txt"


def test_robots_txt_that_moves_for_ever_allows_everything() -> None:
    (one,), _ = fetched({"/robots.txt": answer(301, location="/robots.txt"), "/a": answer()}, "/a")
    assert one.status == "ok"


def test_an_endless_robots_txt_counts_as_far_as_it_is_read() -> None:
    text = endless(b"HTTP/1.1 200 .\r\n\r\nUser-agent: *\nDisallow: /a\n", b"Allow: /b\n" * 1000)
    (one, other), _ = fetched({"/robots.txt": text, "/a": answer(), "/b": answer()}, "/a", "/b")
    assert (one.reason, other.status) == ("robots_txt", "ok")


@pytest.mark.parametrize(
    ("tag", "refused"),
    [
        ("noai", True),
        ("noimageai", True),
        ("noindex", True),
        ("noimageindex", True),
        ("none", True),
        ("NoAI , NoFollow", True),
        ("nofollow, noai", True),
        ("imagelake: noai", True),
        ("ImageLake: nofollow, noai", True),
        ("*: noai", True),
        ("otherbot: nofollow, imagelake: noai", True),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST, noai", True),
        ("max-image-preview: large, noai", True),
        ("nofollow", False),
        ("all", False),
        ("otherbot: noai", False),
        ("otherbot: nofollow, noai", False),
        ("noaid", False),
        ("", False),
    ],
)
def test_x_robots_tag_is_obeyed(tag: str, refused: bool) -> None:
    (one,), _ = fetched({"/a": answer(x_robots_tag=tag)}, "/a")
    expected = ("permanent", "x_robots_tag", None) if refused else ("ok", "", PICTURE)
    assert (one.status, one.reason, one.body) == expected


def test_every_x_robots_tag_counts() -> None:
    reply = answer(x_robots_tag="otherbot: all").replace(b"\r\n\r\n", b"\r\nX-ROBOTS-TAG: noai\r\n\r\n", 1)
    (one,), _ = fetched({"/a": reply}, "/a")
    assert one.reason == "x_robots_tag"


def test_which_directives_refuse_is_up_to_the_policy() -> None:
    routes = {"/ai": answer(x_robots_tag="noai"), "/index": answer(x_robots_tag="noindex")}
    outcomes, _ = fetched(routes, "/ai", "/index", refused_directives=["noai"])
    assert [outcome.reason for outcome in outcomes] == ["x_robots_tag", ""]


def test_a_refused_picture_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 .\r\nX-Robots-Tag: noai\r\n\r\n"
    (one,), _ = fetched({"/a": endless(head, b"x" * 100_000, 0.05)}, "/a", total_s=2)
    assert one.reason == "x_robots_tag"


def test_the_cache_forgets_the_oldest_and_never_more() -> None:
    loaded: list[str] = []

    async def load(origin: str) -> robots.Rules:
        loaded.append(origin)
        if origin == "bad":
            raise Failure("http_500", transient=True)
        return robots.Rules()

    async def run() -> None:
        cache = robots.RobotsCache(load)
        origins = [str(number) for number in range(robots.MAX_ORIGINS + 1)]
        for origin in origins:
            await cache.rules(origin)
        await cache.rules(origins[-1])
        assert loaded == origins
        await cache.rules(origins[0])
        assert loaded == [*origins, origins[0]]
        for _ in range(2):
            with pytest.raises(Failure, match=re.escape("http_500")):
                await cache.rules("bad")
        assert loaded[-2:] == ["bad", "bad"]

    asyncio.run(run())


def test_a_world_without_haste_waits_for_robots_as_for_others() -> None:
    world = World()
    fetched({"/robots.txt": [answer(503, retry_after="5"), answer(404)], "/a": answer()}, "/a", world=world)
    assert sum(world.slept) == 5
