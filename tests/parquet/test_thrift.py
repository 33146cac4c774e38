"""The Thrift reader against the writer and against hostile bytes; the patterns against the reader."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError, FormatError, ResourceLimitError
from asyncpq.parquet import thrift
from asyncpq.parquet.row_group import chunk_pattern
from asyncpq.parquet.thrift import CompactReader, CompactWriter, EndOfDataError, LatePattern

int64s = st.integers(-(2**63), 2**63 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
# What a struct's field can be: its kind and value; structs hold fields again.
values = st.recursive(
    st.one_of(
        st.tuples(st.just("i32"), int32s),
        st.tuples(st.just("i64"), int64s),
        st.tuples(st.just("bool"), st.booleans()),
        st.tuples(st.just("binary"), st.binary(max_size=300)),
        st.tuples(st.just("i32s"), st.lists(int32s, max_size=40)),
        st.tuples(st.just("binaries"), st.lists(st.binary(max_size=20), max_size=20)),
    ),
    lambda children: st.one_of(
        st.tuples(st.just("struct"), st.dictionaries(st.integers(1, 300), children, max_size=4)),
        st.tuples(st.just("structs"), st.lists(st.dictionaries(st.integers(1, 40), children, max_size=3), max_size=17)),
    ),
    max_leaves=20,
)
structs = st.dictionaries(st.integers(1, 2000), values, max_size=8)


def write(writer: CompactWriter, fields: dict[int, Any]) -> None:
    for field_id, (kind, value) in fields.items():
        if kind == "i32":
            writer.field_i32(field_id, value)
        elif kind == "i64":
            writer.field_i64(field_id, value)
        elif kind == "bool":
            writer.field_raw(field_id, thrift.TRUE if value else thrift.FALSE, b"")
        elif kind == "binary":
            writer.field_binary(field_id, value)
        elif kind == "i32s":
            writer.field_list(field_id, thrift.I32, len(value))
            for number in value:
                writer.element_i32(number)
        elif kind == "binaries":
            writer.field_list(field_id, thrift.BINARY, len(value))
            for binary in value:
                writer.element_binary(binary)
        elif kind == "struct":
            writer.begin_struct(field_id)
            write(writer, value)
            writer.end_struct()
        else:
            writer.field_list(field_id, thrift.STRUCT, len(value))
            for item in value:
                writer.begin_element()
                write(writer, item)
                writer.end_struct()


def plain(fields: dict[int, Any]) -> dict[int, Any]:
    def value_of(kind: str, value: Any) -> Any:
        if kind == "struct":
            return plain(value)
        return [plain(item) for item in value] if kind == "structs" else value

    return {field_id: value_of(kind, value) for field_id, (kind, value) in fields.items()}


def written(fields: dict[int, Any]) -> bytes:
    writer = CompactWriter()
    write(writer, fields)
    return writer.getvalue()


@given(structs)
def test_what_is_written_is_read(fields: dict[int, Any]) -> None:
    data = written(fields)
    reader = CompactReader(data + b"tail")
    assert reader.struct() == plain(fields)
    assert reader.pos == len(data)
    reader = CompactReader(data + b"tail")
    reader.skip_struct()
    assert reader.pos == len(data)


@given(structs, st.data())
def test_a_cut_struct_is_an_end_of_data(fields: dict[int, Any], data: st.DataObject) -> None:
    whole = written(fields)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(EndOfDataError):
        CompactReader(cut).struct()
    with pytest.raises(EndOfDataError):
        CompactReader(cut).skip_struct()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_struct_or_a_typed_error(data: bytes) -> None:
    ends: list[int | None] = []
    for read in (CompactReader.struct, CompactReader.skip_struct):
        reader = CompactReader(data)
        try:
            read(reader)
        except FormatError:
            ends.append(None)
        else:
            ends.append(reader.pos)
    # Skipping is laxer in what numbers it passes over, and otherwise the same.
    if ends[0] is not None:
        assert ends[0] == ends[1]


@given(st.lists(int64s))
def test_zigzag_varints(numbers: list[int]) -> None:
    data = b"".join(map(thrift.zigzag_varint, numbers))
    reader = CompactReader(data)
    assert [reader.integer() for _ in numbers] == numbers


def nested(levels: int, open_bytes: bytes, close: bytes = b"") -> bytes:
    return open_bytes * levels + b"\0" + close * levels


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(nested(100_000, b"\x1c", b"\0"), id="structs"),
        pytest.param(b"\x19" + nested(100_000, b"\x19"), id="lists"),
        pytest.param(nested(100_000, b"\x19\x1c", b"\0"), id="lists of structs"),
        pytest.param(b"\x1b" + b"\x01\xbb" * 100_000, id="maps"),
    ],
)
@pytest.mark.parametrize("read", [CompactReader.struct, CompactReader.skip_struct])
def test_deep_nesting_is_a_resource_limit(data: bytes, read: Callable[[CompactReader], object]) -> None:
    with pytest.raises(ResourceLimitError, match="deeper"):
        read(CompactReader(data))


def test_nesting_within_the_limit_is_read() -> None:
    depth = thrift.MAX_DEPTH
    value: Any = CompactReader(nested(depth, b"\x1c", b"\0")).struct()
    for _ in range(depth):
        value = value[1]
    assert value == {}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x19\xfc\xff\xff\xff\xff\x07", EndOfDataError),  # a list of 2**31 structs
        (b"\x18\xff\xff\xff\xff\x07", EndOfDataError),  # a string of 2**31 bytes
        (b"\x16" + b"\xff" * 10 + b"\x01", CorruptFileError),  # a varint without end
        (b"\x16" + b"\xff" * 9 + b"\x02", CorruptFileError),  # a number of 65 bits
        (b"\x1e", CorruptFileError),  # no such type
        (b"\x10", CorruptFileError),  # a field of type stop
    ],
)
def test_lying_sizes_and_types(data: bytes, error: type[Exception]) -> None:
    for read in (CompactReader.struct, CompactReader.skip_struct):
        with pytest.raises(error):
            read(CompactReader(data))


def test_the_elements_of_all_lists_are_counted() -> None:
    data = b"\x19\xfc\x64" + b"\0" * 100 + b"\x19\xfc\x64" + b"\0" * 100 + b"\0"
    assert CompactReader(data, max_elements=200).struct() == {1: [{}] * 100, 2: [{}] * 100}
    for read in (CompactReader.struct, CompactReader.skip_struct):
        with pytest.raises(ResourceLimitError):
            read(CompactReader(data, max_elements=199))


def test_false_in_lists_is_2_or_0() -> None:
    assert CompactReader(b"\x19\x51\x01\x02\x00\x01\x02\0").struct() == {1: [True, False, False, True, False]}


# -- patterns ----------------------------------------------------------------------------------------


# -- patterns ---------------------------------------------------------------------------------------

_STRUCT_PATTERNS = {
    "statistics": thrift.STATISTICS,
    "integers": thrift.INTEGER_STRUCT,
    "annotation": thrift.annotation_struct(3),
}


# Bytes that are often headers, lengths and stops, so that random strings of them are often structs.
likely = st.lists(
    st.sampled_from(
        [b"\x15\x02", b"\x16\x80\x01", b"\x18\x02ab", b"\x11", b"\x22", b"\x1c", b"\x19\x25\x00\x01", b"\0"]
    )
    | st.binary(min_size=1, max_size=1),
    max_size=30,
).map(b"".join)


def test_a_late_pattern_matches_nothing_until_it_is_worth_compiling() -> None:
    late = LatePattern(b"b(.)")
    assert [late.match(b"abcbd", 1) for _ in range(LatePattern.WORTH)] == [None] * LatePattern.WORTH
    assert late.match(b"abcbd", 1) is None
    found = late.match(b"abcb\n", 3)
    assert found is not None
    assert found.groups() == (b"\n",)
    expected = LatePattern(b"b(.)")
    expected.expect(LatePattern.WORTH + 1)
    assert expected.match(b"bc", 0) is not None


@pytest.mark.parametrize("pattern", _STRUCT_PATTERNS.values(), ids=_STRUCT_PATTERNS)
@given(data=likely)
def test_a_pattern_ends_where_the_reader_does(pattern: bytes, data: bytes) -> None:
    match = re.compile(pattern, re.DOTALL).match(data)
    if match is not None:
        for read in (CompactReader.struct, CompactReader.skip_struct):
            reader = CompactReader(data)
            read(reader)
            assert reader.pos == match.end()


@pytest.mark.parametrize(
    "unit", [b"\x15\x80", b"\x18\x05", b"\x1c", b"\x19\xe5", b"\x19\x1c\x15", b"\x80", b"\x15\x02"]
)
def test_patterns_take_linear_time(unit: bytes) -> None:
    def seconds(size: int) -> float:
        data = unit * (size // len(unit))
        patterns = [chunk_pattern(), *(re.compile(pattern, re.DOTALL) for pattern in _STRUCT_PATTERNS.values())]
        start = time.perf_counter()
        for pattern in patterns:
            pattern.match(data)
            pattern.match(b"\x1c" + data)
        return time.perf_counter() - start

    seconds(1000)
    # Quadratic time would take minutes for a megabyte, exponential time would not end for 100 bytes.
    assert seconds(1 << 20) < 30
