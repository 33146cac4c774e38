"""Times relative to now: one instant for a read, as the column's type wants it, and never compared unresolved."""

from __future__ import annotations

import datetime as dt
import importlib
import operator
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col, expressions, now
from asyncpq.decoding.column_literals import resolve_literals
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import ColumnNotFoundError, ExpressionError, PredicateTypeError, QueryError, UsageError
from asyncpq.expressions import (
    And,
    Comparison,
    Constant,
    Expression,
    KeyIn,
    Not,
    Or,
    StartsWith,
    ValueRanges,
    column_ranges,
    has_open_literals,
    is_unsatisfiable,
    parse_filters,
    parse_where,
    resolve_times,
    with_key_sets,
    without_contradictions,
)
from asyncpq.expressions.analysis import Interval, Intervals, complement, intersect, unite
from asyncpq.expressions.scalars import Timestamp
from asyncpq.pruning.literals import Domain, ValueKind, domain_of
from asyncpq.scan.request import ScanRequest
from tests.example_counts import examples
from tests.predicates import COLUMNS, INSIDE, KINDS, array, arrays, atoms, model, trees, uses

WEEK = dt.timedelta(days=7)
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
TYPES = {
    "zoned": pa.timestamp("ms", "Europe/Paris"),
    "plain": pa.timestamp("us"),
    "kind": pa.dictionary(pa.int8(), pa.timestamp("s")),
    "day": pa.date32(),
    "number": pa.int64(),
    "struct": pa.struct([("at", pa.timestamp("ns"))]),
}


class Fine(dt.timedelta):
    """As pandas has it: sums of it are of its kind, and perhaps finer than a microsecond."""

    nanoseconds = 0

    def __radd__(self, other: dt.timedelta) -> Fine:
        total = other + dt.timedelta(self.days, self.seconds)
        found = Fine(total.days, total.seconds)
        found.nanoseconds = total.seconds
        return found


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (now(), "now"),
        (now() - WEEK, "now - 7 days"),
        (now() - dt.timedelta(hours=36), "now - 1 day, 12:00:00"),
        (dt.timedelta(minutes=5) + now(), "now + 0:05:00"),
        (now() - WEEK + WEEK, "now"),
        (now() - Fine(days=2), "now - 2 days"),
    ],
)
def test_arithmetic(time: Any, text: str) -> None:
    assert str(time) == text
    assert str(col("a") >= time) == f"a >= {text}"
    assert pickle.loads(pickle.dumps(time)) == time
    assert type(time.offset) is dt.timedelta


@pytest.mark.parametrize("mistake", [lambda: now() + 7, lambda: now() - NOON, lambda: now() - now()])
def test_other_arithmetic_is_refused(mistake: Any) -> None:
    with pytest.raises(TypeError):
        mistake()


def test_finer_offsets_are_refused() -> None:
    with pytest.raises(ExpressionError, match="finer than a microsecond"):
        now() + Fine(seconds=1)


def test_equal_where_they_ask_the_same() -> None:
    assert (col("a") > now() - WEEK) == (col("a") > now() - dt.timedelta(hours=168))
    assert (col("a") > now()) != (col("a") > now() - WEEK)
    assert len({col("a") > now(), col("a") > now()}) == 1


def test_resolved_in_all_parts() -> None:
    expr = ~(col("a") < now()) & (col("a").is_in([now() - WEEK, None]) | (col("b") == 1))
    assert has_open_literals(expr)
    found = resolve_times(expr, NOON)
    assert found == ~(col("a") < NOON) & (col("a").is_in([NOON - WEEK, None]) | (col("b") == 1))
    assert not has_open_literals(found)
    assert resolve_times(found, NOON) is found
    paris = NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))
    assert resolve_times(col("a") < now(), paris, ["a"]) == (col("a") < NOON.replace(tzinfo=None))


def test_filter_lists() -> None:
    assert parse_filters([("a", ">=", now() - WEEK)]) == (col("a") >= now() - WEEK)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("zoned", NOON - WEEK),
        ("plain", NOON.replace(tzinfo=None) - WEEK),
        ("kind", NOON.replace(tzinfo=None) - WEEK),
        ("struct.at", NOON.replace(tzinfo=None) - WEEK),
    ],
)
def test_as_the_type_wants_it(column: str, expected: dt.datetime) -> None:
    found = resolve_literals(col(column) >= now() - WEEK, NOON, TYPES)
    assert found == Comparison(column, ">=", expected)
    compile_filter(found, TYPES)


