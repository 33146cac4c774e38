"""The HTTP store's carriers: http1 for servers that send proper HTTP/1.1, aiohttp for all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncpq.errors import InvalidResponseError
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
