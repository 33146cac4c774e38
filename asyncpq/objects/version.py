"""One version of one object: its footer, values derived from the footer, and what an external index knows of it."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from asyncpq.caching.entry_format import ContentKey, PartKind, version_digest
from asyncpq.errors import FormatError
from asyncpq.objects.read_plan import Item
from asyncpq.parquet.column_chunk import ColumnChunk, validate_chunk
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.writer_faults import DICTIONARY_HEADER_PADDING
from asyncpq.pruning.access_plan import ResolvedAccess, RowGroupLayout
from asyncpq.records import NamedTuple, dataclass
from asyncpq.storage.base import Validator


class MadeIndex(NamedTuple):
    """The page index of a column chunk that the file lacks, as an external index made it.

    Attributes:
        offsets: OffsetIndex as Thrift.
        bounds: ColumnIndex as Thrift; None where nothing is known of its pages' values.
    """

    offsets: bytes
    bounds: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class KnownVersion:
    """The metadata of one version of an object that an external index holds.

    Attributes:
        validator: of the version, as a GET has it.
        leaves: ordinals of those leaves; None for all.
        footer_start: where the footer begins; 0 without one.
        spans: pieces of the object by where they begin: its page indexes.
        made: page indexes by row group and leaf, where the file has none.
    """

    validator: Validator
    metadata: FileMetadata | None  # its footer; of some leaves alone, perhaps; None where only its pages are known
    leaves: frozenset[int] | None
    footer_start: int
    spans: Sequence[tuple[int, bytes]] = ()
    made: Mapping[tuple[int, int], MadeIndex] | None = None


class Spans:
    """Byte ranges of one version of an object that are held in memory, so reading them needs no request."""

    __slots__ = ("_pieces", "_starts", "weight")

    def __init__(self) -> None:
        self._starts: Sequence[int] = ()
        self._pieces: Sequence[bytes] = ()
        self.weight: int = 0

    def add(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Add ``(offset, bytes)`` pairs of the same version; the ranges do not overlap."""
        known = dict(zip(self._starts, self._pieces, strict=True))
        known.update(pieces)
        self._starts = sorted(known)
        self._pieces = [known[start] for start in self._starts]
        self.weight = sum([len(piece) + 120 for piece in self._pieces])

    def cut_out(self, keys: Iterable[ContentKey]) -> dict[ContentKey, bytes]:
        """Return, by key, the bytes of those parts that lie completely within one of the ranges in memory."""
        found: dict[ContentKey, bytes] = {}
        for key in keys:
            at = bisect_right(self._starts, key.start) - 1
            if at >= 0:
                start, piece = self._starts[at], self._pieces[at]
                if key.stop - start <= len(piece):
                    found[key] = piece[key.start - start : key.stop - start]
        return found


class KeptChunks:
    """Column chunks, or slices of them, that the memory cache keeps whole, and from which reads cut pages. Thread-safe.

    A chunk stays here when the cache evicts it, so a lookup of its key in the cache may find nothing.
    """

    __slots__ = ("_keys", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._keys: dict[int, ContentKey] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, key: ContentKey) -> None:
        """Add the chunk with the cache key ``key``."""
        known = self._keys.get(key.start)
        if known is None or known.stop < key.stop:
            self._keys[key.start] = key
        if known is None:
            insort(self._starts, key.start)

    def holder(self, start: int, stop: int) -> ContentKey | None:
        """Return the key of the chunk that has the bytes ``start`` to ``stop``; None if none has."""
        at = bisect_right(self._starts, start) - 1
        key = self._keys[self._starts[at]] if at >= 0 else None
        return key if key is not None and stop <= key.stop else None


# Of most versions, each of which would else be objects more that the garbage collector walks over.
_NO_SPANS: Final = Spans()
_NO_CHUNKS: Final = KeptChunks()
_MAKES_CHUNKS: Final = threading.Lock()

T = TypeVar("T")

_MAX_LEARNT = 4  # indexes beside one object
_DECODED: Final = frozenset({"dictionary", "page"})  # parts that memory holds as arrays, too
# ContentKey of a tuple of its fields, without a Python call
_KEY: Final = partial(tuple.__new__, ContentKey)
_MAX_RECENT = 128  # values that :meth:`FileVersion.recent` keeps for one file


class Weighable(Protocol):
    """An object that reports its approximate size in bytes."""

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""


