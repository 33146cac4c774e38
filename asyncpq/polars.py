"""Parquet files, datasets and tables as LazyFrames of Polars.

::

    frame = asyncpq.polars.scan("s3://bucket/trips/").filter(pl.col("user") == "u7").select("price")
    frame.collect()

Polars passes the columns, condition and row limit of a query down, and asyncpq reads no more (docs/tools.md). Polars
filters every batch itself, so asyncpq only prunes, and the rows are those of Polars' own readers.

Needs Polars, which the extra ``asyncpq-parquet[polars]`` installs.
"""

from __future__ import annotations

import io
import itertools
import json
import operator
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast

import pyarrow as pa

from asyncpq import Expression, col
from asyncpq.engine.foreign_predicates import (
    AllOf,
    AnyOf,
    CompareOp,
    ForeignAtom,
    Negated,
    compared,
    literals,
    member,
    translate,
)
from asyncpq.engine.sources import DatasetSessionKeywords, Source, SourceTarget, source_of
from asyncpq.errors import UsageError, install_hint
from asyncpq.options import DEFAULT_BATCH_SIZE

if TYPE_CHECKING:
    import asyncpq.typing

try:
    import polars as pl
    from polars.io.plugins import register_io_source
except ImportError as _error:
    raise UsageError("asyncpq.polars needs Polars", hint=install_hint("Polars", "polars")) from _error

__all__ = ["scan"]

_OPS: Final[dict[str, CompareOp]] = {
    "Eq": "==",
    "EqValidity": "==",
    "NotEq": "!=",
    "NotEqValidity": "!=",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
}
_BETWEEN: Final[dict[str, tuple[str, str]]] = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}
_PRUNED: Final = (pl.String, pl.Binary, pl.Boolean, pl.Date, pl.Datetime, pl.Time, pl.Duration, pl.Decimal)


def scan(
    target: SourceTarget,
    *,
    index: asyncpq.typing.IndexChoice = None,
    view: Literal["snapshot", "listed", "table"] | None = None,
    **options: Unpack[DatasetSessionKeywords],
) -> pl.LazyFrame:
    """Return a LazyFrame of the rows of a file, of many files or of a table.

    The target is opened now, for its schema. A url, list or table is opened again for each query, in a session that the
    frames and one-off calls of this process with equal options share (:func:`asyncpq.blocking.open_file`). An open file
    or dataset is read in its own session, which must stay open.

    Args:
        target: as in :meth:`asyncpq.Session.open_dataset`; or an open :class:`asyncpq.blocking.File` or
            ``Dataset``; or an open :class:`asyncpq.File` or :class:`asyncpq.Dataset`, in whose event loop a
            query is awaited: ``await frame.collect_async()``.
        index, view: as in :meth:`asyncpq.Session.open_dataset`.
        options: the other arguments of :meth:`asyncpq.Session.open_dataset`, and the arguments of
            :class:`asyncpq.Session`.

    Raises:
        UsageError: an async file or dataset is passed outside of its event loop.
        AsyncpqError: the target cannot be opened.
    """
    source = source_of(
        target,
        index=index,
        view=view,
        caller="asyncpq.polars.scan()",
        awaiting="await frame.collect_async()",
        **options,
    )
    frame = _frame(source.schema.empty_table())
    return register_io_source(
        _frames(source, frame.schema),
        schema=frame.schema,
        validate_schema=True,
        is_pure=True,
        explain_name="ASYNCPQ",
        explain_detail=source.url,
    )


def _frames(
    source: Source, schema: pl.Schema
) -> Callable[[list[str] | None, pl.Expr | None, int | None, int | None], Iterator[pl.DataFrame]]:
    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        # Where Polars passes both, it means the filter of the first rows, not the first rows of the filter.
        where = None if predicate is None or limit is not None else rows_of(predicate, schema)
        reading = source.scan(columns, where, limit=limit, batch_size=batch_size or DEFAULT_BATCH_SIZE)
        return filtered(reading, predicate)

    def filtered(
        reading: AbstractContextManager[pa.RecordBatchReader], predicate: pl.Expr | None
    ) -> Iterator[pl.DataFrame]:
        with reading as reader:
            for batch in reader:
                frame = _frame(batch)
                yield frame if predicate is None else frame.filter(predicate)

    return frames


