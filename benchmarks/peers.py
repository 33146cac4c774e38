"""The readers that are compared. Each looks up keys, and answers questions about many rows, in its own best way.

``prepare`` imports, ``open`` makes a session on the file. Engines that block are called from a pool of threads where
lookups run at once; asyncpq runs them in one event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.datasets import BUCKET, WANTED, Condition, Question, lake_files

Clock = Callable[[], float]


@dataclass(frozen=True)
class Target:
    """Where the file is served: an endpoint and keys in ``BUCKET``; a file's key that ends in a slash is a folder's.

    ``column`` is looked up; ``index_key`` is the folder of an index beside a folder of files.
    """

    endpoint: str
    file_key: str
    folder_key: str
    column: str = "id"
    shape: str = "events"  # its Kind

    @property
    def index_key(self) -> str:
        return f"{self.file_key.rstrip('/')}-index/"


@dataclass
class Outcome:
    """One run of lookups: the users found, seconds of each, and seconds of all."""

    users: list[list[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0


class Peer(Protocol):
    """One engine under test, used by one thread."""

    def prepare(self, *, fresh: bool = False) -> None:
        """Import what is needed; if ``fresh``, what a program imports before it uses the engine."""

    def open(self, target: Target) -> None:
        """Make a session on the file; everything that is not a lookup."""

    def look_up(self, keys: Sequence[int], at_once: int, limit_s: float) -> Outcome:
        """Look the keys up, ``at_once`` in parallel, until all are done or ``limit_s`` is over."""

    def read(self, question: Question) -> int:
        """Read all rows of the answer, batch by batch where the engine can; return their number."""

    def close(self) -> None: ...


def sql(question: Question) -> str:
    """The question as SQL over the view ``events``."""
    columns = "*" if question.columns is None else ", ".join(question.columns)
    if question.summed:
        columns = f"count({columns}) AS n, sum({columns}) AS total"
    where = "" if question.where is None else f" WHERE {_sql_condition(question.where)}"
    return f"SELECT {columns} FROM events{where}"


def _sql_condition(where: Condition) -> str:
    if where.operator == "between":
        low, high = where.operand
        return f"{where.column} BETWEEN {low} AND {high}"
    if where.operator == "in":
        return f"{where.column} IN ({', '.join(map(str, where.operand))})"
    return f"{where.column} = '{where.operand}'"


class BlockingPeer:
    """Lookups of an engine with a blocking API."""

    def prepare(self, *, fresh: bool = False) -> None: ...

    def open(self, target: Target) -> None: ...

    def look_up_one(self, key: int) -> list[str]:
        raise NotImplementedError

    def read(self, question: Question) -> int:
        raise NotImplementedError

    def look_up(self, keys: Sequence[int], at_once: int, limit_s: float) -> Outcome:
        outcome = Outcome()
        began = time.perf_counter()

        def run(key: int) -> tuple[list[str], float] | None:
            start = time.perf_counter()
            if start - began > limit_s:
                return None
            found = self.look_up_one(key)
            return found, time.perf_counter() - start

        if at_once == 1:
            results = [run(key) for key in keys]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                results = list(pool.map(run, keys))
        outcome.wall_s = time.perf_counter() - began
        for result in results:
            if result is not None:
                outcome.users.append(result[0])
                outcome.seconds.append(result[1])
        return outcome

    def close(self) -> None: ...


_SIZE_HINTS = {"wide": 4 << 20, "lake": 32 << 10, "lake-refs": 32 << 10}  # bytes; what serves DataFusion best


class DataFusion(BlockingPeer):
    """DataFusion with page-index and filter pushdown, on the file's folder.

    A folder's listing is cached, which saves the HEAD of each query that a single file costs.
    """

    def prepare(self, *, fresh: bool = False) -> None:
        import datafusion
        import datafusion.object_store

        self._datafusion: Any = datafusion

    def open(self, target: Target) -> None:
        datafusion = self._datafusion
        config = datafusion.SessionConfig()
        for name, value in {
            "datafusion.execution.parquet.pushdown_filters": "true",
            "datafusion.execution.parquet.reorder_filters": "true",
            "datafusion.execution.parquet.metadata_size_hint": str(_SIZE_HINTS.get(target.shape, 1 << 20)),
            "datafusion.execution.target_partitions": "8",
        }.items():
            config = config.set(name, value)
        self._context: Any = datafusion.SessionContext(config)
        self._context.sql("SET datafusion.runtime.metadata_cache_limit = '1G'")
        store = datafusion.object_store.AmazonS3(BUCKET, "us-east-1", "test", "test", None, target.endpoint, True)
        self._context.register_object_store("s3://", store, BUCKET)
        self._context.register_parquet("events", f"s3://{BUCKET}/{self._key(target)}")
        self._column = target.column

    def _key(self, target: Target) -> str:
        return target.folder_key + "/"

    def look_up_one(self, key: int) -> list[str]:
        batches = self._context.sql(f"SELECT {', '.join(WANTED)} FROM events WHERE {self._column} = {key}").collect()
        return [user for batch in batches for user in batch.column("user").to_pylist()]

    def read(self, question: Question) -> int:
        rows = 0
        for batch in self._context.sql(sql(question)).execute_stream():
            rows += batch.to_pyarrow()["n"][0].as_py() if question.summed else len(batch.to_pyarrow())
        return rows


class DataFusionFile(DataFusion):
    """The same on the file itself."""

    def _key(self, target: Target) -> str:
        return target.file_key


class PyArrow(BlockingPeer):
    """pyarrow.dataset over Arrow's own S3 client, with the metadata read once."""

    def prepare(self, *, fresh: bool = False) -> None:
        import pyarrow
        import pyarrow.compute
        import pyarrow.dataset
        import pyarrow.fs

        self._arrow: Any = pyarrow

    def open(self, target: Target) -> None:
        arrow, dataset = self._arrow, self._arrow.dataset
        arrow.set_io_thread_count(32)
        endpoint = target.endpoint.removeprefix("http://")
        filesystem = arrow.fs.S3FileSystem(
            access_key="test", secret_key="test", region="us-east-1", scheme="http", endpoint_override=endpoint
        )
        caching = arrow.CacheOptions(hole_size_limit=64 * 1024, range_size_limit=8 << 20, lazy=True)
        options = dataset.ParquetFragmentScanOptions(pre_buffer=True, cache_options=caching)
        parquet = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        found = dataset.dataset(f"{BUCKET}/{target.file_key.rstrip('/')}", filesystem=filesystem, format=parquet)
        fragments = list(found.get_fragments())
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda fragment: fragment.ensure_complete_metadata(), fragments))
        self._dataset: Any = dataset.FileSystemDataset(fragments, found.schema, found.format, filesystem)
        self._column = target.column

    def look_up_one(self, key: int) -> list[str]:
        wanted = self._arrow.dataset.field(self._column) == key
        users: list[str] = self._dataset.to_table(columns=list(WANTED), filter=wanted)["user"].to_pylist()
        return users

    def read(self, question: Question) -> int:
        columns = None if question.columns is None else list(question.columns)
        where = None if question.where is None else self._filter(question.where)
        rows = 0
        for batch in self._dataset.to_batches(columns=columns, filter=where):
            rows += len(batch)
            if question.summed:
                self._arrow.compute.sum(batch[0])
        return rows

    def _filter(self, where: Condition) -> Any:
        column = self._arrow.dataset.field(where.column)
        if where.operator == "between":
            low, high = where.operand
            return (column >= low) & (column <= high)
        return column.isin(where.operand) if where.operator == "in" else column == where.operand


