"""Backends for indexes in a folder of an object store or disk. Segments are Parquet files; in small indexes, JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from asyncpq.errors import (
    LOCAL_FILES,
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    CorruptIndexError,
    FormatError,
    Hint,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreError,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import (
    BOUNDED,
    TRAILER_BYTES,
    KeyGroups,
    OrderCheck,
    SegmentSpool,
    SortedRows,
    check_num_rows,
    digest_of,
    segment_corrupt,
    segment_gone,
)
from asyncpq.indexing.index_model import (
    EVERY_ROW,
    MAX_SNAPSHOT,
    IndexBackend,
    IndexTable,
    KeyRange,
    Segment,
    SegmentQuery,
    Stored,
    comes_whole,
)
from asyncpq.metrics import Purpose, ReadMetrics
from asyncpq.objects.runtime import HasRuntime, Runtime, runtime_of
from asyncpq.objects.source import ObjectSource, PackedTail, held_source, load_version, open_source
from asyncpq.objects.version import FileVersion
from asyncpq.options import immutable
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.records import dataclass
from asyncpq.scan.executor import OneFile, ScanExecutor, one_table
from asyncpq.scan.file_planner import ScanPlanner
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import ListedObject, RequestContext, Store, WritableStore, writable
from asyncpq.storage.local import remove_empty_folders
from asyncpq.storage.urls import safe_url

_DIGITS = 20  # of a number in an object's name: names sort as numbers do
_NUMBER = re.compile(rf"[0-9]{{{_DIGITS}}}")


def encode_latest(number: int, content: bytes) -> bytes:
    """Return the content of the object ``latest``: the manifest's number, and a copy of the manifest."""
    return b"%0*d\n%b" % (_DIGITS, number, content)


def decode_latest(data: bytes, url: str) -> tuple[int, bytes]:
    """Return the number and the content of the manifest in ``data``, the content of ``latest``. Raises
    CorruptIndexError if ``data`` does not begin with a number."""
    number = data[:_DIGITS]
    is_number = len(number) == _DIGITS and number.isdigit() and data[_DIGITS : _DIGITS + 1] == b"\n"
    if not is_number or int(number) > MAX_SNAPSHOT:
        raise CorruptIndexError(
            "the index's object `latest` is damaged: it does not begin with the number of a snapshot", url=url
        )
    return int(number), data[_DIGITS + 1 :]


#: A manifest's root is small, but names every index table: a quarter of a million in so many bytes.
_MANIFEST_BYTES = 16 << 20
_OF_ROWS = (
    *("row_groups_total", "row_groups_read", "row_groups_by_bloom", "row_groups_proven"),
    *("pages_total", "pages_read", "rows_scanned", "rows_returned"),
)


