"""An answer with an ETag has rows of exactly the versions that it names; objects may be replaced at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.indexing import Bounds
from asyncpq.serve import Service
from asyncpq.storage import limits
from asyncpq.testing import Fault, ObjectServer
from tests.serve.services import NORTH, TOKEN, bearer, client_of, configuration, parquet, problem, storage, trips

KEY = "bucket/trips/part-0.parquet"


@pytest.fixture
async def store() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as server:
        server.put(KEY, parquet(trips(1000)))
        yield server


FAST = {"session": {"retry": {"backoff_base_s": 0.001, "backoff_max_s": 0.002}}}


@pytest.mark.parametrize("url", ["s3://bucket/trips/", "s3://bucket/trips/part-0.parquet"])
async def test_an_etag_changes_with_the_object(store: ObjectServer, url: str) -> None:
    settings = {**storage(store), "session": {"max_age_s": 0}}
    async with client_of(configuration(url, **settings)) as client:
        first = await client.get("/v1/trips/count?where=id > 500")
        tag = first.headers["etag"]
        again = await client.get("/v1/trips/count?where=id > 500", headers={"if-none-match": tag})
        assert (again.status_code, again.headers["etag"]) == (304, tag)
        store.put(KEY, parquet(trips(2000)))
        new = await client.get("/v1/trips/count?where=id > 500", headers={"if-none-match": tag})
        assert (new.status_code, new.json()["rows"]) == (200, 1499)
        assert new.headers["etag"] not in (tag, None)
        store.put(KEY, parquet(trips(1000)))
        back = await client.get("/v1/trips/count?where=id > 500", headers={"if-none-match": new.headers["etag"]})
        assert (back.status_code, back.json()["rows"]) == (200, 499)


@pytest.mark.faults
async def test_an_object_that_is_replaced_after_it_was_listed_is_read_again(store: ObjectServer) -> None:
    """Its rows are those of one version; if the answer has an ETag, that of this version."""
    old, new = trips(1000), trips(1000, first=500)
    tags: dict[str, set[Any]] = {}
    for after in range(8):
        store.put(KEY, parquet(old))
        store.faults = []
        async with client_of(configuration("s3://bucket/trips/", **storage(store))) as client:
            requests = 0

            def replacing(request: Any, at: int = after) -> Fault | None:
                nonlocal requests
                requests += 1
                if requests == at + 1:
                    store.put(KEY, parquet(new))
                return None

            store.faults = replacing
            for _ in range(2):
                response = await client.get("/v1/trips/scan?format=arrow&where=id >= 200 AND id < 1200")
                assert response.status_code == 200, response.text
                found = pa.ipc.open_stream(response.content).read_all()
                versions = {
                    name: table.slice(200) if name == "old" else table.slice(0, 700)
                    for name, table in (("old", old), ("new", new))
                }
                name = next(name for name, table in versions.items() if found.equals(table))
                if "etag" in response.headers:
                    tags.setdefault(response.headers["etag"], set()).add(name)
    assert all(len(names) == 1 for names in tags.values())
    assert set.union(*tags.values()) == {"old", "new"}


@pytest.mark.faults
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503, code="SlowDown", times=3),
        Fault(status=500, times=3),
        Fault(hang_up=True, times=3),
        Fault(truncate=100, times=3),
        Fault(latency_s=0.05, times=None),
    ],
    ids=["503", "500", "hang up", "truncated", "slow"],
)
async def test_a_store_that_recovers_costs_no_row(store: ObjectServer, fault: Fault) -> None:
    async with client_of(configuration("s3://bucket/trips/", **storage(store), **FAST)) as client:
        assert (await client.get("/v1/trips/count")).json()["rows"] == 1000
        store.faults = [fault]
        paths = [f"/v1/trips/lookup?id={number * 83}&columns=id" for number in range(10)]
        answers = await asyncio.gather(*[client.get(path) for path in paths])
        assert [one.json()["rows"] for one in answers] == [[{"id": number * 83}] for number in range(10)]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [
        (Fault(status=503, code="SlowDown", times=None), 503, "ThrottledError"),
        (Fault(status=403, code="AccessDenied", times=None), 502, "AccessDeniedError"),
        (Fault(hang_up=True, times=None), 503, "TransportError"),
    ],
)
async def test_a_store_that_fails_is_told_by_its_kind_alone(
    store: ObjectServer, fault: Fault, status: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTAGE_RATE", 100.0)
    async with client_of(configuration("s3://bucket/trips/", **storage(store), **FAST)) as client:
        store.faults = [fault]
        for token in (TOKEN, NORTH):
            for path in ("/v1/trips/scan", "/v1/trips/count", "/v1/trips/schema", "/v1/trips/explain"):
                response = await client.get(path, headers=bearer(token))
                document = problem(response, status)
                assert document["error"] == error
                assert ("retry-after" in response.headers) == (status == 503)
                assert not any(word in response.text for word in ("bucket", "part-0", "127.0.0.1", "s3:"))
        store.faults = []
        assert (await client.get("/v1/trips/count")).json()["rows"] == 1000


@pytest.mark.heavy
@pytest.mark.faults
async def test_an_object_that_vanishes_while_its_rows_are_sent_cuts_the_answer(store: ObjectServer) -> None:
    """What the client has then is not a whole body."""
    table = trips(60_000)
    store.put(KEY, parquet(table))
    service = Service(configuration("s3://bucket/trips/", **storage(store), **FAST))
    async with service:
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)
            if message["type"] == "http.response.body":
                store.delete(KEY)

        async def receive() -> Any:
            if messages or received:
                await asyncio.Event().wait()
            received.append(1)
            return {"type": "http.request", "body": b""}

        received: list[int] = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/trips/scan",
            "query_string": b"format=arrow",
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        }
        await service.app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in messages)
    reader = pa.ipc.open_stream(body)
    batches = []
    try:
        while True:
            batches.append(reader.read_next_batch())
    except (StopIteration, pa.ArrowInvalid, OSError):
        pass
    found = pa.Table.from_batches(batches)
    assert found.equals(table.slice(0, found.num_rows))
    assert messages[-1]["more_body"] == (found.num_rows < table.num_rows)  # the server cuts the connection then


async def test_an_etag_of_a_count_changes_with_the_rows_that_an_index_counts(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(3):
        (lake / f"{number}.parquet").write_bytes(parquet(trips(10, number * 10)))
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Bounds("id")])
    async with client_of(configuration(f"{lake}/")) as client:
        first = await client.get("/v1/trips/count")
        assert first.json()["rows"] == 30
        known = {"if-none-match": first.headers["etag"]}
        assert (await client.get("/v1/trips/count", headers=known)).status_code == 304
        (lake / "1.parquet").unlink()
        again = await client.get("/v1/trips/count", headers=known)
        assert (again.status_code, again.json()["rows"]) == (200, 20)
