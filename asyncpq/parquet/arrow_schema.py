"""The Arrow schema that Arrow's writers keep in a footer: which columns were dictionaries (Arrow's Schema.fbs)."""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

KEY: Final = "ARROW:schema"
"""Of the footer's key-value metadata: an IPC message in base64."""

_CONTINUATION: Final = 0xFFFFFFFF
_MAX_DEPTH: Final = 64  # of nested fields
# Slots of the flatbuffers' tables, in the order of their fields.
_MESSAGE_HEADER: Final = 2
_SCHEMA_FIELDS: Final = 1
_FIELD_NAME: Final = 0
_FIELD_DICTIONARY: Final = 4
_FIELD_CHILDREN: Final = 5


def dictionary_columns(value: str | None) -> frozenset[str] | None:
    """Names of the top-level columns that are dictionaries in Arrow, or hold some.

    Args:
        value: of the footer's ``ARROW:schema``.

    Returns:
        None where that is not known: there is no Arrow schema, or none that can be read.
    """
    if value is None:
        return None
    try:
        return _Message(b64decode(value, validate=True)).dictionaries()
    except (binascii.Error, struct.error, IndexError, UnicodeError, ValueError):
        return None


class _Message:
    """An IPC message: a flatbuffer behind its length."""

    def __init__(self, data: bytes) -> None:
        (word,) = struct.unpack_from("<I", data)
        self._data = data
        self._start = 8 if word == _CONTINUATION else 4
        # A field takes several bytes, and so does each of its name: what takes more refers to the same bytes again.
        self._left = len(data)

    def dictionaries(self) -> frozenset[str]:
        header = self._table(self._target(self._start), _MESSAGE_HEADER)
        if header is None:
            raise ValueError("the message has no schema")
        names = set()
        for field in self._fields(header, _SCHEMA_FIELDS):
            if self._has_dictionary(field, 0):
                names.add(self._name(field))
        return frozenset(names)

    def _has_dictionary(self, field: int, depth: int) -> bool:
        self._take(1)
        if depth > _MAX_DEPTH:
            raise ValueError("the fields are nested too deeply")
        if self._slot(field, _FIELD_DICTIONARY) is not None:
            return True
        return any(self._has_dictionary(child, depth + 1) for child in self._fields(field, _FIELD_CHILDREN))

    def _name(self, field: int) -> str:
        start = self._table(field, _FIELD_NAME)
        if start is None:
            return ""
        (length,) = struct.unpack_from("<I", self._data, start)
        self._take(length)
        return self._data[start + 4 : start + 4 + length].decode()

    def _take(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError("the message refers to more than it holds")

    def _fields(self, table: int, slot: int) -> Iterator[int]:
        """The tables in a vector of tables."""
        vector = self._table(table, slot)
        if vector is not None:
            (length,) = struct.unpack_from("<I", self._data, vector)
            for i in range(length):
                yield self._target(vector + 4 + 4 * i)

    def _table(self, table: int, slot: int) -> int | None:
        """What a slot refers to; None where it is empty."""
        at = self._slot(table, slot)
        return None if at is None else self._target(at)

    def _target(self, at: int) -> int:
        return at + int(struct.unpack_from("<I", self._data, at)[0])

    def _slot(self, table: int, slot: int) -> int | None:
        vtable = table - struct.unpack_from("<i", self._data, table)[0]
        if vtable < 0:
            raise ValueError("a table lies before the message")
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 4 + 2 * slot + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + 2 * slot)
        return table + offset if offset else None
