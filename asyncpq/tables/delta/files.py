"""Decode what a Delta log has about a file: its url, deletion vector, statistics and partition values.

A log's paths are url-encoded, relative to the table or absolute. Inline vectors are Z85 text.
:mod:`asyncpq.tables.deleted_rows` reads the vectors. PROTOCOL.md, "Deletion Vectors".

Bounds and partition values become values of the columns' types. A bound that is not understood is unknown. The text of
a binary partition value is read as its UTF-8 bytes, as Spark, deltalake and DuckDB do: the escapes that the protocol
and newer versions of deltalake write stay text. PROTOCOL.md, "Per-file Statistics" and "Partition Value Serialization".
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import os
import re
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import ColumnBounds, known_count
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError, shown
from asyncpq.expressions.analysis import successor
from asyncpq.expressions.scalars import Scalar, days_of, exact_decimal, widened_decimal
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url, split_url
from asyncpq.tables.deleted_rows import DeletionVector
from asyncpq.tables.delta.schema import DeltaLeaf
from asyncpq.tables.own_store import TableStore, another_store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_UUID_CHARACTERS = 20
_FRAME_BYTES = 8
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"  # RFC 1924
_TO_B85 = str.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True)
class DeltaRoot:
    """The folder of a Delta table."""

    url: str  # as given, without a trailing slash

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> DeltaRoot:
        """Return the root for a url or path."""
        text = os.fspath(url)
        return cls(text.rstrip("/") or text)

    @property
    def shown(self) -> str:
        """The url without secrets, for messages."""
        return safe_url(self.url)

    def join(self, path: str) -> str:
        """Return the url of ``path``, which is relative to the table's folder and not url-encoded."""
        return f"{self.url}/{path}"

    def resolve(self, path: str) -> str:
        """Return the url of the file that an action names by a url-encoded path.

        Raises CorruptFileError if the path cannot be decoded; UnsupportedFeatureError if the path is absolute and leads
        to another store than the table's own url (:mod:`asyncpq.tables.own_store`).
        """
        match = _SCHEME.fullmatch(path)
        plain = self._decoded(path if match is None else match[2])
        if match is None and not plain.startswith("/"):
            return self.join(plain)
        store = TableStore.of("the Delta table", self.url)
        if match is None:
            if store.protocol != "file":
                raise self._refused(path)
            return plain
        protocol, rest = match[1].lower(), plain.removeprefix("//")
        if not store.has(f"{protocol}://{rest}"):
            raise self._refused(path)
        if store.protocol == "file":
            return "/" + plain.lstrip("/")
        return f"{split_url(self.url)[0]}://{rest}"

    def _decoded(self, path: str) -> str:
        try:
            return unquote(path, errors="strict")
        except UnicodeDecodeError as error:
            raise CorruptFileError(
                f"the Delta log has the path {shown(path)}, which is not url-encoded UTF-8", url=self.shown
            ) from error

    def _refused(self, path: str) -> UnsupportedFeatureError:
        return another_store("the Delta table", path, self.shown)