Weighed = TypeVar("Weighed", bound=Weighable)


class Decryption(Protocol):
    """Decrypts the parts of an encrypted file."""

    def footer(self, footer: bytes, size: int) -> bytes:
        """Decrypt the FileMetaData of an encrypted file. ``footer`` is the end of the file, which has ``size`` bytes.
        May be slow."""


class ObjectVersion:
    """One version of an object of any format: its validator, and the keys of its parts in caches. Made by
    :meth:`asyncpq.engine.byte_readers.ByteReader.version`.

    Attributes:
        url: url of the object, for messages.
        size: size in bytes.
        validator: identifies the version; a :class:`asyncpq.Validator`.
        digest: bytes that name this version in cache keys.
        observed_at: ``time.monotonic()`` when the version was requested; a later one is newer.
        can_validate: whether the store can tell if the object still has this version.
    """

    __slots__ = (
        "can_validate",
        "digest",
        "kept_chunks",
        "observed_at",
        "size",
        "spans",
        "tail_key",
        "url",
        "validator",
    )

    def __init__(
        self,
        *,
        url: str,
        namespace: str,
        identity: str,
        validator: Validator,
        observed_at: float,
        can_validate: bool = True,
    ) -> None:
        self.url = url  # for messages
        self.validator = validator
        self.size: int = validator.size
        self.digest: bytes = version_digest(namespace, identity, validator)  # names this version in cache keys
        if not can_validate:  # another one may look the same: nothing that is cached of this one is its
            self.digest = os.urandom(len(self.digest))
        # The cache key of the object's tail: its last bytes, kept for the indexes (and, of small objects, the pages) in
        # them. A plain tuple, which the garbage collector does not visit.
        self.tail_key: tuple[object, ...] = tuple(ContentKey(self.digest, "tail", 0, 0))
        self.observed_at = observed_at  # time.monotonic() when the footer was requested; a later one is a newer version
        self.can_validate = can_validate  # the store can tell whether the object still has this version
        self.spans: Spans = _NO_SPANS  # pieces of the object that came from an index beside it
        self.kept_chunks: KeptChunks = _NO_CHUNKS

    def tail_start(self, tail: bytes) -> int:
        """Return where ``tail``, the object's last bytes, begins."""
        return self.size - len(tail)

    def cut_from_tail(self, tail: bytes, keys: Iterable[ContentKey]) -> dict[ContentKey, bytes]:
        """Return the bytes of the parts that lie completely within ``tail``, by key."""
        first = self.tail_start(tail)
        return {key: tail[key.start - first : key.stop - first] for key in keys if key.start >= first}

    def keep_whole(self, key: ContentKey) -> None:
        """Add the chunk with the cache key ``key`` to :attr:`kept_chunks`. Thread-safe."""
        with _MAKES_CHUNKS:
            if self.kept_chunks is _NO_CHUNKS:
                self.kept_chunks = KeptChunks()
        self.kept_chunks.add(key)

    def key(self, kind: PartKind, start: int, stop: int) -> ContentKey:
        """Return the cache key of the part of this version in the bytes ``start`` to ``stop``."""
        return ContentKey(self.digest, kind, start, stop)


