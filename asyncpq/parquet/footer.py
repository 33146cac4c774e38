"""The end of a Parquet file: metadata, their length, and the magic (parquet-format README, File format).

``FooterDecoder`` finds the metadata in the last bytes of an object, or names the bytes that it needs.
``shared_pieces``, ``leaf_pieces`` and ``join_pieces`` split the metadata by leaf and join them again. The pieces are
the footer's own bytes; an empty struct replaces a missing column chunk. ``set_key_values`` changes the footer's
key-value metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from asyncpq.errors import CorruptFileError, NotParquetError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.thrift import FALSE, LIST, STOP, STRUCT, CompactReader, CompactWriter

MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"

TRAILER_BYTES: Final = 8  # 4 bytes length, 4 bytes magic
_OTHER_KIND = "The file has another format, or was cut off while it was written."
_WEB_PAGE = "It is a web page: open the url in a browser, look for a login, and copy the link of the file itself."
_MIN_FILE_BYTES: Final = 12  # magic, length, magic
_UNKNOWN: Final = b"\0"
_KEY_VALUES: Final = 5  # of FileMetaData


@dataclass(frozen=True, slots=True)
class NeedBytes:
    """The decoder needs the bytes ``[start, stop)`` of the object, up to its end."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FooterFound:
    """The metadata, at the file offset ``start``; encrypted if the magic says so."""

    start: int
    metadata_bytes: bytes


class FooterDecoder:
    """Finds at most ``max_footer_bytes`` of metadata at the end of an object; encrypted only if ``encrypted``."""

    def __init__(self, *, max_footer_bytes: int, encrypted: bool = False) -> None:
        self._max_footer_bytes = max_footer_bytes
        self._magics = (MAGIC, ENCRYPTED_MAGIC) if encrypted else (MAGIC,)

    def next(self, tail: bytes, tail_start: int, size: int) -> NeedBytes | FooterFound:
        """Decode the bytes ``[tail_start, size)`` of an object of ``size`` bytes, or name the bytes to pass next.

        Raises:
            NotParquetError: no Parquet magic at the end, or too short for a Parquet file.
            CorruptFileError: the magic is there, but the length of the metadata is impossible.
            UnsupportedFeatureError: the metadata are encrypted, and ``encrypted`` is False.
            ResourceLimitError: the metadata are longer than ``max_footer_bytes``.
        """
        if tail_start + len(tail) != size:
            raise ValueError(f"{len(tail)} bytes at {tail_start} are not the end of an object of {size} bytes")
        needed = min(size, TRAILER_BYTES)
        if len(tail) < needed:
            return NeedBytes(size - needed, size)
        magic = tail[-4:]
        if magic == ENCRYPTED_MAGIC and magic not in self._magics and size >= _MIN_FILE_BYTES:
            raise UnsupportedFeatureError(
                "the file's footer is encrypted", hint="Give open_file its decryption_properties=."
            )
        if magic not in self._magics:
            what = f"it ends in {magic!r}, not in {MAGIC!r}" if magic else "it is empty"
            web_page = tail[-1024:].rstrip().lower().endswith(b"</html>")
            raise NotParquetError(f"not a Parquet file: {what}", hint=_WEB_PAGE if web_page else _OTHER_KIND)
        if size < _MIN_FILE_BYTES:
            raise NotParquetError(f"not a Parquet file: {size} bytes are too few", hint="The file is cut off.")
        length = int.from_bytes(tail[-8:-4], "little")
        if length == 0 or length > size - _MIN_FILE_BYTES:
            raise CorruptFileError(
                f"the footer claims {length} bytes of metadata in a file of {size} bytes",
                byte_range=(size - TRAILER_BYTES, size),
                hint="The file is damaged or cut off.",
            )
        if length > self._max_footer_bytes:
            raise ResourceLimitError(
                f"the footer has {length} bytes of metadata, allowed are {self._max_footer_bytes}",
                byte_range=(size - TRAILER_BYTES, size),
                hint="Raise LimitOptions.max_footer_bytes if the file is trusted.",
            )
        start = size - TRAILER_BYTES - length
        if start < tail_start:
            return NeedBytes(start, size)
        return FooterFound(start, bytes(tail[start - tail_start : len(tail) - TRAILER_BYTES]))


