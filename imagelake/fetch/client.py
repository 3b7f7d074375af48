"""One request: a checked connection, the headers, a body that is whole and not too large."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass

import h2.exceptions
import httpcore
import httpx

from imagelake.fetch.addresses import CheckedNetwork
from imagelake.fetch.model import Environment, Failure, FetchPolicy

_IDLE_S = 5  # servers close connections that stand idle much longer
_DRAIN_BYTES = 64 << 10  # of an answer that nobody wants, so that its connection can be used again; a new one costs less than more
_UNKNOWN_ENCODINGS = ("br", "zstd", "compress", "x-compress")

# What ends an answer too soon; h2's own errors get through httpcore.
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, h2.exceptions.ProtocolError)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. `body` is empty when it wasn't wanted; not `whole` when it is longer than what was allowed, and cut there."""

    status: int
    headers: httpx.Headers
    body: bytes = b""
    whole: bool = True


class Client:
    """Requests without cookies, proxies or redirects, over connections that carry one at a time: HTTP/2 too, where an answer that is not
    read to its end would hold up the others."""

    def __init__(self, policy: FetchPolicy, environment: Environment) -> None:
        self._total_s = policy.total_s
        self._timeouts = {"connect": policy.connect_s, "read": policy.read_s, "write": policy.read_s}
        # Pictures are compressed already; an encoding could only hide how large they become.
        self._headers = [(b"User-Agent", policy.user_agent.encode()), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity")]
        self._ssl_context = environment.ssl_context
        self._network = CheckedNetwork(policy, environment)
        self._idle: list[tuple[httpcore.Origin, httpcore.AsyncHTTPConnection]] = []  # the last used last
        self._max_idle = policy.connections

    async def get(self, url: httpx.URL, max_bytes: int, wanted: Callable[[int, httpx.Headers], bool]) -> Page:
        """The answer to GET; `wanted(status, headers)` decides whether its body is read. Raises `Failure`."""
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"Host", url.netloc), *self._headers]
        request = httpcore.Request("GET", target, headers=headers, extensions={"timeout": self._timeouts})
        try:
            async with asyncio.timeout(self._total_s), self._connection(target.origin) as connection:
                response = await connection.handle_async_request(request)
                return await _page(connection, response, max_bytes, wanted)
        except Failure:
            raise
        except Exception as error:
            # Whatever a server makes of the libraries that parse its bytes, it must not end the run.
            raise Failure(_reason(error), transient=True) from error

    @contextlib.asynccontextmanager
    async def _connection(self, origin: httpcore.Origin) -> AsyncIterator[httpcore.AsyncHTTPConnection]:
        connection = await self._taken(origin) or httpcore.AsyncHTTPConnection(
            origin, self._ssl_context, keepalive_expiry=_IDLE_S, http2=True, network_backend=self._network
        )
        try:
            yield connection
        except BaseException:
            await connection.aclose()
            raise
        if connection.is_closed() or not connection.is_idle():
            await connection.aclose()
            return
        self._idle.append((origin, connection))
        if len(self._idle) > self._max_idle:
            await self._idle.pop(0)[1].aclose()

    async def _taken(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection | None:
        for at in reversed(range(len(self._idle))):
            if self._idle[at][0] == origin:
                _, connection = self._idle.pop(at)
                if not connection.has_expired():
                    return connection
                await connection.aclose()
        return None

    async def close(self) -> None:
        for _, connection in self._idle:
            await connection.aclose()
        self._network.close()


def _reason(error: Exception) -> str:
    match error:
        case httpcore.ConnectTimeout():
            return "connect_timeout"
        case httpcore.ConnectError():
            return "connect_error"
        case httpcore.TimeoutException():
            return "read_timeout"
        case httpcore.NetworkError() | httpcore.ProtocolError() | h2.exceptions.ProtocolError():
            return "closed"
        case TimeoutError():
            return "deadline"
        case _:
            return f"client_{type(error).__name__}"


async def _page(
    connection: httpcore.AsyncHTTPConnection, response: httpcore.Response, max_bytes: int, wanted: Callable[[int, httpx.Headers], bool]
) -> Page:
    headers = httpx.Headers(response.headers)
    at_end = False
    try:
        if not wanted(response.status, headers):
            with contextlib.suppress(httpcore.TimeoutException, *_BROKEN):
                at_end = await _drain(response.aiter_stream(), _DRAIN_BYTES)
            return Page(response.status, headers)
        body, at_end = await _read(response.aiter_stream(), headers.get("content-encoding", ""), max_bytes)
        return Page(response.status, headers, body, whole=at_end)
    except _BROKEN as error:
        raise Failure("short_body", transient=True) from error
    finally:
        await response.aclose()
        if not at_end:
            await connection.aclose()  # over HTTP/2 the rest would still come


async def _drain(chunks: AsyncIterable[bytes], max_bytes: int) -> bool:
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > max_bytes:
            return False
    return True


async def _read(chunks: AsyncIterable[bytes], encoding: str, max_bytes: int) -> tuple[bytes, bool]:
    """The body, decompressed, and whether that is all of it or the first `max_bytes`; memory is bounded by these and one chunk."""
    encoding = encoding.strip().lower()
    if encoding in _UNKNOWN_ENCODINGS:
        raise Failure("content_encoding", transient=False)
    unpacker = Unpacker() if encoding in ("gzip", "x-gzip", "deflate") else None
    body = bytearray()
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        body += unpacker.unpack(chunk, max_bytes + 1 - len(body)) if unpacker else chunk
        if max(len(body), received) > max_bytes:
            return bytes(body[:max_bytes]), False
    if unpacker and not unpacker.at_end:
        raise Failure("short_body", transient=True)
    return bytes(body), True


class Unpacker:
    """gzip or zlib, a chunk at a time and no further than is asked for."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header

    @property
    def at_end(self) -> bool:
        """Whether what was compressed is whole."""
        return self._inflate.eof

    def unpack(self, chunk: bytes, max_bytes: int) -> bytes:
        """At most `max_bytes` bytes (at least 1); when there are as many, what is left of the chunk is lost."""
        unpacked = b""
        try:
            while chunk and len(unpacked) < max_bytes:
                if self._inflate.eof:  # gzip may have several members
                    self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
                unpacked += self._inflate.decompress(chunk, max_bytes - len(unpacked))
                chunk = self._inflate.unused_data
        except zlib.error as error:
            raise Failure("content_encoding", transient=False) from error
        return unpacked
