"""The layout of the files that asyncpq writes: pages, row groups, codecs, Bloom filters and declared orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import InvalidOptionError, SchemaMismatchError, nearest_column
from asyncpq.options import KIB, MIB, require_whole

COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4_raw", "none")


@dataclass(frozen=True, kw_only=True)
class BloomFilter:
    """Options for the Bloom filters of a column, one filter in each row group.

    Attributes:
        column: name, or dotted path of a leaf.
        ndv: number of distinct values; None: the number of rows in the file's first row group.
        fpp: false positive probability.
    """

    column: str
    ndv: int | None = None
    fpp: float = 0.01

    def __post_init__(self) -> None:
        if self.ndv is not None:
            require_whole("ndv", self.ndv)
        share: Any = self.fpp
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InvalidOptionError(
                f"fpp={share!r}: must be a number between 0 and 1", option="fpp", column=self.column
            )


@dataclass(frozen=True, kw_only=True)
class SortedBy:
    """A column by which the rows are sorted. The write fails if the rows are in another order.

    Attributes:
        column: name, or dotted path of a leaf in structs.
    """

    column: str
    descending: bool = False
    nulls_first: bool = True  # Spark's ascending order

    def __post_init__(self) -> None:
        flags: Any = (self.descending, self.nulls_first)
        if not all(isinstance(flag, bool) for flag in flags):
            raise InvalidOptionError(
                f"sorted_by: descending and nulls_first must be bools, not {flags}",
                option="sorted_by",
                column=self.column,
            )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options for the layout of written files. Picklable.

    Attributes:
        compression: the codec, one of ``COMPRESSIONS``.
        compression_level: the codec's level; None for its default.
        page_rows, page_bytes: maximum rows of a page, and its approximate maximum bytes, encoded and uncompressed. A
            lookup reads one page of each column. Smaller pages make a larger page index, which lookups read as well.
        row_group_rows, row_group_bytes: maximum rows of a row group, and maximum bytes in memory. Writing takes twice
            as much memory, and 40 MiB for requests.
        file_bytes: a file ends after the row group with which it reaches this size.
        bloom_filters: Bloom filters to write; useful for columns that lookups compare for equality and that are not
            sorted.
        sorted_by: the columns by which the rows are sorted, as recorded in each row group.
        dictionary_columns: paths of leaves with dictionaries, as long as these are small. None: those for which a
            dictionary of the file's first row group is shorter than the bytes that it saves in a page.
        store_schema: whether the footer has the Arrow schema.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    page_rows: int = 8192
    page_bytes: int = 256 * KIB
    row_group_rows: int = 1 << 20
    row_group_bytes: int = 64 * MIB
    file_bytes: int = 256 * MIB
    bloom_filters: tuple[BloomFilter, ...] = ()
    sorted_by: tuple[SortedBy, ...] = ()
    dictionary_columns: tuple[str, ...] | None = None
    store_schema: bool = True

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise InvalidOptionError(
                f"compression={self.compression!r}: must be one of {', '.join(COMPRESSIONS)}", option="compression"
            )
        if self.compression_level is not None and type(self.compression_level) is not int:
            raise InvalidOptionError(
                f"compression_level={self.compression_level!r}: must be a whole number", option="compression_level"
            )
        for name in ("page_rows", "page_bytes", "row_group_rows", "row_group_bytes", "file_bytes"):
            require_whole(name, getattr(self, name))


def check_options(schema: pa.Schema, options: WriteOptions) -> None:
    """Check the options against the schema of the files.

    Raises InvalidOptionError if an option names a missing column or a column of an unsuitable type, and
    SchemaMismatchError if Parquet cannot store a column's type.
    """
    try:
        if options.compression_level is not None:
            pa.Codec(options.compression, compression_level=options.compression_level)
        types = dict(leaf_types(schema, options.compression, options.compression_level))
    except pa.ArrowNotImplementedError as error:
        raise SchemaMismatchError(
            f"pyarrow cannot write the type of a column to Parquet: {error}",
            hint="Cast the column to another type first.",
        ) from error
    except (pa.ArrowException, ValueError) as error:
        raise InvalidOptionError(
            f"compression={options.compression!r} and compression_level={options.compression_level} cannot be combined:"
            f" {error}",
            option="compression",
        ) from error
    blooms = [bloom.column for bloom in options.bloom_filters]
    for option, columns in (("bloom_filters", blooms), ("dictionary_columns", options.dictionary_columns or ())):
        for column in columns:
            if column not in types:
                raise InvalidOptionError(
                    f"{option}: there is no such column among the files' leaves",
                    option=option,
                    column=column,
                    hint=nearest_column(column, list(types)),
                )
    for column in blooms:
        if types[column] == "BOOLEAN":
            raise InvalidOptionError(
                "bloom_filters: a boolean column cannot have a Bloom filter", option="bloom_filters", column=column
            )
    sorting(schema, options.sorted_by)


def leaf_types(schema: pa.Schema, compression: str = "none", level: int | None = None) -> list[tuple[str, str]]:
    """Return the path and the physical type of each leaf, in Parquet's order; names with dots may make two paths
    equal. Raises pyarrow's errors if it cannot write the schema with this compression and level."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, compression=compression.upper(), compression_level=level).close()
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [written.column(at) for at in range(len(written.names))]
    return [(column.path, column.physical_type) for column in columns]


def sorting(schema: pa.Schema, columns: Sequence[SortedBy]) -> list[pq.SortingColumn] | None:
    """Return the sorting columns in pyarrow's form; None if ``columns`` is empty. Raises InvalidOptionError if a
    column does not exist or has no sort order."""
    orders: list[pq.SortingColumn] = []
    for key in columns:
        order, nulls = "descending" if key.descending else "ascending", "at_start" if key.nulls_first else "at_end"
        try:
            if leaf_places(schema, key.column) is None:
                raise ValueError(key.column)
            orders += pq.SortingColumn.from_ordering(schema, [(key.column, order)], nulls)
        except ValueError as error:
            raise InvalidOptionError(
                "sorted_by: the column does not exist, or its type has no sort order",
                option="sorted_by",
                column=key.column,
                hint="Name a column, or a field of a struct by its dotted path; lists and maps have no order.",
            ) from error
    return orders or None


def leaf_places(fields: Iterable[pa.Field], path: str) -> tuple[int, ...] | None:
    """Return the positions on the path to a leaf: that of its top-level column in ``fields``, then of the field in
    each struct. None if there is no such leaf, or it is inside a list."""
    for at, field in enumerate(fields):
        if field.name == path and not pa.types.is_nested(field.type):
            return (at,)
        if pa.types.is_struct(field.type) and path.startswith(f"{field.name}."):
            inner = leaf_places(field.type, path.removeprefix(f"{field.name}."))
            if inner is not None:
                return (at, *inner)
    return None
