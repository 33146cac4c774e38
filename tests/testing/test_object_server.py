"""ObjectServer over a plain socket: one connection, its faults in order, and its lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request

import pytest

from asyncpq.testing import Answer, Fault, LoggedRequest, ObjectServer, ServedObject
from asyncpq.testing.object_server import Uploads, answer_get, answer_list, listing_query, refusal


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


OBJECT = ServedObject(b"0123456789", '"tag"', 0.0)


def get(headers: dict[str, str], fault: Fault | None = None) -> tuple[int, bytes, str | None]:
    answer = answer_get(LoggedRequest("GET", "/bucket/key", "/bucket/key", headers), OBJECT, fault or Fault())
    return answer.status, answer.body, answer.headers.get("Content-Range")


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        ("bytes=0-3", (206, b"0123", "bytes 0-3/10")),
        ("bytes=8-", (206, b"89", "bytes 8-9/10")),
        ("bytes=8-100", (206, b"89", "bytes 8-9/10")),
        ("bytes=-3", (206, b"789", "bytes 7-9/10")),
        ("bytes=-100", (206, b"0123456789", "bytes 0-9/10")),
        ("bytes=-", (200, b"0123456789", None)),
        ("lines=1-2", (200, b"0123456789", None)),
    ],
)
def test_ranges(range_: str, expected: tuple[int, bytes, str | None]) -> None:
    assert get({"range": range_}) == expected


def test_ranges_past_the_end() -> None:
    status, _, content_range = get({"range": "bytes=10-12"})
    assert (status, content_range) == (416, "bytes */10")


def test_conditions() -> None:
    assert get({"if-match": '"tag"'})[0] == get({"if-match": "*"})[0] == 200
    assert get({"if-match": '"other"'})[0] == 412
    assert get({"if-match": '"other"'}, Fault(ignore_if_match=True))[0] == 200
    assert get({"if-none-match": '"tag"'})[:2] == (304, b"")


def test_faults_of_an_answer() -> None:
    ranged = {"range": "bytes=2-3"}
    assert get(ranged, Fault(ignore_range=True)) == (200, OBJECT.data, None)
    assert get(ranged, Fault(range_200=True)) == (200, b"23", "bytes 2-3/10")
    assert get(ranged, Fault(shift_range=1)) == (206, b"23", "bytes 3-4/10")
    assert get(ranged, Fault(unknown_size=True)) == (206, b"23", "bytes 2-3/*")
    assert get({"range": "bytes=-3"}, Fault(no_suffix=True))[0] == 416


def test_refusals() -> None:
    request = LoggedRequest("GET", "/bucket/key", "/bucket/key", {"authorization": "Credential=k/20260101/eu-1/s3/x"})
    slow = refusal(request, Fault(status=503, code="SlowDown", retry_after_s=1.5))
    assert slow is not None
    assert (slow.status, slow.headers["Retry-After"]) == (503, "1.5")
    assert b"<Code>SlowDown</Code>" in slow.body
    assert refusal(request, Fault(region="eu-1")) is None
    elsewhere = refusal(request, Fault(region="us-1"))
    assert elsewhere is not None
    assert elsewhere.headers["x-amz-bucket-region"] == "us-1"
    assert refusal(request, Fault(truncate=1)) is None


def listed(objects: dict[str, ServedObject], query: str, page_keys: int = 2) -> list[list[str]]:
    """Keys and folders of all pages."""
    pages: list[list[str]] = []
    token = ""
    while True:
        request = LoggedRequest("GET", "/bucket", f"/bucket?list-type=2{query}{token}", {})
        parameters = listing_query(request)
        assert parameters is not None
        text = answer_list(parameters, "bucket", objects, page_keys, Fault()).body.decode()
        pages.append(re.findall(r"<(?:Key|CommonPrefixes><Prefix)>([^<]*)<", text))
        more = re.search("<NextContinuationToken>([^<]*)<", text)
        if more is None:
            return pages
        token = f"&continuation-token={more[1]}"


def test_listings() -> None:
    objects = {f"bucket/{key}": OBJECT for key in ("a", "b/1", "b/2", "c", "d/1")} | {"other/a": OBJECT}
    assert listed(objects, "") == [["a", "b/1"], ["b/2", "c"], ["d/1"]]
    assert listed(objects, "&delimiter=/") == [["a", "b/"], ["c", "d/"]]
    assert listed(objects, "&prefix=b/") == [["b/1", "b/2"]]
    assert listed(objects, "&start-after=b/1", 10) == [["b/2", "c", "d/1"]]
    assert listing_query(LoggedRequest("GET", "/bucket/key", "/bucket/key?list-type=2", {})) is None


def test_uploads_in_parts() -> None:
    stored: dict[str, bytes] = {}

    def put(path: str, data: bytes, etag: str) -> ServedObject:
        stored[path] = data
        return ServedObject(data, etag, 0.0)

    uploads = Uploads(put)

    def send(method: str, query: str, body: bytes = b"", exists: bool = False) -> int | bytes:
        request = LoggedRequest(method, "/bucket/key", f"/bucket/key?{query}", {}, body)
        answer = uploads.answer(request, "bucket/key", exists)
        assert answer is not None
        return answer.body if answer.status == 200 and method == "POST" else answer.status

    def begin() -> str:
        found = re.search(b"<UploadId>(.*)</UploadId>", bytes(send("POST", "uploads=")))
        assert found is not None
        return found[1].decode()

    large = bytes(5 * 1024 * 1024)
    both = b"<PartNumber>1</PartNumber><PartNumber>2</PartNumber>"
    upload = begin()
    assert send("PUT", f"partNumber=1&uploadId={upload}", large) == 200
    assert send("POST", f"uploadId={upload}", both) == 400  # part 2 is missing
    assert send("PUT", f"partNumber=2&uploadId={upload}", b"end") == 200
    assert send("POST", f"uploadId={upload}", both, exists=True) == 412
    assert b"-2" in bytes(send("POST", f"uploadId={upload}", both))
    assert stored == {"bucket/key": large + b"end"}
    assert send("PUT", f"partNumber=1&uploadId={upload}") == 404
    small = begin()
    for number in (1, 2):
        assert send("PUT", f"partNumber={number}&uploadId={small}", b"small") == 200
    assert send("POST", f"uploadId={small}", both) == 400  # parts but the last have 5 MiB
    assert send("DELETE", f"uploadId={small}") == 204
    assert uploads.running == {}
    assert uploads.answer(LoggedRequest("PUT", "/bucket/key", "/bucket/key", {}), "bucket/key", False) is None
