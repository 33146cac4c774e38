"""Translate pyarrow compute expressions to asyncpq expressions.

A ``pyarrow.compute.Expression`` has no public tree, but its Substrait form has (an ExtendedExpression protobuf message,
substrait.io). pyarrow binds the expression to the schema before it writes that form, so literals are cast to their
columns' types. An expression that has no Substrait form, or no equal in asyncpq, raises ExpressionError.
"""

from __future__ import annotations

import datetime as dt
import io
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.typed_literals import exact_scalar, is_exact_cast, storage_type
from asyncpq.errors import ColumnNotFoundError, ExpressionError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    CompareOp,
    Comparison,
    Constant,
    Contains,
    Expression,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
)
from asyncpq.expressions.scalars import Scalar, time_of_day

_OPS: Final[dict[str, CompareOp]] = {"equal": "==", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_MIRRORED: Final[dict[CompareOp, CompareOp]] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_USER_TYPES: Final = {
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "large_string": pa.large_string(),
    "large_binary": pa.large_binary(),
    "time_nanos": pa.time64("ns"),
}
# Type (substrait/type.proto), by field number.
_TYPES: Final = {
    2: pa.int8(),
    3: pa.int16(),
    5: pa.int32(),
    7: pa.int64(),
    10: pa.float32(),
    11: pa.float64(),
    12: pa.string(),
    13: pa.binary(),
    14: pa.timestamp("us"),
    17: pa.time64("us"),
    29: pa.timestamp("us", "UTC"),
}
_PRECISIONS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_EPOCH: Final = dt.datetime(1970, 1, 1)
_MAX_DEPTH: Final = 200
_SHOWN: Final = 200  # characters of the expression in messages
_NO_MATCH: Final = re.compile(r"No match for FieldRef\.(.*?) in ", re.DOTALL)
_NAME: Final = re.compile(r"Name\((.*?)\)(?= FieldRef\.|\)|$)", re.DOTALL)
_WITHOUT_FORM: Final = re.compile(r"cast\(|:\d\d\.\d{9}")  # a cast, a literal of nanoseconds
_HINT: Final = "Write it with asyncpq.col(), or with literals of the columns' own types."

Message = dict[int, list["int | bytes"]]


def from_pyarrow(expression: pc.Expression, schema: pa.Schema) -> Expression:
    """Translate a pyarrow compute expression on columns of ``schema``.

    Supported are comparisons with literals and between columns, ``&``, ``|``, ``~``, ``is_null()``, ``is_valid()``,
    ``isin()``, ``pc.starts_with``, ``pc.match_substring``, ``pc.is_nan``. Columns may be given by name, path or
    position, and cast to a type that holds all of their values in the same order. Anything else raises ExpressionError,
    an unknown column ColumnNotFoundError.
    """
    try:
        text = str(expression)
    except UnicodeDecodeError as error:
        raise ExpressionError(f"pyarrow cannot show the expression: {error}", hint=_HINT) from error
    short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    if "null_matching_behavior=" in text.replace("null_matching_behavior=MATCH", ""):
        raise ExpressionError(
            f"{short}: asyncpq does not support isin with a non-default treatment of nulls", hint=_HINT
        )
    if _WITHOUT_FORM.search(text):  # before, since pyarrow may crash where it finds a safe cast
        expression = with_substrait_forms(expression)
    try:
        data = bytes(expression.to_substrait(_plain(schema)))
    except (pa.ArrowException, ImportError) as error:
        missing = _no_column(str(error), schema)
        if missing is not None:
            raise missing from error
        reason = str(error).partition("\n")[0][:_SHOWN]
        raise ExpressionError(
            f"{short}: pyarrow cannot translate the expression to Substrait: {reason}", hint=_HINT
        ) from error
    try:
        return _Reader(short, schema, _fields(data)).expression()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ExpressionError(
            f"{short}: asyncpq cannot read the expression's Substrait form: {error!r}", hint=_HINT
        ) from error


def _no_column(message: str, schema: pa.Schema) -> ColumnNotFoundError | None:
    """If ``message``, an error of pyarrow, is about a missing column, return an asyncpq error about that column; else
    None."""
    match = _NO_MATCH.search(message)
    if match is None:
        return None
    names = _NAME.findall(match[1])
    if not names:
        return ColumnNotFoundError(f"the file has no column at {match[1]}")
    dotted = ".".join(names)
    path = names if len(names) > 1 else dotted.split(".")
    if not _has(schema, path):
        return ColumnNotFoundError("the file has no such column", column=dotted)
    if len(names) > 1:
        return None
    parts = ", ".join(f'"{part}"' for part in path)
    return ColumnNotFoundError(
        "the file has no top-level column of this name",
        column=dotted,
        hint=f'pyarrow takes no dotted paths: write pc.field({parts}), or asyncpq.col("{dotted}").',
    )


def _has(schema: pa.Schema, path: Sequence[str]) -> bool:
    """Return whether ``path`` names a column, or a field inside structs."""
    type_: pa.Schema | pa.DataType = schema
    for name in path:
        if not isinstance(type_, (pa.Schema, pa.StructType)) or type_.get_field_index(name) < 0:
            return False
        type_ = type_.field(name).type
    return True


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with every type for which Substrait has no literals replaced by an empty struct."""
    fields = []
    for field in schema:
        type_ = _plain_type(field.type)
        try:
            pc.field("x").is_valid().to_substrait(pa.schema([pa.field("x", type_)]))
        except pa.ArrowException:
            type_ = pa.struct([])
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.DictionaryType):
        return _plain_type(type_.value_type)
    if isinstance(type_, pa.TimestampType):
        return pa.timestamp("us", type_.tz)
    if pa.types.is_time(type_):
        return pa.time64("ns")
    if pa.types.is_large_string(type_):
        return pa.string()
    if isinstance(type_, pa.StructType):
        return pa.struct(
            [type_.field(at).with_type(_plain_type(type_.field(at).type)) for at in range(type_.num_fields)]
        )
    return pa.binary() if pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_) else type_


def _fields(data: bytes) -> Message:
    """Decode a protobuf message to its fields, keyed by number; nested messages stay bytes."""
    fields: Message = {}
    pos = 0
    while pos < len(data):
        tag, pos = _varint(data, pos)
        value: int | bytes
        match tag & 7:
            case 0:
                value, pos = _varint(data, pos)
            case 1:
                value, pos = data[pos : pos + 8], pos + 8
            case 2:
                size, pos = _varint(data, pos)
                value, pos = data[pos : pos + size], pos + size
            case 5:
                value, pos = data[pos : pos + 4], pos + 4
            case _:
                raise IndexError("the protobuf message has an unknown wire type")
        if pos > len(data):
            raise IndexError("the protobuf message ends inside a field")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def _message(fields: Message, number: int) -> Message:
    value = fields[number][0]
    if not isinstance(value, bytes):
        raise KeyError(f"field {number} has another protobuf wire type than expected")
    return _fields(value)


def _messages(fields: Message, number: int) -> list[Message]:
    return [_fields(value) for value in fields.get(number, ()) if isinstance(value, bytes)]


def _integer(fields: Message, number: int) -> int:
    """Return a varint field as a signed 64-bit integer; 0 if the field is absent, which is protobuf's default."""
    value = fields.get(number, [0])[0]
    if not isinstance(value, int):
        raise KeyError(f"field {number} has another protobuf wire type than expected")
    return value - (1 << 64) if value >> 63 else value


def _bytes(fields: Message, number: int) -> bytes:
    value = fields.get(number, [b""])[0]
    if not isinstance(value, bytes):
        raise KeyError(f"field {number} has another protobuf wire type than expected")
    return value


class _Reader:
    """Translates the one expression of an ExtendedExpression message (substrait/extended_expression.proto)."""

    def __init__(self, text: str, schema: pa.Schema, extended: Message) -> None:
        self._text = text
        self._schema = schema
        self._extended = extended
        self._functions: dict[int, str] = {}
        self._types: dict[int, str] = {}
        for declaration in _messages(extended, 2):
            for number, names in ((1, self._types), (3, self._functions)):
                for entry in _messages(declaration, number):
                    names[_integer(entry, 2)] = _bytes(entry, 3).decode()
        self._depth = 0

    def expression(self) -> Expression:
        (referred,) = _messages(self._extended, 3)
        return self._predicate(_message(referred, 1))

    def _refuse(self, what: str) -> NoReturn:
        raise ExpressionError(f"{self._text}: asyncpq does not support {what}", hint=_HINT)

    def _predicate(self, node: Message) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} nested operations")
        try:
            if 1 in node:
                value = self._literal(_message(node, 1))
                if value is None or isinstance(value, bool):
                    return Constant(value)
                self._refuse("a value as a condition, except true, false and null")
            if 2 in node:
                name, type_ = self._column(_message(node, 2))
                if type_ == pa.bool_():
                    return Comparison(name, "==", True)
                self._refuse("a column as a condition that is not boolean: compare it with a value")
            if 3 in node:
                return self._call(_message(node, 3))
            if 6 in node:
                return self._if_then(_message(node, 6))
            if 8 in node:
                return self._in(_message(node, 8))
            self._refuse("one of its operations")
        finally:
            self._depth -= 1

    def _call(self, call: Message) -> Expression:
        name = self._functions[_integer(call, 1)]
        args = [_message(argument, 3) for argument in _messages(call, 4)]
        if name in _OPS:
            return self._compare(_OPS[name], args)
        if name == "and":
            return And(tuple(self._predicate(arg) for arg in args))
        if name == "or":
            return Or(tuple(self._predicate(arg) for arg in args))
        if name == "not":
            return Not(self._predicate(args[0]))
        if name in ("is_null", "is_not_null", "is_nan"):
            column = self._column_of(args[0])
            if name == "is_nan":
                return ColumnComparison(column, "!=", column)  # NaN is the one value that differs from itself
            return IsNull(column) if name == "is_null" else Not(IsNull(column))
        if name in ("starts_with", "contains"):
            column, text = self._searched(name, call, args)
            return StartsWith(column, text) if name == "starts_with" else Contains(column, text)
        self._refuse(f"the function {name}")

    def _compare(self, op: CompareOp, args: list[Message]) -> Expression:
        left, right = args
        if 1 in left and 1 not in right:
            left, right, op = right, left, _MIRRORED[op]
        column = self._column_of(left)
        if 1 in right:
            return Comparison(column, op, self._literal(_message(right, 1)))
        return ColumnComparison(column, op, self._column_of(right))

    def _searched(self, name: str, call: Message, args: list[Message]) -> tuple[str, str | bytes]:
        """Return the column and the text of a call that searches a column for a text."""
        for option in _messages(call, 5):
            if _bytes(option, 1) == b"case_sensitivity" and option.get(2) != [b"CASE_SENSITIVE"]:
                self._refuse(f"{name} that ignores case")
        text = self._literal(_message(args[1], 1))
        if not isinstance(text, (str, bytes)):
            self._refuse(f"{name} of a value that is neither a string nor bytes")
        return self._column_of(args[0]), text

    def _if_then(self, node: Message) -> Expression:
        """Translate ``if_else(condition, then, otherwise)``; DuckDB 2 writes IN as such, with null for null."""
        (clause,) = _messages(node, 1)
        condition = self._predicate(_message(clause, 1))
        tested = condition.arg if isinstance(condition, Not) else condition
        if not isinstance(tested, IsNull):
            self._refuse("if_else with another condition than whether a column is null")
        then, otherwise = self._predicate(_message(clause, 2)), self._predicate(_message(node, 2))
        return Or((And((condition, then)), And((Not(condition), otherwise))))

    def _in(self, node: Message) -> Expression:
        values = tuple(self._literal(_message(option, 1)) for option in _messages(node, 2))
        tested = _message(node, 1)
        column = self._column_of(tested)
        if 11 in tested:  # the column has no value that its type cannot hold
            type_ = storage_type(self._column(_message(_message(_message(tested, 11), 2), 2))[1])
            values = tuple(value for value in values if value is None or _holds(type_, value))
        return In(column, values)

    # -- columns and literals ---------------------------------------------------------------------

    def _column_of(self, node: Message) -> str:
        if 11 in node:
            return self._cast(_message(node, 11))
        if 2 not in node:
            self._refuse("calculations: each side of a comparison must be a column or a value, and one a column")
        return self._column(_message(node, 2))[0]

    def _cast(self, cast: Message) -> str:
        """Return the name of the column under an exact cast, which is compared without the cast. Raises ExpressionError
        for other casts."""
        argument = _message(cast, 2)
        if 2 not in argument:
            self._refuse("casts of calculations and values: only a column can be cast")
        name, type_ = self._column(_message(argument, 2))
        target = self._type(_message(cast, 1))
        if target is None or not is_exact_cast(type_, target):
            self._refuse(f"a cast of {type_} that may change its values, or their order")
        return name

    def _type(self, type_: Message) -> pa.DataType | None:
        """Return the Arrow type of a Substrait Type (substrait/type.proto); None if no exact cast can have this type as
        its target."""
        number = min(type_, default=0)
        fields = _message(type_, number)
        if number == 24:
            return pa.decimal256(_integer(fields, 2), _integer(fields, 1))
        if number in (33, 34):
            unit = _PRECISIONS.get(_integer(fields, 1))
            return None if unit is None else pa.timestamp(unit, None if number == 33 else "UTC")
        if number == 30:
            return _USER_TYPES.get(self._types.get(_integer(fields, 1), ""))
        return _TYPES.get(number)

    def _column(self, reference: Message) -> tuple[str, pa.DataType]:
        """Return the dotted name and the type of a FieldReference, which is a path of ordinals from the root."""
        if 4 not in reference or 1 not in reference:
            self._refuse("a reference to something else than a column")
        segment = _message(reference, 1)
        names: list[str] = []
        children: Sequence[pa.Field] = list(self._schema)
        while True:
            if 2 not in segment:
                self._refuse("items of lists and maps")
            step = _message(segment, 2)
            field = children[_integer(step, 1)]
            names.append(field.name)
            if 2 not in step:
                return ".".join(names), field.type
            segment = _message(step, 2)
            children = [field.type.field(at) for at in range(field.type.num_fields)]

    def _literal(self, literal: Message) -> Scalar:
        for number, read in _LITERALS.items():
            if number in literal:
                return read(literal)
        if 33 in literal:
            return self._user_defined(_message(literal, 33))
        self._refuse(f"a literal of Substrait kind {min(literal, default=0)}")

    def _user_defined(self, literal: Message) -> Scalar:
        """Decode a literal of an Arrow type that is user-defined in Substrait, from its google.protobuf wrapper."""
        type_ = _USER_TYPES.get(self._types.get(_integer(literal, 1), ""))
        if type_ is None:
            self._refuse("a literal of a type that Substrait lacks")
        is_number = pa.types.is_integer(type_) or pa.types.is_time(type_)
        value = _fields(_bytes(_message(literal, 2), 2)).get(1, [0 if is_number else b""])[0]
        if isinstance(value, bytes) is is_number:
            self._refuse("a literal whose value is not of its declared type")
        if isinstance(value, int) and pa.types.is_time(type_):
            return time_of_day(value)
        return value.decode() if isinstance(value, bytes) and type_ == pa.large_string() else value


