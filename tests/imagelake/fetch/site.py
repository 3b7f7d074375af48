"""A web site on 127.0.0.1 that misbehaves as it is told, and a world whose time passes only when someone waits."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpcore

from imagelake.fetch.fetcher import fetch_all
from imagelake.fetch.model import Environment, Fetched, FetchPolicy

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]
# What is written, or what writes; the connection stays open after bytes and is closed after a handler.
Answer = bytes | Handler

# To load the usual ones takes longer than most tests.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

PICTURE = b"\xff\xd8 as good as a picture \xff\xd9"


def answer(status: int = 200, body: bytes = PICTURE, *, length: int | None = None, **headers: str) -> bytes:
    """An answer with Content-Length (`length` to lie); further headers by name, with _ for -."""
    lines = [f"HTTP/1.1 {status} .", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def closing(data: bytes) -> Handler:
    """Writes what is given and closes the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return write


def endless(head: bytes, piece: bytes, pause_s: float = 0) -> Handler:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return write


@dataclass
class Site:
    """Answers by path, the answers of a list one after the other; 404 for other paths. Keeps what was asked."""

    routes: Mapping[str, Answer | Sequence[Answer]]
    think_s: float = 0
    port: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0
    active: int = 0
    most_active: int = 0
    most_open: int = 0
    _served: dict[str, int] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.close()
        await asyncio.wait_for(self._all_closed(), 10)

    async def _all_closed(self) -> None:
        while self._open:
            await asyncio.sleep(0.001)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests if path != "/robots.txt"]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return path if "://" in path else f"http://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        self.most_open = max(self.most_open, len(self._open))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                path = first.split(" ")[1]
                self.requests.append((path, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}))
                self.active += 1
                self.most_active = max(self.most_active, self.active)
                try:
                    await asyncio.sleep(self.think_s)
                    reply = self._next(path)
                    if not isinstance(reply, bytes):
                        await reply(writer)
                        break
                    writer.write(reply.replace(b"PORT", b"%d" % self.port))
                    await writer.drain()
                finally:
                    self.active -= 1
        writer.close()
        self._open.remove(writer)

    def _next(self, path: str) -> Answer:
        replies = self.routes.get(path, answer(404, b"not here"))
        if isinstance(replies, bytes) or callable(replies):
            return replies
        number = self._served.get(path, 0)
        self._served[path] = number + 1
        return replies[min(number, len(replies) - 1)]


class World:
    """Time that stands still but for what is slept; `slept` in seconds. Chance is `random`."""

    def __init__(self, start: float = 1_000_000) -> None:
        self.now = start
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        due = self.now + seconds
        await asyncio.sleep(0.001)  # lets what can go on without waiting go on
        self.now = max(self.now, due)

    def environment(self, random: float = 1, **others: Any) -> Environment:
        settings = {"ssl_context": _NO_AUTHORITIES} | others
        return Environment(clock=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep, random=lambda: random, **settings)


class Internet(httpcore.AsyncNetworkBackend):
    """Whatever address is dialled, the port answers. `hosts`: a name's addresses, one list a lookup, the last for all that follow."""

    def __init__(self, port: int, world: World, hosts: Mapping[str, Sequence[Sequence[str]]] | None = None) -> None:
        self.port = port
        self.world = world
        self.hosts = {name: list(lookups) for name, lookups in (hosts or {}).items()}
        self.lookups: list[str] = []
        self.dialled: list[str] = []
        self.dialled_at: list[float] = []

    def environment(self, **others: Any) -> Environment:
        return self.world.environment(network=self, resolve=self.resolve, **others)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        answers = self.hosts[host]
        return list(answers.pop(0) if len(answers) > 1 else answers[0])

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        self.dialled_at.append(self.world.now)
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.port)


async def collect(urls: Iterable[str], environment: Environment | None = None, **policy: Any) -> list[Fetched]:
    """Outcomes in the order of `urls`; private addresses are allowed unless the policy says otherwise."""
    settings = FetchPolicy(**({"allow_private_addresses": True} | policy))
    urls = list(urls)
    by_url = {outcome.url: outcome async for outcome in fetch_all(urls, settings, environment or World().environment())}
    return [by_url[url] for url in urls]


def fetched(
    routes: Mapping[str, Answer | Sequence[Answer]], *paths: str, world: World | None = None, think_s: float = 0, **policy: Any
) -> tuple[list[Fetched], Site]:
    """The outcomes of some paths of a site with these routes, and the site as it was left."""

    async def run() -> tuple[list[Fetched], Site]:
        async with Site(routes, think_s) as site:
            return await collect(map(site.url, paths), (world or World()).environment(), **policy), site

    return asyncio.run(run())
