"""What carries requests: bodies of the wanted length, headers on one line, errors without secrets."""

from __future__ import annotations

import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

import asyncpq
from asyncpq.errors import InvalidOptionError, TransportError
from asyncpq.storage import http1
from asyncpq.storage.response_checks import RangeRequest
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.wire import DirectWire, connection_failure, read_body
from asyncpq.testing import ObjectServer

REQUEST = RangeRequest(0, 10, "https://host/object")


class Received:
    received = 0
    partial: bytes | None = None

    def head(self, status: int, headers: object) -> int:
        return 0

    def cut_off(self, data: bytes | memoryview) -> None:
        self.partial = bytes(data)


@given(st.lists(st.binary(min_size=1, max_size=8), max_size=8), st.integers(0, 40))
async def test_a_body_is_read_as_far_as_it_is_wanted(parts: list[bytes], wanted: int) -> None:
    whole, pieces, receiver = b"".join(parts), iter(parts), Received()

    async def read_some() -> bytes:
        return next(pieces, b"")

    body = await read_body(read_some, wanted, receiver)
    assert body.data == whole[: wanted + 1]
    assert body.complete == (len(whole) <= wanted)
    assert receiver.received >= len(body.data)


async def test_a_body_that_breaks_off_leaves_its_beginning() -> None:
    pieces, receiver = iter([b"abc", b"def"]), Received()

    async def read_some() -> bytes:
        try:
            return next(pieces)
        except StopIteration:
            raise ConnectionResetError from None

    with pytest.raises(ConnectionResetError):
        await read_body(read_some, 100, receiver)
    assert receiver.partial == b"abcdef"


async def test_headers_are_one_line_each() -> None:
    wire = DirectWire(ssl_context=True, connect_timeout_s=1.0)
    target = wire.target("https://host:8443/a%20b?c=d", {"Accept": "*/*"})
    assert target.endpoint == ("host", 8443, True)
    assert target.start == "/a%20b?c=d HTTP/1.1\r\nHost: host:8443\r\nAccept: */*\r\n"
    for value in ("a\nb", "a\r\nInjected: b", "a\0b"):
        with pytest.raises(InvalidOptionError, match="line break"):
            wire.target("https://host/a", {"Accept": value})
    await wire.close()


def test_a_broken_connection_does_not_show_its_text() -> None:
    secret = OSError(errno.ECONNRESET, "reset of ?sig=SECRET")
    failure = connection_failure(ConnectionResetError("?sig=SECRET"), REQUEST)
    assert isinstance(failure, RetryableError)
    assert "SECRET" not in str(failure.error)
    assert isinstance(connection_failure(secret, REQUEST), RetryableError)
    unknown = connection_failure(socket.gaierror(socket.EAI_NONAME, "unknown"), REQUEST, "nowhere.example")
    assert isinstance(unknown, TransportError), "a host that does not exist is not tried again"
    assert "the host nowhere.example is unknown" in str(unknown)
    refused = connection_failure(ConnectionRefusedError(errno.ECONNREFUSED, "refused"), REQUEST)
    assert isinstance(refused, RetryableError)
    assert "No server listens on this port" in (refused.error.hint or "")


HOSTS = st.sampled_from(["h.example", "127.0.0.1", "[::1]", "bucket.s3.eu-west-1.amazonaws.com", "UPPER.example"])
PATHS = st.sampled_from(["", "/", "/a/b", "/a%20b/%C3%BC", "//a/../b", "/a;b=c:80"])


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=HOSTS,
    port=st.sampled_from(["", ":80", ":443", ":9000"]),
    path=PATHS,
    query=st.sampled_from(["", "?versionId=1", "?a=%2F&b="]),
)
def test_a_target_has_the_parts_of_its_url(scheme: str, host: str, port: str, path: str, query: str) -> None:
    url = f"{scheme}://{host}{port}{path}{query}"
    endpoint, start = DirectWire(ssl_context=False, connect_timeout_s=1.0).target(url, {"A": "b"})
    parsed = URL(url, encoded=True)
    assert endpoint == (parsed.host, parsed.port, scheme == "https")
    name = parsed.host_port_subcomponent
    assert start == f"{parsed.raw_path_qs} HTTP/1.1\r\nHost: {name and name.lower()}\r\nA: b\r\n"


@pytest.mark.parametrize("protocol", ["https", "s3"])
async def test_tls_to_a_server_of_plain_http_fails_at_once(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for the rest of the handshake, which it takes for a request."""
    monkeypatch.setattr(http1, "_HANDSHAKE_S", 0.5)
    async with ObjectServer() as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        options = {"s3": {"key": "a", "secret": "b", "endpoint_url": endpoint}}
        retry = asyncpq.RetryOptions(connect_timeout_s=100, max_attempts=100)
        async with asyncpq.Session(storage_options=options, retry=retry) as session:
            with pytest.raises(asyncpq.TransportError, match="the server answers without TLS") as raised:
                await session.open_file(f"{endpoint}/a" if protocol == "https" else "s3://bucket/a")
    assert "begins with http://" in str(raised.value.hint)
