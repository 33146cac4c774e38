"""Indexes embedded in a Parquet file, and the footer keys that locate them.

A file may have any number of embedded indexes, each under a name. Their bytes stand in front of the footer, outside of
all column chunks, so other readers ignore them. The footer's key ``asyncpq.index.<name>`` has a JSON object:
``offset`` and ``length`` in bytes, ``kind`` (text) and ``version`` (a whole number), which the index's maker defines,
and ``sha256`` of the bytes (hex). Other members are ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncpq.errors import CorruptIndexError, FormatError, InvalidOptionError
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.records import dataclass

KEY_PREFIX: Final = "asyncpq.index."

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_FIRST_BYTE: Final = 4  # after the magic
_HINT: Final = "A program that rewrote the file may have copied the footer's keys: embed the index again."


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedIndexEntry:
    """The entry in a footer's key-value metadata that locates and describes an index embedded in the file: a value of
    :attr:`asyncpq.File.embedded_indexes`.

    Attributes:
        name: the index's name, unique in the file.
        kind, version: name and version of the format of the bytes, which the author of the index defines.
        offset, length: the position and size of the index in the file, in bytes.
        sha256: SHA-256 of the index's bytes, in hex.
    """

    name: str
    kind: str
    version: int
    offset: int
    length: int
    sha256: str

    @property
    def stop(self) -> int:
        """The file offset after the index's last byte."""
        return self.offset + self.length

    @property
    def key(self) -> str:
        """The key of this entry in the footer's key-value metadata."""
        return KEY_PREFIX + self.name

    @property
    def value(self) -> str:
        """The value of this entry in the footer's key-value metadata: a JSON object."""
        return json.dumps({name: getattr(self, name) for name in ("offset", "length", "kind", "version", "sha256")})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedIndex:
    """An index that is embedded in a Parquet file: the result of :meth:`asyncpq.File.embedded_index`, or made to be
    written by :func:`asyncpq.indexing.embed_indexes`.

    Attributes:
        name: the index's name, unique in its file.
        kind, version: name and version of the format of the bytes, which the author of the index defines.
        data: the index's bytes.

    Raises:
        InvalidOptionError: the name or kind cannot be encoded as UTF-8, or the version is not a whole number.
    """

    name: str
    kind: str
    version: int
    data: bytes

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("kind", self.kind)):
            if type(text) is not str or not _is_utf8(text) or not (text or what == "kind"):
                raise InvalidOptionError(
                    f"{what}={text!r}: must be text{' of UTF-8' if what == 'kind' else ', not empty'}", option=what
                )
        if type(self.version) is not int or self.version < 0:
            raise InvalidOptionError(f"version={self.version!r}: must be a whole number, 0 or more", option="version")
        if type(self.data) is not bytes:
            raise InvalidOptionError(f"data must be bytes, not {type(self.data).__name__}")

    def __repr__(self) -> str:
        return f"EmbeddedIndex({self.name!r}, {self.kind!r}, version {self.version}, {len(self.data)} bytes)"

    def entry(self, offset: int) -> EmbeddedIndexEntry:
        """Return the footer entry to write for this index if its bytes begin at the file offset ``offset``."""
        return EmbeddedIndexEntry(
            name=self.name,
            kind=self.kind,
            version=self.version,
            offset=offset,
            length=len(self.data),
            sha256=hashlib.sha256(self.data).hexdigest(),
        )


def entries(key_values: Mapping[str, str | None], url: str) -> dict[str, EmbeddedIndexEntry]:
    """Return the embedded indexes that a footer's ``key_values`` list, by name. Raises CorruptIndexError, with ``url``,
    if an entry is malformed."""
    by_name = {}
    try:
        for key in key_values:
            entry = decode_entry(key[len(KEY_PREFIX) :], key_values) if key.startswith(KEY_PREFIX) else None
            if entry is not None:
                by_name[entry.name] = entry
    except CorruptIndexError as error:
        raise error.locate(url=url) from None
    return by_name


def decode_entry(name: str, key_values: Mapping[str, str | None]) -> EmbeddedIndexEntry | None:
    """Return the footer's entry for the index ``name``; None if it has none. Raises CorruptIndexError if it is
    malformed."""
    key = KEY_PREFIX + name
    if not name or key not in key_values:
        return None
    try:
        members = json.loads(key_values[key] or "")
    except (ValueError, RecursionError):
        raise CorruptIndexError(f"the value of the footer's key {key!r} is not JSON", hint=_HINT) from None
    if not isinstance(members, dict):
        raise CorruptIndexError(f"the value of the footer's key {key!r} is JSON, but not an object", hint=_HINT)
    numbers: dict[str, Any] = {member: members.get(member) for member in ("offset", "length", "version")}
    kind, digest = members.get("kind"), members.get("sha256")
    if not all(type(number) is int and number >= 0 for number in numbers.values()):
        raise CorruptIndexError(f"the footer's key {key!r} lacks a valid offset, length or version", hint=_HINT)
    if not (type(kind) is str and _is_utf8(kind) and type(digest) is str and _DIGEST.fullmatch(digest)):
        raise CorruptIndexError(f"the footer's key {key!r} lacks a valid kind or SHA-256", hint=_HINT)
    return EmbeddedIndexEntry(name=name, kind=kind, sha256=digest, **numbers)


def chunk_spans(metadata: FileMetadata) -> Sequence[tuple[int, int]]:
    """Return the file ranges ``(start, stop)`` of all readable column chunks, ascending; adjacent ranges are merged."""
    spans = []
    for group in metadata.row_groups:
        for leaf in range(group.num_columns):
            try:
                chunk = group.parse_chunk(leaf)
            except FormatError:
                continue  # a read of the column raises it
            if chunk.num_values and chunk.file_path is None:
                spans.append((chunk.start, chunk.stop))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged


def check_place(entry: EmbeddedIndexEntry, footer_start: int, spans: Sequence[tuple[int, int]]) -> None:
    """Raise CorruptIndexError if an index's bytes overlap the file's magic, a column chunk or the footer.

    ``spans`` are the result of :func:`chunk_spans`.
    """
    if entry.offset < _FIRST_BYTE or entry.stop > footer_start:
        raise CorruptIndexError(
            f"the footer locates the embedded index {entry.name!r} at the bytes {entry.offset} to {entry.stop}, "
            f"outside the file's data ({_FIRST_BYTE} to {footer_start})",
            hint=_HINT,
        )
    before = bisect_right(spans, (entry.stop,)) - 1  # the last span that begins before the entry's end
    if entry.length and before >= 0 and spans[before][1] > entry.offset:
        raise CorruptIndexError(
            f"the footer locates the embedded index {entry.name!r} and a column chunk at the same bytes",
            byte_range=(entry.offset, entry.stop),
            hint=_HINT,
        )


def check_data(entry: EmbeddedIndexEntry, data: bytes) -> EmbeddedIndex:
    """Return the index that ``entry`` describes, with its bytes ``data``. Raises CorruptIndexError if their SHA-256 is
    not that of ``entry``."""
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CorruptIndexError(
            f"the bytes of the embedded index {entry.name!r} do not have the SHA-256 that the footer gives",
            byte_range=(entry.offset, entry.stop) if entry.length else None,
            hint=_HINT,
        )
    return EmbeddedIndex(name=entry.name, kind=entry.kind, version=entry.version, data=data)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
