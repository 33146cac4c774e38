"""Translate pyarrow compute expressions to asyncpq expressions.

Literals keep their types: the compiled filter compares them as it compares those of ``asyncpq.col``. An expression that
has no equal in asyncpq raises ExpressionError.

The tree of a ``pyarrow.compute.Expression`` has no public accessors, so it is read from its pickled form. An expression
pickles as an Arrow IPC file (``Serialize`` in Arrow's ``cpp/src/arrow/compute/expression.cc``; the same since Arrow 3,
and read here as pyarrow 26 writes it). The file has one record batch of one row, with a column for each literal and a
struct for the options of each call. The metadata of its schema are the tree in prefix order: ``call`` and ``end`` with
a function's name, ``field_ref`` with a column's name, ``nested_field_ref`` with the number of names that follow,
``literal`` and ``options`` with the number of a column. The form is as long as the expression, whatever its shape,
while the time of pyarrow's other form, Substrait, doubles with each level.

``Schema.metadata`` of pyarrow is a mapping and drops all but one of equal keys, so the message is read from its bytes
(Arrow's ``Message.fbs`` and ``Schema.fbs``).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding.paths import type_in
from asyncpq.decoding.typed_literals import exact_scalar, is_exact_cast, storage_type
from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, ExpressionError, ambiguous_path
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
    Like,
    Not,
    Or,
    StartsWith,
    is_nan,
    with_key_sets,
)
from asyncpq.expressions.scalars import Scalar, as_scalar, as_scalars
from asyncpq.expressions.tree import MAX_NESTING, MIRRORED
from asyncpq.parquet.flatbuffers import FlatBuffer

_OPS: Final[dict[str, CompareOp]] = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_TEXT: Final[dict[str, Callable[[str, Any], Expression]]] = {
    "starts_with": StartsWith,
    "match_substring": Contains,
    "match_like": Like,
}
_PLAIN: Final = frozenset({pa.Int32Scalar, pa.Int64Scalar, pa.DoubleScalar})  # their values in Python are exact
_MATCH_NULLS, _SKIP_NULLS = 0, 1  # SetLookupOptions::NullMatchingBehavior
_POSITION: Final = re.compile(r"FieldPath\((\d+)")
_SHOWN: Final = 200  # characters of the expression in messages
_MAX_SHOWN_BYTES: Final = 1 << 20  # of its pickled form: pyarrow shows an expression by recursion, in quadratic time
_HINT: Final = "Write it with asyncpq.col(), or with literals of the columns' own types."


def from_pyarrow(expression: pc.Expression, schema: pa.Schema) -> Expression:
    """Translate a pyarrow compute expression on columns of ``schema``, in time linear to its length.

    Supported are comparisons with literals and between columns, ``&``, ``|``, ``~``, ``is_null()``, ``is_valid()``,
    ``isin()``, ``pc.starts_with``, ``pc.match_substring``, ``pc.match_like``, ``pc.is_nan``, ``pc.struct_field``.
    Columns are given by name or path, and may be cast to a type that holds all of their values in the same order.
    Anything else raises ExpressionError, as does a column by position, for which pyarrow has no such form; an unknown
    column raises ColumnNotFoundError.
    """
    try:
        return with_key_sets(_Translation(schema).predicate(_tree(expression, schema)))
    except ExpressionError as error:
        text = _shown(expression)
        if text is not None and not error.message.startswith(text):
            error.message = f"{text}: {error.message}"
        raise


def _tree(expression: pc.Expression, schema: pa.Schema) -> Node:
    try:
        return read_tree(expression)
    except pa.ArrowNotImplementedError as error:
        position = _POSITION.search(_shown(expression) or "")
        if position is None:
            raise ExpressionError(f"pyarrow cannot pickle the expression: {error}", hint=_HINT) from error
        at = int(position[1])
        name = schema.field(at).name if at < len(schema) else "name"
        raise ExpressionError(
            "asyncpq finds columns by name, not by position", hint=f'Write pc.field("{name}") for pc.field({at}).'
        ) from error
    except (
        pa.ArrowException,
        IndexError,
        KeyError,
        TypeError,
        ValueError,  # UnicodeDecodeError too
        struct.error,
    ) as error:
        raise ExpressionError(
            f"asyncpq cannot read the pickled form of the pyarrow expression: {error!r}", hint=_HINT
        ) from error


def _shown(expression: pc.Expression) -> str | None:
    """Return the beginning of the expression as text; None for long ones, and for those that pyarrow cannot show."""
    try:
        if expression.__reduce__()[1][0].size > _MAX_SHOWN_BYTES:
            return None
    except pa.ArrowNotImplementedError:
        pass  # its length is not known
    try:
        text = str(expression)
    except UnicodeDecodeError:
        return None
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refuse(what: str) -> NoReturn:
    raise ExpressionError(f"asyncpq does not support {what}", hint=_HINT)


class _Translation:
    """Translates nodes whose columns are those of ``schema``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._types: dict[tuple[str, ...], pa.DataType] = {}  # of the columns seen so far, by path

    def predicate(self, node: Node) -> Expression:
        if isinstance(node, Literal):
            value = as_scalar(node.value)
            if value is None or isinstance(value, bool):
                return Constant(value)
            _refuse("a value as a condition, except true, false and null")
        if isinstance(node, FieldRef) or node.function == "struct_field":
            name, type_ = self._column(node)
            if type_ == pa.bool_():
                return Comparison(name, "==", True)
            _refuse("a column as a condition that is not boolean: compare it with a value")
        return self._call(node)

    def _call(self, call: Call) -> Expression:
        checkpoint()
        function, args = call.function, call.args
        match function:
            case "and_kleene":
                return And(tuple([self.predicate(arg) for arg in args]))
            case "or_kleene":
                return Or(tuple([self.predicate(arg) for arg in args]))
            case "invert":
                return Not(self.predicate(args[0]))
            case "is_null":
                return IsNull(self._column_of(args[0]), bool(_option(call, "nan_is_null")))
            case "is_valid":
                return Not(IsNull(self._column_of(args[0])))
            case "is_nan":
                column, type_ = self._operand(args[0])  # no value of other types than floats differs from itself
                return is_nan(column) if pa.types.is_floating(type_) else ColumnComparison(column, "!=", column)
            case "is_in":
                return self._in(call)
            case "if_else":
                return self._if_else(args)
            case "cast":
                _refuse("a cast as a condition: compare it with a value")
        if function in _OPS:
            return self._compare(_OPS[function], args)
        if function in _TEXT:
            return self._searched(call)
        _refuse(f"the function {function}")

    def _compare(self, op: CompareOp, args: list[Node]) -> Expression:
        left, right = args
        if isinstance(left, Literal) and not isinstance(right, Literal):
            left, right, op = right, left, MIRRORED[op]
        column = self._column_of(left)
        if isinstance(right, Literal):
            return Comparison(column, op, _value(right))
        return ColumnComparison(column, op, self._column_of(right))

    def _searched(self, call: Call) -> Expression:
        """Translate a call that searches a column for a text."""
        if _option(call, "ignore_case"):
            _refuse(f"{call.function} that ignores case")
        column, type_ = self._operand(call.args[0])
        pattern: bytes = _option(call, "pattern", pa.binary())  # of any column: pyarrow has one type of pattern
        type_ = storage_type(type_)
        if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
            return _TEXT[call.function](column, pattern)
        try:
            return _TEXT[call.function](column, pattern.decode())
        except UnicodeDecodeError:
            _refuse(f"{call.function} of a pattern that is not UTF-8")

    def _if_else(self, args: list[Node]) -> Expression:
        """Translate ``if_else(condition, then, otherwise)``; DuckDB 2 writes IN as such, with null for null."""
        condition, then, otherwise = map(self.predicate, args)
        tested = condition.arg if isinstance(condition, Not) else condition
        if not isinstance(tested, IsNull):
            _refuse("if_else with another condition than whether a column is null")
        return Or((And((condition, then)), And((Not(condition), otherwise))))

    def _in(self, call: Call) -> Expression:
        nulls = _option(call, "null_matching_behavior")
        if nulls not in (_MATCH_NULLS, _SKIP_NULLS):
            _refuse("isin with a treatment of nulls that makes the result null")
        values = as_scalars(_option(call, "value_set"))
        if nulls == _SKIP_NULLS:
            values = tuple([value for value in values if value is not None])
        (tested,) = call.args
        column, type_ = self._operand(tested)
        if isinstance(tested, Call) and tested.function == "cast":  # the column has no value that its type cannot hold
            held = storage_type(type_)
            values = tuple([value for value in values if value is None or _holds(held, value)])
        return In(column, values)

    # -- columns ----------------------------------------------------------------------------------

    def _column_of(self, node: Node) -> str:
        return self._operand(node)[0]

    def _operand(self, node: Node) -> tuple[str, pa.DataType]:
        """Return the name and the type of a column, which may be under an exact cast and is compared without it. Raises
        ExpressionError for anything else."""
        if isinstance(node, Call) and node.function == "cast":
            return self._cast(node)
        if isinstance(node, Literal) or (isinstance(node, Call) and node.function != "struct_field"):
            _refuse("calculations: each side of a comparison must be a column or a value, and one a column")
        return self._column(node)

    def _cast(self, call: Call) -> tuple[str, pa.DataType]:
        (argument,) = call.args
        if isinstance(argument, Literal) or (isinstance(argument, Call) and argument.function != "struct_field"):
            _refuse("casts of calculations and values: only a column can be cast")
        name, type_ = self._column(argument)
        if call.options is None:
            raise ExpressionError("a cast has no type", hint=_HINT)
        target = call.options.field("to_type").type
        if not is_exact_cast(type_, target):
            _refuse(f"a cast of {type_} that may change its values, or their order")
        return name, type_

    def _column(self, node: FieldRef | Call) -> tuple[str, pa.DataType]:
        """Return the dotted name and the type of a column or a field of structs."""
        path, type_ = self._found(node)
        dotted = ".".join(path)
        if len(path) > 1 and dotted in self._schema.names:
            raise ambiguous_path(dotted, [(dotted,), path])
        return dotted, type_

    def _found(self, node: Node) -> tuple[tuple[str, ...], pa.DataType]:
        if isinstance(node, FieldRef):
            type_ = self._types.get(node.path)
            if type_ is None:
                type_ = self._types[node.path] = self._type_at(node.path)
            return node.path, type_
        if isinstance(node, Literal) or node.function != "struct_field":
            _refuse("fields of calculations and values: only fields of columns can be compared")
        path, type_ = self._found(node.args[0])
        found = list(_fields_at(_option(node, "field_ref"), type_))
        if len(found) != 1:
            _refuse(f"a path of {len(found)} fields of the column {'.'.join(path)}")
        ((names, type_),) = found
        return (*path, *names), type_

    def _type_at(self, path: tuple[str, ...]) -> pa.DataType:
        if len(self._schema.get_all_field_indices(path[0])) > 1:
            raise AmbiguousColumnError("the file has several columns of this name", column=path[0])
        type_ = type_in(self._schema, path)
        if type_ is not None:
            return type_
        dotted = ".".join(path)
        names = tuple(dotted.split(".")) if len(path) == 1 else path
        if len(path) > 1 or type_in(self._schema, names) is None:
            raise ColumnNotFoundError("the file has no such column", column=dotted)
        quoted = ", ".join(f'"{name}"' for name in names)
        raise ColumnNotFoundError(
            "the file has no top-level column of this name",
            column=dotted,
            hint=f'pyarrow takes no dotted paths: write pc.field({quoted}), or asyncpq.col("{dotted}").',
        )


