"""Known faults of Parquet writers, by writer, release and column: what their files claim that is ignored.

``WriterFaults`` looks up one file's faults by its footer's ``created_by`` and ``ARROW:schema``.
``docs/distrusted-statistics.md`` shows the same table.
"""

from __future__ import annotations

import binascii
import enum
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import field
from functools import lru_cache
from typing import ClassVar, Final, TypeAlias

from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Encoding
from asyncpq.parquet.flatbuffers import FlatBuffer
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.records import NamedTuple, dataclass

ARROW_SCHEMA: Final = "ARROW:schema"
"""Key-value metadata of Arrow's writers: the Arrow schema as an IPC message in base64 (Arrow's Schema.fbs)."""

ORIGINAL_WRITERS: Final = "original.created.by"
"""Key-value metadata of files into which pages and statistics were copied, as by parquet-java's ParquetRewriter: the
writers of the original files, one a line."""

_CONTINUATION: Final = 0xFFFFFFFF
_MAX_DEPTH: Final = 64  # of nested fields
# Slots of the flatbuffers' tables, in the order of their fields.
_MESSAGE_HEADER: Final = 2
_SCHEMA_FIELDS: Final = 1
_FIELD_NAME: Final = 0
_FIELD_DICTIONARY: Final = 4
_FIELD_CHILDREN: Final = 5
Release: TypeAlias = tuple[int, int, int]
_MAX_LENGTH: Final = 1000
# "<application> version <version> (build <build>)"; ClickHouse leaves "version" out, delta-rs writes "py-1.6.6",
# Trino a single number.
_CREATED_BY: Final = re.compile(
    r"(?P<application>(?:(?!\(\s*build\b).)*?)\s+(?:version\s+)?(?P<version>(?:[a-z]{1,8}-)?v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?[^\s(]*)"
    r"(?:\s*\(\s*build\s*(?P<build>[^)]*?)\s*\))?"
)
_NO_VERSION: Final = re.compile(r"\s*\(\s*build\b| version")  # ends the application's name if no version follows
_VARIANT: Final = re.compile(r"\s*\([^)]*\)$")  # "Polars (python)"
_FIXED_OR_VARIABLE: Final = (PhysicalType.BYTE_ARRAY, PhysicalType.FIXED_LEN_BYTE_ARRAY)
ANY_WRITER: Final = "any"
_CDH: Final = re.compile(r"-cdh(\d+)\.(\d+)")
DICTIONARY_HEADER_PADDING: Final = 100
"""Most bytes that a chunk's sizes lack if its writer omits the dictionary page's header."""


def dictionary_columns(value: str | None) -> frozenset[str] | None:
    """Return the top-level columns whose type contains a dictionary, according to ``value``, a footer's
    ``ARROW:schema``; None if that is missing or invalid."""
    if value is None:
        return None
    try:
        return _Message(b64decode(value, validate=True)).dictionaries()
    except (binascii.Error, struct.error, IndexError, UnicodeError, ValueError):
        return None


class _Message(FlatBuffer):
    """Reads an Arrow schema from an IPC message: a length, then a flatbuffer."""

    def __init__(self, data: bytes) -> None:
        (word,) = struct.unpack_from("<I", data)
        super().__init__(data, 8 if word == _CONTINUATION else 4)
        # A valid message spends at least one byte on each field and on each byte of a name. A message that needs
        # more refers to the same bytes repeatedly, perhaps to exhaust memory.
        self._remaining = len(data)

    def dictionaries(self) -> frozenset[str]:
        header = self.table(self.root, _MESSAGE_HEADER)
        if header is None:
            raise ValueError("the Arrow IPC message has no schema")
        names = set()
        for child in self.tables(header, _SCHEMA_FIELDS):
            if self._has_dictionary(child, 0):
                name = self.text(child, _FIELD_NAME)
                self._take(len(name))
                names.add(name.decode())
        return frozenset(names)

    def _has_dictionary(self, field: int, depth: int) -> bool:
        self._take(1)
        if depth > _MAX_DEPTH:
            raise ValueError(f"the fields are nested deeper than {_MAX_DEPTH} levels")
        if self.slot(field, _FIELD_DICTIONARY) is not None:
            return True
        return any(self._has_dictionary(child, depth + 1) for child in self.tables(field, _FIELD_CHILDREN))

    def _take(self, num_bytes: int) -> None:
        self._remaining -= num_bytes
        if self._remaining < 0:
            raise ValueError("the message refers to more bytes than it has")


