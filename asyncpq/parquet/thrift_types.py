"""Types, bounds and numbers of Thrift's compact protocol.

Regular expressions for Thrift's compact protocol, which run in C where a loop in Python is slow.

They are built from the shapes of Thrift values (field header, varint, length-prefixed bytes, list, stop
byte), each as ``thrift.CompactReader`` reads them, and accept a part of what it accepts. Quantifiers are
possessive and alternatives differ in their first byte: nothing backtracks, the time is linear in the
bytes whatever they are. Compile them with ``re.DOTALL``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, TypeAlias

from asyncpq.errors import CorruptFileError

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

_EVEN_BYTES: Final = bytes(range(0, 0x100, 2))
_ONE_BYTE: Final = [bytes([n]) for n in range(0x80)]

Fields: TypeAlias = "dict[int, Value]"
Value: TypeAlias = "int | bool | float | bytes | list[Value] | Fields | None"


def zigzag(n: int) -> int:
    """The signed integer of its unsigned zigzag form ``n``."""
    return (n >> 1) ^ -(n & 1)


def zigzag_varints(values: Sequence[bytes]) -> list[int]:
    """The numbers, none of them negative, of many zigzag varints; faster than one by one.

    Args:
        values: varints of 1 to 9 bytes, each ending with its only byte below 0x80.

    Raises:
        CorruptFileError: one is negative.
    """
    numbers: list[int] = []
    for length, group in itertools.groupby(values, len):
        # Byte i of all varints of a run lies in planes[i]. The continuation bits are taken off in one
        # subtraction; the sign is the lowest bit of the first byte.
        run = b"".join(group)
        planes = [run[i::length] for i in range(length)]
        if planes[0].translate(None, _EVEN_BYTES):
            raise CorruptFileError("a number that cannot be negative is negative")
        if length == 1:
            numbers += [a >> 1 for a in planes[0]]
        elif length == 2:
            numbers += [(a + (b << 7) - 0x80) >> 1 for a, b in zip(*planes, strict=True)]
        elif length == 3:
            numbers += [(a + (b << 7) + (c << 14) - 0x4080) >> 1 for a, b, c in zip(*planes, strict=True)]
        elif length == 4:
            numbers += [
                (a + (b << 7) + (c << 14) + (d << 21) - 0x204080) >> 1 for a, b, c, d in zip(*planes, strict=True)
            ]
        elif length == 5:
            numbers += [
                (a + (b << 7) + (c << 14) + (d << 21) + (e << 28) - 0x10204080) >> 1
                for a, b, c, d, e in zip(*planes, strict=True)
            ]
        else:
            numbers += [
                sum([(byte & 0x7F) << 7 * i for i, byte in enumerate(value)]) >> 1
                for value in zip(*planes, strict=True)
            ]
    return numbers


def varint(n: int) -> bytes:
    """The unsigned LEB128 form of ``n`` >= 0."""
    if 0 <= n <= 0x7F:
        return _ONE_BYTE[n]
    out = bytearray()
    while n > 0x7F:
        out.append((n & 0x7F) | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def zigzag_varint(n: int) -> bytes:
    """The zigzag varint form of a signed 64-bit ``n``."""
    return varint((n << 1) ^ (n >> 63))


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
    """A field header of one of these types, its id 1 to 15 more than the last field's."""
    return b"[" + b"".join([byte(delta << 4 | kind) for delta in range(1, 16) for kind in types]) + b"]"


def any_of(*alternatives: bytes) -> bytes:
    """The first of the alternatives that matches."""
    return b"(?:" + b"|".join(alternatives) + b")"


def repeated(pattern: bytes) -> bytes:
    """As often as there are, and never given back."""
    return b"(?:" + pattern + b")*+"


def optional(pattern: bytes) -> bytes:
    """If it is there, and never given back."""
    return b"(?:" + pattern + b")?+"


def list_of(types: tuple[int, ...], element: bytes, *, longest: int) -> bytes:
    """A list's header and elements, for lists of at most ``longest`` <= 14 elements."""
    return any_of(
        *(
            b"[" + b"".join([byte(length << 4 | kind) for kind in types]) + b"](?:" + element + b"){%d}" % length
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
    """The content and stop byte of a struct of small values and structs, ``depth`` levels of them."""
    fields = [INTEGER_FIELD, headers(TRUE, FALSE), headers(BYTE) + b"."]
    if depth:
        fields.append(headers(STRUCT) + annotation_struct(depth - 1))
    return repeated(any_of(*fields)) + STOP_BYTE