def _holds(type_: pa.DataType, value: Scalar) -> bool:
    negative_zero = type(value) is float and value == 0 and math.copysign(1, value) < 0
    if negative_zero and pa.types.is_integer(type_):
        return False  # isin tells it from zero
    return exact_scalar(value, type_) is not None


def _moment(literal: Message, number: int, zone: dt.tzinfo | None) -> dt.datetime:
    return (_EPOCH + dt.timedelta(microseconds=_integer(literal, number))).replace(tzinfo=zone)


def _decimal(literal: Message) -> Decimal:
    fields = _message(literal, 24)
    unscaled = int.from_bytes(_bytes(fields, 1), "little", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -_integer(fields, 3)))


# Expression.Literal (substrait/algebra.proto), by field number.
_LITERALS: Final[dict[int, Callable[[Message], Scalar]]] = {
    29: lambda literal: None,
    1: lambda literal: bool(_integer(literal, 1)),
    **{number: partial(_integer, number=number) for number in (2, 3, 5, 7)},
    10: lambda literal: float(struct.unpack("<f", _bytes(literal, 10))[0]),
    11: lambda literal: float(struct.unpack("<d", _bytes(literal, 11))[0]),
    12: lambda literal: _bytes(literal, 12).decode(),
    13: lambda literal: _bytes(literal, 13),
    14: lambda literal: _moment(literal, 14, None),
    16: lambda literal: (_EPOCH + dt.timedelta(days=_integer(literal, 16))).date(),
    17: lambda literal: (_EPOCH + dt.timedelta(microseconds=_integer(literal, 17))).time(),
    22: lambda literal: _bytes(_message(literal, 22), 1).decode(),
    23: lambda literal: _bytes(literal, 23),
    24: _decimal,
    27: lambda literal: _moment(literal, 27, dt.UTC),
}


