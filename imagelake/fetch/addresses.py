"""Where connections may go: a name is resolved once, its addresses are checked, and the connection is made to a checked address.

Who fetches other people's URLs must not be made to read its own network: cloud metadata, databases, routers. Checking the name would not
do, since it may resolve to something else a moment later. TLS and the Host header still see the name, which the caller keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

import httpcore
import httpx

from imagelake.fetch.model import Environment, Failure, FetchPolicy

# Beyond what `is_global` refuses in every Python: a cloud's metadata at a public address (Azure), IETF protocol assignments, 6to4 relays,
# multicast; and IPv6 for documentation.
_REFUSED_IPV4 = [ipaddress.IPv4Network(net) for net in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4")]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
_HOST = re.compile(rb"[A-Za-z0-9._:%-]+")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet; IPv4 inside IPv6 (mapped, 6to4, NAT64) counts as the IPv4 address that it is."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, IPv6Address):
        inner = _embedded(parsed)
        if inner is None:
            return parsed in _GLOBAL_UNICAST and parsed not in _DOCUMENTATION and parsed.is_global
        parsed = inner
    return parsed.is_global and not any(parsed in net for net in _REFUSED_IPV4)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def literal(host: str) -> str | None:
    """The address that a host is without asking anyone: IPv4 in any spelling (octal, hex, one number), IPv6, localhost; else None."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    with contextlib.suppress(OSError, UnicodeEncodeError):
        return str(IPv4Address(socket.inet_aton(host)))
    with contextlib.suppress(ValueError):
        return str(IPv6Address(host))
    return None


def parse_url(text: str) -> httpx.URL:
    """An http or https URL, without its fragment; `Failure` says what else it is."""
    try:
        url = httpx.URL(text.strip().partition("#")[0])
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise Failure("blocked_address" if _spells_private(text) else "bad_url", transient=False) from None
    if url.scheme not in ("http", "https"):
        raise Failure("scheme" if url.scheme else "bad_url", transient=False)
    if not _HOST.fullmatch(url.raw_host) or (url.port is not None and not 0 < url.port < 65536):
        raise Failure("bad_url", transient=False)
    return url


def _spells_private(text: str) -> bool:
    """Whether a URL that is refused anyway has an address for host that other clients read: 0177.0.0.1, or digits in circles."""
    try:
        address = literal(unicodedata.normalize("NFKC", urlsplit(text.strip()).hostname or ""))
    except ValueError:
        return False
    return address is not None and not is_public(address)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to public addresses only, unless the policy allows others."""

    def __init__(self, policy: FetchPolicy, environment: Environment) -> None:
        self._any_address = policy.allow_private_addresses
        self._network = environment.network
        self._resolve: Callable[[str, int], Awaitable[list[str]]] = environment.resolve or self._ask_system
        # The loop's own threads are few, and each may hang for seconds on a dead name server.
        self._threads = ThreadPoolExecutor(policy.connections, thread_name_prefix="resolve")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._checked(host, port)
                # Half of the time for the first, which may be IPv6 in a network that swallows it.
                share_s = timeout if timeout is None or len(addresses) < 2 else timeout / 2
                for address in addresses:
                    try:
                        return await self._network.connect_tcp(address, port, share_s, local_address, socket_options)
                    except (httpcore.ConnectError, httpcore.ConnectTimeout):
                        if address == addresses[-1]:
                            raise
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        raise Failure("dns_error", transient=True)

    async def _checked(self, host: str, port: int) -> list[str]:
        address = literal(host)
        addresses = [address] if address else await self._resolve(host, port)
        # One private address among public ones is refused too: which is tried first is up to whoever runs the name server.
        if not self._any_address and not all(map(is_public, addresses)):
            raise Failure("blocked_address", transient=False)
        return addresses

    async def _ask_system(self, host: str, port: int) -> list[str]:
        ask = asyncio.get_running_loop().run_in_executor(self._threads, _getaddrinfo, host, port)
        try:
            return await ask
        except UnicodeError:  # a part of it is empty or longer than 63 characters
            raise Failure("bad_url", transient=False) from None
        except OSError as error:
            # A name that is not there looks like a network that is not there.
            raise Failure("dns_error", transient=True) from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _getaddrinfo(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
