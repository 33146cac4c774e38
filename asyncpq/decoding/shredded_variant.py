"""Restore shredded VARIANT columns to encoded values (VariantShredding.md, VariantEncoding.md of parquet-format).

``restoring`` returns a function from a shredded struct array to its values and metadata. Values are as Spark 4.3
restores them: with the file's metadata, numbers in the fewest bytes, typed fields before untyped ones.

Scalars are encoded column by column; only objects and arrays are assembled row by row.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from asyncpq.decoding.arrow import BINARIES, TEXTS, flattened
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError

_types: Any = pa.types  # its functions lack annotations

# The low two bits of a value's first byte.
_SHORT_STRING, _OBJECT, _ARRAY = 1, 2, 3
# The first byte of primitives.
_TRUE, _FALSE = b"\x04", b"\x08"
_INTS: Final = ((1, 3 << 2), (2, 4 << 2), (4, 5 << 2), (8, 6 << 2))
_DECIMALS: Final = ((9, 4, 8 << 2), (18, 8, 9 << 2), (38, 16, 10 << 2))
_DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _STRING = (
    type_ << 2 for type_ in (7, 11, 12, 13, 14, 15, 16)
)
_LONGEST_SHORT_STRING: Final = 63

#: A VARIANT's encoded value, or None where there is none.
Values = list[bytes | None]


class _Names:
    """The name dictionary of a variant's metadata, which gives each object field's name an id. Missing names
    are added."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._known = self.names = variant_names(metadata)
        self._ids = {name: position for position, name in enumerate(self.names)}

    def id(self, name: str) -> int:
        name_id = self._ids.get(name)
        if name_id is None:
            name_id = self._ids[name] = len(self.names)
            self.names = [*self.names, name]
        return name_id

    def metadata(self) -> bytes:
        """Return the encoded metadata with the added names."""
        if self.names is self._known:
            return self._metadata
        texts = [name.encode() for name in self.names]
        ends = [0, *itertools.accumulate(map(len, texts))]
        size = _size(max(ends[-1], len(texts)))
        numbers = b"".join(number.to_bytes(size, "little") for number in (len(texts), *ends))
        return bytes([1 | (size - 1) << 6]) + numbers + b"".join(texts)


#: Encodes a typed column's elements, given for each element its row's names and the ``value`` beside it.
_Typed = Callable[[pa.Array, Sequence[_Names], Values], Values]
#: Encodes the elements of a group of ``value`` and ``typed_value``, given their rows' names.
_Group = Callable[[pa.Array, Sequence[_Names]], Values]


def restoring(source: pa.StructType) -> Callable[[pa.StructArray], tuple[pa.Array, pa.Array]]:
    """Return a function that restores shredded arrays of type ``source`` to two binary arrays: values and metadata.

    Both have empty bytes where the array is null. Raises UnsupportedFeatureError for a type that Spark does not shred
    to.
    """
    position = source.get_field_index("metadata")
    group = _group(source, "metadata")
    if position < 0 or source.field(position).type not in BINARIES:
        raise _unknown(source)

    def restore(array: pa.StructArray) -> tuple[pa.Array, pa.Array]:
        """Raises CorruptFileError if a value is missing or contradicts itself."""
        texts = array.field(position).fill_null(b"").to_pylist()
        valid = [True] * len(array) if not array.null_count else array.is_valid().to_pylist()
        known: dict[bytes, _Names] = {}
        for text, is_there in zip(texts, valid, strict=True):
            if is_there and text not in known:
                known[text] = _Names(text)
        nothing = _Names(b"\x01\x00\x00")
        rows = [known[text] if is_there else nothing for text, is_there in zip(texts, valid, strict=True)]
        values = group(array, rows)
        if any(value is None and is_there for value, is_there in zip(values, valid, strict=True)):
            raise _malformed("a value is missing")
        metadata = {text: names.metadata() for text, names in known.items()}
        values = [value if is_there else b"" for value, is_there in zip(values, valid, strict=True)]
        encoded = [metadata[text] if is_there else b"" for text, is_there in zip(texts, valid, strict=True)]
        return pa.array(values, pa.binary()), pa.array(encoded, pa.binary())

    return restore


def _unknown(type_: pa.DataType) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"a variant is not shredded into {type_}, so the column is not read")


def _malformed(why: str) -> CorruptFileError:
    return CorruptFileError(f"a shredded variant is malformed: {why}")


# -- groups and their typed values ----------------------------------------------------------------


def _group(source: pa.DataType, *others: str) -> _Group:
    if not isinstance(source, pa.StructType):
        raise _unknown(source)
    names = [field.name for field in source]
    if not {"value", "typed_value"} & {*names} or len({*names}) < len(names):
        raise _unknown(source)
    if {*names} - {"value", "typed_value", *others}:
        raise _unknown(source)
    value, typed = source.get_field_index("value"), source.get_field_index("typed_value")
    if value >= 0 and source.field(value).type not in BINARIES:
        raise _unknown(source)
    restore = None if typed < 0 else _typed(source.field(typed).type)
    return partial(_restored_group, value, typed, restore)


