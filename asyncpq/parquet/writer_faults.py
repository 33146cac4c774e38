"""The Arrow schema that Arrow's writers keep in a footer: which columns were dictionaries (Arrow's Schema.fbs).

Who wrote a file: ``created_by`` taken apart.

What writers are known to get wrong, so that nothing wrong is believed of their files: the one table of it.

A row names a writer, its releases, columns, the parts that are not believed there, and the source. The same table
stands in ``docs/filter.md``.
"""

from __future__ import annotations

import binascii
import enum
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Encoding
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf

KEY: Final = "ARROW:schema"
"""Of the footer's key-value metadata: an IPC message in base64."""

_CONTINUATION: Final = 0xFFFFFFFF
_MAX_DEPTH: Final = 64  # of nested fields
# Slots of the flatbuffers' tables, in the order of their fields.
_MESSAGE_HEADER: Final = 2
_SCHEMA_FIELDS: Final = 1
_FIELD_NAME: Final = 0
_FIELD_DICTIONARY: Final = 4
_FIELD_CHILDREN: Final = 5


def dictionary_columns(value: str | None) -> frozenset[str] | None:
    """Names of the top-level columns that are dictionaries in Arrow, or hold some.

    Args:
        value: of the footer's ``ARROW:schema``.

    Returns:
        None where that is not known: there is no Arrow schema, or none that can be read.
    """
    if value is None:
        return None
    try:
        return _Message(b64decode(value, validate=True)).dictionaries()
    except (binascii.Error, struct.error, IndexError, UnicodeError, ValueError):
        return None


class _Message:
    """An IPC message: a flatbuffer behind its length."""

    def __init__(self, data: bytes) -> None:
        (word,) = struct.unpack_from("<I", data)
        self._data = data
        self._start = 8 if word == _CONTINUATION else 4
        # A field takes several bytes, and so does each of its name: what takes more refers to the same bytes again.
        self._left = len(data)

    def dictionaries(self) -> frozenset[str]:
        header = self._table(self._target(self._start), _MESSAGE_HEADER)
        if header is None:
            raise ValueError("the message has no schema")
        names = set()
        for child in self._fields(header, _SCHEMA_FIELDS):
            if self._has_dictionary(child, 0):
                names.add(self._name(child))
        return frozenset(names)

    def _has_dictionary(self, field: int, depth: int) -> bool:
        self._take(1)
        if depth > _MAX_DEPTH:
            raise ValueError("the fields are nested too deeply")
        if self._slot(field, _FIELD_DICTIONARY) is not None:
            return True
        return any(self._has_dictionary(child, depth + 1) for child in self._fields(field, _FIELD_CHILDREN))

    def _name(self, field: int) -> str:
        start = self._table(field, _FIELD_NAME)
        if start is None:
            return ""
        (length,) = struct.unpack_from("<I", self._data, start)
        self._take(length)
        return self._data[start + 4 : start + 4 + length].decode()

    def _take(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError("the message refers to more than it holds")

    def _fields(self, table: int, slot: int) -> Iterator[int]:
        """The tables in a vector of tables."""
        vector = self._table(table, slot)
        if vector is not None:
            (length,) = struct.unpack_from("<I", self._data, vector)
            for i in range(length):
                yield self._target(vector + 4 + 4 * i)

    def _table(self, table: int, slot: int) -> int | None:
        """What a slot refers to; None where it is empty."""
        at = self._slot(table, slot)
        return None if at is None else self._target(at)

    def _target(self, at: int) -> int:
        return at + int(struct.unpack_from("<I", self._data, at)[0])

    def _slot(self, table: int, slot: int) -> int | None:
        vtable = table - struct.unpack_from("<i", self._data, table)[0]
        if vtable < 0:
            raise ValueError("a table lies before the message")
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 4 + 2 * slot + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + 2 * slot)
        return table + offset if offset else None


Release: TypeAlias = tuple[int, int, int]

