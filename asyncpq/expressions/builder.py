"""Predicates as users write them: comparisons of :func:`col`, and pyarrow's ``filters=`` lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

from asyncpq.errors import ExpressionError
from asyncpq.expressions import tree
from asyncpq.expressions.scalars import as_scalar, as_scalars, described
from asyncpq.expressions.simplify import with_key_sets
from asyncpq.expressions.tokens import tokens
from asyncpq.expressions.tree import Expression, Path, VariantTest, variant_path, variant_type

_OPS: dict[str, tree.CompareOp] = {"=": "==", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ACCEPTED = (
    'Give an expression of asyncpq.col, such as col("id") == 1, a list as in pyarrow\'s filters=, such as '
    '[("id", "==", 1)], a condition in SQL, such as "id = 1", or a pyarrow.compute expression; None for all rows.'
)


#: What pandas, pyarrow, Polars and Spark call methods of a column, without underscores and in lower case.
_MEANT: dict[str, str] = {
    "isin": "is_in(values)",
    "in": "is_in(values)",
    **dict.fromkeys(("notin", "isnotin"), "~col(...).is_in(values)"),
    "startswith": "starts_with(prefix)",
    "endswith": 'like("%suffix")',
    **dict.fromkeys(("ilike", "icontains"), "has_tokens(text), which finds words in any case"),
    "isnan": "is_nan()",
    **dict.fromkeys(("isnull", "isna", "isnone"), "is_null()"),
    **dict.fromkeys(("isnotnull", "notnull", "notna", "isnotna", "isnotnone"), "is_valid()"),
    **dict.fromkeys(("isbetween",), "between(low, high)"),
    **dict.fromkeys(("eq", "equals"), "col(...) == value"),
    **dict.fromkeys(("ne", "neq"), "col(...) != value"),
    **dict.fromkeys(("gt",), "col(...) > value"),
    **dict.fromkeys(("ge", "gte"), "col(...) >= value"),
    **dict.fromkeys(("lt",), "col(...) < value"),
    **dict.fromkeys(("le", "lte"), "col(...) <= value"),
}


def _no_attribute(subject: Column | VariantPart, name: str, what: str, more: str) -> AttributeError:
    """Return the error for an attribute that a column, or a part of a variant, does not have. It names the method that
    another library calls so, or else all methods, and ``more``."""
    meant = _MEANT.get(name.replace("_", "").lower())
    hint = f"write {meant}"
    if meant is None or name.startswith("__"):
        methods = [method for method in dir(type(subject)) if not method.startswith("_")]
        hint = f"its methods: {', '.join(methods)}{more}"
    return AttributeError(f"{what} has no {name}: {hint}", name=name, obj=subject)


class Operand(tree.NamedColumn):
    """A column, or a part of a variant, to be compared in conditions. Comparisons return an :class:`Expression`."""

    __slots__ = ()
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # == makes an expression, so operands cannot be dict keys
    __array_ufunc__ = None  # numpy scalars on the left leave the comparison to us

    def _test(self, expr: Expression) -> Expression:
        """Return ``expr``, a condition on a column of this name, as a condition on the operand."""
        return expr

    def _compare(self, op: tree.CompareOp, other: object) -> Expression:
        if isinstance(other, Column):
            return self._test(tree.ColumnComparison(self.name, op, other.name))
        return self._test(tree.Comparison(self.name, op, as_scalar(other)))

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]  # the point of the builder
        return self._compare("==", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]  # the point of the builder
        return self._compare("!=", other)

    def __lt__(self, other: object) -> Expression:
        return self._compare("<", other)

    def __le__(self, other: object) -> Expression:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Expression:
        return self._compare(">", other)

    def __ge__(self, other: object) -> Expression:
        return self._compare(">=", other)

    def is_in(self, values: Iterable[object]) -> Expression:
        """Return a predicate that is true where the value is one of ``values``, by the rules of pyarrow's ``isin``.

        It is never null. A null value matches if ``values`` contains None. Floats match by their bits: -0.0 does not
        match 0.0, and a NaN matches only a NaN of the same sign and payload.
        """
        return self._test(tree.In(self.name, as_scalars(values)))

    def is_nan(self) -> Expression:
        """Return a predicate that is true where a float is NaN, of any sign and payload; null where it is null.
        No integer is NaN."""
        return self._test(tree.is_nan(self.name))

    def is_valid(self) -> Expression:
        """Return a predicate that is true where the value is not null."""
        return self._test(tree.Not(tree.IsNull(self.name)))

    def between(self, low: object, high: object) -> Expression:
        """Return the predicate ``low <= value <= high``; both ends are included.

        A bound of None is null, not an open end: the predicate is then true for no row. For a single bound, write
        ``col(...) <= high``.
        """
        return (self >= low) & (self <= high)

    def starts_with(self, prefix: str | bytes) -> Expression:
        """Return a predicate that is true where the string or binary value begins with ``prefix``."""
        return self._test(tree.StartsWith(self.name, self._text(prefix, "starts_with")))

    def contains(self, text: str | bytes) -> Expression:
        """Return a predicate that is true where the string or binary value contains ``text``; case matters."""
        return self._test(tree.Contains(self.name, self._text(text, "contains")))

    def like(self, pattern: str | bytes) -> Expression:
        """Return a predicate that is true where the string or binary value matches a pattern of SQL's LIKE.

        ``%`` matches any string, ``_`` any character. A backslash before either makes it an ordinary character. Raises
        ExpressionError for a pattern of more than 100 wildcards.
        """
        return self._test(tree.Like(self.name, self._text(pattern, "like")))

    def _text(self, text: str | bytes, verb: str) -> str | bytes:
        if not isinstance(text, (str, bytes)):
            raise ExpressionError(f"{verb}() expects str or bytes, not {text!r}", column=self.name)
        return text

    def __and__(self, other: object) -> NoReturn:
        raise tree.not_a_predicate(self, combined=True)

    def __rand__(self, other: object) -> NoReturn:
        raise tree.not_a_predicate(self, combined=True)

    def __or__(self, other: object) -> NoReturn:
        raise tree.not_a_predicate(self, combined=True)

    def __ror__(self, other: object) -> NoReturn:
        raise tree.not_a_predicate(self, combined=True)

    def __invert__(self) -> NoReturn:
        raise tree.not_a_predicate(self)

    def __bool__(self) -> NoReturn:
        raise tree.not_a_predicate(self)


class Column(Operand):
    """A column, identified by its name. Comparisons with a column return an :class:`Expression`. See :func:`col`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with the word that is meant by one of another library."""
            raise _no_attribute(self, name, "a column", "; a nested column is col('a.b')")

    def is_null(self, nan_is_null: bool = False) -> Expression:
        """Return a predicate that is true where the column is null, or, with ``nan_is_null``, NaN."""
        return tree.IsNull(self.name, bool(nan_is_null))

    def has_tokens(self, text: str) -> Expression:
        """Return a predicate that is true where the column has every token (case-folded word) of ``text``.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return tree.HasTokens(self.name, tuple(dict.fromkeys(self._tokens(text, "has_tokens"))))

    def has_phrase(self, text: str) -> Expression:
        """Return a predicate that is true where the column has the tokens (case-folded words) of ``text`` in sequence.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return tree.HasPhrase(self.name, tuple(self._tokens(text, "has_phrase")))

    def has(self, value: object) -> Expression:
        """Return a predicate that is true where a list column has an element that equals (``==``) ``value``.

        Raises:
            ExpressionError: ``value`` is null, which equals nothing.
        """
        scalar = as_scalar(value)
        if scalar is None:
            raise ExpressionError(
                "has() was called with null, which equals no element",
                column=self.name,
                hint="Pass a value that is not null.",
            )
        return tree.Has(self.name, scalar)

    def intersects_box(self, xmin: float, ymin: float, xmax: float, ymax: float) -> Expression:
        """Return a predicate that is true where the bounding box of a geometry meets the box; touching edges count.

        The column contains geometries in well-known binary: GeoParquet's, or Parquet's GEOMETRY and GEOGRAPHY. If
        ``xmin`` is above ``xmax``, the box crosses the antimeridian.

        Raises:
            ExpressionError: a corner is not a number, or ``ymin`` is above ``ymax``.
        """
        return box_predicate(self.name, (xmin, ymin, xmax, ymax))

    def variant_get(self, path: str, type: str) -> VariantPart:
        """Return a part of a VARIANT column, cast to a type. It is compared like a column.

        As in Spark's ``try_variant_get``, the part is null where the variant lacks it, or where it cannot be cast.
        Times are in UTC.

        Args:
            path: where the part is, such as ``$.a``, ``$.a[0]`` or ``$['a b']``.
            type: int8 to int64, float, double, bool, string, binary, date, timestamp, timestamp_ntz,
                decimal(p, s), or Spark's name of one of these.

        Raises:
            ExpressionError: ``path`` is not a path, or ``type`` is not the name of a type.
        """
        return VariantPart(self.name, variant_path(path), variant_type(type), path)

    def _tokens(self, text: str, verb: str) -> list[str]:
        if not isinstance(text, str):
            raise ExpressionError(f"{verb}() expects str, not {text!r}", column=self.name)
        asked = tokens(text)
        if not asked:
            raise ExpressionError(
                f"{verb}() expects at least one token, but {text!r} has no token",
                column=self.name,
                hint="Tokens are words of letters and numbers; search for other text with contains().",
            )
        return asked


class VariantPart(Operand):
    """A part of a VARIANT column, made by :meth:`Column.variant_get`. It can be compared as a column can; its name is
    its form in messages."""

    __slots__ = ("_column", "_path", "_type")

    def __init__(self, column: str, path: Path, type_: str, text: str) -> None:
        super().__init__(f"variant_get({column}, {text!r}, {type_!r})")
        self._column = column
        self._path = path
        self._type = type_

    def __repr__(self) -> str:
        return self.name

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with the word that is meant by one of another library."""
            raise _no_attribute(self, name, "a part of a variant", "; a part of it is another variant_get")

    def is_null(self) -> Expression:
        """Return a predicate that is true where the variant lacks this part, or where it cannot be cast to the type."""
        return self._test(tree.IsNull(self.name))

    def _test(self, expr: Expression) -> Expression:
        def of_part(atom: tree.Atom) -> Expression:
            if isinstance(atom, tree.ColumnComparison):
                raise ExpressionError(
                    f"{atom}: a part of a variant cannot be compared with a column",
                    column=self._column,
                    hint="Compare it with a value.",
                )
            return VariantTest(self._column, self._path, self._type, atom)

        return tree.replace_atoms(expr, of_part)


