"""Parquet files, datasets and tables as LazyFrames of Polars.

::

    frame = asyncpq.polars.scan("s3://bucket/trips/").filter(pl.col("user") == "u7").select("price")
    frame.collect()

Polars says which columns, rows and first rows a query needs; asyncpq reads no more (docs/tools.md). Polars' own filter
runs on every batch, so that asyncpq's only prunes: rows are those of Polars' own readers.

Needs Polars, which the extra ``asyncpq-parquet[polars]`` installs.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import operator
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal, Unpack, cast

import pyarrow as pa

from asyncpq import blocking
from asyncpq.dataset import Dataset
from asyncpq.datasets.model import View
from asyncpq.errors import AsyncpqError, InvalidOptionError, UsageError, install_hint
from asyncpq.expressions import (
    And,
    CompareOp,
    Comparison,
    Constant,
    Contains,
    Expression,
    IsNull,
    KeyIn,
    Not,
    Or,
    StartsWith,
    is_nan,
)
from asyncpq.expressions.scalars import Scalar, as_scalars
from asyncpq.file import File
from asyncpq.opening.keywords import DatasetSessionKeywords, split_keywords
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.scan.arrow_stream import OtherThread
from asyncpq.storage.urls import safe_url

try:
    import polars as pl
    from polars.io.plugins import register_io_source
except ImportError as _error:
    raise UsageError("asyncpq.polars needs Polars", hint=install_hint("Polars", "polars")) from _error

__all__ = ["scan"]

Batches = Callable[[list[str] | None, Expression | None, int | None, int], AbstractContextManager[pa.RecordBatchReader]]
Node = dict[str, Any]

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
_MIRRORED: Final[dict[CompareOp, CompareOp]] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INVERSE: Final[dict[CompareOp, CompareOp]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BETWEEN: Final[dict[str, tuple[CompareOp, CompareOp]]] = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}
_LISTING_AGE_S: Final = 3600.0  # longer than a query reads from its listing
_PRUNED: Final = (pl.String, pl.Binary, pl.Boolean, pl.Date, pl.Datetime, pl.Time, pl.Duration, pl.Decimal)


def scan(
    target: object,
    *,
    index: object = None,
    view: Literal["snapshot", "listed", "table"] | None = None,
    **options: Unpack[DatasetSessionKeywords],
) -> pl.LazyFrame:
    """Return a LazyFrame of the rows of a file, of many files or of a table.

    The target is opened now, for its schema. A url, list or table is opened again for each query, in a session that the
    frames and one-off calls of this process with equal options share (:func:`asyncpq.blocking.open_file`). An open file
    or dataset is read in its own session, which must stay open.

    Args:
        target: as in :meth:`asyncpq.Session.open_dataset`; or an open :class:`asyncpq.blocking.BlockingFile` or
            ``BlockingDataset``; or an open :class:`asyncpq.File` or :class:`asyncpq.Dataset`, in whose event loop a
            query is awaited: ``await frame.collect_async()``.
        index, view: as in :meth:`asyncpq.Session.open_dataset`.
        options: the other arguments of :meth:`asyncpq.Session.open_dataset`, and the arguments of
            :class:`asyncpq.Session`.

    Raises:
        UsageError: an async file or dataset is passed outside of its event loop.
        AsyncpqError: the target cannot be opened.
    """
    if isinstance(target, (blocking.BlockingFile, blocking.BlockingDataset, File, Dataset)):
        if index is not None or view is not None or options:
            raise InvalidOptionError(
                "an open file or dataset takes no options", hint="Pass them where the session and the dataset are made."
            )
        if isinstance(target, (File, Dataset)):
            batches, schema = _in_loop(target), target.schema
        else:
            batches, schema = _in_session(target), target.schema
        shown = target.url
    else:
        opener = _Opener(target, index, view, options)
        dataset = opener.first()
        schema, shown, batches = dataset.schema, dataset.url, opener.batches
    frame = _frame(schema.empty_table())
    return register_io_source(
        _source(batches, frame.schema),
        schema=frame.schema,
        validate_schema=True,
        is_pure=True,
        explain_name="ASYNCPQ",
        explain_detail=safe_url(shown),
    )


# -- where the batches come from ------------------------------------------------------------------


class _Opener:
    """Opens ``target`` for each query, in one session for all queries of the frame."""

    def __init__(
        self,
        target: object,
        index: object,
        view: Literal["snapshot", "listed", "table"] | None,
        options: DatasetSessionKeywords,
    ) -> None:
        self._target = os.fspath(target) if isinstance(target, (str, os.PathLike)) else target
        self._of_session, of_dataset = split_keywords(options)
        self._arguments: dict[str, Any] = {"index": index, "view": view, **of_dataset}
        self._session = blocking.OneOffSession(self._of_session)

    def first(self) -> blocking.BlockingDataset:
        """Open the target for its schema."""
        dataset = self.open()
        if dataset.view is View.LISTED:  # a query reads what is listed as it begins, and does not list again
            self._arguments.setdefault("listing_max_age_s", _LISTING_AGE_S)
        return dataset

    def open(self) -> blocking.BlockingDataset:
        """Open the target for a query."""
        if self._session.closed:  # in a forked process
            self._session = blocking.OneOffSession(self._of_session)
        try:
            return self._session.open_dataset(self._target, **self._arguments)
        except AsyncpqError:
            self._session.retire()
            raise

    def batches(self, *args: Any) -> AbstractContextManager[pa.RecordBatchReader]:
        return _in_session(self.open())(*args)


def _in_session(opened: blocking.BlockingFile | blocking.BlockingDataset) -> Batches:
    def batches(
        columns: list[str] | None, where: Expression | None, limit: int | None, batch_size: int
    ) -> AbstractContextManager[pa.RecordBatchReader]:
        return nullcontext(opened.scan(columns, where, limit=limit, batch_size=batch_size).to_reader())

    return batches


def _in_loop(opened: File | Dataset) -> Batches:
    try:
        loop = OtherThread(asyncio.get_running_loop())
    except RuntimeError as error:
        raise UsageError(
            "asyncpq.polars.scan() got an async file or dataset outside of its event loop",
            hint="Call scan() in the coroutine that uses it, or pass a file or dataset of asyncpq.blocking, or a url.",
        ) from error

    @contextmanager
    def begun(make: Callable[[], Any]) -> Iterator[pa.RecordBatchReader]:
        async def begin() -> tuple[Any, pa.RecordBatchReader]:
            stream = await make().__aenter__()
            return stream, await stream.to_reader()

        stream, reader = loop.call(begin)
        try:
            yield reader
        finally:
            loop.post(stream.close)

    def batches(
        columns: list[str] | None, where: Expression | None, limit: int | None, batch_size: int
    ) -> AbstractContextManager[pa.RecordBatchReader]:
        loop.check("Write `await frame.collect_async()`.")  # now, as Polars' threads pull the batches
        return begun(lambda: opened.scan(columns, where, limit=limit, batch_size=batch_size))

    return batches


def _source(
    batches: Batches, schema: pl.Schema
) -> Callable[[list[str] | None, pl.Expr | None, int | None, int | None], Iterator[pl.DataFrame]]:
    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        # Where Polars passes both, it means the filter of the first rows, not the first rows of the filter.
        where = None if predicate is None or limit is not None else rows_of(predicate, schema)
        return filtered(batches(columns, where, limit, batch_size or DEFAULT_BATCH_SIZE), predicate)

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
    try:
        return _Pruning(schema).rows(json.loads(predicate.meta.serialize(format="json")), True)
    except RecursionError:
        return _rows_of_chain(predicate, schema)
    except (pl.exceptions.PolarsError, ValueError):
        return None


def _rows_of_chain(predicate: pl.Expr, schema: pl.Schema) -> Expression | None:
    """Return what :func:`rows_of` does, for a predicate that is nested too deeply for JSON, which a chain of hundreds
    of terms is."""
    for join in (operator.or_, operator.and_):
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
            return _junction([rows_of(term, schema) for term in terms], is_and=join is operator.and_)
    return None


def _junction(parts: list[Expression | None], *, is_and: bool) -> Expression | None:
    """Join predicates with AND or OR. None is true for every row."""
    known = [part for part in parts if part is not None]
    if is_and:
        return And(tuple(known)) if len(known) > 1 else known[0] if known else None
    return Or(tuple(known)) if len(known) == len(parts) else None


def _terms(node: object, op: str) -> list[object]:
    """Return the terms of a chain of ``op`` (And or Or), which Polars nests."""
    terms: list[object] = []
    pending = [node]
    while pending:
        match pending.pop():
            case {"BinaryExpr": {"left": left, "op": str(found), "right": right}} if found == op:
                pending += [right, left]
            case term:
                terms.append(term)
    return terms


class _Pruning:
    """Translates one predicate of Polars on the columns of ``schema``."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema

    def rows(self, node: object, truth: bool) -> Expression | None:
        """Return a predicate that is true for all rows where ``node``, a part of Polars' predicate, has the result
        ``truth``; it may be true for more rows. None if it would be true for every row."""
        match node:
            case {"BinaryExpr": {"op": "And" | "Or" as op}}:
                parts = [self.rows(term, truth) for term in _terms(node, op)]
                return _junction(parts, is_and=(op == "And") is truth)
            case {"BinaryExpr": {"left": left, "op": str(op), "right": right}} if op in _OPS:
                return self._comparison(left, op, right, truth)
            case {"Function": {"input": [argument], "function": {"Boolean": "Not"}}}:
                return self.rows(argument, not truth)
            case {"Function": {"input": [argument, *others], "function": {"Boolean": function}}}:
                return self._boolean(argument, others, function, truth)
            case {"Function": {"input": [argument, text], "function": {"StringExpr": function}}}:
                return self._text(argument, text, function, truth)
            case {"Literal": {"Scalar": {"Boolean": bool(value)}}}:
                return Constant(value is truth)
        found = self._column(node)
        return Comparison(found[0], "==", truth) if found is not None and found[1] == pl.Boolean else None

    def _comparison(self, left: object, op: str, right: object, truth: bool) -> Expression | None:
        compare = _OPS[op]
        column, literal = self._column(left), right
        if column is None:
            column, literal, compare = self._column(right), left, _MIRRORED[compare]
        values = None if column is None else _values(literal, column[1])
        if column is None or values is None or values == (None,):
            return None
        name, (value,) = column[0], values
        compare = compare if truth else _INVERSE[compare]
        rows = _compared(name, compare, value)
        # eq_missing and ne_missing compare null as a value: null equals null
        return Or((rows, IsNull(name))) if op.endswith("Validity") and compare == "!=" else rows

    def _boolean(self, argument: object, others: list[object], function: object, truth: bool) -> Expression | None:
        column = self._column(argument)
        if column is None:
            return None
        name, type_ = column
        match function, others:
            case ("IsNull" | "IsNotNull", []):
                return IsNull(name) if (function == "IsNull") is truth else Not(IsNull(name))
            case ("IsNan" | "IsNotNan", []) if type_.is_float():
                return is_nan(name) if (function == "IsNan") is truth else Not(is_nan(name))
            case ({"IsIn": {"nulls_equal": bool(nulls_equal)}}, [values]):
                return _member(name, _values(values, pl.List(type_)), nulls_equal, truth)
            case ({"IsBetween": {"closed": str(closed)}}, [low, high]) if closed in _BETWEEN:
                ends = [_values(end, type_) for end in (low, high)]
                compared = [
                    None
                    if values is None or values == (None,)
                    else _compared(name, op if truth else _INVERSE[op], values[0])
                    for values, op in zip(ends, _BETWEEN[closed], strict=True)
                ]
                return _junction(compared, is_and=truth)
        return None

    def _text(self, argument: object, text: object, function: object, truth: bool) -> Expression | None:
        column = self._column(argument)
        values = None if column is None or column[1] != pl.String else _values(text, pl.String())
        if column is None or values is None or not isinstance(values[0], str):
            return None
        rows: Expression
        match function:
            case "StartsWith":
                rows = StartsWith(column[0], values[0])
            case {"Contains": {"literal": True}}:
                rows = Contains(column[0], values[0])
            case _:
                return None
        return rows if truth else Not(rows)

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


