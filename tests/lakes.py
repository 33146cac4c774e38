"""Small lakes: on an object server, of files that come and go at random, with indexes beside them."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.indexing.build.file_rows import footer_rows
from asyncpq.indexing.build.page_index_rows import pages_rows
from asyncpq.indexing.entry_encoding import by_file
from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexBackend, IndexTable
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.indexing.manifest import Manifest, encode
from asyncpq.indexing.query.file_entries import known_version
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.source import load_version, open_source
from asyncpq.objects.version import KnownVersion
from asyncpq.options import BuildOptions
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.testing import ObjectServer
from tests.indexing.brute_indexes import BruteFile, write_index
from tests.parquet_bytes import parquet_bytes

ROWS = 400
URL = "s3://bucket/lake/"
Ask = Callable[[asyncpq.Dataset], Coroutine[Any, Any, list[int]]]


def file_bytes(number: int, **columns: Any) -> bytes:
    """Ids ``[number * ROWS, (number + 1) * ROWS)``, in two row groups, with checksums."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{number} {row}" for row in ids]} | columns)
    return parquet_bytes(table, row_group_size=ROWS // 2, write_page_index=True, write_page_checksum=True)


def damaged(data: bytes, row_group: int = 0) -> bytes:
    """A byte of the row group's first data page is another one; the footer is right."""
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(row_group).column(0)
    at = chunk.data_page_offset + 60
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@asynccontextmanager
async def lake_server() -> AsyncIterator[ObjectServer]:
    """Four files at ``URL``."""
    async with ObjectServer() as running:
        for number in range(4):
            running.put(f"bucket/lake/{number}.parquet", file_bytes(number))
        yield running


def session(server: ObjectServer, *, max_attempts: int = 2, **options: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=2000)
    retry = asyncpq.RetryOptions(max_attempts=max_attempts, backoff_base_s=0.001, backoff_max_s=0.002)
    return asyncpq.Session(server.storage_options, requests=requests, retry=retry, **options)


async def read_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.read(["id"]))["id"].to_pylist())


async def scan_ids(dataset: asyncpq.Dataset) -> list[int]:
    async with dataset.scan(["id"], batch_size=50) as scan:
        found = [value for batch in [batch async for batch in scan] for value in batch["id"].to_pylist()]
    dataset.skipped = scan.skipped
    return found


async def lookup_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.lookup({"id": list(range(4 * ROWS))}, ["id"]))["id"].to_pylist())


async def count_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list(range(await dataset.count(col("id") >= 0)))


READS: dict[str, Ask] = {"read": read_ids, "scan": scan_ids, "lookup": lookup_ids}


KINDS: tuple[IndexKind, ...] = (
    Bounds(),
    ValueSet("name"),
    Bloom("id"),
    NGrams("name"),
    Keys("id"),
    Keys("name", "id"),
    Keys("tags"),
    Text("name"),
    Footers(),
    Pages(),
)
FEW: tuple[IndexKind, ...] = (Bounds("id"), Keys("id"))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int32()))])


def rows(seed: int, num_rows: int = 100) -> pa.Table:
    """Rows of one file."""
    choose = random.Random(seed)
    return pa.table(
        {
            "id": [choose.randrange(1000) if choose.random() < 0.9 else None for _ in range(num_rows)],
            "name": [f"w{choose.randrange(9)} x{choose.randrange(50)}" for _ in range(num_rows)],
            "tags": [[choose.randrange(5) for _ in range(choose.randrange(3))] for _ in range(num_rows)],
        },
        schema=SCHEMA,
    )


def write(path: Path, seed: int, num_rows: int = 100) -> None:
    """A file of several row groups; without page indexes in every other one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    pq.write_table(rows(seed, num_rows), new, row_group_size=40, write_page_index=seed % 2 == 0)
    new.rename(path)


def change(lake: Path, choose: random.Random) -> None:
    """Add, replace or remove a file."""
    path = lake / f"{choose.randrange(12)}.parquet"
    if path.exists() and choose.random() < 0.4:
        path.unlink()
    else:
        write(path, choose.randrange(1 << 30), choose.randrange(1, 120))


def _build(lake: str, at: str, checkpoint_files: int) -> None:
    async def build() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(lake, FEW, at=at, building=BuildOptions(checkpoint_files=checkpoint_files))

    asyncio.run(build())


@contextmanager
def builder(lake: Path, at: str, checkpoint_files: int = 3) -> Iterator[BaseProcess]:
    """A process that builds or refreshes an index of ``FEW``; killed at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_build, args=(str(lake), at, checkpoint_files))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


