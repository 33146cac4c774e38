"""Compact arrays have the values of what they are made of, and their bytes depend on their rows alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.compact import compact, compact_batch, has_dictionary, without_metadata
from tests.buffers import buffers_of, num_bytes
from tests.random_tables import kinds

Wrap = Callable[[pa.Array], pa.Array]


def text(number: int) -> str:
    return f"v{number}" + "x" * (number % 3 * 10)


def extension(type_: pa.DataType) -> Callable[[Sequence[int]], pa.Array]:
    def make(numbers: Sequence[int]) -> pa.Array:
        values = [uuid.UUID(int=number).bytes for number in numbers] if type_ == pa.uuid() else map(text, numbers)
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))

    return make


def of(type_: pa.DataType, value: Callable[[int], Any] = int) -> Callable[[Sequence[int]], pa.Array]:
    return lambda numbers: pa.array(list(map(value, numbers)), type_)


def dictionary(ordered: bool, values: Callable[[Sequence[int]], pa.Array]) -> Callable[[Sequence[int]], pa.Array]:
    def make(numbers: Sequence[int]) -> pa.Array:
        indices = pa.array(range(len(numbers)), pa.int8())
        return pa.DictionaryArray.from_arrays(indices, values(numbers), ordered=ordered)

    return make


LEAVES: dict[str, Callable[[Sequence[int]], pa.Array]] = {
    "int8": of(pa.int8()),
    "int64": of(pa.int64()),
    "bool": of(pa.bool_(), lambda number: number % 3 == 0),
    "float16": of(pa.float16(), float),
    "float64": of(pa.float64(), float),
    "decimal32": of(pa.decimal32(5)),
    "decimal256": of(pa.decimal256(50)),
    "date32": of(pa.date32()),
    "timestamp": of(pa.timestamp("us", "UTC")),
    "binary(3)": of(pa.binary(3), lambda number: number.to_bytes(3, "big")),
    "string": of(pa.string(), text),
    "large_binary": of(pa.large_binary(), lambda number: text(number).encode()),
    "string_view": of(pa.string_view(), text),
    "binary_view": of(pa.binary_view(), lambda number: text(number).encode()),
    "uuid": extension(pa.uuid()),
    "json": extension(pa.json_()),
    "null": of(pa.null(), lambda number: None),
    "dictionary": dictionary(False, of(pa.string(), text)),
    "ordered dictionary": dictionary(True, of(pa.large_string(), text)),
    "dictionary of views": dictionary(False, of(pa.string_view(), text)),
}


def int_type(list_type: Any) -> pa.DataType:
    return pa.int64() if list_type in (pa.LargeListArray, pa.LargeListViewArray) else pa.int32()


def lists(make: Any) -> Wrap:
    """Each value in a list of its own."""

    def wrap(values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
        count = pa.array(range(len(values) + 1), int_type(make))
        if make in (pa.ListArray, pa.LargeListArray):
            return make.from_arrays(count, values, mask=mask)
        return make.from_arrays(count[:-1], pa.repeat(pa.scalar(1, count.type), len(values)), values, mask=mask)

    return wrap


def maps(values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    return pa.MapArray.from_arrays(
        pa.array(range(len(values) + 1), pa.int32()), pa.array(range(len(values))), values, mask=mask
    )


def structs(values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    field = pa.field("x", values.type, nullable=pa.types.is_null(values.type))
    return pa.StructArray.from_arrays([values, values], fields=[field, pa.field("y", values.type)], mask=mask)


def fixed_lists(values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    pairs = pa.concat_arrays([values.slice(number // 2, 1) for number in range(2 * len(values))])
    return pa.FixedSizeListArray.from_arrays(pairs, 2, mask=mask)


def nulls(values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    """The same values, null where ``mask`` is true, which leaves what stands there."""
    if mask is None or isinstance(values, pa.NullArray):
        return values
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, nulls(values.storage, mask))
    bits = pa.array([not one.as_py() for one in mask]).buffers()[1]
    if isinstance(values, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(
            nulls(values.indices, mask), values.dictionary, ordered=values.type.ordered
        )
    return pa.Array.from_buffers(values.type, len(values), [bits, *values.buffers()[1:]])


WRAPS: dict[str, Any] = {
    "list": lists(pa.ListArray),
    "large_list": lists(pa.LargeListArray),
    "list_view": lists(pa.ListViewArray),
    "large_list_view": lists(pa.LargeListViewArray),
    "map": maps,
    "struct": structs,
    "fixed_size_list": fixed_lists,
}
MASKS = {**WRAPS, "nulls": nulls}


def assert_own_rows(
    leaf: str, inside: list[str], mask: str | None, outside: list[str], hidden: list[bool], rows: slice
) -> None:
    """Make two arrays that differ in hidden values: where ``mask`` makes nulls; without it, outside of the slice."""
    if mask is None:
        hidden = [number not in range(len(hidden))[rows] for number in range(len(hidden))]

    def made(other: int) -> pa.Array:
        array = LEAVES[leaf]([number + other * one for number, one in enumerate(hidden)])
        for name in inside:
            array = WRAPS[name](array)
        if mask is not None:
            array = MASKS[mask](array, pa.array(hidden))
        for name in outside:
            array = WRAPS[name](array)
        return array[rows]

    one, two = made(40), made(80)
    first, second = compact(one, hidden_rows=True), compact(two, hidden_rows=True)
    first.validate(full=True)
    assert first.type == one.type
    assert first.to_pylist() == one.to_pylist() == two.to_pylist()
    assert buffers_of(first) == buffers_of(second)


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("leaf", LEAVES)
def test_the_bytes_of_a_compact_array_depend_on_its_rows_alone(leaf: str, mask: str | None) -> None:
    assert_own_rows(leaf, [], mask, [], [False, True, True, False, False, True, False], slice(1, 5))


@pytest.mark.property
@given(
    leaf=st.sampled_from(list(LEAVES)),
    inside=st.lists(st.sampled_from(list(WRAPS)), max_size=1),
    mask=st.none() | st.sampled_from(list(MASKS)),
    outside=st.lists(st.sampled_from(list(WRAPS)), max_size=1),
    hidden=st.lists(st.booleans(), min_size=1, max_size=20),
    rows=st.builds(slice, st.integers(0, 9), st.integers(0, 20)),
)
def test_so_do_those_of_nested_ones(
    leaf: str, inside: list[str], mask: str | None, outside: list[str], hidden: list[bool], rows: slice
) -> None:
    # nulls are made of the values themselves
    assert_own_rows(leaf, [] if mask == "nulls" else inside, mask, outside, hidden, rows)


@pytest.mark.property
@given(kind=kinds(), hidden_rows=st.booleans(), data=st.data())
def test_a_compact_array_has_the_same_values_and_the_size_of_a_new_one(kind: Any, hidden_rows: bool, data: Any) -> None:
    values = data.draw(st.lists(st.none() | kind.values, max_size=12))
    array = pa.array(values, kind.type)
    part = array.slice(data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12)))
    result = compact(part, hidden_rows=hidden_rows)
    result.validate(full=True)
    assert repr(result.to_pylist()) == repr(part.to_pylist())  # of NaN, too
    if hidden_rows or not has_dictionary(kind.type):
        new = pa.array(part.to_pylist(), kind.type)
        assert num_bytes(result) <= num_bytes(new) + 8 * len(buffers_of(new))  # which may have no offsets where empty


def test_dictionaries_keep_the_order_of_the_values_that_are_left() -> None:
    whole = pa.DictionaryArray.from_arrays(
        pa.array([4, None, 0, 4, 2], pa.int8()), pa.array(["low", "mid", None, "much", "top"]), ordered=True
    )
    part = compact(whole, hidden_rows=True)
    assert part.type == whole.type
    assert part.dictionary.to_pylist() == ["low", None, "top"]
    assert part.to_pylist() == whole.to_pylist() == ["top", None, "low", "top", None]


def test_dictionaries_stay_whole_where_no_rows_are_hidden_and_a_stream_needs_them_again() -> None:
    values = pa.array(["low", "mid", "top"])
    indices = pa.array([2, 0, 2], pa.int32())
    whole = pa.DictionaryArray.from_arrays(indices, values)
    assert compact(whole, hidden_rows=False).dictionary.equals(values)
    assert compact(whole[:2], hidden_rows=False).dictionary.to_pylist() == ["low", "top"]
    ordered = pa.DictionaryArray.from_arrays(indices[:1], values, ordered=True)
    assert compact(ordered, hidden_rows=False).dictionary.equals(values)
    assert compact(ordered, hidden_rows=True).dictionary.to_pylist() == ["top"]


def test_required_fields_of_null_structs_have_no_nulls() -> None:
    """pyarrow writes no Parquet of them else."""
    required = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    structs = pa.StructArray.from_arrays(
        [pa.array([1, 77, 3])], fields=list(required), mask=pa.array([False, True, False])
    )
    assert compact(structs, hidden_rows=True).field(0).to_pylist() == [1, 0, 3]


def test_large_exact_arrays_are_not_copied() -> None:
    array = pa.array(range(100_000))
    assert compact(array, hidden_rows=True).buffers()[1].address == array.buffers()[1].address
    assert compact(array[1:], hidden_rows=True).buffers()[1].size == 8 * (len(array) - 1)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_texts_that_are_not_utf8_stay_as_they_are(type_: pa.DataType) -> None:
    raw = [b"\xff", None, b"\xfe" * 20]
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}[type_]
    whole = pa.array(raw, binary)
    texts = pa.Array.from_buffers(type_, len(raw), whole.buffers())
    buffers = compact(texts, hidden_rows=True).buffers()
    assert pa.Array.from_buffers(binary, len(raw), buffers).to_pylist() == raw


def test_batches_without_columns_keep_their_rows() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), 3, [None]))
    assert compact_batch(batch, hidden_rows=True).num_rows == 3


def test_metadata_of_fields_is_taken_away_at_any_depth() -> None:
    def field(name: str, type_: pa.DataType, nullable: bool = True) -> pa.Field:
        return pa.field(name, type_, nullable, {"note": name})

    leaf = field("leaf", pa.uuid(), False)
    types = [
        pa.struct([leaf]), pa.list_(leaf), pa.large_list(leaf), pa.list_view(leaf), pa.large_list_view(leaf),
        pa.list_(leaf, 2), pa.map_(leaf, field("b", pa.struct([leaf]))), pa.dictionary(pa.int8(), pa.string()),
    ]  # fmt: skip
    schema = pa.schema([field(str(number), type_) for number, type_ in enumerate(types)], {"geo": "{}"})
    stripped = without_metadata(schema)
    assert stripped.equals(schema)
    assert b"note" in bytes(schema.serialize())
    assert b"note" not in bytes(stripped.serialize())
    assert b"geo" not in bytes(stripped.serialize())
