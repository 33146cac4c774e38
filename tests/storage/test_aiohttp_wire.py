"""The HTTP store's carriers: http1 for servers that send proper HTTP/1.1, aiohttp for all others."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    CredentialsError,
    Hint,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    TransportError,
    command_words,
)
from asyncpq.storage.base import Store
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

DATA = bytes(range(256)) * 4
HEAD = b'HTTP/1.1 206 Partial Content\r\nETag: "one"\r\nContent-Length: 10\r\nContent-Range: bytes 20-29/1024\r\n'


@asynccontextmanager
async def answering(response: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that sends ``response`` to every request; give its url and the requests that it gets."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/folder/a%20file?signed=1", requests
    finally:
        server.close()


@pytest.mark.parametrize(
    ("response", "sent"),
    [
        (HEAD + b"\r\n" + DATA[20:30], [1, 1]),
        # not HTTP/1.1, but aiohttp understands it
        (HEAD.replace(b"\r\n", b"\n") + b"\n" + DATA[20:30], [2, 1]),
        (HEAD + b"X-Folded: one\r\n two\r\n\r\n" + DATA[20:30], [2, 1]),
    ],
)
async def test_hosts_whose_responses_are_unusual_are_asked_by_aiohttp(response: bytes, sent: list[int]) -> None:
    async with answering(response) as (url, requests):
        store = open_test_store("http", {"headers": {"X-Own": "yes"}}, FAST_RETRIES)
        stored = await store.open_object(url)
        assert stored.client == "direct"
        for number in sent:
            context = new_context()
            assert (await stored.fetch_range(20, 30, context=context)).data == DATA[20:30]
            assert (context.metrics.requests, context.metrics.retries) == (number, number - 1)
        await store.close()
    assert len(requests) == sum(sent)
    for request in requests:
        line, *headers = request.decode().split("\r\n")[:-2]
        assert line == "GET /folder/a%20file?signed=1 HTTP/1.1"
        names = dict(header.split(": ", 1) for header in headers)
        assert (names["Range"], names["X-Own"], names["Accept-Encoding"]) == ("bytes=20-29", "yes", "identity")


@pytest.mark.parametrize(
    ("response", "sent"), [(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", 2), (HEAD + b"X-Flood: x\r\n" * 10_000 + b"\r\n", 1)]
)
async def test_what_neither_understands_is_an_error(response: bytes, sent: int) -> None:
    async with answering(response) as (url, requests):
        store = open_test_store("http", {}, FAST_RETRIES)
        stored = await store.open_object(url)
        with pytest.raises(InvalidResponseError, match="not valid HTTP"):
            await stored.fetch_range(20, 30, context=new_context())
        await store.close()
    assert len(requests) == sent


async def test_proxies_of_the_environment_are_asked_by_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(HEAD + b"\r\n" + DATA[20:30]) as (url, requests):
        monkeypatch.setenv("http_proxy", url.partition("/folder")[0])
        store = open_test_store("http", {"client_kwargs": {"trust_env": True}}, FAST_RETRIES)
        stored = await store.open_object("http://elsewhere.example/file")
        assert stored.client == "aiohttp"
        assert (await stored.fetch_range(20, 30, context=new_context())).data == DATA[20:30]
        await store.close()
    assert requests[0].startswith(b"GET http://elsewhere.example/file HTTP/1.1\r\n")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nothing listens, held so that no server of another test gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def proxied(kind: str) -> tuple[Store, str]:
    """Return a store that goes through the environment's proxies, and a url of it that only a tunnel reaches."""
    if kind == "https":
        return open_test_store("http", {"client_kwargs": {"trust_env": True}}, FAST_RETRIES), "https://a.example/file"
    options = {"endpoint_url": "https://a.example", "key": "k", "secret": "s", "client_kwargs": {"region_name": "eu"}}
    return open_test_store("s3", options, FAST_RETRIES), "s3://bucket/file"


async def failed_range(store: Store, url: str, error: type[AsyncpqError], message: str | None = None) -> AsyncpqError:
    """Return the error of a fetch that fails; ``message`` is a pattern of its text. Closes the store."""
    stored = await store.open_object(url)
    with pytest.raises(error, match=message) as caught:
        await stored.fetch_range(20, 30, context=new_context())
    await store.close()
    return caught.value