def test_other_columns_are_refused() -> None:
    with pytest.raises(PredicateTypeError, match="Compare it with a date") as caught:
        resolve_literals(col("day") >= now(), NOON, TYPES)
    assert caught.value.column == "day"
    for column in ("number", "struct"):
        with pytest.raises(PredicateTypeError, match="compared with timestamps"):
            resolve_literals(col(column) >= now(), NOON, TYPES)
    with pytest.raises(ColumnNotFoundError):
        resolve_literals(col("zzz") >= now(), NOON, TYPES)
    with pytest.raises(ExpressionError, match="out of datetime's range"):
        resolve_literals(col("zoned") >= now() - dt.timedelta(days=10**7), NOON, TYPES)


@pytest.mark.parametrize("expr", [col("zoned") >= now(), col("zoned").is_in([now(), NOON]), ~(col("plain") == now())])
def test_unresolved_ones_are_never_compared(expr: Expression) -> None:
    with pytest.raises(PredicateTypeError):
        compile_filter(expr, TYPES)
    for domain in (Domain.TIMESTAMP, Domain.DATE, Domain.INTEGER):
        with pytest.raises(UsageError, match="now"):
            domain_of(ValueKind(domain, unit="us")).to_key(now())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Rows of the last 100 hours, half an hour off the full ones."""
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=30)
    moments = [moment - dt.timedelta(hours=hours) for hours in range(100)]
    plain = [when.replace(tzinfo=None) for when in moments]
    table = pa.table(
        {
            "zoned": pa.array(moments, pa.timestamp("ms", "America/New_York")),
            "plain": pa.array(plain, pa.timestamp("us")),
            "struct": pa.array([{"at": np.datetime64(when, "ns")} for when in plain], TYPES["struct"]),
            "day": [when.date() for when in moments],
        }
    )
    path = tmp_path / "moments.parquet"
    pq.write_table(table, path, row_group_size=10, write_page_index=True)
    return path


@pytest.mark.parametrize("column", ["zoned", "plain", "struct.at"])
async def test_reads(path: Path, column: str) -> None:
    day = dt.timedelta(days=1)
    async with asyncpq.open_file(path) as file:
        assert await file.count(col(column) >= now() - day) == 24
        assert await file.count(~(col(column) >= now() - day)) == 76
        assert await file.count([(column, ">", now() - 2 * day), (column, "<=", now() - day)]) == 24
        assert (await file.read(["day"], col(column) > now())).num_rows == 0
        plan = await file.plan(where=col(column) >= now() - day)
        assert plan.pruning.row_groups_kept == 3


async def test_explained_as_resolved(path: Path) -> None:
    async with asyncpq.open_file(path) as file:
        before = dt.datetime.now(dt.UTC)
        where = (await file.plan(where=col("zoned") >= now() - WEEK)).where
        after = dt.datetime.now(dt.UTC)
    assert where is not None
    resolved, _, asked = where.partition(" (that is ")
    assert asked == "zoned >= now - 7 days)"
    assert before - WEEK <= dt.datetime.fromisoformat(resolved.removeprefix("zoned >= ")) <= after - WEEK


async def test_a_read_that_starts_again_keeps_its_instant(path: Path) -> None:
    where = col("zoned") >= now()
    async with asyncpq.open_file(path) as file:
        preparation = file._prepare("read", ScanRequest(where=where, unresolved=where))
        with preparation.operation:
            await preparation.prepare(scan=False)
            first = preparation.request.where
            await preparation.prepare(scan=False)
        assert preparation.request.where == first


async def test_bad_questions(path: Path) -> None:
    async with asyncpq.open_file(path) as file:
        with pytest.raises(PredicateTypeError, match="date") as caught:
            await file.count(col("day") >= now() - WEEK)
        assert caught.value.url == str(path)
        with pytest.raises(QueryError, match="not times relative to now"):
            await file.lookup({"zoned": now()})
        with pytest.raises(QueryError, match="no such column"):
            await file.count(col("zzz") >= now())


# the module: the package has a function of its name
simplify = importlib.import_module("asyncpq.expressions.simplify")


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, list[Any]], Expression]:
    """Small tables, and predicates that name the same column again and again."""
    kinds = {f"c{at}": draw(KINDS) for at in range(draw(st.integers(1, 2)))}
    num_rows = draw(st.integers(1, 8))
    values = {name: draw(arrays(kind, min_size=num_rows, max_size=num_rows)) for name, kind in kinds.items()}
    leaf = st.one_of([atoms(name, kind) for name, kind in kinds.items()])
    conjunction = st.lists(st.one_of(leaf, leaf.map(Not)), min_size=2, max_size=4).map(lambda args: And(tuple(args)))
    return (
        kinds,
        values,
        draw(st.one_of(trees(leaf), conjunction, st.builds(lambda *args: Or(args), conjunction, leaf))),
    )


# Few values, and literals of several types near them, so that atoms of one column touch and exclude each other.
_SINGLE = struct.unpack("<f", struct.pack("<f", 0.1))[0]
_NEAR: dict[str, tuple[list[Any], list[Any]]] = {
    "int32": ([-1, 0, 1], [0, 1, -0.0, 0.5, 1.0, Decimal("0.5"), float("nan")]),
    "float32": ([0.0, -0.0, _SINGLE, 1.0, float("nan")], [0, 0.0, -0.0, 0.1, _SINGLE, Decimal("0.1"), float("nan")]),
    "float64": ([0.0, -0.0, 0.1, float("nan")], [0, 0.0, -0.0, 0.1, Decimal("0.1"), float("nan")]),
    "decimal": ([Decimal("0.10"), Decimal("0.11")], [Decimal("0.1"), 0.1, 0, Decimal("0.105"), 0.11]),
    "string": (["", "a", "ab", "b"], ["", "a", "ab", "b"]),
}


@st.composite
def near_cases(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, list[Any]], Expression]:
    """One column of few values, and predicates on it."""
    kind = draw(st.sampled_from(list(_NEAR)))
    values, literals = _NEAR[kind]
    leaf = atoms("c0", kind, foreign=False, own=st.sampled_from(literals))
    either = st.one_of(leaf, leaf.map(Not))
    both = st.builds(lambda *args: And(args), either, either)
    expr = draw(st.one_of(both, st.builds(lambda *args: Or(args), both, either), either))
    return {"c0": kind}, {"c0": [*values, None]}, draw(st.sampled_from([expr, Not(Not(expr)), And((expr,))]))


def compiled(
    expr: Expression, kinds: dict[str, str], values: dict[str, list[Any]]
) -> tuple[list[int], tuple[Any, ...]]:
    """The rows for which the filter is true, and the atoms whose literals it casts."""
    data = {name: array(kind, values[name]) for name, kind in kinds.items()}
    try:
        found = compile_filter(expr, {name: COLUMNS[kind][0] for name, kind in kinds.items()})
        num_rows = len(next(iter(values.values())))
        mask = found.mask({name: data[name] for name in found.columns}, num_rows)
    except PredicateTypeError:
        assume(False)
    return [row for row, result in enumerate(mask.to_pylist()) if result], found.engine_atoms


@pytest.mark.heavy
@settings(max_examples=examples(120, thorough=1000))
@given(cases() | near_cases() | near_cases())
def test_matching_rows_are_in_the_ranges(case: tuple[dict[str, str], dict[str, list[Any]], Expression]) -> None:
    kinds, values, expr = case
    rows, inexact = compiled(expr, kinds, values)
    ranges = column_ranges(expr, inexact)
    assert is_unsatisfiable(expr, inexact) is (ranges is None)
    if ranges is None:
        assert not rows
        return
    for name, found in ranges.items():
        for row in rows:
            assert values[name][row] in found, (str(expr), str(found))
        for before, after in zip(found.intervals, found.intervals[1:], strict=False):
            assert not intersect(simplify._keyed((before,)), simplify._keyed((after,)))


@settings(max_examples=examples(75, thorough=500))
@given(cases() | near_cases())
def test_without_contradictions_the_rows_are_the_same(
    case: tuple[dict[str, str], dict[str, list[Any]], Expression],
) -> None:
    kinds, values, expr = case
    rows, inexact = compiled(expr, kinds, values)
    shorter = without_contradictions(expr, inexact)
    assert compiled(shorter, kinds, values)[0] == rows
    args = expr.args if isinstance(expr, And) else ()
    flat = not any(isinstance(arg, (And, Or)) for arg in map(_inner, args))
    if args and flat and is_unsatisfiable(expr, inexact) and not any(is_unsatisfiable(arg, inexact) for arg in args):
        assert shorter == Constant(False)


def _inner(expr: Expression) -> Expression:
    return _inner(expr.arg) if isinstance(expr, Not) else expr


@settings(max_examples=examples(120, thorough=1000))
@given(st.sampled_from(["int32", "string", "date32", "timestamp_us", "timestamp_utc"]), st.data())
def test_ranges_of_their_own_literals_are_tight(kind: str, data: st.DataObject) -> None:
    """Where one column alone is asked, each end of its ranges is one at which the answer changes."""
    literals = st.one_of([atoms("c0", kind, foreign=False)])
    expr = data.draw(st.one_of(literals, literals.map(Not), st.builds(lambda *args: And(args), literals, literals)))
    assume(not uses(expr, *INSIDE))
    ranges = column_ranges(expr)
    for value in data.draw(arrays(kind, min_size=4)):
        if ranges is None:
            assert not model(expr, {"c0": value})
        elif "null or nan" not in str(expr) and value != 0:  # ranges do not tell -0.0 from 0.0
            found = "c0" not in ranges or value in ranges["c0"]
            assert found is bool(model(expr, {"c0": value}))


_ENDS = st.none() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.5])


@st.composite
def interval_sets(draw: st.DrawFn) -> Intervals:
    found: Intervals = ()
    for _ in range(draw(st.integers(0, 3))):
        low, high = draw(_ENDS), draw(_ENDS)
        if low is not None and high is not None and low >= high:
            low, high = high, low
        both = low is not None and low == high
        found = unite(found, (Interval(low, high, not both and draw(st.booleans()), not both and draw(st.booleans())),))
    return found


def _holds(intervals: Intervals, value: float) -> bool:
    return any(
        (one.low is None or (value > one.low if one.low_open else value >= one.low))
        and (one.high is None or (value < one.high if one.high_open else value <= one.high))
        for one in intervals
    )


@settings(max_examples=examples(200, thorough=1000))
@given(interval_sets(), interval_sets())
def test_sets_of_intervals(left: Intervals, right: Intervals) -> None:
    for step in range(-17, 18):
        value = step / 4
        assert _holds(intersect(left, right), value) is (_holds(left, value) and _holds(right, value))
        assert _holds(unite(left, right), value) is (_holds(left, value) or _holds(right, value))
        assert _holds(complement(left), value) is not _holds(left, value)


@pytest.mark.heavy
@given(st.text(max_size=3), st.text(max_size=3))
@example("a", "b")
@example("a\ud7ff", "a\ue000")
@example("a\U0010ffff", "b")
@example("\U0010ffff", "\U0010ffff")
def test_prefixes(prefix: str, text: str) -> None:
    assume(not any(0xD800 <= ord(char) <= 0xDFFF for char in prefix + text))
    (found,) = (column_ranges(StartsWith("s", prefix)) or {}).values()
    assert (text in found) is text.startswith(prefix)
    raw = (column_ranges(StartsWith("s", prefix.encode())) or {})["s"]
    assert (text.encode() in raw) is text.encode().startswith(prefix.encode())


def test_literals_of_two_kinds_do_not_contradict() -> None:
    a = col("a")
    assert column_ranges((a == "x") & (a == 1)) is not None
    assert column_ranges((a == "x") | (a == 1)) == {"a": ValueRanges(null=False, nan=False)}
    assert str((column_ranges(a.is_in(["x", 1])) or {})["a"]) == "any value or nan"


def test_moments_are_ordered_by_their_instants() -> None:
    paris = dt.timezone(dt.timedelta(hours=2))
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    at = column_ranges(col("t") == noon)
    assert at is not None
    assert noon.astimezone(paris) in at["t"]
    assert noon + dt.timedelta(microseconds=1) not in at["t"]
    assert is_unsatisfiable((col("t") == noon) & (col("t") > noon.astimezone(paris)))
    assert not is_unsatisfiable((col("t") == noon) & (col("t") > noon.replace(tzinfo=None)))
    assert is_unsatisfiable((col("t") == Timestamp(1, "UTC")) & (col("t") < dt.datetime(1970, 1, 1, tzinfo=paris)))


def test_thousands_of_branches_cost_little_more_than_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition of a few kilobytes would hold up the event loop for seconds."""
    passed = 0

    def counted(join: Callable[[Intervals, Intervals], Intervals]) -> Callable[[Intervals, Intervals], Intervals]:
        def joined(left: Intervals, right: Intervals) -> Intervals:
            nonlocal passed
            passed += len(left) + len(right)
            return join(left, right)

        return joined

    monkeypatch.setattr(simplify, "unite", counted(unite))
    monkeypatch.setattr(simplify, "intersect", counted(intersect))
    keys = range(0, 2048, 2)
    some = column_ranges(Or(tuple([col("a") == key for key in keys])))
    others = column_ranges(And(tuple([col("a") != key for key in keys])))
    assert some is not None
    assert others is not None
    assert some["a"].intervals == tuple([Interval(key, key) for key in keys])
    assert others["a"].intervals == complement(some["a"].intervals)
    assert passed < 4 * len(keys) * 11


