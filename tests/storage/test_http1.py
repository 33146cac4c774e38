"""The hot path's HTTP/1.1: however a response is cut into segments, it is understood alike, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.storage.http1 import _USES, Body, Connection, ConnectionPool, Endpoint, ProtocolError, parse_head

OK = b"HTTP/1.1 206 Partial Content\r\n"


class FakeTransport(asyncio.Transport):
    """Remembers what was written and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Receiver:
    """Wants so many bytes of any body, and remembers what it was told."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.heads: list[tuple[int, Mapping[str, str]]] = []
        self.progress: list[int] = []
        self.parts: list[bytes] = []
        self.some_came = asyncio.Event()

    @property
    def received(self) -> int:
        return self.progress[-1] if self.progress else 0

    @received.setter
    def received(self, received: int) -> None:
        self.progress.append(received)
        self.some_came.set()

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        self.heads.append((status, headers))
        return self.wanted

    def cut_off(self, data: bytes | memoryview) -> None:
        self.parts.append(bytes(data))


def feed(connection: Connection, data: bytes, cuts: list[int]) -> None:
    """``data`` in segments that end at ``cuts``, each as the socket would bring it."""
    edges = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    start = 0
    for stop in edges:
        while start < stop:
            buffer = connection.get_buffer(-1)
            assert len(buffer) > 0
            taken = min(len(buffer), stop - start)
            buffer[:taken] = data[start : start + taken]
            connection.buffer_updated(taken)
            start += taken
            if connection._transport is not None and connection._transport.is_closing():
                return


async def respond(
    response: bytes,
    cuts: list[int],
    *,
    wanted: int,
    method: str = "GET",
    close: bool = False,
    heads: list[tuple[int, Mapping[str, str]]] | None = None,
) -> tuple[Body, Connection]:
    """One exchange whose response is ``response``; ``close``: and then the connection's end."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop, set())
    connection.connection_made(FakeTransport())

    receiver = Receiver(wanted)
    coming = connection.start(b"GET /", receiver, without_body=method == "HEAD")
    try:
        feed(connection, response, cuts)
        if close:
            connection.connection_lost(None)
        body = await asyncio.wait_for(coming, 5)
    finally:
        connection.end()
    assert receiver.progress == sorted(receiver.progress)
    assert not receiver.parts
    if heads is not None:
        heads.extend(receiver.heads)
    return body, connection


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def chunked(data: bytes, sizes: list[int], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    out = b""
    at = 0
    for size in sizes:
        part = data[at : at + size]
        if part:
            out += b"%x%s\r\n%s\r\n" % (len(part), extension, part)
        at += size
    if data[at:]:
        out += b"%X\r\n%s\r\n" % (len(data) - at, data[at:])
    return out + b"0\r\n" + trailers + b"\r\n"


BODIES = st.one_of(st.binary(max_size=300), st.integers(0, 200_000).map(lambda size: bytes(range(256)) * (size // 256)))
CUTS = st.lists(st.integers(0, 300_000), max_size=12)


@given(data=BODIES, cuts=CUTS)
def test_a_body_of_known_length(data: bytes, cuts: list[int]) -> None:
    response = OK + b'Content-Length: %d\r\nETag: "x"\r\n\r\n' % len(data) + data
    heads: list[tuple[int, Mapping[str, str]]] = []
    body, connection = run(respond(response, cuts, wanted=len(data), heads=heads))
    assert body == Body(data, True)
    assert connection.reusable
    assert heads[0][0] == 206
    assert heads[0][1]["etag"] == '"x"'


@given(cuts=CUTS)
def test_a_large_body_stays_where_it_was_received(cuts: list[int]) -> None:
    """It lies in memory of Arrow's pool, which is free again once the last view of it is gone."""
    data = bytes(range(256)) * 800
    before = pa.total_allocated_bytes()
    body, connection = run(respond(OK + b"Content-Length: %d\r\n\r\n" % len(data) + data, cuts, wanted=len(data)))
    assert connection.reusable
    assert isinstance(body.data, memoryview)
    assert body.data.readonly
    assert pa.total_allocated_bytes() - before in range(len(data), len(data) + 1024)
    middle = body.data[1000:2000]
    del body, connection
    assert middle == data[1000:2000]
    del middle
    assert pa.total_allocated_bytes() == before


@given(data=BODIES, cuts=CUTS, sizes=st.lists(st.integers(1, 70_000), max_size=8), trailers=st.booleans())
def test_a_chunked_body(data: bytes, cuts: list[int], sizes: list[int], trailers: bool) -> None:
    coded = chunked(data, sizes, extension=b";a=b" if trailers else b"", trailers=b"X: y\r\n" if trailers else b"")
    body, connection = run(respond(OK + b"Transfer-Encoding: chunked\r\n\r\n" + coded, cuts, wanted=len(data)))
    assert body == Body(data, True)
    assert connection.reusable


@pytest.mark.parametrize(
    "coded",
    [b"1;a=b\r\nx\r\n0\r\n" + b"X: y\r\n" * 12_000 + b"\r\n", (b"1;" + b"a" * 8000 + b"\r\nx\r\n") * 10 + b"0\r\n\r\n"],
    ids=["trailers", "extensions"],
)
def test_a_chunked_body_that_is_mostly_lines_is_refused(coded: bytes) -> None:
    with pytest.raises(ProtocolError, match="more chunk sizes"):
        run(respond(OK + b"Transfer-Encoding: chunked\r\n\r\n" + coded, [], wanted=100))


def test_a_chunked_body_may_have_chunks_of_one_byte() -> None:
    data = bytes(50_000)
    coded = chunked(data, [1] * len(data))
    body, _ = run(respond(OK + b"Transfer-Encoding: chunked\r\n\r\n" + coded, [], wanted=len(data)))
    assert body == Body(data, True)


def test_a_body_that_memory_cannot_hold_is_refused() -> None:
    response = OK + b"Content-Length: 4000000000000000000\r\n\r\nabc"
    with pytest.raises(ProtocolError, match="too many for memory"):
        run(respond(response, [], wanted=1 << 62))


@given(data=BODIES, cuts=CUTS)
def test_a_body_that_ends_with_its_connection(data: bytes, cuts: list[int]) -> None:
    body, connection = run(respond(OK + b"\r\n" + data, cuts, wanted=len(data), close=True))
    assert body == Body(data, True)
    assert not connection.reusable


@given(data=st.binary(min_size=1, max_size=500), cuts=CUTS, missing=st.integers(1, 500), kind=st.booleans())
def test_a_body_that_is_cut_short_is_never_complete(data: bytes, cuts: list[int], missing: int, kind: bool) -> None:
    whole = chunked(data, [100]) if kind else data
    framing = b"Transfer-Encoding: chunked" if kind else b"Content-Length: %d" % len(data)
    part = whole[: max(0, len(whole) - missing)]
    body, connection = run(respond(OK + framing + b"\r\n\r\n" + part, cuts, wanted=len(data), close=True))
    assert not body.complete
    assert data.startswith(body.data)
    assert not connection.reusable


@given(data=st.binary(min_size=2, max_size=500), cuts=CUTS, wanted=st.integers(0, 499), kind=st.integers(0, 2))
def test_more_than_is_wanted_shows_and_ends_the_connection(
    data: bytes, cuts: list[int], wanted: int, kind: int
) -> None:
    wanted %= len(data) - 1
    framing = (b"Content-Length: %d" % len(data), b"Transfer-Encoding: chunked", b"X: y")[kind]
    coded = chunked(data, [60]) if kind == 1 else data
    body, connection = run(respond(OK + framing + b"\r\n\r\n" + coded, cuts, wanted=wanted, close=True))
    assert len(body.data) == wanted + 1
    assert data.startswith(body.data)
    assert not body.complete
    assert not connection.reusable


@given(cuts=CUTS, surplus=st.binary(min_size=1, max_size=40))
def test_bytes_behind_the_body_end_the_connection(cuts: list[int], surplus: bytes) -> None:
    response = OK + b"Content-Length: 3\r\n\r\nabc" + surplus
    body, connection = run(respond(response, [], wanted=3))
    assert body == Body(b"abc", True)
    assert not connection.reusable

    async def later() -> bool:
        """They come when the connection is idle."""
        _, idle = await respond(OK + b"Content-Length: 3\r\n\r\nabc", cuts, wanted=3)
        assert idle.reusable
        feed(idle, surplus, [])
        return idle.reusable

    assert run(later()) is False


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", b"200 OK"), ("GET", b"204 No Content"), ("GET", b"304 Not Modified")]
)
def test_responses_without_a_body(method: str, status: bytes) -> None:
    response = b"HTTP/1.1 " + status + b"\r\nContent-Length: 10\r\n\r\n"
    body, connection = run(respond(response, [], wanted=0, method=method))
    assert body == Body(b"", True)
    assert connection.reusable


@pytest.mark.parametrize("head", [b"Connection: close\r\n", b"connection: foo, Close\r\n"])
def test_a_connection_that_the_server_will_close(head: bytes) -> None:
    body, connection = run(respond(OK + head + b"Content-Length: 1\r\n\r\nx", [], wanted=1))
    assert body == Body(b"x", True)
    assert not connection.reusable


def test_http_1_0_is_not_kept() -> None:
    body, connection = run(respond(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", [], wanted=1))
    assert body == Body(b"x", True)
    assert not connection.reusable


def test_interim_responses_are_passed_over() -> None:
    response = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
    body, _ = run(respond(response + b"Content-Length: 2\r\n\r\nab", [5, 30, 44, 80], wanted=2))
    assert body == Body(b"ab", True)


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Bad Name: x\r\n\r\n",
        OK + b"Folded: x\r\n y\r\n\r\n",
        OK + b"A: x\nB: y\r\n\r\n",
        OK.replace(b"\r\n", b"\n") + b"A: x\n\n",
        OK + b"A: x\rB: y\r\n\r\n",
        OK + b"A: \0\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        OK + b"Content-Length: -3\r\n\r\n",
        OK + b"Content-Length: 3, 3\r\n\r\n",
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 9000,
        OK + b"X: y\r\n" * 20_000,
        b"x" * 70_000,
    ],
)
@pytest.mark.parametrize("cuts", [[], list(range(1, 200))])
def test_what_is_no_http(response: bytes, cuts: list[int]) -> None:
    with pytest.raises(ProtocolError):
        run(respond(response, cuts, wanted=1000))


NAMES = st.lists(
    st.text("abcXYZ019-_.!", min_size=1, max_size=8), min_size=1, max_size=6, unique_by=lambda name: name.lower()
)
BLANKS = st.text(" \t", max_size=2)


@given(names=NAMES, status=st.sampled_from(["HTTP/1.1 206 Partial Content", "HTTP/1.0 404"]), data=st.data())
def test_a_head_whose_names_came_often_is_parsed_like_any_other(names: list[str], status: str, data: Any) -> None:
    values = st.text("ab :;=\xe9\udce9", max_size=9).map(str.strip)
    head = status
    for number in range(_USES + 5):
        drawn = data.draw(st.tuples(*[st.tuples(BLANKS, values, BLANKS) for _ in names])) if number > _USES else None
        fields = drawn or [("", "v", "")] * len(names)
        lines = [f"{name}:{''.join(field)}" for name, field in zip(names, fields, strict=True)]
        head = "\r\n".join([status, *lines])
        expected = {name.lower(): value for name, (_, value, _) in zip(names, fields, strict=True)}
        assert parse_head(head) == (int(status[9:12]), int(status[7]), expected)
    for damage in ("\n", "\r", "\0", "\r\nno colon", "\r\n name: value"):
        at = data.draw(st.integers(len(status), len(head)))
        with pytest.raises(ProtocolError):
            parse_head(head[:at] + damage + (head[at:] if len(damage) == 1 else ""))


def test_of_repeated_headers_the_first_counts() -> None:
    head = (
        'HTTP/1.1 206 Partial Content\r\nETag: "a"\r\nX: 1\r\netag: "b"\r\nX:\r\nContent-Length: 3\r\ncontent-length: 3'
    )
    assert parse_head(head) == (206, 1, {"etag": '"a"', "x": "1", "content-length": "3"})
    assert parse_head("HTTP/1.0 204 ") == (204, 0, {})
    assert parse_head("HTTP/1.1 200 OK\r\nA: \t b \t\r\nC: d ") == (200, 1, {"a": "b", "c": "d"})


async def test_a_broken_connection_leaves_what_had_come() -> None:
    connection = Connection(asyncio.get_running_loop(), set())
    connection.connection_made(FakeTransport())
    receiver = Receiver(10)
    coming = connection.start(b"GET /", receiver)
    feed(connection, OK + b"Content-Length: 10\r\n\r\nabc", [])
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(ConnectionResetError, match="reset"):
        await coming
    connection.end()
    assert receiver.parts == [b"abc"]


@given(st.binary(max_size=200))
def test_any_head_is_parsed_or_refused(head: bytes) -> None:
    try:
        status, version, headers = parse_head((b"HTTP/1.1 200 OK\r\n" + head).decode("utf-8", "surrogateescape"))
    except ProtocolError:
        return
    assert (status, version) == (200, 1)
    lines = head.split(b"\r\n")
    assert set(headers) == {line.partition(b":")[0].decode().lower() for line in lines}
    for line in reversed(lines):
        name = line.partition(b":")[0]
        first = next(other for other in lines if other.partition(b":")[0].lower() == name.lower())
        assert headers[name.decode().lower()].encode("utf-8", "surrogateescape") == first.partition(b":")[2].strip(
            b" \t"
        )


@contextlib.asynccontextmanager
async def serving(respond: bytes) -> AsyncIterator[tuple[Endpoint, list[int]]]:
    """A server that sends ``respond`` for each request; its endpoint, and the connections it has seen."""
    seen: list[int] = []
    gone: list[asyncio.Event] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(len(seen))
        gone.append(asyncio.Event())
        left = gone[-1]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(respond)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], False), seen
    finally:
        server.close()
        for left in gone:
            await left.wait()
        await server.wait_closed()


async def test_connections_are_used_again_while_they_are_young() -> None:
    async def get() -> bool:
        used = pool.take_idle(endpoint)
        connection = used or await pool.connect(endpoint)
        body = await connection.start(b"GET / HTTP/1.1\r\n\r\n", Receiver(2))
        assert body == Body(b"ok", True)
        pool.give_back(endpoint, connection)
        return used is not None

    async with serving(OK + b"Content-Length: 2\r\n\r\nok") as (endpoint, seen):
        pool = ConnectionPool(ssl_context=True, connect_timeout_s=5, keepalive_s=0.2)
        assert [await get() for _ in range(3)] == [False, True, True]
        assert len(seen) == 1
        await asyncio.sleep(0.5)
        assert not pool._open, "an old connection is closed without anybody asking for one"
        assert await get() is False
        await pool.close()
        assert not pool._open
        with pytest.raises(OSError, match="closed"):
            await pool.connect(endpoint)


async def test_a_cancelled_exchange_takes_its_connection_along() -> None:
    async with serving(OK + b"Content-Length: 20\r\n\r\nok") as (endpoint, _):
        pool = ConnectionPool(ssl_context=True, connect_timeout_s=5, keepalive_s=15)
        connection = await pool.connect(endpoint)
        receiver = Receiver(20)
        coming = connection.start(b"GET / HTTP/1.1\r\n\r\n", receiver)
        async with asyncio.timeout(5):
            await receiver.some_came.wait()
        coming.cancel()
        pool.give_back(endpoint, connection)
        assert receiver.parts == [b"ok"]
        assert pool.take_idle(endpoint) is None
        await pool.close()


async def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    silent = threading.Event()

    def getaddrinfo(host: str, port: int, *_: Any, flags: int = 0) -> list[Any]:
        if not flags & socket.AI_NUMERICHOST:
            asked.append(port)
            if port == 81:
                silent.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    pool = ConnectionPool(ssl_context=True, connect_timeout_s=5, keepalive_s=15)
    for _ in range(2):
        takes = [pool.connect(Endpoint("lake.test", 80, False)) for _ in range(3)]
        failures = await asyncio.gather(*takes, return_exceptions=True)
        assert {type(failure) for failure in failures} == {socket.gaierror}
    assert asked == [80, 80], "takers at the same time ask once; a failure is not kept"
    waiting = asyncio.ensure_future(pool.connect(Endpoint("lake.test", 81, False)))
    await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(OSError, match="closed"):
        await waiting


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connect_that_is_cancelled_at_any_step_leaves_nothing(loop: str) -> None:
    async def cancel_after(steps: int, endpoint: Endpoint) -> None:
        pool = ConnectionPool(ssl_context=True, connect_timeout_s=5, keepalive_s=15)
        task = asyncio.ensure_future(pool.connect(endpoint))
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(1000 if steps >= 20 else 0):  # until the very step at which the connection is made
            if pool._open or task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(5):
            await pool.close()
        assert not pool._open

    async def all_steps() -> None:
        async with serving(OK + b"Content-Length: 0\r\n\r\n") as (endpoint, _):
            for steps in range(30):
                await cancel_after(steps, endpoint)

    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop has no build for this system").run(all_steps())
    else:
        asyncio.run(all_steps())


@pytest.mark.parametrize(
    ("answer", "is_clear"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),  # nginx, Go and Apache on a port for TLS
        (b"HTTP/1.1 301 Moved Permanently\r\nLocation: https://localhost/\r\n\r\n", False),
        (b"HTTP/1.1 5", False),
        (b"\x15\x03\x01\x00\x02\x02\x16", False),  # an alert of TLS
        (b"", False),
    ],
)
async def test_which_answers_tell_that_a_server_has_no_tls(answer: bytes, is_clear: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(len(answer)):  # an answer may come in pieces
            writer.write(answer[at : at + 1])
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = ConnectionPool(ssl_context=True, connect_timeout_s=5, keepalive_s=15)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], True)
        assert await pool._answers_in_clear_text(endpoint, asyncio.get_running_loop()) is is_clear
        await pool.close()