@pytest.mark.parametrize("kind", ["https", "s3"])
@pytest.mark.parametrize(
    ("status", "error", "message", "hint", "sent"),
    [
        (
            407,
            CredentialsError,
            r"the proxy refused the credentials: .*\(status 407\)",
            "http://USER:PASSWORD@HOST:PORT",
            1,
        ),
        (403, AccessDeniedError, r"does not connect to the server \(status 403\)", "Let the proxy connect", 1),
        (302, AccessDeniedError, r"does not connect to the server \(status 302\)", "Let the proxy connect", 1),
        (503, TransportError, r"does not connect to the server \(status 503\)", "Check the proxy", 4),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_named(
    kind: str, status: int, error: type[StoreError], message: str, hint: str, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status) as (url, requests):
        monkeypatch.setenv("https_proxy", url.partition("/folder")[0])
        monkeypatch.setenv("no_proxy", "")
        failure = await failed_range(*proxied(kind), error, message)
    assert hint in (failure.hint or "")
    assert len(requests) == sent
    assert all(line.startswith(b"CONNECT a.example:443 ") for line in requests)


async def test_a_proxy_that_asks_for_a_password_before_it_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n") as (url, _):
        monkeypatch.setenv("http_proxy", url.partition("/folder")[0])
        failure = await failed_range(
            open_test_store("http", {"client_kwargs": {"trust_env": True}}, FAST_RETRIES),
            "http://a.example/file",
            CredentialsError,
            "the proxy refused the credentials",
        )
    assert "HTTP_PROXY" in (failure.hint or "")


@pytest.mark.parametrize("kind", ["https", "s3"])
async def test_a_proxy_that_does_not_listen_is_not_taken_for_the_server(
    kind: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("no_proxy", "")
    failure = await failed_range(*proxied(kind), TransportError)
    assert "Check the proxy that HTTP_PROXY or HTTPS_PROXY names" in (failure.hint or "")


@pytest.mark.parametrize("kind", ["https", "s3"])
@pytest.mark.parametrize(
    ("status", "error"), [(407, CredentialsError), (403, AccessDeniedError), (503, TransportError)]
)
async def test_no_traceback_has_the_password_of_a_proxy(
    kind: str, status: int, error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status) as (url, _):
        monkeypatch.setenv("https_proxy", url.partition("/folder")[0].replace("//", "//user:hunter2@"))
        monkeypatch.setenv("no_proxy", "")
        failure = await failed_range(*proxied(kind), error)
    assert "hunter2" not in "".join(traceback.format_exception(failure))


@pytest.mark.parametrize("kind", ["https", "s3"])
@pytest.mark.parametrize(
    "proxy", ["http://user:hunter2@127.0.0.1:port", "http://user:hunter2@[::1:3128", "a.example:x"]
)
async def test_a_proxy_without_a_valid_url_is_an_option_s_error(
    kind: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    failure = await failed_range(*proxied(kind), InvalidOptionError, "HTTPS_PROXY has no valid url")
    assert "hunter2" not in "".join(traceback.format_exception(failure))


@pytest.mark.parametrize("kind", ["https", "s3"])
async def test_an_unknown_host_of_a_proxy_is_not_taken_for_the_server_s(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:hunter2@Proxy.invalid:3128/")
    monkeypatch.setenv("no_proxy", "")
    failure = await failed_range(*proxied(kind), TransportError, r"the host proxy\.invalid is unknown")
    assert (failure.hint or "").startswith("Check the proxy that HTTP_PROXY or HTTPS_PROXY names")


@pytest.mark.parametrize("named", [True, False])
async def test_a_host_that_cannot_be_reached_without_the_proxy(
    named: bool, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if named:
        monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    failure = await failed_range(
        open_test_store("http", {}, FAST_RETRIES), f"http://127.0.0.1:{closed_port}/file", TransportError
    )
    hint = failure.hint or ""
    assert ('{"trust_env": True}' in hint) is named
    assert isinstance(hint, Hint) is named
    assert "trust_env" not in command_words(hint)
