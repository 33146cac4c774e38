"""Answers have the rows of the verbs in every format, at the client's pace, and are whole or cut off."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.metrics import ReadMetrics
from asyncpq.reports.row_writers import json_values
from asyncpq.serve.access import Limits
from asyncpq.serve.app import ServerExchange
from asyncpq.serve.problems import Problem
from asyncpq.serve.responses import (
    BUFFERED_BYTES,
    AbortedError,
    ByteSink,
    Reply,
    RowsForm,
    cost_headers,
    send_rows,
    tier_of,
)
from tests.serve.services import (
    NORTH,
    TOKEN,
    bearer,
    client_of,
    configuration,
    listening,
    service_of,
    trips,
    write_lake,
)

TERMS = [
    "id < 900",
    "id >= 1500 AND id < 1510",
    "price > 60",
    "price IS NULL",
    "NOT price > 60",
    "\"user\" IN ('u1', 'u5')",
    "\"user\" LIKE 'u1%'",
    "place.x = 3",
    "id BETWEEN 10 AND 20",
]
COLUMNS = ["id", "user", "price", "place", "place.x"]


class Served:
    """One service over one lake for all examples of a test, in an event loop of its own."""

    def __init__(self, lake: str) -> None:
        self.runner = asyncio.Runner()
        self._context = client_of(configuration(lake))
        self.client: httpx.AsyncClient = self.runner.run(self._context.__aenter__())
        self.session = asyncpq.Session()
        self.runner.run(self.session.__aenter__())
        self.dataset = self.runner.run(self.session.open_dataset(lake))

    def close(self) -> None:
        self.runner.run(self.session.close())
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve") / "lake"
    write_lake(folder)
    one = Served(f"{folder}/")
    yield one
    one.close()


def rows_of(response: httpx.Response, format_: str) -> pa.Table | list[Any]:
    assert response.status_code == 200, response.text
    if format_ == "arrow":
        return pa.ipc.open_stream(response.content).read_all()
    if format_ == "parquet":
        return pq.read_table(io.BytesIO(response.content))
    if format_ == "ndjson":
        return [json.loads(line) for line in response.text.splitlines()]
    rows: list[Any] = response.json()["rows"]
    return rows


def assert_same(response: httpx.Response, format_: str, expected: pa.Table) -> None:
    found = rows_of(response, format_)
    if isinstance(found, pa.Table):
        assert found.schema.equals(expected.schema)
        assert found.equals(expected)
    else:
        columns = [json_values(column.combine_chunks()) for column in expected.columns]
        assert found == [dict(zip(expected.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


@pytest.mark.heavy
@given(
    terms=st.lists(st.sampled_from(TERMS), max_size=3),
    join=st.sampled_from([" AND ", " OR "]),
    columns=st.none() | st.lists(st.sampled_from(COLUMNS[:4]), unique=True, min_size=1),
    limit=st.none() | st.integers(0, 3500),
    format_=st.sampled_from(["json", "ndjson", "arrow", "parquet"]),
    north=st.booleans(),
    post=st.booleans(),
)
def test_scans_and_counts_have_the_rows_of_the_verbs(
    served: Served, terms: list[str], join: str, columns: list[str] | None, limit: int | None, format_: str,
    north: bool, post: bool,
) -> None:  # fmt: skip
    where = join.join(f"({term})" for term in terms) or None
    rights = [part for part in (where, "region = 'north'" if north else None) if part is not None]
    predicate = " AND ".join(f"({part})" for part in rights) or None
    shown = COLUMNS[:4] if north and columns is None else columns
    expected = served.runner.run(served.dataset.read(shown, predicate, limit=limit))
    count = served.runner.run(served.dataset.count(predicate))
    body = {"where": where, "columns": columns, "limit": limit}
    given_ = {key: value for key, value in body.items() if value is not None}
    headers = bearer(NORTH if north else TOKEN)
    if post:
        response = served.runner.run(
            served.client.post(f"/v1/trips/scan?format={format_}", json=given_, headers=headers)
        )
    else:
        params = {**given_, "format": format_, **({"columns": ",".join(columns)} if columns else {})}
        response = served.runner.run(served.client.get("/v1/trips/scan", params=params, headers=headers))
    assert_same(response, format_, expected)
    params = {} if where is None else {"where": where}
    counted = served.runner.run(served.client.get("/v1/trips/count", params=params, headers=headers))
    assert counted.json()["rows"] == count


@given(
    ids=st.lists(st.integers(-5, 3005), min_size=1, max_size=8),
    pairs=st.booleans(),
    format_=st.sampled_from(["json", "ndjson", "arrow", "parquet"]),
    north=st.booleans(),
)
def test_lookups_have_the_rows_of_the_verb(
    served: Served, ids: list[int], pairs: bool, format_: str, north: bool
) -> None:
    keys: dict[str, list[Any]] = {"id": ids}
    if pairs:
        keys["user"] = [f"u{number % 97 if number % 3 else 1}" for number in ids]
    shown = COLUMNS[:4]
    expected = served.runner.run(served.dataset.lookup(keys, [*shown, "region"]))
    if north:
        expected = expected.filter(pc.equal(expected["region"], "north"))
    headers = bearer(NORTH if north else TOKEN)
    response = served.runner.run(
        served.client.post(f"/v1/trips/lookup?format={format_}", json={"keys": keys, "columns": shown}, headers=headers)
    )
    assert_same(response, format_, expected.select(shown))


NAMES = ["id", "user", "price", "place.x", "place", "secret", "limit", "where", "format", "columns", "\xe9"]
NUMBERS = ["1", "-1", "9" * 40, "json", "ndjson", "arrow", "parquet", "", "id,id", "id,,user", "place.x", "NULL", "u1"]
CONDITIONS = ["id = 1", "place = 1", "place.x = 'a'", "price > 1e999", "id IN ()", "user < X'00'", "TRUE", "id = 1e30"]
TEXTS = st.text(max_size=12) | st.sampled_from(NUMBERS) | st.sampled_from(CONDITIONS)


@given(
    verb=st.sampled_from(["lookup", "scan", "count", "explain", "schema"]),
    params=st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=4),
    north=st.booleans(),
)
def test_whatever_is_asked_is_answered_or_refused(
    served: Served, verb: str, params: list[tuple[str, str]], north: bool
) -> None:
    """Nothing that a client writes is a defect of the service, and no refusal names a hidden column."""
    headers = bearer(NORTH if north else TOKEN)
    query = urlencode(params)
    response = served.runner.run(served.client.get(f"/v1/trips/{verb}?{query}", headers=headers))
    assert response.status_code in (200, 400), response.text
    if north and "secret" not in str(params):
        assert "secret" not in response.text
        assert "region" not in response.text


class Rows:
    """A scan that makes batches for as long as they are taken."""

    def __init__(self, batches: int, rows: int = 1000) -> None:
        self.batch = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
        self.schema = self.batch.schema
        self.left = batches
        self.made = 0

    def __aiter__(self) -> Rows:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self.made == self.left:
            raise StopAsyncIteration
        self.made += 1
        return self.batch


async def at_once(work: Callable[[], Any], *, small: bool = False) -> Any:
    return work()


async def test_no_more_is_read_than_the_client_takes() -> None:
    """Of a scan of a gigabyte, a client that takes nothing costs the bytes of one part."""
    taken, at_rest = asyncio.Semaphore(0), asyncio.Event()
    sizes: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sizes.append(len(message["body"]))
            at_rest.set()
            await taken.acquire()

    scan: Any = Rows(100_000)
    task = asyncio.create_task(
        send_rows(Reply(send), scan, RowsForm("arrow", "trips", Limits()), lambda rows: {}, at_once)
    )
    await at_rest.wait()
    assert scan.made * scan.batch.nbytes < 2 * BUFFERED_BYTES
    for number in range(2, 20):
        at_rest.clear()
        taken.release()
        await at_rest.wait()
        assert len(sizes) == number
        assert scan.made * scan.batch.nbytes < (number + 1) * BUFFERED_BYTES
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("format_", ["json", "ndjson", "arrow", "parquet"])
async def test_an_answer_that_is_too_large_is_a_problem_or_cut_off(format_: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    few: Any = Rows(30, 5000)
    form = RowsForm(format_, "trips", Limits(bytes=1000))
    with pytest.raises(Problem, match="more than 1000 bytes"):
        await send_rows(Reply(send), few, form, lambda rows: {}, at_once)
    assert sent == []
    many: Any = Rows(3000, 5000)
    form = form._replace(limits=Limits(bytes=3 * BUFFERED_BYTES))
    with pytest.raises(AbortedError):
        await send_rows(Reply(send), many, form, lambda rows: {}, at_once)
    assert sent[-1]["more_body"]
    assert sum(len(message.get("body", b"")) for message in sent) <= 3 * BUFFERED_BYTES


@pytest.mark.heavy
async def test_an_answer_that_fails_after_it_began_is_seen_to_be_incomplete(tmp_path: Any) -> None:
    table = trips(40_000)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    limited = configuration(str(tmp_path / "a.parquet"), limits={"bytes": 3_000_000})
    async with (
        client_of(limited) as client,
        listening(service_of(client).app, lifespan="off") as url,
        httpx.AsyncClient(base_url=url, headers=bearer(TOKEN)) as real,
    ):
        for format_ in ("ndjson", "json"):
            with pytest.raises(httpx.RemoteProtocolError):
                await real.get(f"/v1/trips/scan?format={format_}")
        text = (await real.get("/metrics")).text
        assert 'status="aborted",verb="scan"} 2.0' in text


def test_costs_are_those_of_the_read() -> None:
    metrics = ReadMetrics(requests=3, bytes_fetched=70, rounds=2, wait_s=0.25, decode_s=0.5)
    assert cost_headers(metrics, 1.0) == {
        "server-timing": "total;dur=1000.0, wait;dur=250.0, decode;dur=500.0",
        "asyncpq-requests": "3",
        "asyncpq-bytes": "70",
        "asyncpq-rounds": "2",
        "asyncpq-tier": "store",
    }
    tiers = [ReadMetrics(cache_hits=3), ReadMetrics(disk_hits=1), ReadMetrics(disk_hits=1, shared_hits=1)]
    assert list(map(tier_of, tiers)) == ["memory", "disk", "shared"]


def test_a_sink_gives_what_was_written_since() -> None:
    sink = ByteSink()
    sink.write(b"ab")
    sink.write(b"c")
    assert (sink.take(), sink.take(), sink.tell()) == (b"abc", b"", 3)


async def test_columns_that_a_format_cannot_hold() -> None:
    async def send(message: Any) -> None:
        raise AssertionError(message)

    scan: Any = Rows(1)
    scan.schema = pa.schema({"x": pa.month_day_nano_interval()})
    with pytest.raises(Problem, match="parquet cannot hold these columns"):
        await send_rows(Reply(send), scan, RowsForm("parquet", "trips", Limits()), lambda rows: {}, at_once)


def test_the_exchange_knows_its_method() -> None:
    scope = {"type": "http", "method": "HEAD", "query_string": b"a=1&a=2", "headers": [], "path": "/"}

    async def receive() -> Any:
        raise AssertionError

    exchange = ServerExchange(scope, receive, receive)  # type: ignore[arg-type]  # nothing is sent
    assert exchange.query == b"a=1&a=2"
