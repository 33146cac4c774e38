"""Thrift's compact protocol (thrift-compact-protocol.md): a reader and patterns for untrusted bytes, and a writer.

``CompactReader`` reads nothing past the end, checks each length against the remaining bytes, and limits nesting to
:data:`MAX_DEPTH` levels and lists to ``max_elements`` elements in all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from asyncpq.errors import CorruptFileError, ResourceLimitError, limit_hint

STOP: Final = 0
TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
UUID: Final = 13

MAX_DEPTH: Final = 64
DEFAULT_MAX_ELEMENTS: Final = 1 << 22

_ONE_BYTE: Final = [bytes([n]) for n in range(0x80)]

Fields: TypeAlias = "dict[int, Value]"
Value: TypeAlias = "int | bool | float | bytes | list[Value] | Fields | None"
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0x100))
_FIXED_SIZES: Final = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8, UUID: 16}
_unpack_double = struct.Struct("<d").unpack_from


def integer_of(fields: Fields, field_id: int) -> int | None:
    """Return the integer in a struct's field; None if the field is absent or not an integer."""
    value = fields.get(field_id)
    return value if type(value) is int else None


def varint(n: int) -> bytes:
    """Encode ``n`` >= 0 as a varint: unsigned LEB128."""
    if 0 <= n <= 0x7F:
        return _ONE_BYTE[n]
    out = bytearray()
    while n > 0x7F:
        out.append((n & 0x7F) | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def zigzag_varint(n: int) -> bytes:
    """Encode a signed 64-bit integer as a zigzag varint."""
    return varint((n << 1) ^ (n >> 63))


class CompactWriter:
    """Writes one struct, with nested structs, in the compact protocol. Fields may be written in any order of ids.

    Values are not checked: the writer is used only for asyncpq's own footers and indexes.
    """

    __slots__ = ("_last_id", "_out", "_stack")

    def __init__(self) -> None:
        self._out = bytearray()
        self._last_id = 0
        self._stack: list[int] = []

    def _field(self, field_id: int, type_: int) -> None:
        delta = field_id - self._last_id
        if 0 < delta <= 15:
            self._out.append(delta << 4 | type_)
        else:
            self._out.append(type_)
            self._out += zigzag_varint(field_id)
        self._last_id = field_id

    def field_i32(self, field_id: int, value: int) -> None:
        """Write the field ``field_id`` of a struct, a 32-bit integer."""
        self._field(field_id, I32)
        self._out += zigzag_varint(value)

    def field_i64(self, field_id: int, value: int) -> None:
        """Write the field ``field_id`` of a struct, a 64-bit integer."""
        self._field(field_id, I64)
        self._out += zigzag_varint(value)

    def field_binary(self, field_id: int, value: bytes) -> None:
        """Write the field ``field_id`` of a struct, a byte string."""
        self._field(field_id, BINARY)
        self.element_binary(value)

    def field_raw(self, field_id: int, type_: int, value: bytes) -> None:
        """Write a field of type ``type_`` whose value is encoded already; for a bool, ``value`` is empty."""
        self._field(field_id, type_)
        self._out += value

    def field_list(self, field_id: int, element_type: int, length: int) -> None:
        """Write a list field's header; the caller then writes ``length`` elements with ``element_*`` or ``raw``."""
        self._field(field_id, LIST)
        if length < 15:
            self._out.append(length << 4 | element_type)
        else:
            self._out.append(0xF0 | element_type)
            self._out += varint(length)

    def element_i32(self, value: int) -> None:
        """Write a 32-bit integer, an element of a list."""
        self._out += zigzag_varint(value)

    def element_binary(self, value: bytes) -> None:
        """Write a byte string, an element of a list."""
        self._out += varint(len(value))
        self._out += value

    def begin_struct(self, field_id: int) -> None:
        """Open a struct field; the caller then writes the struct's fields and calls ``end_struct()``."""
        self._field(field_id, STRUCT)
        self.begin_element()

    def begin_element(self) -> None:
        """Open a struct as a list element; ``end_struct()`` closes the struct."""
        self._stack.append(self._last_id)
        self._last_id = 0

    def end_struct(self) -> None:
        """Close the struct that was opened last."""
        self._out.append(STOP)
        self._last_id = self._stack.pop()

    def raw(self, data: bytes) -> None:
        """Write list elements that are encoded already."""
        self._out += data

    def getvalue(self) -> bytes:
        """Return the bytes of the whole struct with its stop byte."""
        return bytes(self._out) + b"\0"


class EndOfDataError(CorruptFileError):
    """The bytes end inside a value. A caller that receives the bytes in parts then waits for more."""


class CompactReader:
    """Reads values from ``data``, starting at ``pos``: at most ``max_elements`` list elements in all.

    Every method raises CorruptFileError if the bytes are not the compact protocol, its subclass EndOfDataError if the
    bytes end too early, and ResourceLimitError if there are too many elements or nested levels.
    """

    __slots__ = ("data", "elements_left", "pos", "size")

    def __init__(self, data: bytes, pos: int = 0, *, max_elements: int = DEFAULT_MAX_ELEMENTS) -> None:
        self.data: bytes = data
        self.pos: int = pos
        self.size: int = len(data)
        self.elements_left: int = max_elements

    # -- primitives -------------------------------------------------------------------------------

    def varint(self) -> int:
        """Read an unsigned integer of at most 64 bits."""
        data, pos = self.data, self.pos
        result = shift = 0
        try:
            while (byte := data[pos]) > 0x7F:
                result |= (byte & 0x7F) << shift
                shift += 7
                pos += 1
                if shift > 63:
                    raise CorruptFileError(f"a varint at byte {self.pos} of the metadata is longer than 10 bytes")
        except IndexError:
            raise self._end() from None
        result |= byte << shift
        if result >> 64:
            raise CorruptFileError(f"a varint at byte {self.pos} of the metadata does not fit 64 bits")
        self.pos = pos + 1
        return result

    def integer(self) -> int:
        """Read a zigzag integer (i16, i32 or i64)."""
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def binary(self) -> bytes:
        """Read a length-prefixed byte string."""
        length = self.varint()
        start = self.pos
        stop = start + length
        if stop > self.size:
            raise self._end()
        self.pos = stop
        return self.data[start:stop]

    def field(self, last_id: int) -> tuple[int, int]:
        """Read a field's header and return its ``(type, id)``; ``(STOP, last_id)`` at the end of the struct.

        ``last_id`` is the id of the struct's previous field, 0 for the first field.
        """
        try:
            header = self.data[self.pos]
        except IndexError:
            raise self._end() from None
        self.pos += 1
        type_ = header & 0x0F
        delta = header >> 4
        if delta:
            return type_, last_id + delta
        if header == STOP:
            return STOP, last_id
        return type_, self.integer()

    def list_header(self) -> tuple[int, int]:
        """Read a list's or set's header: ``(element type, length)``. Refuses more elements than bytes remain."""
        try:
            header = self.data[self.pos]
        except IndexError:
            raise self._end() from None
        self.pos += 1
        length = header >> 4
        if length == 15:
            length = self.varint()
        return header & 0x0F, self._count(length)

    # -- any value --------------------------------------------------------------------------------

    def struct(self, depth: int = 0) -> Fields:
        """Read a struct as ``{field id: value}``; if a field occurs twice, its last value counts.

        Integers of every width are int, strings are bytes, structs are dicts. Maps, which Parquet does not use, are
        skipped and read as None.
        """
        if depth > MAX_DEPTH:
            raise _too_deep()
        fields: Fields = {}
        data, pos, last_id = self.data, self.pos, 0
        try:
            while True:
                header = data[pos]
                pos += 1
                type_ = header & 0x0F
                if header > 0x0F:
                    last_id += header >> 4
                elif header == STOP:
                    self.pos = pos
                    return fields
                else:
                    self.pos = pos
                    last_id = self.integer()
                    pos = self.pos
                if type_ == I32 or type_ == I64 or type_ == I16:
                    n = data[pos]  # most integers have one to three bytes
                    if n < 0x80:
                        pos += 1
                    elif (high := data[pos + 1]) < 0x80:
                        n += (high << 7) - 0x80
                        pos += 2
                    elif (top := data[pos + 2]) < 0x80:
                        n += (high << 7) + (top << 14) - 0x4080
                        pos += 3
                    else:
                        self.pos = pos
                        n = self.varint()
                        pos = self.pos
                    fields[last_id] = (n >> 1) ^ -(n & 1)
                elif type_ == BINARY and data[pos] < 0x80 and pos + data[pos] < self.size:
                    start = pos + 1
                    pos = start + data[pos]
                    fields[last_id] = data[start:pos]
                elif type_ == TRUE or type_ == FALSE:
                    fields[last_id] = type_ == TRUE
                else:
                    self.pos = pos
                    fields[last_id] = self.struct(depth + 1) if type_ == STRUCT else self.value(type_, depth)
                    pos = self.pos
        except IndexError:
            raise self._end() from None

    def value(self, type_: int, depth: int = 0) -> Value:
        """Read a value of type ``type_``. Not for a bool field, whose value is in the field's header."""
        if type_ == BINARY:
            return self.binary()
        if type_ == STRUCT:
            return self.struct(depth + 1)
        if type_ in (LIST, SET):
            if depth >= MAX_DEPTH:
                raise _too_deep()
            element, length = self.list_header()
            if element in (I16, I32, I64):
                return self._integers(length)
            if element in (TRUE, FALSE):  # one byte each; false is 2, or 0 by some writers
                self.pos += length
                return [byte == TRUE for byte in self.data[self.pos - length : self.pos]]
            if element == STRUCT:
                return [self.struct(depth + 1) for _ in range(length)]
            return [self.value(element, depth + 1) for _ in range(length)]
        if type_ in (I16, I32, I64):
            return self.integer()
        start = self.pos
        self.skip(type_, depth)
        if type_ == DOUBLE:
            return float(_unpack_double(self.data, start)[0])
        if type_ == BYTE:
            byte = self.data[start]
            return byte - 256 if byte > 127 else byte
        return self.data[start : self.pos] if type_ == UUID else None

    def skip(self, type_: int, depth: int = 0) -> None:
        """Move past a value of type ``type_``. A bool has one byte as a list element, and none as a field."""
        if type_ in (I16, I32, I64):
            self.varint()
        elif type_ == BINARY:
            length = self.varint()
            if length > self.size - self.pos:
                raise self._end()
            self.pos += length
        elif type_ == STRUCT:
            self.skip_struct(depth + 1)
        elif type_ in _FIXED_SIZES:
            if self.size - self.pos < _FIXED_SIZES[type_]:
                raise self._end()
            self.pos += _FIXED_SIZES[type_]
        elif type_ in (LIST, SET):
            if depth >= MAX_DEPTH:
                raise _too_deep()
            element, length = self.list_header()
            if element in (I16, I32, I64):
                self._skip_varints(length)
                return
            for _ in range(length):
                self.skip(element, depth + 1)
        elif type_ == MAP:
            self._skip_map(depth)
        else:
            raise CorruptFileError(
                f"a value before byte {self.pos} of the metadata has the unknown Thrift type {type_}"
            )

    def skip_struct(self, depth: int = 0) -> None:
        """Move past a struct's fields and its stop byte."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        data = self.data
        while True:
            try:
                header = data[self.pos]
            except IndexError:
                raise self._end() from None
            self.pos += 1
            if header < 0x10:
                if header == STOP:
                    return
                self.varint()
            type_ = header & 0x0F
            if type_ > FALSE:
                self.skip(type_, depth)
            elif type_ == STOP:
                raise CorruptFileError(f"a struct field before byte {self.pos} of the metadata has no type")

    def _integers(self, length: int) -> list[Value]:
        raw = self.data[self.pos : self.pos + length]
        if raw.isascii() and len(raw) == length:  # no byte above 0x7f: every integer is one byte
            self.pos += length
            return [(n >> 1) ^ -(n & 1) for n in raw]
        return [self.integer() for _ in range(length)]

    def _skip_varints(self, count: int) -> None:
        # Every varint has one byte below 0x80, its last.
        pos = self.pos
        while count:
            raw = self.data[pos : pos + count]
            if len(raw) < count:
                raise self._end()
            pos += count
            count -= len(raw.translate(None, _CONTINUATION_BYTES))
        self.pos = pos

    def _skip_map(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        length = self.varint()
        if length == 0:
            return
        types = self.byte()
        length = self._count(length)
        for _ in range(length):
            self.skip(types >> 4, depth + 1)
            self.skip(types & 0x0F, depth + 1)

    def byte(self) -> int:
        """Read one byte as an unsigned integer."""
        if self.pos >= self.size:
            raise self._end()
        self.pos += 1
        return self.data[self.pos - 1]

    def _count(self, length: int) -> int:
        if length > self.size - self.pos:
            raise self._end()
        self.elements_left -= length
        if self.elements_left < 0:
            raise ResourceLimitError(
                "the metadata have more list elements than the limit allows", hint=limit_hint("max_footer_elements")
            )
        return length

    def _end(self) -> EndOfDataError:
        return EndOfDataError(f"the metadata end inside a value (at byte {self.size})")


def _too_deep() -> ResourceLimitError:
    return ResourceLimitError(f"the metadata are nested deeper than the limit of {MAX_DEPTH} levels")


# -- patterns ---------------------------------------------------------------------------------------
# Regular expressions for structs, which match in C where a Python loop is slow. They accept a subset of what
# CompactReader accepts. Quantifiers are possessive and alternatives differ in their first byte, so nothing backtracks
# and matching takes linear time for any bytes. Compile them with re.DOTALL.

MAX_BINARY: Final = 127  # longest byte string whose length is one byte
STOP_BYTE: Final = rb"\x00"
# 9 bytes at most: always fits 64 bits. VARINT32 is for i32, 5 bytes at most.
VARINT: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
VARINT32: Final = rb"[\x80-\xff]{0,4}+[\x00-\x7f]"


class LatePattern:
    """A regular expression that is compiled once the process has used it often enough. Compiling takes milliseconds,
    which is longer than decoding what the first read of a process has to decode without it.

    Attributes:
        match: as that of a compiled pattern. Before the pattern is compiled, it matches nothing.
    """

    WORTH = 256  # uses that save as much time as compiling takes

    __slots__ = ("_text", "_uses", "match")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._uses = 0
        self.match: Callable[[bytes | memoryview, int], re.Match[bytes] | None] = self._match

    def expect(self, uses: int) -> None:
        """Count ``uses`` that are about to come, and compile the pattern if that is worth it."""
        self._uses += uses
        if self._uses > self.WORTH and self.match == self._match:
            self.match = re.compile(self._text, re.DOTALL).match

    def _match(self, data: bytes | memoryview, start: int) -> re.Match[bytes] | None:
        self.expect(1)
        return None


def byte(value: int) -> bytes:
    """Return a regular expression (as bytes) for one literal byte."""
    return b"\\x%02x" % value


def headers(*types: int) -> bytes:
    """Return a pattern for headers of fields of these types, with ids 1 to 15 above the previous field's id."""
    return b"[" + b"".join([byte(delta << 4 | type_) for delta in range(1, 16) for type_ in types]) + b"]"


def any_of(*alternatives: bytes) -> bytes:
    """Return a pattern for the first of the alternatives that matches."""
    return b"(?:" + b"|".join(alternatives) + b")"


def repeated(pattern: bytes) -> bytes:
    """Return a possessive pattern for any number of repetitions of ``pattern``, also none."""
    return b"(?:" + pattern + b")*+"


def optional(pattern: bytes) -> bytes:
    """Return a possessive pattern for zero or one occurrence of ``pattern``."""
    return b"(?:" + pattern + b")?+"


def list_of(types: tuple[int, ...], element: bytes, *, longest: int, shortest: int = 0) -> bytes:
    """Return a pattern for a list's header and ``shortest`` to ``longest`` elements, at most 14."""
    return any_of(
        *(
            b"[" + b"".join([byte(length << 4 | type_) for type_ in types]) + b"](?:" + element + b"){%d}" % length
            for length in range(shortest, longest + 1)
        )
    )


def binary_value(longest: int) -> bytes:
    """Return a pattern for a byte string of at most ``longest`` bytes, with its length in front. Compiling takes 8 us
    for each length. The lengths of numbers' bounds are tried first."""
    lengths = [8, 4, *(n for n in range(longest + 1) if n not in (4, 8))]
    return any_of(*(byte(n) + b".{%d}" % n for n in lengths))


BINARY_VALUE: Final = binary_value(MAX_BINARY)
INTEGER_FIELD: Final = headers(I16, I32, I64) + VARINT
INTEGER_FIELDS: Final = repeated(INTEGER_FIELD)
INTEGER_LIST_FIELD: Final = headers(LIST) + list_of((I32, I64), VARINT, longest=14)
# The content and stop byte of a Statistics struct, and of any struct of integers and lists of them.
STATISTICS: Final = repeated(any_of(INTEGER_FIELD, headers(BINARY) + BINARY_VALUE, headers(TRUE, FALSE))) + STOP_BYTE
INTEGER_STRUCT: Final = repeated(any_of(INTEGER_FIELD, INTEGER_LIST_FIELD)) + STOP_BYTE


def annotation_struct(depth: int) -> bytes:
    """Return a pattern for the fields and stop byte of a struct of numbers and bools, with ``depth`` nested levels."""
    fields = [INTEGER_FIELD, headers(TRUE, FALSE), headers(BYTE) + b"."]
    if depth:
        fields.append(headers(STRUCT) + annotation_struct(depth - 1))
    return repeated(any_of(*fields)) + STOP_BYTE
