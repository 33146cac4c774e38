"""Deletion vectors: which rows of a file a Delta table has deleted.

PROTOCOL.md, "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncpq.datasets.model import Reader
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.urls import safe_url
from asyncpq.tables.delta.paths import TableRoot
from asyncpq.tables.roaring import decode_roaring, unframed

_MAGIC = 1681511377
_UUID_CHARACTERS = 20
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_DIGIT = {character: digit for digit, character in enumerate(_Z85)}


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """What an ``add`` or ``remove`` action says of a deletion vector.

    Attributes:
        storage: "u" and "p" for one in a file, of relative and absolute path, "i" for one in ``text`` itself.
        text: names the file, or holds the vector.
        offset: where in the file it begins; None where the action does not say.
        size: bytes of the vector itself.
        cardinality: how many rows it deletes.
    """

    storage: str
    text: str
    offset: int | None
    size: int
    cardinality: int

    @classmethod
    def from_action(cls, action: Mapping[str, Any] | None) -> DeletionVector | None:
        """
        Raises:
            TypeError, ValueError, KeyError: it is no description of one.
        """
        if action is None:
            return None
        storage, text, offset = action["storageType"], action["pathOrInlineDv"], action.get("offset")
        numbers = (action["sizeInBytes"], action["cardinality"], 0 if offset is None else offset)
        if not all(isinstance(part, str) for part in (storage, text)) or any(type(n) is not int for n in numbers):
            raise TypeError(f"deletion vector {dict(action)}")
        if min(numbers) < 0:
            raise ValueError(f"deletion vector {dict(action)}")
        return cls(storage, text, offset, numbers[0], numbers[1])

    @property
    def unique_id(self) -> str:
        """Tells the vectors of one file apart."""
        return f"{self.storage}{self.text}" if self.offset is None else f"{self.storage}{self.text}@{self.offset}"


@dataclass(frozen=True, slots=True)
class VectorDeletes:
    """The rows of a deletion vector.

    Attributes:
        url: the file that holds it; the table where it is inline.
        inline: its bytes, where it is not in a file.
        data_url: the file whose rows it deletes.
    """

    url: str
    start: int
    size: int
    cardinality: int
    inline: bytes | None
    data_url: str

    @property
    def identity(self) -> Hashable:
        """Which bytes say so: those of a vector's file never change."""
        return ("delta", self.inline) if self.inline is not None else ("delta", self.url, self.start, self.size)

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows.

        Raises:
            CorruptFileError: size, checksum, magic, or the number of rows is not what it should be.
            UnsupportedFeatureError: a vector of another format.
        """
        try:
            data = self.inline
            if data is None:
                stored = await reader.read_bytes(self.url, self.start, self.start + self.size + 8)
                data = _checked(stored, self.size)
            rows = await asyncio.to_thread(decode_vector, data)
            if rows.num_rows != self.cardinality:
                raise CorruptFileError(f"a deletion vector has {rows.num_rows} rows, not {self.cardinality}")
            if rows.stop > num_rows:
                shown = safe_url(self.data_url)
                raise CorruptFileError(
                    f"a deletion vector deletes row {rows.stop - 1} of {shown}, which has {num_rows} rows"
                )
        except AsyncpqError as error:
            error.locate(url=safe_url(self.url))
            raise
        return rows


def _checked(stored: bytes, size: int) -> bytes:
    """The vector in what a file holds, if it is as long as the table says."""
    if len(stored) != size + 8:
        raise CorruptFileError(f"a deletion vector is not of the {size} bytes that the table says")
    return unframed(stored)


def decode_vector(data: bytes) -> RowRanges:
    """Rows of a serialized ``RoaringBitmapArray``.

    Raises:
        CorruptFileError: it is none.
        UnsupportedFeatureError: it has another magic number.
    """
    if len(data) < 4:
        raise CorruptFileError(f"a deletion vector of {len(data)} bytes")
    (magic,) = struct.unpack_from("<I", data)
    if magic != _MAGIC:
        raise UnsupportedFeatureError(f"a deletion vector has magic number {magic}, which is not read")
    return decode_roaring(data[4:])


def deletes_of(vector: DeletionVector, root: TableRoot, data_url: str) -> VectorDeletes:
    """
    Raises:
        CorruptFileError: it does not say where the vector is.
        UnsupportedFeatureError: it is kept in a way, or at a place, that is not read.
    """
    inline = None
    url = root.shown
    try:
        if vector.storage == "i":
            inline = decode_z85(vector.text)
            padding = len(inline) - vector.size
            if not 0 <= padding < 4:
                raise ValueError(f"{len(inline)} bytes for a vector of {vector.size}")
            inline = inline[: vector.size]
        elif vector.storage == "u":
            prefix, name = vector.text[:-_UUID_CHARACTERS], vector.text[-_UUID_CHARACTERS:]
            file_name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(name))}.bin"
            url = root.join(f"{prefix}/{file_name}" if prefix else file_name)
        elif vector.storage == "p":
            url = root.resolve(vector.text)
        else:
            raise UnsupportedFeatureError(f"deletion vectors of storage type {vector.storage!r} are not read", url=url)
    except ValueError as error:
        raise CorruptFileError(f"deletion vector {vector.text[:64]!r}: {error}", url=root.shown) from error
    return VectorDeletes(url, vector.offset or 0, vector.size, vector.cardinality, inline, data_url)


def decode_z85(text: str) -> bytes:
    """Bytes of a Z85 text (ZeroMQ RFC 32), five characters for four of them.

    Raises:
        ValueError: it is none.
    """
    if len(text) % 5:
        raise ValueError(f"Z85 text of {len(text)} characters")
    decoded = bytearray()
    for at in range(0, len(text), 5):
        value = 0
        for character in text[at : at + 5]:
            digit = _Z85_DIGIT.get(character)
            if digit is None:
                raise ValueError(f"{character!r} is no character of Z85")
            value = value * 85 + digit
        if value > 0xFFFFFFFF:
            raise ValueError(f"Z85 group {text[at : at + 5]!r} is too large")
        decoded += value.to_bytes(4, "big")
    return bytes(decoded)
