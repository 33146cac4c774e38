"""Convert Arrow arrays to JSON values. Each type has one form, which is the same in JSON, NDJSON, CSV and on terminals.

docs/cli.md ("Values") lists the forms. ``--key`` and ``--where`` accept bytes, UUIDs, dates and times in these forms.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array, plain_scalar
from asyncpq.decoding.kernels import kernel

_ESCAPED: Final = r'["\\\x00-\x1f]'
_SLICE_BYTES: Final = 16 << 10  # of an array, as Arrow holds it
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_values(array: pa.Array) -> list[Any]:
    """Convert an array to a list with one JSON value for each element: None, a bool, number, string, list or dict."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        values = json_values(array.storage)
        if not isinstance(kind, pa.UuidType):
            return values
        return [None if value is None else str(uuid.UUID(value[2:])) for value in values]
    if pa.types.is_nested(kind):
        return _nested(array)
    return _plain(array)


def _plain(array: pa.Array) -> list[Any]:
    kind, name = array.type, str(array.type)
    values: list[Any]
    if pa.types.is_floating(kind):
        # 0.1 of 32 bits is written 0.1, as the shortest number that 32 bits hold as this one
        narrow = array.cast(pa.string()).to_pylist() if not pa.types.is_float64(kind) else array.to_pylist()
        return [None if value is None else _float(float(value)) for value in narrow]
    if "string" in name:
        return _texts(array)
    if "binary" in name:
        return [None if value is None else f"0x{value.hex()}" for value in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        plain = array.cast(pa.timestamp(kind.unit, "UTC")) if zoned else array  # an instant, however it is shown
        texts = plain.cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T", 1) for text in texts]
    if pa.types.is_duration(kind):
        values = array.cast(pa.int64()).to_pylist()
        return [None if value is None else _duration(value, _PER_SECOND[kind.unit]) for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if pa.types.is_temporal(kind) and "interval" not in name:
        values = array.cast(pa.string()).to_pylist()
        return values
    values = array.to_pylist()
    plain_types = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return values if plain_types else [None if value is None else str(value) for value in values]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _duration(value: int, per_second: int) -> str:
    """Return a duration as ISO 8601 text in seconds, such as ``PT1.5S``. ``value`` counts units of which ``per_second``
    make one second."""
    seconds, fraction = divmod(abs(value), per_second)
    digits = len(str(per_second)) - 1
    text = f"PT{seconds}.{fraction:0{digits}}S" if fraction else f"PT{seconds}S"
    return f"-{text}" if value < 0 else text


def _texts(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:  # files may hold other bytes than UTF-8
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]
    return values


def _nested(array: pa.Array) -> list[Any]:
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = unique_names(field.name for field in kind)
        fields = [json_values(child) for child in array.flatten()]
        rows = zip(*fields, strict=True) if fields else ((),) * len(array)
        return [dict(zip(names, row, strict=True)) if one else None for row, one in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        bounds = array.offsets.to_pylist()
        keys, items = json_values(array.keys), json_values(array.items)
        entries = [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)]
        return [
            entries[start:stop] if one else None for start, stop, one in zip(bounds, bounds[1:], valid, strict=False)
        ]
    values = json_values(array.flatten())
    lists: list[Any] = []
    start = 0
    for size in pc.list_value_length(array).to_pylist():
        lists.append(None if size is None else values[start : start + size])
        start += size or 0
    return lists


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique: append ``_2``, ``_3``, ... to repetitions of a name."""
    taken: dict[str, None] = {}
    for name in names:
        number, new = 1, name
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken[new] = None
    return list(taken)


def json_objects(batch: pa.RecordBatch, begin: str = "{", end: str = "}") -> pa.LargeStringArray:
    """Return each row of a batch as the text of a JSON object, with ``begin`` and ``end`` instead of its braces.

    Arrow's kernels format and join the columns: objects of three columns take a sixth of the CPU time of json.dumps.
    """
    pieces: list[Any] = []
    for number, (name, column) in enumerate(zip(unique_names(batch.schema.names), batch.columns, strict=True)):
        pieces += [_scalar(f"{', ' if number else begin}{json_text(name)}: "), _json_texts(column)]
    if not pieces:
        return plain_array([f"{begin}{end}"] * batch.num_rows, pa.large_string())
    return _join([*pieces, _scalar(end), _scalar("")])


def json_text(value: Any) -> str:
    """Return a value that :func:`json_values` made as JSON text on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _scalar(text: str) -> pa.Scalar:
    return plain_scalar(text, pa.large_string())


def _or_null(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return kernel("coalesce")([texts, _scalar("null")])


def _join(pieces: list[Any]) -> pa.LargeStringArray:
    """Join texts row by row; the last of ``pieces`` stands between the others."""
    return kernel("binary_join_element_wise")(pieces)


def _json_texts(array: pa.Array) -> pa.LargeStringArray:
    """Return the JSON text of each value, "null" for null."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _or_null(pc.cast(array, pa.large_string()))
    if kind in (pa.string(), pa.large_string()):
        texts = _unescaped(array)
        if texts is not None:
            return texts
    # Python's objects are made with Python's lock held
    rows = max(1, len(array) * _SLICE_BYTES // max(1, array.nbytes))
    pieces: list[pa.Array] = []
    for start in range(0, len(array), rows):
        checkpoint()
        pieces.append(plain_array(_python_texts(array.slice(start, rows)), pa.large_string()))
    return pa.concat_arrays(pieces) if pieces else plain_array([], pa.large_string())


def _python_texts(array: pa.Array) -> list[str]:
    if pa.types.is_float64(array.type) and array.null_count == 0 and pc.all(pc.is_finite(array)).as_py():
        return list(map(repr, array.to_pylist()))
    return [json_text(value) for value in json_values(array)]


def _unescaped(array: pa.Array) -> pa.LargeStringArray | None:
    """Return strings in double quotes; None if a string has a character that JSON must escape, or is not UTF-8."""
    try:
        texts = pc.cast(pc.cast(array, pa.large_binary()), pa.large_string())
    except pa.ArrowInvalid:
        return None
    if pc.any(pc.match_substring_regex(texts, pattern=_ESCAPED)).as_py():
        return None
    quote = _scalar('"')
    return _or_null(_join([quote, texts, quote, _scalar("")]))