def with_substrait_forms(expression: pc.Expression) -> pc.Expression:
    """Rewrite what Substrait lacks: return ``expression`` with unsafe casts in place of safe ones, and with
    microseconds in place of nanoseconds where that is exact. Exact casts stay exact.

    An expression pickles as an Arrow file of one row, with a column for each literal, a struct for each call's options
    and their nesting in the schema's metadata. An expression that pickles otherwise is returned unchanged.
    """
    try:
        restore, (pickled,) = expression.__reduce__()
        batch = pa.ipc.open_file(pickled).get_batch(0)
        columns = [_microseconds(_unsafe(column)) for column in batch.columns]
        schema = batch.schema  # whose metadata repeats keys, which only `set` keeps
        for at, column in enumerate(columns):
            schema = schema.set(at, schema.field(at).with_type(column.type))
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        restored = restore(pa.py_buffer(sink.getvalue()))
    except (pa.ArrowException, TypeError, ValueError):
        return expression
    return restored if isinstance(restored, pc.Expression) else expression


def _microseconds(column: pa.Array) -> pa.Array:
    """Convert a literal of nanoseconds to microseconds if that is exact; return any other column unchanged."""
    if not isinstance(column.type, pa.TimestampType) or column.type.unit != "ns":
        return column
    try:
        return column.cast(pa.timestamp("us", column.type.tz))
    except pa.ArrowInvalid:
        return column


def _unsafe(column: pa.Array) -> pa.Array:
    """If ``column`` has the options of a cast, return them with every loss allowed; return any other column
    unchanged."""
    if not isinstance(column, pa.StructArray) or column.type.get_field_index("to_type") < 0:
        return column
    fields = list(column.type)
    children = [
        pa.array([True]) if field.name.startswith("allow_") else column.field(at) for at, field in enumerate(fields)
    ]
    return pa.StructArray.from_arrays(children, fields=fields)