class FileVersion(ObjectVersion):
    """The footer of one version of an object, and values derived from the footer."""

    __slots__ = (
        "_decoded_digest",
        "_derived",
        "_derived_weight",
        "_learnt",
        "_original",
        "_other_unit",
        "_recent",
        "_recent_weight",
        "all_rows",
        "arrow_schema_checked",
        "chunks",
        "decryption",
        "drops",
        "footer",
        "footer_start",
        "has_grown",
        "kept_weight",
        "leaves",
        "made",
        "metadata",
        "padded_chunks",
        "valid_chunks",
    )

    def __init__(
        self,
        version: ObjectVersion,
        *,
        footer_start: int,
        metadata: FileMetadata,
        decryption: Decryption | None = None,
        footer: bytes = b"",
        leaves: frozenset[int] | None = None,
    ) -> None:
        self.url = version.url
        self.validator: Validator = version.validator
        self.size: int = version.size
        self.digest: bytes = version.digest
        self.tail_key: tuple[object, ...] = version.tail_key
        self.observed_at = version.observed_at
        self.can_validate = version.can_validate
        self.spans: Spans = version.spans
        self.kept_chunks: KeptChunks = version.kept_chunks
        self.footer_start = footer_start
        self.metadata: FileMetadata = metadata  # the footer, parsed as far as queries needed
        self.kept_weight = 0  # its weight when it was put into the memory cache
        self.decryption = decryption  # of an encrypted file that was opened with keys; its indexes are not read
        self.footer = footer  # of such a file, its end from footer_start on
        # ordinals of the leaves whose column chunks are known; None for all. Others raise UnknownLeafError.
        self.leaves = leaves
        self.made: dict[tuple[int, int], MadeIndex] = {}  # page indexes from an index beside it, by row group and leaf
        self._original: FileVersion | None = None
        self._other_unit: FileVersion | None = None
        self._decoded_digest = self.digest
        self._learnt: tuple[KnownVersion, ...] = ()  # holds them in memory
        # chunks are longer than the footer says, by up to a dictionary page's header
        self.padded_chunks: bool = metadata.writer_faults.omits_dictionary_header
        self._derived: dict[Hashable, Any] = {}
        self._derived_weight = 0
        self._recent: dict[Hashable, Weighable] = {}
        self.drops: dict[int, dict[str, None]] = {}  # see drop(); by leaf
        self.all_rows: ResolvedAccess | None = None  # once a scan has used them
        # whether the footer's ARROW:schema is used or missing, as far as known (decoding.field_types)
        self.arrow_schema_checked: bool = False
        self.has_grown: bool = True  # its weight may have changed since it was put into the memory cache
        self.chunks: dict[tuple[int, int], Any] = {}  # kept by objects.page_indexes, by row group and leaf
        self._recent_weight = 0
        #: Those that :meth:`chunk` has checked, by row group and leaf.
        self.valid_chunks: dict[tuple[int, int], ColumnChunk] = {}

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory: footer, what was decoded of it, and derived values."""
        derived = self.derived_weight
        if self._other_unit is not None:
            derived += 2000 + self._other_unit.derived_weight
        return self.metadata.weight + derived + len(self.footer) + self.spans.weight

    @property
    def derived_weight(self) -> int:
        """The approximate bytes of the values derived from the footer."""
        return self._derived_weight + self._recent_weight

    @property
    def original(self) -> FileVersion:
        """This version, or the one that :meth:`in_int96_unit` derived it from."""
        return self if self._original is None else self._original

    def learn(self, known: KnownVersion) -> None:
        """Use the page locations, bounds and bytes of this version that an external index holds."""
        if any(known is learnt for learnt in self._learnt):
            return
        self._learnt = (*self._learnt[1 - _MAX_LEARNT :], known)
        if known.metadata is not None and known.metadata is not self.metadata:
            self._derived_weight += known.metadata.weight
        if known.spans:
            if self.spans is _NO_SPANS:
                self.spans = Spans()
            self.spans.add(known.spans)
        self.has_grown = True
        for place, made in (known.made or {}).items():
            if self.made.setdefault(place, made) is made:
                self._derived_weight += 200 + len(made.offsets) + len(made.bounds or b"")

    def drop(self, leaf: int, what: str) -> None:
        """Record that ``what``, a kind of metadata about the leaf column's chunks, contradicts their pages: not to be
        used.

        Thread-safe.
        """
        self.drops.setdefault(leaf, {})[what] = None

    def dropped(self, leaves: Iterable[int]) -> Iterator[str]:
        """Yield messages about the metadata that reads ignore since they contradict the rest of the file: those of the
        whole file, and those of ``leaves``."""
        for reason in self.metadata.dropped:
            yield f"{reason}; they are not used"
        for leaf in leaves if self.drops else ():
            for what in tuple(self.drops.get(leaf, ())):
                yield f"{self.metadata.schema.leaves[leaf].dotted}: {what}; it is not used"

    def key(self, kind: PartKind, start: int, stop: int) -> ContentKey:
        return ContentKey(self._decoded_digest if kind in _DECODED else self.digest, kind, start, stop)

    def keys(self, items: Iterable[Item]) -> list[ContentKey]:
        """Return the cache keys of ``items``: pages, dictionaries and slices of chunks."""
        keys: list[ContentKey] = []
        digest, decoded_digest = self.digest, self._decoded_digest
        for _, _, kind, start, stop, _, _ in items:
            keys.append(_KEY((decoded_digest if kind in _DECODED else digest, kind, start, stop)))
        return keys

    def in_int96_unit(self, unit: Literal["ns", "us"]) -> FileVersion:
        """Return this version with INT96 timestamps decoded in ``unit``; itself if the file has none or they have that
        unit already.

        The derived version has its own cache keys for pages and dictionaries, since memory holds them decoded.
        """
        if unit == self.metadata.int96_unit:
            return self
        leaves = self.metadata.schema.leaves
        if not self.derived(("INT96",), lambda: any(leaf.physical_type is PhysicalType.INT96 for leaf in leaves), 100):
            return self
        if self._other_unit is None:
            self._other_unit = copy.copy(self).become_reading(self, unit)
        return self._other_unit

    def become_reading(self, original: FileVersion, unit: Literal["ns", "us"]) -> FileVersion:
        """Change this object, a copy of ``original``, to decode INT96 timestamps in ``unit``; return it."""
        self._original = original
        self._other_unit = None
        self.metadata = copy.copy(original.metadata)
        self.metadata.int96_unit = unit
        self._decoded_digest = hashlib.sha256(self.digest + unit.encode()).digest()[: len(self.digest)]
        self._derived, self._derived_weight = {}, 0
        self._recent, self._recent_weight = {}, 0
        self.chunks = {}
        return self

    def derived(self, name: Hashable, make: Callable[[], T], weight: int | Callable[[T], int] = 500) -> T:
        """Return the value ``name`` derived from the footer. ``make()`` computes it once; it is then kept as long as
        the footer. ``weight`` is its approximate size in bytes, or a function that returns it."""
        value = self._derived.get(name)
        if value is None:
            value = self._derived[name] = make()
            self._derived_weight += weight if isinstance(weight, int) else weight(value)
            self.has_grown = True
        return cast("T", value)

    @property
    def row_group_layout(self) -> RowGroupLayout:
        """The first row and the number of rows of each row group."""
        groups = self.metadata.row_groups
        layout: RowGroupLayout = self.derived(
            ("row group layout",), lambda: RowGroupLayout([group.num_rows for group in groups]), attrgetter("weight")
        )
        return layout

    def keep_chunk(self, row_group: int, leaf: int, chunk: T, weight: int) -> T:
        """Store ``chunk``, of about ``weight`` bytes, in :attr:`chunks` for a row group and leaf column; return it."""
        self.chunks[row_group, leaf] = chunk
        self.grow(weight)
        return chunk

    def grow(self, weight: int) -> None:
        """Count ``weight`` more bytes of a value derived from the footer."""
        self._derived_weight += weight
        self.has_grown = True

    def recent(self, question: Hashable, make: Callable[[], Weighed]) -> Weighed:
        """Return the value for ``question``, computed by ``make()`` if it is not cached. Only recent values are kept,
        and their weight counts as this version's."""
        value = self._recent.get(question)
        if value is None:
            value = make()
            if len(self._recent) >= _MAX_RECENT:
                self._recent, self._recent_weight = {}, 0
            self._recent[question] = value
            self._recent_weight += value.weight
            self.has_grown = True
        return cast("Weighed", value)

    def chunk(self, row_group: int, leaf: int) -> ColumnChunk:
        """Return a column chunk whose offsets were checked against the object. Raises CorruptFileError or
        UnsupportedFeatureError, with url and column, if the chunk cannot be read."""
        valid = self.valid_chunks.get((row_group, leaf))
        if valid is not None:
            return valid
        chunk = self.metadata.row_groups[row_group].chunk(leaf)
        if self.padded_chunks:
            padding = max(0, min(DICTIONARY_HEADER_PADDING, self.footer_start - chunk.stop))
            chunk = chunk._replace(
                total_compressed_size=chunk.total_compressed_size + padding,
                total_uncompressed_size=chunk.total_uncompressed_size + padding,
            )
        if self.decryption is not None:
            chunk = chunk._replace(
                has_crypto=False, offset_index_offset=None, column_index_offset=None, bloom_filter_offset=None
            )
        schema_leaf = self.metadata.schema.leaves[leaf]
        try:
            validate_chunk(chunk, schema_leaf, self.size, self.footer_start)
        except FormatError as error:
            raise error.locate(url=self.url, column=schema_leaf.dotted) from None
        self.valid_chunks[row_group, leaf] = chunk
        return chunk
