"""Written files have dictionaries where a lookup reads less with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.writing.dictionaries import short_dictionaries
from tests.example_counts import examples

ROWS = 100_000
RANDOM = np.random.default_rng(11)


def table() -> pa.Table:
    """Columns of few and of many values, flat and nested."""
    few, many = RANDOM.integers(0, 40, ROWS), RANDOM.integers(0, 2**60, ROWS)
    names = pa.array([f"name {number}" for number in range(40)])
    return pa.table(
        {
            "key": np.arange(ROWS),
            "few": few,
            "many": many,
            "text_few": names.take(pa.array(few)),
            "text_many": [f"{number:x}" for number in many],
            "held": pa.DictionaryArray.from_arrays(few.astype("i4"), names),
            "nothing": pa.nulls(ROWS),
            "flag": few > 3,
            "s": pa.StructArray.from_arrays([pa.array(few), pa.array(many)], ["few", "many"]),
            "l": pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype="i4"), pa.array(few)),
        }
    )


SHORT = {"few", "text_few", "held", "s.few", "l.list.element"}


def test_leaves_of_few_values_have_dictionaries() -> None:
    assert set(short_dictionaries(table(), 8192, 1 << 18)) == SHORT


def test_paths_of_names_with_dots() -> None:
    few, many = pa.array(RANDOM.integers(0, 9, ROWS)), pa.array(RANDOM.integers(0, 2**60, ROWS))
    both = pa.table({"a": pa.StructArray.from_arrays([few], ["b"]), "a.b": many, "c.d": few, "c": few})
    assert short_dictionaries(both, 8192, 1 << 18) == ("c.d", "c")


def test_a_dictionary_of_a_page_is_none_for_smaller_pages() -> None:
    values = pa.table({"x": RANDOM.integers(0, 1_000, ROWS)})
    assert short_dictionaries(values, 8192, 1 << 18) == ("x",)
    assert short_dictionaries(values, 100, 1 << 18) == ()
    assert short_dictionaries(values, 8192, 4096) == ()


@settings(max_examples=examples(25, thorough=250), deadline=None)
@given(st.lists(st.none() | st.integers(-5, 5) | st.integers(), max_size=200), st.integers(1, 300))
def test_the_answer_is_that_of_the_definition(values: list[int | None], page_rows: int) -> None:
    array = pa.array([value if value is None else value % 2**60 for value in values], pa.int64())
    distinct = len(set(array.to_pylist()))
    page = 8 * len(array) * min(1.0, page_rows / max(1, len(array)))
    expected = ("x",) if 8 * distinct + page_rows * distinct.bit_length() / 8 <= page or not values else ()
    assert short_dictionaries(pa.table({"x": array}), page_rows, 1 << 20) == expected


@pytest.mark.parametrize("chosen", [None, ("many",)])
async def test_files_are_written_so(tmp_path: Path, chosen: tuple[str, ...] | None) -> None:
    pq.write_table(table().drop_columns(["nothing"]), tmp_path / "in.parquet")
    layout = asyncpq.WriteOptions(dictionary_columns=chosen)
    async with asyncpq.Session() as session:
        done = await session.optimize(f"{tmp_path}/in.parquet", f"{tmp_path}/out/", sort_by="key", layout=layout)
        findings = (await (await session.open_dataset(f"{tmp_path}/out/")).lint(["key"]))["findings"]
    metadata = pq.read_metadata(tmp_path / "out" / done.files[0])
    chunks = [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]
    with_dictionary = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    assert with_dictionary == (SHORT if chosen is None else set(chosen))
    assert chosen is not None or not [finding for finding in findings if "dictionar" in finding["id"]]