def _restored_group(value: int, typed: int, restore: _Typed | None, array: pa.Array, rows: Sequence[_Names]) -> Values:
    """Restore the values of groups (structs of ``value`` and ``typed_value``). ``value`` and ``typed`` are the
    positions of these two fields, -1 for an absent one."""
    fields = array.flatten()
    rest: Values = fields[value].to_pylist() if value >= 0 else [None] * len(array)
    return rest if restore is None else restore(fields[typed], rows, rest)


def _typed(source: pa.DataType) -> _Typed:
    if isinstance(source, pa.StructType):
        return _object(source)
    if any(is_kind(source) for is_kind in (_types.is_list, _types.is_large_list)):
        return partial(_restored_arrays, _group(source.value_type))
    return partial(_restored_scalars, _scalar(source))


def _restored_scalars(
    scalar: Callable[[pa.Array], Values], array: pa.Array, rows: Sequence[_Names], rest: Values
) -> Values:
    typed = scalar(array)
    return typed if not array.null_count else [b if a is None else a for a, b in zip(typed, rest, strict=True)]


def _restored_arrays(element: _Group, array: pa.Array, rows: Sequence[_Names], rest: Values) -> Values:
    inner, offsets = flattened(array, pa.int32())
    ends = offsets.to_pylist()
    of_rows = [row for row, a, b in zip(rows, ends, ends[1:], strict=False) for _ in range(b - a)]
    elements = element(inner, of_rows)
    restored: Values = []
    for value, is_there, a, b in zip(rest, array.is_valid().to_pylist(), ends, ends[1:], strict=False):
        if not is_there:
            restored.append(value)
            continue
        present = [item for item in elements[a:b] if item is not None]
        if len(present) < b - a:
            raise _malformed("an element of an array has no value")
        restored.append(_encoded_array(present))
    return restored


def _object(source: pa.StructType) -> _Typed:
    fields = sorted(source, key=lambda field: _order(field.name))
    names = [field.name for field in fields]
    if len({*names}) < len(names):
        raise _unknown(source)
    shredded = {*names}
    groups = [_group(field.type) for field in fields]
    places = [source.get_field_index(name) for name in names]

    def restore_object(array: pa.Array, rows: Sequence[_Names], rest: Values) -> Values:
        children = array.flatten()
        columns = [group(children[position], rows) for group, position in zip(groups, places, strict=True)]
        valid = array.is_valid().to_pylist()
        ids: dict[_Names, list[int]] = {}
        restored: Values = []
        for row, value, is_there, parts in zip(rows, rest, valid, zip(*columns, strict=True), strict=True):
            if not is_there:
                restored.append(value)
                continue
            known = ids.get(row)
            if known is None:
                known = ids[row] = [row.id(name) for name in names]
            present = [(item, id, part) for item, id, part in zip(names, known, parts, strict=True) if part is not None]
            if value is not None:
                others = _fields_of(value, row)
                beside = {name for name, _, _ in others}
                if beside & shredded or len(beside) < len(others):
                    raise _malformed("a shredded field of an object is also among the object's other fields")
                present = sorted([*present, *others], key=lambda field: _order(field[0]))
            restored.append(_encoded_object([id for _, id, _ in present], [part for _, _, part in present]))
        return restored

    return restore_object


def _order(name: str) -> bytes:
    """Return the sort key of a field's name: Spark searches fields in UTF-16 order of their names."""
    return name.encode("utf-16-be", "surrogatepass")


# -- scalars --------------------------------------------------------------------------------------


def _scalar(type_: Any) -> Callable[[pa.Array], Values]:
    """Return the function that encodes the values of an array of ``type_``."""
    if _types.is_boolean(type_):
        return lambda array: [None if item is None else _TRUE if item else _FALSE for item in array.to_pylist()]
    if _types.is_signed_integer(type_):
        return lambda array: [None if item is None else _integer(item) for item in array.to_pylist()]
    if _types.is_float32(type_):
        return partial(_packed, "<Bf", _FLOAT, type_)
    if _types.is_float64(type_):
        return partial(_packed, "<Bd", _DOUBLE, type_)
    if _types.is_date32(type_):
        return partial(_packed, "<Bi", _DATE, pa.int32())
    if _types.is_timestamp(type_) and type_.unit == "us":
        return partial(_packed, "<Bq", _TIMESTAMP if type_.tz else _TIMESTAMP_NTZ, pa.int64())
    if any(is_kind(type_) for is_kind in (_types.is_decimal32, _types.is_decimal64, _types.is_decimal128)):
        return lambda array: list(_decimals(array, type_.scale))
    if type_ in TEXTS:
        return lambda array: [None if item is None else _string(item) for item in array.cast(pa.binary()).to_pylist()]
    if type_ in BINARIES:
        return lambda array: [None if item is None else _long(_BINARY, item) for item in array.to_pylist()]
    raise _unknown(type_)