class ObjectBackend(IndexBackend):
    """Base of the backends on object stores: it names, reads, writes and deletes the objects of an index.

    Objects: ``manifests/<number>.json``, each written once; ``latest``, a copy of a recent manifest;
    ``segments/<name>``; ``builds/<id>``, written again with each heartbeat of a running build.

    ``session`` is a session or its runtime, which reads and writes the objects. ``single_writer`` promises that only
    one process writes to the index; then the store need not be able to refuse overwriting an object.
    """

    _suffix: str  # of a segment's name

    def __init__(self, session: HasRuntime | Runtime, url: str, *, single_writer: bool = False) -> None:
        if not isinstance(single_writer, bool):
            raise InvalidOptionError(
                f"single_writer={single_writer!r}: must be True or False",
                option="single_writer",
                hint="Pass True if only one process writes to this index, else False.",
            )
        self._runtime = session if isinstance(session, Runtime) else runtime_of(session)
        self._folder = url if url.endswith("/") else f"{url}/"
        self._segments = f"{self._folder}segments/"
        self._single_writer = single_writer
        self._store: tuple[Store, str] | None = None
        self._creates: bool | None = None  # whether the store refuses to create an existing object

    @cached_property
    def description(self) -> str:
        """Url of the folder, without secrets."""
        return safe_url(self._folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.description!r})"

    def _url(self, *names: str) -> str:
        return self._folder + "/".join(names)

    def _segment_url(self, name: str) -> str:
        return f"{self._segments}{name}{self._suffix}"

    def _shown(self, segment: Segment) -> str:
        """Return the url of a segment without secrets, for messages."""
        return safe_url(self._segment_url(segment.name))

    def _suffix_of(self, stored: Stored) -> str:
        return self._suffix if stored == "segments" else ".json" if stored == "manifests" else ""

    def _manifest_url(self, number: int) -> str:
        return self._url("manifests", f"{number:0{_DIGITS}d}.json")

    async def _held(self, operation: Operation | None, segment: Segment, digest: str) -> SortedRows | None:
        """Return the rows of a whole segment, whose content has ``digest``, from the session's memory; else None."""
        rows: SortedRows | None = self._runtime.memory.get(await self._key(segment, digest))
        if rows is not None:
            metrics = self._metrics(operation) if operation is None else operation.metrics
            metrics.cache_hits += 1
        return rows

    async def _loaded(
        self, segment: Segment, digest: str, load: Callable[[], Coroutine[Any, Any, SortedRows]]
    ) -> SortedRows:
        """Await ``load()``, which returns the rows of a whole segment, and keep them in the session's memory. Raises
        CorruptIndexError if the number of rows is not the number that was written."""
        key = await self._key(segment, digest)
        rows = await self._runtime.flights.run(key, load)
        if rows.table.num_rows != segment.num_rows:  # messages are not made for nothing
            check_num_rows(segment, rows.table.num_rows, self._shown(segment))
        self._runtime.memory.put(key, rows, rows.weight)
        return rows

    async def _key(self, segment: Segment, digest: str) -> tuple[str, str, str, str]:
        """Return the cache key of a whole segment, whose content has ``digest``, for the session's memory."""
        if self._store is None:
            self._store = await self._runtime.store(self._folder)
        store, namespace = self._store
        if self._runtime.options.cache_namespace is None:  # else the caller decides which sessions share the cache
            namespace = f"{namespace}:{await store.credential_identity(self._folder)}"
        return "segment", namespace, self._segment_url(segment.name), digest

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        data = await self._fetch_manifest(operation, self._url("latest"))
        if data is None:
            return None
        return decode_latest(data, safe_url(self._url("latest")))

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        return await self._fetch_manifest(operation, self._manifest_url(number))

    async def _fetch_manifest(self, operation: Operation | None, url: str) -> bytes | None:
        data = await self._fetch(operation, url, at_most=_MANIFEST_BYTES + 1)
        if data is not None and len(data) > _MANIFEST_BYTES:
            raise CorruptIndexError(
                f"the object has more than {_MANIFEST_BYTES} bytes, so it is not a manifest of an index",
                url=safe_url(url),
            )
        return data

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        store, url, context = await self._writable(), self._manifest_url(number), self._context(operation, "write")
        if self._creates is None:
            self._creates = await store.probe_create(self._folder, context=self._context(operation, "write"))
        if not self._creates:
            if not self._single_writer:
                raise ConcurrentCommitUnsupported(
                    "the store overwrites objects that exist, so two concurrent commits could both succeed",
                    url=self.description,
                    hint=Hint(
                        "Set single_writer=True if only one process writes to this index.",
                        "Keep the index in another store, with --at.",
                    ),
                )
            if await self.manifest(number, operation=operation) is not None:
                return False
            await store.put_object(url, content, context=context)
        elif not await store.create_object(url, content, context=context):
            return False
        try:
            newest = await self.latest(operation=operation)
        except CorruptIndexError:
            newest = None
        if newest is None or newest[0] < number:  # `latest` never goes back, but for a race between these requests
            data = encode_latest(number, content)
            await store.put_object(self._url("latest"), data, context=self._context(operation, "write"))
        return True

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        store = await self._writable()
        await store.put_object(self._url("builds", build), build.encode(), context=self._context(operation, "write"))

    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        store = await self._writable()
        listed, now = await asyncio.gather(
            self._list(operation, stored), store.clock(self._folder, context=self._context(operation, "list"))
        )
        start, suffix = len(self._url(stored, "")), self._suffix_of(stored)
        ages: dict[str, float] = {}
        for item in listed:
            name = item.url[start:]
            if not name.endswith(suffix) or "/" in name:
                continue
            name = name.removesuffix(suffix)
            if stored == "manifests":
                if not _NUMBER.fullmatch(name):
                    continue
                name = str(int(name))
            # an object without a time counts as new: it is never removed by its age
            ages[name] = 0.0 if item.modified is None else max(0.0, now - item.modified)
        return ages

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        digits, suffix = _DIGITS if stored == "manifests" else 0, self._suffix_of(stored)
        await self._delete(operation, [self._url(stored, f"{name.zfill(digits)}{suffix}") for name in names])

    async def drop(self, *, operation: Operation | None = None) -> None:
        listings = [await self._list(operation, folder) for folder in ("manifests", "builds", "segments")]
        # manifests before segments: an index that a reader finds is whole
        await self._delete(operation, [self._url("latest")])
        for listed in listings:
            await self._delete(operation, [item.url for item in listed])
        await self._runtime.in_thread(partial(remove_empty_folders, self._folder))

    async def close(self) -> None:
        """Do nothing: the session owns the connections."""

    def _context(self, operation: Operation | None, purpose: Purpose) -> RequestContext:
        metrics = self._metrics(operation)
        return RequestContext(metrics, round=metrics.rounds + 1, purpose=purpose)

    def _metrics(self, operation: Operation | None) -> ReadMetrics:
        return ReadMetrics(totals=(self._runtime.metrics,)) if operation is None else operation.metrics

    @contextmanager
    def _reading(self, operation: Operation | None, url: str) -> Iterator[Operation]:
        """Yield an operation for one of several concurrent reads, of ``url``. At the end, add its costs to
        ``operation``, or to the session's metrics if that is None."""
        whole = operation or self._runtime.operation("read", safe_url(url))
        part = whole.part(safe_url(url), whole.metrics.rounds)
        if part.metrics.trace is not None:
            part.metrics.trace = part.metrics.trace.of_index()
        try:
            yield part
        finally:
            metrics = part.metrics
            for name in _OF_ROWS:  # rows of a segment are no rows of the caller's data
                setattr(metrics, name, 0)
            metrics.fallbacks.clear()
            if operation is not None:
                operation.metrics.add_part(metrics)
            else:
                metrics.add_to(self._runtime.metrics)

    async def check_writable(self) -> None:
        """Raise UnsupportedStoreError if the store cannot be written."""
        await self._writable()

    async def _writable(self) -> WritableStore:
        store, _ = await self._runtime.store(self._folder)
        return writable(store, self.description)

    async def _fetch(self, operation: Operation | None, url: str, *, at_most: int) -> bytes | None:
        """Return the content of the object at ``url``, or the last ``at_most`` bytes of a longer one; None if there is
        no such object."""
        store, _ = await self._runtime.store(url)
        async with self._runtime.deadline(safe_url(url)):
            try:
                handle = await store.open_object(url)
                try:
                    tail = await handle.fetch_tail(at_most, context=self._context(operation, "table"))
                finally:
                    await handle.close()
            except BucketNotFoundError:
                raise
            except ObjectNotFoundError:
                return None
        return bytes(tail.data)

    async def _delete(self, operation: Operation | None, urls: Sequence[str]) -> None:
        if urls:
            store = await self._writable()
            await store.delete_objects(urls, context=self._context(operation, "write"))

    async def _list(self, operation: Operation | None, folder: str) -> Sequence[ListedObject]:
        store, _ = await self._runtime.store(self._folder)
        return await store.list_objects(self._url(folder, ""), context=self._context(operation, "list"))


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment's file, opened for one lookup. The caller begins and ends ``operation``, which counts the cost."""

    source: ObjectSource
    index_table: IndexTable
    version: FileVersion
    groups: KeyGroups  # the key ranges of the row groups
    operation: Operation

    @classmethod
    async def load(cls, source: ObjectSource, segment: Segment, operation: Operation) -> SegmentFile:
        """Load the footer of a segment's file, from memory or the store; return the open file. ``source`` is the
        object at the segment's url. Raises CorruptIndexError if the file is not the one that ``segment`` describes."""
        metrics = operation.metrics
        version = await load_version(source, RequestContext(metrics, round=metrics.rounds + 1))
        metadata = version.metadata
        if version.size != segment.size or metadata.num_rows != segment.num_rows:
            raise CorruptIndexError(
                f"the segment's file has {version.size} bytes and {metadata.num_rows} rows, expected {segment.size} "
                f"bytes and {segment.num_rows} rows"
            )

        def make() -> KeyGroups:
            if digest_of(metadata.data) != segment.extra["footer"]:
                raise CorruptIndexError("the checksum of the segment's footer differs from the one in the manifest")
            return row_groups(metadata)

        groups = version.derived(("row groups of a segment", segment.extra["footer"]), make, lambda made: made.weight)
        if groups.num_rows != segment.num_rows:
            raise CorruptIndexError(
                f"the segment's row groups have {groups.num_rows} rows, expected {segment.num_rows}"
            )
        return cls(source, segment.table, version, groups, operation)

    async def read(self, ordinals: Sequence[int], columns: Sequence[str], *, scan: bool = False) -> pa.Table:
        """Return all rows of the row groups with these ``ordinals``; only ``columns``, given in the order of the
        schema. A few row groups take one round of requests. With ``scan``, nothing is kept in memory."""
        memory, names = self.source.runtime.memory, tuple(columns)
        keys = [("row group of a segment", self.version.digest, ordinal, names) for ordinal in ordinals]
        tables: list[pa.Table | None] = memory.get_many(keys, scan=scan)
        missing = [place for place, table in enumerate(tables) if table is None]
        self.operation.metrics.cache_hits += len(tables) - len(missing)
        if missing:
            fetched = await self._fetch([ordinals[place] for place in missing], names)
            keeps = not scan and fetched.nbytes * 16 <= memory.max_bytes
            start = 0
            for place in missing:
                num_rows = self.groups.group_rows[ordinals[place]]
                table = tables[place] = fetched.slice(start, num_rows)
                start += num_rows
                if keeps:
                    memory.put(keys[place], table, table.nbytes + 500)
        return pa.concat_tables(tables) if tables else self.index_table.schema.empty_table().select(columns)

    async def _fetch(self, ordinals: Sequence[int], columns: Sequence[str]) -> pa.Table:
        request = ScanRequest(columns=columns, access=AccessPlan.row_groups(ordinals))
        planner = ScanPlanner(self.source, request, self.version, self.operation)
        # Pages are not kept: whole chunks come, and no lookup asks for one page
        planner.other_bytes = self.source.runtime.memory.max_bytes
        file = OneFile(planner, scan=False)
        async with planner.deadline():
            (tables,) = (await ScanExecutor(self.source.runtime, self.source.handle.url, file).collect()).values()
        table = one_table([batch for table in tables for batch in table.to_batches()], file.schema())
        schema = pa.schema([field for field in self.index_table.schema if field.name in columns])
        if table.schema.equals(schema):
            return table
        try:
            return table.cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise CorruptIndexError(f"the segment's file has other columns: {error}") from error