def _compared(name: str, op: CompareOp, value: Scalar) -> Expression:
    rows = Comparison(name, op, value)
    # To Polars, NaN is greater than all numbers.
    return Or((rows, is_nan(name))) if op in (">", ">=") and isinstance(value, float) else rows


def _member(name: str, values: tuple[Scalar, ...] | None, nulls_equal: bool, truth: bool) -> Expression | None:
    if not values:
        return None
    rows: list[Expression] = [KeyIn(name, tuple([value for value in values if value is not None and value == value]))]
    if any(value != value for value in values):
        rows.append(is_nan(name))
    if nulls_equal and None in values:
        rows.append(IsNull(name))
    if truth:
        return Or(tuple(rows)) if len(rows) > 1 else rows[0]
    return Or((Not(rows[0]), IsNull(name)))  # also NaN and null


def _values(node: object, type_: pl.DataType) -> tuple[Scalar, ...] | None:
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


def _scalars(values: pl.Series, type_: pl.DataType) -> tuple[Scalar, ...] | None:
    if isinstance(type_, pl.List) and isinstance(values.dtype, pl.List):
        values, type_ = values.explode(empty_as_null=False), cast("pl.DataType", type_.inner)
    decimals = isinstance(type_, pl.Decimal) and isinstance(values.dtype, pl.Decimal)
    if values.dtype != type_ and not decimals:
        return None
    return as_scalars(list(values.to_arrow()))
