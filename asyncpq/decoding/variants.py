"""Cast parts of VARIANT columns as Spark's ``try_variant_get`` does (VariantEncoding.md of parquet-format).

Values are decoded one by one. A cast whose result depends on Spark's Java (texts of objects and arrays, rare forms of
timestamps) raises an error rather than guess. Spark's session is taken to be in UTC.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from asyncpq.decoding.arrow import BINARIES
from asyncpq.decoding.shredded_variant import restoring, variant_names
from asyncpq.errors import CorruptFileError, PredicateTypeError, UnsupportedFeatureError
from asyncpq.expressions import VariantTest
from asyncpq.expressions.tree import Path

_TYPES: Final = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_OBJECT, _ARRAY = 2, 3  # the low two bits of a value's first byte
_DAY: Final = 86_400_000_000  # microseconds
_SECOND: Final = 1_000_000
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_EXACT: Final = Context(prec=200, rounding=ROUND_HALF_UP)
_SPACES: Final = "".join(map(chr, range(33))) + "\x7f"
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_REAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[fd]?", re.ASCII | re.IGNORECASE)
_INFINITE: Final = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_DATE: Final = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_MOMENT: Final = re.compile(
    r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)?)?)?)?", re.ASCII
)
# Begins other texts that Spark may read as a timestamp: a year of several digits, or a time of today.
_MAY_BE_MOMENT: Final = re.compile(r"[+-]?\d{4,7}(?!\d)|T?\d{1,2}:", re.ASCII)
_TRUE: Final = frozenset({"t", "true", "y", "yes", "1"})
_FALSE: Final = frozenset({"f", "false", "n", "no", "0"})

#: A decoded value: its kind, and the value. Dates are days, timestamps microseconds.
Value: TypeAlias = tuple[str, Any]
Cast: TypeAlias = Callable[[str, Any], Any]


def part_type(name: str) -> pa.DataType:
    """Return the Arrow type of a variant's part that is cast to the type ``name``."""
    if name.startswith("decimal"):
        precision, scale = map(int, re.findall(r"\d+", name))
        return pa.decimal128(precision, scale)
    return _TYPES[name]


def reading_parts(source: pa.DataType, asked: VariantTest) -> Callable[[Any], Any]:
    """Return a function that reads the part that ``asked`` tests from VARIANT arrays, shredded or not, as an array of
    its type.

    Raises PredicateTypeError if ``source`` is not the type of a VARIANT column.
    """
    storage = source.storage_type if isinstance(source, pa.BaseExtensionType) else source
    names = {field.name for field in storage} if isinstance(storage, pa.StructType) else set()
    if "metadata" not in names or not names & {"value", "typed_value"}:
        raise PredicateTypeError(
            f"{asked}: the column has the type {source}, expected a variant",
            column=asked.column,
            hint="Use a VARIANT column, which is a struct of metadata and value.",
        )
    restore = restoring(storage) if "typed_value" in names else None
    if restore is None and any(storage.field(name).type not in BINARIES for name in ("metadata", "value")):
        raise PredicateTypeError(
            f"{asked}: {source} is not a variant: its metadata and value must be binary", column=asked.column
        )
    cast = _casting(asked.type)

    def read(array: Any) -> Any:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        values, metadata = restore(array) if restore else (array.field("value"), array.field("metadata"))
        rows = zip(array.is_valid().to_pylist(), values.to_pylist(), metadata.to_pylist(), strict=True)
        parts = [_cast_part(value, names, asked.path, cast) if there else None for there, value, names in rows]
        return _array(parts, part_type(asked.type))

    return read


def _array(parts: list[Any], type_: Any) -> pa.Array:
    if pa.types.is_date(type_):
        return pa.array(parts, pa.int32()).view(type_)
    if pa.types.is_timestamp(type_):
        return pa.array(parts, pa.int64()).view(type_)
    return pa.array(parts, type_)


