"""The model of an index: tables, their segments, and the backend that stores them.

Each table's first column is ``key`` (binary, not null, ascending in unsigned byte order), and each lookup is a list of
key ranges. So any backend that finds keys can store any kind of table.

Values have order-preserving keys (:mod:`asyncpq.indexing.key_encoding`): keys sort as the values do. ``NULL_KEY``
stands for null, ``NAN_KEY`` for NaN, and ``UNKNOWN_KEY`` for a file that may hold any value: every lookup includes it.
Keys of tables by file are the file's id, followed by other numbers (:func:`file_key`).

File ids name versions of files. They are consecutive and never used twice. A segment lists the files whose rows in its
key range it has completely: only for such a file does a missing key prove that the file lacks the value. Backends do
not interpret the rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.records import dataclass

#: Greatest number of a snapshot: this one and the next are 64-bit numbers in every backend.
MAX_SNAPSHOT: Final = (1 << 63) - 2

UNKNOWN_KEY: Final = b""
NULL_KEY: Final = b"\x00"
VALUE_TAG: Final = b"\x01"  # an encoded value follows
NAN_KEY: Final = b"\x02"
AFTER_ALL: Final = b"\x03"  # above every key of a value


class KeyRange(NamedTuple):
    """The encoded keys ``low <= key < high``, compared as bytes. The index asks its backend for the rows of such ranges
    (:class:`SegmentQuery`); a backend has to know only that the bytes sort as the keys do.

    Attributes:
        low: least key.
        high: end, exclusive; None for no end.
    """

    low: bytes
    high: bytes | None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.low <= key and (self.high is None or key < self.high)

    @classmethod
    def point(cls, key: bytes) -> KeyRange:
        """Return the range that contains only ``key``."""
        return cls(key, key + b"\x00")

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """Return the range of all keys that begin with ``prefix``."""
        stripped = prefix.rstrip(b"\xff")
        return cls(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def file_key(file: int, *rest: int) -> bytes:
    """Return the key of a row in a table by file: the file's id in 8 bytes, then each number of ``rest`` (a leaf or
    row group ordinal, or -1) plus one in 4 bytes, all big-endian."""
    return file.to_bytes(8, "big") + b"".join((number + 1).to_bytes(4, "big") for number in rest)


# -- tables ----------------------------------------------------------------------------------------

_KEY = pa.field("key", pa.binary(), nullable=False)
_FILE = pa.field("file", pa.int64(), nullable=False)
_PAYLOAD = pa.field("payload", pa.binary(), nullable=False)

#: Schemas of the tables by kind. ``file`` is the id of a file version.
TABLE_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    # a row for each file, key file_key(file): its version and size
    "files": pa.schema(
        [
            _KEY,
            pa.field("path", pa.string(), nullable=False),  # relative to the dataset's root, or a whole url
            pa.field("size", pa.int64(), nullable=False),
            pa.field("etag", pa.string()),
            pa.field("last_modified", pa.string()),
            pa.field("version", pa.string()),
            pa.field("num_rows", pa.int64()),  # null: the file could not be read
            pa.field("row_groups", pa.list_(pa.int64())),  # number of rows of each
            pa.field("problem", pa.string()),  # why the file could not be read
        ]
    ),
    # a row for each interval of keys in a zone: its values (key = least, max = greatest, inclusive), its nulls (both
    # NULL_KEY), its NaNs (both NAN_KEY). A zone is a row group; group -1 is the whole file.
    "bounds": pa.schema(
        [
            _KEY,
            pa.field("max", pa.binary(), nullable=False),
            _FILE,
            pa.field("group", pa.int32(), nullable=False),
            pa.field("values", pa.int64()),  # number of values in the interval; null: unknown
        ]
    ),
    "set": pa.schema([_KEY, _FILE]),  # the distinct values of a file
    "ngram": pa.schema([_KEY, _FILE]),  # the distinct n-grams of a file's strings, after VALUE_TAG
    # postings: ``rows`` consecutive rows of the file from ``row`` on
    "keys": pa.schema(
        [_KEY, _FILE, pa.field("row", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)]
    ),
    "text": pa.schema(
        [_KEY, _FILE, pa.field("row", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)]
    ),
    "bloom": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, group): a split-block bitset, little-endian words
    "footers": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, leaf); leaf -1: common to all leaves
    "pages": pa.schema([_KEY, _PAYLOAD]),  # file_key(file, leaf)
    "manifest": pa.schema([_KEY, _PAYLOAD]),  # members of a manifest that its root has no room for, in pieces
}
#: Kinds whose keys are encoded values; the keys of the others begin with file ids.
BY_VALUE: Final = frozenset({"bounds", "set", "ngram", "keys", "text"})


class SegmentQuery(NamedTuple):
    """A query to a segment: the rows and columns to return.

    Attributes:
        ranges: ranges of the rows' keys, ascending and without overlap; None for all rows.
        columns: names of the columns to return; None for all.
        at_least: name of a binary column, and a value: rows with a lesser value in that column may be left out. None:
            no row may be.
        limit: if more rows than this match, the backend returns None in place of rows; None for no limit.
    """

    ranges: Sequence[KeyRange] | None = None
    columns: Sequence[str] | None = None
    at_least: tuple[str, bytes] | None = None
    limit: int | None = None


EVERY_ROW: Final = SegmentQuery()


class IndexTable(NamedTuple):
    """One sorted table of an index.

    Attributes:
        kind: "files", or the name of the :class:`IndexKind` of the table, such as "keys".
        columns: names or dotted paths of the dataset's columns; empty for "files", "footers" and "pages".
        options: pairs of name and JSON value of the kind's options, such as ``("max_values", 1000)``. Tables with
            different options are different tables.
    """

    kind: str
    columns: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows in the segments of this table."""
        return TABLE_SCHEMAS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.columns)})" if self.columns else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An immutable run of rows of a table, in a backend: an argument of the methods of :class:`IndexBackend`.

    Attributes:
        name: name of the segment in the backend, never used again.
        table: table to which the rows belong.
        num_rows: number of rows.
        size: approximate bytes of the segment in the backend.
        data_bytes: approximate bytes of the rows in memory; 0 if unknown.
        low, high: least and greatest encoded key, ``UNKNOWN_KEY`` (a file that may hold any value) left out; both empty
            if the segment has no other key.
        files: half-open ranges of ids of the files whose rows are in the segment. A key without a row in a file's
            segments does not occur in the file.
        has_unknown: whether a row has the key ``UNKNOWN_KEY``.
        extra: the backend's own JSON data, with which it finds and checks the segment.
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


