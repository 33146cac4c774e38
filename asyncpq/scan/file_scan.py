"""Scan one version of a file: fetch the units of its plan, decode them and count the rows.

Metadata that contradict the pages are noted with the version (``FileVersion.drop``) and no longer used. If a page is
not where its OffsetIndex says, that index is not used any more; the read starts again with whole chunks, unless rows
were delivered already.
"""

from __future__ import annotations

import asyncio
import math
import operator
import time
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.caching.entry_format import ContentKey
from asyncpq.checkpoints import PIECE
from asyncpq.decoding.decoded_size import ExpectedBytes
from asyncpq.decoding.page import Dictionary, LeafArray, PackedPage
from asyncpq.decoding.row_group_reader import Allowance, Matched, QueryShape, RowGroupReader, SharedAllowance
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.objects.object_read import PARTS_A_STEP, FileRead, Parts
from asyncpq.objects.page_indexes import drop_locations, learn_locations, learnt_locations
from asyncpq.objects.read_plan import FetchPlan, Item, RowGroupPiece, RowGroupPlan, Unit, located, whole_piece
from asyncpq.objects.runtime import FEW_CALLS, INLINE_STEPS
from asyncpq.parquet.page_index import OffsetIndex, PageLocationError
from asyncpq.records import NamedTuple
from asyncpq.scan.page_keeper import PageKeeper
from asyncpq.storage.threads import end_tasks, work_owner
from asyncpq.waiting import wait_futures

T = TypeVar("T")

_UNITS_AHEAD = 3  # at most, unless the network brings more in the time of a round trip
_DECODED_UNITS = 4  # so many times the fetched bytes of a unit are decoded ahead, in any case
_NUM_PLANNED = attrgetter("rows.num_rows")
_SETS = 16  # of columns, for each thread that decodes them
_INLINE_PARTS = 64  # pages and dictionaries that the event loop decodes, some 50 microseconds each
_INLINE_GROWTH = 16  # the event loop decodes to at most this many times inline_decode_bytes

Arrived: TypeAlias = list[tuple[ContentKey, Any]]  # the items of a piece, by cache key, in its order


class Fetched(NamedTuple):
    """The fetched data of a list of items (pages, dictionaries, slices of chunks), in the same order."""

    keys: list[ContentKey]  # of the items
    values: list[
        bytes | memoryview | Dictionary | LeafArray | PackedPage
    ]  # bytes, or arrays that the memory cache held decoded
    parts: Parts  # their sources


NOTHING = Fetched([], [], Parts({}))


class _Match(NamedTuple):
    """One row group's share of a fetched unit, after the filter has run. The output columns are not yet decoded."""

    piece: RowGroupPiece
    reader: RowGroupReader
    matched: Matched
    late: list[Item]  # of the output columns, which are fetched only now


class _Decoded(NamedTuple):
    """One row group's share of a fetched unit, completely decoded: its matching rows as a table."""

    match: _Match
    table: pa.Table | None  # its rows; None if none match, or rows are only counted
    pages: int  # that were decoded