def _frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    if not rows.num_columns:
        return pl.DataFrame(height=rows.num_rows)
    return cast("pl.DataFrame", pl.from_arrow(rows))


# -- predicates -----------------------------------------------------------------------------------


def rows_of(predicate: pl.Expr, schema: pl.Schema) -> Expression | None:
    """Return a predicate that is true for all rows for which Polars' ``predicate`` is true, perhaps for more; None if
    it would be true for every row.

    The predicate is translated from Polars' JSON form, in which literals have the types of their columns. Unknown
    forms, such as those of later versions of Polars, do not prune: Polars' own filter applies them.
    """
    return translate(predicate, _Reading(schema).node).where


def _chain(predicate: pl.Expr) -> AllOf | AnyOf | None:
    """Return the junction that a predicate is; None if it is none. For one that is nested too deeply for JSON, which a
    chain of hundreds of terms is."""
    for join, junction in ((operator.or_, AnyOf), (operator.and_, AllOf)):
        terms: list[pl.Expr] = []
        pending = [predicate]
        while pending:
            expr = pending.pop()
            inputs = expr.meta.pop()
            for left, right in itertools.permutations(inputs) if len(inputs) == 2 else ():
                if expr.meta.eq(join(left, right)):
                    pending += [right, left]
                    break
            else:
                terms.append(expr)
        if len(terms) > 1:
            return junction(terms)
    return None


