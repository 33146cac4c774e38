"""Predicates as users write them: comparisons of :func:`col`, and pyarrow's ``filters=`` lists."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import NoReturn

from asyncpq.errors import ExpressionError
from asyncpq.expressions import tree
from asyncpq.expressions.scalars import as_scalar, as_scalars
from asyncpq.expressions.tokens import tokens
from asyncpq.expressions.tree import Expression

_OPS: dict[str, tree.CompareOp] = {"=": "==", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ACCEPTED = (
    'Give an expression of asyncpq.col, such as col("id") == 1, a list as in pyarrow\'s filters=, such as '
    '[("id", "==", 1)], or a pyarrow.compute expression; None for all rows.'
)


class Column(tree.NamedColumn):
    """A column by name; comparing it makes an :class:`Expression`. Made by :func:`col`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == makes an expression, so columns cannot be dict keys
    __array_ufunc__ = None  # numpy scalars on the left leave the comparison to us

    def _compare(self, op: tree.CompareOp, other: object) -> Expression:
        if isinstance(other, Column):
            return tree.ColumnComparison(self.name, op, other.name)
        return tree.Comparison(self.name, op, as_scalar(other))

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
        """Membership in ``values`` (pyarrow's ``isin`` rules, see :class:`In`)."""
        return tree.In(self.name, as_scalars(values))

    def is_null(self, nan_is_null: bool = False) -> Expression:
        """True where the column is null, or NaN if ``nan_is_null``."""
        return tree.IsNull(self.name, bool(nan_is_null))

    def is_valid(self) -> Expression:
        """True where the column is not null."""
        return tree.Not(tree.IsNull(self.name))

    def between(self, low: object, high: object) -> Expression:
        """``low <= column <= high``, both ends included.

        A bound of None is null, not an open end: it matches no row. Write ``col(...) <= high`` for one bound.
        """
        return (self >= low) & (self <= high)

    def starts_with(self, prefix: str | bytes) -> Expression:
        """True where a string or binary column begins with ``prefix``."""
        return tree.StartsWith(self.name, self._text(prefix, "starts_with"))

    def contains(self, text: str | bytes) -> Expression:
        """True where a string or binary column contains ``text``, case included."""
        return tree.Contains(self.name, self._text(text, "contains"))

    def like(self, pattern: str | bytes) -> Expression:
        """True where a string or binary column matches an SQL pattern.

        ``%`` is any string, ``_`` any character; a backslash before one of them makes it stand for itself.
        """
        return tree.Like(self.name, self._text(pattern, "like"))

    def has_tokens(self, text: str) -> Expression:
        """True where the column has every token (word, case folded) of ``text``, in any order.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return tree.HasTokens(self.name, tuple(dict.fromkeys(self._tokens(text, "has_tokens"))))

    def has_phrase(self, text: str) -> Expression:
        """True where the column has the tokens (words, case folded) of ``text`` one after another.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return tree.HasPhrase(self.name, tuple(self._tokens(text, "has_phrase")))

    def has(self, value: object) -> Expression:
        """True where ``value`` equals (``==``) an element of a list column.

        Raises:
            ExpressionError: ``value`` is null, which equals nothing.
        """
        scalar = as_scalar(value)
        if scalar is None:
            raise ExpressionError("has takes a value: null equals no element", column=self.name)
        return tree.Has(self.name, scalar)

    def _text(self, text: str | bytes, verb: str) -> str | bytes:
        if not isinstance(text, (str, bytes)):
            raise ExpressionError(f"{verb} takes str or bytes, not {text!r}", column=self.name)
        return text

    def _tokens(self, text: str, verb: str) -> list[str]:
        if not isinstance(text, str):
            raise ExpressionError(f"{verb} takes str, not {text!r}", column=self.name)
        asked = tokens(text)
        if not asked:
            raise ExpressionError(
                f"{verb}: {text!r} has no token",
                column=self.name,
                hint="Tokens are words of letters and numbers; ask for other text with contains().",
            )
        return asked

    def _no_logic(self, other: object = None) -> NoReturn:
        raise tree.not_a_predicate(self)

    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _no_logic


def col(name: str) -> Column:
    """The column ``name``; nested leaves by dotted path, such as ``"address.city"``."""
    return Column(name)


# -- lists of filters -------------------------------------------------------------------------------


def parse_filters(filters: object) -> Expression:
    """Convert pyarrow's ``filters=`` lists into an expression.

    Args:
        filters: ``[(column, op, value), ...]``, all of which must hold, or a list of such lists, of which one
            must. Ops: ``= == != < > <= >= in``, ``not in``. An :class:`Expression` is returned as it is.

    Raises:
        ExpressionError: a tuple is not a filter; the message names it.
    """
    if isinstance(filters, Expression):
        return filters
    if isinstance(filters, Column):
        raise tree.not_a_predicate(filters)
    if not isinstance(filters, (list, tuple)):
        raise ExpressionError(f"{reprlib.repr(filters)} is not a predicate", hint=_ACCEPTED)
    if not filters:
        raise ExpressionError("[] is not a predicate: a list of filters holds at least one", hint=_ACCEPTED)
    if len(filters) == 3 and all(isinstance(part, str) for part in filters[:2]):
        raise ExpressionError(f"{reprlib.repr(filters)} is one filter, not a list", hint="Put it in a list: [(...)].")
    if isinstance(filters[0], (list, tuple)) and filters[0] and isinstance(filters[0][0], str):
        return _conjunction(filters)
    return tree.join(tree.Or, [_conjunction(group) for group in filters])


def _conjunction(group: object) -> Expression:
    if not isinstance(group, (list, tuple)) or not group:
        raise ExpressionError(f"expected a non-empty list of (column, op, value) tuples, not {group!r}")
    return tree.join(tree.And, [_filter_tuple(item) for item in group])


def _filter_tuple(item: object) -> Expression:
    if not isinstance(item, (list, tuple)) or len(item) != 3 or not isinstance(item[0], str):
        raise ExpressionError(f"filter {item!r} is not a (column, op, value) tuple")
    column, op, value = item
    if not isinstance(op, str):
        raise ExpressionError(f"filter {item!r}: {op!r} is no operator", column=column)
    try:
        if op in _OPS:
            return tree.Comparison(column, _OPS[op], as_scalar(value))
        if op in ("in", "not in"):
            member = tree.In(column, as_scalars(value))
            return member if op == "in" else tree.Not(member)
    except ExpressionError as error:
        raise ExpressionError(f"filter {item!r}: {error.message}", column=column) from error
    raise ExpressionError(f"filter {item!r}: unknown operator {op!r}", hint=f"Known: {', '.join(_OPS)}, in, not in.")