def box_predicate(column: str, corners: Sequence[object]) -> Expression:
    """Return the predicate of :meth:`Column.intersects_box`; ``corners`` are xmin, ymin, xmax and ymax, in
    this order."""
    numbers: list[float] = []
    for corner in corners:
        try:
            number = float(corner)  # type: ignore[arg-type]  # others raise TypeError
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if number != number or isinstance(corner, (str, bytes, bool)):
            raise ExpressionError(f"a corner of a box must be a number, not {corner!r}", column=column)
        numbers.append(number)
    xmin, ymin, xmax, ymax = numbers
    if ymin > ymax:
        raise ExpressionError(
            f"the box has ymin {ymin!r} above ymax {ymax!r}",
            column=column,
            hint="Pass xmin, ymin, xmax, ymax in this order. Only xmin may be above xmax, to cross the antimeridian.",
        )
    return tree.IntersectsBox(column, xmin, ymin, xmax, ymax)


class _Col:
    """Return the column ``name``, for conditions such as ``col("id") == 42``: its comparisons and methods return an
    :class:`asyncpq.Expression` (docs/filter.md). A nested leaf is named by its dotted path, such as
    ``"address.city"``."""

    __slots__ = ()

    def __call__(self, name: str) -> Column:
        """Return the column ``name``; see :data:`asyncpq.col`."""
        return Column(name)

    def __repr__(self) -> str:
        return "asyncpq.col"

    def __reduce__(self) -> str:
        return "col"

    if not TYPE_CHECKING:  # type checkers find this mistake themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with how a column of this name is written, which Polars writes as ``col.id``."""
            raise AttributeError(f'col has no attribute {name}: write col("{name}")', name=name, obj=self)

        def __getitem__(self, name: object) -> NoReturn:
            """Raise TypeError with how a column is written, which PySpark's frames write as ``frame["id"]``."""
            raise TypeError(f"col is a function: write col({name!r})")


