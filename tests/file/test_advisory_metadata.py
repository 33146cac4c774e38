"""Files of which one advisory field says something else (tests/file/advisory_mutations.py) give pyarrow's rows.

Most questions are asked twice of one session, the second time with what the first one learnt. Refused is only
what :data:`REFUSED` names, each with its reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.testing import Fault, ObjectServer
from tests.example_counts import examples
from tests.file.advisory_mutations import BASES, Mutant, mutants
from tests.fuzz import bases
from tests.fuzz.judge import same
from tests.fuzz.parquet_parts import ParquetParts

pytestmark = pytest.mark.sampled(2)

URL = "memory://advisory/file.parquet"
# Files that pyarrow reads and asyncpq does not, by what was changed, with a word of the error.
REFUSED = {
    # CRCs are there to be checked: a page that lost its own may have been changed. verify_crc=False reads it.
    "one page header: no CRC": "others do not"
}
REFUSED_NESTED = {
    # The last list may have been cut off: rows alone do not tell.
    "chunk: a value more": "its metadata say",
    "chunk: twice the values": "its metadata say",
    "chunk: a value less": "or more values, but its metadata say",
}
QUICK = ("dictionary_v2", "nested")
STEP = examples(2, thorough=1)
Ask = tuple[str, Callable[[asyncpq.File], Awaitable[Any]], Callable[[pa.Table], Any]]


def asked(key: str) -> list[Ask]:
    rows = [3, 55, 130]
    where = (asyncpq.col(key) >= 100) & (asyncpq.col(key) < 140)
    oracle = (pc.field(key) >= 100) & (pc.field(key) < 140)
    return [
        ("limit", lambda file: file.read(limit=7), lambda table: table.slice(0, 7)),
        ("read", lambda file: file.read(), lambda table: table),
        ("take", lambda file: file.take(rows), lambda table: table.take(rows)),
        ("where", lambda file: file.read(where=where), lambda table: table.filter(oracle)),
        ("count", lambda file: file.count(where), lambda table: table.filter(oracle).num_rows),
        ("rows", lambda file: file.count(), lambda table: table.num_rows),
    ]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("base", "step"),
    [*[(base, 4) for base in QUICK], *[pytest.param(base, STEP, marks=pytest.mark.slow) for base in BASES]],
)
async def test_what_is_advisory_is_not_needed(base: str, step: int) -> None:
    """Of every ``step``-th change."""
    files = fsspec.filesystem("memory")
    good, problems = bases.table(base), []
    for mutant in itertools.islice(mutants(base), 0, None, step):
        files.pipe_file(URL.removeprefix("memory:/"), mutant.data)
        # what pyarrow does not read has the rows of the good file, if any
        wanted = _by_pyarrow(mutant)
        allowed = {**REFUSED, **(REFUSED_NESTED if "nested" in base else {})}.get(mutant.name)
        async with asyncpq.Session() as session:
            for name, ask, of in (questions := asked(good.column_names[0])) + questions[:4]:
                try:
                    found = await ask(await session.open_file(URL))
                except asyncpq.FormatError as error:
                    if wanted is not None and (allowed is None or allowed not in str(error)):
                        problems.append(f"{mutant.name}: {name}: {error}")
                    continue
                if not _equal(found, of(good if wanted is None else wanted)):
                    problems.append(f"{mutant.name}: {name}: other rows")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("base", ["plain", "dictionary_v2", "no_index", "nested_v2"])
async def test_refused_files_are_still_refused(base: str) -> None:
    """Else the list is too long."""
    files = fsspec.filesystem("memory")
    allowed = {**REFUSED, **(REFUSED_NESTED if "nested" in base else {})}
    for mutant in mutants(base):
        if mutant.name not in allowed:
            continue
        files.pipe_file(URL.removeprefix("memory:/"), mutant.data)
        async with asyncpq.Session() as session:
            file = await session.open_file(URL)
            with pytest.raises(asyncpq.CorruptFileError, match=allowed[mutant.name]):
                await file.read()


def _by_pyarrow(mutant: Mutant) -> pa.Table | None:
    try:
        table = pq.ParquetFile(pa.BufferReader(mutant.data), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError):
        return None
    return table if table.num_rows == bases.ROWS else None  # it stops at a chunk's number of values, and says nothing


def _equal(found: Any, wanted: Any) -> bool:
    return same(found, wanted) if isinstance(wanted, pa.Table) else bool(found == wanted)


async def _fallbacks(data: bytes, columns: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Of a read, and of the plan of the next one."""
    fsspec.filesystem("memory").pipe_file(URL.removeprefix("memory:/"), data)
    async with asyncpq.Session() as session:
        file = await session.open_file(URL)
        await file.read(columns)
        plan = await file.plan(columns)
        assert all(f"fallback: {reason}" in plan.explain() for reason in plan.fallbacks)
        return file.metrics.fallbacks, list(plan.fallbacks)


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        ("plain", "chunk: total_uncompressed_size 0", "id: its total_uncompressed_size is not that of its pages"),
        ("nested_v2", "chunk: total_uncompressed_size 1", "list: its total_uncompressed_size is not that of its pages"),
        ("dictionary", "chunk: encodings 4", "id: its encodings are not those that the footer lists"),
        ("plain", "chunk: path [b'other']", "id: a column chunk in its place names the column 'other'"),
        ("plain", "chunk: twice the values", "id: a column chunk's metadata say 240 values in a row group of 120 rows"),
        ("plain", "footer: +1 column orders", "the footer has 9 column orders for 8 columns; they are not used"),
        ("plain_v2", "page header: num_rows 0", "id: its V2 pages claim other rows than they hold; it is not used"),
    ],
)
async def test_what_is_not_used_is_told(base: str, name: str, words: str) -> None:
    mutant = next(mutant for mutant in mutants(base) if mutant.name == name)
    for reasons in await _fallbacks(mutant.data):
        assert any(words.split(":")[0] in reason and words.split(": ")[-1] in reason for reason in reasons), reasons
    for reasons in await _fallbacks(bases.data(base)):
        assert not any("not used" in reason for reason in reasons)


