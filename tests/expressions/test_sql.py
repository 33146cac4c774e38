"""Conditions in SQL: the rows are DuckDB's for the same text, nulls included, or the error says what to write."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.blocking import BlockingDataset, BlockingFile, BlockingSession
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import ExpressionError, PredicateTypeError, UsageError
from asyncpq.expressions import Expression, parse_where, tree
from asyncpq.expressions.scalars import Untyped
from asyncpq.expressions.sql import like, parse_sql
from asyncpq.expressions.sql_operands import dialect

UTC = dt.UTC
MOMENTS = [dt.datetime(2024, 1, 1), dt.datetime(2024, 5, 1, 12, 30), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]
UUIDS = [uuid.UUID(int=number << 120 | 7) for number in (1, 2, 255)]
TEXTS = [
    "",
    "a",
    "ab",
    "b%",
    "a_b",
    "a\\b",
    "\\",
    "%",
    "Straße",
    "a\nb",
    "it's",
    "é",
    "AB",
    "É",
    "ſ",  # noqa: RUF001
    "K",
    "İ",
    "ΣΑΣ",
    "ǅ",
]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [-5, 0, 1, 2, 3, 41, 42, 2**60]),
    "j": (pa.int32(), [-5, 0, 1, 2, 3]),
    "u": (pa.uint8(), [0, 1, 2, 255]),
    "x": (pa.float64(), [-1.5, 0.0, 0.1, 0.3, 2.0, 1e300]),
    "f": (pa.float32(), [-1.5, 0.0, 0.1, 0.3, 2.0]),
    "n": (pa.decimal128(12, 2), [Decimal(text) for text in ("-1.50", "0.00", "0.10", "0.30", "2.00")]),
    "b": (pa.bool_(), [True, False]),
    "s": (pa.string(), TEXTS),
    "z": (pa.binary(), [b"", b"a", b"\x00\xff", b"ab"]),
    "d": (pa.date32(), [moment.date() for moment in MOMENTS]),
    "t": (pa.timestamp("us"), MOMENTS),
    "w": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "c": (pa.time64("us"), [dt.time(0), dt.time(12, 30), dt.time(23, 59, 59, 999_999)]),
    "g": (pa.uuid(), [one.bytes for one in UUIDS]),
    "Two words": (pa.int64(), [1, 2]),
    "st": (pa.struct({"x": pa.int64(), "in": pa.struct({"y": pa.string()})}), []),
    "l": (pa.list_(pa.int64()), [[1, 2], [], [3]]),
}


def table() -> pa.Table:
    """Return rows of all values, nulls between them, in an order of their own for each column."""
    rows = 120
    columns: dict[str, pa.Array] = {}
    for number, (name, (type_, values)) in enumerate(COLUMNS.items()):
        if name == "st":
            values = [{"x": 1, "in": {"y": "a"}}, {"x": None, "in": {"y": None}}, {"x": 2, "in": None}]
        order = [*values, None]
        column = [order[(row * (number * 2 + 3) + row // 7) % len(order)] for row in range(rows)]
        storage = pa.binary(16) if type_ == pa.uuid() else type_
        array = pa.array(column, storage)
        columns[name] = pa.ExtensionArray.from_storage(type_, array) if type_ == pa.uuid() else array
    return pa.table({"row": pa.array(range(rows), pa.int64()), **columns})


TABLE = table()


class World:
    """The table as a file with small row groups and pages, as a dataset, and in DuckDB."""

    def __init__(self, folder: Path, session: BlockingSession) -> None:
        path = folder / "t.parquet"
        ordered = TABLE.sort_by("i")  # so that statistics rule out pages
        pq.write_table(ordered, path, row_group_size=30, data_page_size=64, write_batch_size=8, write_page_index=True)
        self.file: BlockingFile = session.open_file(path)
        self.dataset: BlockingDataset = session.open_dataset(f"{folder}/")
        self.db = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")
        # A table of its own: DuckDB cannot push down all conditions into a scan of Arrow's.
        self.db.register("arrow", TABLE)
        self.db.execute("CREATE TABLE t AS SELECT * FROM arrow")

    def duckdb(self, text: str) -> list[int]:
        return [row for (row,) in self.db.execute(f"SELECT row FROM t WHERE {text} ORDER BY row").fetchall()]

    def rows(self, text: str) -> list[int]:
        found: list[int] = sorted(self.file.read(["row"], text).column("row").to_pylist())
        assert sorted(self.dataset.read(["row"], text).column("row").to_pylist()) == found
        assert self.file.count(text) == len(found)
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BlockingSession() as session:
        yield World(tmp_path_factory.mktemp("sql"), session)


SAME = [
    "i = 42 AND s LIKE 'a%'",
    "i = 1 OR i IS NULL",
    "NOT (i = 1)",
    "i <> 1",
    "i != 1 AND NOT i > 5",
    "i IN (1, 2)",
    "i NOT IN (1, 2)",
    "i IN (1, NULL)",
    "i NOT IN (1, NULL)",
    "i IN (1.5, 2.0)",
    "x IN (0, 0.3)",
    "x NOT IN (0, 0.3)",
    "s IN ('a', 'b%') OR s IS NULL",
    "i BETWEEN 1 AND 3",
    "i NOT BETWEEN 1 AND 3",
    "i BETWEEN NULL AND 3",
    "NOT (i BETWEEN NULL AND 1)",
    "2 BETWEEN j AND i",
    "i = NULL",
    "i IS NOT NULL AND j IS NULL",
    "1 = 1 AND i < 3",
    "1 = 2 OR i < 3",
    "NULL OR i = 1",
    "NOT (NULL AND i = 1)",
    "3 > i",
    "42 <= i",
    "i = j",
    "j < x",
    "i > 1.5",
    "i = 1.0",
    "i < 1e2",
    "i > -5",
    "i = - -1",
    "i < 1152921504606846977",
    "x = 0.3",
    "x <= 0.3",
    "x < .3",
    "x = 0",
    "x = -0.0",
    "f = 0.1",
    "f > 0.1",
    "f <= 0.3",
    "n = 0.3",
    "n = 0.30",
    "n > 0.25",
    "n IN (0.1, 2)",
    "n < 1e0",
    "u = 255",
    "u < 300",
    "b",
    "NOT b",
    "b = TRUE",
    "b IS TRUE",
    "b IS NOT TRUE",
    "b IS FALSE OR i = 1",
    "s = 'a'",
    "s >= 'a' AND s < 'b'",
    "s = 'it''s'",
    "s LIKE 'a%'",
    "s LIKE '%b'",
    "s LIKE '%b%'",
    "s LIKE '_'",
    "s LIKE 'a_b'",
    "s NOT LIKE 'a%'",
    "NOT s LIKE '%%'",
    "s LIKE 'a'",
    "s LIKE ''",
    "s LIKE 'a!_b' ESCAPE '!'",
    "s NOT LIKE '%!%' ESCAPE '!'",
    "s LIKE 'a\\b'",
    "s LIKE 'a\\%'",
    "s LIKE '%\\b'",
    "s LIKE '%\\%'",
    "s LIKE '_\\_'",
    "s LIKE '\\'",
    "s LIKE 'Stra_e'",
    "s ILIKE 'A%'",
    "s ILIKE 'STRASSE'",
    "s ILIKE 'straß_'",
    "s NOT ILIKE '%b%'",
    "NOT s ILIKE 'AB'",
    "s ILIKE 's'",
    "s ILIKE 'k'",
    "s ILIKE 'i'",
    "s ILIKE 'İ'",
    "s ILIKE 'σας'",
    "s ILIKE '_σ%'",  # noqa: RUF001
    "s ILIKE 'ǆ'",
    "s ILIKE 'A!_B' ESCAPE '!'",
    "s ILIKE 'A\\B'",
    "s ILIKE NULL",
    "lower(s) = 'ab'",
    "'ab' = lower(s)",
    "lower(s) <> 'ab'",
    "LOWER(s) LIKE 'str%'",
    "lower(s) = 'AB'",
    "upper(s) = 'AB'",
    "upper(s) = 'STRASSE' OR upper(s) = 'É'",
    "upper(s) IN ('AB', 'É', 'S', 'İ')",
    "upper(s) NOT IN ('AB', NULL)",
    "lower(s) IS NULL",
    "upper(s) BETWEEN 'A' AND 'C'",
    "lower(s) >= 'a' AND NOT lower(s) < 'b'",
    "starts_with(lower(s), 'str')",
    "contains(upper(s), 'B')",
    "lower(st.in.y) = 'a'",
    "i % 3 = 1",
    "i % 3 = -2",
    "i % -3 = 2",
    "i % 3 <> 0",
    "1 = i % 2",
    "i % 7 IN (1, 3)",
    "i % 7 NOT IN (1, 3)",
    "i % 10 BETWEEN 1 AND 2",
    "i % 3 IS NULL",
    "mod(i, 5) > 1",
    "j % 4 = 3 AND i % 2 = 0",
    "u % 2 = 1",
    "u % 300 = 255",
    "u % 4 < 0",
    "i % 9223372036854775807 = 42",
    "i % 2 = 0.5",
    "st.x % 2 = 0",
    "starts_with(s, 'a')",
    "contains(s, 'b')",
    "d = DATE '2024-05-01'",
    "d >= '2024-01-01'",
    "d > CAST('2024-01-01' AS DATE)",
    "d IN ('2024-01-01', '2024-05-01')",
    "d < TIMESTAMP '2024-05-01 12:00:00'",
    "t = TIMESTAMP '2024-05-01 12:30:00'",
    "t > '2024-01-01'",
    "t <= '2024-05-01 12:30:00'",
    "t > DATE '2024-01-01'",
    "t < TIMESTAMP '1970-01-01 00:00:00'",
    "w = TIMESTAMPTZ '2024-05-01 14:30:00+02:00'",
    "w >= '2024-05-01 12:30:00Z'",
    "w < TIMESTAMP WITH TIME ZONE '2024-05-01 12:30:00+00:00'",
    "c = TIME '12:30:00'",
    "c > '12:00:00'",
    "g = '01000000-0000-0000-0000-000000000007'",
    "g <> UUID '01000000-0000-0000-0000-000000000007'",
    "g IN ('ff000000-0000-0000-0000-000000000007')",
    "z = 'a'",
    "i = CAST(42 AS BIGINT)",
    "i = CAST('42' AS INTEGER)",
    "i = '42'::BIGINT",
    "n = CAST('0.30' AS DECIMAL(5, 2))",
    "x = CAST(0.3 AS DOUBLE)",
    "i = CAST(NULL AS BIGINT)",
    'i = 1 AND "Two words" = 1',
    '"Two words" > 1 -- a comment',
    "st.x = 1",
    "st.x IS NULL",
    "st.in.y = 'a'",
    'st."in"."y" = \'a\' AND "st".x < 5',
    "list_contains(l, 1)",
    "NOT list_contains(l, 1)",
    "i IS DISTINCT FROM 1",
    "i IS NOT DISTINCT FROM 1",
    "i IS NOT DISTINCT FROM NULL",
    "i IS DISTINCT FROM j",
    "i IS NOT DISTINCT FROM j",
    "((i = 1)) OR ((((j = 2))))",
    "i = 1 OR j = 2 AND b",
    "NOT i = 1 AND j = 2",
    "t < now() - INTERVAL '7 days'",
    "w < CURRENT_TIMESTAMP - INTERVAL '7' DAY",
]


@pytest.mark.parametrize("text", SAME)
def test_rows_are_duckdbs(world: World, text: str) -> None:
    # DuckDB compares no timestamp without a zone with now(), which has one, unless it is cast
    theirs = text.replace("t < now() - INTERVAL '7 days'", "t < (now() AT TIME ZONE 'UTC') - INTERVAL '7 days'")
    theirs = theirs.replace("st.in.y", 'st."in".y')
    assert world.rows(text) == world.duckdb(theirs)


def test_bytes_are_hexadecimal(world: World) -> None:
    assert world.rows("z = X'00ff'") == world.duckdb("z = '\\x00\\xFF'::BLOB")
    assert world.rows("z IN (x'', X'61')") == world.duckdb("z IN (''::BLOB, 'a'::BLOB)")


def test_nan_follows_ieee_and_not_duckdb() -> None:
    # DuckDB sorts NaN above all numbers and finds it equal to itself; see docs/filter.md
    values = pa.table({"x": [1.0, float("nan"), None]})
    rows = {"x > 0": [0], "NOT (x > 0)": [1], "x = x": [0], "isnan(x)": [1], "NOT isnan(x)": [0], "x <> 1": [1]}
    for text, expected in rows.items():
        assert _matching(text, values) == expected, text


def test_both_zeros_are_equal_among_values_too() -> None:
    # DuckDB finds 0.0 equal to -0.0, but not IN (0.0, 1.0): IN is an OR of equalities for ANSI
    values = pa.table({"x": [0.0, -0.0, 1.0, None]})
    for text in ("x = 0", "x IN (0, 2)", "x = -0.0", "x NOT IN (1, 2)"):
        assert _matching(text, values) == [0, 1], text


def test_letters_that_python_does_not_know_ignore_case() -> None:
    # pyarrow knows some of a later Unicode than Python, and DuckDB neither
    values = pc.utf8_lower(letters := pa.array([chr(code) for code in range(0xA720, 0xA800)]))
    for text, small in zip(letters.to_pylist(), values.to_pylist(), strict=True):
        assert _matching(f"s ILIKE '{text}'", pa.table({"s": [text, small, "-"]})) == [0, 1], ascii(text)


def _matching(text: str, values: pa.Table) -> list[int]:
    from asyncpq.decoding.column_literals import resolve_literals
    from asyncpq.decoding.filter import compile_filter

    expr = resolve_literals(parse_sql(text), dt.datetime.now(UTC), values.schema)
    arrays = {name: values.column(name) for name in values.column_names}
    mask = compile_filter(expr, values.schema).mask(arrays, values.num_rows)
    return [row for row, keep in enumerate(mask.to_pylist()) if keep]


def _literals(name: str) -> st.SearchStrategy[str]:
    def quoted(value: object) -> str:
        return "'" + str(value).replace("'", "''") + "'"

    numbers = st.sampled_from(["-5", "0", "1", "2", "3", "42", "0.1", "0.3", "-1.5", "1.5", "2.00", "255"])
    values = list(COLUMNS[name][1])
    if name in "ijuxfn":
        return numbers
    if name == "b":
        return st.sampled_from(["TRUE", "FALSE"])
    if name == "g":
        return st.sampled_from([quoted(uuid.UUID(bytes=value)) for value in values])
    if name == "d":
        return st.sampled_from([*[quoted(value) for value in values], "DATE '2024-02-29'"])
    if name in "tw":
        return st.sampled_from([quoted(value.isoformat(" ")) for value in values])
    return st.sampled_from([quoted(value) for value in values])


@st.composite
def _conditions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth and draw(st.booleans()):
        if draw(st.integers(0, 3)) == 0:
            return f"NOT ({draw(_conditions(depth=depth - 1))})"
        join = draw(st.sampled_from([" AND ", " OR "]))
        return join.join(f"({draw(_conditions(depth=depth - 1))})" for _ in range(draw(st.integers(2, 3))))
    name = draw(st.sampled_from("ijuxfnbsdtwcg"))
    literal = st.one_of(_literals(name), *([st.just("NULL")] if draw(st.integers(0, 4)) == 0 else []))
    form = draw(
        st.sampled_from(["compare", "compare", "in", "between", "null", "distinct", "like", "columns", "mod", "case"])
    )
    negated = draw(st.sampled_from(["", "NOT "]))
    if form == "in":
        return f"{name} {negated}IN ({', '.join(draw(st.lists(literal, min_size=1, max_size=4)))})"
    if form == "between":
        return f"{name} {negated}BETWEEN {draw(literal)} AND {draw(literal)}"
    if form == "null":
        return f"{name} IS {negated}NULL"
    if form == "distinct":
        return f"{name} IS {negated}DISTINCT FROM {draw(literal)}"
    if form == "like":
        pattern = draw(st.text("abAB%_\\éÉ", max_size=4)).replace("'", "''")
        return f"s {negated}{draw(st.sampled_from(['LIKE', 'ILIKE']))} '{pattern}'"
    if form == "case":
        text = draw(st.sampled_from(TEXTS)).replace("'", "''")
        return (
            f"{draw(st.sampled_from(['lower', 'upper']))}(s) {draw(st.sampled_from(['=', '<>', '<', '>=']))} '{text}'"
        )
    if form == "mod":
        divisor, rest = draw(st.integers(1, 50)), draw(st.integers(-3, 3))
        remainder = f"{draw(st.sampled_from('iju'))} % {draw(st.sampled_from(['', '-']))}{divisor}"
        return f"{remainder} {negated}IN ({rest}, {divisor // 2})"
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    if form == "columns":
        return f"{draw(st.sampled_from('ij'))} {op} {draw(st.sampled_from('ij'))}"
    sides = [name, draw(literal)]
    return f"{sides[0]} {op} {sides[1]}" if draw(st.booleans()) else f"{sides[1]} {op} {sides[0]}"


@given(_conditions())
def test_random_conditions_have_the_rows_of_duckdb(world: World, text: str) -> None:
    assert world.rows(text) == world.duckdb(text)


# -- as expressions -------------------------------------------------------------------------------

EXPRESSIONS: list[tuple[str, Expression]] = [
    ("id = 42", col("id") == 42),
    ("id = 42 AND name LIKE 'a%'", (col("id") == 42) & col("name").like("a%")),
    ("a OR NOT b", (col("a") == True) | ~(col("b") == True)),  # noqa: E712
    ("x IN (1, 2)", tree.KeyIn("x", (1, 2))),
    ("x IN (1, NULL)", (col("x") == 1) | tree.Constant(None)),
    ("has_tokens(s, 'New York')", col("s").has_tokens("New York")),
    ("has_phrase(s, 'New York')", col("s").has_phrase("New York")),
    ("array_contains(tags, 3)", col("tags").has(3)),
    ("x = 0.3", tree.Comparison("x", "==", Untyped("0.3", is_number=True))),
    ("x = -16777217", tree.Comparison("x", "==", Untyped("-16777217", is_number=True))),
    ("x = 'a'", tree.Comparison("x", "==", Untyped("a", is_number=False))),
    ("x = CAST('a' AS VARCHAR(1))", col("x") == "a"),
    ("t = TIMESTAMP '2024-05-01 00:00:00+02:00'", col("t") == dt.datetime(2024, 4, 30, 22, tzinfo=UTC)),
    ("d > INTERVAL '90' MINUTE", col("d") > dt.timedelta(minutes=90)),
    ("d > -INTERVAL '1.5 hours'", col("d") > dt.timedelta(minutes=-90)),
    ("t > now() - INTERVAL 2 WEEK", col("t") > asyncpq.now() - dt.timedelta(weeks=2)),
]


@pytest.mark.parametrize(("text", "expected"), EXPRESSIONS)
def test_conditions_become_expressions(text: str, expected: Expression) -> None:
    assert parse_sql(text) == expected


@pytest.mark.parametrize("text", ["x > 1 OR y LIKE 'a%' AND NOT z IN (1, 2)", "x > 1; y > 2"])
def test_what_is_parsed_is_free_at_once(text: str) -> None:
    """sqlglot's nodes link to their parents: the garbage collector, which stops all threads, would run often."""
    found = 0
    for _ in range(2):  # at first, sqlglot makes its tables
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(ExpressionError):
                parse_sql(text)
            found = gc.collect()
        finally:
            gc.enable()
    assert found == 0


