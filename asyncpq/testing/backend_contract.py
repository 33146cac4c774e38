"""The contract of an index backend (:class:`asyncpq.indexing.index_model.IndexBackend`), as checks for any test runner.

Give each check a function that opens your backend, on a new, empty storage::

    @pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)
    async def test_backend(check, tmp_path):
        async with asyncpq.Session() as session:
            await check(lambda: MyBackend(tmp_path))

Each call opens another handle on the same storage, as another process would; the checks close the handles. A failed
check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from asyncpq.errors import CorruptIndexError, InvalidOptionError, StaleSnapshotError, StoreError
from asyncpq.indexing.index_model import (
    AFTER_ALL,
    TABLE_SCHEMAS,
    UNKNOWN_KEY,
    VALUE_TAG,
    IndexBackend,
    IndexTable,
    KeyRange,
    Segment,
    SegmentQuery,
)
from asyncpq.testing.assertions import checks_of, equal

#: Opens another handle on the same storage.
BackendMaker = Callable[[], IndexBackend]

_BATCH_ROWS = 300


async def check_kinds(make: BackendMaker) -> None:
    """Check that segments of each supported kind can be read whole and by ranges, also through another handle."""
    numbers = random.Random(1)
    async with _opened(make) as backend, _opened(make) as other:
        kinds = taken(backend)
        assert "files" in kinds, "the backend must take the kind that names the files"
        for kind in kinds:
            rows = random_rows(kind, 1000, numbers)
            segment = await write(backend, f"a-{kind}", kind, rows)
            for reader in (backend, other):
                await _compare(reader, segment, rows, numbers)


async def check_refused_kinds(make: BackendMaker) -> None:
    """Check that the error for an unsupported kind names the kind and has a hint."""
    async with _opened(make) as backend:
        for kind in TABLE_SCHEMAS.keys() - set(taken(backend)):
            with _raises(InvalidOptionError, f"the kind {kind!r}") as errors:
                backend.check(["files", kind])
            assert kind in str(errors[0]), f"{kind!r} is not named"
            assert errors[0].hint, "the error has no hint"


async def check_few_rows(make: BackendMaker) -> None:
    """Check that small segments can be read: no rows, one row, one key, unknown keys only, long values."""
    numbers = random.Random(2)
    async with _opened(make) as backend:
        kind = "bounds"
        row = {"key": b"\x01a", "max": b"\x01b", "file": 3, "group": -1, "values": None}
        for name, some in {
            "none": [],
            "one": [row],
            "same": [row] * 700,
            "unknown": [row | {"key": UNKNOWN_KEY}] * 5,
            "long": [row | {"key": b"\x01" + b"\xff" * size, "max": b"\xff" * size} for size in (0, 1, 90, 500, 501)],
        }.items():
            rows = pa.Table.from_pylist(some, schema=TABLE_SCHEMAS[kind])
            await _compare(backend, await write(backend, name, kind, rows), rows, numbers)


async def check_large(make: BackendMaker) -> None:
    """Check reads of a segment that is too large to be read whole."""
    numbers = random.Random(3)
    async with _opened(make) as backend:
        if "keys" not in taken(backend):
            return
        rows = _postings(110_000, numbers)
        segment = await write(backend, "large", "keys", rows)
        async with _opened(make) as other:
            await _compare(other, segment, rows, numbers, 2)
        found = await backend.read_segment(segment, SegmentQuery([KeyRange(VALUE_TAG, AFTER_ALL)], limit=100))
        assert found is None, "a read that finds more rows than the limit must return None"


async def check_unsorted(make: BackendMaker) -> None:
    """Check that unsorted rows and rows of another schema are refused, and that no segment is left behind."""
    async with _opened(make) as backend:
        rows = random_rows("set", 3000, random.Random(4))
        for wrong in (rows.take(list(range(rows.num_rows - 1, -1, -1))), rows.select(["key"])):
            with _raises(StoreError, "invalid rows"):
                await write(backend, "wrong", "set", wrong)
            await _nothing_left(backend, "wrong")
        await write(backend, "wrong", "set", rows)


async def check_broken_off(make: BackendMaker) -> None:
    """Check that an error of the iterator of rows reaches the caller, and that no reader sees the segment."""
    rows = random_rows("set", 5000, random.Random(5))

    async def breaking() -> AsyncIterator[pa.RecordBatch]:
        yield rows.to_batches()[0]
        raise ValueError("no more")

    async with _opened(make) as backend:
        index_table = _part("set")
        with _raises(ValueError, "an error of the rows"):
            await backend.write_segment("broken", index_table, breaking())
        await _nothing_left(backend, "broken")


async def check_missing(make: BackendMaker) -> None:
    """Check that reading a missing segment raises StaleSnapshotError, and that deleting one raises nothing."""
    numbers = random.Random(6)
    async with _opened(make) as backend, _opened(make) as other:
        rows = random_rows("set", 200, numbers)
        segment = await write(backend, "gone", "set", rows)
        kept = await write(backend, "kept", "set", rows)
        await backend.delete("segments", ["gone", "never"])
        await backend.delete("segments", ["gone"])
        await backend.delete("segments", [])
        for missing in (segment, replace(segment, name="never")):
            with _raises(StaleSnapshotError, "a segment that is not there"):
                await other.read_segment(missing)
            with _raises(StaleSnapshotError, "a segment that is not there, batch by batch"):
                async for _ in other.iterate_segment(missing):
                    pass
        await _compare(other, kept, rows, numbers)


async def check_incomplete(make: BackendMaker) -> None:
    """Check that CorruptIndexError is raised if a segment has another number of rows than the index says."""
    async with _opened(make) as backend:
        rows = random_rows("set", 900, random.Random(7))
        segment = await write(backend, "less", "set", rows)
        for num_rows in (899, 901):
            with _raises(CorruptIndexError, "a segment of another number of rows"):
                await backend.read_segment(replace(segment, num_rows=num_rows))


async def check_listing(make: BackendMaker) -> None:
    """Check that segments, manifests and builds are listed, with their ages in seconds on the backend's clock."""
    async with _opened(make) as backend, _opened(make) as other:
        for empty in (await backend.ages("segments"), await backend.ages("manifests"), await backend.ages("builds")):
            equal(dict(empty), {}, "the listing of an empty backend")
        rows = random_rows("set", 10, random.Random(8))
        for name in ("b-1", "b-2", "c-1"):
            await write(backend, name, "set", rows)
        equal(await backend.commit(1, b"{}"), True, "whether the first commit created its manifest")
        await backend.touch("b")
        await backend.touch("b")
        listed: list[tuple[Mapping[Any, float], set[Any]]] = [
            (await other.ages("segments"), {"b-1", "b-2", "c-1"}),
            (await other.ages("manifests"), {"1"}),
            (await other.ages("builds"), {"b"}),
        ]
        for ages, names in listed:
            equal(set(ages), names, "the listing")
            assert all(0 <= age < 60 for age in ages.values()), f"ages in seconds: {ages}"
        await backend.delete("builds", ["b"])
        await backend.delete("builds", ["b"])
        equal(dict(await other.ages("builds")), {}, "builds that were ended")
        await backend.delete("segments", ["b-1", "b-2"])
        equal(set(await other.ages("segments")), {"c-1"}, "the segments that are left")