class EarlyDecoding(Generic[T]):
    """Starts to decode each of ``pieces`` once all of its items have come: the ``Arrivals`` of one fetch.

    A lookup of a thousand keys in 400 MB, at 4 MB/s a connection, takes 1.92 s, and 2.2 s if decoding begins with the
    last byte.

    ``decode`` returns a coroutine that decodes one piece. ``asked`` is called first, with the parts that no cache had.
    The caller must :meth:`close` it.
    """

    def __init__(
        self,
        pieces: Sequence[RowGroupPiece],
        decode: Callable[[RowGroupPiece, Arrived], Coroutine[Any, Any, T]],
        asked: Callable[[Collection[ContentKey]], None],
    ) -> None:
        self._pieces = pieces
        self._decode = decode
        self._asked = asked
        self._keys: list[Sequence[ContentKey]] = []  # of each piece
        self._place: dict[ContentKey, int] = {}  # the number of the piece, of each item that has not come
        self._left: list[int] = []  # items that have not come, of each piece
        self._values: dict[ContentKey, Any] = {}
        self._tasks: dict[int, asyncio.Task[T]] = {}  # by number of the piece

    def name(self, keys: Sequence[ContentKey]) -> None:
        """Set the cache keys of all items of the pieces, in order."""
        start = 0
        for piece in self._pieces:
            stop = start + len(piece.items)
            self._keys.append(keys[start:stop])
            start = stop

    @property
    def has_begun(self) -> bool:
        """Whether parts were fetched: if all came from caches, nothing is decoded early."""
        return bool(self._left)

    def begin(self, missing: Collection[ContentKey]) -> None:
        """Prepare for the parts of the pieces, of which ``missing`` are fetched."""
        self._asked(missing)
        self._left = [len(keys) for keys in self._keys]
        for number, keys in enumerate(self._keys):
            self._place.update(dict.fromkeys(keys, number))
            if not keys:
                self._start(number)

    def landed(self, parts: Mapping[ContentKey, Any]) -> None:
        """Take ``parts``, and start to decode the pieces that they complete."""
        for key, value in parts.items():
            number = self._place.pop(key, None)
            if number is not None:
                self._values[key] = value
                self._left[number] -= 1
                if not self._left[number]:
                    self._start(number)

    def _start(self, number: int) -> None:
        arrived = [(key, self._values.pop(key)) for key in self._keys[number]]
        work = self._decode(self._pieces[number], arrived)
        self._tasks[number] = asyncio.get_running_loop().create_task(work)

    async def results(self) -> list[T]:
        """Wait until all pieces are decoded, and return the results in their order. If some fail, raise the error of
        the first of these in order."""
        tasks = [self._tasks[number] for number in range(len(self._pieces))]
        await wait_futures(tasks)
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """Stop the decoding that still runs, and wait until it has ended; begin no other. Idempotent."""
        self._place.clear()  # a fetch that ended just before a failure or cancellation may still tell of its parts
        tasks = list(self._tasks.values())
        await end_tasks(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieved, else asyncio would log it
        self._tasks.clear()


class FileScan:
    """Fetches and decodes the units of a plan, which ``read`` gets from the object. With ``rows_only``, matching rows
    are counted, and no output columns are decoded."""

    def __init__(self, read: FileRead, plan: FetchPlan, shape: QueryShape, *, rows_only: bool = False) -> None:
        self.read = read
        self.plan = plan
        self.rows_matched: int = plan.rows_known  # rows that came out so far
        self._rows_seen = 0
        self._shape = shape
        self._rows_only = rows_only
        self._keeper = PageKeeper(read, shape, rows_only=rows_only)
        self._readers: dict[int, RowGroupReader] = {}
        self._future_items: dict[int, list[Item]] = {}
        self._whole = False
        # of so many bytes, pages that reads decode at once are decoded once
        limits = read.source.runtime.options.limits
        self._shared_bytes: float = limits.inline_decode_bytes if self._keeper.keeps_decoded else math.inf
        self._kept_keys: list[ContentKey] = []  # of pages that other reads kept meanwhile

    async def units(self, unit_bytes: int | None) -> list[Unit]:
        """Divide the plan into units of about ``unit_bytes`` bytes; None for one unit. Call this once, before any
        fetch."""
        self._whole = unit_bytes is None
        if self._keeper.may_stream:
            self._keeper.stream_chunks(self.plan.row_groups)
        cut = partial(self.plan.units, None) if unit_bytes is None else partial(self._cut, unit_bytes)
        num_chunks = 0
        for group in self.plan.row_groups:
            num_chunks += len(group.columns) or 1
        return cut() if num_chunks <= INLINE_STEPS else await self.read.source.runtime.in_thread(cut)

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        """Return how many bytes of units are to be under way, or wait to be decoded: as many as keep server and
        processors busy, since more would only take memory.

        Decoding takes ``pace_bytes`` in the time of a fetch; None if that is not known yet. A unit with late columns
        waits for a second round, and few of its rows are left then.
        """
        source = self.read.source
        limits = source.runtime.options.limits
        most = max(_UNITS_AHEAD * limits.unit_bytes, source.prices().round_bytes)
        if self.plan.late:
            return max(most, limits.in_flight_bytes)
        return most if pace_bytes is None else min(most, pace_bytes + limits.unit_bytes)

    def may_decode(self, unit: Unit, others: int, num_bytes: float) -> bool:
        """Return whether ``unit`` is to be decoded while ``others`` are, or wait for the consumer. Together they have
        about ``num_bytes`` bytes of rows.

        If several threads decode one unit, a second one would only take memory.
        """
        limits = self.read.source.runtime.options.limits
        if self.plan.late or num_bytes <= _DECODED_UNITS * limits.unit_bytes:
            return True
        threads = max(1, limits.decode_threads)
        shared = len(self._shape.schema) > 1 or len(unit.pieces) >= threads
        return others < (1 if shared else threads)

    def _cut(self, unit_bytes: int) -> list[Unit]:
        units = self.plan.units(unit_bytes)
        if len(units) > 1:
            for unit in units:
                for piece in unit.pieces:
                    self._future_items.setdefault(piece.row_group.ordinal, []).extend(piece.items)
        return units

    async def fetch(
        self, items: Sequence[Item], early: EarlyDecoding[_Decoded] | None = None, *, late: bool = False
    ) -> Fetched:
        """Fetch ``items`` from caches and store. All cache misses are requested in one round: the read's second round
        for data if ``late``, else its first. ``early`` decodes them as they come."""
        read = self.read
        make = partial(read.version.keys, items)
        few = len(items) <= INLINE_STEPS * PARTS_A_STEP
        keys = make() if few else await read.source.runtime.in_thread(make)
        if early is not None:
            early.name(keys)
        round_, decoded = read.round + late, self._keeper.use_decoded
        parts = await read.fetch(keys, "data", round_, decoded=decoded, arrivals=early)
        self._keeper.new.update(parts.asked)
        if not few:
            await asyncio.sleep(0)  # other tasks have a turn
        return Fetched(keys, list(map(parts.data.__getitem__, keys)), parts)

    async def fetch_unit(self, unit: Unit) -> Fetched:
        """Fetch what ``unit`` needs, without columns that are fetched late. The version is known to be current then."""
        fetched = await self.fetch([item for piece in unit.pieces for item in piece.items])
        if not self.read.current:  # all of it was cached: the store is asked now, not when it is this unit's turn
            await self.read.ensure_current()
        return fetched

    async def run(self, unit: Unit) -> list[pa.Table]:
        """Fetch and decode one unit; return its matching rows, one table for each row group. Units of one row group
        must be run in order."""
        if self._rows_only and self._shape.filter is None:  # all rows of the file, as its footer counts them
            rows = sum([group.rows.num_rows for group in self.plan.row_groups])
            self._rows_seen += rows
            self.rows_matched += rows
            self.read.metrics.rows_scanned += rows
            return []
        (first, *others) = unit.pieces
        if not others:
            return await self.decode(unit, await self.fetch(first.items))
        items = [item for piece in unit.pieces for item in piece.items]
        early = self._early(unit)
        try:
            fetched = await self.fetch(items, early)
            return await self.decode(unit, fetched, early)
        finally:
            if early is not None:
                await early.close()

    def _early(self, unit: Unit) -> EarlyDecoding[_Decoded] | None:
        """Return what decodes the pieces of ``unit`` while it is fetched; None if they are decoded together."""
        limits = self.read.source.runtime.options.limits
        threads = limits.decode_threads
        if self.plan.late or not self._whole or not 0 < threads <= len(unit.pieces):
            return None
        if unit.num_bytes < 2 * limits.inline_decode_bytes:
            return None

        def decode(piece: RowGroupPiece, arrived: Arrived) -> Coroutine[Any, Any, _Decoded]:
            allowance = SharedAllowance(self._shape.limits, threads)
            return self._decode_early(piece, arrived, allowance)

        return EarlyDecoding(unit.pieces, decode, self._keeper.new.update)

    async def _decode_early(self, piece: RowGroupPiece, arrived: Arrived, allowance: Allowance) -> _Decoded:
        """Decode a piece in a thread, while others of its unit are fetched."""
        runtime, keys, values = self.read.source.runtime, [key for key, _ in arrived], [value for _, value in arrived]
        unit, fetched, claimed = await self._after_others(Unit((piece,), 0), Fetched(keys, values, NOTHING.parts))
        (piece,), arrived = unit.pieces, [*zip(fetched.keys, fetched.values, strict=True)]
        with runtime.claims.claim(claimed):
            return await runtime.in_thread(lambda: self._finish(self._match(piece, arrived, allowance), {}))

    async def decode(
        self, unit: Unit, fetched: Fetched, early: EarlyDecoding[_Decoded] | None = None
    ) -> list[pa.Table]:
        """Return the matching rows of a fetched unit, one table for each of its row groups.

        If the cache policy requires validation and no response has validated the version, a validating request runs
        beside the decoding, and the rows are returned after its response. Raises ObjectChangedError if the object has
        another version now. ``early`` has begun to decode it, if parts of it were fetched.
        """
        read = self.read
        validation = None if read.current else read.start_validation()
        started = time.perf_counter()
        try:
            tables = await self._decode(unit, fetched, early)
        except AsyncpqError as error:
            self._discard(error, fetched)
            raise error.locate(url=read.version.url) from error.__cause__
        finally:
            metrics = read.metrics
            metrics.decode_s += time.perf_counter() - started
            if metrics.trace is not None:
                seconds, now = time.perf_counter() - started, time.monotonic()
                metrics.trace.decoded.append((now - seconds, now))
            if validation is not None:
                await read.validation_ended(validation)
        read.current = True
        if read.tiers is not None:
            read.share(fetched.parts, scan=read.scan)
            self._keeper.share_proven()
        return tables

    def _discard(self, error: AsyncpqError, fetched: Fetched) -> None:
        """After a decoding error, drop the parts that may be damaged from the caches, so that the next read fetches
        them again."""
        if isinstance(error, PageLocationError):
            error.dropped = self._drop_locations(error.column)
            if error.dropped:
                error.hint = "The column's page index is not used any more: ask again."
        if isinstance(error, CorruptFileError):
            self.read.discard([*fetched.keys, *self._kept_keys, *self._keeper.unproven_keys()])

    def _drop_locations(self, column: str | None) -> bool:
        """Stop using the OffsetIndexes of a column; return whether this scan used any."""
        schema = self.read.version.metadata.schema
        found = [
            (group.ordinal, planned.chunk.leaf)
            for group in self.plan.row_groups
            for planned in group.columns
            if planned.offsets is not None
            and column in (schema.leaves[planned.chunk.leaf].dotted, schema.fields[planned.field].name)
        ]
        for row_group, leaf in found:
            drop_locations(self.read, row_group, leaf)
        return bool(found)

    async def _decode(self, unit: Unit, fetched: Fetched, early: EarlyDecoding[_Decoded] | None) -> list[pa.Table]:
        if early is not None and early.has_begun:
            decoded = await early.results()
        else:
            shared = unit.num_bytes >= self._shared_bytes and len(self.read.source.runtime.calls) > 1
            decoded = await (self._decode_once if shared else self._decode_fetched)(unit, fetched)
        tables: list[pa.Table] = []
        for (_, _, matched, _), table, pages in decoded:
            self._rows_seen += matched.seen
            self.rows_matched += matched.num_rows
            self.read.metrics.rows_scanned += matched.seen
            self.read.metrics.pages_read += pages
            if table is not None:
                tables.append(table)
        if (trace := self.read.metrics.trace) is not None:
            for (piece, _, matched, _), _, _ in decoded:
                trace.matched.append((self.read.version.url, piece.row_group.ordinal, list(matched.matching_rows())))
        if self.read.version.drops or self.read.version.metadata.dropped:
            for piece in unit.pieces:
                leaves = [column.chunk.leaf for column in piece.row_group.columns]
                self.read.metrics.fall_back_all(self.read.version.dropped(leaves))
        return tables

    async def _decode_once(self, unit: Unit, fetched: Fetched) -> list[_Decoded]:
        """Decode a unit, all of whose parts have come, once for all reads that need its pages at once."""
        unit, fetched, claimed = await self._after_others(unit, fetched)
        with self.read.source.runtime.claims.claim(claimed):
            return await self._decode_fetched(unit, fetched)

    async def _after_others(self, unit: Unit, fetched: Fetched) -> tuple[Unit, Fetched, list[Hashable]]:
        """Wait for other reads that decode parts of the unit now, and take what they kept in memory in place of its
        parts. Return both, and the claims (:class:`Claims`) on the parts that are left to decode.

        64 lookups at once in a chunk of a million rows without a page index took 35 ms of CPU each. They wait for the
        first one, which finds the pages, and for the second one, which decodes them, and take 6 ms each.
        """
        claimed: list[Hashable] = []
        runtime = self.read.source.runtime
        if _num_bytes(fetched) < self._shared_bytes:
            return unit, fetched, claimed
        if any(not piece.last or piece.row_group.ordinal in self._readers for piece in unit.pieces):
            return unit, fetched, claimed  # parts of a row group are decoded already
        while claimed := self._to_decode(unit, fetched):
            if not await runtime.claims.wait(claimed):
                break
            if len(runtime.calls) > FEW_CALLS:
                await runtime.turns.turn()
            kept = self._kept_meanwhile(unit, fetched)
            if kept is None:
                break
            unit, fetched = kept
        return unit, fetched, claimed

    def _to_decode(self, unit: Unit, fetched: Fetched) -> list[Hashable]:
        """Return the claims on the parts of filtered row groups that are not yet decoded. Owners wait for no others."""
        owner, claims = work_owner.get(), list[Hashable]()
        arrived = zip(fetched.keys, fetched.values, strict=True)
        for piece in unit.pieces:
            for key, value in islice(arrived, len(piece.items)):
                if piece.row_group.filtered and isinstance(value, (bytes, memoryview)):
                    claims.append((owner, key))
        return claims

    def _kept_meanwhile(self, unit: Unit, fetched: Fetched) -> tuple[Unit, Fetched] | None:
        """Return the unit, and what was fetched for it, with the pages that memory has now in place of chunks, and
        with decoded pages in place of others. None if memory has none."""
        read, pieces, better = self.read, list[RowGroupPiece](), False
        keys, values = list[ContentKey](), list[Any]()
        arrived = zip(fetched.keys, fetched.values, strict=True)
        for piece in unit.pieces:
            group, own = piece.row_group, [*islice(arrived, len(piece.items))]
            offsets: dict[int, OffsetIndex] = {}
            for position, column in enumerate(group.columns):
                if column.offsets is None:
                    learnt = learnt_locations(read, group.ordinal, column.chunk.leaf)
                    if learnt is not None:
                        offsets[position] = learnt
            plan = located(group, offsets) if offsets else group
            paged = whole_piece(plan, self.plan.first_columns(plan)) if offsets else piece
            before = dict(own)
            wanted = read.version.keys(paged.items)
            known = read.source.runtime.memory.get_many(wanted, scan=read.probation)
            found = [before.get(key) if value is None else value for key, value in zip(wanted, known, strict=True)]
            if any(value is None for value in found):
                paged, wanted, found = piece, *map(list, zip(*own, strict=True))
            else:
                better |= bool(offsets) or any(map(operator.is_not, found, before.values()))
            pieces.append(paged)
            keys += wanted
            values += found
        if not better:
            return None
        self._kept_keys += keys
        self._keeper.new.difference_update(fetched.keys)  # another read had them
        return Unit(tuple(pieces), unit.num_bytes), Fetched(keys, values, fetched.parts)

    async def _decode_fetched(self, unit: Unit, fetched: Fetched) -> list[_Decoded]:
        """Decode a unit all of whose parts have come: on the event loop if they are few, else in threads. Late columns
        are fetched in between."""
        runtime, late = self.read.source.runtime, self.plan.late
        limits = runtime.options.limits
        many = len(fetched.keys) > INLINE_STEPS * PARTS_A_STEP
        size = _num_bytes(fetched) if not many else await runtime.in_thread(partial(_num_bytes, fetched))
        threads = 1 if size < 2 * limits.inline_decode_bytes else max(1, limits.decode_threads)
        few = size < limits.inline_decode_bytes and max(len(fetched.keys), len(unit.pieces)) <= _INLINE_PARTS
        room = limits.inline_decode_bytes * _INLINE_GROWTH
        if self._shape.filter is not None:
            room //= self._shape.filter.cost
            few = few and self._shape.filter.num_hashed <= PIECE
        if late or threads > 1:
            # each piece in one step, if these are enough for all threads; else its columns concurrently
            finish = not late and (len(unit.pieces) >= threads or len(self._shape.schema) <= 1)
            make_works = partial(self._match_works, unit, fetched, threads)
            matching = await runtime.off_loop(make_works, len(fetched.keys) // PARTS_A_STEP)
            works = [partial(self._step, work, finish) for work in matching]
            few = few and self._expected_bytes(unit, fetched).size < room
            steps = [work() for work in works] if few else await runtime.in_threads(works, threads)
            matches = [step for step in steps if isinstance(step, _Match)]
            rest = await self._fetch_late([item for match in matches for item in match.late])
            try:
                small = few and self._is_few(matches, rest, room)
                emitted = iter(await self._emit_all(matches, rest, threads, small=small) if matches else ())
            except AsyncpqError as error:
                self._discard(error, rest)
                raise
            self.read.share(rest.parts, scan=self.read.scan)
            return [next(emitted) if isinstance(step, _Match) else step for step in steps]
        if few:
            if len(runtime.calls) > FEW_CALLS:
                await runtime.turns.turn()
            return await self._decode_few(unit, fetched, room)
        return await runtime.in_thread(lambda: self._decode_all(unit, fetched))

    async def _fetch_late(self, items: Sequence[Item]) -> Fetched:
        """Fetch ``items``, the late columns' pages for the rows that match the filter."""
        if not items:
            return NOTHING
        asked = time.perf_counter()
        rest = await self.fetch(items, late=True)
        self.read.metrics.decode_s -= time.perf_counter() - asked  # that was no decoding
        return rest

    def _is_few(self, matches: Sequence[_Match], rest: Fetched, room: int) -> bool:
        """Return whether ``rest``, the fetched late columns, can be decoded on the event loop: it is small, and decodes
        to fewer than ``room`` bytes."""
        limit = self.read.source.runtime.options.limits.inline_decode_bytes
        if len(rest.keys) > _INLINE_PARTS or _num_bytes(rest) >= limit:
            return False
        values = iter(rest.values)
        for match in matches:
            expected = match.reader.estimate.of(match.late, values)
            room -= expected.size + expected.per_row * match.matched.num_rows
        return room > 0

    async def _emit_all(self, matches: Sequence[_Match], rest: Fetched, threads: int, *, small: bool) -> list[_Decoded]:
        """Decode the output's columns for all matches, in up to ``threads`` threads; ``rest`` are the fetched late
        columns. If ``small``, one thread's work is done on the event loop."""
        runtime = self.read.source.runtime
        arrived = zip(rest.keys, rest.values, strict=True)
        works: list[Callable[[], object]] = [
            partial(self._keeper.add, match.reader, match.late, [*islice(arrived, len(match.late))])
            for match in matches
            if match.late
        ]
        columns = [dict[int, pa.Array]() for _ in matches]

        def by_columns() -> list[Callable[[], object]]:
            return [
                partial(_decode_set, match, numbers, decoded)
                for match, decoded in zip(matches, columns, strict=True)
                for numbers in column_sets(match.piece.row_group, self._shape, _SETS * threads)
            ]

        if threads > 1:
            if works:
                await runtime.in_threads(works, threads)
            num_columns = sum([len(match.piece.row_group.columns) for match in matches])
            await runtime.in_threads(await runtime.off_loop(by_columns, num_columns // PARTS_A_STEP), threads)
            works = []

        def finish() -> list[_Decoded]:
            for work in works:
                work()
            return list(map(self._finish, matches, columns))

        return await runtime.in_thread(finish, small=small)

    async def _decode_few(self, unit: Unit, fetched: Fetched, room: int) -> list[_Decoded]:
        """Decode a unit of few bytes on the event loop, unless it may decode to more than ``room`` bytes.

        If it exceeds ``room`` only when the filter accepts many rows, the event loop runs the filter, and a thread
        decodes the other columns of that many rows. (Small pages are slow in a thread: after each it waits for Python's
        lock, up to 5 ms while the event loop is busy. Of 64 lookups at once, those that met a new dictionary took 350
        ms to decode.)
        """
        expected, runtime = self._expected_bytes(unit, fetched), self.read.source.runtime
        if expected.size + expected.spread < room:
            return self._decode_all(unit, fetched)
        if expected.size >= room:
            return await runtime.in_thread(lambda: self._decode_all(unit, fetched))
        matches = [work() for work in self._match_works(unit, fetched, 1)]
        spread = expected.per_row * sum([match.matched.num_rows for match in matches])
        small = expected.size + spread < room
        return await runtime.in_thread(lambda: [self._finish(match, {}) for match in matches], small=small)

    def _expected_bytes(self, unit: Unit, fetched: Fetched) -> ExpectedBytes:
        """Return upper bounds of the bytes that a fetched unit decodes to."""
        values = iter(fetched.values)
        if len(unit.pieces) == 1:
            (piece,) = unit.pieces
            return self._reader(piece.row_group).estimate.of(piece.items, values)
        bounds = [self._reader(piece.row_group).estimate.of(piece.items, values) for piece in unit.pieces]
        return ExpectedBytes(*map(sum, zip(*bounds, strict=True)))

    @property
    def progress(self) -> tuple[int, int]:
        """The number of decoded rows, and of all rows that are planned to be decoded."""
        return self._rows_seen, sum(map(_NUM_PLANNED, self.plan.row_groups))

    def check_complete(self) -> None:
        """After the last unit, raise CorruptFileError if the number of decoded rows is not the planned one."""
        planned = sum(map(_NUM_PLANNED, self.plan.row_groups))
        if self._rows_seen != planned:
            raise CorruptFileError(
                f"the file's pages have {self._rows_seen} rows, but its metadata say {planned}",
                url=self.read.version.url,
            )

    # -- in a thread ------------------------------------------------------------------------------

    def _decode_all(self, unit: Unit, fetched: Fetched) -> list[_Decoded]:
        if len(unit.pieces) == 1:  # as of most lookups
            (piece,) = unit.pieces
            arrived = zip(fetched.keys, fetched.values, strict=True)
            return [self._finish(self._match(piece, arrived, Allowance(self._shape.limits)), {})]
        matches = [work() for work in self._match_works(unit, fetched, 1)]
        return [self._finish(match, {}) for match in matches]

    def _match_works(self, unit: Unit, fetched: Fetched, threads: int) -> list[Callable[[], _Match]]:
        """Return one function for each row group's share of the unit. It passes the fetched items to the row group's
        reader, and runs the filter."""
        works: list[Callable[[], _Match]] = []
        arrived = zip(fetched.keys, fetched.values, strict=True)
        limits = self._shape.limits
        allowance: Allowance | None = None
        for piece in unit.pieces:
            # a small read in one unit: each of its row groups has the full allowance
            if allowance is None or self._whole:
                allowance = Allowance(limits) if threads == 1 else SharedAllowance(limits, threads)
            works.append(partial(self._match, piece, [*islice(arrived, len(piece.items))], allowance))
        return works

    def _match(
        self, piece: RowGroupPiece, arrived: Iterable[tuple[ContentKey, object]], allowance: Allowance
    ) -> _Match:
        plan = piece.row_group
        reader = self._readers.get(plan.ordinal) or self._reader(plan)
        self._keeper.add(reader, piece.items, arrived)
        first = self.plan.first_columns(plan) if self.plan.late else range(len(plan.columns))
        matched = reader.match(first, allowance)
        return _Match(piece, reader, matched, reader.late_items(matched, first) if self.plan.late else [])

    def _step(self, work: Callable[[], _Match], finish: bool) -> _Match | _Decoded:
        """Run ``work``, which filters rows. With ``finish``, or if no columns are left to decode, also make the
        table."""
        match = work()
        return self._finish(match, {}) if finish or self._rows_only or not match.matched.num_rows else match

    def _finish(self, match: _Match, columns: Mapping[int, pa.Array]) -> _Decoded:
        """Make the table of a match. ``columns`` are its decoded columns by position; if empty, they are decoded
        here."""
        piece, reader, matched, _ = match
        table: pa.Table | None = None
        if matched.num_rows and not self._rows_only:
            table = reader.emit(matched, [columns[number] for number in range(len(columns))] if columns else None)
        else:
            reader.skip(matched)
        if self._keeper.unproven:
            self._keeper.prove(piece.row_group.ordinal, matched.stop_row)
        pages = reader.take_pages_decoded()
        if piece.last:
            for leaf, index in reader.locations() if reader.sources.streamed else ():
                learn_locations(self.read, piece.row_group.ordinal, leaf, index)
            self._readers.pop(piece.row_group.ordinal, None)
            if len(piece.items) > _INLINE_PARTS:
                reader.close()
        return _Decoded(match, table, pages)

    def _reader(self, plan: RowGroupPlan) -> RowGroupReader:
        reader = self._readers.get(plan.ordinal)
        if reader is None:
            reader = self._readers[plan.ordinal] = self._keeper.reader(plan)
            if self.read.metrics.trace is not None:
                reader.filtered = self.read.metrics.trace.filtered
            if self._future_items:
                reader.expect(self._future_items.pop(plan.ordinal, ()))
        return reader


def _num_bytes(fetched: Fetched) -> int:
    """Return the number of fetched bytes that are not yet decoded."""
    size = 0
    for value in fetched.values:
        if isinstance(value, (bytes, memoryview)):
            size += len(value)
    return size


def column_sets(plan: RowGroupPlan, shape: QueryShape, most: int) -> list[list[int]]:
    """Divide the output's columns, by position, into at most ``most`` sets that threads may decode at once.

    Those that take longest come first, so that no thread waits long for the last one. A column of lists is decoded with
    the first unit of its row group: in a scan of all columns, one thread worked alone for 30 % of the time, so ordered
    for 17 %.
    """
    by_field: dict[int | None, list[int]] = {}
    projections = shape.output if shape.view is None else [column.projection for column in shape.view.output]
    for number, projection in enumerate(projections):
        by_field.setdefault(None if projection is None else projection.field, []).append(number)
    weights: dict[int | None, tuple[bool, int]] = {}  # whether it has lists, which are decoded whole; its bytes
    for column in plan.columns:
        repeated, size = weights.get(column.field, (False, 0))
        weights[column.field] = (repeated or column.repeated, size + column.num_bytes)
    fields = sorted(by_field, key=lambda field: weights.get(field, (False, 0)), reverse=True)
    size = max(1, -(-len(fields) // most))
    return [
        [number for field in fields[start : start + size] for number in by_field[field]]
        for start in range(0, len(fields), size)
    ]


def _decode_set(match: _Match, numbers: Sequence[int], columns: dict[int, pa.Array]) -> None:
    """Decode the output's columns at the positions ``numbers`` into ``columns``."""
    columns.update(zip(numbers, match.reader.columns(match.matched, numbers), strict=True))
