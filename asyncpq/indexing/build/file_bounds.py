"""Make the rows of "bounds": key intervals of a file and its row groups, from the statistics in the footer."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.decoding.arrow import constant_array
from asyncpq.decoding.casts import Match
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import AsyncpqError
from asyncpq.expressions.analysis import successor
from asyncpq.indexing.build.page_index_rows import least_and_greatest
from asyncpq.indexing.index_model import AFTER_ALL, NAN_KEY, NULL_KEY, TABLE_SCHEMAS, UNKNOWN_KEY, VALUE_TAG
from asyncpq.indexing.key_encoding import (
    HASH_BYTES,
    PREFIX_BYTES,
    bound_keys,
    float_key,
    integer_key,
    is_variable,
    width_of,
)
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ChunkBounds, chunk_bounds, order_of
from asyncpq.pruning.literals import Domain, ValueKind, kind_of_leaf

WHOLE_FILE: Final = -1
_LEAST: Final = VALUE_TAG  # below or equal to all keys of values
_GREATEST: Final = VALUE_TAG + b"\xff" * (PREFIX_BYTES + HASH_BYTES)  # above all of them
_HIGHEST: Final = b"\xff" * HASH_BYTES
_SINGLE: Final = struct.Struct("<f")
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MILLISECONDS_OF_A_DAY: Final = 86_400_000


class ZoneBounds(NamedTuple):
    """Bounds and counts of a column's values in one zone: a row group, or the whole file."""

    low: bytes  # a key that is at most the key of any value; empty if there is no value
    high: bytes  # a key that is at least the key of any value; empty if there is no value
    values: int | None  # number of values that are neither null nor NaN; None if unknown
    nulls: int | None  # None if unknown
    nans: int | None  # None if unknown

    def __or__(self, other: ZoneBounds) -> ZoneBounds:
        """Return bounds and counts that hold for the values of both zones together; a count is None if either is
        unknown."""
        lows = [low for low in (self.low, other.low) if low]
        counts = [
            None if own is None or further is None else own + further
            for own, further in zip(self[2:], other[2:], strict=True)
        ]
        return ZoneBounds(min(lows, default=b""), max(self.high, other.high), *counts)


NOTHING: Final = ZoneBounds(b"", b"", 0, 0, 0)


def bounds_rows(version: FileVersion, file: int, name: str, schema: pa.Schema, view: SchemaAdapter | None) -> pa.Table:
    """Return one file's rows of a "bounds" table over one column, sorted; an empty table for a file without rows.

    ``file`` is the file's id. ``name`` is a column of the dataset with ``schema``, or the dotted path of a leaf in
    structs. ``view`` maps the file to the dataset's columns. If it is None, the rows say that the file is unknown.
    """
    try:
        zones = None if view is None else _zones(version, name, view, schema)
    except (AsyncpqError, pa.ArrowException, OverflowError):  # a read of the column raises it
        zones = None
    if zones is not None:
        return zone_rows(file, zones)
    groups = [group.ordinal for group in version.metadata.row_groups if group.num_rows]
    unknown = [WHOLE_FILE, *groups] if groups else []
    return _table([(UNKNOWN_KEY, AFTER_ALL, file, zone, None) for zone in unknown])


def zone_rows(file: int, zones: Mapping[int, ZoneBounds]) -> pa.Table:
    """Return the "bounds" rows of a file and its row groups; ``zones`` is keyed by row group ordinal."""
    rows: list[tuple[bytes, bytes, int, int, int | None]] = []
    whole = NOTHING
    for zone in zones.values():
        whole |= zone
    for number, zone in {WHOLE_FILE: whole, **zones}.items():
        if zone.low and zone.values != 0:
            rows.append((zone.low, zone.high, file, number, zone.values))
        if zone.nulls != 0:
            rows.append((NULL_KEY, NULL_KEY, file, number, zone.nulls))
        if zone.nans != 0:
            rows.append((NAN_KEY, NAN_KEY, file, number, zone.nans))
    return _table(sorted(rows, key=lambda row: (row[0], row[3])))