async def check_ages(make: BackendMaker) -> None:
    """Check that a build's age grows until the next heartbeat."""
    async with _opened(make) as backend:
        await backend.touch("build")
        before = after = 0.0
        for wait_s in (1.2, 2.4, 4.8):  # clocks may count whole seconds, and a busy machine answers late
            await asyncio.sleep(wait_s)
            before = (await backend.ages("builds"))["build"]
            assert 0.15 <= before < 60, f"the age of a build after {wait_s} s: {before}"
            await backend.touch("build")
            after = (await backend.ages("builds"))["build"]
            if after < before:
                return
        raise AssertionError(f"a heartbeat must reset a build's age, but the age went from {before} s to {after} s")


async def check_manifests(make: BackendMaker) -> None:
    """Check that a manifest is written once, the newest is found, and each exists until it is deleted."""
    async with _opened(make) as backend, _opened(make) as other:
        assert await backend.latest() is None, "there is no manifest yet"
        assert await backend.manifest(1) is None, "there is no manifest 1 yet"
        contents = {number: b'{"number": %d, "text": "\n\\u00e4"}' % number * number for number in (1, 2, 3)}
        for number, content in contents.items():
            equal(await backend.commit(number, content), True, "a commit")
            equal(await other.commit(number, b"another"), False, "a second commit of the same number")
            equal(await other.latest(), (number, content), "the newest manifest")
        for number, content in contents.items():
            equal(await other.manifest(number), content, f"manifest {number}")
        await backend.delete("manifests", ["1", "2", "17"])
        await backend.delete("manifests", [])
        equal(set(await other.ages("manifests")), {"3"}, "the manifests that are left")
        equal(await other.manifest(2), None, "a manifest that was deleted")
        equal(await other.latest(), (3, contents[3]), "the newest manifest after older ones were deleted")


