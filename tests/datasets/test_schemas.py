"""One schema for many files: what goes together strictly and permissively, what does not, and what the error says."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.schemas import SchemaPolicy, SchemaUnifier, unified_type
from asyncpq.errors import SchemaMismatchError
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile
from tests.predicates import COLUMNS
from tests.random_tables import Kind, kinds

POLICIES: tuple[SchemaPolicy, ...] = ("strict", "permissive")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


def _unified(policy: SchemaPolicy, *schemas: pa.Schema, partition: pa.Schema | None = None) -> pa.Schema:
    unifier = SchemaUnifier(policy, partition)
    for number, schema in enumerate(schemas):
        unifier.add(f"memory://f{number}", schema)
    return unifier.schema


@pytest.mark.parametrize("policy", POLICIES)
def test_order_nullability_and_metadata_may_differ(policy: SchemaPolicy) -> None:
    first = pa.schema([pa.field("a", pa.int8(), nullable=False, metadata={"k": "1"}), ("b", pa.string())], {"m": "1"})
    second = pa.schema([("b", pa.string()), pa.field("a", pa.int8(), metadata={"k": "2"})], {"m": "2"})
    found = _unified(policy, first, second)
    assert found.equals(pa.schema([("a", pa.int8()), ("b", pa.string())]))
    assert found.metadata == {b"m": b"1"}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_inside_of_nested_types(policy: SchemaPolicy) -> None:
    first = pa.struct([pa.field("x", pa.int8(), nullable=False), ("y", pa.list_(pa.int8()))])
    second = pa.struct([("y", pa.list_(pa.field("element", pa.int8()))), ("x", pa.int8())])
    kind = _unified(policy, _schema(s=first), _schema(s=second)).field("s").type
    assert kind == pa.struct([("x", pa.int8()), ("y", pa.list_(pa.int8()))])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_column_without_a_type_takes_the_others(policy: SchemaPolicy) -> None:
    for first, second in itertools.permutations([_schema(a=pa.null()), _schema(a=pa.list_(pa.int8()))]):
        assert _unified(policy, first, second).field("a").type == pa.list_(pa.int8())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_partitions_type_counts_where_a_file_has_the_column_too(policy: SchemaPolicy) -> None:
    partition = _schema(year=pa.int32(), day=pa.string())
    found = _unified(
        policy,
        _schema(day=pa.date32(), v=pa.int8()),
        _schema(v=pa.int8()),
        _schema(v=pa.int8(), year=pa.bool_(), day=pa.bool_()),
        partition=partition,
    )
    if policy == "strict":
        assert found == _schema(day=pa.string(), v=pa.int8(), year=pa.int32())
    assert found.field("day").type == pa.string()
    assert found.field("year").type == pa.int32()
    assert _unified(policy, partition=partition) == partition


def test_strict_names_both_files_and_the_way_out() -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        _unified("strict", _schema(a=pa.int8(), b=pa.int32()), _schema(b=pa.int64(), a=pa.int8()))
    error = raised.value
    assert (error.url, error.column) == ("memory://f1", "b")
    for part in ("memory://f0", "int64", "int32", "permissive"):
        assert part in str(error)


@pytest.mark.parametrize("lacking", [0, 1])
def test_strict_refuses_a_missing_column(lacking: int) -> None:
    schemas = [_schema(a=pa.int8(), b=pa.int32()), _schema(a=pa.int8())]
    with pytest.raises(SchemaMismatchError) as raised:
        _unified("strict", *(schemas[::-1] if lacking == 0 else schemas))
    error = raised.value
    assert (error.url, error.column) == ("memory://f1", "b")  # the one that does not go with those before it
    assert "memory://f0" in str(error)


def test_strict_looks_into_structs() -> None:
    for other in (pa.struct([("x", pa.int16())]), pa.struct([("x", pa.int8()), ("y", pa.int8())])):
        with pytest.raises(SchemaMismatchError, match="permissive"):
            _unified("strict", _schema(s=pa.list_(pa.struct([("x", pa.int8())]))), _schema(s=pa.list_(other)))


def test_permissive_adds_and_widens() -> None:
    first = pa.schema(
        [pa.field("a", pa.int8(), nullable=False), ("s", pa.struct([pa.field("x", pa.int8(), nullable=False)]))]
    )
    second = pa.schema(
        [("s", pa.struct([("y", pa.string()), ("x", pa.int64())])), pa.field("z", pa.date32(), nullable=False)]
    )
    wanted = pa.schema(
        [("a", pa.int8()), ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])), ("z", pa.date32())]
    )
    assert _unified("permissive", first, second).equals(wanted)


def _lines_to_unify(count: int) -> int:
    """How many lines of Python run to unify the schemas of so many files, each with a column of its own."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    schemas = [pa.schema([("id", pa.int64()), (f"c{number}", pa.int8())]) for number in range(count)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert len(_unified("permissive", *schemas)) == count + 1
    finally:
        sys.settrace(before)
    return lines


def test_columns_of_files_that_all_differ_are_unified_in_linear_time() -> None:
    assert _lines_to_unify(400) < 3 * _lines_to_unify(200)


def test_permissive_refuses_and_names_the_file_whose_type_it_was() -> None:
    schemas = [_schema(a=pa.int8()), _schema(a=pa.int64()), _schema(a=pa.int16()), _schema(a=pa.string())]
    with pytest.raises(SchemaMismatchError) as raised:
        _unified("permissive", *schemas)
    assert raised.value.url == "memory://f3"
    assert "int64 in memory://f1" in str(raised.value)
    assert "permissive" not in str(raised.value)