def _table(rows: Sequence[tuple[bytes, bytes, int, int, int | None]]) -> pa.Table:
    schema = TABLE_SCHEMAS["bounds"]
    columns = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def bounds_of(array: pa.Array, type_: pa.DataType) -> ZoneBounds:
    """Return the bounds and counts of the values of ``array``; the bounds are index keys of the dataset's type
    ``type_``."""
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    nulls = array.null_count
    values = array.drop_null()
    nans = 0
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        nans = is_nan.true_count
        values = values.filter(pc.invert(is_nan)) if nans else values
    if not len(values):
        return ZoneBounds(b"", b"", 0, nulls, nans)
    least, greatest = (pa.array([value], value.type) for value in least_and_greatest(values))
    low, high = bound_keys(least, type_, upper=False), bound_keys(greatest, type_, upper=True)
    return ZoneBounds(low[0].as_py(), high[0].as_py(), len(values), nulls, nans)


def _zones(version: FileVersion, name: str, view: SchemaAdapter, schema: pa.Schema) -> dict[int, ZoneBounds] | None:
    """Return the bounds of column ``name`` in each row group that has rows, by ordinal; None if the file's values do
    not compare in the same way as the dataset's."""
    ((ordinal, (path,)),) = view.ordinals([name]).items()
    top = schema.field(ordinal)
    groups = {group.ordinal: group.num_rows for group in version.metadata.row_groups if group.num_rows}
    if top.name in view.constants:
        if path:
            return None
        row = bounds_of(constant_array(view.constants[top.name], 1), top.type)
        return {
            group: ZoneBounds(row.low, row.high, *(num_rows if count else 0 for count in row[2:]))
            for group, num_rows in groups.items()
        }
    (match,) = view.match(version, [ordinal])
    leaf_match = _descend(match, path)
    if leaf_match is None:
        return None
    source = leaf_match.source
    if source is None:
        is_null = leaf_match.default is None or not leaf_match.default.is_valid
        return {group: NOTHING._replace(nulls=rows) for group, rows in groups.items()} if is_null else None
    if source.instant or source.leaf_stop != source.first_leaf + 1:
        return None
    leaf = version.metadata.schema.leaves[source.first_leaf]
    return None if leaf.max_repetition_level else _by_statistics(version, leaf, leaf_match.field.type)


def _descend(match: Match, path: str) -> Match | None:
    """Follow ``path`` (names joined by dots) into the structs of a matched column, and return the match of that
    leaf. None if the file does not match there, or no leaf has the path."""
    while path:
        names = [
            child for child in match.children if path == child.field.name or path.startswith(child.field.name + ".")
        ]
        if len(names) != 1 or match.source is None:
            return None
        (match,) = names
        path = path[len(match.field.name) + 1 :]
    return None if match.children else match


def _by_statistics(version: FileVersion, leaf: Leaf, type_: pa.DataType) -> dict[int, ZoneBounds] | None:
    metadata = version.metadata
    orders = metadata.column_orders
    order = order_of(leaf, None if orders is None else orders[leaf.index])
    own = kind_of_leaf(leaf, order)
    factor = _factor(own, kind_of(type_))
    if factor is None:
        return None
    calendar = metadata.calendars.get(leaf.index)
    statistics: dict[int, ChunkBounds] = {}
    for group in metadata.row_groups:
        if group.num_rows:
            chunk = group.parse_chunk(leaf.index)
            bounds, _ = chunk_bounds(
                chunk, leaf, order, metadata.writer_faults, orders is not None, group.num_rows, calendar
            )
            if bounds.null_count is None and leaf.max_definition_level == 0:
                bounds = replace(bounds, null_count=0)
            statistics[group.ordinal] = bounds
    return _zones_of(statistics, own, type_, factor)


