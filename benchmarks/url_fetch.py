"""URLs -> bodies: how many small pictures a second the fetcher gets from a server that is quicker than it.

    python benchmarks/url_fetch.py [--urls 5000] [--rounds 3] [--connections 64] [--bytes 20000]

The server is a process of its own on 127.0.0.1 that writes a prepared answer for whatever is asked (404 for robots.txt): what is measured
is our side, that is scheduling, robots, the checked connection, HTTP/1.1 and the body, in one process and thus on one core. Every body is
compared with what was sent. urls_per_s is that of the best round, cpu_ms_per_url the processor time of our process in it.

The last line is JSON: urls_per_s, cpu_ms_per_url, connections, body_bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from imagelake.fetch.fetcher import fetch_all
from imagelake.fetch.model import FetchPolicy

_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers each request with the same body. A request without a body ends at its first empty line."""

    def __init__(self, body: bytes) -> None:
        self._answer = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._pending = (self._pending + data).split(b"\r\n\r\n")
        for request in requests:
            self._transport.write(_NOT_FOUND if request.startswith(b"GET /robots.txt") else self._answer)


def serve(body: bytes, port: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Server(body), "127.0.0.1", 0, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@dataclass(frozen=True)
class Round:
    urls_per_s: float
    cpu_ms_per_url: float


async def one_round(port: int, body: bytes, urls: int, connections: int) -> Round:
    policy = FetchPolicy(connections=connections, per_host=connections, allow_private_addresses=True)
    start, cpu_start = time.perf_counter(), time.process_time()
    fetched = 0
    async for outcome in fetch_all((f"http://127.0.0.1:{port}/{number}.jpg" for number in range(urls)), policy):
        assert outcome.body == body, (outcome.status, outcome.reason)
        fetched += 1
    assert fetched == urls
    return Round(urls / (time.perf_counter() - start), 1000 * (time.process_time() - cpu_start) / urls)


def main() -> None:
    parser = argparse.ArgumentParser(description="small pictures a second from a local server")
    parser.add_argument("--urls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=20_000, dest="body_bytes")
    arguments = parser.parse_args()
    body = random.Random(0).randbytes(arguments.body_bytes)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(body, sender), daemon=True)
    server.start()
    try:
        port = receiver.recv()
        rounds = [asyncio.run(one_round(port, body, arguments.urls, arguments.connections)) for _ in range(arguments.rounds)]
    finally:
        server.terminate()
        server.join()
    print("urls a second, each round:", ", ".join(f"{one.urls_per_s:.0f}" for one in rounds))
    best = max(rounds, key=lambda one: one.urls_per_s)
    figures = {"urls_per_s": round(best.urls_per_s, 1), "cpu_ms_per_url": round(best.cpu_ms_per_url, 3)}
    print(json.dumps(figures | {"connections": arguments.connections, "body_bytes": len(body)}))


if __name__ == "__main__":
    main()