async def check_concurrent_commits(make: BackendMaker) -> None:
    """Check that of concurrent commits of one number exactly one succeeds, and readers get the content of that one."""
    async with contextlib.AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(_opened(make)) for _ in range(5)]
        for number in range(1, 5):
            contents = [b"%d by %d" % (number, backend) for backend in range(len(backends))]
            made = await asyncio.gather(
                *(backend.commit(number, content) for backend, content in zip(backends, contents, strict=True))
            )
            equal(made.count(True), 1, "commits of one number that succeeded")
            winner = contents[made.index(True)]
            equal(await backends[0].manifest(number), winner, "the content of the commit that succeeded")
            equal(await backends[1].latest(), (number, winner), "the newest")


async def check_reading_while_writing(make: BackendMaker) -> None:
    """Check that a reader sees a segment whole or not at all, while segments are written and deleted."""
    numbers = random.Random(9)
    async with _opened(make) as backend, _opened(make) as other:
        rows = random_rows("set", 3000, numbers)
        keys = rows.column("key").to_pylist()
        segment = await write(backend, "first", "set", rows)
        written = asyncio.Event()

        async def read() -> int:
            count = 0
            while not written.is_set() or not count:
                low = numbers.randrange(1, 200)
                wanted = KeyRange(VALUE_TAG + bytes([low]), VALUE_TAG + bytes([low + 40]))
                _same(
                    await other.read_segment(segment, SegmentQuery([wanted])),
                    _within(rows, [wanted], keys),
                    "rows of the first",
                )
                with contextlib.suppress(StaleSnapshotError):
                    later = replace(segment, name="later-2")
                    _same(
                        await other.read_segment(later, SegmentQuery([wanted])),
                        _within(rows, [wanted], keys),
                        "rows of a new one",
                    )
                count += 1
                await asyncio.sleep(0)
            return count

        reader = asyncio.create_task(read())
        try:
            for number in range(4):
                later = await write(backend, f"later-{number}", "set", rows)
                equal(dict(later.extra), dict(segment.extra), "the extra values of a segment with the same rows")
                if number % 2:
                    await backend.delete("segments", [f"later-{number - 1}"])
        finally:
            written.set()
            await reader


async def check_drop(make: BackendMaker) -> None:
    """Check that after drop() the backend is empty and can store a new index."""
    async with _opened(make) as backend:
        rows = random_rows("set", 100, random.Random(10))
        for name in ("first", "second"):
            await write(backend, name, "set", rows)
            assert await backend.commit(1, b"first"), "the first commit"
            await backend.touch("build")
            await backend.drop()
        segment = await write(backend, "third", "set", rows)
        await backend.drop()
        async with _opened(make) as other:
            equal(await other.latest(), None, "the newest manifest")
            for left in (await other.ages("segments"), await other.ages("manifests"), await other.ages("builds")):
                equal(dict(left), {}, "the listing after drop()")
            with _raises(StaleSnapshotError, "a segment of an index that was dropped"):
                await other.read_segment(segment)
            await other.drop()


BACKEND_CHECKS: tuple[Callable[[BackendMaker], Awaitable[None]], ...] = checks_of(globals())


# -- rows -----------------------------------------------------------------------------------------


def taken(backend: IndexBackend) -> list[str]:
    """Return those kinds of index tables that the backend can store."""
    kinds = []
    for kind in TABLE_SCHEMAS:
        with contextlib.suppress(InvalidOptionError):
            backend.check([kind])
            kinds.append(kind)
    return kinds