def _factor(own: ValueKind, wanted: ValueKind) -> int | None:
    """Return the factor by which the file's statistics, of kind ``own``, are multiplied to get values of the
    dataset's kind, ``wanted``, such as 1000 from seconds to milliseconds; None if the two kinds of values do not
    compare in the same way."""
    same = own.domain is wanted.domain
    if same and own.domain is Domain.DECIMAL:
        return 10 ** (wanted.scale - own.scale) if wanted.scale >= own.scale else None
    if same and own.domain in (Domain.TIME, Domain.TIMESTAMP):
        factor, rest = divmod(_UNITS[wanted.unit], _UNITS[own.unit])
        return None if rest else factor
    if same and own.domain not in (Domain.OTHER, Domain.FLOAT16):
        return 1
    if own.domain is Domain.INTEGER and wanted.domain is Domain.DECIMAL:
        return int(10**wanted.scale)
    floats = (Domain.FLOAT, Domain.FLOAT32)
    return 1 if own.domain in (Domain.INTEGER, Domain.FLOAT32) and wanted.domain in floats else None


def _zones_of(
    statistics: Mapping[int, ChunkBounds], own: ValueKind, type_: pa.DataType, factor: int
) -> dict[int, ZoneBounds]:
    zones: dict[int, ZoneBounds] = {}
    bounded: dict[int, tuple[Any, Any]] = {}
    for group, chunk in statistics.items():
        nulls, nans = chunk.null_count, chunk.nan_count if own.has_nan else 0
        values = None if nulls is None or nans is None else chunk.num_values - nulls - nans
        zones[group] = ZoneBounds(_LEAST, _GREATEST, values, nulls, nans)
        if values == 0 or chunk.all_null:
            zones[group] = ZoneBounds(b"", b"", 0, nulls, 0 if chunk.all_null else nans)
        elif chunk.min is not None and chunk.max is not None:
            most: Any = chunk.max
            if own.is_bytes and not chunk.max_exact:
                most = successor(most) if most else most  # an empty value is not truncated
            bounded[group] = chunk.min, most
    if not bounded:
        return zones
    least = [low for low, _ in bounded.values()]
    most = [least[0] if high is None else high for _, high in bounded.values()]
    lows, highs = _keys(least, factor, type_, upper=False), _keys(most, factor, type_, upper=True)
    for (group, (_, limit)), low, high in zip(bounded.items(), lows, highs, strict=True):
        zones[group] = zones[group]._replace(low=low, high=_GREATEST if limit is None else high)
    return zones


def _keys(values: Sequence[Any], factor: int, type_: pa.DataType, *, upper: bool) -> list[bytes]:
    """Return the keys for bounds from statistics, multiplied by ``factor``, as :func:`bound_keys` does, but faster
    for few bounds. Raises OverflowError for a value that does not fit the type."""
    kind = storage_type(type_)
    if is_variable(kind):  # a truncated string may be invalid UTF-8
        rest = _HIGHEST if upper else b""
        return [VALUE_TAG + value[:PREFIX_BYTES] + (rest if len(value) > PREFIX_BYTES else b"") for value in values]
    if pa.types.is_floating(kind):
        floats = [float(value) for value in values]
        if kind.bit_width == 32:
            floats = [_SINGLE.unpack(_SINGLE.pack(value))[0] for value in floats]
        return [float_key(value) for value in floats]
    if pa.types.is_boolean(kind):
        return [integer_key(value, 1, signed=False) for value in values]
    unit = _MILLISECONDS_OF_A_DAY if pa.types.is_date64(kind) else 1  # keys of dates count days
    signed = not pa.types.is_unsigned_integer(kind)
    high = 10**kind.precision if pa.types.is_decimal(kind) else 1 << kind.bit_width - signed
    low = 1 - high if pa.types.is_decimal(kind) else -high if signed else 0
    width = width_of(kind) or 8
    numbers = [value * factor for value in values]
    if any(not low <= number * unit < high for number in numbers):
        raise OverflowError(f"a bound in the file's statistics is out of the range of the dataset's type {type_}")
    return [integer_key(number, width, signed=signed or kind.bit_width < 64) for number in numbers]