FOOTERS = IndexTable("footers")


async def indexed(
    session: asyncpq.Session,
    backend: IndexBackend,
    root: str,
    paths: Sequence[str],
    parts: Sequence[IndexTable],
    schema: pa.Schema,
    *,
    snapshot: int = 1,
    retired: Sequence[str] = (),
) -> Manifest:
    """An index of what is there, files that are ``retired`` being out of use."""
    files: list[BruteFile] = []
    footers: list[pa.Table] = []
    for number, path in enumerate(paths):
        source = await open_source(session._runtime, f"{root}{path}")
        try:
            metrics = asyncpq.ReadMetrics()
            version = await load_version(source, RequestContext(metrics))
            groups = tuple(group.num_rows for group in version.metadata.row_groups)
            footers.append(await footer_rows(ObjectRead(source, version, metrics), number))
            file = await session.open_file(f"{root}{path}")
            files.append(
                BruteFile((await file.read()).cast(schema), groups, path, version.validator, path not in retired)
            )
        finally:
            await source.handle.close()
    more = {FOOTERS: pa.concat_tables([TABLE_SCHEMAS["footers"].empty_table(), *footers])}
    manifest = await write_index(backend, parts, files, schema, root=root, more=more, snapshot=snapshot)
    await backend.commit(manifest.snapshot, encode(manifest))
    return manifest


T = TypeVar("T")
FILE = 7


class Kept(NamedTuple):
    """Rows of the parts "footers" and "pages" of one file."""

    footers: pa.Table
    pages: pa.Table
    validator: Validator

    def known(self, leaves: set[int] | None = None, *, footers: bool = True, pages: bool = True) -> KnownVersion | None:
        """The version, of some leaves or all."""
        return known_version(
            FILE,
            _chosen(self.footers, leaves) if footers else {},
            _chosen(self.pages, leaves) if pages else {},
            self.validator,
            asyncpq.LimitOptions(),
        )


def _chosen(rows: pa.Table, leaves: set[int] | None) -> Mapping[int, bytes]:
    payloads = by_file(rows).get(FILE, {})
    return {leaf: data for leaf, data in payloads.items() if leaves is None or leaf in leaves or leaf == -1}


async def keep(session: asyncpq.Session, url: str) -> Kept:
    """What an index would keep of a file."""
    source = await open_source(session._runtime, url)
    try:
        metrics = ReadMetrics()
        version = await load_version(source, RequestContext(metrics))
        read = ObjectRead(source, version, metrics)
        footers = await footer_rows(read, FILE)
        return Kept(footers, await pages_rows(read, FILE), version.validator)
    finally:
        await source.handle.close()


async def ask_known(
    session: asyncpq.Session, url: str, known: KnownVersion | None, question: Callable[[asyncpq.File], Awaitable[T]]
) -> T:
    """Ask a file that is opened by what is known of it."""
    source = await open_source(session._runtime, url)
    version = await load_version(source, RequestContext(ReadMetrics()), known)
    async with asyncpq.File(source, version) as file:
        return await question(file)


class PlainReader:
    """The parts of a :class:`asyncpq.datasets.model.CatalogReader` that take a session: they are not there."""

    trust_statistics = True
    limits = asyncpq.LimitOptions()

    def read_rows(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def once(self, *_: Any) -> Any:
        raise NotImplementedError


DAY = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "user": ["a", "b"],
        "tags": pa.array([["x"], []], pa.list_(pa.string())),
        "place": pa.array([{"city": "P"}, None], pa.struct([("city", pa.string())])),
    }
)


def write_days(lake: Path) -> Path:
    """Write ``DAY`` as each of two days, one file in each folder; return the lake."""
    for day in (1, 2):
        folder = lake / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(DAY, folder / "0.parquet")
    return lake