def _cast_part(value: bytes | None, metadata: bytes | None, path: Path, cast: Cast) -> Any:
    if value is None or metadata is None:
        raise _malformed("the value or the metadata is missing")
    try:
        part = _part(value, metadata, path)
        kind, decoded = ("null", None) if part is None else variant_value(part)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _malformed("the bytes end inside a value") from error
    return None if kind == "null" else cast(kind, decoded)


def _malformed(why: str) -> CorruptFileError:
    return CorruptFileError(f"a variant is malformed: {why}")


# -- decoding -------------------------------------------------------------------------------------


@lru_cache(256)
def _names(metadata: bytes) -> dict[str, int]:
    return {name: position for position, name in enumerate(variant_names(metadata))}


def _part(value: bytes, metadata: bytes, path: Path) -> bytes | None:
    """Return the bytes of ``value`` from the part at ``path`` on, which may go on after the part; None if there is no
    such part."""
    for step in path:
        header = value[0]
        is_object = header & 3 == _OBJECT
        if header & 3 != (_OBJECT if isinstance(step, str) else _ARRAY):
            return None
        size = (header >> 2 & 3) + 1
        of_id = (header >> 4 & 3) + 1 if is_object else 0
        wide = 4 if header >> (6 if is_object else 4) & 1 else 1
        count, place = _number(value, 1, wide), 1 + wide
        if isinstance(step, str):
            wanted = _names(metadata).get(step)
            ids = (_number(value, place + of_id * at, of_id) for at in range(count)) if wanted is not None else ()
            at = next((at for at, field in enumerate(ids) if field == wanted), count)
        else:
            at = step
        if at >= count:
            return None
        place += of_id * count
        begin = _number(value, place + size * at, size)
        value = value[place + size * (count + 1) + begin :]
    return value


def _number(data: bytes, place: int, size: int) -> int:
    if place + size > len(data):
        raise IndexError
    return int.from_bytes(data[place : place + size], "little")


def variant_value(value: bytes) -> Value:
    """Decode an encoded variant. A scalar gives its kind and value, an object or array only its kind. Raises
    UnsupportedFeatureError for kinds that Spark does not know, IndexError or struct.error if the value is cut off."""
    header = value[0]
    basic, kind = header & 3, header >> 2
    if basic == 1:
        return "string", _bytes(value, 1, kind).decode()
    if basic:
        return ("object" if basic == _OBJECT else "array"), None
    if kind <= 2:
        return ("null", None) if kind == 0 else ("boolean", kind == 1)
    fixed = _FIXED.get(kind)
    if fixed is not None:
        name, form = fixed
        return name, struct.unpack_from(form, value, 1)[0]
    if kind in _DECIMALS:
        unscaled = int.from_bytes(_bytes(value, 2, _DECIMALS[kind]), "little", signed=True)
        return "decimal", Decimal(unscaled).scaleb(-value[1], _EXACT)
    if kind in (15, 16):
        content = _bytes(value, 5, _number(value, 1, 4))
        return ("binary", content) if kind == 15 else ("string", content.decode())
    if kind == 20:
        return "uuid", _bytes(value, 1, 16)
    raise UnsupportedFeatureError(f"a variant has a value of type {kind}, which Spark does not read")


_FIXED: Final = {
    3: ("long", "<b"),
    4: ("long", "<h"),
    5: ("long", "<i"),
    6: ("long", "<q"),
    7: ("double", "<d"),
    11: ("date", "<i"),
    12: ("timestamp", "<q"),
    13: ("timestamp_ntz", "<q"),
    14: ("float", "<f"),
}
_DECIMALS: Final = {8: 4, 9: 8, 10: 16}


def _bytes(value: bytes, place: int, size: int) -> bytes:
    if place + size > len(value):
        raise IndexError
    return value[place : place + size]


# -- casts: of a value's kind and the value; None where Spark's cast fails ------------------------


