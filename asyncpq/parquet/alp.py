"""The layout of ALP pages (adaptive lossless floating point, parquet-format AlpEncoding.md), and single values of them.

The values of a page are divided into vectors of 8 to 32,768, mostly 1,024. Each has a frame of reference and packed
integers, which two multiplications turn into the values; exceptions are stored as they are. The page's offsets find
each vector, so that one value is read without the others. ``asyncpq.decoding.alp`` decodes whole vectors.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.logical_types import PhysicalType

_HEADER: Final = struct.Struct("<BBBi")  # mode, integer encoding, log2 of the vector size, number of values
_OFFSET: Final = struct.Struct("<I")
_MODES: Final = {1: "ALP-RD"}
_MIN_LOG, _MAX_LOG = 3, 15
_POSITION_BYTES: Final = 2  # of an exception

# The factors are rounded to the column's own precision, as are both products.
POWERS: Final = tuple([float(f"1e{number}") for number in range(19)])
INVERSE_POWERS: Final = tuple([float(f"1e-{number}") for number in range(19)])


class _Format(NamedTuple):
    """How vectors of one physical type are stored."""

    bits: int  # of a value
    max_exponent: int
    head: struct.Struct  # exponent, factor, number of exceptions, frame of reference, bit width
    value: struct.Struct


_FORMATS: Final = {
    PhysicalType.FLOAT: _Format(32, 10, struct.Struct("<BBHiB"), struct.Struct("<f")),
    PhysicalType.DOUBLE: _Format(64, 18, struct.Struct("<BBHqB"), struct.Struct("<d")),
}


class Vector(NamedTuple):
    """Where the parts of one vector are in the page's bytes."""

    num_values: int
    exponent: int
    factor: int
    reference: int  # added to each packed integer
    width: int  # bits of a packed integer
    packed: int  # offset of the packed integers of all values, exceptions included
    positions: int  # offset of the exceptions' positions, 2 bytes each
    exceptions: int  # offset of their values
    stop: int


