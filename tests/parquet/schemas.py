"""Schemas made by hand: elements written with Thrift and decoded."""

from __future__ import annotations

from asyncpq.parquet.schema import ParquetSchema, decode_schema
from asyncpq.parquet.thrift import STRUCT, CompactReader, CompactWriter

Element = dict[int, int | bytes]


def group(name: bytes, children: int, repetition: int | None = 0) -> Element:
    fields: Element = {4: name, 5: children}
    if repetition is not None:
        fields[3] = repetition
    return fields


def leaf(name: bytes, repetition: int = 0, physical: int = 1, **more: int) -> Element:
    return {1: physical, 3: repetition, 4: name, **{int(key[1:]): value for key, value in more.items()}}


ROOT = b"schema"


def decode(*elements: Element) -> ParquetSchema:
    writer = CompactWriter()
    writer.field_list(1, STRUCT, len(elements))
    for element in elements:
        writer.begin_element()
        for field_id, value in sorted(element.items()):
            if isinstance(value, bytes):
                writer.field_binary(field_id, value)
            else:
                writer.field_i32(field_id, value)
        writer.end_struct()
    reader = CompactReader(writer.getvalue())
    reader.field(0)
    return decode_schema(reader, max_elements=1 << 20)
