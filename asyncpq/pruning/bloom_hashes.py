"""Compile predicates to lookups in Bloom filters, which show whether any row of a row group can match (BloomFilter.md).

A filter contains the hashes of a column chunk's values in PLAIN encoding, without nulls. So it helps only with
predicates that are true for a few values alone. A value with several encodings is looked up in each of them. NaN (many
encodings) and zeros of floats (two encodings) are not looked up. ``objects/bloom_filters.py`` fetches and probes the
filters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from asyncpq.expressions import Atom, Expression
from asyncpq.expressions.analysis import Points, Truth, follow, result_values
from asyncpq.parquet.bloom_filter import xxh64
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ColumnOrder, order_of
from asyncpq.pruning.literals import Key, domain_of, kind_of_leaf
from asyncpq.records import NamedTuple

if TYPE_CHECKING:
    from asyncpq.parquet.calendars import LegacyCalendar

Contains: TypeAlias = Callable[[str, int], bool]


class Probe(NamedTuple):
    """A lookup of hashes in the filter of ``column``. It fails only if no row of the row group has a value with one of
    the hashes."""

    column: str
    hashes: frozenset[int]


class Junction(NamedTuple):
    """An AND (``needs_all``) or OR of lookups: it succeeds if all of its parts do, or any."""

    parts: tuple[Probes, ...]
    needs_all: bool = False


Probes: TypeAlias = "Probe | Junction"


_GREGORIAN: Final[Mapping[str, LegacyCalendar]] = {}


def compile_probes(
    expr: Expression,
    leaves: Mapping[str, Leaf],
    *,
    max_values: int | None = None,
    calendars: Mapping[str, LegacyCalendar] = _GREGORIAN,
) -> Probes | None:
    """Return the lookups that must succeed in a row group with rows for which ``expr`` is true; None if Bloom filters
    cannot rule out any row group.

    ``leaves``: the columns that have filters, keyed by name. ``max_values``: longer lists of values are not looked up;
    None: lists of any length are. ``calendars``: those of columns that are rebased; the filters have the hashes of
    stored values, so values before :attr:`LegacyCalendar.first_sure` are not looked up.
    """

    def of_atom(atom: Atom, truth: Truth) -> Probes | None:
        column = atom.column
        leaf = None if column is None else leaves.get(column)
        if column is None or leaf is None:
            return None
        calendar = calendars.get(column)
        return _probe(atom, truth, leaf, max_values, None if calendar is None else calendar.first_sure)

    def all_of(parts: Iterable[Probes | None]) -> Probes | None:
        known = tuple([part for part in parts if part is not None])
        return Junction(known, needs_all=True) if known else None

    def any_of(parts: Iterable[Probes | None]) -> Probes | None:
        branches = list(parts)
        known = tuple([branch for branch in branches if branch is not None])
        return Junction(known) if len(known) == len(branches) else None

    return follow(expr, Truth.TRUE, of_atom, all_of, any_of)


def may_match(probes: Probes, contains: Contains) -> bool:
    """Return whether a row group may contain a matching row, according to the lookups ``probes``.

    ``contains``: a function that returns whether a column may contain a value with a hash; True without a filter.
    """
    if isinstance(probes, Probe):
        return any(contains(probes.column, hash_) for hash_ in probes.hashes)
    decide = all if probes.needs_all else any
    return decide(may_match(part, contains) for part in probes.parts)


def hashes_by_column(probes: Probes) -> dict[str, set[int]]:
    """Return all hashes that the probes look up, keyed by column."""
    if isinstance(probes, Probe):
        return {probes.column: set(probes.hashes)}
    by_column: dict[str, set[int]] = {}
    for part in probes.parts:
        for column, hashes in hashes_by_column(part).items():
            by_column.setdefault(column, set()).update(hashes)
    return by_column


def num_values(probes: Probes) -> int:
    """Return the least number of values whose absence rules a row group out."""
    if isinstance(probes, Probe):
        return len(probes.hashes)
    counts = [num_values(part) for part in probes.parts]
    return min(counts) if probes.needs_all else sum(counts)


def _probe(atom: Atom, truth: Truth, leaf: Leaf, max_values: int | None, first_sure: int | None) -> Probes | None:
    encode = plain_encoder(leaf)
    if encode is None:
        return None
    domain = domain_of(kind_of_leaf(leaf, order_of(leaf, ColumnOrder.TYPE_ORDER)))
    wanted = result_values(atom, truth, domain)
    values = wanted.values
    if wanted.null or wanted.nan or wanted.of_elements:
        return None
    if not isinstance(values, Points):
        return None if values else Junction(())
    if values.inverted or (max_values is not None and len(values.keys) > max_values):
        return None
    hashes: set[int] = set()
    if first_sure is not None and any(key < first_sure for key in values.keys):
        return None
    for key in values.keys:
        forms = encode(key)
        if not forms:
            return None
        hashes.update(map(xxh64, forms))
    return Probe(atom.column or "", frozenset(hashes))


# -- PLAIN bytes of a value -----------------------------------------------------------------------

Encode: TypeAlias = Callable[[Key], Sequence[bytes]]

_NO_FORM: Final[Sequence[bytes]] = ()
_INTEGER_BYTES: Final = {PhysicalType.INT32: 4, PhysicalType.INT64: 8}
_FLOATS: Final = {PhysicalType.FLOAT: struct.Struct("<f"), PhysicalType.DOUBLE: struct.Struct("<d")}
_DECIMAL128_DIGITS: Final = 38


def plain_encoder(leaf: Leaf) -> Encode | None:
    """Return a function that converts a literal's key (:mod:`asyncpq.pruning.literals`) to all PLAIN encodings of the
    value.

    None for types whose Bloom filters asyncpq does not use. The function returns no encoding for a key that is not
    exactly a value of the column, and for floats' NaN and zero.
    """
    physical, logical = leaf.physical_type, leaf.element.logical_type
    kind = None if logical is None else logical.kind
    if leaf.max_repetition_level > 0 or physical in (PhysicalType.BOOLEAN, PhysicalType.INT96):
        return None
    if physical in _FLOATS:
        return _float(_FLOATS[physical])
    if physical in _INTEGER_BYTES:
        signed = logical is None or kind is not LogicalKind.INTEGER or logical.is_signed is True
        return _integer(_INTEGER_BYTES[physical], signed)
    width = leaf.element.type_length if physical is PhysicalType.FIXED_LEN_BYTE_ARRAY else None
    if kind is LogicalKind.DECIMAL and logical is not None:
        if width is not None:
            return _big_endian(range(width, width + 1))
        # The fewest bytes should be used, which not every writer does; pyarrow reads no longer ones.
        return _big_endian(range(1, 17 if (logical.precision or 0) <= _DECIMAL128_DIGITS else 33))
    return _bytes(width)


def _integer(size: int, signed: bool) -> Encode:
    low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if signed else (0, (1 << 8 * size) - 1)

    def encode(key: Key) -> Sequence[bytes]:
        number = _whole(key)
        if number is None or not low <= number <= high:
            return _NO_FORM
        return (number.to_bytes(size, "little", signed=signed),)

    return encode


def _big_endian(sizes: range) -> Encode:
    def encode(key: Key) -> Sequence[bytes]:
        number = _whole(key)
        if number is None:
            return _NO_FORM
        needed = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return [number.to_bytes(size, "big", signed=True) for size in sizes if size >= needed]

    return encode


def _float(form: struct.Struct) -> Encode:
    def encode(key: Key) -> Sequence[bytes]:
        if isinstance(key, bytes) or key == 0 or key != key:
            return _NO_FORM
        try:
            raw = form.pack(key)
        except (OverflowError, struct.error):
            return _NO_FORM
        return (raw,) if form.unpack(raw)[0] == key else _NO_FORM

    return encode


def _bytes(width: int | None) -> Encode:
    def encode(key: Key) -> Sequence[bytes]:
        return (key,) if isinstance(key, bytes) and (width is None or len(key) == width) else _NO_FORM

    return encode


def _whole(key: Key) -> int | None:
    """Return the key as an integer; None if the key is not exactly an integer."""
    if type(key) is int:
        return key
    if isinstance(key, float):
        return int(key) if key.is_integer() else None
    if isinstance(key, (bytes, bool)):
        return None
    return key.numerator if key.denominator == 1 else None