def random_rows(kind: str, num_rows: int, numbers: random.Random) -> pa.Table:
    """Make random rows of an index table, sorted by key, with equal keys, ``UNKNOWN_KEY`` and other special keys."""
    schema = TABLE_SCHEMAS[kind]
    keys = [VALUE_TAG + numbers.randbytes(numbers.choice((0, 1, 1, 2, 8))) for _ in range(num_rows)]
    for _ in range(min(num_rows, 5)):
        keys[numbers.randrange(num_rows)] = numbers.choice((UNKNOWN_KEY, b"\x00", b"\x02"))
    columns = {field.name: [_value(field, numbers) for _ in range(num_rows)] for field in schema}
    return pa.table(columns | {"key": sorted(keys)}, schema=schema)


def _postings(num_rows: int, numbers: random.Random) -> pa.Table:
    """Make random rows of the kind "keys" that compress badly."""
    some = numbers.randbytes(8 * num_rows)
    keys = sorted(VALUE_TAG + some[at : at + 8] for at in range(0, len(some), 8))
    rows = memoryview(numbers.randbytes(8 * num_rows)).cast("q").tolist()
    columns = {"key": keys, "file": [row % 1000 for row in rows], "row": rows, "rows": [1] * num_rows}
    return pa.table(columns, schema=TABLE_SCHEMAS["keys"])


def _value(field: pa.Field, numbers: random.Random) -> Any:
    if field.nullable and numbers.random() < 0.2:
        return None
    if pa.types.is_binary(field.type):
        return numbers.randbytes(numbers.choice((0, 1, 9, 60)))
    if pa.types.is_integer(field.type):
        return numbers.choice((numbers.randrange(-1, 300), (1 << (field.type.bit_width - 1)) - 1))
    if pa.types.is_list(field.type):
        return [numbers.randrange(1 << 40) for _ in range(numbers.randrange(4))]
    return numbers.choice(("", "a/b=c/d.parquet", "\u00e4 \U0001f600 '\"\\", "x" * 300))