def _packed(form: str, header: int, stored: pa.DataType, array: pa.Array) -> Values:
    pack = struct.Struct(form).pack
    return [None if item is None else pack(header, item) for item in array.view(stored).to_pylist()]


def _integer(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    size, header = next(width for width in _INTS if bits < 8 * width[0])
    return header.to_bytes(1, "little") + value.to_bytes(size, "little", signed=True)


def _decimals(array: pa.Array, scale: int) -> Iterator[bytes | None]:
    for value in array.cast(pa.decimal128(38, scale)).to_pylist():
        if value is None:
            yield None
            continue
        sign, digits, _ = value.as_tuple()
        number = int("".join(map(str, digits)))
        places = max(len(str(number)), scale)
        size, header = next((size, header) for most, size, header in _DECIMALS if places <= most)
        yield bytes([header, scale]) + (-number if sign else number).to_bytes(size, "little", signed=True)


def _string(text: bytes) -> bytes:
    if len(text) <= _LONGEST_SHORT_STRING:
        return bytes([len(text) << 2 | _SHORT_STRING]) + text
    return _long(_STRING, text)


def _long(header: int, content: bytes) -> bytes:
    return struct.pack("<BI", header, len(content)) + content


# -- encoding and decoding ------------------------------------------------------------------------


def _size(number: int) -> int:
    """Return the number of bytes of an unsigned number, at least 1."""
    return max(1, (number.bit_length() + 7) // 8)


def _numbers(numbers: Sequence[int], size: int) -> bytes:
    return bytes(numbers) if size == 1 else b"".join(number.to_bytes(size, "little") for number in numbers)


def _encoded_array(elements: Sequence[bytes]) -> bytes:
    ends = [0, *itertools.accumulate(map(len, elements))]
    size, is_large = _size(ends[-1]), len(elements) > 255
    head = bytes([_ARRAY | (size - 1) << 2 | is_large << 4]) + len(elements).to_bytes(4 if is_large else 1, "little")
    return b"".join((head, _numbers(ends, size), *elements))


def _encoded_object(ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    ends = [0, *itertools.accumulate(map(len, values))]
    size, of_id, is_large = _size(ends[-1]), _size(max(ids, default=0)), len(values) > 255
    head = bytes([_OBJECT | (size - 1) << 2 | (of_id - 1) << 4 | is_large << 6])
    count = len(values).to_bytes(4 if is_large else 1, "little")
    return b"".join((head, count, _numbers(ids, of_id), _numbers(ends, size), *values))


def variant_names(metadata: bytes) -> list[str]:
    """Decode the names in a variant's metadata, by id."""
    if not metadata or metadata[0] & 15 != 1:
        raise _malformed(f"the metadata has version {metadata[0] & 15 if metadata else 0}, expected 1")
    size = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, size)
    ends = [_number(metadata, position, size) for position in range(1 + size, 1 + size * (count + 2), size)]
    begin = 1 + size * (count + 2)
    if begin + ends[-1] > len(metadata) or any(a > b for a, b in itertools.pairwise(ends)):
        raise _malformed("the metadata refers to a name outside of the metadata")
    try:
        return [metadata[begin + a : begin + b].decode() for a, b in itertools.pairwise(ends)]
    except UnicodeDecodeError:
        raise _malformed("a name in the metadata is not valid UTF-8") from None


def _fields_of(value: bytes, row: _Names) -> list[tuple[str, int, bytes]]:
    """Return (name, name id, encoded value) of each field of an encoded object."""
    if not value or value[0] & 3 != _OBJECT:
        raise _malformed("an object has shredded fields, but its other value is not an object")
    size, of_id, is_large = (value[0] >> 2 & 3) + 1, (value[0] >> 4 & 3) + 1, value[0] >> 6 & 1
    count = _number(value, 1, 4 if is_large else 1)
    position = 5 if is_large else 2
    ids = [_number(value, position + of_id * number, of_id) for number in range(count)]
    position += of_id * count
    begins = [_number(value, position + size * number, size) for number in range(count + 1)]
    position += size * (count + 1)
    ends = sorted({*begins})
    following = dict(itertools.pairwise(ends))  # values lie in any order
    if position + ends[-1] > len(value) or any(id >= len(row.names) for id in ids) or ends[-1] != begins[-1]:
        raise _malformed("a field of an object lies outside of the object")
    if any(begin == ends[-1] for begin in begins[:-1]):
        raise _malformed("a field of an object has no value")
    return [
        (row.names[id], id, value[position + begin : position + following[begin]])
        for id, begin in zip(ids, begins[:-1], strict=True)
    ]


def _number(data: bytes, position: int, size: int) -> int:
    if position + size > len(data):
        raise _malformed("the bytes end inside a value")
    return int.from_bytes(data[position : position + size], "little")
