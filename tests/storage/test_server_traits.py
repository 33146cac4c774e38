"""Servers that answer ranges of the last bytes, If-Match and Content-Encoding otherwise: read, remembered, and said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest

import asyncpq
from asyncpq.errors import InvalidResponseError, NotParquetError, ObjectChangedError, StoreError
from asyncpq.storage.base import Guarantee, RequestContext, Store
from asyncpq.storage.response_checks import COMPARED, SIZE_FIRST, TraitsByHost
from asyncpq.testing import Fault, LoggedRequest, ObjectServer
from tests.faults.operations import parquet
from tests.store_backends import DATA, new_context, open_test_store

Answers: TypeAlias = Callable[[LoggedRequest], Fault]

pytestmark = pytest.mark.faults


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as started:
        started.put("bucket/key", DATA)
        started.put("bucket/other", DATA[:500])
        started.put("bucket/empty", b"")
        yield started


@pytest.fixture(params=["s3", "s3fs", "http"])
async def store(request: pytest.FixtureRequest, server: ObjectServer) -> AsyncIterator[Store]:
    through_s3fs = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    options = {"http": {}, "s3": server.storage_options, "s3fs": {**server.storage_options, **through_s3fs}}
    made = open_test_store("http" if request.param == "http" else "s3", options[request.param])
    yield made
    await made.close()


def url(store: Store, server: ObjectServer, key: str) -> str:
    return f"{server.endpoint}/bucket/{key}" if "Http" in type(store).__name__ else f"s3://bucket/{key}"


def to_suffixes(fault: Fault, *, longer_than: int = 0) -> Answers:
    """``fault`` answers ranges of more than so many last bytes."""

    def answer(request: LoggedRequest) -> Fault:
        span = request.range or ""
        return fault if span.startswith("bytes=-") and int(span[7:]) > longer_than else Fault()

    return answer


def statuses(context: RequestContext) -> list[int]:
    return [record.status for record in context.metrics.log]


def to_if_match(fault: Fault) -> Answers:
    return lambda request: fault if "if-match" in request.headers else Fault()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=416, code="InvalidRange"),  # without Content-Range
        Fault(no_suffix=True),  # with it
        Fault(status=400, code="InvalidArgument"),
        Fault(status=400, code=""),
        Fault(status=501, code="NotImplemented"),
        Fault(shift_range=-len(DATA) + 2000),  # the first bytes for the last
        Fault(headers={"Content-Range": "bytes 0--1/0"}),
        Fault(headers={"Content-Range": None}),
    ],
)
async def test_the_size_is_asked_where_the_last_bytes_do_not_come(
    store: Store, server: ObjectServer, fault: Fault
) -> None:
    server.faults = to_suffixes(fault)
    first = await store.open_object(url(store, server, "key"))
    context = new_context()
    tail = await first.fetch_tail(2000, context=context)
    assert (tail.start, tail.data) == (len(DATA) - 2000, DATA[-2000:])
    assert tail.validator.size == len(DATA)
    assert [(record.start, record.stop) for record in context.metrics.log] == [
        (-2000, 0),
        (0, 1),
        (len(DATA) - 2000, len(DATA)),
    ]
    assert [record.round for record in context.metrics.log] == [1, 2, 3]
    assert SIZE_FIRST in context.metrics.fallbacks

    second = await store.open_object(url(store, server, "other"))
    for suffixes in ([(-2000, 0)], []):  # remembered after the second refusal
        context = new_context()
        assert (await second.fetch_tail(2000, context=context)).data == DATA[:500]
        assert [(record.start, record.stop) for record in context.metrics.log] == [*suffixes, (0, 1), (0, 500)]
        assert SIZE_FIRST in context.metrics.fallbacks


@pytest.mark.parametrize("code", ["", "InternalError"])
async def test_a_failure_where_there_are_fewer_last_bytes(store: Store, server: ObjectServer, code: str) -> None:
    """s3s-fs, Sanic and Twisted answer 500 then."""
    server.faults = to_suffixes(Fault(status=500, code=code), longer_than=len(DATA) - 1)
    short = await store.open_object(url(store, server, "other"))
    for suffixes in (2, 1, 0):  # remembered after the second time
        context = new_context()
        assert (await short.fetch_tail(len(DATA), context=context)).data == DATA[:500]
        assert [record.start for record in context.metrics.log] == [-len(DATA)] * suffixes + [0, 0]
        assert SIZE_FIRST in context.metrics.fallbacks


async def test_failures_say_nothing_of_ranges(store: Store, server: ObjectServer) -> None:
    """They may be those of an overloaded server: no trait is learnt where the object has as many bytes."""
    stored = await store.open_object(url(store, server, "key"))
    for _ in range(3):
        server.faults = [Fault(ranged=True, status=500, times=2)]
        context = new_context()
        assert (await stored.fetch_tail(2000, context=context)).data == DATA[-2000:]
        assert [record.start for record in context.metrics.log] == [-2000, -2000, 0, len(DATA) - 2000]


@pytest.mark.parametrize("status", [400, 416, 501])
async def test_one_refused_suffix_may_be_chance(store: Store, server: ObjectServer, status: int) -> None:
    server.faults = [Fault(ranged=True, status=status, code="", times=1)]
    stored = await store.open_object(url(store, server, "key"))
    assert (await stored.fetch_tail(2000, context=new_context())).data == DATA[-2000:]
    context = new_context()
    assert (await stored.fetch_tail(2000, context=context)).data == DATA[-2000:]
    assert [record.start for record in context.metrics.log] == [-2000]
    assert context.metrics.fallbacks == [] or SIZE_FIRST not in context.metrics.fallbacks


@pytest.mark.parametrize("status", [412, 400, 501])
async def test_one_refused_if_match_may_be_chance(store: Store, server: ObjectServer, status: int) -> None:
    stored = await store.open_object(url(store, server, "key"))
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    server.faults = [Fault(ranged=True, status=status, code="", times=1)]
    guarantees = []
    for _ in range(2):
        assert (await stored.fetch_range(0, 100, context=new_context(), pin=pin)).data == DATA[:100]
        guarantees.append(stored.guarantee)
    assert guarantees == [Guarantee.COMPARED, Guarantee.PINNED]
    server.put("bucket/key", DATA[::-1])
    context = new_context()
    with pytest.raises(ObjectChangedError):  # by the server
        await stored.fetch_range(0, 100, context=context, pin=pin)
    assert statuses(context) in ([412], [0])


async def test_only_long_suffixes_are_refused(store: Store, server: ObjectServer) -> None:
    """As rclone and gofakes3 do: 416 to a range of more last bytes than the object has."""
    server.faults = to_suffixes(Fault(status=416, code="InvalidRange"), longer_than=500)
    stored = await store.open_object(url(store, server, "other"))
    assert (await stored.fetch_tail(2000, context=new_context())).data == DATA[:500]


@pytest.mark.parametrize(
    "empty",
    [
        Fault(ignore_range=True),
        Fault(headers={"Content-Range": "bytes 0-0/0"}),
        Fault(headers={"Content-Range": "bytes 0--1/0"}),
        Fault(headers={"Content-Range": "bytes 0-18446744073709551615/0"}),  # as Garage answers
        Fault(status=400, code="InvalidArgument"),
        Fault(status=416, code="InvalidRange"),
        Fault(status=501, code="NotImplemented"),
    ],
)
async def test_an_empty_object(store: Store, server: ObjectServer, empty: Fault) -> None:
    """Only the size says that an object is empty. What an empty object shows is not remembered of the server."""
    server.faults = lambda request: empty if request.range else Fault()
    stored = await store.open_object(url(store, server, "empty"))
    with pytest.raises(NotParquetError, match="empty"):
        await stored.fetch_tail(2000, context=new_context())
    server.faults = []
    context = new_context()
    await (await store.open_object(url(store, server, "key"))).fetch_tail(2000, context=context)
    assert len(context.metrics.log) == 1


async def test_a_416_that_is_wrong(store: Store, server: ObjectServer) -> None:
    """The object has bytes, but the server sends none of them: that is no empty object."""
    server.faults = [Fault(ranged=True, status=416, code="InvalidRange", times=None)]
    stored = await store.open_object(url(store, server, "key"))
    with pytest.raises((InvalidResponseError, ObjectChangedError)) as caught:
        await stored.fetch_tail(2000, context=new_context())
    assert "empty" not in str(caught.value)


async def test_a_refusal_of_everything_is_no_trait(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(status=400, code="InvalidArgument", times=None)]
    stored = await store.open_object(url(store, server, "key"))
    with pytest.raises(StoreError, match="InvalidArgument"):
        await stored.fetch_tail(2000, context=new_context())
    server.faults = []
    context = new_context()
    await stored.fetch_tail(2000, context=context)
    assert len(context.metrics.log) == 1


@pytest.mark.parametrize("status", [412, 400, 501])
async def test_if_match_that_never_matches(store: Store, server: ObjectServer, status: int) -> None:
    code = {412: "PreconditionFailed", 400: "InvalidRequest", 501: "NotImplemented"}[status]
    server.faults = to_if_match(Fault(status=status, code=code))
    stored = await store.open_object(url(store, server, "key"))
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    before = stored.guarantee
    context = new_context()
    assert (await stored.fetch_range(100, 2100, context=context, pin=pin)).data == DATA[100:2100]
    assert statuses(context) in ([status, 206], [0, 206])  # s3fs does not tell the status of a refusal
    assert COMPARED in context.metrics.fallbacks
    assert (before, stored.guarantee) == (Guarantee.PINNED, Guarantee.COMPARED)

    other = await store.open_object(url(store, server, "other"))
    pin = (await other.fetch_tail(9, context=new_context())).validator
    for refused in ([status], []):  # remembered after the second refusal
        context = new_context()
        assert (await other.fetch_range(0, 100, context=context, pin=pin)).data == DATA[:100]
        assert [one for one in statuses(context) if one] in ([*refused, 206], [206])
        assert len(statuses(context)) == len(refused) + 1
        assert other.guarantee is Guarantee.COMPARED

    server.put("bucket/other", DATA[500:1000])
    with pytest.raises(ObjectChangedError):
        await other.fetch_range(0, 100, context=new_context(), pin=pin)


@pytest.mark.parametrize("status", [412, 400, 501])
async def test_a_new_version_behind_a_refused_if_match(store: Store, server: ObjectServer, status: int) -> None:
    server.faults = to_if_match(Fault(status=status, code="PreconditionFailed" if status == 412 else "InvalidRequest"))
    stored = await store.open_object(url(store, server, "key"))
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    server.put("bucket/key", DATA[::-1])
    context = new_context()
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(100, 2100, context=context, pin=pin)
    assert stored.guarantee is Guarantee.PINNED  # nothing is known of the server yet


async def test_a_server_that_compares_is_believed(store: Store, server: ObjectServer) -> None:
    """Once a GET with If-Match was answered, a refusal costs no second request."""
    stored = await store.open_object(url(store, server, "key"))
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    await stored.fetch_range(0, 100, context=new_context(), pin=pin)
    server.put("bucket/key", DATA[::-1])
    context = new_context()
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 100, context=context, pin=pin)
    assert statuses(context) in ([412], [0])


@pytest.mark.parametrize("encoding", ["aws-chunked", "utf-8", "binary", "gzip"])
async def test_a_stored_content_encoding(store: Store, server: ObjectServer, encoding: str) -> None:
    server.faults = [Fault(headers={"Content-Encoding": encoding}, times=None)]
    stored = await store.open_object(url(store, server, "key"))
    tail = await stored.fetch_tail(2000, context=new_context())
    assert tail.data == DATA[-2000:]
    assert (await stored.fetch_range(5, 500, context=new_context(), pin=tail.validator)).data == DATA[5:500]
    server.faults = [Fault(gzip=True, times=None)]  # what a proxy really compressed
    with pytest.raises(InvalidResponseError, match="gzip"):
        await stored.fetch_range(5, 500, context=new_context(), pin=tail.validator)


async def test_a_range_with_status_200(store: Store, server: ObjectServer) -> None:
    """As rclone answers. A body that breaks off is continued."""
    server.faults = [Fault(range_200=True, truncate=100), Fault(range_200=True, times=None)]
    stored = await store.open_object(url(store, server, "key"))
    context = new_context()
    tail = await stored.fetch_tail(2000, context=context)
    assert tail.data == DATA[-2000:]
    assert context.metrics.bytes_fetched == 2000
    assert (await stored.fetch_range(5, 500, context=new_context(), pin=tail.validator)).data == DATA[5:500]
    server.faults = [Fault(range_200=True, shift_range=1)]
    with pytest.raises(InvalidResponseError):
        await stored.fetch_range(5, 500, context=new_context(), pin=tail.validator)


async def test_a_checksum_of_the_whole_object_beside_a_part(store: Store, server: ObjectServer) -> None:
    wrong: dict[str, str | None] = {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "FULL_OBJECT"}
    server.faults = [Fault(headers=wrong, times=None)]
    stored = await store.open_object(url(store, server, "key"))
    tail = await stored.fetch_tail(2000, context=new_context())
    assert (await stored.fetch_range(5, 500, context=new_context(), pin=tail.validator)).data == DATA[5:500]


async def test_a_tail_of_unknown_size_ends_where_the_object_does(store: Store, server: ObjectServer) -> None:
    """Content-Range without a size: a HEAD tells whether the last bytes came, or as many others."""
    server.faults = to_suffixes(Fault(unknown_size=True, shift_range=-1))
    stored = await store.open_object(url(store, server, "key"))
    tail = await stored.fetch_tail(2000, context=new_context())
    assert (tail.start, tail.data) == (len(DATA) - 2000, DATA[-2000:])


async def test_doctor_and_rows(server: ObjectServer) -> None:
    server.put("bucket/file.parquet", parquet())
    server.faults = lambda request: (
        Fault(status=501, code="NotImplemented")
        if (request.range or "").startswith("bytes=-") or "if-match" in request.headers
        else Fault(headers={"Content-Encoding": "aws-chunked"}, range_200=True)
    )
    async with asyncpq.Session({"s3": server.storage_options}) as session:
        file = await session.open_file("s3://bucket/file.parquet")
        assert (await file.read()).num_rows > 0
        assert file.metrics.guarantee == "compared"
        store = (await session.diagnose("s3://bucket/file.parquet"))["store"]
    assert store is not None
    assert store["error"] is None
    assert store["guarantee"] == "compared"
    assert store["supports"]["suffix ranges"] is False


def test_a_session_remembers_the_servers_that_it_used_last() -> None:
    traits = TraitsByHost()
    for number in range(10_000):
        traits[f"{number}.example"].suffix_refusals += 1
        assert traits["origin.example"] is traits["origin.example"]
    assert len(traits) < 1000
    assert traits["9999.example"].suffix_refusals == 1
    assert traits["0.example"].suffix_refusals == 0
