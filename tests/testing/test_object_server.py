"""ObjectServer over a plain socket: one connection, its faults in order, and its lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request

import pytest

from asyncpq.testing import Answer, Fault, LoggedRequest, ObjectServer


class Client:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, server: ObjectServer) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def send(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        lines = [head, "Host: x", f"Content-Length: {len(body)}"]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, *fields = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        return int(status.split()[1]), headers, await self._reader.readexactly(int(headers.get("content-length", 0)))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def test_requests_of_one_connection_are_answered_in_turn() -> None:
    async with ObjectServer() as server:
        server.put("bucket/key", b"0123456789")
        client = await Client.connect(server)
        status, headers, body = await client.send("GET /bucket/key HTTP/1.1\r\nRange: bytes=-3")
        assert (status, headers["content-range"], body) == (206, "bytes 7-9/10", b"789")
        assert (await client.send("PUT /bucket/new HTTP/1.1", b"new"))[0] == 200
        assert (await client.send("GET /bucket/new HTTP/1.1"))[2] == b"new"
        assert (await client.send("DELETE /bucket/new HTTP/1.1"))[0] == 204
        assert (await client.send("GET /bucket/new HTTP/1.1"))[0] == 404
        assert (await client.send("PATCH /bucket/key HTTP/1.1"))[0] == 405
        assert [request.status for request in server.log] == [206, 200, 200, 204, 404, 405]
        assert server.log[0].range == "bytes=-3"
        assert server.bytes_sent >= 3
        await client.close()


@pytest.mark.parametrize("creates", [True, False])
async def test_conditional_puts(creates: bool) -> None:
    async with ObjectServer() as server:
        server.creates = creates
        etag = server.put("bucket/key", b"old").etag
        client = await Client.connect(server)
        expected = 412 if creates else 200
        assert (await client.send("PUT /bucket/key HTTP/1.1\r\nIf-None-Match: *", b"1"))[0] == expected
        assert (await client.send('PUT /bucket/key HTTP/1.1\r\nIf-Match: "other"', b"2"))[0] == 412
        known = server.objects["bucket/key"].etag
        assert (known == etag) is creates
        assert (await client.send(f"PUT /bucket/key HTTP/1.1\r\nIf-Match: {known}", b"3"))[0] == 200
        await client.close()


async def test_only_the_first_fault_that_applies_counts() -> None:
    async with ObjectServer() as server:
        server.put("bucket/key", b"0123456789")
        server.faults = [
            Fault(status=500, after=1, times=1),
            Fault(status=503, code="SlowDown", times=2),
            Fault(method="PUT", status=403),
        ]
        client = await Client.connect(server)
        statuses = [(await client.send("GET /bucket/key HTTP/1.1"))[0] for _ in range(4)]
        assert statuses == [503, 500, 200, 200]
        server.faults = [Fault(status=500)]  # the counts begin anew
        assert [(await client.send("GET /bucket/key HTTP/1.1"))[0] for _ in range(2)] == [500, 200]
        await client.close()


async def test_a_body_waits_for_100_continue() -> None:
    async with ObjectServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /bucket/key HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"abc")
        assert (await Client(reader, writer).answer())[0] == 200
        assert server.objects["bucket/key"].data == b"abc"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("signed", [True, False])
async def test_bodies_in_chunks(framed: bool, signed: bool) -> None:
    """AWS's clients, pyarrow's among them, send uploads so, the checksum or signatures inside the body."""
    extension = b";chunk-signature=ab12" if signed else b""
    end = b"" if signed else b"x-amz-checksum-crc64nvme:AAAAAAAAAAA=\r\n"
    body = b"3%s\r\nabc\r\na%s\r\n0123456789\r\n0%s\r\n%s\r\n" % (extension, extension, extension, end)
    head = b"PUT /bucket/key HTTP/1.1\r\nContent-Encoding: aws-chunked\r\nExpect: 100-continue\r\n"
    if framed:
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        head += b"Content-Length: %d\r\n\r\n" % len(body)
    async with ObjectServer() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = Client(reader, writer)
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        for first in range(0, len(body), 7):
            writer.write(body[first : first + 7])
            await writer.drain()
        assert (await client.answer())[0] == 200
        assert server.objects["bucket/key"].data == b"abc0123456789"
        assert (await client.send("GET /bucket/key HTTP/1.1"))[2] == b"abc0123456789"  # the body's end was found
        await client.close()


def test_pyarrow_uploads() -> None:
    import pyarrow.fs as fs

    with ObjectServer.in_thread() as server:
        server.buckets.add("bucket")
        options = {"access_key": "a", "secret_key": "b", "region": "us-east-1", "scheme": "http"}
        store = fs.S3FileSystem(endpoint_override=server.endpoint, **options)
        with store.open_output_stream("bucket/key") as out:
            out.write(b"0123456789" * 100)
        assert server.objects["bucket/key"].data == b"0123456789" * 100


async def test_closing_drops_connections_that_wait() -> None:
    server = ObjectServer()
    await server.start()
    server.put("bucket/key", b"0123456789")
    arrived = asyncio.Event()

    def stall(request: LoggedRequest) -> Fault:
        arrived.set()
        return Fault(stall_headers=True)

    server.faults = stall
    client = await Client.connect(server)
    waiting = asyncio.ensure_future(client.send("GET /bucket/key HTTP/1.1"))
    await arrived.wait()
    await server.close()
    await server.close()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await waiting
    await client.close()


async def test_requests_may_be_answered_or_sent_elsewhere_before() -> None:
    def before(request: LoggedRequest) -> Answer | None:
        request.path = request.path.replace("/other/", "/bucket/")
        return Answer(418, {"X": "y"}, b"no") if request.method == "PUT" else None

    async with ObjectServer() as server:
        server.put("bucket/key", b"content")
        server.before = before
        client = await Client.connect(server)
        assert (await client.send("GET /other/key HTTP/1.1"))[2] == b"content"
        status, headers, body = await client.send("PUT /other/new HTTP/1.1", b"new")
        assert (status, headers["x"], body) == (418, "y", b"no")
        server.faults = [Fault(status=500)]  # comes first
        assert (await client.send("PUT /other/new HTTP/1.1", b"new"))[0] == 500
        await client.close()


def test_in_a_thread() -> None:
    with ObjectServer.in_thread() as server:
        server.put("bucket/key", b"content")
        with urllib.request.urlopen(f"{server.endpoint}/bucket/key") as answer:
            assert answer.read() == b"content"