@dataclass(frozen=True, slots=True)
class VectorDescriptor:
    """The deletion vector descriptor of an ``add`` or ``remove`` action."""

    storage: str  # "u" for a file with a relative path, "p" for one with an absolute path, "i" for an inline vector
    text: str  # the file's name, or the inline vector
    offset: int | None  # where the vector begins in the file; None where the action does not say
    size: int  # bytes of the vector without its frame
    cardinality: int  # number of deleted rows

    @classmethod
    def from_action(cls, action: Mapping[str, Any] | None) -> VectorDescriptor | None:
        """Decode the ``deletionVector`` of an action. Raises TypeError, ValueError or KeyError if it is malformed."""
        if action is None:
            return None
        storage, text, offset = action["storageType"], action["pathOrInlineDv"], action.get("offset")
        numbers = (action["sizeInBytes"], action["cardinality"], 0 if offset is None else offset)
        if not all(isinstance(part, str) for part in (storage, text)) or any(type(n) is not int for n in numbers):
            raise TypeError(f"the deletion vector has a field of a wrong type: {dict(action)}")
        if min(numbers) < 0 or max(numbers[0], numbers[2]) >= 1 << 31 or numbers[1] >= 1 << 63:  # as in the protocol
            raise ValueError(f"the deletion vector has a negative or too large number: {dict(action)}")
        return cls(storage, text, offset, numbers[0], numbers[1])

    @property
    def unique_id(self) -> str:
        """An id, made of storage type, text and offset, that differs between the deletion vectors of one data file."""
        return f"{self.storage}{self.text}" if self.offset is None else f"{self.storage}{self.text}@{self.offset}"

    def resolve(self, root: DeltaRoot, data_url: str) -> DeletionVector:
        """Return the vector, with the url of its own file, that deletes rows of the data file ``data_url``."""
        inline = None
        url = root.shown
        try:
            if self.storage == "i":
                inline = self._inline()
            elif self.storage == "u":
                prefix, name = self.text[:-_UUID_CHARACTERS], self.text[-_UUID_CHARACTERS:]
                file_name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(name))}.bin"
                url = root.join(f"{prefix}/{file_name}" if prefix else file_name)
            elif self.storage == "p":
                url = root.resolve(self.text)
            else:
                raise UnsupportedFeatureError(
                    f"asyncpq does not support deletion vectors of storage type {self.storage!r}", url=url
                )
        except ValueError as error:
            raise CorruptFileError(
                f"the Delta log has a malformed deletion vector, {self.text[:64]!r}: {error}", url=root.shown
            ) from error
        start = self.offset or 0
        return DeletionVector(
            url=url,
            start=start,
            stop=start + self.size + _FRAME_BYTES,
            inline=inline,
            cardinality=self.cardinality,
            data_url=data_url,
        )

    def _inline(self) -> bytes:
        padded = decode_z85(self.text)
        if not 0 <= len(padded) - self.size < 4:
            raise ValueError(f"the inline text has {len(padded)} bytes, but the vector needs {self.size}")
        return padded[: self.size]


def decode_z85(text: str) -> bytes:
    """Decode Z85 text (ZeroMQ RFC 32): five characters for four bytes. Raises ValueError if the text is malformed."""
    if len(text) % 5:
        raise ValueError(f"Z85 text has {len(text)} characters, which is not a multiple of 5")
    if not set(text) <= set(_Z85):
        raise ValueError("the text has a character that is not in the Z85 alphabet")
    return base64.b85decode(text.translate(_TO_B85))


# -- statistics and partition values ---------------------------------------------------------------

_NUM_RECORDS = re.compile(r'\{\s*"numRecords"\s*:\s*([0-9]{1,18})\s*[,}]')
_MILLISECOND = dt.timedelta(milliseconds=1)
#: A string bound of this many characters may be a truncated value (Spark's default; other writers keep more).
_CUT_CHARACTERS = 32
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DATE = r"([+-]?[0-9]{1,7})-([0-9]{1,2})-([0-9]{1,2})"
_ONLY_DATE = re.compile(rf"{_DATE}(?:[ T].*)?", re.ASCII)
_TIME = re.compile(
    rf"{_DATE}(?:[ T]([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}})(?:\.([0-9]+))?)?)?\s*(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?",
    re.ASCII,
)
_DAY_US = 86_400_000_000


def num_records(stats: str | pa.StructScalar | None) -> int | None:
    """Return the number of rows in the file, deleted rows included; None if ``stats``, the statistics of an ``add``
    action, lack it."""
    if isinstance(stats, str) and (match := _NUM_RECORDS.match(stats)) is not None:
        return int(match[1])  # most writers put it first: the rest is parsed when a predicate needs it
    return known_count(_value_at(_parsed(stats), ("numRecords",)))


