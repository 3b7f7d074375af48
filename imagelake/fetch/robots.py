"""What sites ask of robots: robots.txt (RFC 9309) and the X-Robots-Tag header."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote

from imagelake.fetch.model import Failure

MAX_BYTES = 500 << 10  # what RFC 9309 asks a parser to read at least
MAX_ORIGINS = 4096

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_AGENT = re.compile(r"\*|[A-Za-z_-]+")
# Directives with a value; any other word before a colon is the name of a robot.
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")


@dataclass(frozen=True, slots=True)
class Rules:
    """(whether it allows, path pattern) of the rules for one robot, the most specific first."""

    rules: tuple[tuple[bool, str], ...] = ()

    def allow(self, target: str) -> bool:
        """Whether a path with its query, as in the request, may be fetched: the longest pattern that matches says so, else yes."""
        target = _normal(target)
        return next((allows for allows, pattern in self.rules if _matches(pattern, target)), True)


def parse(text: str, token: str) -> Rules:
    """The rules of a robots.txt for the robot `token` (small letters): those under its name, else those for all (`*`)."""
    groups: dict[str, list[tuple[bool, str]]] = {}
    agents: list[str] = []
    in_heading = False
    for line in re.split(r"[\r\n]+", text.removeprefix("\ufeff")):
        key, _, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        match key.lower():
            case "user-agent":
                agents = agents if in_heading else []
                in_heading = True
                name = _AGENT.match(value)
                if name and name[0].lower() in (token, "*"):
                    agents.append(name[0].lower())
                    groups.setdefault(name[0].lower(), [])
            case "allow" | "disallow":
                in_heading = False
                for agent in agents if value else ():
                    groups[agent].append((key.lower() == "allow", _normal(value)))
    rules = groups.get(token, groups.get("*", []))
    return Rules(tuple(sorted(rules, key=lambda rule: (-len(rule[1]), not rule[0]))))


def _normal(path: str) -> str:
    """One spelling for paths that are the same: escapes of plain characters undone, others in capitals, what is not ASCII escaped."""

    def one(escape: re.Match[str]) -> str:
        char = chr(int(escape[1], 16))
        return char if _UNRESERVED.match(char) else escape[0].upper()

    return quote(_ESCAPE.sub(one, path), safe="".join(map(chr, range(0x21, 0x7F))))


def _matches(pattern: str, path: str) -> bool:
    """`*` is any run of characters, `$` at the end the end. No regular expression: a hostile pattern could keep it busy for ever."""
    anchored = pattern.endswith("$")
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if anchored and not rest:
        return path == first
    last = rest.pop() if anchored else ""
    at = len(first)
    for piece in rest:
        found = path.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return path.endswith(last) and len(path) - len(last) >= at


def refused_by_header(values: Iterable[str], token: str, refused: Iterable[str]) -> bool:
    """Whether X-Robots-Tag headers have a refused directive for all robots or for `token`, as in `noai` or `imagelake: noai`."""
    refused = set(refused)
    for value in values:
        for_us = True
        for part in value.lower().split(","):
            *names, directive = (text.strip() for text in part.split(":"))
            if names and names[0] not in _VALUED:
                for_us = names[0] in (token, "*")
            if for_us and directive in refused:
                return True
    return False


class RobotsCache:
    """The rules of each origin, loaded once by the first who asks; failures are told to all who wait and then forgotten."""

    def __init__(self, load: Callable[[str], Awaitable[Rules]]) -> None:
        self._load = load
        self._known: dict[str, asyncio.Future[Rules | Failure]] = {}

    async def rules(self, origin: str) -> Rules:
        """Of an origin such as https://example.org:8443; raises the `Failure` of loading them."""
        known = self._known.get(origin)
        if known is None:
            known = self._known[origin] = asyncio.get_running_loop().create_future()
            try:
                known.set_result(await self._load(origin))
            except Failure as failure:
                del self._known[origin]
                known.set_result(failure)
            except BaseException:
                del self._known[origin]
                known.cancel()
                raise
            self._forget_oldest()
        found = await asyncio.shield(known)
        if isinstance(found, Failure):
            raise found
        return found

    def _forget_oldest(self) -> None:
        if len(self._known) > MAX_ORIGINS:
            oldest = next(origin for origin, known in self._known.items() if known.done())
            del self._known[oldest]