async def write(backend: IndexBackend, name: str, kind: str, rows: pa.Table) -> Segment:
    """Write sorted rows as a segment, and return its description."""
    index_table = _part(kind)

    async def batches() -> AsyncIterator[pa.RecordBatch]:
        for batch in rows.to_batches(max(_BATCH_ROWS, rows.num_rows // 5)):
            await asyncio.sleep(0)
            yield batch

    size, extra = await backend.write_segment(name, index_table, batches())
    known = [key for key in rows.column("key").to_pylist() if key != UNKNOWN_KEY]
    return Segment(
        name=name,
        table=index_table,
        num_rows=rows.num_rows,
        size=size,
        low=known[0] if known else b"",
        high=known[-1] if known else b"",
        files=((0, 1000),),
        has_unknown=len(known) < rows.num_rows,
        extra=extra,
    )


def _part(kind: str) -> IndexTable:
    return IndexTable(kind, () if kind in ("files", "footers", "pages", "manifest") else ("column",))


async def _compare(
    backend: IndexBackend, segment: Segment, rows: pa.Table, numbers: random.Random, questions: int = 4
) -> None:
    """Check that reads of a segment return what its ``rows`` say: read whole, and ``questions`` times by random
    ranges, columns, limits and least values."""
    schema = segment.table.schema
    _same(await backend.read_segment(segment), rows, "all rows")
    keys: list[bytes] = rows.column("key").to_pylist()
    given = [batch async for batch in backend.iterate_segment(segment)]
    _same(pa.Table.from_batches(given, schema=schema), rows, "all rows, batch by batch")
    empty = await backend.read_segment(segment, SegmentQuery([]))
    _same(empty, schema.empty_table(), "of no range nothing")
    for _ in range(questions):
        ranges = random_ranges(keys, numbers)
        expected = _within(rows, ranges, keys)
        what = f"rows of {segment.table} in {ranges}"
        _same(await backend.read_segment(segment, SegmentQuery(ranges)), expected, what)
        columns = numbers.sample(schema.names, numbers.randrange(1, len(schema.names) + 1))
        found = await backend.read_segment(segment, SegmentQuery(ranges, columns=columns))
        assert found is not None, f"without a limit there is always an answer: {what}"
        equal(found.column_names, columns, "the columns that were asked for, in that order")
        _same(found.combine_chunks(), expected.select(columns), f"some columns of {what}")
        for limit in {max(0, expected.num_rows - 1), expected.num_rows}:
            found = await backend.read_segment(segment, SegmentQuery(ranges, limit=limit))
            if expected.num_rows > limit:
                equal(found, None, f"more than {limit} {what}")
            else:
                _same(found, expected, what)
        if "max" in schema.names:
            least = numbers.choice([*keys, b""])
            found = await backend.read_segment(segment, SegmentQuery(ranges, at_least=("max", least)))
            assert found is not None, f"without a limit there is always an answer: {what}"
            _between(found, expected, "max", least)


def random_ranges(keys: Sequence[bytes], numbers: random.Random) -> list[KeyRange]:
    """Make random ranges of keys, ascending and disjoint, which often begin or end at existing keys."""
    some = [VALUE_TAG + numbers.randbytes(numbers.choice((0, 1, 2))) for _ in range(6)]
    if keys:
        some += [numbers.choice(keys) + numbers.choice((b"", b"", b"\x00", b"\xff")) for _ in range(20)]
    ends = sorted(set(some) | {UNKNOWN_KEY, AFTER_ALL})
    ranges: list[KeyRange] = []
    at = numbers.randrange(3)
    while at < len(ends) - 1 and len(ranges) < 15:
        if numbers.random() < 0.5:
            wanted = KeyRange.point(ends[at])
        else:
            wanted = KeyRange(ends[at], ends[min(at + numbers.randrange(1, 3), len(ends) - 1)])
        if not ranges or (ranges[-1].high is not None and ranges[-1].high < wanted.low):
            ranges.append(wanted)
        at += numbers.randrange(1, 6)
    if ranges and numbers.random() < 0.2:
        ranges[-1] = KeyRange(ranges[-1].low, None)
    return ranges


def _within(rows: pa.Table, ranges: Sequence[KeyRange], keys: Sequence[bytes]) -> pa.Table:
    spans = [(bisect_left(keys, low), len(keys) if high is None else bisect_left(keys, high)) for low, high in ranges]
    return pa.concat_tables([rows.schema.empty_table(), *(rows.slice(start, stop - start) for start, stop in spans)])


def _same(result: pa.Table | None, expected: pa.Table, what: str) -> None:
    assert result is not None, f"the read returned None, expected {what}"
    if not result.schema.equals(expected.schema):
        equal(result.schema.to_string(), expected.schema.to_string(), f"the schema of {what}")
    if not result.equals(expected):
        equal(_sortable(result), _sortable(expected), what)


def _sortable(table: pa.Table) -> list[Any]:
    """Return the rows as a sorted list, since a backend may return rows of equal keys in any order."""
    by_key = groupby(table.to_pylist(), key=lambda row: row.get("key"))
    return [row for _, rows in by_key for row in sorted(rows, key=repr)]


def _between(result: pa.Table, expected: pa.Table, column: str, least: bytes) -> None:
    """Check ``result``, the rows that a read with ``at_least`` returned: of the ``expected`` rows, only those whose
    value of ``column`` is below ``least`` may be missing."""
    got = [repr(row) for row in result.to_pylist()]
    everything = [repr(row) for row in expected.to_pylist()]
    needed = [repr(row) for row in expected.to_pylist() if row[column] >= least]
    assert Counter(got) <= Counter(everything), f"rows that are not in the range, with {column} of at least {least!r}"
    assert Counter(needed) <= Counter(got), f"rows are missing, with {column} of at least {least!r}"


# -- handles -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _opened(make: BackendMaker) -> AsyncIterator[IndexBackend]:
    backend = make()
    try:
        yield backend
    finally:
        await backend.close()


async def _nothing_left(backend: IndexBackend, name: str) -> None:
    segment = Segment(name=name, table=_part("set"), num_rows=1, size=1, low=b"", high=b"", files=())
    with _raises((StaleSnapshotError, CorruptIndexError), "a segment that could not be written"):
        await backend.read_segment(segment)


@contextlib.contextmanager
def _raises(kind: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[list[Any]]:
    """Check that the block raises an error of ``kind``; the list that it gets then contains the error. ``what``
    describes the block in messages."""
    errors: list[Any] = []
    try:
        yield errors
    except kind as error:
        errors.append(error)
    if not errors:
        raise AssertionError(f"{what}: no error was raised")
    if isinstance(errors[0], StoreError | CorruptIndexError) and errors[0].url is None:
        raise AssertionError(f"{what}: the error has no url, which must say where it happened")
