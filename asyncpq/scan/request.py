"""Requests: the arguments of reads (scan, read, lookup, take, count), checked before any I/O, and the keys
of lookups.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from functools import cache, partial
from typing import Any, TypedDict

import pyarrow as pa

from asyncpq.checkpoints import paused, pieces
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array, take_table
from asyncpq.decoding.filter import Filter, FilterCompiler, compile_filter
from asyncpq.decoding.paths import struct_path
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.errors import AmbiguousColumnError, ExpressionError, InvalidOptionError, QueryError, RowIndexError
from asyncpq.expressions import (
    And,
    Atom,
    Comparison,
    Constant,
    Expression,
    In,
    KeyIn,
    Or,
    atoms,
    has_open_literals,
    parse_where,
    simplify,
    without_contradictions,
)
from asyncpq.expressions.scalars import SCALAR_TYPES, RelativeTime, Scalar, as_scalar, as_scalars, is_collection
from asyncpq.objects.runtime import INLINE_STEPS, Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.records import NamedTuple
from asyncpq.scan.column_resolution import ColumnNames


def column_names(columns: Any, argument: str = "columns") -> list[str | int] | None:
    """Check and return a list of column names and ordinals; None stands for all columns. ``argument`` is its name in
    the error. Raises InvalidOptionError if it is not such a list."""
    if columns is None:
        return None
    if type(columns) is not list:
        if isinstance(columns, Mapping):
            raise InvalidOptionError(
                f"{argument}={columns!r}: must be a list of names",
                option=argument,
                hint="Keys belong to lookup(), or to lookup= of plan() and why().",
            )
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise InvalidOptionError(
                f"{argument}={columns!r}: must be a list of names", option=argument, hint="Write [...] around the name."
            )
    names = list(columns)
    for name in names:
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise InvalidOptionError(
                f"{argument}: {name!r} is neither the name nor the ordinal (int) of a column", option=argument
            )
    return names


def names_alone(names: Any, argument: str) -> tuple[str, ...]:
    """Check and return a list of column names, without ordinals. ``argument`` is its name in the error. Raises
    InvalidOptionError if it is not such a list."""
    checked = column_names(names, argument)
    if checked is None or not all(isinstance(name, str) for name in checked):
        raise InvalidOptionError(f"{argument}={names!r}: must be a list of names", option=argument)
    return tuple(map(str, checked))


class Predicate(TypedDict, total=False):
    """The part of a :class:`ScanRequest`'s arguments that says which rows match."""

    where: Expression
    bound: BoundPredicate
    unparsed: Callable[[], Predicate]
    unbound: pc.Expression
    unresolved: Expression


def predicate(where: object) -> Predicate:
    """Convert ``where``, in any of its forms (expression, filter lists, SQL, pyarrow), to arguments of
    :class:`ScanRequest`; none if it is None. Raises ExpressionError if a short one is not a predicate."""
    if where is None:
        return {}
    return {"unbound": where} if isinstance(where, pc.Expression) else short_or_unparsed(where, _parsed)


def short_or_unparsed(where: Any, convert: Callable[[Any], Predicate]) -> Predicate:
    """Return ``convert(where)``; of a long predicate, ``unparsed``, which calls it when the read begins."""
    if where_steps(where) <= INLINE_STEPS:
        return convert(where)
    return {"unparsed": cache(partial(convert, where))}  # once, for all reads of it: ``where`` may have iterators


def _parsed(where: object) -> Predicate:
    parsed = parse_where(where)
    return {"where": parsed, "unresolved": parsed} if has_open_literals(parsed) else {"where": parsed}


def where_steps(where: object) -> int:
    """Return how long ``where`` takes to be converted to a predicate and compiled, at most: in steps of
    :meth:`asyncpq.objects.runtime.Runtime.off_loop`."""
    if isinstance(where, Expression):
        return predicate_steps(where)
    if isinstance(where, str):
        return len(where)
    if isinstance(where, pc.Expression):
        return _UNKNOWN_STEPS
    return 0 if type(where) is BoundPredicate else _filter_steps(where, 2)


