"""Indexes as Parquet files in a folder of an object store or disk, read by this project's own reader."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncpq.errors import (
    BucketNotFoundError,
    FormatError,
    ObjectChangedError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreError,
)
from asyncpq.events import Operation
from asyncpq.fetching.opening import held_source, open_source
from asyncpq.fetching.source import ObjectSource, PackedTail
from asyncpq.indexing.model import KeyRange, Part, Segment, whole_bytes
from asyncpq.indexing.places.objects import ObjectPlace
from asyncpq.indexing.places.segment_file import Spool, digest_of
from asyncpq.indexing.places.segment_reader import SegmentFile
from asyncpq.indexing.places.sorted_rows import InOrder, SortedRows
from asyncpq.metrics import ReadMetrics
from asyncpq.options import immutable
from asyncpq.storage.urls import safe_url

_SMALL_BYTES = 64 * 1024  # of a segment: all of it costs no more than a piece
_RUN_ROWS = 1 << 18  # that are read at once where all are wanted
_RUN_BYTES = 8 << 20  # and of the file, roughly: rows with payloads are large
_HINT = "BuildOptions.folder names another folder for local files."


class FolderPlace(ObjectPlace):
    """An :class:`asyncpq.indexing.model.Place`; see :class:`asyncpq.indexing.places.objects.ObjectPlace`.

    Segments of at most ``RequestOptions.whole_segment_bytes`` are fetched whole when they are first asked for, in one
    request, and kept decoded in the session's memory. Of larger ones the footer is; a question takes one round, and a
    request for each run of row groups that it touches. An empty list of ranges brings what is kept, and nothing else:
    of segments above 64 KiB the footer alone, by which they are read from then on.
    """

    _suffix = ".parquet"

    def check(self, kinds: Sequence[str]) -> None:
        """Every kind may be kept in a folder."""

    # -- writing ----------------------------------------------------------------------------------

    async def write_segment(
        self,
        name: str,
        part: Part,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """See :class:`asyncpq.indexing.model.Place`. Goes through local files."""
        url, in_thread = self._segment_url(name), self._resources.in_thread
        store, order = await self._writable(), InOrder(part, safe_url(url))
        with _local_folder(folder) as local:
            spool = Spool(Path(local, "rows.arrow"), part)
            try:
                async for batch in rows:
                    await in_thread(partial(_add, spool, order, batch))
                path = Path(local, name.replace("/", "_") + self._suffix)
                written = await in_thread(partial(spool.write, path, self._whole_bytes(part)))
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, StoreError):
                    raise error.locate(url=safe_url(url)) from None
                hint = _HINT if isinstance(error, OSError) else None
                raise StoreError(f"a segment cannot be written: {error}", url=safe_url(url), hint=hint) from error
            finally:
                with suppress(pa.ArrowException, OSError):  # what went wrong first is what counts
                    spool.close()
            await store.put_file(url, path, context=self._context(operation, "write"))
        return written.size, written.extra

    # -- reading ----------------------------------------------------------------------------------

    async def read_segment(
        self,
        segment: Segment,
        ranges: Sequence[KeyRange] | None,
        columns: Sequence[str] | None = None,
        *,
        at_least: tuple[str, bytes] | None = None,
        limit: int | None = None,
        operation: Operation | None = None,
    ) -> pa.Table | None:
        """See :class:`asyncpq.indexing.model.Place`."""
        if await self._comes_whole(segment, ranges):
            rows = await self._whole(operation, segment)
            return rows.select(ranges, columns, at_least=at_least, limit=limit)
        async with self._opened(operation, segment) as segment_file:
            ordinals = segment_file.groups.touched(ranges, at_least)
            if limit is not None and at_least is None and segment_file.groups.least_rows(ranges, ordinals) > limit:
                return None
            schema = segment.part.schema
            wanted = schema.names if columns is None else [name for name in schema.names if name in columns]
            asked = dict.fromkeys(["key", *wanted, *([at_least[0]] if at_least is not None else [])])
            table = await segment_file.read(ordinals, [name for name in schema.names if name in asked])
        rows = SortedRows(table)
        return rows.select(ranges, schema.names if columns is None else columns, at_least=at_least, limit=limit)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """See :class:`asyncpq.indexing.model.Place`."""
        num_rows = 0
        async with self._opened(operation, segment) as segment_file:
            of_bytes = segment.num_rows * _RUN_BYTES // max(1, segment.size)
            for ordinals in segment_file.groups.runs(max(1, min(_RUN_ROWS, of_bytes))):
                table = await segment_file.read(ordinals, segment.part.schema.names, scan=True)
                for batch in table.to_batches():
                    num_rows += batch.num_rows
                    yield batch
        if num_rows != segment.num_rows:
            raise self._corrupt(segment, f"it has {num_rows} rows, where {segment.num_rows} were written")

    def _whole_bytes(self, part: Part) -> int:
        return whole_bytes(part, self._resources.options.requests.whole_segment_bytes)

    async def _comes_whole(self, segment: Segment, ranges: Sequence[KeyRange] | None) -> bool:
        """Whether a question takes all of the segment, which is then kept, rather than some of its row groups."""
        if "whole" not in segment.extra or segment.size > self._whole_bytes(segment.part):
            return False
        if segment.size <= _SMALL_BYTES or await self._held(segment, segment.extra["whole"]) is not None:
            return True
        if ranges is not None and not ranges:
            return False
        with self._typed(segment):
            source = await self._source(segment)
            await source.handle.close()
        return source.held_version() is None

    async def _whole(self, operation: Operation | None, segment: Segment) -> SortedRows:
        """A small segment, decoded; in one request, once."""
        return await self._kept(
            operation, segment, segment.extra["whole"], partial(self._load_whole, operation, segment)
        )

    async def _load_whole(self, operation: Operation | None, segment: Segment) -> SortedRows:
        url = self._segment_url(segment.name)
        with self._reading(operation, url) as part, self._typed(segment):
            data = await self._fetch(part, url, at_most=segment.size)
            if data is None:
                raise self._gone(segment)
            if len(data) != segment.size or digest_of(data) != segment.extra["whole"]:
                raise self._corrupt(segment, "it is not what was written")
            # nothing of what follows is a request
            source = held_source(self._resources, url, data)
            inner = Operation("read", safe_url(url), ReadMetrics(), None)
            segment_file = await SegmentFile.load(source, segment, inner)
            table = await segment_file.read(range(len(segment_file.groups)), segment.part.schema.names, scan=True)
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
        """The segment's file; its caller closes the handle."""
        url, resources, extra = self._segment_url(segment.name), self._resources, segment.extra
        neighbours = safe_url(url)  # of its own: how long its tail is, is known
        stop = segment.size - extra["tail"]
        packed = PackedTail(stop - extra["packed"], stop, extra["tail"]) if "packed" in extra else None
        source = await open_source(resources, url, neighbours=neighbours, policy=immutable(), packed=packed)
        resources.tail_sizes.learn(neighbours, extra["tail"] * 4 // 5)  # a quarter is added
        return source

    # -- errors -----------------------------------------------------------------------------------

    @contextmanager
    def _typed(self, segment: Segment) -> Iterator[None]:
        """What went wrong with a file says what is wrong with the index."""
        try:
            yield
        except (BucketNotFoundError, ResourceLimitError):
            raise
        except (ObjectNotFoundError, ObjectChangedError) as error:  # no name is used twice
            raise self._gone(segment) from error
        except FormatError as error:
            raise self._corrupt(segment, error.message) from error
        except KeyError as error:
            raise self._corrupt(segment, f"the manifest does not say its {error}") from None


def _local_folder(parent: str | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="asyncpq-segment-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        where = parent or tempfile.gettempdir()
        raise StoreError(f"a segment needs a local file: {error}", url=where, hint=_HINT) from error


def _add(spool: Spool, order: InOrder, batch: pa.RecordBatch) -> None:
    spool.add(order.take(batch))