class WriterVersion(NamedTuple):
    """The writer's name and version, parsed from a footer's ``created_by``."""

    application: str  # e.g. "parquet-mr"; without a suffix in parentheses
    release: Release | None  # major, minor, patch
    version: str  # as written, e.g. "1.5.0-cdh5.5.0", or ""
    build: str | None  # the build hash

    @classmethod
    def parse(cls, created_by: str | None) -> WriterVersion | None:
        """Parse a footer's ``created_by``; None if it is missing, empty or longer than 1000 characters."""
        text = "" if created_by is None or len(created_by) > _MAX_LENGTH else created_by.strip()
        if not text:
            return None
        match = _CREATED_BY.match(text)
        if match is None or not match["application"]:
            application = _NO_VERSION.split(text, maxsplit=1)[0]
            return cls(_VARIANT.sub("", application), None, "", None)
        major, minor, patch = (int(number or 0) for number in match.group(3, 4, 5))
        application = _VARIANT.sub("", match["application"])
        return cls(application, (major, minor, patch), match["version"], match["build"])


class Claim(enum.Enum):
    """A statement in a file that some writers get wrong. The member's value is its name in messages."""

    BOUNDS = "min and max"
    NULL_COUNTS = "null counts"
    PAGE_BOUNDS = "the pages' min and max"
    PAGE_NULL_COUNTS = "the pages' null counts"
    EMPTY_PAGE_BOUNDS = "empty max of pages"
    BLOOM_FILTERS = "bloom filters"
    PAGE_ROWS = "pages that begin with a row"
    PAGE_INDEPENDENCE = "pages that can be read alone"
    CHUNK_SIZES = "sizes of column chunks"

    # Enum's own is a Python function, and each column chunk is asked for three claims
    __hash__: ClassVar[Callable[[object], int]] = object.__hash__


class Affected(enum.Enum):
    """The columns that a fault affects. The member's value is the columns' name in messages."""

    ALL = "all columns"
    FLOATS = "floats"
    UNSIGNED = "unsigned integers"
    BOOLEANS = "booleans"
    DECIMALS = "decimals"
    BYTE_DECIMALS = "decimals in byte arrays of either kind"
    VARIABLE_DECIMALS = "decimals in BYTE_ARRAY"
    FIXED_LENGTH = "FIXED_LEN_BYTE_ARRAY"
    BYTE_ARRAYS = "BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY"
    VARIABLE_LENGTH = "BYTE_ARRAY"
    ARROW_DICTIONARIES = "strings and binary that were dictionaries (categories) in Arrow"
    REPEATED = "lists and maps"
    DELTA_BYTE_ARRAYS = "columns encoded as DELTA_BYTE_ARRAY"


def _is_decimal(leaf: Leaf) -> bool:
    logical = leaf.element.logical_type
    return logical is not None and logical.kind is LogicalKind.DECIMAL


def _is_float(leaf: Leaf) -> bool:
    logical = leaf.element.logical_type
    half = logical is not None and logical.kind is LogicalKind.FLOAT16
    return half or leaf.physical_type in (PhysicalType.FLOAT, PhysicalType.DOUBLE)


def _is_unsigned(leaf: Leaf) -> bool:
    logical = leaf.element.logical_type
    return logical is not None and logical.kind is LogicalKind.INTEGER and logical.is_signed is False


_BY_LEAF: Final[Mapping[Affected, Callable[[Leaf], bool]]] = {
    Affected.ALL: lambda leaf: True,
    Affected.FLOATS: _is_float,
    Affected.UNSIGNED: _is_unsigned,
    Affected.BOOLEANS: lambda leaf: leaf.physical_type is PhysicalType.BOOLEAN,
    Affected.DECIMALS: _is_decimal,
    Affected.BYTE_DECIMALS: lambda leaf: _is_decimal(leaf) and leaf.physical_type in _FIXED_OR_VARIABLE,
    Affected.VARIABLE_DECIMALS: lambda leaf: _is_decimal(leaf) and leaf.physical_type is PhysicalType.BYTE_ARRAY,
    Affected.FIXED_LENGTH: lambda leaf: leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY,
    Affected.BYTE_ARRAYS: lambda leaf: leaf.physical_type in _FIXED_OR_VARIABLE,
    Affected.VARIABLE_LENGTH: lambda leaf: leaf.physical_type is PhysicalType.BYTE_ARRAY,
    Affected.REPEATED: lambda leaf: leaf.max_repetition_level > 0,
}