def _value(literal: Literal) -> Scalar:
    """Return the value of a literal. Of the usual types, this takes a tenth of the time of :func:`as_scalar`."""
    value: Any = literal.value
    return value.as_py() if type(value) in _PLAIN else as_scalar(value)


def _fields_at(dotted: str, type_: pa.DataType) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Yield the fields of a struct that a path of Arrow may mean: ``.name`` or ``[position]`` for each level, where
    dots in names are not marked."""
    if not dotted:
        yield (), type_
    elif isinstance(type_, pa.StructType):
        for at, field in enumerate(type_):
            for step in (f".{field.name}", f"[{at}]"):
                if dotted.startswith(step) and dotted[len(step) : len(step) + 1] in ("", ".", "["):
                    for names, found in _fields_at(dotted[len(step) :], field.type):
                        yield (field.name, *names), found


def _option(call: Call, name: str, type_: pa.DataType | None = None) -> Any:
    """Return an option of a call, cast to ``type_`` if that is given, as a Python value, or a list of values as an
    array. Raises ExpressionError if the call has no such option."""
    at = -1 if call.options is None else call.options.type.get_field_index(name)
    if call.options is None or at < 0:
        raise ExpressionError(f"{call.function} has no option {name}", hint=_HINT)
    option = call.options.field(at)
    value = (option if type_ is None else option.cast(type_))[0]
    return value.values if isinstance(value, (pa.ListScalar, pa.LargeListScalar)) else value.as_py()


def _holds(type_: pa.DataType, value: Scalar) -> bool:
    negative_zero = type(value) is float and value == 0 and math.copysign(1, value) < 0
    if negative_zero and pa.types.is_integer(type_):
        return False  # isin tells it from zero
    return exact_scalar(value, type_) is not None


# -- the tree of an expression --------------------------------------------------------------------

JUNCTIONS: Final = frozenset({"and_kleene", "or_kleene"})
_MESSAGE: Final = 16  # after the file's magic and padding, the message's mark and its length
# Slots of the flatbuffers' tables, in the order of their fields.
_MESSAGE_HEADER: Final = 2
_SCHEMA_METADATA: Final = 2
_KEY: Final = 0
_VALUE: Final = 1


class Call(NamedTuple):
    """A call of a compute function. A junction, AND or OR, has the arguments of the junctions that it joins."""

    function: str
    args: list[Node]
    options: pa.StructArray | None = None  # one row


class FieldRef(NamedTuple):
    """A reference to a column by name, or to a field of structs by the names of its path."""

    path: tuple[str, ...]


class Literal(NamedTuple):
    """A literal: a pyarrow scalar, or a Python value."""

    value: object


Node: TypeAlias = Call | FieldRef | Literal


def read_tree(expression: pc.Expression) -> Node:
    """Return the tree of a pyarrow expression.

    Raises:
        pa.ArrowNotImplementedError: the expression has no pickled form, as one that refers to a column by position.
        ExpressionError: its operations are nested deeper than :data:`MAX_NESTING`.
        IndexError, KeyError, TypeError, ValueError, struct.error: pyarrow pickles expressions in another form.
    """
    _, (pickled,) = expression.__reduce__()
    batch = pa.ipc.open_file(pickled).get_batch(0)
    entries = _entries(pickled.to_pybytes())
    whole = Call("", [])
    calls, depth = [whole], 0
    for key, value in entries:
        node: Node
        match key:
            case b"call":
                checkpoint()
                function, parent = value.decode(), calls[-1]
                if function in JUNCTIONS and function == parent.function:
                    calls.append(parent)  # a chain of thousands of terms is one junction
                    continue
                node = Call(function, [])
                depth += 1
                if depth > MAX_NESTING:
                    raise ExpressionError(
                        f"the pyarrow expression has more than {MAX_NESTING} nested operations",
                        hint="Write isin(...) for many values, and join conditions with | or & alone.",
                    )
                parent.args.append(node)
                calls.append(node)
                continue
            case b"end":
                call = calls.pop()
                depth -= call is not calls[-1]
                continue
            case b"options":
                call = calls[-1]
                calls[-1] = call._replace(options=batch.column(int(value)))
                calls[-2].args[-1] = calls[-1]
                continue
            case b"literal":
                node = Literal(batch.column(int(value))[0])
            case b"field_ref":
                node = FieldRef((value.decode(),))
            case b"nested_field_ref":
                node = FieldRef(tuple([_name(*next(entries)) for _ in range(int(value))]))
            case _:
                raise KeyError(key)
        calls[-1].args.append(node)
    (root,) = whole.args
    if len(calls) != 1:
        raise ValueError("the expression ends inside a call")
    return root


def _name(key: bytes, value: bytes) -> str:
    if key != b"field_ref":
        raise KeyError(key)
    return value.decode()


def _entries(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the metadata of an IPC file's schema, in their order."""
    message = FlatBuffer(file, _MESSAGE)
    schema = message.table(message.root, _MESSAGE_HEADER)
    if schema is None:
        raise ValueError("the Arrow IPC message has no schema")
    yield from message.text_pairs(schema, _SCHEMA_METADATA, _KEY, _VALUE)