FLOATS = [0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), 7.0]
TABLE = pa.table({"x": [*FLOATS, None], "n": [*range(8), None], "t": [*"abcdefgh", None], "row": range(9)})
VALUES = {"x": [*FLOATS, 0, 3, 9], "n": [*range(-1, 11), 1.5, 2.0], "t": [*"abcxyz"]}


@given(st.data())
@settings(max_examples=examples(60, thorough=1000))
def test_the_rows_are_those_of_the_comparisons(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(st.sampled_from(VALUES[name]), min_size=16, max_size=40))
    op, join = data.draw(st.sampled_from([(operator.eq, operator.or_), (operator.ne, operator.and_)]))
    terms = [op(col(name), value) for value in values]
    arrow = [op(pc.field(name), value) for value in values]
    if data.draw(st.booleans()):
        terms.insert(data.draw(st.integers(0, len(terms))), col("n") > 5)
        arrow.append(pc.field("n") > 5)
    where, expected = reduce(join, terms), reduce(join, arrow)
    if data.draw(st.booleans()):
        where, expected = ~where, ~expected
    made = parse_where(where)
    assert len(list(expressions.atoms(made))) <= 2
    mask = compile_filter(made, TABLE.schema).mask({key: TABLE[key].combine_chunks() for key in TABLE.column_names}, 9)
    assert TABLE["row"].filter(mask) == TABLE.filter(expected)["row"], made