def _casting(name: str) -> Cast:
    type_: Any = part_type(name)
    if pa.types.is_integer(type_):
        return partial(_to_integer, type_.bit_width)
    if pa.types.is_decimal(type_):
        return partial(_to_decimal, type_.precision, type_.scale)
    return _CASTS[name]


def _refused(kind: str, target: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"a part of a variant is {kind}; asyncpq cannot cast that to {target} as Spark does",
        hint="Ask for the type that the part has, or for a part inside of it.",
    )


def _to_integer(bits: int, kind: str, value: Any) -> int | None:
    top = 1 << bits - 1
    if kind in ("double", "float"):
        if not math.isfinite(value):
            return None
        number = int(value)
        number -= number == top == 1 << 63  # Java compares with the bound as a double
    elif kind == "decimal":
        number = int(value.to_integral_value(ROUND_DOWN, _EXACT))
    elif kind == "string":
        text = value.strip(_SPACES)
        if _WHOLE.fullmatch(text) is None:
            return None
        number = int(text)
    elif kind in ("long", "boolean"):
        number = int(value)
    elif kind == "timestamp":
        number = value // _SECOND
    else:
        return None
    return number if -top <= number < top else None


def _to_double(kind: str, value: Any) -> float | None:
    if kind in ("long", "boolean", "double", "float", "decimal"):
        return float(value)
    if kind == "timestamp":
        return float(value / _SECOND)
    if kind != "string":
        return None
    text = value.strip(_SPACES)
    infinite = _INFINITE.fullmatch(text)
    if infinite is not None:
        return -math.inf if infinite[1] == "-" else math.inf
    if text.lower() == "nan":
        return math.nan
    return float(text.rstrip("fFdD")) if _REAL.fullmatch(text) else None


def _to_float(kind: str, value: Any) -> float | None:
    if kind in ("double", "timestamp"):
        return _single(pa.scalar(float(value if kind == "double" else value / _SECOND)))
    if kind == "long":
        return _single(pa.scalar(value, pa.int64()))
    if kind == "decimal":
        return _single(pa.scalar(str(value)))
    number = _to_double(kind, value)
    if number is None or kind != "string" or not math.isfinite(number) or number == 0:
        return number
    return _single(pa.scalar(value.strip(_SPACES).rstrip("fFdD").removeprefix("+")))


def _single(value: pa.Scalar) -> float:
    """Return the float of 32 bits that is nearest to the value. Text is not rounded to 64 bits before."""
    single: float = value.cast(pa.float32(), safe=False).as_py()
    return single


def _to_boolean(kind: str, value: Any) -> bool | None:
    if kind in ("boolean", "long", "double", "float", "decimal"):
        return bool(value)
    if kind != "string":
        return None
    text = value.strip(_SPACES).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _to_string(kind: str, value: Any) -> str | None:
    if kind in ("string", "long"):
        return str(value)
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "decimal":
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if kind in ("double", "float"):
        return _java_text(kind, value)
    day, micros = divmod(value, _DAY) if kind in ("timestamp", "timestamp_ntz") else (value, 0)
    if kind in ("date", "timestamp", "timestamp_ntz") and 1 <= day + _EPOCH <= dt.date.max.toordinal():
        date = dt.date.fromordinal(day + _EPOCH).isoformat()
        clock = (dt.datetime.min + dt.timedelta(microseconds=micros)).time().isoformat()
        return date if kind == "date" else f"{date} {clock.rstrip('0') if '.' in clock else clock}"
    if kind == "binary":
        try:
            return str(value.decode())
        except UnicodeDecodeError:
            raise _refused("binary that is not valid UTF-8", "string") from None
    raise _refused(f"a value of kind {kind}", "string")