def _has_cloudera_fix(writer: WriterVersion) -> bool:
    """Return whether a Cloudera release has the fix of PARQUET-251 (CDH 5.5 and later, whose version numbers are older
    than the fix)."""
    cdh = _CDH.search(writer.version)
    return cdh is not None and (writer.release or (0, 0, 0)) >= (1, 5, 0) and (int(cdh[1]), int(cdh[2])) >= (5, 5)


@dataclass(frozen=True, slots=True)
class WriterFault:
    """One known fault of one writer.

    If a file names its writer without a version, any release is possible, so the fault is assumed.
    """

    writer: str  # the application in ``created_by``, or ``ANY_WRITER``
    columns: Affected
    wrong: Set[Claim]  # the claims that are ignored
    source: str  # where the fault is reported
    since: Release = (0, 0, 0)  # the first release with the fault
    before: Release | None = None  # the first release without it; None: no release is known to be without it
    cloudera_has_fix: bool = False  # Cloudera fixed its own releases earlier
    unnamed: bool = False  # also assumed of files of no writer, or of an unknown one without a version
    fixed_in: Mapping[str, Release] = field(default_factory=dict)  # first good release by writer

    def is_of(self, writer: WriterVersion | None) -> bool:
        """Return whether files of ``writer`` have the fault. ``writer`` is None if a file does not name its writer."""
        if self.writer == ANY_WRITER:
            good = None if writer is None else self.fixed_in.get(writer.application.lower())
            return good is None or writer is None or writer.release is None or writer.release < good
        if writer is None or (writer.release is None and writer.application.lower() not in KNOWN_WRITERS):
            return self.unnamed
        if writer.application.lower() != self.writer.lower() or (self.cloudera_has_fix and _has_cloudera_fix(writer)):
            return False
        release = writer.release
        return release is None or (self.since <= release and (self.before is None or release < self.before))

    def reason(self, claim: Claim) -> str:
        """Return a text for ``explain()`` that says why ``claim`` is ignored."""
        what = f"{claim.value} of {self.columns.value}"
        if self.writer == ANY_WRITER:
            return f"its writer is not known to get {what} right ({self.source})"
        may = "its writer may be one that gets" if self.unnamed else f"its writer, {self.writer}, is known to get"
        return f"{may} {what} wrong ({self.source})"


_BOUNDS: Final = frozenset({Claim.BOUNDS, Claim.PAGE_BOUNDS})
_NULLS: Final = frozenset({Claim.NULL_COUNTS, Claim.PAGE_NULL_COUNTS})