async def test_a_page_without_crc_is_read_where_crcs_do_not_matter() -> None:
    for base in ("plain", "no_index", "nested"):
        mutant = next(mutant for mutant in mutants(base) if mutant.name == "one page header: no CRC")
        fsspec.filesystem("memory").pipe_file(URL.removeprefix("memory:/"), mutant.data)
        async with asyncpq.Session(read=asyncpq.ReadOptions(verify_crc=False)) as session:
            assert same(await (await session.open_file(URL)).read(), bases.table(base))


WRONG_INDEXES = ("OffsetIndex: first rows one late", "OffsetIndex: sizes without the header")


@pytest.mark.parametrize("name", WRONG_INDEXES)
@pytest.mark.parametrize("base", ["plain", "dictionary_v2", "nested"])
async def test_a_wrong_offset_index_is_dropped_once(base: str, name: str) -> None:
    """By scans and reads of datasets, too, and whether there is a cache or not."""
    mutant = next(mutant for mutant in mutants(base) if mutant.name == name)
    files, good = fsspec.filesystem("memory"), bases.table(base)
    for number in (1, 2):
        files.pipe_file(f"/advisory_lake/{number}.parquet", mutant.data)
    key = good.column_names[0]
    where = (asyncpq.col(key) >= 20) & (asyncpq.col(key) < 60)
    wanted = good.filter((pc.field(key) >= 20) & (pc.field(key) < 60))
    async with asyncpq.Session() as session:
        file = await session.open_file("memory://advisory_lake/1.parquet")
        async with file.scan(where=where, limit=30) as scan:
            assert same(pa.Table.from_batches([batch async for batch in scan]), wanted)
        assert any("its OffsetIndex is not" in text or "not used" in text for text in scan.metrics.fallbacks)
        for _ in range(2):
            assert same(await file.take([70, 5]), good.take([70, 5]))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset("memory://advisory_lake/")
        async with dataset.scan(where=where) as batches:
            assert same(pa.Table.from_batches([batch async for batch in batches]), pa.concat_tables([wanted] * 2))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset("memory://advisory_lake/")
        assert same(await dataset.read(where=where), pa.concat_tables([wanted] * 2))
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        file = await session.open_file("memory://advisory_lake/2.parquet")
        for _ in range(2):
            assert same(await file.read(where=where), wanted)
        dataset = await session.open_dataset("memory://advisory_lake/")
        assert same(await dataset.read(where=where), pa.concat_tables([wanted] * 2))
        for ordered in (True, False):
            async with dataset.scan(where=where, ordered=ordered) as batches:
                assert same(pa.Table.from_batches([batch async for batch in batches]), pa.concat_tables([wanted] * 2))


async def test_a_scan_that_has_handed_out_rows_says_ask_again() -> None:
    """Its rows cannot be taken back. The next read does not use the index."""
    parts = ParquetParts(bases.data("plain"))
    parts.place_pages()
    location = parts.chunks[8].offset_index  # of the second row group
    assert location is not None
    later = location.struct(1, 1)
    later.set(3, later.integer(3) + 1)
    parts.place_indexes()
    fsspec.filesystem("memory").pipe_file(URL.removeprefix("memory:/"), parts.file())
    where = asyncpq.col("id") >= 0
    limits = asyncpq.LimitOptions(unit_bytes=1)
    async with asyncpq.Session(limits=limits, read=asyncpq.ReadOptions(trust_statistics=False)) as session:
        file = await session.open_file(URL)
        scan = file.scan(where=where)

        async def run() -> None:
            async with scan:
                async for _ in scan:
                    pass

        with pytest.raises(asyncpq.CorruptFileError, match="has 40 rows") as caught:
            await run()
        assert scan.metrics.rows_returned
        assert "ask again" in (caught.value.hint or "")
        async with file.scan(where=where) as batches:
            assert same(pa.Table.from_batches([batch async for batch in batches]), bases.table("plain"))


@pytest.mark.parametrize("policy", [asyncpq.etag(0), asyncpq.ttl(0)])
async def test_a_wrong_offset_index_of_an_object_without_etag(policy: asyncpq.CachePolicy) -> None:
    """The read begins again with the footer that it has: another one would have the index again."""
    mutant = next(mutant for mutant in mutants("plain") if mutant.name == "OffsetIndex: first rows one late")
    async with ObjectServer() as server:
        server.put("file.parquet", mutant.data)
        server.faults = lambda request: Fault(headers={"ETag": "", "Last-Modified": ""})
        async with asyncpq.Session(cache_policy=policy) as session:
            file = await session.open_file(f"{server.endpoint}/file.parquet")
            wanted = bases.table("plain").filter(pc.field("id") > 20)
            for _ in range(2):
                assert same(await file.read(where=asyncpq.col("id") > 20), wanted)
            async with file.scan(where=asyncpq.col("id") > 20) as scan:
                assert same(await scan.to_table(), wanted)