class Polars(BlockingPeer):
    """Polars' lazy scan with its own object store client."""

    def prepare(self, *, fresh: bool = False) -> None:
        import polars

        self._polars: Any = polars

    def open(self, target: Target) -> None:
        pattern = "*.parquet" if target.file_key.endswith("/") else ""
        options = {
            "aws_endpoint_url": target.endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
        }
        self._frame: Any = self._polars.scan_parquet(
            f"s3://{BUCKET}/{target.file_key}{pattern}", storage_options=options, credential_provider=None
        )
        self._frame.collect_schema()
        self._column = target.column

    def look_up_one(self, key: int) -> list[str]:
        users: list[str] = (
            self._frame.filter(self._polars.col(self._column) == key).select(WANTED).collect()["user"].to_list()
        )
        return users

    def read(self, question: Question) -> int:
        frame = self._frame if question.where is None else self._frame.filter(self._filter(question.where))
        if question.summed and question.columns is not None:
            column = self._polars.col(question.columns[0])
            return int(frame.select(column.count().alias("n"), column.sum().alias("total")).collect()["n"][0])
        if question.columns is not None:
            frame = frame.select(question.columns)
        if question.where is None and question.columns is None:
            return sum(batch.height for batch in frame.collect_batches())
        return int(frame.collect().height)

    def _filter(self, where: Condition) -> Any:
        column = self._polars.col(where.column)
        if where.operator == "between":
            return column.is_between(*where.operand)
        return column.is_in(where.operand) if where.operator == "in" else column == where.operand