_TYPES: dict[tuple[pa.DataType, pa.DataType], pa.DataType | None] = {
    (pa.int8(), pa.uint8()): pa.int16(),
    (pa.uint32(), pa.int8()): pa.int64(),
    (pa.uint64(), pa.int8()): pa.int64(),
    (pa.int16(), pa.float32()): pa.float32(),
    (pa.int32(), pa.float32()): pa.float64(),
    (pa.float16(), pa.float64()): pa.float64(),
    (pa.int64(), pa.decimal128(5, 2)): pa.decimal128(22, 2),
    (pa.decimal128(38, 0), pa.decimal128(38, 10)): pa.decimal256(48, 10),
    (pa.decimal256(76, 0), pa.decimal128(38, 10)): None,
    (pa.timestamp("ms"), pa.timestamp("us")): pa.timestamp("us"),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")): pa.timestamp("us", "UTC"),
    (pa.timestamp("ms", "+02:00"), pa.timestamp("ms", "UTC")): pa.timestamp("ms", "UTC"),
    (pa.timestamp("ms"), pa.timestamp("ms", "UTC")): None,
    (pa.date32(), pa.timestamp("ms")): None,
    (pa.date32(), pa.date64()): pa.date64(),
    (pa.time32("s"), pa.time64("us")): pa.time64("us"),
    (pa.time32("s"), pa.time32("ms")): pa.time32("ms"),
    (pa.duration("s"), pa.duration("ns")): pa.duration("ns"),
    (pa.string(), pa.large_string()): pa.large_string(),
    (pa.string_view(), pa.string()): pa.string(),
    (pa.string(), pa.binary()): pa.binary(),
    (pa.large_binary(), pa.string()): pa.large_binary(),
    (pa.binary(2), pa.binary(3)): pa.binary(),
    (pa.binary(2), pa.string()): None,
    (pa.string(), pa.int8()): None,
    (pa.bool_(), pa.int8()): None,
    (pa.dictionary(pa.int8(), pa.string()), pa.string()): pa.string(),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())): pa.dictionary(
        pa.int32(), pa.large_string()
    ),
    (pa.list_(pa.int8()), pa.large_list(pa.int16())): pa.large_list(pa.int16()),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)): pa.list_(pa.int8()),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64())): pa.map_(pa.string(), pa.int64()),
    (pa.list_(pa.int8()), pa.int8()): None,
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])): None,
    (pa.uuid(), pa.string()): None,
}


@pytest.mark.parametrize(("types", "wanted"), _TYPES.items(), ids=str)
def test_the_type_that_stands_for_two(types: tuple[pa.DataType, pa.DataType], wanted: pa.DataType | None) -> None:
    for left, right in itertools.permutations(types):
        found = unified_type(left, right, "permissive")
        assert found == wanted
        assert unified_type(left, right, "strict") is None


_EXACT_KINDS = [COLUMNS[name][0] for name in COLUMNS] + [pa.float16(), pa.null(), pa.string_view(), pa.duration("s")]


def _is_lossy(left: pa.DataType, right: pa.DataType) -> bool:
    """What pyarrow unifies although values are rounded, or text is mixed with what is none."""
    rounded = pa.types.is_floating(left) and pa.types.is_decimal(right)
    return rounded or (pa.types.is_fixed_size_binary(left) and right in (pa.string(), pa.large_string()))


@pytest.mark.parametrize("left", _EXACT_KINDS, ids=str)
def test_whatever_unifies_can_be_read(left: pa.DataType) -> None:
    """There is a cast from each to what stands for both; and pyarrow unifies nothing that is refused here."""
    data = parquet_bytes(pa.table({"a": pa.nulls(2, left)}))
    for right in _EXACT_KINDS:
        kind = unified_type(left, right, "permissive")
        if kind is not None:
            version = OpenFile(data).version
            view = view_of(version, pa.schema([("a", kind)]), None, {})
            view.columns(version, view.ordinals(None), frozenset())
            continue
        if _is_lossy(left, right) or _is_lossy(right, left):
            continue
        with pytest.raises(pa.ArrowException):
            pa.unify_schemas([_schema(a=left), _schema(a=right)], promote_options="permissive")


@given(kinds(), kinds())
def test_unifying_is_symmetric_and_settles(left: Kind, right: Kind) -> None:
    kind = unified_type(left.type, right.type, "permissive")
    back = unified_type(right.type, left.type, "permissive")
    assert (kind is None) == (back is None)
    if kind is not None:
        assert unified_type(kind, left.type, "permissive") == kind
        assert unified_type(kind, right.type, "permissive") == kind
    assert unified_type(left.type, left.type, "strict") == left.type


def test_equal_schemas_cost_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    unifier = SchemaUnifier("permissive")
    original = unifier._unify

    def unify_one(*args: Any) -> None:
        asked.append(args)
        original(*args)

    monkeypatch.setattr(unifier, "_unify", unify_one)
    schemas = [_schema(a=pa.int8(), b=pa.int8()), _schema(a=pa.int16())]
    for at in range(1000):
        unifier.add(f"memory://f{at}", schemas[at % 2])
    assert len(asked) == 1
    assert unifier.schema == _schema(a=pa.int16(), b=pa.int8())


@given(st.permutations([_schema(a=pa.int8()), _schema(a=pa.int32(), b=pa.string()), _schema(b=pa.large_string())]))
def test_the_order_of_files_decides_the_order_of_columns_only(schemas: list[pa.Schema]) -> None:
    found = _unified("permissive", *schemas)
    assert {field.name: field.type for field in found} == {"a": pa.int32(), "b": pa.large_string()}