class AlpPage:
    """The encoded values of an ALP page, which begin at ``data[start]`` and end with ``data``.

    ``limit`` is the number of values in the page's header, nulls included. Raises CorruptFileError if the bytes are
    malformed, UnsupportedFeatureError for a mode, an integer encoding or a type that is not defined; both name
    ``column``.
    """

    __slots__ = ("_column", "_format", "_log", "_table", "count", "data", "num_vectors", "vector_size")

    def __init__(self, data: bytes, start: int, physical_type: PhysicalType, limit: int, column: str) -> None:
        self.data: bytes = data
        self.count: int
        self._column = column
        self._table = start + _HEADER.size
        if physical_type not in _FORMATS:
            raise self._unsupported(f"of a column of {physical_type.name}")
        self._format = _FORMATS[physical_type]
        if len(data) < self._table:
            raise self._corrupt("ends inside its header")
        mode, integers, self._log, self.count = _HEADER.unpack_from(data, start)
        if mode:
            raise self._unsupported(f"in mode {mode}" + (f" ({_MODES[mode]})" if mode in _MODES else ""))
        if integers:
            raise self._unsupported(f"with the integer encoding {integers}")
        if not _MIN_LOG <= self._log <= _MAX_LOG:
            raise self._corrupt(f"has vectors of 2^{self._log} values")
        if not 0 <= self.count <= limit:
            raise self._corrupt(f"has {self.count} values, but its header says {limit}")
        self.vector_size: int = 1 << self._log
        self.num_vectors: int = self.count + self.vector_size - 1 >> self._log
        if self._table + _OFFSET.size * self.num_vectors > len(data):
            raise self._corrupt(f"ends inside the offsets of {self.num_vectors} vectors")
        if not self.num_vectors and self._table != len(data):
            raise self._corrupt("has bytes, but no values")

    def _corrupt(self, what: str) -> AsyncpqError:
        return CorruptFileError(f"a page with the encoding ALP {what}", column=self._column)

    def _unsupported(self, what: str) -> AsyncpqError:
        return UnsupportedFeatureError(f"asyncpq does not read the encoding ALP {what}", column=self._column)

    @property
    def value_bytes(self) -> int:
        return self._format.bits >> 3

    def vector(self, number: int) -> Vector:
        """Return the parts of a vector. Raises CorruptFileError if they do not fill the bytes up to the next vector."""
        data, table, form = self.data, self._table, self._format
        entry = table + number * _OFFSET.size
        is_last = number + 1 == self.num_vectors
        start = table + int.from_bytes(data[entry : entry + 4], "little")
        stop = len(data) if is_last else table + int.from_bytes(data[entry + 4 : entry + 8], "little")
        packed = start + form.head.size
        first = table + _OFFSET.size * self.num_vectors
        if (start != first if number == 0 else start < first) or not packed <= stop <= len(data):
            raise self._corrupt(f"has a vector of the bytes {start} to {stop}, of {len(data)}")
        exponent, factor, num_exceptions, reference, width = form.head.unpack_from(data, start)
        num_values = self.count - (number << self._log) if is_last else self.vector_size
        if exponent > form.max_exponent or factor > exponent:
            raise self._corrupt(f"has a vector with the exponent {exponent} and the factor {factor}")
        if width > form.bits or num_exceptions > num_values:
            raise self._corrupt(
                f"has a vector of {num_values} values with {width} bits and {num_exceptions} exceptions"
            )
        positions = packed + (num_values * width + 7 >> 3)
        exceptions = positions + _POSITION_BYTES * num_exceptions
        if exceptions + num_exceptions * (form.bits >> 3) != stop:
            raise self._corrupt(f"has a vector of {stop - start} bytes, which its parts do not fill")
        return Vector(num_values, exponent, factor, reference, width, packed, positions, exceptions, stop)

    def value(self, index: int) -> bytes:
        """Return one value, little-endian, without decoding the others of its vector. Raises CorruptFileError."""
        number, position = index >> self._log, index & self.vector_size - 1
        return self.pick(self.vector(number), position)

    def pick(self, vector: Vector, position: int) -> bytes:
        """Return the value at a ``position`` of a vector, little-endian."""
        data, form = self.data, self._format
        exception = self._exception(vector, position)
        if exception is not None:
            start = vector.exceptions + exception * (form.bits >> 3)
            return data[start : start + (form.bits >> 3)]
        bit = position * vector.width
        start, stop = vector.packed + (bit >> 3), vector.packed + (bit + vector.width + 7 >> 3)
        packed = int.from_bytes(data[start:stop], "little") >> (bit & 7) & (1 << vector.width) - 1
        half = 1 << form.bits - 1
        integer = (packed + vector.reference + half & 2 * half - 1) - half  # wraps
        value, rounded = form.value, _rounded if form.bits == 32 else float
        product = rounded(rounded(integer) * rounded(POWERS[vector.factor]))
        return value.pack(product * rounded(INVERSE_POWERS[vector.exponent]))

    def _exception(self, vector: Vector, position: int) -> int | None:
        """Return which exception the value at a position of a vector is; None if it is none. As in a whole decode, the
        last counts."""
        count = (vector.exceptions - vector.positions) // _POSITION_BYTES
        if not count:
            return None
        places = struct.unpack_from(f"<{count}H", self.data, vector.positions)
        if max(places) >= vector.num_values:
            raise self.position_error(vector.num_values)
        return len(places) - 1 - places[::-1].index(position) if position in places else None

    def position_error(self, count: int) -> AsyncpqError:
        """Return the error to raise for an exception whose position is not below the ``count`` of its vector."""
        return self._corrupt(f"has an exception outside its vector of {count} values")


def _rounded(value: float) -> float:
    """Round to binary32."""
    result: float = _FORMATS[PhysicalType.FLOAT].value.unpack(_FORMATS[PhysicalType.FLOAT].value.pack(value))[0]
    return result
