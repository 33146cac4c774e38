"""Arrow types as the kinds of values by which files are pruned."""

from __future__ import annotations

import pyarrow as pa

from asyncpq.decoding.typed_literals import storage_type
from asyncpq.pruning.value_kinds import FLOAT16, Domain, ValueKind


def kind_of(type_: pa.DataType) -> ValueKind:
    """How values of a column of this type compare with literals; of dictionaries, how the values in them do."""
    type_ = storage_type(type_)
    if isinstance(type_, pa.TimestampType):
        return ValueKind(Domain.TIMESTAMP, unit=type_.unit, zoned=type_.tz is not None)
    if isinstance(type_, (pa.Time32Type, pa.Time64Type)):
        return ValueKind(Domain.TIME, unit=type_.unit)
    if pa.types.is_float16(type_):
        return FLOAT16
    if pa.types.is_decimal(type_):
        return ValueKind(Domain.DECIMAL, scale=type_.scale)
    domain = _domain(type_)
    if domain is Domain.OTHER:
        return ValueKind(domain, why_not=f"literals are not compared with {type_}")
    return ValueKind(domain)


def _domain(type_: pa.DataType) -> Domain:
    if pa.types.is_boolean(type_):
        return Domain.BOOLEAN
    if pa.types.is_integer(type_):
        return Domain.INTEGER
    if pa.types.is_floating(type_):
        return Domain.FLOAT32 if type_ == pa.float32() else Domain.FLOAT
    if pa.types.is_date(type_):
        return Domain.DATE
    if pa.types.is_fixed_size_binary(type_):
        return Domain.FIXED
    plain = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return Domain.BYTES if any(is_plain(type_) for is_plain in plain) else Domain.OTHER