_MAX_LENGTH: Final = 1000
# "<application> version <version> (build <build>)"; ClickHouse leaves "version" out, delta-rs writes "py-1.6.6",
# Trino a single number.
_CREATED_BY: Final = re.compile(
    r"(?P<application>(?:(?!\(\s*build\b).)*?)\s+(?:version\s+)?(?P<version>(?:[a-z]{1,8}-)?v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?[^\s(]*)"
    r"(?:\s*\(\s*build\s*(?P<build>[^)]*?)\s*\))?"
)
_NO_VERSION: Final = re.compile(r"\s*\(\s*build\b| version")  # ends the application where no version stands behind it
_VARIANT: Final = re.compile(r"\s*\([^)]*\)$")  # "Polars (python)"


class WriterVersion(NamedTuple):
    """A parsed ``created_by``.

    Attributes:
        application: e.g. "parquet-mr"; without what stands in parentheses behind it.
        release: (major, minor, patch); None when not written.
        version: as written, e.g. "1.5.0-cdh5.5.0"; "" when not written.
        build: None when not written.
    """

    application: str
    release: Release | None
    version: str
    build: str | None

    @classmethod
    def parse(cls, created_by: str | None) -> WriterVersion | None:
        """The writer; None when the file does not name one."""
        text = "" if created_by is None or len(created_by) > _MAX_LENGTH else created_by.strip()
        if not text:
            return None
        found = _CREATED_BY.match(text)
        if found is None or not found["application"]:
            application = _NO_VERSION.split(text, maxsplit=1)[0]
            return cls(_VARIANT.sub("", application), None, "", None)
        major, minor, patch = (int(number or 0) for number in found.group(3, 4, 5))
        application = _VARIANT.sub("", found["application"])
        return cls(application, (major, minor, patch), found["version"], found["build"])


class Claim(enum.Enum):
    """A claim of a file that a writer may get wrong; the value names it in messages."""

    BOUNDS = "min and max"
    NULL_COUNTS = "null counts"
    PAGE_BOUNDS = "the pages' min and max"
    PAGE_NULL_COUNTS = "the pages' null counts"
    EMPTY_PAGE_BOUNDS = "empty max of pages"
    BLOOM_FILTERS = "bloom filters"
    PAGE_ROWS = "pages that begin with a row"
    PAGE_INDEPENDENCE = "pages that can be read alone"
    CHUNK_SIZES = "sizes of column chunks"


class AffectedColumns(enum.Enum):
    """Which columns a fault is in; the value names them in messages."""

    ALL = "all columns"
    FLOATS = "floats"
    UNSIGNED = "unsigned integers"
    DECIMALS = "decimals"
    BYTE_DECIMALS = "decimals in byte arrays of either kind"
    VARIABLE_DECIMALS = "decimals in BYTE_ARRAY"
    FIXED_LENGTH = "FIXED_LEN_BYTE_ARRAY"
    BYTE_ARRAYS = "BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY"
    VARIABLE_LENGTH = "BYTE_ARRAY"
    ARROW_DICTIONARIES = "strings and binary that were dictionaries (categories) in Arrow"
    REPEATED = "lists and maps"
    DELTA_BYTE_ARRAYS = "columns encoded as DELTA_BYTE_ARRAY"


_FIXED_OR_VARIABLE: Final = (PhysicalType.BYTE_ARRAY, PhysicalType.FIXED_LEN_BYTE_ARRAY)


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


_BY_LEAF: Final[Mapping[AffectedColumns, Callable[[Leaf], bool]]] = {
    AffectedColumns.ALL: lambda leaf: True,
    AffectedColumns.FLOATS: _is_float,
    AffectedColumns.UNSIGNED: _is_unsigned,
    AffectedColumns.DECIMALS: _is_decimal,
    AffectedColumns.BYTE_DECIMALS: lambda leaf: _is_decimal(leaf) and leaf.physical_type in _FIXED_OR_VARIABLE,
    AffectedColumns.VARIABLE_DECIMALS: lambda leaf: _is_decimal(leaf) and leaf.physical_type is PhysicalType.BYTE_ARRAY,
    AffectedColumns.FIXED_LENGTH: lambda leaf: leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY,
    AffectedColumns.BYTE_ARRAYS: lambda leaf: leaf.physical_type in _FIXED_OR_VARIABLE,
    AffectedColumns.VARIABLE_LENGTH: lambda leaf: leaf.physical_type is PhysicalType.BYTE_ARRAY,
    AffectedColumns.REPEATED: lambda leaf: leaf.max_repetition_level > 0,
}