FAULTS: Final[tuple[WriterFault, ...]] = (
    # parquet-java, once parquet-mr
    WriterFault(
        "parquet-mr",
        Affected.BYTE_ARRAYS,
        _BOUNDS,
        "PARQUET-251",
        before=(1, 8, 0),
        cloudera_has_fix=True,
        unnamed=True,
    ),
    WriterFault(
        "parquet-mr",
        Affected.ALL,
        {Claim.NULL_COUNTS},
        "PARQUET-1217, StarRocks/starrocks#78329, apache/doris#67573",
        before=(1, 10, 0),
    ),
    # Each page's bounds are NaN if its first value is, and such a page does not count in those of its chunk.
    WriterFault(
        "parquet-mr",
        Affected.FLOATS,
        _BOUNDS,
        "PARQUET-1246, our trials of parquet-mr 1.6 to 1.9 with NaN",
        before=(1, 10, 0),
    ),
    WriterFault("parquet-mr", Affected.DELTA_BYTE_ARRAYS, {Claim.PAGE_INDEPENDENCE}, "PARQUET-246", before=(1, 8, 0)),
    WriterFault("parquet-mr", Affected.ALL, {Claim.CHUNK_SIZES}, "PARQUET-816", before=(1, 2, 9)),
    # parquet-cpp, and Arrow C++: pyarrow 0.x to 3 call themselves parquet-cpp 1.5.1-SNAPSHOT
    WriterFault("parquet-cpp", Affected.BYTE_DECIMALS, _BOUNDS, "PARQUET-1655, PARQUET-2003"),
    WriterFault("parquet-cpp", Affected.FLOATS, _BOUNDS, "PARQUET-1225", before=(1, 4, 0)),
    WriterFault("parquet-cpp", Affected.ARROW_DICTIONARIES, _NULLS, "ARROW-12513"),
    WriterFault("parquet-cpp-arrow", Affected.ARROW_DICTIONARIES, _NULLS, "ARROW-12513", before=(6, 0, 0)),
    WriterFault("parquet-cpp-arrow", Affected.BYTE_DECIMALS, _BOUNDS, "PARQUET-1655, PARQUET-2003", before=(4, 0, 0)),
    WriterFault(
        "parquet-cpp-arrow",
        Affected.ARROW_DICTIONARIES,
        _BOUNDS | _NULLS,
        "apache/arrow#15042",
        since=(6, 0, 0),
        before=(11, 0, 0),
    ),
    # arrow2, which Polars was built on, and Polars, which names its version since 2.0
    WriterFault("Arrow2 - Native Rust implementation of Arrow", Affected.ALL, _NULLS, "jorgecarleitao/arrow2#1414"),
    WriterFault("Polars", Affected.ALL, _NULLS, "pola-rs/polars#29321, pola-rs/polars#20621", before=(2, 1, 0)),
    WriterFault("Polars", Affected.FLOATS, _BOUNDS, "our trials of Polars 0.20 to 2.0 with NaN", before=(2, 1, 0)),
    WriterFault(
        "Polars",
        Affected.BYTE_ARRAYS,
        {Claim.BOUNDS},
        "our trials of Polars 0.20 with pages of nulls, pola-rs/polars#7842",
        before=(2, 0, 0),
    ),
    WriterFault(
        "Polars", Affected.FIXED_LENGTH, _BOUNDS, "pola-rs/polars#25965, pola-rs/polars#29347", before=(2, 1, 0)
    ),
    # arrow-rs, which DataFusion and delta-rs write with
    WriterFault("parquet-rs", Affected.ALL, _NULLS, "apache/arrow-rs#306", before=(4, 1, 0)),
    WriterFault("parquet-rs", Affected.FLOATS, _BOUNDS, "apache/arrow-rs#255", before=(4, 1, 0)),
    WriterFault("parquet-rs", Affected.BYTE_ARRAYS, _BOUNDS, "apache/arrow-rs#641", before=(5, 2, 0)),
    WriterFault("parquet-rs", Affected.BYTE_DECIMALS, _BOUNDS, "apache/arrow-rs#1621", before=(14, 0, 0)),
    WriterFault("parquet-rs", Affected.VARIABLE_DECIMALS, _BOUNDS, "apache/arrow-rs#10860, apache/arrow-rs#11073"),
    # parquet-go is three libraries: arrow-go, of versions from 6 on, xitongsys/parquet-go ("latest") and fraugster's
    WriterFault(
        "parquet-go", Affected.ALL, _NULLS, "fraugster/parquet-go#69, hangxie/parquet-tools#205", before=(1, 0, 0)
    ),
    WriterFault(
        "parquet-go", Affected.FLOATS, _BOUNDS, "our trials of xitongsys/parquet-go 1.6 with NaN", before=(1, 0, 0)
    ),
    WriterFault("parquet-go", Affected.UNSIGNED, _BOUNDS, "apache/arrow-go#209, apache/arrow#46391", before=(18, 1, 0)),
    # Of bounds that differ, the least is written as the greatest.
    WriterFault("parquet-go", Affected.BOOLEANS, _BOUNDS, "apache/arrow#34492", before=(12, 0, 0)),
    WriterFault(
        "parquet-go",
        Affected.ALL,
        {Claim.BLOOM_FILTERS},
        "apache/arrow-go#525, apache/arrow-go#1164",
        before=(18, 8, 0),
    ),
    WriterFault("github.com/segmentio/parquet-go", Affected.FLOATS, _BOUNDS, "parquet-go/parquet-go#459"),
    WriterFault(
        "github.com/parquet-go/parquet-go", Affected.FLOATS, _BOUNDS, "parquet-go/parquet-go#459", before=(0, 28, 0)
    ),
    # others
    WriterFault(
        "DuckDB",
        Affected.ALL,
        {Claim.NULL_COUNTS},
        "our trials of DuckDB 0.3 to 0.9 with several row groups",
        before=(1, 1, 0),
    ),
    WriterFault("ClickHouse", Affected.DECIMALS, _BOUNDS, "ClickHouse/ClickHouse#83754", before=(25, 9, 0)),
    WriterFault(
        "ClickHouse",
        Affected.ALL,
        {Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS},
        "ClickHouse/ClickHouse#71681",
        before=(25, 2, 0),
    ),
    WriterFault("KUZU", Affected.FLOATS, _BOUNDS, "our trials of Kuzu 0.11 with NaN"),
    WriterFault("LBUG", Affected.FLOATS, _BOUNDS, "our trials of Ladybug 0.22 with NaN"),
    WriterFault("cudf", Affected.ALL, _NULLS, "NVIDIA/cudf#9221", before=(21, 12, 0)),
    WriterFault("hyparquet", Affected.DECIMALS, _BOUNDS, "hyparam/hyparquet-writer#38"),
    WriterFault("impala", Affected.FLOATS, _BOUNDS, "IMPALA-6527", before=(2, 12, 0)),
    WriterFault("Parquet.Net", Affected.ALL, _NULLS, "aloneguid/parquet-dotnet#735", since=(6, 0, 0), before=(6, 0, 1)),
    WriterFault("parquet-mr-trino", Affected.ALL, {Claim.BLOOM_FILTERS}, "apache/iceberg#12458"),
    WriterFault(
        ANY_WRITER,
        Affected.VARIABLE_LENGTH,
        {Claim.EMPTY_PAGE_BOUNDS},
        "apache/arrow-rs#6310, ClickHouse/ClickHouse#103039",
    ),
    WriterFault(
        ANY_WRITER,
        Affected.REPEATED,
        {Claim.PAGE_ROWS},
        "PARQUET-1364, ClickHouse/ClickHouse#75654",
        fixed_in={"parquet-cpp-arrow": (14, 0, 0), "parquet-mr": (1, 11, 0), "parquet-rs": (42, 0, 0)},
    ),
)

