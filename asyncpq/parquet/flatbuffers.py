"""Read tables of flatbuffers, the encoding of Arrow's IPC messages (flatbuffers.dev/internals).

Positions are those of the message's bytes. Bytes that are no flatbuffer raise struct.error, IndexError or ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator


class FlatBuffer:
    """A flatbuffer at ``start`` of ``data``: its root table, and what tables refer to."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self._start = start

    @property
    def root(self) -> int:
        """The position of the root table."""
        return self._target(self._start)

    def slot(self, table: int, slot: int) -> int | None:
        """Return the position of the value of a slot of a table; None if the slot is empty."""
        vtable = table - struct.unpack_from("<i", self._data, table)[0]
        if vtable < 0:
            raise ValueError("the message refers to a table in front of its first byte")
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 4 + 2 * slot + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + 2 * slot)
        return table + offset if offset else None

    def table(self, table: int, slot: int) -> int | None:
        """Return the position that a slot of a table refers to; None if the slot is empty."""
        position = self.slot(table, slot)
        return None if position is None else self._target(position)

    def tables(self, table: int, slot: int) -> Iterator[int]:
        """Yield the positions of the tables in the vector that a slot of a table refers to."""
        vector = self.table(table, slot)
        if vector is not None:
            (length,) = struct.unpack_from("<I", self._data, vector)
            for i in range(length):
                yield self._target(vector + 4 + 4 * i)

    def text(self, table: int, slot: int) -> bytes:
        """Return the bytes of the string that a slot of a table refers to; none if the slot is empty."""
        start = self.table(table, slot)
        if start is None:
            return b""
        (length,) = struct.unpack_from("<I", self._data, start)
        return self._data[start + 4 : start + 4 + length]

    def _target(self, position: int) -> int:
        return position + int(struct.unpack_from("<I", self._data, position)[0])
