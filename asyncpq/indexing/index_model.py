"""The model of an index: tables, their segments, and the backend that keeps them.

Each table's first column is ``key`` (binary, not null, ascending in unsigned byte order), and each lookup is a list of
key ranges. So any backend that finds keys can keep any kind of table.

Values have order-preserving keys (:mod:`asyncpq.indexing.key_encoding`): keys sort as the values do. ``NULL_KEY``
stands for null, ``NAN_KEY`` for NaN, and ``UNKNOWN_KEY`` for a file that may hold any value: every lookup includes it.
Tables by file have the file's id as key, and more numbers after it (:func:`file_key`).

File ids name versions of files. They are dense and never given twice. A segment names the ids of which it has all
rows: only for these does absence rule a file out. Backends know nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from asyncpq.events import Operation

UNKNOWN_KEY: Final = b""
NULL_KEY: Final = b"\x00"
VALUE_TAG: Final = b"\x01"  # an encoded value follows
NAN_KEY: Final = b"\x02"
AFTER_ALL: Final = b"\x03"  # above every key of a value


class KeyRange(NamedTuple):
    """Keys ``low <= key < high``; ``high`` None: no end."""

    low: bytes
    high: bytes | None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.low <= key and (self.high is None or key < self.high)

    @classmethod
    def point(cls, key: bytes) -> KeyRange:
        """Return the range of one key."""
        return cls(key, key + b"\x00")

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """Return the range of all keys that begin with ``prefix``."""
        stripped = prefix.rstrip(b"\xff")
        return cls(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def file_key(file: int, *rest: int) -> bytes:
    """Return the key of a table by file: the file's id in 8 bytes, then numbers (leaf, row group) of 4, big-endian."""
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


@dataclass(frozen=True, slots=True)
class IndexTable:
    """One sorted table of an index.

    Attributes:
        kind: a key of ``TABLE_SCHEMAS``.
        columns: of the dataset, by name or dotted path; none for "files", "footers" and "pages".
        options: of the kind, as JSON; tables with other options are other tables.
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
    """An immutable run of rows of a table, in a backend.

    Attributes:
        name: in the backend; never used again.
        table: owns the rows.
        num_rows: number of rows.
        size: bytes in the backend, roughly.
        data_bytes: bytes in memory, roughly; 0 if unknown.
        low, high: least and greatest key, ``UNKNOWN_KEY`` apart; both empty if there is no other key.
        files: half-open ranges of file ids whose entries are all in segments with these ranges: a key without an entry
            does not occur in these files.
        has_unknown: some rows have ``UNKNOWN_KEY``.
        extra: the backend's own data to find and check the segment (JSON).
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


def whole_bytes(index_table: IndexTable, most: int) -> int:
    """Return up to how many bytes a segment of the table is kept whole in memory; ``most`` is the session's option.

    Tables with a few short rows for each file get four times as much: every lookup needs them.
    """
    return 4 * most if index_table.kind in ("files", "bounds") else most


class IndexBackend(Protocol):
    """Keeps an index: immutable segments, and one manifest for each snapshot.

    Each method counts its requests in ``operation``, if one is given.
    """

    @property
    def description(self) -> str:
        """Url or the like, without secrets."""

    def check(self, kinds: Sequence[str]) -> None:
        """Check that the backend takes tables of these kinds.

        Raises:
            InvalidOptionError: it does not take one; the hint names a backend that does.
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
        """Store a segment.

        Args:
            rows: sorted by key.
            folder: for local files; None for the system's temporary folder.

        Returns:
            The bytes stored, and ``Segment.extra``.

        Raises:
            StoreError: storing failed. Readers cannot see the segment.
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
        """Return the rows with keys in one of ``ranges``, sorted by key.

        Args:
            ranges: ascending and apart; None for all rows.
            columns: names; None for all.
            at_least: a binary column and a value; rows with less in it may be left out.
            limit: return None if there are more rows, and read as little as possible.

        Raises:
            StaleSnapshotError: the segment is gone.
            CorruptIndexError: the segment is damaged or incomplete.
        """

    def iterate_segment(self, segment: Segment, *, operation: Operation | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Yield all rows sorted by key, in bounded memory."""

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        """Delete segments. Missing ones are no error."""

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """Return the names of all segments with their ages in seconds, by the backend's clock."""

    # -- manifests
    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        """Return number and content of a recent manifest, not always the newest; None if there is none. One request."""

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        """Return the content of one manifest; None if there is no such number. One request."""

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        """Create manifest ``number`` atomically; return False if it exists.

        Raises:
            ConcurrentCommitUnsupported: the backend cannot do that, and ``single_writer`` is not set.
        """

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None: ...

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        """Return the numbers of all manifests with their ages in seconds, by the backend's clock."""

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        """Record a heartbeat of a build."""

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """Return all builds with the seconds since their last heartbeat."""

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None: ...

    async def drop(self, *, operation: Operation | None = None) -> None:
        """Remove the index."""

    async def close(self) -> None: ...
