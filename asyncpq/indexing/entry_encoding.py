"""Payloads of the tables "footers" and "pages", as bytes.

A payload is one byte for its kind, the body, and the CRC-32 (little-endian) of the row's key followed by kind and body.
So a payload under a wrong key is noticed like a damaged one. Numbers are unsigned LEB128 varints; byte strings are
their length and their bytes.

    footers, leaf -1    "W": footer start, size of the object, FileMetaData as the file has it
                        "S": footer start, size, number of leaves, length of what follows before it was compressed,
                        zlib's form of: number of pieces, the pieces, which are FileMetaData without its column chunks
                        (parquet/metadata.py); most of it is the schema, whose names are alike
    footers, leaf i     "L": number of pieces (0 beside "W"), for each row group the ColumnChunk; number of spans, for
                        each where it begins and its bytes: the leaf's ColumnIndexes and OffsetIndexes
    pages, leaf i       "P": number of row groups; for each its ordinal, its OffsetIndex, its ColumnIndex (empty: none)

Another layout gets other letters.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

import pyarrow as pa

from asyncpq.errors import CorruptIndexError
from asyncpq.indexing.index_model import TABLE_SCHEMAS, file_key
from asyncpq.objects.version import MadeIndex
from asyncpq.parquet.thrift import varint

_CRC_BYTES: Final = 4
_LEVEL: Final = 3
_MAX_VARINT_BYTES: Final = 9

#: Leaf number in the key of the entry that all leaves share.
SHARED: Final = -1


class SharedEntry(NamedTuple):
    """The parts of a file's footer that all leaf columns share.

    Attributes:
        footer_start: offset of the footer in the object.
        size: of the object.
        num_leaves: in the schema; 0 if ``pieces`` is the whole footer.
        pieces: the footer without its column chunks; or all of it, in one piece.
    """

    footer_start: int
    size: int
    num_leaves: int
    pieces: Sequence[bytes]


class LeafEntry(NamedTuple):
    """The parts of a file's footer that belong to one leaf column.

    Attributes:
        chunks: the leaf's ColumnChunk of each row group; empty if the shared entry has the whole footer.
        spans: offset in the object and bytes of the leaf's page indexes.
    """

    chunks: Sequence[bytes]
    spans: Sequence[tuple[int, bytes]]


def encode_shared(key: bytes, entry: SharedEntry) -> bytes:
    """Encode ``entry`` as a payload of the index table "footers". ``key``: key of the row, for the file and leaf -1."""
    place = varint(entry.footer_start) + varint(entry.size)
    if not entry.num_leaves:
        return _sealed(key, b"W", place, _string(entry.pieces[0]))
    pieces = _strings(entry.pieces)
    return _sealed(
        key, b"S", place, varint(entry.num_leaves), varint(len(pieces)), _string(zlib.compress(pieces, _LEVEL))
    )


def encode_leaf(key: bytes, entry: LeafEntry) -> bytes:
    """Encode ``entry`` as a payload of the index table "footers". ``key``: key of the row, for the file and leaf."""
    spans = [varint(start) + _string(data) for start, data in entry.spans]
    return _sealed(key, b"L", _strings(entry.chunks), varint(len(spans)), *spans)


def encode_made(key: bytes, made: Mapping[int, MadeIndex]) -> bytes:
    """Encode page indexes that a build made for one leaf as a payload of the index table "pages". ``made``: by row
    group ordinal; ``key``: key of the row, for the file and leaf."""
    rows = [varint(group) + _string(index.offsets) + _string(index.bounds or b"") for group, index in made.items()]
    return _sealed(key, b"P", varint(len(rows)), *rows)


def payload_table(kind: str, payloads: Iterable[tuple[bytes, bytes]]) -> pa.Table:
    """Return rows of a table of ``kind``, from pairs of key and payload whose keys ascend."""
    rows = list(payloads)
    columns = [pa.array([row[at] for row in rows], pa.binary()) for at in (0, 1)]
    return pa.Table.from_arrays(columns, schema=TABLE_SCHEMAS[kind])


def _sealed(key: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return data + zlib.crc32(data, zlib.crc32(key)).to_bytes(_CRC_BYTES, "little")


def _string(data: bytes) -> bytes:
    return varint(len(data)) + data


def _strings(items: Sequence[bytes]) -> bytes:
    return varint(len(items)) + b"".join([_string(item) for item in items])


def by_file(rows: pa.Table) -> dict[int, dict[int, bytes]]:
    """Return the payloads of a table's rows, by file id and then leaf ordinal. ``rows`` are rows of the index table
    "footers" or "pages". Raises CorruptIndexError if a key does not have 12 bytes."""
    by_leaf: dict[int, dict[int, bytes]] = {}
    for key, payload in zip(rows.column("key").to_pylist(), rows.column("payload").to_pylist(), strict=True):
        if len(key) != 12:
            raise CorruptIndexError(f"a key of a footer or page index has {len(key)} bytes, expected 12 (file, leaf)")
        leaf = int.from_bytes(key[8:], "big") - 1
        by_leaf.setdefault(int.from_bytes(key[:8], "big"), {})[leaf] = payload
    return by_leaf


def decode_shared(file: int, payload: bytes, max_bytes: int) -> SharedEntry:
    """Return the shared entry of a file, from its payload. Raises CorruptIndexError if the payload is damaged or
    belongs to another file, or the footer has more than ``max_bytes`` bytes."""
    reader = _body_reader(file_key(file, SHARED), payload, b"WS")
    start, size = reader.number(), reader.number()
    if payload[:1] == b"W":
        entry = SharedEntry(start, size, 0, [reader.string()])
        reader.finish()
        return entry
    num_leaves, length = reader.number(), reader.number()
    inside = _PayloadReader(_decompressed(reader.string(), length, max_bytes))
    reader.finish()
    entry = SharedEntry(start, size, num_leaves, inside.strings())
    inside.finish()
    if not num_leaves:
        reader.fail()
    return entry


def _decompressed(data: bytes, length: int, max_bytes: int) -> bytes:
    if length > max_bytes:
        raise CorruptIndexError(
            f"a footer in the index has {length} bytes, more than LimitOptions.max_footer_bytes={max_bytes}",
            hint="Raise max_footer_bytes if the files are trusted.",
        )
    engine = zlib.decompressobj()
    try:
        inflated = engine.decompress(data, length + 1)
    except zlib.error as error:
        raise CorruptIndexError("the index's entry of a file is damaged, and cannot be decoded") from error
    if len(inflated) != length or not engine.eof:
        raise CorruptIndexError("the index's entry of a file is damaged, and cannot be decoded")
    return inflated


def decode_leaf(file: int, leaf: int, payload: bytes) -> LeafEntry:
    """Return the entry of a leaf, from its payload. Raises CorruptIndexError if the payload is damaged or belongs to
    another leaf or file."""
    reader = _body_reader(file_key(file, leaf), payload, b"L")
    chunks = reader.strings()
    spans = [(reader.number(), reader.string()) for _ in range(reader.count())]
    reader.finish()
    return LeafEntry(chunks, spans)


def decode_made(file: int, leaf: int, payload: bytes) -> dict[int, MadeIndex]:
    """Return the page indexes that were made for a leaf, by row group, from the payload. Raises CorruptIndexError if
    the payload is damaged or belongs to another leaf or file."""
    reader = _body_reader(file_key(file, leaf), payload, b"P")
    made: dict[int, MadeIndex] = {}
    for _ in range(reader.count()):
        group = reader.number()
        made[group] = MadeIndex(reader.string(), reader.string() or None)
    reader.finish()
    return made


def _body_reader(key: bytes, payload: bytes, kinds: bytes) -> _PayloadReader:
    """Return a reader of a payload's body. Raises CorruptIndexError if the checksum is wrong, or the payload's first
    byte is not one of ``kinds``."""
    body = payload[:-_CRC_BYTES]
    crc = zlib.crc32(body, zlib.crc32(key)).to_bytes(_CRC_BYTES, "little")
    reader = _PayloadReader(body[1:])
    if not body or payload[len(body) :] != crc:
        reader.fail()
    if body[0] not in kinds:
        raise CorruptIndexError(
            f"the index's entry of a file has kind {body[:1]!r}, expected one of {kinds!r}: a newer version of asyncpq"
            " may have written it",
            hint="Update asyncpq, or drop the index and build it again.",
        )
    return reader


class _PayloadReader:
    """Reads numbers and byte strings one after the other, from the beginning of ``data``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def fail(self) -> NoReturn:
        raise CorruptIndexError("the index's entry of a file is damaged, and cannot be decoded")

    def number(self) -> int:
        value = 0
        for at, byte in enumerate(self._data[self._pos : self._pos + _MAX_VARINT_BYTES]):
            value |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                self._pos += at + 1
                return value
        self.fail()

    def count(self) -> int:
        """Return the number of items that follow. Raises CorruptIndexError if it exceeds the bytes that are left."""
        count = self.number()
        if count > len(self._data) - self._pos:
            self.fail()
        return count

    def string(self) -> bytes:
        length = self.count()
        start = self._pos
        self._pos += length
        return self._data[start : self._pos]

    def strings(self) -> list[bytes]:
        return [self.string() for _ in range(self.count())]

    def finish(self) -> None:
        if self._pos != len(self._data):
            self.fail()