def _java_text(kind: str, value: float) -> str:
    """Return a number as text in the form of Java: the fewest digits, in scientific notation from 10**7 and below
    10**-3."""
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    shortest = repr(value)
    if kind == "float":
        texts = (f"{value:.{digits}g}" for digits in range(1, 10))
        shortest = next(text for text in texts if _single(pa.scalar(float(text))) == value)
    sign, digits, exponent = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + int(exponent) if value else 0
    minus = "-" if sign else ""
    if -3 <= power < 7:
        text = "0" * -power + text if power < 0 else text.ljust(power + 1, "0")
        whole = max(power, 0) + 1
        return f"{minus}{text[:whole]}.{text[whole:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{power}"


def _to_binary(kind: str, value: Any) -> bytes | None:
    if kind == "string":
        return bytes(value.encode())
    return bytes(value) if kind == "binary" else None


def _to_date(kind: str, value: Any) -> int | None:
    if kind == "date":
        return int(value)
    if kind in ("timestamp", "timestamp_ntz"):
        return int(value // _DAY)
    found = _DATE.fullmatch(value.strip(_SPACES)) if kind == "string" else None
    if found is None:
        return None
    year, month, day = (int(part or 1) for part in found.groups())
    if not 1 <= year <= dt.MAXYEAR:
        raise _refused("a date beyond year 9999 or before year 1 in text", "date")
    try:
        return dt.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


def _to_timestamp(zoned: bool, kind: str, value: Any) -> int | None:
    if kind in ("timestamp", "timestamp_ntz"):
        return int(value)
    if kind == "date":
        return int(value * _DAY)
    if kind == "string":
        return _moment(value.strip(_SPACES), zoned)
    if not zoned or kind not in ("long", "decimal", "double", "float"):
        return None
    if kind in ("double", "float"):
        if not math.isfinite(value):
            return None
        micros = int(value * _SECOND) if abs(value) < 1e200 else 1 << 64
    else:
        micros = int(_EXACT.multiply(Decimal(value), Decimal(_SECOND)).to_integral_value(ROUND_DOWN, _EXACT))
    return micros if -(1 << 63) <= micros < 1 << 63 else None


def _moment(text: str, zoned: bool) -> int | None:
    found = _MOMENT.fullmatch(text)
    if found is None:
        if _MAY_BE_MOMENT.match(text) is None:
            return None
        raise _refused(f"the text {text[:40]!r}", "timestamp")
    year, month, day, *clock, fraction, zone = found.groups()
    hours, minutes, seconds = (int(part or 0) for part in clock)
    try:
        moment = dt.datetime(int(year), int(month or 1), int(day or 1), hours, minutes, seconds)
    except ValueError:
        return None
    since = moment - dt.datetime(1970, 1, 1)
    micros = (since.days * 86_400 + since.seconds) * _SECOND + int((fraction or "").ljust(6, "0"))
    if zone and zone != "Z" and zoned:
        hours, minutes = int(zone[1:3]), int(zone[4:])
        if hours > 18 or minutes > 59:
            raise _refused(f"the text {text[:40]!r}", "timestamp")
        micros -= (60 * hours + minutes) * 60 * _SECOND * (-1 if zone[0] == "-" else 1)
    return micros


def _to_decimal(precision: int, scale: int, kind: str, value: Any) -> Decimal | None:
    try:
        if kind in ("double", "float", "timestamp"):
            text = _java_text(kind, value / _SECOND if kind == "timestamp" else value)
            if not math.isfinite(value):
                return None
            value = Decimal(text)
        elif kind == "string":
            text = value.strip(_SPACES)
            if _REAL.fullmatch(text) is None or text[-1:] in "fFdD":
                return None
            value = Decimal(text)
        elif kind not in ("long", "decimal", "boolean"):
            return None
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    return rounded if rounded.copy_abs() < Decimal(10) ** (precision - scale) else None


_CASTS: Final[dict[str, Cast]] = {
    "float": _to_float,
    "double": _to_double,
    "bool": _to_boolean,
    "string": _to_string,
    "binary": _to_binary,
    "date": _to_date,
    "timestamp": partial(_to_timestamp, True),
    "timestamp_ntz": partial(_to_timestamp, False),
}
