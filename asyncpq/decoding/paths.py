"""Dotted paths of columns and of their parts, in Arrow types.

Names may have dots of their own: ``st.a.b`` is a field of the column ``st`` or of the column ``st.a``, and in ``st``
the field ``a.b``, or ``b`` in the field ``a``. A path means what exists. As in Parquet, paths name the groups of lists
and maps: ``a.list.element.b``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from asyncpq.decoding.arrow import children_of, is_list
from asyncpq.errors import AmbiguousColumnError, ambiguous_path

ELEMENT, ENTRY = "list.element", "key_value"  # names of the groups of lists and maps in paths (LogicalTypes.md)
_REPEATED = (ELEMENT, f"{ENTRY}.value")


def parts_of(type_: pa.DataType) -> list[tuple[int, str]]:
    """Return ordinal and path of each child of ``type_``. A map's keys are left out, as they have no path."""
    if isinstance(type_, pa.StructType):
        return [(index, type_.field(index).name) for index in range(type_.num_fields)]
    if is_list(type_):
        return [(0, ELEMENT)]
    return [(1, f"{ENTRY}.value")] if isinstance(type_, pa.MapType) else []


def beginning(type_: pa.DataType, path: str) -> list[tuple[int, str]]:
    """Return the ordinal of each child of ``type_`` that the dotted ``path`` may begin with, and the rest."""
    return [
        (index, path[len(part) + 1 :]) for index, part in parts_of(type_) if path == part or path.startswith(f"{part}.")
    ]


def meanings(type_: pa.DataType, path: str) -> Iterator[tuple[str, ...]]:
    """Yield the names on the way from ``type_`` to each of its parts at the dotted ``path``."""
    if not path:
        yield ()
        return
    children = children_of(type_)
    for index, rest in beginning(type_, path):
        for names in meanings(children[index].type, rest):
            yield (path[: len(path) - len(rest)].removesuffix("."), *names)


def top_level(columns: pa.Schema | Mapping[str, pa.DataType], path: str) -> str | None:
    """Return the name of the top-level column that the dotted ``path`` is, or lies in; None without one.

    A column of that very name comes first. If no column has the rest of the path, the longest name is returned. Raises
    AmbiguousColumnError if several columns or fields have the path.
    """

    def types(name: str) -> list[pa.DataType]:
        if isinstance(columns, pa.Schema):
            return [columns.field(at).type for at in columns.get_all_field_indices(name)]
        return [columns[name]] if name in columns else []

    if types(path):
        return path
    known = columns.names if isinstance(columns, pa.Schema) else columns
    names = sorted({name for name in known if path.startswith(f"{name}.")}, key=len)
    if not names:
        return None
    fields = [
        (name, *inner)
        for name in reversed(names)
        for type_ in types(name)
        for inner in meanings(type_, path[len(name) + 1 :])
    ]
    if len(fields) > 1:
        raise ambiguous_path(path, fields, in_lists=any(part in field for part in _REPEATED for field in fields))
    return fields[0][0] if fields else names[-1]


def type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of the column, or of the struct's leaf, with the dotted path ``name``; None if ``schema`` has no
    such column, or several fields have the path."""
    if (at := schema.get_field_index(name)) >= 0:
        return schema.field(at).type
    try:
        top = top_level(schema, name)
    except AmbiguousColumnError:
        return None
    if top is None or (at := schema.get_field_index(top)) < 0:
        return None
    return type_at(top, schema.field(at).type, name)


def type_at(top: str, type_: pa.DataType, path: str) -> pa.DataType | None:
    """Return the type at the dotted ``path`` in the top-level column ``top``, which has the type ``type_``; None if its
    structs have no such field."""
    return type_in(type_, struct_path(type_, path[len(top) + 1 :]) if top != path else ())


def type_in(type_: pa.Schema | pa.DataType, names: Iterable[str]) -> pa.DataType | None:
    """Return the type at the end of the way that ``names`` go down from the columns of a schema, or from the fields of
    a struct; None if there is no such field, or several on the way have its name."""
    for name in names:
        if not isinstance(type_, (pa.Schema, pa.StructType)) or (at := type_.get_field_index(name)) < 0:
            return None
        type_ = type_.field(at).type
    return type_


def struct_path(type_: pa.DataType, dotted: str) -> list[str]:
    """Return the names of the struct fields on the way from ``type_`` to the dotted path ``dotted``; a field of that
    very name comes first. A path that the type does not have is split at every dot."""
    paths = [names for names in meanings(type_, dotted) if names and ".".join(names) == dotted]
    return list(min(paths, key=len, default=dotted.split(".")))
