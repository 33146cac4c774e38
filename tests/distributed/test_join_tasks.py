"""Rows are matched as a join of two lists does, one key after another, in indexes of which few stay open."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.distributed import join_tasks, plan_join
from asyncpq.distributed.join_tasks import KeyPredicate, LeftKeys, PinnedFiles
from asyncpq.expressions import col
from asyncpq.indexing import Footers, Keys
from asyncpq.scan.request import ScanRequest

_FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, None])
_TEXTS = st.sampled_from(["", "a", "b", None])
_NUMBERS = st.sampled_from([0, 1, -(2**40), None])
_TYPES = [pa.float64(), pa.string(), pa.int64()]


def _key(row: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What is equal where Spark's joins take it for equal; None matches nothing."""
    if None in row:
        return None
    return tuple("nan" if value != value else value + 0.0 if isinstance(value, float) else value for value in row)


def _arrays(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(_TYPES)]


_ROWS = st.lists(st.tuples(_FLOATS, _TEXTS, _NUMBERS), max_size=20)


@given(left=_ROWS, lake=st.lists(_ROWS, max_size=3), most=st.integers(1, 30), at_once=st.integers(1, 20))
def test_pairs_of_keys_of_several_columns(
    left: list[tuple[Any, ...]], lake: list[list[tuple[Any, ...]]], most: int, at_once: int
) -> None:
    """Each once, where the lake's rows are given for some keys after the others."""
    keys = LeftKeys([[column] for column in _arrays(left)], len(left))
    assert len(keys) == len({_key(row) for row in left} - {None})
    met: set[int] = set()
    for rows in lake:
        found: list[tuple[int, int]] = []
        for begin in range(0, max(len(keys), 1), at_once):
            some = range(begin, min(begin + at_once, len(keys)))
            for pairs in keys.pairs(_arrays(rows), some, most):
                assert 0 < len(pairs.left) == len(pairs.lake) <= most
                found.extend(zip(pairs.left.to_pylist(), pairs.lake.to_pylist(), strict=True))
                asked = {_key(tuple(column[at].as_py() for column in keys.distinct)) for at in some}
                assert {_key(left[at]) for at in pairs.left.to_pylist()} <= asked
        expected = [
            (a, b) for a, x in enumerate(left) for b, y in enumerate(rows) if _key(x) is not None and _key(x) == _key(y)
        ]
        assert sorted(found) == expected
        met.update(a for a, _ in expected)
    assert keys.rows(met=True).to_pylist() == sorted(met)
    assert keys.rows(met=False).to_pylist() == [at for at in range(len(left)) if at not in met]
    assert keys.all_met is ({_key(left[at]) for at in met} == {_key(row) for row in left} - {None})


def test_a_key_that_may_be_one_of_two_values() -> None:
    keys = LeftKeys([[pa.array([1, 2, None]), pa.array([5, None, None], pa.int64())]], 3)
    ((left, lake),) = keys.pairs([pa.array([5, 1, 2, None])], range(len(keys)), 10)
    assert list(zip(left.to_pylist(), lake.to_pylist(), strict=True)) == [(0, 0), (0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.bool_(), False, True),
        (pa.decimal128(9, 2), Decimal("0.10"), Decimal("0.11")),
        (pa.binary(), b"", b"\xff"),
        (pa.date32(), date(1, 1, 1), date(2, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime(1, 1, 1), datetime(1, 1, 2)),
        (pa.float32(), 0.5, math.nan),
    ],
)
def test_keys_of_each_type(kind: pa.DataType, one: Any, other: Any) -> None:
    column = pa.array([one, other, other], kind)
    keys = LeftKeys([[column]], 3)
    assert len(keys) == 2
    ((left, _),) = keys.pairs([column.slice(2)], range(len(keys)), 10)
    assert left.to_pylist() == [1, 2]


LEFT = pa.schema({"id": pa.int64()})


async def _pinned(
    lake: str,
    index: str,
    *,
    view: Literal["snapshot", "listed"] | None = None,
    changed: Callable[[], None] = lambda: None,
) -> PinnedFiles:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Keys("id"), Footers()], at=index)
        changed()
        return (await plan_join(session, lake, "id", LEFT, index=index, view=view)).pinned


async def _rows(session: asyncpq.Session, pinned: PinnedFiles) -> list[int]:
    found: list[int] = []
    async with await pinned.lookup(KeyPredicate(where=col("id") == 7, prune=None), session) as scan:
        async for batch in scan:
            found += batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize(("view", "rows"), [(None, [7, 7, 7]), ("listed", [7, 7, 7]), ("snapshot", [7])])
def test_an_index_changes_no_rows_of_a_join_unless_asked_to(
    tmp_path: Path, view: Literal["snapshot", "listed"] | None, rows: list[int]
) -> None:
    """Tasks are told the files that were listed; of those that the index knows it names the rows."""
    lake = tmp_path / "lake"
    lake.mkdir()

    def write(number: int, *ids: int) -> None:
        pq.write_table(pa.table({"id": ids}), lake / "new")
        (lake / "new").rename(lake / f"{number}.parquet")

    for number in range(4):
        write(number, *range(number * 10, number * 10 + 10))

    def change() -> None:
        write(1, 7, 11)  # the index rules it out
        write(9, 7)

    async def join() -> None:
        pinned = await _pinned(str(lake), str(tmp_path / "index"), view=view, changed=change)
        write(8, 7)  # after the join was planned
        async with asyncpq.Session() as session:
            assert await _rows(session, pinned) == rows
            state = await join_tasks.opened(session, pinned)
            assert "index at" in state.source.description
            operation = state.runtime.operation("files", state.url)
            found = await state.source.files(ScanRequest(where=col("id") == 7), operation)
            assert len(found.files) == len(rows)

    asyncio.run(join())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["folder", "sql"])
def test_only_some_places_stay_open(tmp_path: Path, kind: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), lake / f"{number}.parquet")
    index = str(tmp_path / "index") if kind == "folder" else f"sqlite:///{tmp_path}/index.db"

    async def joins() -> None:
        pinned = await _pinned(str(lake), index)
        async with asyncpq.Session() as session:
            joined = [replace(pinned, token=str(number)) for number in range(3 * join_tasks._KEPT)]
            for one in joined:
                assert await _rows(session, one) == [7]
            assert len(session._runtime._closers) <= join_tasks._KEPT
            # of one that was forgotten, too
            assert await asyncio.gather(*[_rows(session, one) for one in joined[:3]]) == [[7]] * 3
        async with asyncpq.Session() as session:
            assert await asyncio.gather(*[_rows(session, pinned) for _ in range(4)]) == [[7]] * 4
            assert len(session._runtime._closers) == 1

    asyncio.run(joins())