def test_a_compiled_sqlglot_parses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the extra sqlglot[c], whose parser cannot be derived from."""
    sqlglot = pytest.importorskip("sqlglot")

    class Compiled(sqlglot.Parser):  # type: ignore[misc, name-defined]
        def __init_subclass__(cls) -> None:
            if cls.__module__.startswith("asyncpq"):
                raise TypeError("interpreted classes cannot inherit from compiled")

    monkeypatch.setattr(sqlglot, "Parser", Compiled)
    dialect.cache_clear()
    try:
        assert parse_sql("a > 1") == (col("a") > 1)
    finally:
        dialect.cache_clear()


def test_thousands_of_terms_and_values() -> None:
    expr = parse_sql(" OR ".join(f"x > {number}" for number in range(5_000)))
    assert len(list(tree.atoms(expr))) == 5_000
    values = ", ".join(map(str, range(5_000)))
    keys = tree.KeyIn("x", tuple(range(5_000)))
    assert parse_sql(f"x IN ({values})") == keys
    assert parse_sql(" OR ".join(f"x = {number}" for number in range(5_000))) == keys


REFUSED = [
    ("", "is empty"),
    ("-- nothing", "there is no condition"),
    ("id = 1,", "is not one SQL condition"),
    ("id = 1, x = 2", "is not one SQL condition|syntax error"),
    ("id = 1) OR (x = 2", "syntax error"),
    ("id = 1 UNION SELECT 1", "is not one SQL condition"),
    ("id = 1 ORDER BY id", "is not one SQL condition"),
    ("from = 1", '"from" = 1'),
    ("id = 1; id = 2", "is not one SQL condition"),
    ("WHERE id = 1", "syntax error at 'WHERE' .line 1, column 1"),
    ("id = 1\nAND id = 2 foo", "syntax error at 'foo' .line 2, column 12"),
    ("SELECT 1", "syntax error at 'SELECT'"),
    ("id = ", "syntax error"),
    ("id = 1 foo", "syntax error at 'foo' .line 1, column 8"),
    ("id = 1 LIMIT 5", "is not one SQL condition"),
    ("name = 'a", "not closed"),
    ("(id = 1", "syntax error"),
    ("id + 1 = 5", "move calculations to the literal"),
    ("lower('A') = 'a'", "something else than a column"),
    ("lower(upper(name)) = 'a'", "something else than a column"),
    ("lower(name) = other", "function of a column with a column"),
    ("lower(name) ILIKE 'a'", "ILIKE of something else"),
    ("has_tokens(lower(name), 'a')", "does not work on a function"),
    ("isnan(id % 2)", "does not work on a function"),
    ("id % 0 = 1", "remainder of a division"),
    ("id % 2.5 = 1", "remainder of a division"),
    ("id % other = 1", "remainder of a division"),
    ("(id + 1) % 2 = 1", "something else than a column"),
    ("id % 2", "not a condition"),
    ("lower(name)", "not a condition"),
    ("id = 1 + 1", "is a calculation"),
    ("name = u-1", "is a calculation.*Text and dates stand in single quotes"),
    ("day > 2026-05-01", "is a calculation.*day = '2026-05-01'"),
    ("id IN (SELECT 1)", "asyncpq cannot evaluate"),
    ("EXISTS (SELECT 1)", "Read the values"),
    ("id IN (1, other)", "Write x = y OR"),
    ("id IN ()", "has no values"),
    ("id IN 5", r"Write the values of IN in brackets"),
    ("my col = 1", r"have spaces, in double quotes: \"from\" = 1\.$"),
    ("v:a.b = 1 foo", r"try_variant_get"),
    ("(a, b) = (1, 2)", r"\(a = 1 AND b = 2\)"),
    ("name SIMILAR TO 'a'", "Write LIKE"),
    ("name LIKE other", "not text in quotes"),
    ("name LIKE 'a!b' ESCAPE '!'", "wrong pattern"),
    ("name LIKE 'a!' ESCAPE '!'", "ends the pattern"),
    ("name LIKE 'a' ESCAPE ''", "wrong ESCAPE"),
    ("id BETWEEN SYMMETRIC 2 AND 1", "symmetric"),
    ("(a = 1) IS NULL", "is no column"),
    ("(a = 1) = (b = 2)", "neither a column nor a literal"),
    ("a < b < c", "neither a column nor a literal"),
    ("'v' = ANY(tags)", "list_contains"),
    ("tags[1] = 1", "list_contains"),
    ("CAST(day AS DATE) = DATE '2024-01-01'", "whole day of a timestamp"),
    ("x = CAST(1.5 AS INTEGER)", "round"),
    ("x = CAST(300 AS TINYINT)", "out of the range"),
    ("x = CAST(1.234 AS DECIMAL(5, 2))", "exactly"),
    ("x = CAST('abcd' AS VARCHAR(3))", "more than 3"),
    ("x = CAST('1' AS REAL)", "FLOAT are not supported"),
    ("x = CAST('nan' AS DOUBLE)", "finite"),
    ("t = TIMESTAMPTZ '2024-01-01 00:00:00'", "offset"),
    ("t = TIMESTAMP '2024-13-01 00:00:00'", "no literal"),
    ("t = TIMESTAMP(3) '2024-01-01 00:00:00'", "round|syntax"),
    ("d = DATE '1.5.2024'", "such as 2024-05-01"),
    ("d = CURRENT_DATE", "time zone"),
    ("t > now() - INTERVAL '1' MONTH", "no length of time"),
    ("u = UUID 'abc'", "no literal"),
    ("z = X'abc'", "two hexadecimal digits"),
    ("x = 0x1F", "X'1F'"),
    ("x = ?", "Write the value itself"),
    ("foo(x, 1)", "has_tokens"),
    ("has_tokens(x, '!')", "has no word"),
    ("1 = 'a'", "different types"),
    ("'abc'", "is not a condition"),
    ("x = 1e999999999", "too many digits"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_what_has_no_equal_predicate_is_refused(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=says) as caught:
        parse_sql(text)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["set", "begin", "comment", "desc", "cache", "date", "timestamp", "user", "order", "key"]
)
def test_names_that_begin_statements_are_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_sql(f"{name} = 1") == (col(name) == 1)
    assert parse_sql(f'x = 1 AND "{name}" IS NULL') == (col("x") == 1) & col(name).is_null()
    assert caplog.records == []


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ExpressionError, match="nested too deeply"):
        parse_sql("(" * 5_000 + "x = 1" + ")" * 5_000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("i = '42'", "without quotes"),
        ("b = 'true'", "without quotes"),
        ("d = 'tomorrow'", "such as 2024-05-01"),
        ("w = '2024-05-01'", "offset"),
        ("t = '2024-05-01 00:00:00Z'", "without an offset"),
        ("g = 'abc'", "badly formed"),
        ("x = 1e400", "out of the type's range"),
        ("s = 1.5", "cannot be"),
        ("i", "cannot be"),
    ],
)
def test_literals_that_do_not_fit_their_column_are_refused(world: World, text: str, says: str) -> None:
    for read in (world.file.read, world.dataset.read):
        with pytest.raises(PredicateTypeError, match=says):
            read(["row"], text)


def test_every_verb_takes_sql(world: World) -> None:
    text = "i = 42 AND x >= 0.1"
    expected = world.rows(text)
    assert expected
    for target in (world.file, world.dataset):
        assert target.count(text) == len(expected)
        assert sorted(target.scan(["row"], text).to_table().column("row").to_pylist()) == expected
        assert "42" in target.plan(["row"], text).explain()
    assert world.dataset.files(text) == world.dataset.files()
    assert world.dataset.files("i = 42 AND i = 43") == []


def test_statistics_rule_out_pages_by_sql(world: World) -> None:
    with asyncpq.measure() as cost:
        world.file.read(["row"], "i >= 1152921504606846976")
    assert 0 < cost.row_groups_read < world.file.num_row_groups


def test_without_sqlglot_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    monkeypatch.setitem(sys.modules, "sqlglot.errors", None)
    with pytest.raises(UsageError, match=r"Install sqlglot: pip install .*\[cli\]"):
        parse_sql("id = 1")


def test_sqlglot_is_loaded_only_for_sql() -> None:
    code = "import sys, asyncpq, asyncpq.file, asyncpq.dataset; assert not [m for m in sys.modules if 'sqlglot' in m]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_boxes_of_geometries() -> None:
    assert parse_sql("intersects_box(geometry, -5.5, 0, 1e1, 47.25)") == col("geometry").intersects_box(
        -5.5, 0, 10, 47.25
    )
    for text in ("intersects_box(g, 1, 2, 3)", "intersects_box(g, '1', 2, 3, 4)", "intersects_box(g, 1, 4, 3, 2)"):
        with pytest.raises(ExpressionError):
            parse_sql(text)


@pytest.mark.parametrize(
    "text", ["intersects_box(g, 1, 2, 3)", "intersects_box(g)", "intersects_box(g, 1, 2, 3, 4, 9)"]
)
def test_boxes_need_four_numbers(text: str) -> None:
    with pytest.raises(ExpressionError, match="needs four numbers"):
        parse_sql(text)


def test_the_empty_name_is_a_column() -> None:
    assert parse_sql('"" = 7') == (col("") == 7)
    assert parse_sql('st."" = 7') == (col("st.") == 7)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("id > 1 LIMIT 5", "Leave out LIMIT: the limit is an option of its own."),
        ("LIMIT 5", "Leave out LIMIT: the limit is an option of its own."),
        ("id > 1 order  by id", "Leave out ORDER BY: "),
        ("id > 1 GROUP BY id", "Leave out GROUP BY: "),
        ("WHERE id > 1", "Leave out the words up to WHERE: "),
        ("SELECT * FROM t WHERE id > 1", "Leave out the words up to WHERE: "),
    ],
)
def test_a_whole_query_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_sql(text)
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize("text", ["name = 'a LIMIT 5", '"limit" = 1 AND', "limit = 1 AND AND"])
def test_columns_and_texts_get_no_such_hint(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_sql(text)
    assert "LIMIT" not in str(caught.value.hint)


ALPHABET = "ab%_\\\n.é!"


def matches(pattern: str, escape: str | None, text: str) -> bool:
    found, characters = "", iter(pattern)
    for character in characters:
        if character == escape:
            found += re.escape(next(characters))
        else:
            found += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return re.fullmatch(found, text, re.DOTALL) is not None


PARTS = [*ALPHABET, "!%", "!_", "!!"]
ENDS = st.sampled_from(["", "%", "!%"])
#: A backslash between two ends, which are a wildcard, the same character escaped, or nothing.
BACKSLASHES = st.tuples(ENDS, st.sampled_from(["\\", "a\\", "\\b", "\\\\", "\\!%", "!%\\"]), ENDS).map("".join)


@settings(max_examples=max(200, settings().max_examples))
@given(
    st.tuples(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.booleans())
    | st.tuples(BACKSLASHES, st.just(True)),
    st.lists(st.text(ALPHABET, max_size=5), min_size=1, max_size=20),
)
def test_rows_are_those_of_a_regular_expression(condition: tuple[str, bool], texts: list[str]) -> None:
    pattern, escaped = condition
    escape = "!" if escaped else None
    try:
        expr = like("s", pattern, escape)
    except ValueError:
        assert escaped
        assert re.search(r"!([^%_!]|$)", pattern, re.DOTALL)
        return
    near = re.sub("!(.)", r"\1", pattern, flags=re.DOTALL) if escaped else pattern
    texts = [*texts, near, f"{near}b", f"b{near}"]
    values = pa.array([*texts, None])
    mask = compile_filter(expr, {"s": pa.string()}).mask({"s": values}, len(values))
    assert mask.to_pylist() == [*[matches(pattern, escape, text) for text in texts], None]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"%\!%", [r"\%", r"a\%", r"%\%"]),
        (r"!%\%", [r"%\t", r"%\%"]),
        (r"!%\!%", [r"%\%"]),
        (r"%a\!%", [r"a\%"]),
        (r"%\%", [r"\%", r"a\%", r"a\%b", r"%\t", r"x%\t", r"%\%"]),
    ],
)
def test_an_escaped_percent_at_an_end_is_no_wildcard(pattern: str, found: list[str]) -> None:
    values = pa.array([r"\%", r"a\%", r"a\%b", r"%\t", r"x%\t", r"%\%", "%"])
    mask = compile_filter(like("s", pattern, "!"), {"s": pa.string()}).mask({"s": values}, len(values))
    assert values.filter(mask).to_pylist() == found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", tree.Comparison("s", "==", "abc")),
        ("a%", tree.Like("s", "a%")),
        ("a%%%", tree.Like("s", "a%")),
        ("a\\b%", tree.StartsWith("s", "a\\b")),
        ("%a\\b%", tree.Contains("s", "a\\b")),
        ("a!%b%", tree.Like("s", "a\\%b%")),
    ],
)
def test_patterns_prune_where_they_can(pattern: str, expected: tree.Expression) -> None:
    assert like("s", pattern, "!") == expected


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 0),
        ("a", 0),
        ("%", 1),
        ("%%%", 1),
        ("_%_", 3),
        ("a\\%b\\_", 0),
        ("\\%%%\\__", 2),
        ("%a%b__c", 4),
        ("\\\\%%", 1),
    ],
)
def test_wildcards_are_counted(pattern: str, count: int) -> None:
    assert tree.Like("s", pattern).num_wildcards == count
    assert tree.Like("s", pattern.encode()).num_wildcards == count


def test_patterns_have_a_bounded_number_of_wildcards() -> None:
    """Whatever they come from."""
    for part in ("a%", "_", "a%%%%"):
        most, more = part * tree.MAX_WILDCARDS, part * (tree.MAX_WILDCARDS + 1)
        assert tree.Like("s", most).num_wildcards == tree.MAX_WILDCARDS
        makers: list[Callable[[], object]] = [
            partial(tree.Like, "s", more),
            partial(asyncpq.col("s").like, more),
            partial(asyncpq.col("s").like, more.encode()),
            partial(parse_where, f"s LIKE '{more}'"),
            partial(parse_where, f"s LIKE '{more}' ESCAPE '!'"),
        ]
        for make in makers:
            with pytest.raises(asyncpq.ExpressionError, match=f"{tree.MAX_WILDCARDS + 1} wildcards"):
                make()
    assert tree.Like("s", "a%" * tree.MAX_WILDCARDS + "\\%" * 500).num_wildcards == tree.MAX_WILDCARDS