ANY_WRITER: Final = "any"
_CDH: Final = re.compile(r"-cdh(\d+)\.(\d+)")


def _has_cloudera_fix(writer: WriterVersion) -> bool:
    """Cloudera's releases from 5.5.0 on have the fix of PARQUET-251 under older version numbers."""
    cdh = _CDH.search(writer.version)
    return cdh is not None and (writer.release or (0, 0, 0)) >= (1, 5, 0) and (int(cdh[1]), int(cdh[2])) >= (5, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterFault:
    """One row: what one writer gets wrong.

    Attributes:
        writer: the application in ``created_by``, or ``ANY_WRITER``.
        since, before: the first release with the fault, and the first without it (None: none is known). A file
            that names its writer without a version may be of any release.
        columns: in which it is.
        wrong: what is not believed.
        source: where it is reported.
        cloudera_has_fix: Cloudera's own releases are without it earlier.
        unnamed: files that name no writer, or an unknown one without a version, are not believed either.
        fixed_in: of ``ANY_WRITER``: the first good release of the writers that are known to be good.
    """

    writer: str
    columns: AffectedColumns
    wrong: frozenset[Claim]
    source: str
    since: Release = (0, 0, 0)
    before: Release | None = None
    cloudera_has_fix: bool = False
    unnamed: bool = False
    fixed_in: Mapping[str, Release] = field(default_factory=dict)

    def is_of(self, writer: WriterVersion | None) -> bool:
        """Whether files of ``writer`` have the fault; None is a file that does not name its writer."""
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
        """Why ``claim`` is not used, for ``explain()``."""
        what = f"{claim.value} of {self.columns.value}"
        if self.writer == ANY_WRITER:
            return f"its writer is not known to get {what} right ({self.source})"
        may = "its writer may be one that gets" if self.unnamed else f"its writer, {self.writer}, is known to get"
        return f"{may} {what} wrong ({self.source})"


_CHUNK_AND_PAGE_BOUNDS: Final = frozenset({Claim.BOUNDS, Claim.PAGE_BOUNDS})
_CHUNK_AND_PAGE_NULLS: Final = frozenset({Claim.NULL_COUNTS, Claim.PAGE_NULL_COUNTS})


def _only(*parts: Claim) -> frozenset[Claim]:
    return frozenset(parts)


FAULTS: Final[tuple[WriterFault, ...]] = (
    # parquet-java, once parquet-mr
    WriterFault(
        writer="parquet-mr",
        before=(1, 8, 0),
        columns=AffectedColumns.BYTE_ARRAYS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="PARQUET-251",
        cloudera_has_fix=True,
        unnamed=True,
    ),
    WriterFault(
        writer="parquet-mr",
        before=(1, 10, 0),
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.NULL_COUNTS),
        source="PARQUET-1217, StarRocks/starrocks#78329, apache/doris#67573",
    ),
    WriterFault(
        writer="parquet-mr",
        before=(1, 8, 0),
        columns=AffectedColumns.DELTA_BYTE_ARRAYS,
        wrong=_only(Claim.PAGE_INDEPENDENCE),
        source="PARQUET-246",
    ),
    WriterFault(
        writer="parquet-mr",
        before=(1, 2, 9),
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.CHUNK_SIZES),
        source="PARQUET-816",
    ),
    # parquet-cpp, and Arrow C++: pyarrow 0.x to 3 call themselves parquet-cpp 1.5.1-SNAPSHOT
    WriterFault(
        writer="parquet-cpp",
        columns=AffectedColumns.BYTE_DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="PARQUET-1655, PARQUET-2003",
    ),
    WriterFault(
        writer="parquet-cpp",
        before=(1, 4, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="PARQUET-1225",
    ),
    WriterFault(
        writer="parquet-cpp",
        columns=AffectedColumns.ARROW_DICTIONARIES,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="ARROW-12513",
    ),
    WriterFault(
        writer="parquet-cpp-arrow",
        before=(6, 0, 0),
        columns=AffectedColumns.ARROW_DICTIONARIES,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="ARROW-12513",
    ),
    WriterFault(
        writer="parquet-cpp-arrow",
        before=(4, 0, 0),
        columns=AffectedColumns.BYTE_DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="PARQUET-1655, PARQUET-2003",
    ),
    WriterFault(
        writer="parquet-cpp-arrow",
        since=(6, 0, 0),
        before=(11, 0, 0),
        columns=AffectedColumns.ARROW_DICTIONARIES,
        wrong=_CHUNK_AND_PAGE_BOUNDS | _CHUNK_AND_PAGE_NULLS,
        source="apache/arrow#15042",
    ),
    # arrow2, which Polars was built on, and Polars, which names its version since 2.0
    WriterFault(
        writer="Arrow2 - Native Rust implementation of Arrow",
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="jorgecarleitao/arrow2#1414",
    ),
    WriterFault(
        writer="Polars",
        before=(2, 1, 0),
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="pola-rs/polars#29321, pola-rs/polars#20621",
    ),
    WriterFault(
        writer="Polars",
        before=(2, 1, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="our trials of Polars 0.20 to 2.0 with NaN",
    ),
    WriterFault(
        writer="Polars",
        before=(2, 0, 0),
        columns=AffectedColumns.BYTE_ARRAYS,
        wrong=_only(Claim.BOUNDS),
        source="our trials of Polars 0.20 with pages of nulls, pola-rs/polars#7842",
    ),
    WriterFault(
        writer="Polars",
        before=(2, 1, 0),
        columns=AffectedColumns.FIXED_LENGTH,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="pola-rs/polars#25965, pola-rs/polars#29347",
    ),
    # arrow-rs, which DataFusion and delta-rs write with
    WriterFault(
        writer="parquet-rs",
        before=(4, 1, 0),
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="apache/arrow-rs#306",
    ),
    WriterFault(
        writer="parquet-rs",
        before=(4, 1, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="apache/arrow-rs#255",
    ),
    WriterFault(
        writer="parquet-rs",
        before=(5, 2, 0),
        columns=AffectedColumns.BYTE_ARRAYS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="apache/arrow-rs#641",
    ),
    WriterFault(
        writer="parquet-rs",
        before=(14, 0, 0),
        columns=AffectedColumns.BYTE_DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="apache/arrow-rs#1621",
    ),
    WriterFault(
        writer="parquet-rs",
        columns=AffectedColumns.VARIABLE_DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="apache/arrow-rs#10860, apache/arrow-rs#11073",
    ),
    # parquet-go is three libraries: arrow-go, of versions from 6 on, xitongsys/parquet-go ("latest") and fraugster's
    WriterFault(
        writer="parquet-go",
        before=(1, 0, 0),
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="fraugster/parquet-go#69, hangxie/parquet-tools#205",
    ),
    WriterFault(
        writer="parquet-go",
        before=(1, 0, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="our trials of xitongsys/parquet-go 1.6 with NaN",
    ),
    WriterFault(
        writer="parquet-go",
        before=(18, 1, 0),
        columns=AffectedColumns.UNSIGNED,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="apache/arrow-go#209, apache/arrow#46391",
    ),
    WriterFault(
        writer="parquet-go",
        before=(18, 8, 0),
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.BLOOM_FILTERS),
        source="apache/arrow-go#525, apache/arrow-go#1164",
    ),
    WriterFault(
        writer="github.com/segmentio/parquet-go",
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="parquet-go/parquet-go#459",
    ),
    WriterFault(
        writer="github.com/parquet-go/parquet-go",
        before=(0, 28, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="parquet-go/parquet-go#459",
    ),
    # others
    WriterFault(
        writer="DuckDB",
        before=(1, 1, 0),
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.NULL_COUNTS),
        source="our trials of DuckDB 0.3 to 0.9 with several row groups",
    ),
    WriterFault(
        writer="ClickHouse",
        before=(25, 9, 0),
        columns=AffectedColumns.DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="ClickHouse/ClickHouse#83754",
    ),
    WriterFault(
        writer="ClickHouse",
        before=(25, 2, 0),
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS),
        source="ClickHouse/ClickHouse#71681",
    ),
    WriterFault(
        writer="cudf",
        before=(21, 12, 0),
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="NVIDIA/cudf#9221",
    ),
    WriterFault(
        writer="hyparquet",
        columns=AffectedColumns.DECIMALS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="hyparam/hyparquet-writer#38",
    ),
    WriterFault(
        writer="impala",
        before=(2, 12, 0),
        columns=AffectedColumns.FLOATS,
        wrong=_CHUNK_AND_PAGE_BOUNDS,
        source="IMPALA-6527",
    ),
    WriterFault(
        writer="Parquet.Net",
        since=(6, 0, 0),
        before=(6, 0, 1),
        columns=AffectedColumns.ALL,
        wrong=_CHUNK_AND_PAGE_NULLS,
        source="aloneguid/parquet-dotnet#735",
    ),
    WriterFault(
        writer="parquet-mr-trino",
        columns=AffectedColumns.ALL,
        wrong=_only(Claim.BLOOM_FILTERS),
        source="apache/iceberg#12458",
    ),
    WriterFault(
        writer=ANY_WRITER,
        columns=AffectedColumns.VARIABLE_LENGTH,
        wrong=_only(Claim.EMPTY_PAGE_BOUNDS),
        source="apache/arrow-rs#6310, ClickHouse/ClickHouse#103039",
    ),
    WriterFault(
        writer=ANY_WRITER,
        columns=AffectedColumns.REPEATED,
        wrong=_only(Claim.PAGE_ROWS),
        source="PARQUET-1364, ClickHouse/ClickHouse#75654",
        fixed_in={"parquet-cpp-arrow": (14, 0, 0), "parquet-mr": (1, 11, 0), "parquet-rs": (42, 0, 0)},
    ),
)

KNOWN_WRITERS: Final = frozenset({fault.writer.lower() for fault in FAULTS})
"""Writers whose files are known by their name alone: one that names no version is none of the others."""


@lru_cache(maxsize=256)
def _faults_of(created_by: str | None) -> Mapping[Claim, tuple[WriterFault, ...]]:
    writer = WriterVersion.parse(created_by)
    found: dict[Claim, list[WriterFault]] = {}
    for fault in FAULTS:
        if fault.is_of(writer):
            for claim in fault.wrong:
                found.setdefault(claim, []).append(fault)
    return {claim: tuple(faults) for claim, faults in found.items()}


class WriterFaults:
    """What the writer of one file is known to get wrong in it."""

    __slots__ = ("_arrow_dictionaries", "_by_claim")

    def __init__(self, created_by: str | None, arrow_schema: Callable[[], str | None] = lambda: None) -> None:
        """
        Args:
            created_by: of the file.
            arrow_schema: gives its ``ARROW:schema``; without one, all dictionary-encoded byte arrays may have been
                dictionaries in Arrow.
        """
        self._by_claim = _faults_of(created_by)
        in_dictionaries = any(
            fault.columns is AffectedColumns.ARROW_DICTIONARIES
            for faults in self._by_claim.values()
            for fault in faults
        )
        self._arrow_dictionaries = dictionary_columns(arrow_schema()) if in_dictionaries else None

    def find(self, claim: Claim, leaf: Leaf, encodings: Sequence[int] = ()) -> WriterFault | None:
        """The fault that makes ``claim`` of a column unbelievable; None where it can be believed.

        Args:
            claim: of the file.
            leaf: the column.
            encodings: of the chunk; of none, all are possible.
        """
        faults = self._by_claim.get(claim)
        if faults is None:
            return None
        return next((fault for fault in faults if self._concerns(fault.columns, leaf, encodings)), None)

    @property
    def omits_dictionary_header(self) -> bool:
        """Whether the dictionary page's header may be missing from the sizes of chunks (PARQUET-816)."""
        return Claim.CHUNK_SIZES in self._by_claim

    def _concerns(self, columns: AffectedColumns, leaf: Leaf, encodings: Sequence[int]) -> bool:
        if columns is AffectedColumns.DELTA_BYTE_ARRAYS:
            return not encodings or Encoding.DELTA_BYTE_ARRAY in encodings
        if columns is AffectedColumns.ARROW_DICTIONARIES:
            return (
                leaf.physical_type is PhysicalType.BYTE_ARRAY
                and (not encodings or not DICTIONARY_ENCODINGS.isdisjoint(encodings))
                and (self._arrow_dictionaries is None or leaf.path[0] in self._arrow_dictionaries)
            )
        return _BY_LEAF[columns](leaf)


DICTIONARY_HEADER_PADDING: Final = 100
"""Bytes by which a chunk's sizes may be too small where a writer omits the dictionary page's header."""
