"""Random questions about one file, asked of asyncpq and answered from pyarrow's full read."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import asyncpq
from asyncpq.expressions import Expression

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNCOMPARABLE = (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError)
_ROW = "row number of the zoo"


@dataclass(frozen=True)
class Predicate:
    """The same predicate in both languages."""

    ours: Expression
    theirs: pc.Expression

    def __str__(self) -> str:
        return str(self.ours)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and the rows of the file that answer it."""

    verb: str
    columns: list[str] | None = None
    where: Predicate | None = None
    keys: dict[str, list[Any]] = field(default_factory=dict)
    limit: int | None = None
    rows: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"columns={self.columns}"]
        parts += [f"where={self.where}"] if self.where is not None else []
        parts += [f"keys={self.keys}"] if self.keys else []
        parts += [f"limit={self.limit}"] if self.limit is not None else []
        parts += [f"rows={self.rows}"] if self.verb == "take" else []
        return f"{self.verb}({', '.join(parts)})"


class FullRead:
    """What pyarrow reads of a whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table, self.unreadable = _readable(path)
        self._comparable = _comparable(self.table)
        self.filters = {
            name: column.type
            for name, column in zip(self._comparable.column_names, self._comparable.columns, strict=True)
            if self._comparable.column_names.count(name) == 1 and name != _ROW
        }
        self.paths = [
            name for name in _leaf_paths(path) if "." in name and name.split(".")[0] in self.table.column_names
        ]

    def values(self, name: str) -> pa.ChunkedArray:
        """A column whose values can be compared."""
        return self._comparable.column(name)

    def rows(self, predicate: pc.Expression) -> list[int]:
        """The numbers of the rows that match."""
        found: list[int] = self._comparable.filter(predicate).column(_ROW).to_pylist()
        return found

    def answer(self, question: Question) -> pa.Table:
        """The rows and columns that answer it."""
        if question.columns == []:
            return pa.table({"rows": question.rows}).select([])
        if question.columns and "." in question.columns[0]:
            source = pq.ParquetFile(self.path).read(question.columns)
        else:
            source = self.table if question.columns is None else self.table.select(question.columns)
        return pa.concat_tables(
            [source.slice(0, 0), *(source.slice(start, length) for start, length in _runs(question.rows))]
        )


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    """Start and length of each run of rows: pyarrow slices all types, but does not take from all."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def _readable(path: Path) -> tuple[pa.Table, list[str]]:
    """The columns that pyarrow can read, and the names of the others."""
    file = pq.ParquetFile(path)
    try:
        return file.read(), []
    except (pa.ArrowException, OSError):
        names = file.schema_arrow.names
        readable = [name for name in names if _reads(path, name)]
        if not readable:
            raise
        return pq.ParquetFile(path).read(readable), [name for name in names if name not in readable]


def _reads(path: Path, name: str) -> bool:
    try:
        file = pq.ParquetFile(path)
        return bool(file.read([name]).num_rows == file.metadata.num_rows)
    except (pa.ArrowException, OSError):
        return False


def _comparable(table: pa.Table) -> pa.Table:
    """Row numbers, the flat columns and leaves of structs; dictionaries and extension types as what they stand for."""
    named: list[tuple[str, pa.ChunkedArray]] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        named += _flat_columns(name, column)
    named.append((_ROW, pa.chunked_array([pa.array(range(table.num_rows), pa.int64())])))
    return pa.table([column for _, column in named], names=[name for name, _ in named])


def _is_valid_text(column: pa.ChunkedArray) -> bool:
    """Whether its strings are UTF-8; ClickHouse writes any bytes as strings, of which no literal can be made."""
    if not pa.types.is_string(column.type):
        return True
    try:
        column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _flat_columns(name: str, column: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.string() if pa.types.is_string_view(column.type) else pa.binary())
    if not pa.types.is_struct(column.type):
        return [] if pa.types.is_nested(column.type) or not _is_valid_text(column) else [(name, column)]
    found = []
    for field_ in column.type:
        found += _flat_columns(f"{name}.{field_.name}", pc.struct_field(column, field_.name))
    return found


def _leaf_paths(path: Path) -> list[str]:
    schema = pq.ParquetFile(path).schema
    return [schema.column(at).path for at in range(len(schema))]


