"""What an index is made of: parts, which are tables sorted by a key of bytes, kept as segments in a place.

Every part, of whatever kind, is a table whose first column is ``key`` (binary, not null, ascending in unsigned byte
order), and every question comes down to ranges of keys. So each kind goes to each place that can find keys.

Keys of values are normalised (:mod:`asyncpq.indexing.key_encoding`): the order of the bytes is the order of the values.
``NULL_KEY`` stands for null, ``NAN_KEY`` for NaN, and ``UNKNOWN_KEY`` for a file that may hold anything: it belongs to
every range that is asked for. Keys of what is known by file are its id and what follows (:func:`file_key`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from asyncpq.events import Operation

UNKNOWN_KEY: Final = b""
NULL_KEY: Final = b"\x00"
VALUE_TAG: Final = b"\x01"  # a normalised value follows
NAN_KEY: Final = b"\x02"
AFTER_ALL: Final = b"\x03"  # above every key of a value


class KeyRange(NamedTuple):
    """Keys ``low <= key < high``; ``high`` None: without an end."""

    low: bytes
    high: bytes | None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.low <= key and (self.high is None or key < self.high)

    @classmethod
    def point(cls, key: bytes) -> KeyRange:
        """One key alone."""
        return cls(key, key + b"\x00")

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """All keys that begin so."""
        stripped = prefix.rstrip(b"\xff")
        return cls(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def file_key(file: int, *rest: int) -> bytes:
    """Key of what is known by file: its id in 8 bytes, then numbers of 4 (a leaf's, a row group's), big-endian."""
    return file.to_bytes(8, "big") + b"".join((number + 1).to_bytes(4, "big") for number in rest)


# -- parts ----------------------------------------------------------------------------------------

_KEY = pa.field("key", pa.binary(), nullable=False)
_FILE = pa.field("file", pa.int64(), nullable=False)
_PAYLOAD = pa.field("payload", pa.binary(), nullable=False)

#: Tables of the parts, by kind. ``file`` is a file-version id.
TABLE_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    # one row a file, key file_key(file): what names the version, and how much it holds
    "files": pa.schema(
        [
            _KEY,
            pa.field("path", pa.string(), nullable=False),  # relative to the dataset's root, or a whole url
            pa.field("size", pa.int64(), nullable=False),
            pa.field("etag", pa.string()),
            pa.field("last_modified", pa.string()),
            pa.field("version", pa.string()),
            pa.field("num_rows", pa.int64()),  # null: it could not be read, nothing is known of it
            pa.field("row_groups", pa.list_(pa.int64())),  # rows of each
            pa.field("problem", pa.string()),  # why it could not be read
        ]
    ),
    # a row for each interval of keys that a zone holds: its values (key = least, max = greatest, inclusive), its
    # nulls (both NULL_KEY), its NaNs (both NAN_KEY). A zone is a row group; group -1 is the whole file.
    "bounds": pa.schema(
        [
            _KEY,
            pa.field("max", pa.binary(), nullable=False),
            _FILE,
            pa.field("group", pa.int32(), nullable=False),
            pa.field("values", pa.int64()),  # how many of the interval; null: unknown
        ]
    ),
    "set": pa.schema([_KEY, _FILE]),  # the distinct values of a file
    "ngram": pa.schema([_KEY, _FILE]),  # the distinct n-grams of a file's strings, VALUE_TAG before them
    # postings: ``rows`` consecutive rows of the file from ``row`` on
    "keys": pa.schema(
        [_KEY, _FILE, pa.field("row", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)]
    ),
    "text": pa.schema(
        [_KEY, _FILE, pa.field("row", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)]
    ),
    "bloom": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, group): a split-block bitset, little-endian words
    "footers": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, leaf), leaf -1: what all leaves share
    "pages": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, leaf)
    "manifest": pa.schema([_KEY, _PAYLOAD]),  # what of a manifest its root has no room for, in pieces
}
#: Kinds whose keys are normalised values; of the others, keys are file ids.
BY_VALUE: Final = frozenset({"bounds", "set", "ngram", "keys", "text"})


@dataclass(frozen=True, slots=True)
class IndexTable:
    """One sorted table of an index.

    Attributes:
        kind: a key of ``TABLE_SCHEMAS``.
        columns: of the dataset, by name or dotted path; none for "files", "footers" and "pages".
        options: of the kind, as JSON has them; other options make another part.
    """

    kind: str
    columns: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return TABLE_SCHEMAS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.columns)})" if self.columns else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An immutable piece of a part, in its place.

    Attributes:
        name: in the place; never used again for another.
        part: what it is a piece of.
        num_rows: of the table.
        size: bytes in the place, roughly.
        data_bytes: of the table in memory, roughly; 0 where that was not counted.
        low, high: least and greatest key but ``UNKNOWN_KEY``; both empty where there is none.
        files: half-open ranges of file ids whose entries are all in here: of these, what is not here is not there.
        has_unknown: some rows have ``UNKNOWN_KEY``.
        extra: what the place needs to find and check it (JSON).
    """

    name: str
    table: IndexTable
    num_rows: int
    size: int
    low: bytes
    high: bytes
    files: tuple[tuple[int, int], ...]
    has_unknown: bool = False
    data_bytes: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