class DuckDB(BlockingPeer):
    """DuckDB with httpfs, its metadata cache and its cache of remote data."""

    def prepare(self, *, fresh: bool = False) -> None:
        import duckdb
        import duckdb_extension_httpfs

        self._duckdb: Any = duckdb
        package = Path(duckdb_extension_httpfs.__path__[0])
        (self._httpfs,) = package.glob(f"extensions/v{duckdb.__version__}/httpfs.duckdb_extension")

    def open(self, target: Target) -> None:
        self._connection: Any = self._duckdb.connect(config={"threads": 8})
        self._connection.execute(f"LOAD '{self._httpfs}'")
        for setting in (
            "enable_http_metadata_cache = true",
            "parquet_metadata_cache = true",
            "httpfs_connection_caching = true",
            "validate_external_file_cache = 'NO_VALIDATION'",
            "enable_external_file_cache = true",
        ):
            self._connection.execute(f"SET {setting}")
        host = target.endpoint.removeprefix("http://")
        self._connection.execute(
            "CREATE SECRET (TYPE s3, KEY_ID 'test', SECRET 'test', REGION 'us-east-1', "
            f"ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
        )
        pattern = "*.parquet" if target.file_key.endswith("/") else ""
        self._connection.execute(
            f"CREATE VIEW events AS SELECT * FROM read_parquet('s3://{BUCKET}/{target.file_key}{pattern}')"
        )
        self._cursors = threading.local()
        self._column = target.column

    def _cursor(self) -> Any:
        if not hasattr(self._cursors, "cursor"):
            self._cursors.cursor = self._connection.cursor()
        return self._cursors.cursor

    def look_up_one(self, key: int) -> list[str]:
        query = f"SELECT {', '.join(WANTED)} FROM events WHERE {self._column} = {key}"
        return [row[0] for row in self._cursor().execute(query).fetchall()]

    def read(self, question: Question) -> int:
        rows = 0
        for batch in self._cursor().execute(sql(question)).fetch_record_batch(100_000):
            rows += batch["n"][0].as_py() if question.summed else len(batch)
        return rows


