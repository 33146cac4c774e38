"""Thrift's compact protocol as trees that can be changed field by field and written again, lies included.

Unlike ``asyncpq.parquet.thrift`` it keeps the types and the order of fields, so that an unchanged tree is
written as the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from asyncpq.parquet.thrift import (
    BINARY,
    BYTE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STOP,
    STRUCT,
    TRUE,
    CompactReader,
    varint,
    zigzag_varint,
)

INTEGERS = (I16, I32, I64)

Tree: TypeAlias = "int | bool | bytes | Struct | Items"


@dataclass
class Field:
    """A field of a struct. A bool's type is TRUE, whichever it is; of maps, doubles and the like the bytes are kept."""

    id: int
    kind: int
    value: Tree


@dataclass
class Struct:
    fields: list[Field] = field(default_factory=list)

    def find(self, field_id: int) -> Field | None:
        return next((one for one in self.fields if one.id == field_id), None)

    def get(self, *path: int) -> Tree | None:
        """The value at a path of field ids and list positions; None where a field is absent."""
        node: Tree = self
        for step in path:
            if isinstance(node, Struct):
                found = node.find(step)
                if found is None:
                    return None
                node = found.value
            else:
                assert isinstance(node, Items)
                node = node.values[step]
        return node

    def integer(self, *path: int) -> int:
        value = self.get(*path)
        assert isinstance(value, int)
        return value

    def struct(self, *path: int) -> Struct:
        value = self.get(*path)
        assert isinstance(value, Struct)
        return value

    def items(self, *path: int) -> Items:
        value = self.get(*path)
        assert isinstance(value, Items)
        return value

    def set(self, field_id: int, value: Tree, kind: int = I64) -> None:
        """Change a field; an absent one is added with type ``kind``."""
        found = self.find(field_id)
        if found is not None:
            found.value = value
        else:
            self.fields.append(Field(field_id, kind, value))
            self.fields.sort(key=lambda one: one.id)

    def drop(self, field_id: int) -> None:
        self.fields = [one for one in self.fields if one.id != field_id]


@dataclass
class Items:
    """A list. ``claimed``, if set, is the length that is written instead of the true one."""

    kind: int
    values: list[Tree]
    claimed: int | None = None


def parse(data: bytes, pos: int = 0) -> tuple[Struct, int]:
    """The struct at ``data[pos:]``, and where it ends."""
    reader = CompactReader(data, pos)
    return _struct(reader), reader.pos


def _struct(reader: CompactReader) -> Struct:
    result, last = Struct(), 0
    while True:
        kind, last = reader.field(last)
        if kind == STOP:
            return result
        value = kind == TRUE if kind in (TRUE, FALSE) else _value(reader, kind)
        result.fields.append(Field(last, TRUE if kind == FALSE else kind, value))


def _value(reader: CompactReader, kind: int) -> Tree:
    if kind == STRUCT:
        return _struct(reader)
    if kind in (LIST, SET):
        element, length = reader.list_header()
        return Items(element, [_value(reader, element) for _ in range(length)])
    if kind in INTEGERS:
        return reader.integer()
    if kind == BINARY:
        return reader.binary()
    if kind in (TRUE, FALSE):
        return reader.byte() == TRUE
    start = reader.pos
    reader.skip(kind)
    return reader.data[start : reader.pos]


def write(tree: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _write_struct(out, tree)
    return bytes(out)


def _write_struct(out: bytearray, tree: Struct) -> None:
    last = 0
    for one in tree.fields:
        kind = one.kind
        if kind == TRUE and not one.value:
            kind = FALSE
        delta = one.id - last
        if 0 < delta <= 15:
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            out += zigzag_varint(one.id)
        last = one.id
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, one.value)
    out.append(STOP)


def _write_value(out: bytearray, kind: int, value: Tree) -> None:
    if isinstance(value, Struct):
        _write_struct(out, value)
    elif isinstance(value, Items):
        length = len(value.values) if value.claimed is None else value.claimed
        if length < 15:
            out.append(length << 4 | value.kind)
        else:
            out.append(0xF0 | value.kind)
            out += varint(length)
        for element in value.values:
            _write_value(out, value.kind, element)
    elif isinstance(value, bool) or kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    elif isinstance(value, int):
        out += zigzag_varint(value) if kind != BYTE else bytes([value & 0xFF])
    else:
        if kind == BINARY:
            out += varint(len(value))
        out += value


def nodes(tree: Struct | Items, path: tuple[int, ...] = ()) -> Iterator[tuple[Struct | Items, int, tuple[int, ...]]]:
    """Every field and list element below ``tree``: its owner, its position there, and its path."""
    if isinstance(tree, Struct):
        children = [(position, one.id, one.value) for position, one in enumerate(tree.fields)]
    else:
        children = [(position, position, value) for position, value in enumerate(tree.values)]
    for position, step, value in children:
        yield tree, position, (*path, step)
        if isinstance(value, (Struct, Items)):
            yield from nodes(value, (*path, step))
