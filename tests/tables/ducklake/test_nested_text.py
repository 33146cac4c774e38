"""Texts of lists and maps that a DuckLake inlines, against what DuckDB casts."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.datasets.model import TableField
from asyncpq.tables.ducklake.inlined import parse_nested
from asyncpq.tables.ducklake.schema import DuckLakeColumn
from tests.example_counts import examples

TEXT = DuckLakeColumn(TableField(name="text", type=pa.string()), "varchar", ())
LISTS = DuckLakeColumn(TableField(name="lists", type=pa.list_(pa.string())), "list", (TEXT,))
MAPS = DuckLakeColumn(TableField(name="maps", type=pa.map_(pa.string(), pa.string())), "map", (TEXT, TEXT))
texts = st.one_of(
    st.text(alphabet=" \t\v\x1c\x1f\x85\xa0\u2003\u2028a'\"\\\\,=:[]{}()"), st.sampled_from(["NULL", "null", "NULLa"])
)


@pytest.mark.heavy
@given(st.lists(st.one_of(st.none(), texts)), st.dictionaries(texts, st.one_of(st.none(), texts)))
@settings(max_examples=examples(40, thorough=400), deadline=None)
def test_texts_in_nested_values_are_those_that_duckdb_casts(
    found: list[str | None], pairs: dict[str, str | None]
) -> None:
    """Among them texts that begin or end with what is white space to Python and not to DuckDB."""
    with duckdb.connect() as connection:
        query = "SELECT ?::VARCHAR[]::VARCHAR, map(?::VARCHAR[], ?::VARCHAR[])::VARCHAR"
        row = connection.execute(query, [found, list(pairs), list(pairs.values())]).fetchone()
    assert row is not None
    assert parse_nested(row[0], LISTS) == found
    assert parse_nested(row[1], MAPS) == list(pairs.items())