# -- places ---------------------------------------------------------------------------------------


def whole_bytes(index_table: IndexTable, most: int) -> int:
    """Up to how many bytes a segment of ``part`` is kept whole, where ``most`` is the session's option.

    Of what has a few short rows for each file there may be four times as much: every lookup asks for it.
    """
    return 4 * most if index_table.kind in ("files", "bounds") else most


class IndexBackend(Protocol):
    """Where an index is kept: segments, which are immutable, and manifests, of which there is one for each snapshot.

    Every method that asks the backend takes the ``operation`` whose cost it is: a place counts each request there, and
    nowhere without one.
    """

    @property
    def description(self) -> str:
        """Url or the like, without secrets."""

    def check(self, kinds: Sequence[str]) -> None:
        """
        Raises:
            InvalidOptionError: a kind makes no sense here; says which place it goes to.
        """

    # -- segments
    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Store the rows, which come sorted by key.

        Args:
            folder: for local files, where it needs any; None for the system's temporary one.

        Returns:
            bytes stored, and ``Segment.extra``.

        Raises:
            StoreError: it could not be stored; nothing is left that a reader could take for it.
        """

    async def read_segment(
        self,
        segment: Segment,
        ranges: Sequence[KeyRange] | None,
        columns: Sequence[str] | None = None,
        *,
        at_least: tuple[str, bytes] | None = None,
        limit: int | None = None,
        operation: Operation | None = None,
    ) -> pa.Table | None:
        """Rows whose keys are in one of ``ranges``, which ascend and do not meet; None: all rows. By key, ascending.

        Args:
            columns: names; None for all.
            at_least: column and value: rows with less in a binary column may be left out.
            limit: with more rows than that, None is returned, and as little as possible is read.

        Raises:
            StaleSnapshotError: the segment is not there any more.
            CorruptIndexError: what is there cannot be it, or is not all of it.
        """

    def iterate_segment(self, segment: Segment, *, operation: Operation | None = None) -> AsyncIterator[pa.RecordBatch]:
        """All rows by key, in bounded memory."""

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        """What is not there is no error."""

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """Names of all that are there, with how old they are in seconds, by the place's own clock."""

    # -- manifests
    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        """Number and content of a manifest that was the newest not long ago; None: there is none. One request."""

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        """Content; None where there is none of that number. One request."""

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        """Create manifest ``number``, in one step; False if there is one.

        Raises:
            ConcurrentCommitUnsupported: the place cannot promise that, and ``single_writer`` was not set.
        """

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None: ...

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        """Numbers with how old they are in seconds, by the place's own clock."""

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        """A sign of life of a build under way."""

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """Builds under way, with seconds since their last sign of life."""

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None: ...

    async def drop(self, *, operation: Operation | None = None) -> None:
        """Remove all of it."""

    async def close(self) -> None: ...
