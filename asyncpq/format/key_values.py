"""Keys of the footer's key-value metadata set, all else of the footer kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncpq.errors import CorruptFileError
from asyncpq.format.thrift import FALSE, LIST, STOP, STRUCT, CompactReader, CompactWriter

_KEY_VALUES: Final = 5  # of FileMetaData


def set_key_values(metadata: bytes, values: Mapping[str, str], *, max_elements: int) -> bytes:
    """The Thrift bytes of FileMetaData with some keys of its key-value metadata set.

    Fields that this project does not know, and what follows the struct, stay as they are.

    Args:
        metadata: without the footer's length and magic.
        values: keys to be set; in the place of all pairs that have the key.
        max_elements: list elements that the metadata may have.

    Raises:
        CorruptFileError: not FileMetaData.
        ResourceLimitError: more elements than allowed.
    """
    reader = CompactReader(metadata, max_elements=max_elements)
    gone = {key.encode() for key in values}
    pairs: list[bytes] = []
    fields: list[tuple[int, int, bytes]] = []  # id, type, value
    last_id = 0
    while True:
        kind, last_id = reader.field(last_id)
        if kind == STOP:
            break
        start = reader.pos
        if last_id == _KEY_VALUES:
            if kind != LIST:
                raise CorruptFileError("the footer's key-value metadata is not a list")
            pairs = [pair for pair in _pairs(reader) if _key(pair) not in gone]  # the last list counts
            continue
        if kind > FALSE:
            reader.skip(kind)
        fields.append((last_id, kind, metadata[start : reader.pos]))
    for key, value in values.items():
        pair = CompactWriter()
        pair.field_binary(1, key.encode())
        pair.field_binary(2, value.encode())
        pairs.append(pair.getvalue())
    writer = CompactWriter()
    for field_id, kind, value_bytes in fields:
        if field_id < _KEY_VALUES:
            writer.field_raw(field_id, kind, value_bytes)
    if pairs:
        writer.field_list(_KEY_VALUES, STRUCT, len(pairs))
        for pair_bytes in pairs:
            writer.raw(pair_bytes)
    for field_id, kind, value_bytes in fields:
        if field_id > _KEY_VALUES:
            writer.field_raw(field_id, kind, value_bytes)
    return writer.getvalue() + metadata[reader.pos :]


def _pairs(reader: CompactReader) -> list[bytes]:
    """The structs of the list that begins here."""
    element, length = reader.list_header()
    if length and element != STRUCT:
        raise CorruptFileError("the footer's key-value metadata is not a list of structs")
    found = []
    for _ in range(length):
        start = reader.pos
        reader.skip_struct(1)
        found.append(reader.data[start : reader.pos])
    return found


def _key(pair: bytes) -> bytes | None:
    key = CompactReader(pair).struct().get(1)
    return key if isinstance(key, bytes) else None