class Asker:
    """Draws questions about a file; the same ones for the same seed."""

    def __init__(self, full: FullRead, seed: str) -> None:
        self._full = full
        self._random = random.Random(seed)

    def sweep(self) -> Iterator[Question]:
        """Counts for each column: of its nulls, of one value, of the least and of the greatest."""
        for name in self._full.filters:
            ours, theirs = asyncpq.col(name), pc.field(name)
            predicates = [Predicate(ours.is_null(), theirs.is_null())]
            for op, value in (
                ("==", self._value(name)),
                ("<=", self._bound(name, "min")),
                (">=", self._bound(name, "max")),
            ):
                if value is not None:
                    compare = OPERATORS[op]
                    predicates.append(Predicate(compare(ours, self._literal(name, value)), compare(theirs, value)))
            for predicate in predicates:
                try:
                    rows = self._full.rows(predicate.theirs)
                except _UNCOMPARABLE:
                    continue  # pyarrow has no such comparison
                yield Question(verb="count", where=predicate, rows=rows)

    def _bound(self, name: str, which: str) -> pa.Scalar | None:
        try:
            bound = pc.min_max(self._full.values(name))[which]
        except _UNCOMPARABLE:
            return None
        return bound if bound.is_valid else None

    def questions(self, count: int) -> Iterator[Question]:
        """So many random questions whose answers pyarrow has."""
        drawn = 0
        for _ in range(count * 20):
            try:
                question = self._question()
            except (*_UNCOMPARABLE, OverflowError, TypeError):
                continue  # pyarrow has no such comparison
            yield question
            drawn += 1
            if drawn == count:
                return

    def _question(self) -> Question:
        total = self._full.table.num_rows
        verb = self._random.choice(
            ["read", "read", "read", "scan", "scan", "take", "lookup", "lookup", "count", "path"]
        )
        if verb == "take":
            rows = [self._random.randrange(total) for _ in range(self._random.randrange(6))] if total else []
            return Question(verb=verb, columns=self._columns(), rows=rows)
        if verb == "lookup" and self._keys():
            return self._lookup()
        if verb == "path" and self._full.paths:
            columns: list[str] | None = [self._random.choice(self._full.paths)]
        else:
            columns = self._columns()
        where = self._predicate(self._random.choice([0, 0, 1, 2])) if self._full.filters and self._often(0.85) else None
        matching = list(range(total)) if where is None else self._full.rows(where.theirs)
        if verb == "count":
            return Question(verb=verb, where=where, rows=matching)
        limit = self._random.choice([0, 1, 7, 60, 300]) if self._often(0.3) else None
        verb = "scan" if verb == "scan" else "read"
        return Question(verb=verb, columns=columns, where=where, limit=limit, rows=matching[:limit])

    def _often(self, share: float) -> bool:
        return self._random.random() < share

    def _columns(self) -> list[str] | None:
        names = self._full.table.column_names
        if len(set(names)) < len(names) or (self._often(0.15) and not self._full.unreadable):
            return None
        return self._random.sample(names, min(len(names), self._random.choice([0, 1, 1, 2, 3, 5])))

    def _keys(self) -> list[str]:
        return [name for name in self._full.filters if name in self._full.table.column_names]

    def _lookup(self) -> Question:
        names = self._random.sample(self._keys(), min(len(self._keys()), self._random.choice([1, 1, 1, 2])))
        keys = [[self._value(name) for name in names] for _ in range(self._random.choice([1, 1, 2, 5]))]
        matches = pc.scalar(False)
        for key in keys:
            both = pc.scalar(True)
            for name, value in zip(names, key, strict=True):
                both = both & (pc.field(name) == value)
            matches = matches | both
        return Question(
            verb="lookup",
            columns=self._columns(),
            keys={name: [self._literal(name, key[at]) for key in keys] for at, name in enumerate(names)},
            rows=self._full.rows(matches),
        )

    def _predicate(self, depth: int) -> Predicate:
        if depth:
            form = self._random.choice(["and", "or", "not"])
            left = self._predicate(depth - 1)
            if form == "not":
                return Predicate(~left.ours, ~left.theirs)
            right = self._predicate(depth - 1)
            if form == "and":
                return Predicate(left.ours & right.ours, left.theirs & right.theirs)
            return Predicate(left.ours | right.ours, left.theirs | right.theirs)
        return self._atom(self._random.choice(list(self._full.filters)))

    def _atom(self, name: str) -> Predicate:
        type_ = self._full.filters[name]
        ours, theirs = asyncpq.col(name), pc.field(name)
        forms = ["compare"] * 4 + ["between", "is_in", "is_null", "is_valid"]
        if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_):
            forms += ["starts_with", "starts_with", "contains", "like"]
        form = self._random.choice(forms)
        if form == "is_null":
            nan = self._often(0.5)
            return Predicate(ours.is_null(nan_is_null=nan), theirs.is_null(nan_is_null=nan))
        if form == "is_valid":
            return Predicate(ours.is_valid(), theirs.is_valid())
        value = self._value(name)
        if form == "starts_with":
            prefix = (value.as_py() or value.as_py()[:0])[: self._random.choice([0, 1, 3, 66])]
            return Predicate(ours.starts_with(prefix), pc.starts_with(theirs, prefix))
        if form == "contains":
            text = (value.as_py() or value.as_py()[:0])[-3:]
            return Predicate(ours.contains(text), pc.match_substring(theirs, text))
        if form == "like" and not pa.types.is_binary(type_):
            pattern = self._random.choice(["%", "_%"]) + value.as_py()[1:4] + self._random.choice(["", "%"])
            return Predicate(ours.like(pattern), pc.match_like(theirs, pattern))
        if form == "between":
            low, high = value, self._value(name)
            return Predicate(
                ours.between(self._literal(name, low), self._literal(name, high)), (theirs >= low) & (theirs <= high)
            )
        if form == "is_in":
            values = [self._value(name) for _ in range(self._random.choice([0, 1, 3, 6]))]
            set_ = (
                pa.array([one.as_py() for one in values], type_)
                if _keeps(values)
                else pa.chunked_array([pa.array([one], type_) for one in values], type_)
            )
            return Predicate(ours.is_in([self._literal(name, one) for one in values]), theirs.isin(set_))
        compare = OPERATORS[self._random.choice(list(OPERATORS))]
        return Predicate(compare(ours, self._literal(name, value)), compare(theirs, value))

    def _value(self, name: str) -> pa.Scalar:
        """A value of the column, or one beside it."""
        column, type_ = self._full.values(name), self._full.filters[name]
        for _ in range(20):
            value = column[self._random.randrange(len(column))] if len(column) else pa.scalar(None, type_)
            if value.is_valid:
                break
        else:
            value = _of_type(self._random.choice([0, 1, "a", b"a", dt.date(2024, 2, 28)]), type_)
        if value.is_valid and self._often(0.35):
            beside = _beside(value, self._random)
            return value if beside is None else _of_type(beside, type_, value)
        return value

    def _literal(self, name: str, value: pa.Scalar) -> Any:
        """The value as asyncpq is given it: a scalar, or a value of Python's."""
        names = self._full.table.column_names
        type_ = self._full.table.schema.field(name).type if name in names else value.type
        if isinstance(type_, pa.UuidType):
            return uuid.UUID(bytes=value.as_py()) if value.is_valid else None
        if pa.types.is_time64(type_) and type_.unit == "ns":
            return value  # Python's time has no nanoseconds
        return value if self._often(0.3) else value.as_py()