KNOWN_WRITERS: Final = frozenset({fault.writer.lower() for fault in FAULTS})
"""Names that identify a writer even without a version."""


@lru_cache(maxsize=256)
def _faults_of(created_by: str | None) -> Mapping[Claim, tuple[WriterFault, ...]]:
    writers = {WriterVersion.parse(line) for line in (created_by or "").split("\n")}
    by_claim: dict[Claim, list[WriterFault]] = {}
    for fault in FAULTS:
        if any(map(fault.is_of, writers)):
            for claim in fault.wrong:
                by_claim.setdefault(claim, []).append(fault)
    return {claim: tuple(faults) for claim, faults in by_claim.items()}


def faults_of(created_by: str | None, arrow_schema: Callable[[], str | None]) -> WriterFaults:
    """Return the known faults of a file's writer, or writers, one a line: one object for all files of a writer, unless
    they depend on the file's ``ARROW:schema``, which ``arrow_schema`` returns."""
    return _shared_faults(created_by) or WriterFaults(created_by, arrow_schema)


@lru_cache(maxsize=256)
def _shared_faults(created_by: str | None) -> WriterFaults | None:
    return None if _needs_arrow_schema(_faults_of(created_by)) else WriterFaults(created_by)


def _needs_arrow_schema(by_claim: Mapping[Claim, tuple[WriterFault, ...]]) -> bool:
    return any(fault.columns is Affected.ARROW_DICTIONARIES for faults in by_claim.values() for fault in faults)


class WriterFaults:
    """The known faults of one file's writer, which the footer's ``created_by`` names.

    ``arrow_schema`` is a function that returns the footer's ``ARROW:schema``. If there is none, every
    dictionary-encoded byte array counts as one that may have been a dictionary in Arrow.
    """

    __slots__ = ("_arrow_dictionaries", "_by_claim", "omits_dictionary_header")

    def __init__(self, created_by: str | None, arrow_schema: Callable[[], str | None] = lambda: None) -> None:
        self._by_claim = _faults_of(created_by)
        self._arrow_dictionaries = dictionary_columns(arrow_schema()) if _needs_arrow_schema(self._by_claim) else None
        # Sizes of chunks may be without the dictionary page's header (PARQUET-816).
        self.omits_dictionary_header: bool = Claim.CHUNK_SIZES in self._by_claim

    def find(self, claim: Claim, leaf: Leaf, encodings: Sequence[int] = ()) -> WriterFault | None:
        """Return a known fault that makes ``claim`` unreliable for a leaf column; None if there is none. ``encodings``
        are those of its chunk; if empty, any may occur."""
        faults = self._by_claim.get(claim)
        if faults is None:
            return None
        return next((fault for fault in faults if self._concerns(fault.columns, leaf, encodings)), None)

    def _concerns(self, columns: Affected, leaf: Leaf, encodings: Sequence[int]) -> bool:
        if columns is Affected.DELTA_BYTE_ARRAYS:
            return not encodings or Encoding.DELTA_BYTE_ARRAY in encodings
        if columns is Affected.ARROW_DICTIONARIES:
            return (
                leaf.physical_type is PhysicalType.BYTE_ARRAY
                and (not encodings or not DICTIONARY_ENCODINGS.isdisjoint(encodings))
                and (self._arrow_dictionaries is None or leaf.path[0] in self._arrow_dictionaries)
            )
        return _BY_LEAF[columns](leaf)