col: _Col = _Col()
"""Return the column ``name``, for conditions such as ``col("id") == 42``: its comparisons and methods return an
:class:`asyncpq.Expression` (docs/filter.md). A nested leaf is named by its dotted path, such as ``"address.city"``."""


# -- lists of filters -------------------------------------------------------------------------------


def parse_filters(filters: object) -> Expression:
    """Convert pyarrow's ``filters=`` lists into an expression.

    Args:
        filters: ``[(column, op, value), ...]``, all of which must be true, or a list of such lists, one of which must
            be true. Operators: ``= == != < > <= >= in``, ``not in``. An :class:`Expression` stays as it is.

    Raises:
        ExpressionError: a tuple is not a filter; the message shows a short form of it. Or the expression has more than
            :data:`~asyncpq.expressions.tree.MAX_NESTING` levels.
    """
    if isinstance(filters, Expression):
        return filters if isinstance(filters, tree.Atom) else tree.require_shallow(filters)
    if isinstance(filters, Column):
        raise tree.not_a_predicate(filters)
    if not isinstance(filters, (list, tuple)):
        raise ExpressionError(f"{described(filters)} is not a predicate", hint=_ACCEPTED)
    if not filters:
        raise ExpressionError("[] is not a predicate: a list of filters must have at least one filter", hint=_ACCEPTED)
    if len(filters) == 3 and all(isinstance(part, str) for part in filters[:2]):
        raise ExpressionError(f"{described(filters)} is one filter, not a list", hint="Put it in a list: [(...)].")
    if isinstance(filters[0], (list, tuple)) and filters[0] and isinstance(filters[0][0], str):
        return _conjunction(filters)
    return tree.join(tree.Or, [_conjunction(group) for group in filters])


