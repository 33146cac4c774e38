"""The definition levels of a page (Encodings.md, RLE / bit-packing hybrid): which values are not null."""

from __future__ import annotations

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.thrift import CompactReader

PRESENT = b"1"
ABSENT = b"0"


def present_flags(levels: bytes, count: int, level: int) -> bytes:
    """Return one byte for each of ``count`` values: :data:`PRESENT` if its level is ``level``, the leaf column's
    largest, else :data:`ABSENT`.

    Raises CorruptFileError if there are too few levels.
    """
    if level == 0:
        return PRESENT * count
    width = level.bit_length()
    reader = CompactReader(levels)
    runs: list[bytes] = []
    left = count
    while left:
        header = reader.varint()
        num_bytes = (header >> 1) * width if header & 1 else width + 7 >> 3
        body = levels[reader.pos : reader.pos + num_bytes]
        number = min(left, (header >> 1) * 8 if header & 1 else header >> 1)
        if len(body) * 8 < (number * width if header & 1 else width):
            raise CorruptFileError("a page ends inside its definition levels")
        if header & 1:
            runs.append(_packed_flags(int.from_bytes(body, "little"), number, width, level))
        else:
            runs.append((PRESENT if int.from_bytes(body, "little") == level else ABSENT) * number)
        reader.pos += num_bytes
        left -= number
    return b"".join(runs)


def _packed_flags(bits: int, count: int, width: int, level: int) -> bytes:
    bits &= (1 << count * width) - 1
    if width > 1:  # the lowest bit of each level becomes 1 where all its bits are those of ``level``
        lanes = ((1 << count * width) - 1) // ((1 << width) - 1)
        differs = bits ^ lanes * level
        folded = differs
        for shift in range(1, width):
            folded |= differs >> shift
        bits = lanes & ~folded
    return f"{bits:0{count * width}b}".encode()[::-1][::width] if count else b""