def shared_pieces(metadata: FileMetadata) -> list[bytes]:
    """The footer's bytes before, between and behind its row groups' column chunks: one piece more than row groups."""
    pieces: list[bytes] = []
    start = 0
    for group in metadata.row_groups:
        first, stop = group.chunks_span
        pieces.append(metadata.data[start:first])
        start = stop
    return [*pieces, metadata.data[start:]]


def leaf_pieces(metadata: FileMetadata, leaf: int) -> list[bytes]:
    """The bytes of a leaf's column chunk in each row group."""
    return [metadata.data[slice(*group.chunk_span(leaf))] for group in metadata.row_groups]


def join_pieces(shared: Sequence[bytes], leaves: Mapping[int, Sequence[bytes]], num_leaves: int) -> bytes:
    """A footer with the column chunks of ``leaves`` only, of a schema of ``num_leaves`` leaves.

    ``shared`` is from :func:`shared_pieces`, the values of ``leaves`` are from :func:`leaf_pieces`. Raises
    CorruptFileError if the pieces do not belong to one footer.
    """
    known = sorted(leaves)
    groups = len(shared) - 1
    if groups < 0 or any(len(leaves[leaf]) != groups for leaf in known) or (known and known[-1] >= num_leaves):
        raise CorruptFileError("pieces of a footer do not belong together")
    out: list[bytes] = [shared[0]]
    for group in range(groups):
        following = 0
        for leaf in known:
            out.append(_UNKNOWN * (leaf - following))
            out.append(leaves[leaf][group])
            following = leaf + 1
        out.append(_UNKNOWN * (num_leaves - following))
        out.append(shared[group + 1])
    return b"".join(out)


def set_key_values(metadata: bytes, values: Mapping[str, str], *, max_elements: int) -> bytes:
    """The Thrift bytes of FileMetaData, ``metadata``, with changed key-value metadata.

    A key of ``values`` replaces all pairs that have it. Unknown fields, and bytes behind the struct, stay as they are.
    Raises CorruptFileError for other bytes, ResourceLimitError for more list elements than ``max_elements``.
    """
    reader = CompactReader(metadata, max_elements=max_elements)
    pairs, fields = _split_key_values(reader, {key.encode() for key in values})
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


def _split_key_values(
    reader: CompactReader, replaced: Collection[bytes]
) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """The key-value pairs that are not ``replaced``, and the other fields as (id, type, value)."""
    pairs: list[bytes] = []
    fields: list[tuple[int, int, bytes]] = []
    field_type, last_id = reader.field(0)
    while field_type != STOP:
        start = reader.pos
        if last_id == _KEY_VALUES:
            if field_type != LIST:
                raise CorruptFileError("the footer's key-value metadata is not a list")
            pairs = [pair for pair in _pairs(reader) if _key(pair) not in replaced]  # the last list counts
        else:
            if field_type > FALSE:
                reader.skip(field_type)
            fields.append((last_id, field_type, reader.data[start : reader.pos]))
        field_type, last_id = reader.field(last_id)
    return pairs, fields


def _pairs(reader: CompactReader) -> list[bytes]:
    """The structs of the list at the reader's position."""
    element, length = reader.list_header()
    if length and element != STRUCT:
        raise CorruptFileError("the footer's key-value metadata is not a list of structs")
    structs = []
    for _ in range(length):
        start = reader.pos
        reader.skip_struct(1)
        structs.append(reader.data[start : reader.pos])
    return structs


def _key(pair: bytes) -> bytes | None:
    key = CompactReader(pair).struct().get(1)
    return key if isinstance(key, bytes) else None