class Asyncpq:
    """asyncpq with its defaults: a session, one open file, and a memory cache of footer, indexes and pages."""

    keep_pages = True

    def prepare(self, *, fresh: bool = False) -> None:
        import asyncpq

        if not fresh:  # what a session loads while it waits for its first response
            import asyncpq.dataset
            import asyncpq.file
            import asyncpq.storage.s3.store
        self._asyncpq: Any = asyncpq
        self._runner = asyncio.Runner(loop_factory=self._loop_factory())

    def _loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        return None

    def open(self, target: Target) -> None:
        self._runner.run(self._open(target))

    async def _open(self, target: Target) -> None:
        options = {
            "key": "test",
            "secret": "test",
            "endpoint_url": target.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        self._session: Any = await self._asyncpq.Session(options, **self._session_options()).__aenter__()
        self._column = target.column
        url = f"s3://{BUCKET}/{target.file_key}"
        if url.endswith("/"):
            self._file: Any = await self._open_dataset(url, target)
        else:
            self._file = await self._session.open_file(url)

    def _session_options(self) -> dict[str, Any]:
        return {}

    async def _open_dataset(self, url: str, target: Target) -> Any:
        return await self._session.open_dataset(url)

    def look_up(self, keys: Sequence[int], at_once: int, limit_s: float) -> Outcome:
        return self._runner.run(self._look_up(keys, at_once, limit_s))

    async def _look_up(self, keys: Sequence[int], at_once: int, limit_s: float) -> Outcome:
        outcome = Outcome()
        waiting = iter(enumerate(keys))
        found: dict[int, list[str]] = {}
        began = time.perf_counter()

        async def work() -> None:
            for number, key in waiting:
                start = time.perf_counter()
                if start - began > limit_s:
                    return
                if not self.keep_pages:
                    self._forget_pages()
                table = await self._file.lookup({self._column: key}, columns=list(WANTED))
                outcome.seconds.append(time.perf_counter() - start)
                found[number] = table["user"].to_pylist()

        await asyncio.gather(*(work() for _ in range(at_once)))
        outcome.wall_s = time.perf_counter() - began
        outcome.users = [found[number] for number in sorted(found)]
        return outcome

    def read(self, question: Question) -> int:
        return self._runner.run(self._read(question))

    async def _read(self, question: Question) -> int:
        columns = None if question.columns is None else list(question.columns)
        rows = 0
        if question.where is not None and question.where.operator == "in":
            return int((await self._file.lookup({question.where.column: question.where.operand}, columns)).num_rows)
        if question.where is not None or question.num_rows < 100_000:
            where = None if question.where is None else self._filter(question.where)
            return int((await self._file.read(columns, where=where)).num_rows)
        async with self._file.scan(columns) as scan:
            async for batch in scan:
                rows += len(batch)
                if question.summed:
                    # numpy has come with pyarrow; the import of pyarrow.compute alone takes 22 ms
                    batch[0].to_numpy(zero_copy_only=False).sum()
        return rows

    def _filter(self, where: Condition) -> Any:
        column = self._asyncpq.col(where.column)
        return column.between(*where.operand) if where.operator == "between" else column == where.operand

    def _forget_pages(self) -> None:
        self._session.memory_cache.discard_if(lambda key: getattr(key, "kind", None) in ("page", "decoded_page"))

    def close(self) -> None:
        self._runner.run(self._session.__aexit__(None, None, None))
        self._runner.close()


class AsyncpqImmutable(Asyncpq):
    """The same for files of which ``cache_policy`` says that they never change: a lookup in memory asks nothing."""

    def _session_options(self) -> dict[str, Any]:
        return {"cache_policy": self._asyncpq.immutable()}


class AsyncpqNoPages(Asyncpq):
    """The same, with the cached pages dropped before each lookup; footer, indexes and dictionaries stay."""

    keep_pages = False


class AsyncpqOldListing(Asyncpq):
    """The same; a folder's listing serves for a minute, instead of one for each read."""

    async def _open_dataset(self, url: str, target: Target) -> Any:
        return await self._session.open_dataset(url, listing_max_age_s=60.0)


class AsyncpqIndex(Asyncpq):
    """The same, through an index beside the files, which is not asked for anew within a minute."""

    async def _open_dataset(self, url: str, target: Target) -> Any:
        index = f"s3://{BUCKET}/{target.index_key}"
        return await self._session.open_dataset(url, index=index, listing_max_age_s=60.0)

    async def build(self, target: Target, backend: str) -> None:
        """Make the index of the files that ``target`` names, in a local folder."""
        from asyncpq.indexing import Bounds, Footers, Keys

        options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": target.endpoint}
        options["client_kwargs"] = {"region_name": "us-east-1"}
        async with self._asyncpq.Session({"s3": options}) as session:
            url = f"s3://{BUCKET}/{target.file_key}"
            await session.build_index(url, [Bounds("id"), Keys("ref"), Footers()], at=backend)


class AsyncpqUrls(Asyncpq):
    """The same, given the urls of a folder's files, which never change, and told to ask for one range of each file."""

    def _session_options(self) -> dict[str, Any]:
        requests = self._asyncpq.RequestOptions(max_requests=1)
        return {"cache_policy": self._asyncpq.immutable(), "requests": requests}

    async def _open_dataset(self, url: str, target: Target) -> Any:
        return await self._session.open_dataset([f"{url}{name}" for name in lake_files()])


class AsyncpqUvloop(Asyncpq):
    """The same in uvloop's event loop."""

    def _loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory


PEERS: dict[str, Callable[[], Peer]] = {
    "asyncpq": Asyncpq,
    "asyncpq-immutable": AsyncpqImmutable,
    "asyncpq-index": AsyncpqIndex,
    "asyncpq-no-pages": AsyncpqNoPages,
    "asyncpq-old-listing": AsyncpqOldListing,
    "asyncpq-urls": AsyncpqUrls,
    "asyncpq-uvloop": AsyncpqUvloop,
    "datafusion": DataFusion,
    "datafusion-file": DataFusionFile,
    "duckdb": DuckDB,
    "polars": Polars,
    "pyarrow": PyArrow,
}
