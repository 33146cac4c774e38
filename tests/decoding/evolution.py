"""Random changes of a table's columns: renamed, added, dropped, reordered, promoted, at every depth.

For each the table's field as it is now, and what becomes of a value that was written before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from asyncpq.datasets.model import TableField
from asyncpq.decoding.arrow import children_of, with_children

Convert = Callable[[Any], Any]
_FIELD_ID = b"PARQUET:field_id"
_ABSENT = 1_000_000


class Evolved(NamedTuple):
    """A column that was ``before`` in a file.

    Attributes:
        before: the file's field.
        after: the table's.
        convert: a value of the file as the table has it; null is not asked.
    """

    before: pa.Field
    after: TableField
    convert: Convert

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.after.name, self.after.type, self.after.nullable)


_PROMOTED: dict[pa.DataType, list[tuple[pa.DataType, Convert]]] = {
    pa.int32(): [(pa.int64(), int), (pa.float64(), float), (pa.decimal128(12, 1), Decimal), (pa.int8(), int)],
    pa.string(): [(kind, str) for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string()))]
    + [(pa.binary(), str.encode)],
    pa.large_string(): [(pa.string(), str)],
    pa.binary(): [(pa.large_binary(), bytes)],
    pa.binary(3): [(pa.binary(), bytes), (pa.binary_view(), bytes)],
    pa.decimal128(20, 2): [(pa.decimal128(30, 4), Decimal), (pa.decimal256(60, 2), Decimal)],
    pa.timestamp("us", "UTC"): [(pa.timestamp("ns", "UTC"), lambda value: value)],
    pa.dictionary(pa.int32(), pa.string()): [(pa.string(), str), (pa.dictionary(pa.int8(), pa.large_string()), str)],
}


@st.composite
def evolved(draw: st.DrawFn, before: pa.Field, name: str) -> Evolved:
    """The field under another name, of a type to which the file's values can be brought exactly."""
    kind = before.type
    children = children_of(kind)
    nullable = before.nullable or draw(st.booleans())
    if not children:
        after, convert = draw(st.sampled_from([(kind, lambda value: value), *_PROMOTED.get(kind, [])]))
        return Evolved(before, _field(name, after, nullable, before), convert)
    if isinstance(kind, pa.StructType):
        return draw(_struct(before, name, nullable))
    parts = [draw(evolved(child, child.name)) for child in children]
    if isinstance(kind, pa.MapType):
        key = Evolved(children[0], TableField(name="key", type=children[0].type, nullable=False), lambda key: key)
        value = parts[1]
        after = with_children(kind, [key.arrow, value.arrow])
        made = _field(name, after, nullable, before, (key.after, value.after))
        return Evolved(before, made, lambda pairs: [(key_, _or_null(value.convert, item)) for key_, item in pairs])
    (element,) = parts
    like = draw(st.sampled_from([kind, kind, pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_view(pa.null())]))
    after = with_children(like, [element.arrow])
    made = _field(name, after, nullable, before, (element.after,))
    return Evolved(before, made, lambda items: [_or_null(element.convert, item) for item in items])


@st.composite
def _struct(draw: st.DrawFn, before: pa.Field, name: str, nullable: bool) -> Evolved:
    old = draw(st.permutations(list(before.type)))
    kept = old[: draw(st.integers(0, len(old)))]
    new_names = draw(st.permutations([child.name for child in old] + ["new", "other"]))  # names change hands, too
    parts = [(child.name, draw(evolved(child, new))) for child, new in zip(kept, new_names, strict=False)]
    if not parts or draw(st.booleans()):
        default = draw(st.sampled_from([None, 7]))
        lacking = TableField(
            name=new_names[len(kept)], type=pa.int32(), names=("absent",), field_id=_ABSENT, default=default
        )
        parts.insert(
            draw(st.integers(0, len(parts))), ("", Evolved(pa.field("", pa.null()), lacking, lambda _: default))
        )
    after = pa.struct([part.arrow for _, part in parts])

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {
            part.after.name: part.convert(None) if not source else _or_null(part.convert, value[source])
            for source, part in parts
        }

    children = tuple(part.after for _, part in parts)
    made = _field(name, after, nullable, before, children)
    return Evolved(before, made, convert)


def _field(
    name: str, kind: pa.DataType, nullable: bool, source: pa.Field, children: tuple[TableField, ...] = ()
) -> TableField:
    """Found by its id where the file has one, else by the name that it has there."""
    field_id = (source.metadata or {}).get(_FIELD_ID)
    if field_id is None:
        return TableField(name=name, type=kind, nullable=nullable, names=(source.name,), children=children)
    return TableField(name=name, type=kind, nullable=nullable, field_id=int(field_id), children=children)


def with_ids(schema: pa.Schema) -> pa.Schema:
    """The schema with a field id for every field of whatever depth."""
    numbers = itertools.count(1)
    return pa.schema([_with_ids(field, numbers) for field in schema])


def _with_ids(field: pa.Field, numbers: Iterator[int]) -> pa.Field:
    field = field.with_metadata({_FIELD_ID: str(next(numbers))})
    children = children_of(field.type)
    if not children:
        return field
    return field.with_type(with_children(field.type, [_with_ids(child, numbers) for child in children]))


def _or_null(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def converted(change: Evolved, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """What the table has of a file's column, value by value."""
    values = [_or_null(change.convert, value) for value in array.to_pylist()]
    return pa.array(values, change.after.type)
