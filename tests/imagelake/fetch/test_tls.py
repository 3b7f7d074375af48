"""HTTPS, and HTTP/2 over it: the connection goes to an address, the certificate and the Host are those of the name."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from imagelake.fetch.model import Fetched
from tests.imagelake.fetch.site import PICTURE, Internet, World, collect

Flush = Callable[[], Awaitable[None]]
Write = Callable[[h2.connection.H2Connection, int, Flush], Awaitable[None]]


@dataclass
class TlsSite:
    """Speaks HTTP/2, or HTTP/1.1 where it is not offered that; robots.txt is not there."""

    write: Write
    protocols: list[str]
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # protocol, authority, name in the TLS greeting
    greeted: list[str | None] = field(default_factory=list)
    left: int = 0  # connections that the other side closed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await (self._http2(reader, writer) if protocol == "h2" else self._http1(reader, writer))
        self.left += 1
        writer.close()

    async def _http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            host = head.split(b"Host: ")[1].split(b"\r\n")[0].decode()
            self.asked.append(("http/1.1", host, self.greeted[-1]))
            found = b"404" if b"/robots.txt" in head else b"200"
            writer.write(b"HTTP/1.1 " + found + b" .\r\nContent-Length: %d\r\n\r\n" % len(PICTURE) + PICTURE)

    async def _http2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def flush() -> None:
            writer.write(state.data_to_send())
            await writer.drain()
            await asyncio.sleep(0.05)  # so that it arrives alone

        state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        state.initiate_connection()
        writer.write(state.data_to_send())
        while data := await reader.read(65536):
            for event in state.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    headers = dict(event.headers or [])
                    self.asked.append(("h2", headers[":authority"], self.greeted[-1]))
                    if headers[":path"] == "/robots.txt":
                        state.send_headers(event.stream_id, {":status": "404"}.items(), end_stream=True)
                    else:
                        await self.write(state, event.stream_id, flush)
            writer.write(state.data_to_send())
            await writer.drain()


async def whole(state: h2.connection.H2Connection, stream: int, flush: Flush) -> None:
    state.send_headers(stream, {":status": "200", "etag": "x"}.items())
    state.send_data(stream, PICTURE, end_stream=True)


async def reset(state: h2.connection.H2Connection, stream: int, flush: Flush) -> None:
    state.send_headers(stream, {":status": "200"}.items())
    state.send_data(stream, PICTURE[:5])
    state.reset_stream(stream)


async def short(state: h2.connection.H2Connection, stream: int, flush: Flush) -> None:
    state.send_headers(stream, {":status": "200", "content-length": str(len(PICTURE))}.items())
    await flush()
    state.send_data(stream, PICTURE[:5], end_stream=True)


async def going_on(state: h2.connection.H2Connection, stream: int, flush: Flush) -> None:
    state.send_headers(stream, {":status": "200"}.items())
    state.send_data(stream, b"x" * 10_000)


async def silent(state: h2.connection.H2Connection, stream: int, flush: Flush) -> None:
    pass


def certificate(name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate for a name, and with its key: PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=2)).not_valid_after(now + datetime.timedelta(days=2))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    found = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return found, found + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def through_tls(
    tmp_path: Path, write: Write = whole, *, name: str = "images.test", protocols: tuple[str, ...] = ("h2", "http/1.1"), **policy: Any
) -> tuple[list[Fetched], TlsSite, Internet]:
    """The outcomes of two pictures of https://images.test, whose certificate is for `name`."""
    public, with_key = certificate(name)
    (tmp_path / "server.pem").write_bytes(with_key)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "server.pem")
    server_side.set_alpn_protocols(list(protocols))
    site = TlsSite(write, list(protocols))
    server_side.sni_callback = lambda _, greeted, __: site.greeted.append(greeted)

    async def run() -> tuple[list[Fetched], TlsSite, Internet]:
        async with await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=server_side) as server:
            internet = Internet(server.sockets[0].getsockname()[1], World(), {"images.test": [["93.184.216.34"]]})
            environment = internet.environment(ssl_context=ssl.create_default_context(cadata=public.decode()))
            urls = ["https://images.test/a.jpg", "https://images.test:443/b.jpg"]
            settings = {"allow_private_addresses": False, "connections": 1} | policy
            outcomes = await collect(urls, environment, **settings)
            await asyncio.sleep(0.1)
            return outcomes, site, internet

    return asyncio.run(run())


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_tls_is_spoken_with_the_name_at_the_address(tmp_path: Path, protocol: str) -> None:
    outcomes, site, internet = through_tls(tmp_path, protocols=(protocol,))
    assert [(one.status, one.body) for one in outcomes] == [("ok", PICTURE)] * 2
    assert set(site.asked) == {(protocol, "images.test", "images.test")}
    assert internet.dialled == ["93.184.216.34"], "one connection is enough for one after the other"


def test_a_certificate_for_another_name_is_no_connection(tmp_path: Path) -> None:
    outcomes, site, _ = through_tls(tmp_path, name="other.test", attempts=1)
    assert {(one.status, one.reason) for one in outcomes} == {("retryable", "connect_error")}
    assert site.asked == []


@pytest.mark.parametrize("write", [reset, short])
def test_a_stream_that_is_cut_is_retryable(tmp_path: Path, write: Write) -> None:
    outcomes, _, _ = through_tls(tmp_path, write, attempts=2)
    assert {(one.status, one.reason, one.attempts) for one in outcomes} == {("retryable", "short_body", 2)}


def test_a_stream_that_is_too_long_is_left_with_its_connection(tmp_path: Path) -> None:
    outcomes, _, internet = through_tls(tmp_path, going_on, max_bytes=5000)
    assert {(one.status, one.reason) for one in outcomes} == {("permanent", "too_large")}
    assert len(internet.dialled) == 2


def test_a_stream_without_an_answer_is_left_with_its_connection(tmp_path: Path) -> None:
    outcomes, site, internet = through_tls(tmp_path, silent, total_s=1, attempts=1)
    assert {(one.status, one.reason) for one in outcomes} == {("retryable", "deadline")}
    assert site.left == len(internet.dialled) == 2
