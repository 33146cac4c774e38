"""Dictionary pages, which are decoded without pyarrow where they are small or of fixed width: rows as pyarrow reads."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding import arrow, leaf, page
from asyncpq.decoding.arrow import read_column
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile
from tests.reads import ask, by_pyarrow

_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.large_string(): st.text(max_size=5),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=True, width=64),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 1, 1), timezones=st.just(dt.UTC)),
    pa.decimal128(20, 3): st.decimals(-(10**9), 10**9, places=3),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(list(_VALUES)))
    most = draw(st.sampled_from([1, 5, page._FEW_VALUES, page._FEW_VALUES + 40]))
    values = draw(st.lists(_VALUES[kind], min_size=1, max_size=most))
    if draw(st.booleans()):
        values.append(None)
    rows = [values[at % len(values)] for at in range(draw(st.integers(1, 3)) * len(values))]
    column = pa.array(rows, kind)
    return pa.StructArray.from_arrays([column], ["x"]) if draw(st.booleans()) else column


@given(
    column=columns(),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    version=st.sampled_from(["1.0", "2.0"]),
    crc=st.booleans(),
    data=st.data(),
)
def test_as_pyarrow_reads_them(column: pa.Array, codec: str, version: str, crc: bool, data: st.DataObject) -> None:
    table = pa.table({"c": column})
    file = parquet_bytes(
        table,
        compression=codec,
        data_page_version=version,
        write_page_checksum=crc,
        write_page_index=True,
        store_schema=data.draw(st.booleans()),
    )
    rows = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=6, unique=True).map(sorted))
    expected = by_pyarrow(file)
    found = ask(file, lambda opened: opened.take(rows))
    found.validate(full=True)
    assert _shown(found.cast(expected.schema)) == _shown(expected.take(rows))
    everything = ask(file, lambda opened: opened.read())
    assert everything.schema.equals(expected.schema)
    assert _shown(everything) == _shown(expected)


def _shown(table: pa.Table) -> str:
    """In words, in which NaN is NaN, and zeros have signs."""
    return repr(table.column("c").to_pylist())


@pytest.mark.parametrize("count", [1, 256, 257])
def test_few_strings_go_without_pyarrow(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def counted(file: bytes, **options: Any) -> pa.ChunkedArray:
        calls.append(file)
        return read_column(file, **options)

    monkeypatch.setattr(leaf, "read_column", counted)
    names = [f"name {at}" for at in range(count)]
    file = parquet_bytes(pa.table({"c": names * 4}), write_page_index=True)
    found = ask(file, lambda opened: opened.take([count + count // 2]))
    assert found.column("c").to_pylist() == [names[count // 2]]
    assert bool(calls) == (count > 256)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03\0\0\0abc\x01\0\0\0",  # the last is cut off
        b"\x03\0\0\0abc\x01\0\0\0de",  # bytes are left
        b"\xff\xff\xff\xffabc\x01\0\0\0d",
        b"\x03\0",
        b"",
    ],
)
def test_what_does_not_add_up_is_left_to_pyarrow(payload: bytes) -> None:
    file = parquet_bytes(pa.table({"c": ["abc", "d"] * 5}), compression="none")
    opened = OpenFile(file)
    chunk = opened.version.chunk(0, 0)
    header = decode_page_header(file[chunk.start :], 0)
    assert isinstance(header, PageHeader)
    column = opened.metadata.schema.leaves[0]
    good = file[chunk.start + header.header_size :][: header.uncompressed_size]
    found = page.decode_dictionary(memoryview(good), header, column, chunk.codec, pa.string(), 0)
    assert found is not None
    assert (found[0].to_pylist(), found[1]) == (["abc", "d"], 3)
    assert page.decode_dictionary(memoryview(payload), header, column, chunk.codec, pa.string(), 0) is None


@pytest.mark.parametrize("type_", [pa.int32(), pa.timestamp("us"), pa.decimal128(38, 2)])
@pytest.mark.parametrize(("repeats", "takes"), [(1, 1), (4, 0), (50, 0)])
def test_many_values_of_fixed_width_are_expanded_as_they_are_decoded(
    type_: pa.DataType, repeats: int, takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where later pages hold plain values, since the dictionary was full."""
    few = pa.array([*range(300), None], pa.int64())
    some = pa.concat_arrays([few] * repeats)
    take = Mock(wraps=arrow.take)
    monkeypatch.setattr(leaf, "take", take)
    for numbers in (some, pa.concat_arrays([some, pa.array(range(1000, 3000), pa.int64())])):
        column = numbers.cast(type_)
        limit = 310 * type_.bit_width // 8
        file = parquet_bytes(pa.table({"c": column}), dictionary_pagesize_limit=limit, write_batch_size=301)
        take.reset_mock()
        assert ask(file, lambda opened: opened.read())["c"].combine_chunks() == column
        assert take.call_count == takes
