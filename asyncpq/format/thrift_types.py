"""Types, bounds and numbers of Thrift's compact protocol."""

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
