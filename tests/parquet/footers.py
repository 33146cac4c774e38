"""Footers made by hand, with contradictions and advisory statements."""

from __future__ import annotations

from typing import Any

from asyncpq.parquet.thrift import BINARY, I32, STRUCT, CompactWriter


def write_schema(writer: CompactWriter, columns: int) -> None:
    writer.field_list(2, STRUCT, columns + 1)
    writer.begin_element()
    writer.field_binary(4, b"schema")
    writer.field_i32(5, columns)
    writer.end_struct()
    for column in range(columns):
        writer.begin_element()
        writer.field_i32(1, 2)
        writer.field_i32(3, 1)
        writer.field_binary(4, b"c%d" % column)
        writer.end_struct()


def write_chunk(writer: CompactWriter, column: int, rows: int, **changes: Any) -> None:
    numbers: dict[str, Any] = {
        "type": (1, 2),
        "codec": (4, 0),
        "num_values": (5, rows),
        "total_uncompressed_size": (6, 100),
        "total_compressed_size": (7, 100),
        "data_page_offset": (9, 4),
        "dictionary_page_offset": (11, None),
    }
    for name, value in changes.items():
        if name in numbers:
            numbers[name] = (numbers[name][0], value)
    writer.begin_element()
    if "file_path" in changes:
        writer.field_binary(1, changes["file_path"])
    writer.field_i64(2, 0)
    if changes.get("has_metadata", True):
        writer.begin_struct(3)
        for field_id, value in sorted(numbers.values()):
            if field_id == 4:
                writer.field_list(2, I32, 1)
                writer.element_i32(0)
                path = changes.get("path", b"c%d" % column)
                writer.field_list(3, BINARY, 1)
                writer.element_binary(path)
            if value is not None:
                writer.field_i64(field_id, value)
        writer.end_struct()
    if changes.get("has_crypto"):
        writer.begin_struct(8)
        writer.end_struct()
    writer.end_struct()


def footer(
    *,
    rows: int = 7,
    group_rows: tuple[int, ...] = (3, 4),
    columns: int = 2,
    chunks: int | None = None,
    orders: int | None = None,
    **changes: Any,
) -> bytes:
    writer = CompactWriter()
    writer.field_i32(1, 1)
    write_schema(writer, columns)
    writer.field_i64(3, rows)
    writer.field_list(4, STRUCT, len(group_rows))
    for num_rows in group_rows:
        writer.begin_element()
        writer.field_list(1, STRUCT, columns if chunks is None else chunks)
        for column in range(columns if chunks is None else chunks):
            write_chunk(writer, column, num_rows, **changes)
        writer.field_i64(2, 1000)
        writer.field_i64(3, num_rows)
        writer.end_struct()
    if orders is not None:
        writer.field_list(7, STRUCT, orders)
        for i in range(orders):
            writer.begin_element()
            writer.begin_struct(i % 4 + 1)
            writer.end_struct()
            writer.end_struct()
    return writer.getvalue()