def row_groups(metadata: FileMetadata) -> KeyGroups:
    """Return the key ranges of a segment file's row groups, from the statistics in its footer. Each bound is parsed
    when it is first used, because a lookup needs only a few."""
    groups = metadata.row_groups
    bounds = {
        leaf.dotted: (_Bound(metadata, leaf.index, least=True), _Bound(metadata, leaf.index, least=False))
        for leaf in metadata.schema.leaves
        if leaf.dotted in BOUNDED
    }
    return KeyGroups([group.num_rows for group in groups], bounds)


class _Bound(Sequence[bytes]):
    """The least value (with ``least``; otherwise the greatest) of one column in each row group, by row group
    ordinal. Each is parsed when it is first used."""

    def __init__(self, metadata: FileMetadata, leaf: int, *, least: bool) -> None:
        self._groups = metadata.row_groups
        self._leaf = leaf
        self._least = least
        self._known: list[bytes | None] = [None] * len(self._groups)

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, ordinal: int) -> bytes:  # type: ignore[override]  # no slices
        """Return the bound of a row group. Raises CorruptIndexError if the row group has no bounds."""
        value = self._known[ordinal]
        if value is None:
            statistics = self._groups[ordinal].parse_chunk(self._leaf).statistics
            value = None if statistics is None else statistics.min_value if self._least else statistics.max_value
            if value is None:
                raise CorruptIndexError(f"row group {ordinal} has no bounds of its keys")
            self._known[ordinal] = value
        return value