def _filter_steps(filters: object, levels: int) -> int:
    """Return the steps of a filter, or of a list of filters or of groups of them, which has at most ``levels`` levels.
    Of a long one, they are not counted to the end."""
    if not isinstance(filters, (list, tuple)) or not filters:
        return 0
    if isinstance(filters[0], str):  # a filter
        try:
            return len(filters[-1]) // _LITERALS_A_STEP
        except TypeError:  # most values have no length, nor have some that could: numpy's array(5), pyarrow's nulls
            return 0
    steps = _ATOM_STEPS * len(filters)
    if levels:
        steps += sum([_filter_steps(part, levels - 1) for part in filters[: INLINE_STEPS // _ATOM_STEPS]])
    return steps


def access_plan(access: Any) -> AccessPlan | None:
    """Check and return the argument ``access``; None means all rows. Raises InvalidOptionError if it is not an
    :class:`AccessPlan`."""
    if access is not None and not isinstance(access, AccessPlan):
        raise InvalidOptionError(
            f"access={access!r}: must be an AccessPlan",
            option="access",
            hint="Make one, for example with asyncpq.AccessPlan.rows([...]).",
        )
    return access


def row_numbers(rows: Any) -> list[int]:
    """Convert row numbers, in a list or an Arrow or numpy array, to a list of ints. Raises InvalidOptionError if they
    are not integers."""
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise InvalidOptionError(f"rows={rows!r}: must be a list of row numbers", option="rows")
    values = rows.to_pylist() if isinstance(rows, (pa.Array, pa.ChunkedArray)) else list(rows)
    types = _types(values)
    if types <= {int}:
        return values
    if bool in types:
        raise InvalidOptionError("rows must be whole numbers, not True or False")
    try:
        return [operator.index(row) for row in values]
    except TypeError as error:
        raise InvalidOptionError(f"rows must be whole numbers: {error}") from error


def row_places(rows: Any) -> list[tuple[str, int]]:
    """Check and return pairs (url of a file, row number). Raises InvalidOptionError for anything else, RowIndexError
    for negative numbers."""
    wrong = InvalidOptionError(
        "rows must be pairs of a file's url and a row number",
        hint="Write them as [(url, 17)]; files() returns the urls of the dataset's files.",
    )
    try:
        pairs = [(url, row) for url, row in rows]
    except (TypeError, ValueError) as error:
        raise wrong from error
    if not all(isinstance(url, str) for url, _ in pairs):
        raise wrong
    numbers = row_numbers([row for _, row in pairs])
    for (url, _), row in zip(pairs, numbers, strict=True):
        if row < 0:
            raise RowIndexError(f"row number {row} is negative", url=url, hint="Row numbers are counted from 0.")
    return [(url, row) for (url, _), row in zip(pairs, numbers, strict=True)]


def take_steps(rows: Any) -> int:
    """Return how long the arguments of a ``take`` take to be checked, in steps of
    :meth:`asyncpq.objects.runtime.Runtime.off_loop`."""
    return len(rows) // _ROWS_A_STEP if isinstance(rows, Sized) else 0


def rows_at(table: pa.Table, places: Mapping[Any, int], rows: Iterable[Any]) -> pa.Table:
    """Return the rows of a table that ``places`` has for each of ``rows``."""
    return take_table(table, plain_array([places[row] for row in rows], pa.int64()))


_ATOM_STEPS = 5
_LITERALS_A_STEP = 64
_ROWS_A_STEP = 32  # of a take
_UNKNOWN_STEPS = 10_000  # of an expression whose length is not known


class BoundPredicate(NamedTuple):
    """A predicate that is checked, simplified and compiled once, for many reads: ``where`` of a read takes one. Made by
    :meth:`asyncpq.Dataset.bind`.

    Attributes:
        where: the predicate, without branches that are never true.
        simple: ``where``, simplified.
        schema: the columns that ``filter`` is compiled for, or their types by name; None after unpickling.
        filter: ``simple``, compiled; None after unpickling.
    """

    where: Expression
    simple: Expression
    schema: pa.Schema | Mapping[str, pa.DataType] | None = None
    filter: Filter | None = None

    def __reduce__(self) -> tuple[type[BoundPredicate], tuple[Expression, Expression]]:
        """Pickle without the filter, which holds functions."""
        return BoundPredicate, (self.where, self.simple)


def bind(
    where: Expression, schema: pa.Schema | Mapping[str, pa.DataType], compiler: FilterCompiler | None = None
) -> BoundPredicate:
    """Check that a predicate fits the columns of ``schema``; simplify and compile it, with ``compiler`` if there is one
    for them. Raises the errors of :func:`asyncpq.decoding.filter.compile_filter`."""
    compiler = compiler or FilterCompiler(schema)
    compiled = compiler.compile(where)
    if type(where) is Comparison and where.value is not None:  # as of most lookups: nothing can be simplified
        return BoundPredicate(where, where, schema, compiled)
    possible = without_contradictions(where, compiled.engine_atoms)
    simple = simplify(possible)
    if simple is not possible:
        simple = without_contradictions(simple, compiled.engine_atoms)
    if simple != where:
        compiled = compiler.compile(simple)  # the whole one was compiled only to raise its errors
    return BoundPredicate(possible, simple, schema, compiled)


class ScanRequest(NamedTuple):
    """The checked arguments of a read of one file or of a dataset, before names are resolved to columns.

    Attributes:
        keys: names or paths of columns to return after those, whether they are among them or not.
        where: the predicate, or None.
        unparsed: converts the predicate, if it is long (:meth:`parsed`); or None.
        unbound: the predicate in pyarrow's terms, which each version's schema gives a meaning; or None.
        unresolved: ``where`` as it was asked, if it has literals that now or the types of columns decide; else None.
        prune: a sharper predicate to prune by, implied by ``where`` and simplified; or None.
        access: rows of the file that may be read; None for all.
        by_file: of a dataset, rows that may be read by url of the file; other files are not read. None for all.
        exactly: each row that ``by_file`` names must exist.
        limit: rows wanted in file order, or None.
        rows_only: matching rows are counted, no column is returned.
        read_dictionary: names of string and binary columns that come as dictionary arrays.
        view: the columns of a dataset, which all names mean and the rows come in; None for the file's own. It is made
            for one version: no other is read.
        bound: of a dataset, what all files share of the predicate.
    """

    # names of top-level fields, dotted paths inside them, or ordinals of fields; None for all
    columns: ColumnNames | None = None
    keys: Sequence[str] = ()
    where: Expression | None = None
    unparsed: Callable[[], Predicate] | None = None
    unbound: pc.Expression | None = None
    unresolved: Expression | None = None
    prune: Expression | None = None
    access: AccessPlan | None = None
    by_file: Mapping[str, AccessPlan] | None = None
    exactly: bool = False
    limit: int | None = None
    rows_only: bool = False
    read_dictionary: Sequence[str] = ()
    view: SchemaAdapter | None = None
    bound: BoundPredicate | None = None

    async def parsed(self, runtime: Runtime) -> ScanRequest:
        """Return the request with its ``unparsed`` predicate, which must not be None and is converted in a thread."""
        assert self.unparsed is not None
        return self._replace(unparsed=None)._replace(**await runtime.in_thread(self.unparsed))

    @property
    def simple_where(self) -> Expression | None:
        """The predicate ``where``, simplified; None without one."""
        bound, where = self.bound, self.where
        if bound is not None and bound.where is where:
            return bound.simple
        return None if where is None else simplify(where)

    @property
    def pruning(self) -> Expression | None:
        """The predicate to prune by: ``prune``, or else ``where``; None if both are None."""
        return self.where if self.prune is None else self.prune

    @property
    def simple_pruning(self) -> Expression | None:
        """The predicate to prune by (:attr:`pruning`), simplified; None without one."""
        return self.simple_where if self.prune is None else self.prune

    def simplified(self) -> ScanRequest:
        """Return the same request, whose copies need not simplify the predicate again."""
        where, simple = self.where, self.simple_where
        return self if where is None or simple is None else self._replace(bound=BoundPredicate(where, simple))

    @property
    def matches_nothing(self) -> bool:
        """Whether the predicate is never true, whatever the rows are."""
        where = self.simple_where
        return isinstance(where, Constant) and where.value is not True


KEY_POSITION = "key_position"
_FEW_KEYS = 1000  # are checked, and matched with rows, on the event loop
_MAX_PAIRS_PRUNED = 256  # composite keys that prune one by one; more prune column by column


async def lookup_keys(runtime: Runtime, keys: Any) -> LookupKeys:
    """Return ``LookupKeys(keys)``; made in a thread if there are many."""
    is_one = type(keys) is dict and SCALAR_TYPES.issuperset(map(type, keys.values()))  # as in most lookups
    if is_one or not isinstance(keys, Mapping) or not any(_is_long(values) for values in keys.values()):
        return LookupKeys(keys)
    # a collection without order may not change while it is iterated
    kept = {name: list(values) if isinstance(values, Set) else values for name, values in keys.items()}
    return await runtime.in_thread(lambda: LookupKeys(kept))


async def finish_lookup(runtime: Runtime, keys: LookupKeys, table: pa.Table, with_keys: bool) -> pa.Table:
    """Return ``keys.finish(table, with_keys)``; made in a thread if there are many rows or keys."""
    if max(table.num_rows, keys.count) <= _FEW_KEYS:
        return keys.finish(table, with_keys)
    return await runtime.in_thread(lambda: keys.finish(table, with_keys))


def _is_long(values: Any) -> bool:
    return type(values) not in SCALAR_TYPES and isinstance(values, Sized) and len(values) > _FEW_KEYS


class LookupKeys:
    """The keys of one lookup: for each key column one value, or a list of values. The n-th values of all lists are one
    key."""

    def __init__(self, keys: Any) -> None:
        is_mapping = type(keys) is dict or isinstance(keys, Mapping)
        if not is_mapping or not keys:
            raise QueryError(
                "a lookup needs at least one key column"
                if is_mapping
                else f"the keys of a lookup must be a mapping, not {type(keys).__name__}",
                hint='Pass a mapping of column to value or list of values, such as {"id": 42} or {"id": frame["id"]}.',
            )
        self.names: tuple[str, ...] = tuple(keys)  # of the key columns
        lists = {}
        for name, value in keys.items():
            if not isinstance(name, str):
                raise QueryError(
                    f"a key names its column by a text, not by {name!r}",
                    hint='Pass a mapping of column to value or list of values, such as {"id": 42}.',
                )
            values = lists[name] = _values(name, value)
            if RelativeTime in (map(type, values) if len(values) <= _FEW_KEYS else _types(values)):
                raise QueryError(
                    "the keys of a lookup are values, not times relative to now",
                    column=name,
                    hint="Use where= of scan, read or count instead.",
                )
        lengths = set(map(len, lists.values()))
        if len(lengths) > 1:
            raise QueryError(
                "lists of keys pair up by position and must have equal lengths, not "
                + ", ".join(f"{name}: {len(values)}" for name, values in lists.items())
            )
        (count,) = lengths
        self.count: int = count
        self._lists = list(lists.values())
        self.exact: bool = len(lists) == 1 or count <= 1  # ``where`` alone says which rows match
        self.prune: Expression | None = None  # sharper than ``where``, to prune by
        atoms: list[Expression] = []
        for name, values in lists.items():
            atoms.append(Comparison(name, "==", values[0]) if count == 1 else KeyIn(name, values))
        # every matching row satisfies it
        self.where: Expression | And = atoms[0] if len(atoms) == 1 else And(tuple(atoms))
        if not self.exact and count <= _MAX_PAIRS_PRUNED:
            self.prune = simplify(self._any_pair())

    @property
    def predicate(self) -> Expression:
        """The predicate that is true for exactly the rows that have one of the keys."""
        if self.exact:
            return self.where
        return self._any_pair() if self.prune is None else self.prune

    def _any_pair(self) -> Expression:
        return Or(
            tuple(
                _and([_equals(name, value) for name, value in zip(self.names, values, strict=True)])
                for values in zip(*self._lists, strict=True)
            )
        )

    def finish(self, table: pa.Table, with_keys: bool) -> pa.Table:
        """Match the rows of ``table`` with the keys; drop rows that match none, and the key columns. Needed unless
        ``exact`` is true and ``with_keys`` is false.

        ``table`` has the rows that satisfy ``where``: the requested columns, followed by the key columns. With
        ``with_keys``, each row occurs once for each key that it matches, and a column has the position of that key.
        """
        num_columns = table.num_columns - len(self.names)
        if with_keys and KEY_POSITION in table.column_names[:num_columns]:
            raise AmbiguousColumnError(
                "the result has a column for the positions of the keys, and the file has a column of the same name",
                column=KEY_POSITION,
                hint="Leave the file's column out: name the other columns.",
            )
        rows, positions = self._pairs(table)
        table = take_table(table, rows if with_keys else pc.unique(rows)).select(list(range(num_columns)))
        return table.append_column(KEY_POSITION, positions) if with_keys else table

    def _pairs(self, table: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Match rows with keys: return the rows of ``table`` and the positions of their keys, two arrays of equal
        length, sorted by row."""
        from asyncpq.scan.keys import matches

        first = table.num_columns - len(self.names)
        columns = [_values_of(table, first + at, name) for at, name in enumerate(self.names)]
        return matches(self._lists, columns) or self._compared(columns, table.num_rows)

    def _compared(self, columns: Sequence[pa.ChunkedArray], num_rows: int) -> tuple[pa.Array, pa.Array]:
        """Match rows with keys by running the filter for each key, for values that hash tables do not compare."""
        names = [f"key{number}" for number in range(len(columns))]
        arrays = dict(zip(names, columns, strict=True))
        types = {name: column.type for name, column in arrays.items()}
        pairs: list[tuple[int, int]] = []
        for position, values in enumerate(paused(zip(*self._lists, strict=True))):
            expression = _and([_equals(name, value) for name, value in zip(names, values, strict=True)])
            mask = compile_filter(expression, types).mask(arrays, num_rows)
            pairs.extend((row, position) for row in pc.indices_nonzero(mask).to_pylist())
        pairs.sort()
        rows, positions = (plain_array([pair[number] for pair in pairs], pa.int64()) for number in (0, 1))
        return rows, positions


def _values_of(table: pa.Table, position: int, name: str) -> pa.ChunkedArray:
    """Return a column, or the leaf of a struct column that ``name`` is the dotted path of."""
    path = name[len(table.field(position).name) + 1 :]
    column = table.column(position)
    return pc.struct_field(column, struct_path(column.type, path)) if path else column


def _values(name: str, value: Any) -> tuple[Scalar, ...]:
    """Return the keys of one column as literals: the values of a collection, or the single value."""
    if type(value) in SCALAR_TYPES:
        return (value,)
    try:
        value = _from_capsule(value)
        if not is_collection(value):
            return (as_scalar(value),)
        if not isinstance(value, Mapping):
            return as_scalars(value)
    except ExpressionError as error:
        raise error.locate(column=name) from error.__cause__
    raise QueryError(
        "the keys of a column are a value or a list of values, not a mapping",
        column=name,
        hint='Pass its .keys() or .values(); name leaves of structs by dotted path, such as {"address.city": ...}.',
    )


def _from_capsule(value: Any) -> Any:
    """Convert an object that supports only Arrow's PyCapsule protocol, such as a column of another library, to a
    chunked array. Return any other object unchanged.
    """
    if isinstance(value, Iterable) or hasattr(value, "as_py") or len(getattr(value, "shape", ())) > 1:
        return value  # a table is refused where literals are made
    if hasattr(value, "__arrow_c_stream__"):
        return pa.chunked_array(value)
    return pa.array(value) if hasattr(value, "__arrow_c_array__") else value


def _types(values: Sequence[Scalar]) -> set[type]:
    types = set[type]()
    for piece in pieces(values):
        types.update(map(type, piece))
    return types


def _equals(name: str, value: Scalar) -> Expression:
    return Comparison(name, "==", value)


def _and(parts: Sequence[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def predicate_steps(where: Expression | None) -> int:
    """Return how long a predicate takes to be compiled for a file, or searched in its statistics, at most: in steps of
    :meth:`asyncpq.objects.runtime.Runtime.off_loop`. Of a long one, they are not counted to the end."""
    if where is None or isinstance(where, Atom):
        return 0 if where is None else _literal_steps(where)
    steps = 0
    for atom in atoms(where):
        steps += _ATOM_STEPS + _literal_steps(atom)
        if steps > INLINE_STEPS:
            break
    return steps


def _literal_steps(atom: Atom) -> int:
    return len(atom.values) // _LITERALS_A_STEP if isinstance(atom, (In, KeyIn)) else 0
