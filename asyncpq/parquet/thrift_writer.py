"""Thrift's compact protocol, written for small footers."""

from __future__ import annotations

from asyncpq.parquet.thrift_types import BINARY, FALSE, I32, I64, LIST, STOP, STRUCT, TRUE, varint, zigzag_varint


class CompactWriter:
    """Writes one struct (and structs in it) in the compact protocol; fields in any order of ids.

    ``getvalue()`` is the struct with its stop byte. Values are not checked: it writes this project's
    own footers only.
    """

    __slots__ = ("_last_id", "_out", "_stack")

    def __init__(self) -> None:
        self._out = bytearray()
        self._last_id = 0
        self._stack: list[int] = []

    def _field(self, field_id: int, kind: int) -> None:
        delta = field_id - self._last_id
        if 0 < delta <= 15:
            self._out.append(delta << 4 | kind)
        else:
            self._out.append(kind)
            self._out += zigzag_varint(field_id)
        self._last_id = field_id

    def field_bool(self, field_id: int, value: bool) -> None:
        self._field(field_id, TRUE if value else FALSE)

    def field_i32(self, field_id: int, value: int) -> None:
        self._field(field_id, I32)
        self._out += zigzag_varint(value)

    def field_i64(self, field_id: int, value: int) -> None:
        self._field(field_id, I64)
        self._out += zigzag_varint(value)

    def field_binary(self, field_id: int, value: bytes) -> None:
        self._field(field_id, BINARY)
        self.element_binary(value)

    def field_raw(self, field_id: int, kind: int, value: bytes) -> None:
        """A field of type ``kind`` whose value's bytes are there already; a bool's are none."""
        self._field(field_id, kind)
        self._out += value

    def field_list(self, field_id: int, element_type: int, length: int) -> None:
        """A list's header; its ``length`` elements follow (``element_*``, ``begin_element``, ``raw``)."""
        self._field(field_id, LIST)
        if length < 15:
            self._out.append(length << 4 | element_type)
        else:
            self._out.append(0xF0 | element_type)
            self._out += varint(length)

    def element_i32(self, value: int) -> None:
        """An integer (of any width) as a list element."""
        self._out += zigzag_varint(value)

    def element_binary(self, value: bytes) -> None:
        """A byte string as a list element."""
        self._out += varint(len(value))
        self._out += value

    def begin_struct(self, field_id: int) -> None:
        """Open a struct field; its fields follow, then ``end_struct()``."""
        self._field(field_id, STRUCT)
        self.begin_element()

    def begin_element(self) -> None:
        """Open a struct as a list element."""
        self._stack.append(self._last_id)
        self._last_id = 0

    def end_struct(self) -> None:
        """Close the struct opened last."""
        self._out.append(STOP)
        self._last_id = self._stack.pop()

    def raw(self, data: bytes) -> None:
        """Bytes as they are: list elements copied verbatim."""
        self._out += data

    def getvalue(self) -> bytes:
        """The whole struct."""
        return bytes(self._out) + b"\0"
