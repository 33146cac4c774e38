"""Bad input ends in one typed error that names url and cause; never in other rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"


def parquet(offset: int = 0, *, kind: pa.DataType | None = None, rows: int = 3000) -> bytes:
    numbers = pa.array(range(rows), pa.int64())
    table = pa.table(
        {
            "id": numbers,
            "value": pa.array([offset + row for row in range(rows)]).cast(kind or pa.int64()),
            "name": pa.array([f"name {row}" for row in range(rows)]),
        }
    )
    return parquet_bytes(
        table,
        row_group_size=1000,
        max_rows_per_page=100,
        write_batch_size=100,
        data_page_size=500,
        write_page_index=True,
        use_dictionary=False,
    )


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", parquet())
        yield running


def session(server: ObjectServer, **options: Any) -> asyncpq.Session:
    retry = asyncpq.RetryOptions(max_attempts=3, backoff_base_s=0.01, read_timeout_s=20)
    options.setdefault("requests", asyncpq.RequestOptions(tail_bytes=20_000, gap_bytes=0))
    return asyncpq.Session(server.storage_options, retry=retry, **options)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", asyncpq.NotParquetError, "empty"),
        (b"PAR1", asyncpq.NotParquetError, ""),
        (b"hello, this is a text file\n" * 10, asyncpq.NotParquetError, "PAR1"),
        (parquet()[:-5], asyncpq.NotParquetError, ""),
        (parquet()[: len(parquet()) // 2], asyncpq.NotParquetError, ""),
        (parquet()[:-8] + (0).to_bytes(4, "little") + b"PAR1", asyncpq.FormatError, "footer"),
        (parquet()[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1", asyncpq.FormatError, "footer"),
        (parquet()[:-8] + (17).to_bytes(4, "little") + b"PAR1", asyncpq.FormatError, ""),
        (parquet()[:-4] + b"PARE", asyncpq.UnsupportedFeatureError, "encrypted"),
    ],
    ids=["empty", "magic only", "text", "cut", "half", "length 0", "length 2 GiB", "length wrong", "encrypted"],
)
async def test_not_a_readable_file(
    server: ObjectServer, data: bytes, error: type[asyncpq.AsyncpqError], says: str
) -> None:
    server.put("lake/bad.parquet", data)
    async with session(server) as s:
        with pytest.raises(error) as caught:
            await s.open_file("s3://lake/bad.parquet")
    assert caught.value.url == "s3://lake/bad.parquet"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://lake/none.parquet", asyncpq.ObjectNotFoundError),
        ("s3://no-such-bucket/none.parquet", asyncpq.BucketNotFoundError),
    ],
)
async def test_nothing_there(server: ObjectServer, url: str, error: type[asyncpq.AsyncpqError]) -> None:
    async with session(server) as s:
        with pytest.raises(error) as caught:
            await s.open_file(url)
    assert caught.value.url == url
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", asyncpq.AccessDeniedError),
        (403, "InvalidAccessKeyId", asyncpq.CredentialsError),
        (403, "SignatureDoesNotMatch", asyncpq.CredentialsError),
        (400, "ExpiredToken", asyncpq.CredentialsError),
        (503, "SlowDown", asyncpq.ThrottledError),
        (500, "InternalError", asyncpq.StoreError),
    ],
)
async def test_the_store_refuses(
    server: ObjectServer, status: int, code: str, error: type[asyncpq.AsyncpqError]
) -> None:
    server.faults = [Fault(status=status, code=code, times=None)]
    async with session(server) as s:
        with pytest.raises(error) as caught:
            await s.open_file(URL)
    assert caught.value.url == URL
    assert "test" not in str(caught.value).replace("lake/file.parquet", "")  # the key and the secret are "test"


async def test_missing_credentials_are_a_typed_error(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    options = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    async with asyncpq.Session(options) as s:
        with pytest.raises(asyncpq.CredentialsError, match="credentials"):
            await s.open_file(URL)


async def test_unknown_columns(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        for question in (
            lambda: file.read(columns=["nmae"]),
            lambda: file.read(where=col("nmae") == "x"),
            lambda: file.lookup({"nmae": 1}),
            lambda: file.count(col("nmae") == 1),
            lambda: file.take([0], columns=["nmae"]),
            lambda: file.plan(columns=["nmae"]),
        ):
            with pytest.raises(asyncpq.ColumnNotFoundError) as caught:
                await question()
            assert "nmae" in str(caught.value)
            assert "name" in str(caught.value)  # it says which names come close
            assert caught.value.url == URL


async def test_literal_of_the_wrong_type(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        for where in (col("id") == "x", col("name") > 5, col("id").is_in(["x"]), col("id").starts_with("x")):
            with pytest.raises(asyncpq.PredicateTypeError) as caught:
                await file.read(where=where)
            assert caught.value.column in ("id", "name")
            assert caught.value.url == URL
        assert server.log == []  # noticed before anything was fetched


async def test_rows_out_of_range(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        for row in (3000, -1, 1 << 70):
            with pytest.raises(IndexError, match=f"{row:,}"):
                await file.take([0, row])


async def test_replaced_between_footer_and_pages_starts_again(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        before = file.version
        server.put("lake/file.parquet", parquet(offset=1_000_000))
        table = await file.lookup({"id": [5, 1500]}, columns=["value"])
        assert table.column("value").to_pylist() == [1_000_005, 1_001_500]
        assert file.metrics.restarts == 1
        assert file.version != before


async def test_replaced_with_other_types_is_an_error(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.put("lake/file.parquet", parquet(kind=pa.string()))
        async with file.scan(["value"]) as scan:
            with pytest.raises(asyncpq.ObjectChangedError, match="value is string now") as caught:
                await anext(scan)
        assert caught.value.url == URL


async def test_replaced_after_the_first_batch_never_mixes_rows(server: ObjectServer) -> None:
    limits = asyncpq.LimitOptions(unit_bytes=2000, in_flight_bytes=1)
    requests = asyncpq.RequestOptions(tail_bytes=100, gap_bytes=0)  # nothing of the data comes with the tail
    async with session(server, limits=limits, requests=requests) as s:
        file = await s.open_file(URL)
        seen: list[int] = []

        async def read() -> None:
            async with file.scan(["value"], batch_size=10) as scan:
                async for batch in scan:
                    seen.extend(batch.column("value").to_pylist())
                    server.put("lake/file.parquet", parquet(offset=1_000_000))

        with pytest.raises(asyncpq.ObjectChangedError):
            await read()
        assert seen == list(range(len(seen)))
        assert 0 < len(seen) < 3000


async def test_take_never_starts_again(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.put("lake/file.parquet", parquet(offset=1_000_000))
        with pytest.raises(asyncpq.ObjectChangedError) as caught:
            await file.take([5], ["value"])
        assert "refresh" in str(caught.value)
        await file.refresh()
        assert (await file.take([5], ["value"])).column("value").to_pylist() == [1_000_005]


async def test_deleted_during_the_read(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.delete("lake/file.parquet")
        with pytest.raises((asyncpq.ObjectNotFoundError, asyncpq.ObjectChangedError)):
            await file.lookup({"id": 5})


async def test_object_that_changes_all_the_time_is_given_up(server: ObjectServer) -> None:
    versions = iter(range(1, 1000))

    def replace(request: object) -> Fault:
        return Fault(times=None, replace_after=parquet(offset=next(versions)))

    async with session(server) as s:
        file = await s.open_file(URL)
        server.faults = replace
        server.put("lake/file.parquet", parquet(offset=77))
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.lookup({"id": 5})
        assert len(server.log) < 40


@pytest.mark.parametrize(
    "fault",
    [
        Fault(ranged=True, ignore_range=True, times=None, after=1),
        Fault(shift_range=7, times=None, after=1),
        Fault(length_delta=-3, times=None, after=1),
        Fault(html_200=True, times=None, after=1),
        Fault(gzip=True, times=None, after=1),
        Fault(redirect="http://127.0.0.1:1/elsewhere", times=None, after=1),
        Fault(truncate=10, times=None, after=1),
    ],
    ids=["200 for a range", "shifted", "short", "html", "gzip", "redirect", "truncated"],
)
async def test_a_server_that_answers_wrongly(server: ObjectServer, fault: Fault) -> None:
    server.faults = [fault]
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.StoreError) as caught:
            await file.lookup({"id": 5})
    assert caught.value.url == URL


async def test_a_server_that_names_another_version_from_now_on(server: ObjectServer) -> None:
    """It refuses If-Match with the name that it gives: names are compared, and rows are of one version."""
    server.faults = [Fault(etag="other", times=None, after=1)]
    async with session(server) as s:
        file = await s.open_file(URL)
        found = await file.lookup({"id": 5})
        assert found["id"].to_pylist() == [5]
        assert file.metrics.restarts


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503, code="SlowDown", after=1, times=1),
        Fault(truncate=10, reset=True, after=1, times=1),
        Fault(truncate=10, after=1, times=1),
        Fault(slow_down_200=True, after=1, times=1),
    ],
    ids=["503", "reset", "cut", "slow down in a 200"],
)
async def test_a_passing_fault_costs_a_retry_and_no_row(server: ObjectServer, fault: Fault) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.faults = [fault]
        table = await file.lookup({"id": 5})
        assert table.column("value").to_pylist() == [5]


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file.scan(limit=-1),
        lambda file: file.scan(batch_size=0),
        lambda file: file.scan(columns="id"),
        lambda file: file.scan(where=[("id", "~", 3)]),
        lambda file: file.scan(where="id = = 3"),  # a condition in SQL
        lambda file: file.scan(where=True),
        lambda file: file.scan(limit=True),
        lambda file: file.scan(limit=1.0),
        lambda file: file.scan(read_dictionary=np.array([1])),
        lambda file: file.scan(read_dictionary="name"),
    ],
)
async def test_malformed_questions(server: ObjectServer, make: Any) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises((asyncpq.InvalidOptionError, asyncpq.ExpressionError)):
            make(file)


async def test_limits_beyond_64_bits_are_of_no_effect(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        whole = await file.read()
        assert (await file.read(limit=1 << 63)).equals(whole)
        async with file.scan(limit=10**20, batch_size=1 << 63) as scan:
            assert sum([batch.num_rows async for batch in scan]) == whole.num_rows


async def test_arguments_of_numpy(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        names: Any = np.array(["name"])
        both: Any = np.array(["id", "name"])
        limit: Any = np.int64(3)
        table = await file.read(both, limit=limit, read_dictionary=names)
        assert table["id"].to_pylist() == [0, 1, 2]
        assert pa.types.is_dictionary(table["name"].type)
        assert (await file.lookup({"id": 5}, names, read_dictionary=names)).schema.equals(table.select(["name"]).schema)


@pytest.mark.parametrize("columns", [0, [0], ["id", None], "id", {"id": 1}, np.array([1])], ids=repr)
async def test_lint_refuses_what_are_no_names(server: ObjectServer, columns: Any) -> None:
    async with session(server) as s:
        for reader in await s.open_file(URL), await s.open_dataset([URL]):
            with pytest.raises(asyncpq.InvalidOptionError, match=r"^columns"):
                await reader.lint(columns)


@pytest.mark.parametrize("columns", [None, 0, "id", [0], ["id", ()]], ids=repr)
async def test_inspect_refuses_what_are_no_names(server: ObjectServer, columns: Any) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.InvalidOptionError, match=r"^page_bounds"):
            await file.inspect(page_bounds=columns)


async def test_the_name_of_an_embedded_index_is_a_text(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.InvalidOptionError, match=r"^name=1: must be a str"):
            await file.embedded_index(1)  # type: ignore[arg-type]


async def test_malformed_lookups(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.QueryError, match="at least one"):
            await file.lookup({})
        wrong: Any = {0: 5}
        for read in file.lookup(wrong), file.plan(lookup=wrong), file.why(lookup=wrong):
            with pytest.raises(asyncpq.QueryError, match="a key names its column by a text, not by 0"):
                await read
        with pytest.raises(asyncpq.QueryError, match="equal lengths"):
            await file.lookup({"id": [1, 2], "value": [1]})
        assert (await file.lookup({"id": []})).num_rows == 0
        assert (await file.lookup({"id": None})).num_rows == 0


async def test_a_key_of_another_type_is_named_without_kernels(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    async with asyncpq.open_file(tmp_path / "a.parquet") as file:
        for read in file.lookup({"id": "42"}), file.count(asyncpq.col("id") >= "42"):
            with pytest.raises(
                asyncpq.PredicateTypeError, match=r"int64 cannot be compared with .* type string"
            ) as caught:
                await read
            assert "kernel" not in str(caught.value)
            assert "int(" in str(caught.value)


async def test_a_number_for_a_text_is_no_int8(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"], "small": pa.array([1], pa.int8())}), tmp_path / "a.parquet")
    async with asyncpq.open_file(tmp_path / "a.parquet") as file:
        for where, types in (("name = 5", "string .* integer"), ("name > 5.5", r"string .* decimal128\(2, 1\)")):
            with pytest.raises(asyncpq.PredicateTypeError, match=f"the type {types}") as caught:
                await file.count(where)
            assert "kernel" not in str(caught.value)
        with pytest.raises(asyncpq.PredicateTypeError, match=r"the type int8 .* the type string"):
            await file.count(asyncpq.col("small") >= "5")
