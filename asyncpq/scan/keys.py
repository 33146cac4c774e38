"""The keys of lookups: match rows with them, as the filter compares them, by Arrow's hash tables; and convert keys that
are text, from a command line or a url, to values of their columns' types."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import join, null_scalar, plain_array, plain_scalar, take
from asyncpq.decoding.paths import top_level, type_at
from asyncpq.decoding.typed_literals import aligned_array, between_values, converter, storage_type, storage_values
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column
from asyncpq.expressions.scalars import Scalar


def matches(keys: Sequence[Sequence[Scalar]], columns: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, pa.Array] | None:
    """Return the pairs of a row and a key that match, as two arrays of integers of one length: the rows, ascending, and
    the positions of their keys, ascending for each row. ``keys`` has a list for each of ``columns``; the n-th values of
    all lists are the n-th key.

    None if the filter compares a column's values in a way that hash tables do not.
    """
    # Codes of the keys and of the rows: 0, 1, ... for the distinct keys, null for what is equal to nothing.
    key_codes = row_codes = plain_array([], pa.int64())
    num_codes = 0
    for number, (values, column) in enumerate(zip(keys, columns, strict=True)):
        comparable = _comparable(values, column)
        if comparable is None:
            return None
        key_values, row_values, num_codes = _coded(*comparable)
        if number:  # the pairs of the codes so far and these
            factor = plain_scalar(num_codes, pa.int64())
            key_values, row_values = (
                pc.add(pc.multiply(before, factor), codes)
                for before, codes in ((key_codes, key_values), (row_codes, row_values))
            )
            key_values, row_values, num_codes = _coded(key_values, row_values)
        key_codes, row_codes = key_values, row_values
    rows = pc.indices_nonzero(pc.is_valid(row_codes))
    in_lists = take(_positions_of_codes(key_codes), take(row_codes, rows))
    return take(rows, pc.list_parent_indices(in_lists)), in_lists.flatten()


def _coded(keys: pa.Array, rows: pa.Array) -> tuple[pa.Array, pa.Array, int]:
    """Return the codes of the keys and of the rows, and their number."""
    distinct = pc.drop_null(pc.unique(keys))
    codes = [pc.cast(pc.index_in(array, value_set=distinct), pa.int64()) for array in (keys, rows)]
    return codes[0], codes[1], len(distinct)


def _positions_of_codes(codes: pa.Array) -> pa.LargeListArray:
    """Return, for each code, its positions in ``codes``, ascending."""
    positions = pc.indices_nonzero(pc.is_valid(codes))
    known = take(codes, positions)
    order = pc.array_sort_indices(known)  # a stable sort
    ascending = take(known, order)
    changes = pc.indices_nonzero(pc.not_equal(ascending.slice(1), ascending.slice(0, max(0, len(ascending) - 1))))
    starts = pc.add(pc.cast(changes, pa.int64()), plain_scalar(1, pa.int64()))
    first = plain_array([0] if len(ascending) else [], pa.int64())
    offsets = pa.concat_arrays([first, starts, plain_array([len(ascending)], pa.int64())])
    return pa.LargeListArray.from_arrays(offsets, pc.cast(take(positions, order), pa.int64()))


def _comparable(values: Sequence[Scalar], column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array] | None:
    """Return the keys and the column's values as arrays of one type in which equal values have equal bytes; null for a
    key that equals nothing. None if the filter compares them in another way."""
    type_ = storage_type(column.type)
    if converter(type_) is None:
        return None
    keys, others = aligned_array(values, type_)
    if any(between_values("==", value, type_) is not False for value in others):
        return None
    rows = join(column.chunks, column.type)
    while isinstance(rows, pa.DictionaryArray):
        rows = rows.dictionary_decode()
    rows = storage_values(rows)
    if pa.types.is_floating(type_):
        zero = plain_scalar(0.0, type_)  # 0.0 equals -0.0, to which it adds up to 0.0
        keys, rows = pc.add(keys, zero), pc.add(rows, zero)
        keys = pc.if_else(pc.equal(keys, keys), keys, null_scalar(type_))  # NaN equals nothing
    return keys, rows


# -- keys that are text ---------------------------------------------------------------------------

_SHOWN: Final = 100  # characters of a key in a message


def key_value(name: str, text: str, schema: pa.Schema) -> Any:
    """Convert ``text``, such as a command-line argument, to a value of the type of the column ``name``, which may be
    the dotted path of a leaf inside structs.

    Times without a zone are UTC if the column has a zone. Bytes are UTF-8 text, or hexadecimal after ``0x``.

    Raises:
        InvalidOptionError: the text is not a value of the column's type.
        ColumnNotFoundError: ``schema`` has no such column.
        AmbiguousColumnError: several fields have the path.
    """
    kind = _type(name, schema)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        return _value(text, kind)
    except (ValueError, pa.ArrowException) as error:
        shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"
        raise InvalidOptionError(f"{shown} is not a value of type {kind}", column=name) from error


def _type(name: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column, or of the leaf of struct columns that ``name`` is the dotted path of."""
    top = top_level(schema, name)
    if top is not None:
        kind = type_at(top, schema.field(schema.get_all_field_indices(top)[0]).type, name)
        if kind is not None:
            return kind
    raise ColumnNotFoundError("there is no such column", column=name, hint=nearest_column(name, schema.names))


def _value(text: str, kind: pa.DataType) -> Any:
    if isinstance(kind, pa.UuidType):
        return uuid.UUID(text)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return text
    if str(kind).startswith(("binary", "large_binary", "fixed_size_binary")):  # a view, too
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if pa.types.is_floating(kind):
        number = float(text)
        if math.isinf(number) and "inf" not in text.lower():
            raise ValueError(text)
        narrow = pa.scalar(number, kind).as_py()  # as the column has it: 0.1 of a float32 is not 0.1
        return number if math.isinf(narrow) else narrow  # a number that is too large for the column is no infinity
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _instant(text, kind)
    if pa.types.is_time(kind):  # Arrow casts no text to times of day
        return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp("ns")).cast(kind)
    return _cast(text, kind)


def _cast(text: str, kind: pa.DataType) -> pa.Scalar:
    """Cast as ``pa.scalar(text).cast(kind)`` does, without loading pandas and pyarrow.compute."""
    return pc.cast(plain_array([text], pa.string()), kind)[0]


def _instant(text: str, kind: pa.TimestampType) -> pa.Scalar:
    try:
        return _cast(text, kind)
    except pa.ArrowInvalid:  # the text has no zone
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
