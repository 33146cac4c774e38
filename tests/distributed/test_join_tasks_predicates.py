"""Predicates for many keys match all rows that have one of them, in every type, and rows of no two ranges."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq.blocking
from asyncpq.distributed import JoinKey, join_tasks
from asyncpq.distributed.join_tasks import KeyPredicate, bounds_predicate, one_predicate, predicates

DAY, TIME = dt.date, dt.datetime
LAST = 2**63 - 1

#: Type in the dataset, form of the keys, type of the keys, values of the dataset.
COLUMNS: dict[str, tuple[pa.DataType, join_tasks.KeyForm, pa.DataType, list[Any]]] = {
    "integers": (pa.int64(), "value", pa.int64(), [0, 1, 2, -5, LAST, -LAST - 1, None]),
    "rounded": (
        pa.int64(),
        "rounded",
        pa.float64(),
        [0, 7, 2**53 - 1, 2**53, 2**53 + 1, 2**60, 2**60 + 1, 2**60 + 200, -(2**60) - 1, LAST, None],
    ),
    "floats": (pa.float64(), "value", pa.float64(), [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, None]),
    "texts": (pa.string(), "value", pa.string(), ["", "a", "ab", "\u00e4", None]),
    "dictionaries": (pa.dictionary(pa.int32(), pa.string()), "value", pa.string(), ["", "a", "ab", None]),
    "bytes": (pa.binary(), "value", pa.binary(), [b"", b"a", b"\xff\x00", None]),
    "days": (pa.date32(), "value", pa.date32(), [DAY(1, 1, 1), DAY(1500, 2, 3), DAY(2024, 2, 29), DAY(9999, 12, 31)]),
    "times": (
        pa.timestamp("us"),
        "value",
        pa.timestamp("us"),
        [TIME(1, 1, 1), TIME(1969, 12, 31, 23, 59, 59, 999_999), TIME(2024, 1, 1), TIME(9999, 12, 31, 23), None],
    ),
    "zoned times": (
        pa.timestamp("us", "UTC"),
        "value",
        pa.timestamp("us", "UTC"),
        [TIME(2, 1, 1, tzinfo=dt.UTC), TIME(2024, 1, 1, tzinfo=dt.UTC), TIME(9999, 12, 31, 23, tzinfo=dt.UTC)],
    ),
    "years that Python lacks": (
        pa.timestamp("us"),
        "value",
        pa.timestamp("us"),
        [-(2**62), -62_135_596_800_000_001, 0, 253_402_300_800_000_000, 2**62],
    ),
}


def column(name: str, place: int = 0) -> tuple[JoinKey, pa.Array]:
    """Return a key column, and the values of the dataset, all of which are in the keys' type, too."""
    stored, form, dtype, values = COLUMNS[name]
    array = pa.array(values, stored)
    key = JoinKey(name=f"k{place}", stored=stored, form=form, candidates=(place,), place=place, type=dtype)
    return key, array


def keys_of(key: JoinKey, values: pa.Array) -> pa.Array:
    """Return the values of the dataset as keys."""
    plain = values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values
    return pc.cast(plain.drop_null(), key.compared_type, safe=False)


def matched(path: Path, predicate: KeyPredicate) -> set[int]:
    """Return the numbers of the rows that match; those that match ``prune`` alone are the same or fewer."""
    with asyncpq.blocking.Session() as session:
        file = session.open_file(str(path))
        rows = set(file.read(["row"], where=predicate.where).column("row").to_pylist())
        if predicate.prune is not None:
            assert set(file.read(["row"], where=predicate.prune).column("row").to_pylist()) <= rows
        return rows


def write(path: Path, columns: list[pa.Array]) -> Path:
    named = {f"k{place}": values for place, values in enumerate(columns)}
    pq.write_table(pa.table({"row": range(len(columns[0])), **named}), path)
    return path


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_with_a_key_match_and_far_ones_do_not(name: str, tmp_path: Path) -> None:
    key, values = column(name)
    path = write(tmp_path / "a.parquet", [values])
    keys = keys_of(key, values)
    has_key = {row for row in range(len(values)) if values[row].is_valid}
    ((positions, predicate),) = predicates([key], [keys])
    assert positions == range(len(keys))
    assert matched(path, predicate) == has_key
    for row, at in zip(sorted(has_key), range(len(keys)), strict=True):
        one = keys.slice(at, 1)
        rows = matched(path, one_predicate([key], [one]))
        # several integers round to one double, and are one key
        equal = {other for other, place in zip(sorted(has_key), range(len(keys)), strict=True) if keys[place] == one[0]}
        assert equal | {row} <= rows
        if name in ("integers", "texts", "dictionaries", "bytes"):
            assert rows == {row}


def test_a_key_of_doubles_has_all_integers_that_round_to_it(tmp_path: Path) -> None:
    key, _ = column("rounded")
    values = pa.array([2**60 + offset for offset in range(-300, 300)], pa.int64())
    path = write(tmp_path / "a.parquet", [values])
    rows = matched(path, one_predicate([key], [pa.array([float(2**60)])]))
    assert {row for row in range(600) if float(values[row].as_py()) == float(2**60)} <= rows
    assert len(rows) < 600


def test_ranges_of_several_columns_hold_each_key_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_tasks, "MOST_TUPLES", 3)
    columns = [column("integers", 0)[0], column("texts", 1)[0]]
    pairs = [(number, text) for number in range(4) for text in ("a", "b")]
    path = write(tmp_path / "a.parquet", [pa.array([n for n, _ in pairs]), pa.array([t for _, t in pairs])])
    keys = [pairs[at] for at in (0, 3, 4, 5, 6)]
    arrays = [pa.array([n for n, _ in keys], pa.int64()), pa.array([t for _, t in keys])]
    found = list(predicates(columns, arrays))
    assert [positions for positions, _ in found] == [range(3), range(3, 5)]
    for positions, predicate in found:
        assert {pairs.index(keys[at]) for at in positions} <= matched(path, predicate)
        assert predicate.prune is not None
    whole = matched(path, one_predicate(columns, arrays))
    assert {pairs.index(pair) for pair in keys} <= whole


@pytest.mark.parametrize("name", ["integers", "texts", "days", "times", "zoned times", "bytes"])
def test_bounds_hold_all_rows_between_them(name: str, tmp_path: Path) -> None:
    key, values = column(name)
    path = write(tmp_path / "a.parquet", [values])
    ordered = keys_of(key, values).sort()
    bounds = pa.concat_arrays([ordered.slice(1, 1), ordered.slice(len(ordered) - 2, 1)])
    predicate = bounds_predicate([key], [bounds])
    low, high = bounds[0].as_py(), bounds[1].as_py()
    inside = {row for row, value in enumerate(values.to_pylist()) if value is not None and low <= value <= high}
    assert predicate is None or inside <= matched(path, predicate)
    assert predicate is not None or name in ("days", "times", "zoned times")


def test_bounds_that_no_literal_expresses_prune_nothing() -> None:
    key, _ = column("rounded")
    assert bounds_predicate([key], [pa.array([2.0**60, 2.0**61])]) is None