class _Reading:
    """Says what the nodes of a predicate of Polars on the columns of ``schema`` are."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema

    def node(self, node: Any) -> AllOf | AnyOf | Negated | ForeignAtom | None:
        """Return what an expression, or a part of its JSON form, is; None for what may mean something else to
        asyncpq."""
        match node:
            case pl.Expr():
                try:
                    return self.node(json.loads(node.meta.serialize(format="json")))
                except RecursionError:
                    return _chain(node)
                except (pl.exceptions.PolarsError, ValueError):
                    return None
            case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
                return AllOf((left, right))
            case {"BinaryExpr": {"left": left, "op": "Or", "right": right}}:
                return AnyOf((left, right))
            case {"BinaryExpr": {"left": left, "op": str(op), "right": right}} if op in _OPS:
                return self._comparison(left, op, right)
            case {"Function": {"input": [argument], "function": {"Boolean": "Not"}}}:
                return Negated(argument)
            case {"Function": {"input": [argument, *others], "function": {"Boolean": function}}}:
                return self._boolean(argument, others, function)
            case {"Function": {"input": [argument, text], "function": {"StringExpr": function}}}:
                return self._text(argument, text, function)
            case {"Literal": {"Scalar": {"Boolean": bool(value)}}}:
                return AllOf(()) if value else AnyOf(())
        found = self._column(node)
        if found is None or found[1] != pl.Boolean:
            return None
        return ForeignAtom(col(found[0]) == True, col(found[0]) == False)  # noqa: E712  # predicates

    def _comparison(self, left: object, op: str, right: object) -> ForeignAtom | None:
        column = self._column(left)
        value_first = column is None
        literal = right
        if column is None:
            column, literal = self._column(right), left
        values = None if column is None else _values(literal, column[1])
        if column is None or values is None or values == (None,):
            return None
        name, type_ = column
        atom = compared(name, _OPS[op], values[0], is_float=type_.is_float(), value_first=value_first)
        # eq_missing and ne_missing compare null as a value: null equals null
        if op == "EqValidity" and atom.false is not None:
            return ForeignAtom(atom.true, atom.false | col(name).is_null())
        if op == "NotEqValidity" and atom.true is not None:
            return ForeignAtom(atom.true | col(name).is_null(), atom.false)
        return atom

    def _boolean(
        self, argument: object, others: list[object], function: object
    ) -> AllOf | Negated | ForeignAtom | None:
        column = self._column(argument)
        if column is None:
            return None
        name, type_ = column
        match function, others:
            case ("IsNull" | "IsNotNull", []):
                null = ForeignAtom.of(col(name).is_null())
                return null if function == "IsNull" else ForeignAtom(null.false, null.true)
            case ("IsNan" | "IsNotNan", []) if type_.is_float():
                nan = ForeignAtom.of(col(name).is_nan())
                return nan if function == "IsNan" else ForeignAtom(nan.false, nan.true)
            case ({"IsIn": {"nulls_equal": bool(nulls_equal)}}, [values]):
                found = _values(values, pl.List(type_))
                return member(name, found, is_float=type_.is_float(), null_is_value=nulls_equal) if found else None
            case ({"IsBetween": {"closed": str(closed)}}, [low, high]) if closed in _BETWEEN:
                ends = zip((low, high), _BETWEEN[closed], strict=True)
                return AllOf([{"BinaryExpr": {"left": argument, "op": op, "right": end}} for end, op in ends])
        return None

    def _text(self, argument: object, text: object, function: object) -> ForeignAtom | None:
        column = self._column(argument)
        values = None if column is None or column[1] != pl.String else _values(text, pl.String())
        if column is None or values is None or not isinstance(values[0], str):
            return None
        match function:
            case "StartsWith":
                return ForeignAtom.of(col(column[0]).starts_with(values[0]))
            case {"Contains": {"literal": True}}:
                return ForeignAtom.of(col(column[0]).contains(values[0]))
        return None

    def _column(self, node: object) -> tuple[str, pl.DataType] | None:
        """Return the name and type of the column, or field of a struct, that ``node`` names; None if asyncpq and Polars
        may compare its values differently."""
        path: list[str] = []
        while True:
            match node:
                case {"Column": str(name)}:
                    path.append(name)
                    break
                case {"Function": {"input": [inner], "function": {"StructExpr": {"FieldByName": str(name)}}}}:
                    path.append(name)
                    node = inner
                case _:
                    return None
        path.reverse()
        if any("." in name for name in path):  # a dotted path means a nested leaf
            return None
        type_: Any = self._schema.get(path[0])
        for name in path[1:]:
            type_ = dict(type_).get(name) if isinstance(type_, pl.Struct) else None
        if type_ is None or not (type_.is_numeric() or type_.base_type() in _PRUNED) or type_ == pl.Float16:
            return None
        return ".".join(path), type_


def _values(node: object, type_: pl.DataType) -> tuple[Any, ...] | None:
    """Return the values of a literal, or list of literals, of type ``type_``; None if ``node`` is anything else."""
    match node:
        case {"Alias": [inner, str()]}:
            return _values(inner, type_)
        case {"Literal": {"Scalar": {"Float32": number}}}:
            exact = type_ == pl.Float32 and isinstance(number, float)
            return (struct.unpack("f", struct.pack("f", number))[0],) if exact else None
        case {"Literal": {"Scalar": {"Float64": number}}}:  # JSON has null for NaN and the infinities
            return (number,) if type_ == pl.Float64 and isinstance(number, float) else None
        case {"Literal": {"Scalar": _}}:
            try:
                literal = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
                values = pl.select(literal).to_series()
            except (pl.exceptions.PolarsError, ValueError):
                return None
            return _scalars(values, type_)
    return None


def _scalars(values: pl.Series, type_: pl.DataType) -> tuple[Any, ...] | None:
    if isinstance(type_, pl.List) and isinstance(values.dtype, pl.List):
        values, type_ = values.explode(empty_as_null=False), cast("pl.DataType", type_.inner)
    decimals = isinstance(type_, pl.Decimal) and isinstance(values.dtype, pl.Decimal)
    if values.dtype != type_ and not decimals:
        return None
    return literals(values.to_arrow())
