"""Splits: encoded and decoded."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.distributed.scan_tasks import PlannedFile, TaskPiece, decode_files, encode_files, pack_task, unpack_task
from asyncpq.errors import CorruptIndexError
from asyncpq.options import MIB
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator

_TEXT = st.text(max_size=12)
_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    _TEXT,
    st.binary(max_size=9),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
_RANGES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=5).map(
    lambda pairs: RowRanges((min(pair), max(pair)) for pair in pairs)
)
_VALIDATORS = st.builds(
    Validator,
    size=st.integers(0, 2**60),
    etag=st.none() | st.just('"a-3"'),
    last_modified=st.none() | _TEXT.map(repr),
    version=st.none() | st.just("v1"),
)
_FILES = st.builds(
    PlannedFile,
    url=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    validator=st.none() | _VALIDATORS,
    rows=st.none() | _RANGES,
    num_rows=st.integers(0, 2**50),
    num_bytes=st.integers(0, 10 * MIB),
    filtered=st.booleans(),
    immutable=st.booleans(),
    partition=st.dictionaries(_TEXT, _VALUES, max_size=3),
    fields=st.integers(0, 3),
    content=st.none() | st.binary(max_size=30),
    footers=st.dictionaries(st.integers(-1, 40), st.binary(max_size=200), max_size=4),
    pages=st.dictionaries(st.integers(0, 40), st.binary(max_size=200), max_size=4),
)


@given(st.lists(_FILES, min_size=1, max_size=8))
def test_files_come_back_as_they_were(files: list[PlannedFile]) -> None:
    found = decode_files(encode_files(files))
    assert found == files
    for one, other in zip(found, files, strict=True):
        assert list(map(type, one.partition.values())) == list(map(type, other.partition.values()))


def test_a_partition_of_nan_and_zeros() -> None:
    file = PlannedFile(url="a", validator=None, partition={"x": math.nan, "y": -0.0, "z": Decimal("1.50")})
    (found,) = decode_files(encode_files([file]))
    assert math.isnan(found.partition["x"])
    assert math.copysign(1, found.partition["y"]) == -1
    assert str(found.partition["z"]) == "1.50"


def test_a_partition_of_nanoseconds() -> None:
    kinds = {"t": pa.time64("ns"), "d": pa.duration("ns"), "z": pa.timestamp("ns", "UTC")}
    partition = {name: pa.scalar(1_001, kind) for name, kind in kinds.items()}
    (found,) = decode_files(encode_files([PlannedFile(url="a", validator=None, partition=partition)]))
    assert found.partition == partition


def test_a_partition_before_1677_and_after_2262() -> None:
    """Python and nanoseconds lack the years after 9999."""
    kinds = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
    values = [pa.scalar(micros, kind) for kind in kinds for micros in (-(10**17), 316_516_204_800_000_000)]
    partition = {str(number): value for number, value in enumerate(values)}
    (found,) = decode_files(encode_files([PlannedFile(url="a", validator=None, partition=partition)]))
    assert found.partition == partition


def test_what_a_task_is_given() -> None:
    pieces = [
        TaskPiece(b"1abc", 3, 1),
        TaskPiece(None, 4, 2, place=("s3://work/plans/x/0.splits", 5, 90)),
        TaskPiece(b"1", 0, 0),
    ]
    assert unpack_task(pack_task(pieces)) == [b"1abc", ("s3://work/plans/x/0.splits", 5, 90), b"1"]


def test_bytes_that_are_no_split() -> None:
    data = encode_files([PlannedFile(url="s3://b/k", validator=Validator(size=9, etag='"e"'), num_bytes=1)])
    with pytest.raises(CorruptIndexError, match="another version"):
        decode_files(b"9" + data[1:])
    with pytest.raises(CorruptIndexError, match="damaged"):
        decode_files(data[:40])
