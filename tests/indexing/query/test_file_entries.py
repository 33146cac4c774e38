"""Files read by what an index keeps of them: the rows and plans of files that were opened, without a footer request;
damaged entries are found out."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.indexing.build import file_rows as file_footers
from asyncpq.indexing.entry_encoding import by_file
from asyncpq.parquet.row_group import UnknownLeafError
from tests.indexing.file_in_memory import TABLE, URL, WRITER, kept_of, put
from tests.lakes import FILE, ask_known, keep
from tests.random_tables import NestedFile, WriterOptions, nested_files, tables, writer_options
from tests.reads import values

few = settings(max_examples=max(10, settings().max_examples // 3))  # each reads several files
# the smallest tail, so that every index is a request of its own; fixed prices, so that plans do not depend on the time
# that requests take
OPTIONS: dict[str, Any] = {
    "requests": asyncpq.RequestOptions(tail_bytes=8, gap_bytes=0, latency_s=0.03, bandwidth_bytes_s=200e6)
}


async def answers(file: asyncpq.File, column: str, row: int) -> tuple[list[Any], list[list[str]]]:
    """Rows of several questions, and what was planned for them."""
    where = col(column).is_valid()
    found = [values(await file.read()), values(await file.take([row]))]
    plan = await file.plan(where=where)
    found.append(values(await file.read(where=where)))
    plans = [[f"{request.start}-{request.stop}" for request in plan.requests], [repr(plan.pruning)]]
    return found, plans


def compare(data: bytes, column: str, row: int) -> None:
    put(data)

    async def run() -> None:
        async with asyncpq.Session(**OPTIONS) as session:
            kept = await keep(session, URL)
        async with asyncpq.Session(**OPTIONS) as session:
            opened = await session.open_file(URL)
            wanted, plans = await answers(opened, column, row)
            asked = session.metrics.requests_by_purpose
        async with asyncpq.Session(**OPTIONS) as session:
            found, known_plans = await ask_known(
                session, URL, kept.known(pages=False), lambda file: answers(file, column, row)
            )
            known_asked = session.metrics.requests_by_purpose
        assert found == wanted
        assert known_plans == plans
        assert set(known_asked) <= {"data", "validate", "stat"}, known_asked
        assert "tail" in asked
        assert sum(known_asked.values()) < sum(asked.values())

    asyncio.run(run())


@pytest.mark.heavy
@few
@given(drawn=tables(), options=writer_options, whole=st.booleans(), row=st.integers(0, 200))
def test_rows_and_plans_are_those_of_an_opened_file(
    drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions, whole: bool, row: int
) -> None:
    table, _ = drawn
    if not table.num_rows:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_footers, "WHOLE_FOOTER_BYTES", 1 << 20 if whole else 0)
        compare(options.write(table), table.column_names[0], row % table.num_rows)


@pytest.mark.heavy
@few
@given(file=nested_files(), whole=st.booleans(), row=st.integers(0, 200))
def test_nested_rows_and_plans_are_those_of_an_opened_file(file: NestedFile, whole: bool, row: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_footers, "WHOLE_FOOTER_BYTES", 1 << 20 if whole else 0)
        compare(file.data, "id", row % file.table.num_rows)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every footer is kept leaf by leaf."""
    monkeypatch.setattr(file_footers, "WHOLE_FOOTER_BYTES", 0)


@pytest.mark.usefixtures("split")
def test_some_leaves_are_enough_for_their_columns() -> None:
    kept = kept_of(WRITER.write(TABLE))

    async def run() -> None:
        async with asyncpq.Session() as session:
            known = kept.known({0, 2})
            assert known is not None
            assert known.leaves == frozenset({0, 2})

            async def question(file: asyncpq.File) -> None:
                found = await file.lookup({"a": 150}, columns=["c"])
                assert found.to_pylist() == [{"c": 152}]
                assert set(file.metrics.requests_by_purpose) == {"data", "stat"}
                with pytest.raises(UnknownLeafError):
                    await file.lookup({"a": 150}, columns=["b"])

            await ask_known(session, URL, known, question)
            # whoever opens the file gets its own footer, and others who know as much share what is there
            file = await session.open_file(URL)
            assert (await file.lookup({"a": 150}, columns=["b"])).to_pylist() == [{"b": 151}]
            assert session.metrics.requests_by_purpose["tail"] == 1
            more = kept.known({0, 1})
            found = await ask_known(session, URL, more, lambda file: file.lookup({"a": 150}, columns=["b", "d"]))
            assert found.to_pylist() == [{"b": 151, "d": 153}]

    asyncio.run(run())


@pytest.mark.usefixtures("split")
def test_versions_of_other_leaves_take_turns() -> None:
    kept = kept_of(WRITER.write(TABLE))

    async def run() -> None:
        async with asyncpq.Session() as session:
            for leaf in (0, 1, 2, 0, 3):
                name = "abcd"[leaf]
                found = await ask_known(session, URL, kept.known({leaf}), partial(asyncpq.File.read, columns=[name]))
                assert found.column(name).to_pylist() == TABLE.column(name).to_pylist()
            assert "tail" not in session.metrics.requests_by_purpose

    asyncio.run(run())


def test_a_large_footer_is_kept_leaf_by_leaf() -> None:
    table = pa.table({f"column {at}": [at] for at in range(600)})
    kept = kept_of(WRITER.write(table))
    payloads = by_file(kept.footers)[FILE]
    assert set(payloads) == {-1, *range(600)}
    assert max(len(payload) for leaf, payload in payloads.items() if leaf >= 0) < 400


def test_without_a_footer_nothing_is_known() -> None:
    assert kept_of(WRITER.write(TABLE)).known(footers=False) is None