class DeltaStatistics(Mapping[str, ColumnBounds]):
    """The bounds of a file's columns, keyed by dotted path and parsed on first access.

    ``stats``: the JSON text of an ``add`` action, or the struct that a checkpoint has instead. ``leaves``: the columns
    that can have statistics, by dotted path. ``has_deletes``: the file has a deletion vector, so its null counts may be
    outdated.
    """

    __slots__ = ("_bounds", "_has_deletes", "_leaves", "_stats")

    def __init__(self, stats: str | pa.StructScalar | None, leaves: Mapping[str, DeltaLeaf], has_deletes: bool) -> None:
        self._stats = stats
        self._leaves = leaves
        self._has_deletes = has_deletes
        self._bounds: dict[str, ColumnBounds | None] = {}

    def __getitem__(self, name: str) -> ColumnBounds:
        try:
            bounds = self._bounds[name]
        except KeyError:
            bounds = self._bounds[name] = self._decode(self._leaves[name])
        if bounds is None:
            raise KeyError(name)
        return bounds

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._leaves if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _decode(self, leaf: DeltaLeaf) -> ColumnBounds | None:
        self._stats = stats = _parsed(self._stats)
        low, high, nulls = (_value_at(stats, (key, *leaf.path)) for key in ("minValues", "maxValues", "nullCount"))
        nulls = known_count(nulls)
        rows = known_count(_value_at(stats, ("numRecords",)))
        all_null = rows is not None and nulls == rows > 0
        if self._has_deletes and not all_null and nulls != 0:
            nulls = None
        if all_null:
            return ColumnBounds(null_count=nulls, all_null=True)
        low, high = _bound(low, leaf, -1), _bound(high, leaf, 1)
        if low is None and high is None and nulls is None:
            return None
        return ColumnBounds(min=low, max=high, null_count=nulls)


