"""Convert literals to Arrow scalars of their column's type, if that is exact.

pyarrow's expression engine casts literal and column to a common type before it compares them. A literal that the
column's type represents exactly needs no cast: the comparison has the same result and is faster. It also works where
pyarrow's casts fail: ``uint64 == 1`` with values above 2**63, ``int64 == 1.0`` with values above 2**24, ``decimal ==
1``, instants in two time zones, UUIDs.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from asyncpq.checkpoints import pieces
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import OF_VIEWS, null_scalar, plain_array, plain_scalar, take
from asyncpq.expressions import CompareOp
from asyncpq.expressions.scalars import (
    DAY_MILLISECONDS,
    NANOSECONDS,
    Day,
    Duration,
    Moment,
    Scalar,
    TimeOfDay,
    Timestamp,
    days,
    nanoseconds,
    unscaled_decimal,
)
from asyncpq.pruning.literals import is_float32

if TYPE_CHECKING:
    from fractions import Fraction

_DIGITS = {pa.float32(): 24, pa.float64(): 53}  # of integers that are exactly floats
UNITS = ("s", "ms", "us", "ns")
_SIGNED = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_UNSIGNED = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}
_INT_RANGES = {type_: (-(1 << bits - 1), (1 << bits - 1) - 1) for type_, bits in _SIGNED.items()}
_INT_RANGES.update({type_: (0, (1 << bits) - 1) for type_, bits in _UNSIGNED.items()})

_NO_PLACE = null_scalar(pa.int64())
Convert = Callable[[Scalar], Any]
_INEXACT = object()
_MOMENTS = (dt.datetime, Timestamp, dt.time, TimeOfDay, dt.timedelta, Duration)


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values are compared: a dictionary's value type, UUID's or JSON's storage, or ``type_``.

    Types for which pyarrow lacks kernels (:func:`lacks_kernels`) become plain strings, plain binary or wider decimals.
    """
    if isinstance(type_, pa.DictionaryType):
        return storage_type(type_.value_type)
    if isinstance(type_, (pa.UuidType, pa.JsonType)):
        return storage_type(type_.storage_type)
    if isinstance(type_, (pa.Decimal32Type, pa.Decimal64Type)):
        return pa.decimal128(type_.precision, type_.scale)
    # types that Python code registers may not be hashable
    return type_ if isinstance(type_, pa.BaseExtensionType) else OF_VIEWS.get(type_, type_)


def lacks_kernels(type_: pa.DataType) -> bool:
    """Return whether pyarrow cannot compare, find or take all values of ``type_`` (views and small decimals)."""
    if isinstance(type_, pa.BaseExtensionType):
        return False
    return type_ in OF_VIEWS or isinstance(type_, (pa.Decimal32Type, pa.Decimal64Type))


def storage_values(array: pa.Array) -> pa.Array:
    """Convert an array to its :func:`storage_type`; a dictionary array is returned unchanged."""
    if isinstance(array.type, pa.BaseExtensionType):
        return storage_values(array.storage)
    if isinstance(array.type, (pa.Decimal32Type, pa.Decimal64Type)):
        return _wider_decimals(array)
    return array.cast(storage_type(array.type)) if lacks_kernels(array.type) else array


def _wider_decimals(array: pa.Array) -> pa.Array:
    """Convert decimals of 32 or 64 bits to 128 bits; pyarrow's cast refuses those wider than their precision."""
    whole = pa.int32() if isinstance(array.type, pa.Decimal32Type) else pa.int64()
    integers = pa.Array.from_buffers(whole, len(array), array.buffers(), array.null_count, array.offset)
    wide = integers.cast(pa.decimal128(19, 0))  # 19 digits hold every integer of 64 bits
    return pa.Array.from_buffers(storage_type(array.type), len(wide), wide.buffers(), wide.null_count, wide.offset)


def exact_scalar(value: Scalar, type_: pa.DataType, convert: Convert | None = None) -> pa.Scalar | None:
    """Return ``value`` as a non-null scalar of ``type_`` (a :func:`storage_type`); None if that is not exact.

    ``convert`` is the result of :func:`converter` for ``type_``, if the caller has it already.
    """
    convert = convert or converter(type_)
    held = _INEXACT if convert is None or value is None else convert(value)
    return None if held is _INEXACT else plain_array([held], type_)[0]


def exact_array(values: Sequence[Scalar], type_: pa.DataType) -> tuple[pa.Array, list[Scalar]]:
    """Return an array of the non-null ``values`` that ``type_`` represents exactly, and a list of the others."""
    arrays, others = list[pa.Array](), list[Scalar]()
    for piece in pieces(values):
        held, _, inexact = _exact_piece(piece, type_)
        arrays.append(held)
        others += inexact
    return (arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)), others


