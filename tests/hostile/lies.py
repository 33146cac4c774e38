"""Hostile files: what one is, and how a lie is put into a good file with everything else put right."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

import asyncpq
from asyncpq.parquet.thrift import I32, LIST, STRUCT
from tests.fuzz import bases
from tests.fuzz.parquet_parts import COLUMNS, ROW_GROUPS, ChunkPart, ParquetParts
from tests.fuzz.thrift_trees import Field, Items, Struct
from tests.parquet_bytes import parquet_bytes


class Hostile(NamedTuple):
    """One hostile file.

    Attributes:
        threat: one of :data:`THREATS`.
        lie: in a few words.
        data: the file.
        good: the table that must come, or None where none can.
        error: the error that may come instead; where ``good`` is None, that must come.
        column: the only column that the lie is about: all others must be read as if nothing were wrong.
    """

    threat: str
    lie: str
    data: bytes
    good: pa.Table | None
    error: type[asyncpq.FormatError] | None
    column: str | None = None

    @property
    def name(self) -> str:
        return f"{self.threat}: {self.lie}"


Corrupt, Limit, Unsupported = asyncpq.CorruptFileError, asyncpq.ResourceLimitError, asyncpq.UnsupportedFeatureError


@functools.cache
def cached_parts(base: str) -> ParquetParts:
    return ParquetParts(bases.data(base))


def parts_of(base: str = "plain") -> ParquetParts:
    return copy.deepcopy(cached_parts(base))


def lying_footer(change: Callable[[Struct], object], base: str = "plain") -> bytes:
    parts = parts_of(base)
    parts.place_pages()
    parts.place_indexes()
    change(parts.footer)
    return parts.file()


def lying_chunk(change: Callable[[ChunkPart], object], base: str = "plain", at: int = 0) -> bytes:
    """A lie about one chunk, told once everything has its place."""
    parts = parts_of(base)
    parts.place_pages()
    parts.place_indexes()
    change(parts.chunks[at])
    return parts.file()


def lying_index(change: Callable[[ChunkPart], object], base: str = "plain", at: int = 0) -> bytes:
    parts = parts_of(base)
    parts.place_pages()
    change(parts.chunks[at])
    parts.place_indexes()
    return parts.file()


def lying_page(change: Callable[[Struct], object], base: str = "plain", at: int = 0, page: int = 0) -> bytes:
    parts = parts_of(base)
    change(parts.chunks[at].pages[page].header)
    return parts.rebuilt()


def lying_body(change: Callable[[bytes], bytes], base: str = "plain", at: int = 0) -> bytes:
    """Another page content, with its size put right; its CRC is left as it was."""
    parts = parts_of(base)
    page = parts.chunks[at].pages[0]
    page.body = change(page.body)
    page.header.set(3, len(page.body), I32)
    return parts.rebuilt()


def row_group(footer: Struct, at: int = 0) -> Struct:
    return footer.struct(ROW_GROUPS, at)


def schema_element(footer: Struct, at: int) -> Struct:
    return footer.struct(2, at)


def claim(items: Items, length: int) -> None:
    items.claimed = length


def nested_field(levels: int, kind: int = STRUCT) -> Field:
    value: Struct | Items = Struct()
    for _ in range(levels):
        value = Struct([Field(1, STRUCT, value)]) if kind == STRUCT else Items(LIST, [value])
    return Field(200, kind, value) if kind == STRUCT else Field(200, LIST, Items(LIST, [value]))


def contradicting_leaves() -> Iterator[Hostile]:
    """One leaf of a field whose lists or nulls are not those of its neighbour: both chunks good by themselves."""
    for base in ("nested", "nested_v2", "nested_plain"):
        good = bases.table(base)
        for column, leaves, row, values in (
            ("struct", (2, 3), 5, {"a null, another a struct": None}),
            ("map", (4, 5), 4, {"no entry, another one": [], "a null, another an entry": None}),
            ("map", (4, 5), 5, {"one entry, another two": [("k2", 5)], "three, another two": [("k2", 5)] * 3}),
        ):
            at = good.column_names.index(column)
            for lie, value in values.items():
                rows = good.column(column).to_pylist()
                rows[row] = value
                other = good.set_column(at, column, pa.array(rows, good.schema.field(column).type))
                data = parquet_bytes(other, **bases.options(base))
                for leaf in leaves:
                    parts, lying = parts_of(base), ParquetParts(data)
                    parts.chunks[leaf] = lying.chunks[leaf]
                    parts.footer.items(ROW_GROUPS, 0, COLUMNS).values[leaf] = lying.chunks[leaf].struct
                    name = f"leaf {leaf} says {lie}, {base}"
                    yield Hostile("leaves of one field", name, parts.rebuilt(), good, Corrupt, column)
