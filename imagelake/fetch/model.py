"""What the fetcher is told, and what it tells."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import httpcore
import httpx
from pydantic import BaseModel, ConfigDict, Field

from imagelake import __version__


class FetchPolicy(BaseModel):
    """How much, how fast, how patiently, and from whom. Seconds are `_s`; all bounds hold for one `fetch_all`.

    `connections` are requests at a time, `per_host` those to one host, `host_delay_s` the least time between their starts. A URL is tried
    `attempts` times. Between tries it waits `backoff_s`, doubled each time, half of it at random, or as long as the server asks by
    Retry-After; what would be more than `max_wait_s` is not waited for but left to a later run. `max_retry_after_s` is the most that a
    server is believed. `max_bytes` counts after decompression. `total_s` is for one request, from connecting to the last byte.

    `user_agent` starts with the name that robots.txt and X-Robots-Tag know us by. A picture that comes with one of `refused_directives` in
    X-Robots-Tag is not read; robots.txt always holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connections: int = Field(default=64, ge=1)
    per_host: int = Field(default=8, ge=1)
    host_delay_s: float = Field(default=0, ge=0)
    attempts: int = Field(default=3, ge=1)
    backoff_s: float = Field(default=1, gt=0)
    max_wait_s: float = Field(default=60, ge=0)
    max_retry_after_s: float = Field(default=86_400, ge=0)
    max_bytes: int = Field(default=64 << 20, ge=1)
    connect_s: float = Field(default=10, gt=0)
    read_s: float = Field(default=20, gt=0)
    total_s: float = Field(default=120, gt=0)
    max_redirects: int = Field(default=5, ge=0)
    user_agent: str = Field(default=f"imagelake/{__version__}", pattern=r"^[A-Za-z_-]+(/[!-~]+)?( [ -~]+)?$")
    refused_directives: frozenset[str] = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
    allow_private_addresses: bool = False

    @property
    def agent_token(self) -> str:
        """Our name in robots.txt, in small letters."""
        return self.user_agent.split(" ")[0].split("/")[0].lower()


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outcome of one URL.

    `ok` has `body`, `final_url` (after redirects) and what the server said of `etag` and `last_modified`; the content is not looked at.
    `retryable` may succeed later, from `next_attempt_at` on (seconds since 1970, UTC); `permanent` won't. `attempts`: times it was tried.

    `reason`, empty when ok, is the status of the answer (`http_404`, or `robots_http_503` when it was robots.txt's) or
    - retryable: `connect_error`, `connect_timeout`, `dns_error`, `read_timeout`, `deadline`, `closed` (before the headers were whole),
      `short_body`, `host_paused` (another URL of the host was told to come back much later), `client_…` (an error nobody foresaw);
    - permanent: `bad_url`, `scheme`, `blocked_address`, `robots_txt`, `x_robots_tag`, `redirect_limit`, `redirect_loop`, `too_large`,
      `content_encoding`.
    """

    url: str
    status: Literal["ok", "retryable", "permanent"]
    attempts: int
    reason: str = ""
    body: bytes | None = None
    final_url: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    next_attempt_at: float | None = None


class Failure(Exception):
    """Why a try failed. `transient`: another may succeed, `retry_after_s` from now at the earliest."""

    def __init__(self, reason: str, *, transient: bool, retry_after_s: float = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Environment:
    """What the fetcher needs of the world; tests bring their own.

    `clock`: seconds since 1970, UTC. `random`: from 0 to 1. `resolve`: a host name's addresses, in the order to try; None asks the system.
    """

    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    resolve: Callable[[str, int], Awaitable[list[str]]] | None = None
    network: httpcore.AsyncNetworkBackend = field(default_factory=httpcore.AnyIOBackend)
    ssl_context: ssl.SSLContext = field(default_factory=httpx.create_ssl_context)