def _keeps(values: list[pa.Scalar]) -> bool:
    return not any(pa.types.is_timestamp(value.type) or pa.types.is_time64(value.type) for value in values)


def _of_type(value: Any, type_: pa.DataType, otherwise: pa.Scalar | None = None) -> pa.Scalar:
    try:
        return pa.scalar(value, type_)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.scalar(None, type_) if otherwise is None else otherwise


def _beside(scalar: pa.Scalar, rng: random.Random) -> Any:
    """A value near by, or None."""
    if pa.types.is_temporal(scalar.type) and not pa.types.is_date(scalar.type):
        return None if not pa.types.is_timestamp(scalar.type) else _moment_beside(scalar, rng)
    value = scalar.as_py()
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 100])
    if isinstance(value, float):
        return rng.choice([-value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf), math.nan])
    if isinstance(value, Decimal):
        return value + rng.choice([-1, 1])
    if isinstance(value, str):
        return rng.choice([value[:-1], value + "a", value.upper(), value + "\U0010ffff"])
    if isinstance(value, bytes):
        return rng.choice([value[:-1], value + b"\x00", value + b"\xff", b"\x00" * len(value), b"\xff" * len(value)])
    if isinstance(value, dt.date):
        day = value.toordinal() + rng.choice([-1, 1, 40])
        return dt.date.fromordinal(min(max(day, 1), dt.date.max.toordinal()))
    return None


def _moment_beside(scalar: pa.Scalar, rng: random.Random) -> Any:
    moved = scalar.value + rng.choice([-1, 1, 60_000_000])
    return pa.scalar(min(max(moved, -(1 << 63)), (1 << 63) - 1), pa.int64()).cast(scalar.type)


async def ask(file: asyncpq.File, question: Question) -> pa.Table | int:
    """asyncpq's answer."""
    where = None if question.where is None else question.where.ours
    if question.verb == "count":
        return await file.count(where)
    if question.verb == "take":
        return await file.take(question.rows, question.columns)
    if question.verb == "lookup":
        return await file.lookup(question.keys, question.columns)
    if question.verb == "read":
        return await file.read(question.columns, where, limit=question.limit)
    async with file.scan(question.columns, where, limit=question.limit, batch_size=50) as scan:
        batches = [batch async for batch in scan]
        return pa.Table.from_batches(batches, scan.schema)


def difference(found: pa.Table | int, wanted: pa.Table | int) -> str | None:
    """In what two answers differ, or None; NaN is NaN, -0.0 is not 0.0."""
    if isinstance(found, int) or isinstance(wanted, int):
        return None if found == wanted else f"got {found}, expected {wanted}"
    if not found.schema.equals(wanted.schema):
        return f"got the schema {found.schema.to_string()}, expected {wanted.schema.to_string()}"
    if found.num_rows != wanted.num_rows:
        return f"got {found.num_rows} rows, expected {wanted.num_rows}"
    for at, column in enumerate(found.columns):
        ours, theirs = column.combine_chunks(), wanted.column(at).combine_chunks()
        if (not _has_floats(column.type) and ours.equals(theirs)) or repr(ours.to_pylist()) == repr(theirs.to_pylist()):
            continue
        got, expected = str(ours.to_pylist())[:200], str(theirs.to_pylist())[:200]
        return f"column {found.column_names[at]}: got {got}, expected {expected}"
    return None


def _has_floats(type_: pa.DataType) -> bool:
    return "float" in str(type_) or "double" in str(type_)
