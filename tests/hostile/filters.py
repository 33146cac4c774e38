"""Asks for rows by filters of many terms, through every door, in a process of its own, whose memory is measured.

``python -m tests.hostile.filters 2000`` prints a line for each door that gave other rows than pyarrow, then the bytes
that all doors took.
"""

from __future__ import annotations

import operator
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import asyncpq
from asyncpq import blocking
from tests.leaks import peak_bytes

NUM_ROWS = 6000
NUM_COLUMNS = 20
POLARS_TERMS = 400  # Polars 1 itself takes gigabytes for thousands, of its own files too

Term = tuple[str, str, int]
PYTHON = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


def table() -> pa.Table:
    columns = {f"c{at}": [row + at for row in range(NUM_ROWS)] for at in range(NUM_COLUMNS)}
    return pa.table(columns)


def ors(count: int) -> list[Term]:
    """Terms of two columns, so that no engine makes a list of values of them."""
    return [(f"c{number % 2}", "==", 3 * number) for number in range(count)]


def ands(count: int) -> list[Term]:
    return [(f"c{number % 2}", "!=", 3 * number) for number in range(count)]


def wide(count: int) -> list[Term]:
    """A bound of each of the columns, over and over."""
    return [(f"c{number % NUM_COLUMNS}", ">=", number // 2) for number in range(count)]


def joined(terms: list[Term], field: Callable[[str], Any], join: Callable[[Any, Any], Any]) -> Any:
    """The terms as a user builds them, one after another."""
    return reduce(join, [PYTHON[op](field(name), value) for name, op, value in terms])


def text(terms: list[Term], join: str) -> str:
    return f" {join} ".join(f"{name} {'=' if op == '==' else op} {value}" for name, op, value in terms)


def answers(folder: Path, terms: list[Term], join: str) -> Iterator[tuple[str, list[int] | int]]:
    """What each door says: the values of c0 in the rows, or how many rows there are."""
    connect: Callable[[Any, Any], Any] = operator.or_ if join == "or" else operator.and_
    wheres: dict[str, Any] = {
        "col()": joined(terms, asyncpq.col, connect),
        "SQL": text(terms, join),
        "lists": [[term] for term in terms] if join == "or" else terms,
        "pyarrow": joined(terms, pc.field, connect),
    }
    query = f"select c0 from rows where {text(terms, join)} order by c0"
    with blocking.Session() as session:
        for opened in (session.open_file(folder / "0.parquet"), session.open_dataset(folder)):
            kind = type(opened).__name__
            for name, where in wheres.items():
                yield f"{kind}.read {name}", opened.read(["c0"], where)["c0"].to_pylist()
                yield f"{kind}.count {name}", opened.count(where)
                assert str(opened.plan(["c0"], where))
            if len(terms) <= POLARS_TERMS:
                lazy = asyncpq.polars.scan(opened).filter(joined(terms, pl.col, connect))
                yield f"{kind} Polars", lazy.collect()["c0"].to_list()
            with duckdb.connect() as connection:
                connection.execute("set max_expression_depth to 100000")
                connection.register("rows", asyncpq.duckdb.dataset(opened))
                yield f"{kind} DuckDB", [row for (row,) in connection.execute(query).fetchall()]


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = table()
        pq.write_table(whole, folder / "0.parquet", row_group_size=1000, write_page_index=True)
        asked = [("or", ors(count)), ("and", ands(count)), ("and", wide(count))]
        connect = {"or": operator.or_, "and": operator.and_}
        expected = [
            whole.filter(joined(terms, pc.field, connect[join]))["c0"].to_pylist() for join, terms in asked
        ]  # before, since pyarrow takes memory too
        before = peak_bytes()
        for (join, terms), rows in zip(asked, expected, strict=True):
            for door, found in answers(folder, terms, join):
                if found != (len(rows) if isinstance(found, int) else rows):
                    sys.stdout.write(f"{door}, {join} of {count} terms: {found}\n"[:300])
        sys.stdout.write(f"{peak_bytes() - before}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
