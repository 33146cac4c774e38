"""Conversion of conditions, keys and names from other engines and from users to those of asyncpq.

:func:`translate` walks the tree of a condition of another engine. A callback classifies each node: AND, OR or NOT of
other nodes, or a :class:`ForeignAtom`, a comparison of one column. Nodes that it does not know prune nothing, and are
returned for the engine to apply.

Polars, DuckDB and Spark order floats in the same way, which is not IEEE's: NaN equals itself and exceeds all numbers.
:func:`compared` and :func:`member` make atoms with that meaning. A :data:`CompareOp` is one of the texts ``==``,
``!=``, ``<``, ``<=``, ``>`` and ``>=``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from asyncpq.errors import ColumnNotFoundError, ExpressionError
from asyncpq.expressions import (
    And,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    KeyIn,
    Not,
    Or,
    atoms,
    columns,
    is_nan,
    parse_where,
    replace_atoms,
    tree,
)
from asyncpq.expressions.scalars import RelativeTime, Scalar, as_scalar, as_scalars
from asyncpq.expressions.sql import num_joined
from asyncpq.expressions.tree import hint_at_text
from asyncpq.scan.keys import key_value
from asyncpq.scan.request import LookupKeys

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from asyncpq.typing import Predicate

__all__ = [
    "AllOf",
    "AnyOf",
    "ForeignAtom",
    "CompareOp",
    "ParsedCondition",
    "Negated",
    "Translation",
    "check_names",
    "compared",
    "key_value",
    "literals",
    "lookup_condition",
    "member",
    "num_comparisons",
    "parse_condition",
    "translate",
    "translate_arrow",
]

N = TypeVar("N")

#: The operator of a comparison.
CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]

_INVERSE: Final[Mapping[CompareOp, CompareOp]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


# -- of another engine ----------------------------------------------------------------------------


class AllOf(NamedTuple):
    """The AND of other nodes, as ``understand`` of :func:`translate` returns it; true without terms.

    Attributes:
        terms: the nodes, objects of the other engine; :func:`translate` passes each to ``understand``.
    """

    terms: Sequence[Any]


class AnyOf(NamedTuple):
    """The OR of other nodes, as ``understand`` of :func:`translate` returns it; false without terms.

    Attributes:
        terms: the nodes, as in :class:`AllOf`.
    """

    terms: Sequence[Any]


class Negated(NamedTuple):
    """The NOT of another node, as ``understand`` of :func:`translate` returns it; null where that node is null.

    Attributes:
        term: the node, an object of the other engine.
    """

    term: Any


class ForeignAtom(NamedTuple):
    """A comparison of another engine, given by the rows for which it is true and those for which it is false. It is
    null for all other rows. ``understand`` of :func:`translate` returns one.

    Attributes:
        true: a predicate that is true for every row for which the comparison is true; None: any row may be one.
        false: a predicate that is true for every row for which the comparison is false; None: any row may be one.
        exact: whether these predicates are true for no other rows. If False, the other engine has to filter again.
    """

    true: Expression | None
    false: Expression | None
    exact: bool = True

    @classmethod
    def of(cls, predicate: Expression) -> ForeignAtom:
        """Return the atom of a comparison that gives the same result as ``predicate``, such as ``col("a").is_null()``,
        for every row."""
        return cls(predicate, Not(predicate))


class Translation(NamedTuple, Generic[N]):
    """The result of :func:`translate` and :func:`translate_arrow`.

    Attributes:
        where: ``where`` of a read, true for every row for which the other engine's condition is true; None: all rows.
        residual: the terms, joined by AND, that the other engine has to apply to the rows of the read. Empty if
            ``where`` is true for no other rows.
        reason: why nothing was understood; None if a part was understood, or the reason is unknown.
    """

    where: Expression | None
    residual: tuple[N, ...] = ()
    reason: str | None = None


def translate(condition: N, understand: Callable[[N], AllOf | AnyOf | Negated | ForeignAtom | None]) -> Translation[N]:
    """Translate another engine's condition to a predicate of asyncpq, as far as ``understand`` knows its nodes.

    AND, OR and NOT have SQL's three values. Unknown terms of an AND are left out; an OR or NOT with an unknown term is
    unknown as a whole.

    Args:
        condition: the root of the other engine's tree.
        understand: a function, called once for each node, that returns :class:`AllOf`, :class:`AnyOf` or
            :class:`Negated` of other nodes, a :class:`ForeignAtom`, or None for an unknown node.

    Returns:
        The predicate, and the terms of the outermost AND that the other engine has to apply to the rows. A condition
            that is nested too deeply comes back as a whole in ``residual``.
    """
    kept: list[Expression] = []
    residual: list[N] = []
    try:
        for term, meaning in _flat([condition], AllOf, understand):
            found = _rows(meaning, understand, True)
            if found.rows is not None:
                kept.append(found.rows)
            if not found.exact:
                residual.append(term)
        where = _junction(kept, is_and=True)
        if where is not None:
            tree.require_shallow(where)
    except RecursionError:
        return Translation(None, (condition,), "the condition is nested too deeply")
    except ExpressionError as error:
        return Translation(None, (condition,), error.message)
    return Translation(where, tuple(residual))


class _Found(NamedTuple):
    rows: Expression | None
    exact: bool


def _flat(nodes: Sequence[N], junction: type[AllOf | AnyOf], understand: Callable[[N], Any]) -> list[tuple[N, Any]]:
    """Return nodes with what they are; those that are a ``junction`` by their terms, however deeply they are nested:
    engines write a long chain as one OR inside another."""
    terms: list[tuple[N, Any]] = []
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        meaning = understand(node)
        if isinstance(meaning, junction):
            pending += reversed(meaning.terms)
        else:
            terms.append((node, meaning))
    return terms


def _rows(meaning: Any, understand: Callable[[Any], Any], truth: bool) -> _Found:
    """Return a predicate that is true for the rows where a node has the result ``truth``."""
    if isinstance(meaning, ForeignAtom):
        rows = meaning.true if truth else meaning.false
        return _Found(rows, meaning.exact and rows is not None)
    if isinstance(meaning, Negated):
        return _rows(understand(meaning.term), understand, not truth)
    if isinstance(meaning, (AllOf, AnyOf)):
        terms = _flat(meaning.terms, type(meaning), understand)
        parts = [_rows(each, understand, truth) for _, each in terms]
        is_and = isinstance(meaning, AllOf) is truth
        return _Found(_junction([part.rows for part in parts], is_and=is_and), all(part.exact for part in parts))
    return _Found(None, False)


def _junction(parts: Sequence[Expression | None], *, is_and: bool) -> Expression | None:
    """Join predicates with AND or OR. None is true for every row."""
    known = [part for part in parts if part is not None]
    if is_and:
        return tree.join(And, known) if known else None
    if len(known) < len(parts):
        return None
    return tree.join(Or, known) if known else Constant(False)


def literals(values: object) -> tuple[Scalar, ...]:
    """Convert values of another library to literals of predicates, without rounding; null becomes None.

    Args:
        values: an iterable of Python values and scalars of numpy, pandas or pyarrow; or an array of one of them.

    Raises:
        ExpressionError: a value has a type that predicates do not support.
    """
    return as_scalars(values)


def compared(column: str, op: CompareOp, value: object, *, is_float: bool, value_first: bool = False) -> ForeignAtom:
    """Return the atom of a comparison of a column with a value; NaN equals itself and exceeds all numbers.

    Args:
        column: name, or dotted path of a struct's field.
        op: ``==``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``.
        value: a literal that is not null, of the column's type.
        is_float: whether the column has floats, which may be NaN.
        value_first: whether the value stands before the operator, as in ``5 < x``.
    """
    literal = as_scalar(value)
    op = tree.MIRRORED[op] if value_first else op
    true, false = (_ordered(column, each, literal, is_float=is_float) for each in (op, _INVERSE[op]))
    return ForeignAtom(true, false)


def _ordered(column: str, op: CompareOp, value: Scalar, *, is_float: bool) -> Expression:
    if is_float and value != value:
        nan = is_nan(column)  # null where the column is null, as are the others
        if op in ("==", ">="):
            return nan
        return Not(nan) if op in ("!=", "<") else Or((nan, Not(nan))) if op == "<=" else And((nan, Not(nan)))
    rows = Comparison(column, op, value)
    return Or((rows, is_nan(column))) if is_float and op in (">", ">=") else rows


def member(column: str, values: object, *, is_float: bool, null_is_value: bool = False) -> ForeignAtom:
    """Return the atom of ``column IN (values)``, where NaN equals itself and -0.0 equals 0.0.

    Args:
        column: name, or dotted path of a struct's field.
        values: a collection of literals of the column's type; see :func:`literals`.
        is_float: whether the column has floats, which may be NaN.
        null_is_value: whether null equals null. If False, the result is null where the column is null, and a null in
            ``values`` matches nothing.
    """
    scalars = as_scalars(values)
    among = _among(column, scalars, is_float=is_float)
    if not null_is_value:
        return ForeignAtom.of(among)
    null = IsNull(column)
    if None in scalars:
        return ForeignAtom(among | null, Not(among))
    return ForeignAtom(among, Not(among) | null)


def _among(column: str, values: Sequence[Scalar], *, is_float: bool) -> Expression:
    numbers = KeyIn(column, tuple([value for value in values if value is not None and value == value]))
    return Or((numbers, is_nan(column))) if is_float and any(value != value for value in values) else numbers


def translate_arrow(condition: pc.Expression, schema: pa.Schema) -> Translation[pc.Expression]:
    """Translate a filter that another engine, such as DuckDB, passes as a pyarrow expression. Floats compare as in that
    engine: NaN equals itself and exceeds all numbers.

    Args:
        condition: a condition on columns of ``schema``.
        schema: the columns of the file or dataset.

    Returns:
        ``where`` is true for exactly the rows of the engine's filter. If asyncpq cannot express a part of it, ``where``
            is None, ``residual`` is the whole condition, and ``reason`` says why.
    """
    from asyncpq.decoding.arrow_expressions import from_pyarrow  # it loads pandas
    from asyncpq.decoding.filter import compile_filter

    try:
        found = from_pyarrow(condition, schema)
        compile_filter(found, schema)  # which checks the types
    except (ExpressionError, ColumnNotFoundError) as error:
        return Translation(None, (condition,), error.message)
    return Translation(replace_atoms(found, lambda atom: _meant(atom, schema)))


def _meant(atom: tree.Atom, schema: pa.Schema) -> Expression:
    if not isinstance(atom, (Comparison, In)) or not _is_float(atom.column, schema):
        return atom
    if isinstance(atom, In):
        return _among(atom.column, atom.values, is_float=True)
    return atom if atom.value is None else _ordered(atom.column, atom.op, atom.value, is_float=True)


def _is_float(path: str, schema: pa.Schema) -> bool:
    """Return whether the column or struct field at ``path`` has floats; True if ``schema`` lacks the path."""
    import pyarrow as pa

    from asyncpq.decoding.paths import struct_path, type_in

    fields = pa.struct(list(schema))
    type_ = type_in(fields, struct_path(fields, path))
    return type_ is None or bool(pa.types.is_floating(type_))


# -- of other people ------------------------------------------------------------------------------


class ParsedCondition(NamedTuple):
    """A parsed condition that was not yet checked against the columns of a dataset. Made by :func:`parse_condition`.

    Attributes:
        predicate: the condition, for ``where`` of a read or for :meth:`asyncpq.Dataset.bind`.
        columns: names of the columns that it reads, in order of appearance; dotted paths for fields of structs.
        num_comparisons: number of its comparisons. Planning evaluates each of them for each file, row group and page.
        is_relative: whether it contains :func:`asyncpq.now`, so that its rows depend on the time of the read.
        constants: the parts that are constant: True, False or None (null); empty if all parts are comparisons.
    """

    predicate: Expression
    columns: tuple[str, ...]
    num_comparisons: int
    is_relative: bool
    constants: frozenset[bool | None]

    def explained(self, error: ColumnNotFoundError) -> ColumnNotFoundError:
        """Return ``error``, which a read raised for an unknown column. If the condition compares that name with a
        column, as ``user = "u-1"`` does, the error gets the hint that SQL has text in single quotes."""
        return hint_at_text(error, self.predicate)


def parse_condition(where: Predicate) -> ParsedCondition:
    """Parse a condition of a read: SQL, a filter list or an expression of :func:`asyncpq.col` (docs/filter.md).

    Raises:
        ExpressionError: ``where`` is not a condition, or is a pyarrow expression, which needs a schema: pass it to
            :meth:`asyncpq.Dataset.bind`.
    """
    predicate = parse_where(where)
    found = list(atoms(predicate))
    values = (value for atom in found for value in atom.literals)
    return ParsedCondition(
        predicate,
        columns(predicate),
        len(found),
        any(isinstance(value, RelativeTime) for value in values),
        frozenset(_constants(predicate)),
    )


def _constants(predicate: Expression) -> list[bool | None]:
    if isinstance(predicate, Constant):
        return [predicate.value]
    args = predicate.args if isinstance(predicate, (And, Or)) else ()
    args = (predicate.arg,) if isinstance(predicate, Not) else args
    return [value for arg in args for value in _constants(arg)]


def num_comparisons(text: str) -> int:
    """Return the approximate number of comparisons of the SQL condition ``text``, without parsing it. A service may
    refuse too long a text by it, since parsing that takes 100 ms."""
    return num_joined(text)


def lookup_condition(keys: Mapping[str, Any]) -> Expression:
    """Return the condition of the rows whose key columns equal ``keys``, which are given as to
    :meth:`asyncpq.File.lookup`. For :meth:`asyncpq.Dataset.lookup_scan`.

    Raises:
        QueryError: there are no keys, or lists of different lengths.
    """
    return LookupKeys(keys).predicate


def check_names(schema: pa.Schema, names: Sequence[str]) -> None:
    """Check names of columns, or dotted paths of fields of structs, as a read of a dataset with ``schema`` would.

    Raises:
        ColumnNotFoundError: no column has the name; the hint has the nearest one.
        AmbiguousColumnError: a name occurs twice.
    """
    from asyncpq.datasets.schemas import output_schema  # most doors need none of it

    output_schema(schema, [], names, ())
