"""URLs -> outcomes: who is asked when, how often, and what follows from the answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from imagelake.fetch import robots
from imagelake.fetch.addresses import parse_url
from imagelake.fetch.client import Client, Page
from imagelake.fetch.model import Environment, Failure, Fetched, FetchPolicy

# Outcomes, or what ended everything; None when there is no more.
_Ended = asyncio.Queue[Fetched | BaseException | None]

_REDIRECTS = (301, 302, 303, 307, 308)
_RETRYABLE_4XX = (408, 425, 429)
# URLs begun for each connection: those that wait, for their host or for another try, must not keep the others from going on.
_BEGUN_PER_CONNECTION = 8
_HOSTS_REMEMBERED = 4096  # before those that nobody waits for are forgotten


async def fetch_all(
    urls: Iterable[str], policy: FetchPolicy | None = None, environment: Environment | None = None
) -> AsyncGenerator[Fetched, None]:
    """One outcome for each URL, in the order in which they come to an end; `urls` is read as far as there is room.

    At most `connections` bodies wait to be taken. Closing the iterator early ends what is under way. A list that is sorted by host goes
    at the pace of one host: shuffle it. What iterating `urls` raises is raised here; whatever a server does is an outcome.
    """
    policy = policy or FetchPolicy()
    fetcher = _Fetcher(policy, environment or Environment())
    pending = iter(urls)
    ended: _Ended = asyncio.Queue(policy.connections)

    async def settle_some() -> None:
        for url in pending:
            await fetcher.settle(url, ended)

    async def settle_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(policy.connections * _BEGUN_PER_CONNECTION):
                    group.create_task(settle_some())
            await ended.put(None)
        except ExceptionGroup as errors:
            await ended.put(errors.exceptions[0])

    all_settled = asyncio.create_task(settle_all())
    try:
        while (outcome := await ended.get()) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        all_settled.cancel()
        await asyncio.wait([all_settled])
        await fetcher.close()


@dataclass
class _Host:
    """One host's share: requests at a time, when the next may start (monotonic seconds), and how many wait or run."""

    slots: asyncio.Semaphore
    next_start: float = 0
    users: int = 0


