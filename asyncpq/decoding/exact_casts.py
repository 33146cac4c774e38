"""Casts in pyarrow's expressions that keep order and every value, so that the column itself may be compared."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = {pa.float32(): 24, pa.float64(): 53}  # of integers that are exactly floats
_UNITS = ("s", "ms", "us", "ns")


def with_unsafe_casts(expression: pc.Expression) -> pc.Expression:
    """``expression`` with casts that need not be safe, as Substrait has no others; for casts that are exact anyway.

    An expression has no public tree, but pickles as an Arrow file of one row: a struct for each call's options,
    and how they nest in the schema's metadata. One that pickles otherwise is returned as it is.
    """
    try:
        restore, (pickled,) = expression.__reduce__()
        batch = pa.ipc.open_file(pickled).get_batch(0)
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            columns = [_unsafe(column) for column in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
        found = restore(pa.py_buffer(sink.getvalue()))
    except (pa.ArrowException, TypeError, ValueError):
        return expression
    return found if isinstance(found, pc.Expression) else expression


def _unsafe(column: pa.Array) -> pa.Array:
    """The options of a cast, everything allowed; other columns as they are."""
    if not isinstance(column, pa.StructArray) or column.type.get_field_index("to_type") < 0:
        return column
    fields = list(column.type)
    children = [
        pa.array([True]) if field.name.startswith("allow_") else column.field(at) for at, field in enumerate(fields)
    ]
    return pa.StructArray.from_arrays(children, fields=fields)


def is_exact_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether casting gives every value of ``source`` an equal one of ``target``, in the same order."""
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
        return (source.tz is None) is (target.tz is None) and _is_within(source.unit, target.unit)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return _is_within(source.unit, target.unit)
    strings, binaries = {pa.string(), pa.large_string()}, {pa.binary(), pa.large_binary()}
    return {source, target} in (strings, binaries)


def _is_within(unit: str, finer: str) -> bool:
    return _UNITS.index(unit) <= _UNITS.index(finer)
