"""Regular expressions for structs of Thrift's compact protocol, which match in C where a Python loop is slow.

The patterns accept a subset of what ``thrift.CompactReader`` accepts. Quantifiers are possessive and alternatives
differ in their first byte, so nothing backtracks and matching takes linear time for any bytes. Compile them with
``re.DOTALL``.
"""

from __future__ import annotations

from typing import Final

from asyncpq.parquet.thrift import BINARY, BYTE, FALSE, I16, I32, I64, LIST, STRUCT, TRUE

MAX_BINARY: Final = 127  # longest byte string whose length is one byte
STOP_BYTE: Final = rb"\x00"
# 9 bytes at most: always fits 64 bits. VARINT32 is for i32, 5 bytes at most.
VARINT: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
VARINT32: Final = rb"[\x80-\xff]{0,4}+[\x00-\x7f]"
# An i32 that is not negative: its zigzag form is even and below 2**32.
COUNT32: Final = (
    b"(?:["
    + b"".join([b"\\x%02x" % n for n in range(0, 0x80, 2)])
    + b"]|["
    + b"".join([b"\\x%02x" % n for n in range(0x80, 0x100, 2)])
    + rb"](?:[\x80-\xff]{0,2}+[\x00-\x7f]|[\x80-\xff]{3}[\x00-\x0f]))"
)


def byte(value: int) -> bytes:
    """One literal byte."""
    return b"\\x%02x" % value


def headers(*types: int) -> bytes:
    """A field header of one of these types, with an id 1 to 15 above the previous field's."""
    return b"[" + b"".join([byte(delta << 4 | type_) for delta in range(1, 16) for type_ in types]) + b"]"


def any_of(*alternatives: bytes) -> bytes:
    """The first of the alternatives that matches."""
    return b"(?:" + b"|".join(alternatives) + b")"


def repeated(pattern: bytes) -> bytes:
    """Any number of repetitions, possessive."""
    return b"(?:" + pattern + b")*+"


def optional(pattern: bytes) -> bytes:
    """Zero or one occurrence, possessive."""
    return b"(?:" + pattern + b")?+"


def list_of(types: tuple[int, ...], element: bytes, *, longest: int) -> bytes:
    """A list's header and elements, for at most ``longest`` <= 14 elements."""
    return any_of(
        *(
            b"[" + b"".join([byte(length << 4 | type_) for type_ in types]) + b"](?:" + element + b"){%d}" % length
            for length in range(longest + 1)
        )
    )


def _binary() -> bytes:
    # The length, then as many bytes. The lengths of numbers' bounds come first.
    lengths = [8, 4, *(n for n in range(MAX_BINARY + 1) if n not in (4, 8))]
    return any_of(*(byte(n) + b".{%d}" % n for n in lengths))


BINARY_VALUE: Final = _binary()
INTEGER_FIELD: Final = headers(I16, I32, I64) + VARINT
INTEGER_FIELDS: Final = repeated(INTEGER_FIELD)
INTEGER_LIST_FIELD: Final = headers(LIST) + list_of((I32, I64), VARINT, longest=14)
# The content and stop byte of a Statistics struct, and of any struct of integers and lists of them.
STATISTICS: Final = repeated(any_of(INTEGER_FIELD, headers(BINARY) + BINARY_VALUE, headers(TRUE, FALSE))) + STOP_BYTE
INTEGER_STRUCT: Final = repeated(any_of(INTEGER_FIELD, INTEGER_LIST_FIELD)) + STOP_BYTE


def annotation_struct(depth: int) -> bytes:
    """The content and stop byte of a struct of small values and structs, nested ``depth`` levels deep."""
    fields = [INTEGER_FIELD, headers(TRUE, FALSE), headers(BYTE) + b"."]
    if depth:
        fields.append(headers(STRUCT) + annotation_struct(depth - 1))
    return repeated(any_of(*fields)) + STOP_BYTE
