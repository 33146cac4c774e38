"""S3Store's writes against a server that misbehaves: written once and whole, or one of asyncpq's errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    CredentialsError,
    InvalidResponseError,
    ThrottledError,
    TransportError,
)
from asyncpq.storage.base import Store, WritableStore, writable
from asyncpq.storage.s3 import writer as s3_writer
from asyncpq.storage.s3.writer import S3Writer, WriteAnswer, WriteCall
from asyncpq.testing import Fault, ObjectServer, object_server
from tests.store_backends import FAST_RETRIES, new_context, open_test_store, retries_for

pytestmark = pytest.mark.faults

URL = "s3://bucket/folder/a b+c"
PATH = "bucket/folder/a b+c"
PART = 50_000
LARGE = random.Random(5).randbytes(3 * PART + 1)


@pytest.fixture(params=["direct", "s3fs"])
async def written(server: ObjectServer, request: pytest.FixtureRequest) -> AsyncIterator[WritableStore]:
    """A store on an empty server, by both carriers."""
    server.objects.clear()
    extras = {} if request.param == "direct" else {"s3_additional_kwargs": {"StorageClass": "STANDARD_IA"}}
    made = writable(open_test_store("s3", {**server.storage_options, **extras}, retries_for(request)), URL)
    yield made
    await made.close()


#: What is told apart by s3fs is so for every verb alike.
BY_VERB = pytest.mark.parametrize(
    ("written", "verb"),
    [("direct", "put"), ("direct", "create"), ("direct", "delete"), ("s3fs", "create")],
    indirect=["written"],
)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(s3_writer, "_PART_BYTES", PART)
    monkeypatch.setattr(object_server, "_LEAST_PART_BYTES", PART)
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    return path


def puts(server: ObjectServer) -> list[int]:
    return [request.status for request in server.log if request.method == "PUT"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503, code="SlowDown"),
        Fault(hang_up=True),
        Fault(lose_answer=True),
        Fault(stall_headers=True),
        Fault(slow_down_200=True),
        Fault(status=409, code="ConditionalRequestConflict"),
        Fault(status=409, code="OperationAborted"),
        Fault(status=400, code="XAmzContentSHA256Mismatch"),
    ],
    ids=["500", "503", "closed", "lost", "silent", "200", "conflict", "aborted", "damaged"],
)
@BY_VERB
async def test_what_happens_once_is_tried_again(
    written: WritableStore, server: ObjectServer, verb: str, fault: Fault, request: pytest.FixtureRequest
) -> None:
    if fault.slow_down_200 and verb == "delete":
        pytest.skip("an answer to DELETE has no ETag to miss")
    server.faults = [replace(fault, path="folder")]
    context = new_context()
    if verb == "create":
        # of a lost answer nobody can say more than that there is an object
        created = await written.create_object(URL, b"mine", context=context)
        assert created is not fault.lose_answer
    elif verb == "put":
        await written.put_object(URL, b"mine", context=context)
    else:
        server.put(PATH, b"theirs")
        await written.delete_objects([URL], context=context)
    assert (server.objects[PATH].data if PATH in server.objects else None) == (None if verb == "delete" else b"mine")
    assert sum(each.path[1:] == PATH for each in server.log) == 2
    if (
        request.node.callspec.params["written"] == "direct"
    ):  # aiohttp sends again by itself where a connection was closed
        assert [record.attempt for record in context.metrics.log] == [1, 2]
    assert {record.purpose for record in context.metrics.log} == {"write"}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(times=None, status=500), TransportError),
        (Fault(times=None, status=503, code="SlowDown"), ThrottledError),
        (Fault(times=None, status=409, code="ConditionalRequestConflict"), TransportError),
        (Fault(times=None, status=403, code="AccessDenied"), AccessDeniedError),
        (Fault(times=None, status=403, code="InvalidAccessKeyId"), CredentialsError),
        (Fault(times=None, status=404, code="NoSuchBucket"), BucketNotFoundError),
        (Fault(times=None, redirect="http://127.0.0.2:9/"), InvalidResponseError),
    ],
    ids=["500", "503", "409", "denied", "credentials", "bucket", "redirect"],
)
@BY_VERB
async def test_what_lasts_is_a_typed_error(
    written: WritableStore, server: ObjectServer, verb: str, fault: Fault, kind: type[AsyncpqError]
) -> None:
    server.faults = [fault]
    call: Awaitable[object]
    if verb == "put":
        call = written.put_object(URL, b"1", context=new_context())
    elif verb == "create":
        call = written.create_object(URL, b"1", context=new_context())
    else:
        call = written.delete_objects([URL], context=new_context())
    with pytest.raises(kind) as caught:
        await call
    assert caught.value.url == URL
    assert caught.value.hint or kind is InvalidResponseError
    if kind is AccessDeniedError:
        assert "s3:PutObject" in str(caught.value)
    assert not server.objects


@pytest.mark.parametrize("create", [False, True], ids=["put", "create"])
async def test_an_answer_that_is_no_stores(written: WritableStore, server: ObjectServer, create: bool) -> None:
    """Whoever sends it, the object was not stored."""
    server.faults = [Fault(html_200=True)]
    write = written.create_object if create else written.put_object
    with pytest.raises(InvalidResponseError, match="ETag"):
        await write(URL, b"1", context=new_context())
    assert not server.objects


async def test_an_object_that_is_there_costs_one_request(written: WritableStore, server: ObjectServer) -> None:
    server.put(PATH, b"theirs")
    assert await written.create_object(URL, b"mine", context=new_context()) is False
    assert (puts(server), server.objects[PATH].data) == ([412], b"theirs")


async def test_a_server_that_ignores_the_condition(written: WritableStore, server: ObjectServer) -> None:
    server.creates = False
    folder = "s3://bucket/folder/"
    assert await written.probe_create(folder, context=new_context()) is False
    sent = len(server.log)
    assert await written.probe_create("s3://bucket/another/", context=new_context()) is False
    assert len(server.log) == sent
    assert not server.objects
    assert len(puts(server)) == 8  # several at once have succeeded: that is enough


async def test_a_server_that_looks_before_it_writes(written: WritableStore, server: ObjectServer) -> None:
    """OpenStack Swift refuses to create what exists, but creates that pass each other all succeed."""
    server.faults = [Fault(method="PUT", ignore_if_none_match=True, times=8)]
    assert await written.probe_create("s3://bucket/folder/", context=new_context()) is False


async def test_a_server_that_refuses_the_condition(written: WritableStore, server: ObjectServer) -> None:
    server.faults = lambda request: (
        Fault(status=501, code="NotImplemented") if "if-none-match" in request.headers else None
    )
    assert await written.probe_create("s3://bucket/folder/", context=new_context()) is False
    with pytest.raises(ConcurrentCommitUnsupported, match="single_writer"):
        await written.create_object(URL, b"1", context=new_context())
    await written.put_object(URL, b"1", context=new_context())


async def test_a_probe_whose_answer_is_lost(written: WritableStore, server: ObjectServer) -> None:
    server.faults = [Fault(method="PUT", lose_answer=True)]
    assert await written.probe_create("s3://bucket/folder/", context=new_context()) is True
    assert not server.objects


async def test_an_error_of_the_probe_is_not_remembered(written: WritableStore, server: ObjectServer) -> None:
    server.faults = [Fault(method="PUT", status=403, code="AccessDenied")]
    with pytest.raises(AccessDeniedError):
        await written.probe_create("s3://bucket/folder/", context=new_context())
    assert await written.probe_create("s3://bucket/folder/", context=new_context()) is True


async def test_the_deadline(written: WritableStore, server: ObjectServer) -> None:
    await written.put_object(URL, b"1", context=new_context())  # connects
    server.faults = [Fault(times=None, stall_headers=True)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(written.put_object(URL, b"2", context=new_context()), 0.1)
    assert server.objects[PATH].data == b"1"


# -- uploads in parts -----------------------------------------------------------------------------


async def test_a_large_file_comes_in_parts(written: WritableStore, server: ObjectServer, large: Path) -> None:
    context = new_context()
    await written.put_file(URL, large, context=context)
    assert server.objects[PATH].data == LARGE
    assert server.objects[PATH].etag.endswith('-4"')
    methods = [record.method for record in context.metrics.log]
    assert (methods[0], sorted(methods[1:-1]), methods[-1]) == ("POST", ["PUT"] * 4, "POST")
    assert [record.round for record in context.metrics.log] == [1, 2, 2, 2, 2, 3]
    stored = await written.open_object(URL)
    assert (await stored.fetch_tail(10, context=new_context())).data == LARGE[-10:]


@pytest.mark.parametrize(("method", "after"), [("PUT", 1), ("POST", 0), ("POST", 1)])
@pytest.mark.parametrize("fault", [Fault(status=503, code="SlowDown"), Fault(lose_answer=True)], ids=["503", "lost"])
async def test_a_part_is_sent_again(
    written: WritableStore, server: ObjectServer, large: Path, fault: Fault, method: str, after: int
) -> None:
    """Of requests with POST the second one completes the upload."""
    server.faults = [replace(fault, method=method, after=after)]
    await written.put_file(URL, large, context=new_context())
    assert server.objects[PATH].data == LARGE


async def test_a_completion_that_fails_after_its_head(
    written: WritableStore, server: ObjectServer, large: Path
) -> None:
    server.faults = [Fault(method="POST", after=1, slow_down_200=True)]
    await written.put_file(URL, large, context=new_context())
    assert server.objects[PATH].data == LARGE


async def test_a_completion_of_which_nothing_is_known(
    written: WritableStore, server: ObjectServer, large: Path
) -> None:
    """The upload has gone, and what is there is not what was uploaded."""
    server.put(PATH, b"theirs")
    server.faults = [Fault(method="POST", after=1, status=404, code="NoSuchUpload")]
    with pytest.raises(TransportError, match="may or may not have been completed"):
        await written.put_file(URL, large, context=new_context())


@pytest.mark.parametrize("cancelled", [False, True], ids=["refused", "cancelled"])
async def test_what_ends_early_leaves_nothing(
    written: WritableStore, server: ObjectServer, large: Path, cancelled: bool
) -> None:
    server.put(PATH, b"before")
    hold = Fault(latency_s=30.0) if cancelled else Fault(status=403, code="AccessDenied")
    server.faults = [replace(hold, method="PUT", after=1, times=None)]
    upload = asyncio.ensure_future(written.put_file(URL, large, context=new_context()))
    if cancelled:
        for _ in range(400):
            await asyncio.sleep(0.005)
            if sum(request.method == "PUT" for request in server.log) >= 3:
                break
        upload.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else AccessDeniedError):
        await upload
    assert server.objects[PATH].data == b"before"
    assert not server._uploads.running
    assert [request.status for request in server.log if request.method == "DELETE"] == [204]


async def test_a_file_that_becomes_shorter(written: WritableStore, server: ObjectServer, large: Path) -> None:
    server.faults = [Fault(method="POST", latency_s=0.2)]
    upload = asyncio.ensure_future(written.put_file(URL, large, context=new_context()))
    for _ in range(400):
        await asyncio.sleep(0.005)
        if server.log:
            break
    await asyncio.to_thread(large.write_bytes, LARGE[: PART + 1])
    with pytest.raises(AsyncpqError, match="truncated"):
        await upload
    assert not server.objects
    assert not server._uploads.running


# -- by asyncpq's own wire ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [Fault(region="eu-west-1", times=None), Fault(skew_s=3600.0, times=None)],
    ids=["another region", "clock skew"],
)
async def test_what_is_corrected_is_sent_again_whole(store: Store, server: ObjectServer, fault: Fault) -> None:
    server.faults = [fault]
    context = new_context()
    assert await writable(store, URL).create_object(URL, b"content", context=context) is True
    assert server.objects[PATH].data == b"content"
    assert context.metrics.requests == 2


async def test_a_write_is_never_sent_beside_itself(server: ObjectServer) -> None:
    retry = replace(FAST_RETRIES, hedge_ratio=1.0, first_byte_timeout_s=5.0)
    store = writable(open_test_store("s3", server.storage_options, retry), URL)
    for _ in range(40):  # so many times are known before anything is sent twice
        await store.clock("s3://bucket/", context=new_context())
    server.faults = [Fault(method="PUT", latency_s=0.4)]
    assert await store.create_object(URL, b"1", context=new_context()) is True
    assert puts(server) == [200]
    await store.close()


async def test_a_slow_upload_has_time(server: ObjectServer) -> None:
    """The first byte of an answer is due once the body can have been sent."""
    retry = replace(FAST_RETRIES, connect_timeout_s=0.1, first_byte_timeout_s=0.1)
    store = writable(open_test_store("s3", server.storage_options, retry), URL)
    server.faults = [Fault(method="PUT", latency_s=0.5)]
    context = new_context()
    await store.put_object(URL, bytes(64 * 1024), context=context)
    assert context.metrics.requests == 1
    await store.close()


async def test_parts_in_memory_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_writer, "_PART_BYTES", 1000)
    path = tmp_path / "file"
    path.write_bytes(bytes(100_500))
    held: list[int] = []
    under_way: set[int] = set()

    async def send(call: WriteCall, _: object) -> WriteAnswer:
        if call.operation == "upload_part":
            number = int(call.arguments["PartNumber"])
            under_way.add(number)
            held.append(len(under_way))
            await asyncio.sleep(0.001 * (number % 3))
            under_way.discard(number)
        return WriteAnswer(etag='"0"', upload_id="upload")

    await S3Writer(send, URL).put_file(path, None, new_context())  # type: ignore[arg-type]  # it is not read
    assert len(held) == 101
    assert 2 <= max(held) <= 4


async def test_options_of_new_objects_are_sent(server: ObjectServer) -> None:
    options = {**server.storage_options, "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
    store = writable(open_test_store("s3", options), URL)
    context = new_context()
    await store.put_object(URL, b"1", context=context)
    assert server.log[-1].headers["x-amz-server-side-encryption"] == "AES256"
    assert context.metrics.fallbacks == ["written through s3fs: option s3_additional_kwargs"]
    await store.close()
