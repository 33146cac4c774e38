"""Convert keys of lookups that are text, from a command line or a url, to values of their columns' types."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pyarrow as pa

from asyncpq.decoding.arrow import plain_array
from asyncpq.decoding.kernels import cast
from asyncpq.decoding.paths import top_level, type_at
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column

_SHOWN: Final = 100  # characters of a key in a message


def key_value(name: str, text: str, schema: pa.Schema) -> Any:
    """Convert ``text`` to a value of the column ``name``; the dotted path of a leaf inside structs is a name, too.

    Times without a zone are UTC where the column has a zone; bytes are text, or hexadecimal after ``0x``.

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
        # As the column has it: 0.1 of a float32 is not 0.1.
        return float(text) if pa.types.is_float64(kind) else pa.scalar(float(text), kind).as_py()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _instant(text, kind)
    if pa.types.is_time(kind):  # Arrow casts no text to times of day
        return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp("ns")).cast(kind)
    return _cast(text, kind)


def _cast(text: str, kind: pa.DataType) -> pa.Scalar:
    """Cast as ``pa.scalar(text).cast(kind)`` does, without loading pandas and pyarrow.compute."""
    return cast(plain_array([text], pa.string()), kind)[0]


def _instant(text: str, kind: pa.TimestampType) -> pa.Scalar:
    try:
        return _cast(text, kind)
    except pa.ArrowInvalid:  # the text has no zone
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