# -- backends ---------------------------------------------------------------------------------------

#: What a backend stores under names.
Stored: TypeAlias = Literal["segments", "manifests", "builds"]

_WHOLE_DATA = 4


def comes_whole(segment: Segment, most: int) -> bool:
    """Return whether a lookup fetches the whole segment and keeps it in memory, rather than some of its row groups.

    ``most``, which is ``RequestOptions.whole_segment_bytes``, limits the segment's stored bytes. Its decoded bytes are
    limited to four times as much, because the first lookup of each process decodes them all.
    """
    return segment.size <= most and segment.data_bytes <= _WHOLE_DATA * most


class IndexBackend(Protocol):
    """Stores an index: immutable segments, and one manifest for each snapshot. Implement one for a store of your own:
    ``at`` of :meth:`asyncpq.Session.build_index` takes it.

    asyncpq calls the methods, in the session's event loop and several at once. Each raises StoreError if the store
    fails. ``operation`` is the call to which asyncpq's own backends add their requests (None: they are not counted);
    yours may ignore it. :data:`asyncpq.testing.BACKEND_CHECKS` tests a backend.
    """

    @property
    def description(self) -> str:
        """Url or other text that names the place of the index, without secrets; for messages."""

    def check(self, kinds: Sequence[str]) -> None:
        """Check that the backend can store tables of all ``kinds``: values of :attr:`IndexTable.kind`. A subclass that
        lacks the method can store all.

        Raises:
            InvalidOptionError: the backend cannot store one of the kinds; the hint names a backend that can.
        """
        return

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
        """Store a segment. Builds, refreshes and compactions call it.

        Args:
            name: name of the segment, which no other segment has.
            index_table: table to which the rows belong.
            rows: the rows of the segment, sorted by key, in batches of the schema ``index_table.schema``.
            folder: folder for local temporary files; None for the system's temporary folder.
            operation: see :class:`IndexBackend`.

        Returns:
            The number of bytes stored, and JSON data for :attr:`Segment.extra`.

        Raises:
            StoreError: storing failed. Readers cannot see the segment.
        """

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        """Return the rows that ``query`` selects, sorted by key, with the columns ``query.columns`` of
        ``segment.table.schema``; None, after reading as little as possible, if they are more than ``query.limit``.
        Reads through the index call it. ``operation``: see :class:`IndexBackend`.

        Raises:
            StaleSnapshotError: the segment is gone.
            CorruptIndexError: the segment is damaged or incomplete.
            StoreError: the store failed.
        """

    def iterate_segment(self, segment: Segment, *, operation: Operation | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Yield all rows of the segment, sorted by key, in batches of the schema ``segment.table.schema``, in bounded
        memory. Compactions call it. ``operation`` and errors: as in :meth:`read_segment`."""

    # -- manifests
    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        """Return the number and the content of a recent manifest (bytes that describe a snapshot), not always the
        newest; None if there are no manifests. Makes one request. Raises StoreError if the store fails.
        ``operation``: see :class:`IndexBackend`."""

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        """Return the content of manifest ``number``, as :meth:`commit` got it; None if it does not exist. Makes one
        request. ``operation`` and errors: as in :meth:`latest`."""

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        """Create manifest ``number`` atomically and return True; return False if that number exists already. Of many
        calls with one number, one returns True.

        Args:
            number: number of the new snapshot: that of the newest manifest plus 1, or 1.
            content: the bytes that :meth:`manifest` returns.
            operation: see :class:`IndexBackend`.

        Raises:
            ConcurrentCommitUnsupported: the backend cannot create atomically, and ``single_writer`` is not set.
            StoreError: the store failed.
        """

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        """Record that the build with the id ``build`` (a text) is alive; :meth:`ages` returns the time since. A build
        calls it again and again while it runs. ``operation`` and errors: as in :meth:`latest`."""

    # -- all that is stored
    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        """Return the age of each segment, manifest or build by name, in seconds according to the backend's clock. The
        name of a manifest is its number in decimal digits, that of a build its id; a build's age is that of its last
        :meth:`touch`. ``stored`` says which: "segments", "manifests" or "builds". ``operation`` and errors: as in
        :meth:`latest`."""

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        """Delete segments, manifests or builds (``stored``: as in :meth:`ages`) by the names that :meth:`ages` returns.
        Those that do not exist are ignored. ``operation`` and errors: as in :meth:`latest`."""

    async def drop(self, *, operation: Operation | None = None) -> None:
        """Remove the index, with all its manifests and segments; :meth:`Index.drop` calls it. ``operation`` and errors:
        as in :meth:`latest`."""

    async def close(self) -> None:
        """Close connections and files that the backend has opened. The index stays."""