def test_comparisons_with_nan_alone() -> None:
    for values in ([float("nan")] * 20, [float("nan")] * 20 + [1.0]):
        where: Any = ~reduce(operator.or_, [col("x") == value for value in values])
        expected: Any = ~reduce(operator.or_, [pc.field("x") == value for value in values])
        mask = compile_filter(parse_where(where), TABLE.schema).mask({"x": TABLE["x"].combine_chunks()}, 9)
        assert TABLE["row"].filter(mask) == TABLE.filter(expected)["row"]


def test_few_comparisons_and_other_ones_stay() -> None:
    few: Any = reduce(operator.or_, [col("n") == value for value in range(15)])
    assert with_key_sets(few) is few
    columns: Any = reduce(operator.or_, [col(f"c{value}") == value for value in range(30)])
    assert with_key_sets(columns) == columns
    nulls: Any = Or(tuple(col("n") == None for _ in range(20)))  # noqa: E711  # as parsed from SQL
    assert with_key_sets(nulls) == nulls


@pytest.mark.parametrize(
    "where",
    [
        " OR ".join(f"n = {value}" for value in range(20)),
        [[("n", "=", value)] for value in range(20)],
        reduce(operator.or_, [col("n") == value for value in range(20)]),
        Not(Not(reduce(operator.or_, [col("n") == value for value in range(20)]))),
    ],
)
def test_forms(where: object) -> None:
    made = parse_where(where)
    while isinstance(made, Not):
        made = made.arg
    assert made == KeyIn("n", tuple(range(20)))


def test_inside_of_others() -> None:
    many: Expression = reduce(operator.and_, [col("n") != value for value in range(20)])
    made = parse_where((col("t") == "a") | (many & (col("x") > 1)))
    assert made == (col("t") == "a") | (Not(KeyIn("n", tuple(range(20)))) & (col("x") > 1))