class _Fetcher:
    def __init__(self, policy: FetchPolicy, environment: Environment) -> None:
        self._policy = policy
        self._environment = environment
        self._client = Client(policy, environment)
        self._slots = asyncio.Semaphore(policy.connections)
        self._hosts: dict[str, _Host] = {}
        self._most_hosts = _HOSTS_REMEMBERED
        self._robots = robots.RobotsCache(self._load_robots)

    async def close(self) -> None:
        await self._client.close()

    async def settle(self, url: str, ended: _Ended) -> None:
        """Tries a URL until there is an outcome, and puts that."""
        for attempt in itertools.count(1):
            try:
                return await self._try(url, attempt, ended)
            except Failure as failure:
                wait_s = max(failure.retry_after_s, self._backoff_s(attempt))
                if not failure.transient:
                    outcome = Fetched(url, "permanent", attempt, failure.reason)
                elif attempt >= self._policy.attempts or wait_s > self._policy.max_wait_s:
                    outcome = Fetched(url, "retryable", attempt, failure.reason, next_attempt_at=self._environment.clock() + wait_s)
                else:
                    await self._environment.sleep(wait_s)
                    continue
                return await ended.put(outcome)

    def _backoff_s(self, attempt: int) -> float:
        longest = min(self._policy.backoff_s * 2.0 ** min(attempt - 1, 30), self._policy.max_wait_s)
        return longest * (1 + self._environment.random()) / 2

    async def _try(self, text: str, attempt: int, ended: _Ended) -> None:
        async with self._answer(parse_url(text), self._policy.max_bytes, self._wanted, obey_robots=True) as (url, page):
            if page.status != 200:
                raise self._refusal(page)
            if self._opted_out(page.headers):
                raise Failure("x_robots_tag", transient=False)
            if not page.whole:
                raise Failure("too_large", transient=False)
            etag, modified = page.headers.get("etag"), page.headers.get("last-modified")
            # Put before the slot is free, so that bodies can't pile up.
            await ended.put(Fetched(text, "ok", attempt, "", page.body, str(url), etag, modified))

    def _wanted(self, status: int, headers: httpx.Headers) -> bool:
        return status == 200 and not self._opted_out(headers)

    def _opted_out(self, headers: httpx.Headers) -> bool:
        tags = headers.get_list("x-robots-tag")
        return robots.refused_by_header(tags, self._policy.agent_token, self._policy.refused_directives)

    @contextlib.asynccontextmanager
    async def _answer(
        self, url: httpx.URL, max_bytes: int, wanted: Callable[[int, httpx.Headers], bool], *, obey_robots: bool
    ) -> AsyncIterator[tuple[httpx.URL, Page]]:
        """Where redirects end, and the answer there, while its place among the connections is held. Each hop is checked like the first."""
        seen: set[httpx.URL] = set()
        while True:
            if obey_robots and not (await self._robots.rules(_origin(url))).allow(url.raw_path.decode("ascii")):
                raise Failure("robots_txt", transient=False)
            async with self._turn(url.host):
                page = await self._client.get(url, max_bytes, wanted)
                location = page.headers.get("location") if page.status in _REDIRECTS else None
                if location is None:
                    self._heed(url.host, page)
                    yield url, page
                    return
            seen.add(url)
            if len(seen) > self._policy.max_redirects:
                raise Failure("redirect_limit", transient=False)
            url = _joined(url, location)
            if url in seen:
                raise Failure("redirect_loop", transient=False)

    async def _load_robots(self, origin: str) -> robots.Rules:
        """RFC 9309: what is not there (or leads nowhere) allows everything, what can't be read now allows nothing yet."""
        try:
            url = parse_url(f"{origin}/robots.txt")
            async with self._answer(url, robots.MAX_BYTES, lambda status, _: status == 200, obey_robots=False) as (_, page):
                refusal = self._refusal(page)
                if page.status != 200 and refusal.transient:
                    raise Failure(f"robots_{refusal.reason}", transient=True, retry_after_s=refusal.retry_after_s)
                return robots.parse(page.body.decode("utf-8", "replace"), self._policy.agent_token)
        except Failure as failure:
            if failure.transient:
                raise
            return robots.Rules()

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """A place among the host's connections and among all, once the host is to be asked again."""
        host = self._host(name)
        host.users += 1
        try:
            async with host.slots:
                while True:
                    await self._until_due(host)
                    async with self._slots:
                        if host.next_start > self._environment.monotonic():
                            continue  # another began, or the host asked for a pause, while this one waited for its place
                        host.next_start = self._environment.monotonic() + self._policy.host_delay_s
                        yield
                        return
        finally:
            host.users -= 1

    def _host(self, name: str) -> _Host:
        if name not in self._hosts:
            if len(self._hosts) >= self._most_hosts:
                now = self._environment.monotonic()
                self._hosts = {name: host for name, host in self._hosts.items() if host.users or host.next_start > now}
                self._most_hosts = max(_HOSTS_REMEMBERED, 2 * len(self._hosts))
            self._hosts[name] = _Host(asyncio.Semaphore(self._policy.per_host))
        return self._hosts[name]

    async def _until_due(self, host: _Host) -> None:
        while (wait_s := host.next_start - self._environment.monotonic()) > 0:
            if wait_s > self._policy.max_wait_s + self._policy.host_delay_s:
                raise Failure("host_paused", transient=True, retry_after_s=wait_s)
            await self._environment.sleep(wait_s)

    def _heed(self, name: str, page: Page) -> None:
        """Leaves the whole host alone for as long as it asks: other URLs would be told the same."""
        if page.status in (429, 503):
            pause_s = self._retry_after_s(page)
            host = self._hosts[name]
            host.next_start = max(host.next_start, self._environment.monotonic() + pause_s)

    def _refusal(self, page: Page) -> Failure:
        transient = page.status in _RETRYABLE_4XX or page.status >= 500
        return Failure(f"http_{page.status}", transient=transient, retry_after_s=self._retry_after_s(page) if transient else 0)

    def _retry_after_s(self, page: Page) -> float:
        value = page.headers.get("retry-after", "").strip()
        if value.isascii() and value.isdecimal():
            return min(float(value), self._policy.max_retry_after_s)
        at = _seconds(value)
        if at is None:
            return 0
        # By the server's own clock, where it says what that is.
        now = _seconds(page.headers.get("date", "")) or self._environment.clock()
        return min(at - now, self._policy.max_retry_after_s)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _joined(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return parse_url(str(url.join(location)))
    except (httpx.InvalidURL, UnicodeError, ValueError):
        return parse_url(location)  # for its reason, where it has one


def _seconds(http_date: str) -> float | None:
    """Seconds since 1970, UTC; None for what is no date."""
    try:
        at = parsedate_to_datetime(http_date)
        return at.replace(tzinfo=at.tzinfo or UTC).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
