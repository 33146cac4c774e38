"""The readers that are compared. Each looks up one key and returns the ``user`` column of what it found.

``open`` belongs to a cold lookup, ``prepare`` (imports) does not. Engines that block are called from a
pool of threads where lookups run at once; asyncpq runs them in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.data import BUCKET, WANTED, lake_files

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

    def prepare(self) -> None:
        """Import what is needed."""

    def open(self, target: Target) -> None:
        """Make a session on the file; everything that is not a lookup."""

    def look_up(self, keys: Sequence[int], at_once: int, limit_s: float) -> Outcome:
        """Look the keys up, ``at_once`` in parallel, until all are done or ``limit_s`` is over."""

    def close(self) -> None: ...


class BlockingPeer:
    """Lookups of an engine with a blocking API."""

    def prepare(self) -> None: ...

    def open(self, target: Target) -> None: ...

    def look_up_one(self, key: int) -> list[str]:
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


class DataFusion(BlockingPeer):
    """DataFusion with page-index and filter pushdown, on the file's folder.

    A folder's listing is cached, which saves the HEAD of each query that a single file costs.
    """

    def prepare(self) -> None:
        import datafusion
        import datafusion.object_store

        self._datafusion: Any = datafusion

    def open(self, target: Target) -> None:
        datafusion = self._datafusion
        config = datafusion.SessionConfig()
        for name, value in {
            "datafusion.execution.parquet.pushdown_filters": "true",
            "datafusion.execution.parquet.reorder_filters": "true",
            "datafusion.execution.parquet.metadata_size_hint": str(1 << 20),
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


class DataFusionFile(DataFusion):
    """The same on the file itself."""

    def _key(self, target: Target) -> str:
        return target.file_key


class PyArrow(BlockingPeer):
    """pyarrow.dataset over Arrow's own S3 client, with the metadata read once."""

    def prepare(self) -> None:
        import pyarrow
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


class Asyncpq:
    """asyncpq with its defaults: a session, one open file, and a memory cache of footer, indexes and pages."""

    keep_pages = True

    def prepare(self) -> None:
        import aiohttp  # noqa: F401  # asyncpq loads both with the first s3 url; imports are not measured
        import s3fs  # noqa: F401

        import asyncpq

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

    def _forget_pages(self) -> None:
        self._session.memory_cache.discard_if(lambda key: getattr(key, "kind", None) in ("page", "decoded_page"))

    def close(self) -> None:
        self._runner.run(self._session.__aexit__(None, None, None))
        self._runner.close()


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
    "asyncpq-index": AsyncpqIndex,
    "asyncpq-no-pages": AsyncpqNoPages,
    "asyncpq-old-listing": AsyncpqOldListing,
    "asyncpq-urls": AsyncpqUrls,
    "asyncpq-uvloop": AsyncpqUvloop,
    "datafusion": DataFusion,
    "datafusion-file": DataFusionFile,
    "pyarrow": PyArrow,
}