def parse_where(where: object) -> Expression:
    """Return ``where=`` of a read as an expression: a condition in SQL, or what :func:`parse_filters` takes."""
    if not isinstance(where, str):
        return with_key_sets(parse_filters(where))
    from asyncpq.expressions.sql import parse_sql  # few programs write SQL

    return with_key_sets(parse_sql(where))


def _conjunction(group: object) -> Expression:
    if not isinstance(group, (list, tuple)) or not group:
        raise ExpressionError(f"expected a non-empty list of (column, op, value) tuples, not {described(group)}")
    return tree.join(tree.And, [_filter_tuple(item) for item in group])


def _filter_tuple(item: object) -> Expression:
    if not isinstance(item, (list, tuple)) or len(item) != 3 or not isinstance(item[0], str):
        raise ExpressionError(f"filter {described(item)} is not a (column, op, value) tuple")
    column, op, value = item
    if not isinstance(op, str):
        raise ExpressionError(
            f"filter {described(item)}: the operator must be a string, not {described(op)}", column=column
        )
    try:
        if op in _OPS:
            return tree.Comparison(column, _OPS[op], as_scalar(value))
        if op in ("in", "not in"):
            member = tree.In(column, as_scalars(value))
            return member if op == "in" else tree.Not(member)
    except ExpressionError as error:
        raise ExpressionError(f"filter {described(item)}: {error.message}", column=column) from error
    raise ExpressionError(
        f"filter {described(item)}: unknown operator {op!r}", hint=f"Use {', '.join(_OPS)}, in, not in."
    )