def _parsed(stats: str | pa.StructScalar | dict[str, Any] | None) -> pa.StructScalar | dict[str, Any]:
    """Return the statistics of an ``add`` action as a dict or struct; an empty dict if they are missing or
    malformed."""
    if isinstance(stats, (pa.StructScalar, dict)):
        return stats
    try:
        parsed = json.loads(stats, parse_float=decimal.Decimal) if stats else None
    except (ValueError, ArithmeticError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _value_at(values: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of dicts or structs; None if it is missing or Python cannot represent it."""
    try:
        for name in path:
            if not isinstance(values, (dict, pa.StructScalar)):
                return None
            values = values[name]
        return values.as_py() if isinstance(values, pa.Scalar) else values
    except (KeyError, ValueError, OverflowError):
        return None


def _bound(value: Any, leaf: DeltaLeaf, side: int) -> Scalar:
    """Return the bound ``value`` of a column's statistics in the column's type, widened by as much as a writer may have
    rounded it; None if unknown.

    ``side``: -1 for an entry of ``minValues``, 1 for one of ``maxValues``.
    """
    arrow_type = leaf.type
    try:
        if pa.types.is_string(arrow_type):
            return _string_bound(value, side)
        if pa.types.is_boolean(arrow_type):
            return value if isinstance(value, bool) else None
        if isinstance(value, bool):
            return None
        if pa.types.is_integer(arrow_type):
            return value if isinstance(value, int) else None
        if pa.types.is_floating(arrow_type):
            return _float_bound(value, side, leaf.was_float or pa.types.is_float32(arrow_type))
        if pa.types.is_decimal(arrow_type):
            return _decimal_bound(value, arrow_type, side)
        if pa.types.is_date(arrow_type):
            value = dt.date.fromisoformat(value) if isinstance(value, str) else value
            return value if type(value) is dt.date else None
        if pa.types.is_timestamp(arrow_type):
            return _time_bound(value, arrow_type, side)
    except (ValueError, ArithmeticError):
        pass  # unknown
    return None


def _string_bound(value: Any, side: int) -> str | None:
    if not isinstance(value, str):
        return None
    value.encode()  # ValueError for half a surrogate pair, which is no bound
    if side < 0 or len(value) < _CUT_CHARACTERS:
        return value
    return successor(value)


def _float_bound(value: Any, side: int, is_single: bool) -> float | None:
    if not isinstance(value, (int, float, decimal.Decimal, str)):
        return None
    number = float(value)  # NaN and infinities may come as strings
    if math.isnan(number):
        return None
    if number == 0 and not is_single:
        return math.copysign(0.0, side)  # either zero may stand for both
    if not is_single or math.isinf(number):
        return number
    # the number is the short form of a 4-byte float: one step outwards undoes the rounding
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return None
    (bits,) = struct.unpack("<i", struct.pack("<f", single))
    if single == 0:
        return side * 2.0**-149
    bits += side if single > 0 else -side
    (outer,) = struct.unpack("<f", struct.pack("<i", bits))
    return float(outer)


def _decimal_bound(value: Any, arrow_type: pa.DataType, side: int) -> decimal.Decimal | None:
    if not isinstance(value, (int, decimal.Decimal, str)):
        return None
    number = decimal.Decimal(value)
    return widened_decimal(number, arrow_type.precision, arrow_type.scale, side) if number.is_finite() else None


def _time_bound(value: Any, arrow_type: pa.DataType, side: int) -> dt.datetime | None:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    elif type(value) is dt.date:
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime) or (value.tzinfo is None) is not (arrow_type.tz is None):
        return None
    time = value.replace(fold=0)
    # writers truncate to milliseconds: times before 1970 in either direction
    return (time if time.tzinfo is None else time.astimezone(dt.UTC)) + side * _MILLISECOND


def partition_value(text: str | None, leaf: DeltaLeaf) -> Any:
    """Decode the text of a partition value in an ``add`` action; None and an empty text are null.

    Returns a Python value, or a pyarrow scalar for a date or time outside of Python's range.
    """
    if text is None or text == "":
        return None
    try:
        return _typed(text, leaf.type)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        message = f"partition value {shown(text)} is not of type {leaf.type}"
        raise CorruptFileError(message, column=leaf.name) from error


def _typed(text: str, arrow_type: pa.DataType) -> Any:
    if pa.types.is_string(arrow_type):
        return text
    if pa.types.is_binary(arrow_type):
        return text.encode()
    if pa.types.is_integer(arrow_type):
        if _INTEGER.fullmatch(text) is None:
            raise ValueError(text)
        return pa.scalar(int(text), arrow_type).as_py()
    if pa.types.is_floating(arrow_type):
        return pa.scalar(float(text), arrow_type).as_py()
    if pa.types.is_decimal(arrow_type):
        return exact_decimal(decimal.Decimal(text), arrow_type.precision, arrow_type.scale)
    if pa.types.is_boolean(arrow_type):
        return bool(("false", "true").index(text.lower()))
    if pa.types.is_null(arrow_type):
        return None
    return _date(text) if pa.types.is_date(arrow_type) else _partition_time(text, arrow_type)


def _date(text: str) -> dt.date | pa.Scalar:
    """Parse a date; a time of day after the date is ignored, as in Spark."""
    match = _ONLY_DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return _python(pa.scalar(_days(match), pa.date32()))


def _partition_time(text: str, arrow_type: pa.DataType) -> dt.datetime | pa.Scalar:
    """Parse a timestamp; if the type has a zone, return it in UTC, and read a text without a zone as UTC.

    A type without a zone ignores the text's zone, as Spark does. Digits after microseconds are dropped.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, minute, second = (int(part or 0) for part in match.group(4, 5, 6))
    dt.time(hour, minute, second)  # ValueError for a time that does not exist
    fraction, zone = match[7] or "", match[8]
    value = _days(match) * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(f"{fraction:0<6}"[:6])
    if arrow_type.tz is not None and zone not in (None, "Z"):
        offset = dt.datetime.strptime(zone, "%z").utcoffset() or dt.timedelta()
        value -= offset // dt.timedelta(microseconds=1)
    return _python(pa.scalar(value, arrow_type))


def _days(match: re.Match[str]) -> int:
    """Return days since 1970 in the proleptic Gregorian calendar."""
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    return days_of(year, month, day)


def _python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value