def aligned_array(values: Sequence[Scalar], type_: pa.DataType) -> tuple[pa.Array, list[Scalar]]:
    """Do what :func:`exact_array` does, with nulls in place of the values that the array lacks."""
    arrays, others = list[pa.Array](), list[Scalar]()
    for piece in pieces(values):
        held, places, inexact = _exact_piece(piece, type_)
        if places is not None:
            known = plain_array([place is not None for place in places], pa.bool_())
            held = take(held, pc.if_else(known, plain_array([place or 0 for place in places], pa.int64()), _NO_PLACE))
        arrays.append(held)
        others += inexact
    return pa.concat_arrays(arrays), others


def _exact_piece(
    values: Sequence[Scalar], type_: pa.DataType
) -> tuple[pa.Array, list[int | None] | None, list[Scalar]]:
    """Return three things: the array of :func:`exact_array`; for each value, its position there or None, or None if all
    are there in order; and the other values."""
    convert = converter(type_)
    if convert is None:
        return pa.nulls(0, type_), [None] * len(values), [value for value in values if value is not None]
    native = None if isinstance(type_, pa.BaseExtensionType) else _NATIVE.get(type_)
    if native is not None and native.issuperset(map(type, values)):
        try:
            return plain_array(values, type_), None, []
        except (OverflowError, UnicodeEncodeError):
            pass  # some are not representable
    held, places, others = list[Any](), list[int | None](), list[Scalar]()
    for value in values:
        converted = _INEXACT if value is None else convert(value)
        if converted is _INEXACT:
            places.append(None)
            if value is not None:
                others.append(value)
        else:
            places.append(len(held))
            held.append(converted)
    return plain_array(held, type_), (None if len(held) == len(values) else places), others


def between_values(op: CompareOp, value: Scalar, type_: pa.DataType) -> tuple[CompareOp, pa.Scalar] | bool | None:
    """Replace a comparison with ``value``, which lies between two values of ``type_``, by an equivalent one with a
    value of ``type_``: return its operator and scalar.

    Return a bool if the comparison has this result for all values that are not null. Return None if ``value`` is not a
    number or time, and for literals that are cast before they are compared (floats against decimals).
    """
    scale = 0
    if pa.types.is_integer(type_):
        low, high = _INT_RANGES[type_]
        if type(value) is float:
            if value != value:
                return op == "!="
        elif type(value) is not int and not (type(value) is Decimal and value.is_finite()):
            return None
    elif pa.types.is_decimal(type_):
        if type(value) is not int and not (type(value) is Decimal and value.is_finite()):
            return None
        scale = type_.scale
        low, high = _signed_range(type_)
    elif is_time_of(value, type_) or (pa.types.is_date(type_) and type(value) is Day):
        low, high = _signed_range(type_)
    else:
        return None
    step: float | Fraction
    if isinstance(value, _MOMENTS):
        from fractions import Fraction

        step = Fraction(nanoseconds(value), NANOSECONDS[type_.unit])
    elif isinstance(value, Day):
        step = value.days * (1 if pa.types.is_date32(type_) else DAY_MILLISECONDS)
    else:
        step = unscaled_decimal(Decimal(value), scale) if type(value) is not float else value
    if op == "==" or op == "!=":
        return op == "!="
    if not low <= step <= high:
        return (op[0] == "<") is (step > high)
    below = math.floor(step)
    return ("<=" if op[0] == "<" else ">"), plain_scalar(below, type_)


def _signed_range(type_: Any) -> tuple[int, int]:
    """Return the least and the greatest integer that a value of ``type_`` stores. Files hold decimals that are wider
    than their declared precision."""
    limit = 1 << type_.bit_width - 1
    return -limit, limit - 1


def is_time_of(value: Scalar, type_: pa.DataType) -> TypeGuard[Moment]:
    """Return whether ``value`` and ``type_`` are of the same kind, whatever their units: instants, timestamps without
    zone, times of day, or durations."""
    if pa.types.is_timestamp(type_):
        if not isinstance(value, (dt.datetime, Timestamp)):
            return False
        zone = value.timezone if isinstance(value, Timestamp) else value.tzinfo
        return (zone is None) is (type_.tz is None)
    if pa.types.is_time(type_):
        return isinstance(value, TimeOfDay) or (isinstance(value, dt.time) and value.tzinfo is None)
    return bool(pa.types.is_duration(type_)) and isinstance(value, (dt.timedelta, Duration))


def converter(type_: pa.DataType) -> Convert | None:
    """Return a function that converts a literal to the value that :func:`plain_scalar` takes for ``type_``.

    The function returns ``_INEXACT`` for a literal that ``type_`` does not represent exactly. None for types whose
    comparisons are left to pyarrow's engine.
    """
    plain = None if isinstance(type_, pa.BaseExtensionType) else _PLAIN.get(type_)
    if plain is not None:
        return plain
    if pa.types.is_decimal(type_):
        return partial(_decimal, *_signed_range(type_), type_.scale)
    if pa.types.is_fixed_size_binary(type_):
        return partial(_fixed, type_.byte_width)
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_) or pa.types.is_duration(type_):
        return partial(_moment, NANOSECONDS[type_.unit], 1 << type_.bit_width - 1, type_)
    return None


