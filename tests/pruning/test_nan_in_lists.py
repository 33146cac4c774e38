"""NaN of each sign and payload, zeros and infinities: what a file says of its values never changes an answer.

The oracle is pyarrow's filter on the whole table: ``==``, ``!=`` and lookups take no NaN as equal to anything, ``isin``
compares the bits of floats.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression, In, KeyIn, parse_where, simplify
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import EditedFile
from tests.predicates import oracle
from tests.reads import ask


def _double(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return number


NAN, MINUS_NAN = _double(0x7FF8 << 48), _double(0xFFF8 << 48)
NANS = [NAN, MINUS_NAN, _double(0x7FF8_0000_2000_0000), _double(0xFFFC << 48)]  # payloads that 32 bits hold, too
NUMBERS = [-math.inf, -1.0, -0.0, 0.0, 1.0, 2.0, math.inf]
FLOATS = [pa.float32(), pa.float64()]
OPS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def _array(values: Sequence[float | None], type_: pa.DataType) -> pa.Array:
    return pa.array(values, type_)


def _file(table: pa.Table, group: int, nan_counts: bool, **options: Any) -> bytes:
    data = parquet_bytes(table, row_group_size=group, **options)
    if not nan_counts:
        return data
    file = EditedFile(data)
    for number in range(-(-table.num_rows // group)):
        held = table["x"].slice(number * group, group)
        if pc.any(pc.is_finite(held)).as_py() or not pc.any(pc.is_nan(held)).as_py():
            file.statistics(0, number).put(9, pc.sum(pc.is_nan(held)).as_py() or 0)
    return file.data()


@st.composite
def _predicates(draw: st.DrawFn, held: list[float]) -> Expression:
    literals = st.sampled_from(held) | st.sampled_from([*NANS, *NUMBERS])
    members = st.lists(st.sampled_from([*held, *NANS, None]) | literals, max_size=5)

    def atom() -> Any:
        kind = draw(st.sampled_from(["in", "in", "in", "keys", "compared", "chain", "between", "null", "nan"]))
        if kind == "in":
            return In("x", tuple(draw(members)))
        if kind == "keys":
            return KeyIn("x", tuple(draw(members)))
        if kind == "compared":
            return draw(st.sampled_from(OPS))(col("x"), draw(literals))
        if kind == "between":
            return (col("x") >= draw(literals)) & (col("x") <= draw(literals))
        if kind == "null":
            return col("x").is_null(nan_is_null=draw(st.booleans()))
        if kind == "nan":
            return col("x").is_nan()
        values = draw(st.lists(literals, min_size=16, max_size=20))  # so many are taken as one set
        if draw(st.booleans()):
            return reduce(operator.or_, [col("x") == value for value in values])
        return reduce(operator.and_, [col("x") != value for value in values])

    made = atom()
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        made = ~made if draw(st.booleans()) else draw(st.sampled_from([operator.and_, operator.or_]))(made, atom())
    return made  # type: ignore[no-any-return]


@pytest.mark.heavy
@given(st.data())
@settings(max_examples=examples(40, thorough=2000))
def test_rows_are_pyarrows_whatever_the_file_says(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(FLOATS))
    held = [
        data.draw(st.sampled_from(NANS)),
        data.draw(st.sampled_from([-1.0, 2.0, 0.0, math.inf])),
    ]  # a group's bounds are equal
    held += data.draw(st.lists(st.sampled_from([*NANS, *NUMBERS]), max_size=1))
    some = held if data.draw(st.booleans()) else [*held, None]
    values = data.draw(st.lists(st.sampled_from(some), min_size=2, max_size=16))
    if data.draw(st.booleans()):
        values = sorted(values, key=repr)
    table = pa.table({"x": _array(values, type_), "row": range(len(values))})
    members = st.lists(st.sampled_from([*held, *NANS, None]), max_size=2)
    predicates: list[Expression] = [In("x", (held[1], nan, *data.draw(members))) for nan in NANS[:2]]
    predicates += [data.draw(_predicates(held)) for _ in range(4)]
    keys = data.draw(st.lists(st.sampled_from([*held, *NANS, *NUMBERS]), min_size=1, max_size=4))
    group, rows = data.draw(st.sampled_from([16, 16, 4, 1])), data.draw(st.integers(1, 4))
    dictionary, index, counted = (data.draw(st.booleans()) for _ in range(3))
    statistics = data.draw(st.sampled_from([True, True, False]))
    bloom = {"bloom_filter_options": {"x": {"ndv": 8, "fpp": 0.01}}} if data.draw(st.booleans()) else {}
    written = _file(
        table,
        group,
        counted and statistics,
        use_dictionary=dictionary,
        write_statistics=statistics,
        write_page_index=index,
        max_rows_per_page=rows,
        **bloom,
    )

    async def question(file: asyncpq.File) -> None:
        for predicate in predicates:
            wanted = table.filter(oracle(predicate))["row"].to_pylist()
            assert (await file.read(["row"], predicate))["row"].to_pylist() == wanted, predicate
            assert await file.count(predicate) == len(wanted), predicate
            assert (await file.read(["row"], ~predicate))["row"].to_pylist() == table.filter(~oracle(predicate))[
                "row"
            ].to_pylist(), predicate
        wanted = table.filter(oracle(KeyIn("x", tuple(keys))))["row"].to_pylist()
        assert (await file.lookup({"x": keys}, ["row"]))["row"].to_pylist() == wanted

    ask(written, question)


@pytest.mark.parametrize("type_", FLOATS, ids=str)
def test_a_list_has_one_nan_of_many(type_: pa.DataType) -> None:
    """Every value equals a bound or is a NaN, which bounds do not show."""
    values = [MINUS_NAN, -1.0, -1.0]
    written = _file(pa.table({"x": _array(values, type_), "row": range(3)}), 3, nan_counts=False)

    async def question(file: asyncpq.File) -> None:
        where = col("x").is_in([NAN, -1.0])
        assert (await file.read(["row"], where))["row"].to_pylist() == [1, 2]
        assert (await file.read(["row"], ~where))["row"].to_pylist() == [0]
        assert await file.count(where) == 2
        assert await file.count(~where) == 1
        both = parse_where(col("x").is_in([NAN]) | col("x").is_in([MINUS_NAN]))
        assert (await file.read(["row"], both))["row"].to_pylist() == [0]

    ask(written, question)


def test_lists_with_other_nans_differ() -> None:
    assert In("x", (NAN,)) == In("x", (NAN,))
    assert In("x", (NAN,)) != In("x", (MINUS_NAN,))
    assert simplify(In("x", (NAN,)) | In("x", (NAN,))) == In("x", (NAN,))


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("where", [col("x").is_in([NAN]), col("x") == NAN, col("x") != 1.0, ~col("x").is_in([NAN])])
def test_float16_is_never_compared(where: Expression, statistics: bool) -> None:
    """pyarrow has no kernels for it: the answer is an error, whatever the file says."""
    table = pa.table({"x": pa.array([MINUS_NAN, 1.0, None], pa.float16())})
    with pytest.raises(pa.ArrowNotImplementedError):
        table.filter(oracle(where))
    written = _file(table, 3, nan_counts=False, write_statistics=statistics)
    with pytest.raises(asyncpq.PredicateTypeError):
        ask(written, lambda file: file.count(where))
    assert ask(written, lambda file: file.count(col("x").is_null(nan_is_null=True))) == 2


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("values", [[MINUS_NAN, 1.0, None], [NAN, NAN], [1.0, math.inf], [None, None], []], ids=str)
def test_float16_may_be_nan(values: list[float | None], statistics: bool) -> None:
    table = pa.table({"x": pa.array(values, pa.float16())})
    written = _file(table, 3, nan_counts=False, write_statistics=statistics)
    conditions = (pc.field("x").is_nan(), ~pc.field("x").is_nan(), pc.field("x").is_nan() | pc.field("x").is_null())

    async def question(file: asyncpq.File) -> None:
        for where in conditions:
            wanted = table.filter(where).num_rows
            assert await file.count(where) == wanted
            assert (await file.read(where=where)).num_rows == wanted
        assert await file.count("isnan(x)") == table.filter(conditions[0]).num_rows

    ask(written, question)


async def test_an_index_finds_the_nans_of_a_list(tmp_path: Any) -> None:
    table = pa.table({"x": [*NANS, *NUMBERS, None] * 3, "row": range(3 * (len(NANS) + len(NUMBERS) + 1))})
    (tmp_path / "lake").mkdir()
    pq.write_table(table, tmp_path / "lake" / "0.parquet", row_group_size=5)
    equal = pa.table({"x": [MINUS_NAN, -1.0, -1.0], "row": [100, 101, 102]})  # a file's bounds are equal, too
    pq.write_table(equal, tmp_path / "lake" / "1.parquet")
    table = pa.concat_tables([table, equal])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path / "lake")
        await session.build_index(str(tmp_path / "lake"), [asyncpq.indexing.Keys("x")], at=str(tmp_path / "index"))
        indexed = await session.open_dataset(tmp_path / "lake", index=str(tmp_path / "index"))
        for members in ([NAN], [NAN, -1.0], [MINUS_NAN, 1.0], [NANS[2], None], [0.0, NAN]):
            for where in (col("x").is_in(members), ~col("x").is_in(members)):
                wanted = table.filter(oracle(where))["row"].to_pylist()
                for opened in (dataset, indexed, dataset):  # at last with what it has learnt
                    assert sorted((await opened.read(["row"], where))["row"].to_pylist()) == wanted
                    assert await opened.count(where) == len(wanted)
        assert (await indexed.lookup({"x": [NAN, MINUS_NAN]})).num_rows == 0
