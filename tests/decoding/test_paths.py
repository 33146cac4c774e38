"""Dotted paths mean the columns and fields that exist, whatever dots their names have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.decoding.paths import meanings, parts_of, struct_path, top_level, type_at, type_in, type_of
from asyncpq.errors import AmbiguousColumnError

INNER = pa.struct([("a.b", pa.int8()), ("a", pa.struct([("c", pa.string())]))])
ITEMS = pa.list_(pa.struct([("x", pa.int16())]))
SCHEMA = pa.schema([("st", INNER), ("st.a", pa.int32()), ("items", ITEMS), ("m", pa.map_(pa.string(), ITEMS))])


@pytest.mark.parametrize(
    ("path", "column"),
    [
        ("st", "st"),
        ("st.a", "st.a"),  # the column of that very name
        ("st.a.b", "st"),  # the column st.a has no fields
        ("st.a.c", "st"),
        ("st.a.z", "st.a"),  # none has it: the longest name
        ("items.list.element.x", "items"),
        ("other.a", None),
        ("stx", None),
    ],
)
def test_the_column_that_has_a_path(path: str, column: str | None) -> None:
    assert top_level(SCHEMA, path) == column
    assert top_level({field.name: field.type for field in SCHEMA}, path) == column


def test_a_path_of_two_fields_is_ambiguous() -> None:
    schema = pa.schema([("p", pa.struct([("q.r", pa.int8())])), ("p.q", pa.struct([("r", pa.int8())]))])
    with pytest.raises(AmbiguousColumnError):
        top_level(schema, "p.q.r")


def test_all_parts_at_a_path() -> None:
    twice = pa.struct([("a.b", pa.int8()), ("a", pa.struct([("b", pa.int8())]))])
    assert sorted(meanings(twice, "a.b")) == [("a", "b"), ("a.b",)]
    assert struct_path(twice, "a.b") == ["a.b"]  # a field of that very name comes first
    assert struct_path(twice, "x.y") == ["x", "y"]  # it has no such path
    assert [*meanings(SCHEMA.field("m").type, "key_value.value.list.element.x")] == [
        ("key_value.value", "list.element", "x")
    ]
    assert [*meanings(twice, "a.b.c")] == []
    assert parts_of(pa.int8()) == []


def test_types_at_paths() -> None:
    assert type_at("st", INNER, "st.a.b") == pa.int8()
    assert type_at("st", INNER, "st.a.c") == pa.string()
    assert type_at("st", INNER, "st") == INNER
    assert type_at("st", INNER, "st.z") is None
    assert type_in(SCHEMA, ("st", "a", "c")) == pa.string()
    assert type_in(pa.schema([("a", pa.int8()), ("a", pa.int8())]), ("a",)) is None


def test_types_of_columns_and_of_leaves_in_structs() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.struct([pa.field("x", pa.int32())]))])
    dotted = pa.schema([*schema, pa.field("s.x", pa.string())])
    expected = [pa.int64(), pa.int32(), None, None, None]
    assert [type_of(schema, name) for name in ("id", "s.x", "s.y", "id.x", "z")] == expected
    assert type_of(dotted, "s.x") == pa.string()  # a column's own name comes first