def _integer(low: int, high: int, value: Scalar) -> Any:
    if type(value) is int:
        return value if low <= value <= high else _INEXACT
    if type(value) is float and value.is_integer():
        return int(value) if low <= value <= high else _INEXACT
    if type(value) is Decimal and value.is_finite() and value == value.to_integral_value():
        return int(value) if low <= value <= high else _INEXACT
    return _INEXACT


def _double(value: Scalar) -> Any:
    if type(value) is float:
        return value
    return float(value) if type(value) is int and -(1 << 53) <= value <= 1 << 53 else _INEXACT


def _single(value: Scalar) -> Any:
    if type(value) is float:
        return value if is_float32(value) else _INEXACT
    return float(value) if type(value) is int and -(1 << 24) <= value <= 1 << 24 else _INEXACT


def _instance(type_: type, value: Scalar) -> Any:
    return value if type(value) is type_ else _INEXACT


def _date(unit: int, limit: int, value: Scalar) -> Any:
    if type(value) is not dt.date and type(value) is not Day:
        return _INEXACT
    held = days(value) * unit
    return held if -limit <= held < limit else _INEXACT


def _text(value: Scalar) -> Any:
    if type(value) is not str:
        return _INEXACT
    try:
        value.encode()
    except UnicodeEncodeError:
        return _INEXACT
    return value


def _fixed(width: int, value: Scalar) -> Any:
    if type(value) is uuid.UUID:
        return value.bytes if width == 16 else _INEXACT
    return value if type(value) is bytes and len(value) == width else _INEXACT


def _decimal(low: int, high: int, scale: int, value: Scalar) -> Any:
    if type(value) is int:
        value = Decimal(value)
    if type(value) is not Decimal or not value.is_finite():
        return _INEXACT
    unscaled = unscaled_decimal(value, scale)
    return unscaled if isinstance(unscaled, int) and low <= unscaled <= high else _INEXACT


def _moment(unit: int, limit: int, type_: pa.DataType, value: Scalar) -> Any:
    if not is_time_of(value, type_):
        return _INEXACT
    held, rest = divmod(nanoseconds(value), unit)
    return held if rest == 0 and -limit <= held < limit else _INEXACT


_PLAIN: dict[pa.DataType, Convert] = {
    **{type_: partial(_integer, low, high) for type_, (low, high) in _INT_RANGES.items()},
    pa.float64(): _double,
    pa.float32(): _single,
    pa.string(): _text,
    pa.large_string(): _text,
    pa.binary(): partial(_instance, bytes),
    pa.large_binary(): partial(_instance, bytes),
    pa.bool_(): partial(_instance, bool),
    pa.date32(): partial(_date, 1, 1 << 31),
    pa.date64(): partial(_date, DAY_MILLISECONDS, 1 << 63),
}


#: The Python type whose values a type holds as they are, but for those that it cannot represent.
_NATIVE: dict[pa.DataType, frozenset[type]] = {
    **dict.fromkeys(_INT_RANGES, frozenset({int})),
    **dict.fromkeys((pa.string(), pa.large_string()), frozenset({str})),
    **dict.fromkeys((pa.binary(), pa.large_binary()), frozenset({bytes})),
    pa.float64(): frozenset({float}),
}


def is_exact_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether each value of ``source`` has an equal value of ``target``, in the same order."""
    if isinstance(source, pa.DictionaryType):
        source = source.value_type
    if source == target:
        return True
    if pa.types.is_integer(source):
        if pa.types.is_integer(target):
            unsigned, wanted = pa.types.is_unsigned_integer(source), pa.types.is_unsigned_integer(target)
            return bool(target.bit_width > source.bit_width and (unsigned or not wanted))
        return bool(source.bit_width <= _DIGITS.get(target, 0))
    if source == pa.float32():
        return bool(target == pa.float64())
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole, wanted_whole = source.precision - source.scale, target.precision - target.scale
        return bool(target.scale >= source.scale and wanted_whole >= whole)
    if isinstance(source, pa.TimestampType) and isinstance(target, pa.TimestampType):
        return (source.tz is None) is (target.tz is None) and UNITS.index(source.unit) <= UNITS.index(target.unit)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return UNITS.index(source.unit) <= UNITS.index(target.unit)
    strings, binaries = {pa.string(), pa.large_string()}, {pa.binary(), pa.large_binary()}
    return {source, target} in (strings, binaries)