_SMALL_BYTES = 64 * 1024  # of a segment: fetching all of it costs no more than a part
_RUN_ROWS = 1 << 18  # read at once when all rows are wanted
_RUN_BYTES = 8 << 20  # of the file read at once, roughly: rows with payloads are large


class FolderBackend(ObjectBackend):
    """An index in a folder; each segment is a Parquet file. ``at`` of :meth:`asyncpq.Session.build_index` takes one.

    Its methods are those of :class:`asyncpq.indexing.IndexBackend`.

    The first lookup in a segment of at most ``RequestOptions.whole_segment_bytes`` fetches the whole segment in one
    request, and keeps its decoded rows in the session's memory. Of a larger segment the session keeps the footer; a
    lookup takes one round, with one request for each run of row groups. A query with an empty list of ranges preloads
    the footer, or all of a segment of up to 64 KiB.

    Args:
        session: a session, which reads and writes the objects.
        url: url of the folder.
        single_writer: True promises that only one process writes to the index. If False, a store that cannot refuse to
            overwrite an object raises ConcurrentCommitUnsupported at the first commit.
    """

    _suffix = ".parquet"

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Store a segment, as :meth:`IndexBackend.write_segment` does: in a local temporary file, then in the store."""
        most = self._runtime.options.requests.whole_segment_bytes
        url, in_thread = self._segment_url(name), self._runtime.in_thread
        store, order = await self._writable(), OrderCheck(index_table, safe_url(url))
        with _local_folder(folder) as local:
            spool = SegmentSpool(Path(local, "rows.arrow"), index_table)
            try:
                async for batch in rows:
                    checked = await in_thread(partial(order.take, batch))
                    await in_thread(partial(spool.add, checked))
                path = Path(local, name.replace("/", "_") + self._suffix)
                written = await in_thread(partial(spool.write, path, most))
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, StoreError):
                    raise error.locate(url=safe_url(url)) from None
                hint = LOCAL_FILES if isinstance(error, OSError) else None
                raise StoreError(
                    f"a segment of the index cannot be written: {error}", url=safe_url(url), hint=hint
                ) from error
            finally:
                with suppress(pa.ArrowException, OSError):  # the first error is the one to raise
                    spool.close()
            await store.put_file(url, path, context=self._context(operation, "write"))
        return written

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        digest = segment.extra.get("whole")
        held = None if digest is None else await self._held(operation, segment, digest)
        if held is None and digest is not None and await self._comes_whole(segment, query.ranges):
            held = await self._loaded(segment, digest, partial(self._load_whole, operation, segment))
        if held is not None:
            return held.select(query)
        async with self._opened(operation, segment) as segment_file:
            ordinals = segment_file.groups.touched(query)
            if ordinals is None:
                return None
            names = segment.table.schema.names
            asked = {"key", *(names if query.columns is None else query.columns)}
            if query.at_least is not None:
                asked.add(query.at_least[0])
            table = await segment_file.read(ordinals, [name for name in names if name in asked])
        return SortedRows(table).select(query)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        num_rows = 0
        async with self._opened(operation, segment) as segment_file:
            of_bytes = segment.num_rows * _RUN_BYTES // max(1, segment.size)
            for ordinals in segment_file.groups.runs(max(1, min(_RUN_ROWS, of_bytes))):
                table = await segment_file.read(ordinals, segment.table.schema.names, scan=True)
                for batch in table.to_batches():
                    num_rows += batch.num_rows
                    yield batch
        check_num_rows(segment, num_rows, self._shown(segment))

    async def _comes_whole(self, segment: Segment, ranges: Sequence[KeyRange] | None) -> bool:
        """Return whether a read of ``ranges`` (None: all rows) of a segment that is not in memory fetches and keeps it
        whole, rather than some row groups."""
        if not comes_whole(segment, self._runtime.options.requests.whole_segment_bytes):
            return False
        if segment.size <= _SMALL_BYTES:
            return True
        if ranges is not None and not ranges:
            return False
        with self._typed(segment):
            source = await self._source(segment)
            await source.handle.close()
        return source.held_version() is None

    async def _load_whole(self, operation: Operation | None, segment: Segment) -> SortedRows:
        """Fetch a small segment in one request, and return its decoded rows."""
        url = self._segment_url(segment.name)
        with self._reading(operation, url) as part, self._typed(segment):
            data = await self._fetch(part, url, at_most=segment.size)
            if data is None:
                raise segment_gone(segment, self._shown(segment))
            if len(data) != segment.size or digest_of(data) != segment.extra["whole"]:
                raise segment_corrupt(segment, self._shown(segment), "the content differs from what was written")
            # the rest makes no request
            source = held_source(self._runtime, url, data)
            inner = Operation("read", safe_url(url), (), None)
            segment_file = await SegmentFile.load(source, segment, inner)
            table = await segment_file.read(range(len(segment_file.groups)), segment.table.schema.names, scan=True)
        return SortedRows(table.combine_chunks())

    @asynccontextmanager
    async def _opened(self, operation: Operation | None, segment: Segment) -> AsyncIterator[SegmentFile]:
        with self._reading(operation, self._segment_url(segment.name)) as part, self._typed(segment):
            source = await self._source(segment)
            try:
                yield await SegmentFile.load(source, segment, part)
            finally:
                await source.handle.close()

    async def _source(self, segment: Segment) -> ObjectSource:
        """Open the segment's object, using the sizes in the manifest to fetch its footer; the caller closes it."""
        url, runtime, extra = self._segment_url(segment.name), self._runtime, segment.extra
        tail_hint = safe_url(url)  # its own tail size is known
        most = runtime.options.limits.max_footer_bytes
        if not TRAILER_BYTES < extra["tail"] <= most + TRAILER_BYTES or extra.get("packed", 0) > 2 * extra["tail"]:
            raise CorruptIndexError(
                f"the manifest says that its footer has {extra['tail']} bytes, deflated {extra.get('packed', 0)}; "
                f"LimitOptions.max_footer_bytes is {most}"
            )
        stop = segment.size - extra["tail"]
        packed = PackedTail(stop - extra["packed"], stop, extra["tail"]) if "packed" in extra else None
        source = await open_source(runtime, url, tail_hint=tail_hint, policy=immutable(), packed=packed)
        runtime.tail_sizes.learn(tail_hint, extra["tail"] * 4 // 5)  # a quarter is added
        return source

    @contextmanager
    def _typed(self, segment: Segment) -> Iterator[None]:
        """Convert errors about the segment's file that the block raises into StaleSnapshotError or
        CorruptIndexError."""
        try:
            yield
        except (BucketNotFoundError, ResourceLimitError):
            raise
        except (ObjectNotFoundError, ObjectChangedError) as error:  # no name is used twice
            raise segment_gone(segment, self._shown(segment)) from error
        except FormatError as error:
            raise segment_corrupt(segment, self._shown(segment), error.message) from error
        except KeyError as error:
            raise segment_corrupt(segment, self._shown(segment), f"the manifest lacks its field {error}") from None


def _local_folder(parent: str | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="asyncpq-segment-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        where = parent or tempfile.gettempdir()
        raise StoreError(
            f"no local file can be made to collect rows of the index: {error}", url=where, hint=LOCAL_FILES
        ) from error


MAX_ROWS: Final = 10_000  # of a segment
_MAX_BYTES: Final = 256 << 20  # of a segment: MAX_ROWS rows with the longest keys are 110 MB
_KINDS: Final = frozenset({"files", "bounds", "set", "manifest"})
_SUFFIX = ".json"
_JSON_HINT = "Put the index into a folder: use a url that does not end in .json."


class JsonBackend(ObjectBackend):
    """A small index in the folder ``<url>/``; each segment is one JSON object, with byte strings in base64. ``at`` of
    :meth:`asyncpq.Session.build_index` takes one.

    Segments are fetched whole and kept in the session's memory. Its methods are those of
    :class:`asyncpq.indexing.IndexBackend`.

    Args:
        session, single_writer: as for :class:`asyncpq.indexing.FolderBackend`.
        url: url of the folder, which ends in ``.json``.

    Raises:
        InvalidOptionError: the url does not end in ``.json``.
    """

    _suffix = _SUFFIX

    def __init__(self, session: HasRuntime | Runtime, url: str, *, single_writer: bool = False) -> None:
        if not is_json(url):
            raise InvalidOptionError(
                f"the url of a JSON index must end in {_SUFFIX}, not {safe_url(url)!r}", hint=_JSON_HINT
            )
        super().__init__(session, url, single_writer=single_writer)

    def check(self, kinds: Sequence[str]) -> None:
        refused = sorted(set(kinds) - _KINDS)
        if refused:
            raise InvalidOptionError(
                f"a JSON index cannot have the table {refused[0]!r}, which grows too large for JSON",
                url=self.description,
                hint=_JSON_HINT,
            )

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Write the segment as one JSON object.

        Raises:
            ResourceLimitError: the segment has more than ``MAX_ROWS`` rows.
            StoreError: the rows have other columns than the index table or are not sorted by key, or the store refuses
                the object.
        """
        self.check([index_table.kind])
        url = self._segment_url(name)
        order = OrderCheck(index_table, safe_url(url))
        batches: list[pa.RecordBatch] = []
        async for batch in rows:
            batches.append(order.take(batch))
            if order.num_rows > MAX_ROWS:
                raise ResourceLimitError(
                    f"the table {index_table} has more than {MAX_ROWS:,} rows, the limit of a JSON index",
                    url=safe_url(url),
                    hint=_JSON_HINT,
                )
        data = _encode(pa.Table.from_batches(batches, schema=index_table.schema))
        store = await self._writable()
        await store.put_object(url, data, context=self._context(operation, "write"))
        return len(data), {"digest": digest_of(data)}

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        digest = str(segment.extra.get("digest"))
        rows = await self._held(operation, segment, digest)
        if rows is None:
            rows = await self._loaded(segment, digest, partial(self._load, operation, segment))
        return rows.select(query)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        rows = await self._load(operation, segment)
        for batch in rows.table.to_batches():
            yield batch

    async def _load(self, operation: Operation | None, segment: Segment) -> SortedRows:
        url = self._segment_url(segment.name)
        if segment.size > _MAX_BYTES:
            raise segment_corrupt(
                segment, self._shown(segment), f"it has {segment.size} bytes, the limit of a JSON index is {_MAX_BYTES}"
            )
        with self._reading(operation, url) as part:
            data = await self._fetch(part, url, at_most=segment.size)
        if data is None:
            raise segment_gone(segment, self._shown(segment))
        if digest_of(data) != segment.extra.get("digest"):
            raise segment_corrupt(segment, self._shown(segment), "the content differs from what was written")
        try:
            return SortedRows(_decode(data, segment.table))
        except (pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise segment_corrupt(segment, self._shown(segment), f"the JSON cannot be decoded: {error}") from error


def is_json(url: str) -> bool:
    """Return whether an index at ``url`` is stored as JSON: whether the url ends in ``.json`` or ``.json/``."""
    return url.removesuffix("/").endswith(_SUFFIX)


def _encode(table: pa.Table) -> bytes:
    columns = {
        field.name: [_text(value) for value in table.column(field.name).to_pylist()]
        if pa.types.is_binary(field.type)
        else table.column(field.name).to_pylist()
        for field in table.schema
    }
    return json.dumps(columns, separators=(",", ":")).encode()


def _decode(data: bytes, index_table: IndexTable) -> pa.Table:
    columns = json.loads(data)
    arrays = []
    for field in index_table.schema:
        values = columns[field.name]
        if pa.types.is_binary(field.type):
            values = [None if value is None else base64.b64decode(value, validate=True) for value in values]
        arrays.append(pa.array(values, field.type))
        if arrays[-1].null_count and not field.nullable:
            raise ValueError(f"the column {field.name!r} has nulls")
    return pa.Table.from_arrays(arrays, schema=index_table.schema)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
