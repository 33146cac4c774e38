"""Predicates as a small immutable tree: :func:`col`, comparisons, ``&``, ``|``, ``~``.

A predicate has three possible results for a row: true, false and null. Rows come out where it is true.
Null and NaN follow ``pyarrow.dataset``'s rules, which differ between its forms::

    col("a") == None            null for every row: no rows
    ~(col("a") == 1)            null where a is null: drops them, as does ``!=``
    ~col("a").is_in([1])        true where a is null: keeps them
    col("a").is_in([1, None])   true where a is null
    col("x") == nan             never true;   col("x").is_in([nan]) is true for NaN
    col("x") == 0.0             true for -0.0; col("x").is_in([0.0]) is not

This module knows nothing of files, schemas or pyarrow; whether a literal fits a column is decided where both
are known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeAlias, TypeVar, cast

from asyncpq.errors import ExpressionError
from asyncpq.expressions.scalars import Scalar, as_scalar, as_scalars, literal_key, show, show_many
from asyncpq.expressions.tokens import tokens

CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
T = TypeVar("T")


class Expression:
    """Base of all nodes. Nodes are immutable, hashable, and equal when they ask the same question.

    ``1``, ``1.0`` and ``True`` are different literals, as are ``0.0`` and ``-0.0``; NaN equals NaN.
    """

    __slots__ = ()

    def __and__(self, other: Expression | bool) -> Expression:
        return And((*parts(self, And), *parts(_operand(other, "&"), And)))

    def __or__(self, other: Expression | bool) -> Expression:
        return Or((*parts(self, Or), *parts(_operand(other, "|"), Or)))

    def __rand__(self, other: bool) -> Expression:
        return _operand(other, "&") & self

    def __ror__(self, other: bool) -> Expression:
        return _operand(other, "|") | self

    def __invert__(self) -> Expression:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise ExpressionError(
            f"the truth of {self} is known for each row only",
            hint="Combine predicates with & | ~, each in parentheses; write between() for a < x < b.",
        )

    def _key(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Expression):
    """True, false or null (None) for every row."""

    value: bool | None

    def _key(self) -> tuple[object, ...]:
        return (self.value,)

    def __str__(self) -> str:
        return "null" if self.value is None else str(self.value).lower()


class Atom(Expression):
    """A comparison: a leaf of the tree.

    Attributes:
        column: the column compared; None where there are several.
        operator: names the comparison in ``explain()``.
    """

    __slots__ = ()

    column: str | None
    operator: ClassVar[str]

    @property
    def subject(self) -> str:
        """Column and operator, without the values: those may be thousands, and others in each read."""
        return f"{self.column} {self.operator}"

    @property
    def literals(self) -> tuple[Scalar, ...]:
        """The values that the column is compared with."""
        return ()

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Atom:
        """The same comparison with ``change`` applied to each of :attr:`literals`."""
        return self

    def _key(self) -> tuple[object, ...]:
        return (self.column, *map(literal_key, self.literals))

    def __str__(self) -> str:
        return f"{self.subject} {', '.join(map(show, self.literals))}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Atom):
    """``column op value``; null where either is null."""

    column: str
    op: CompareOp
    value: Scalar

    @property
    def subject(self) -> str:
        return f"{self.column} {self.op}"

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Comparison:
        return Comparison(self.column, self.op, change(self.value))

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.op, literal_key(self.value))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ColumnComparison(Atom):
    """``left op right`` of two columns; null where either is null. Prunes nothing."""

    column: ClassVar[None] = None  # type: ignore[misc]  # a field of all others
    left: str
    op: CompareOp
    right: str

    def _key(self) -> tuple[object, ...]:
        return (self.left, self.op, self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _AnyOf(Atom):
    """A comparison with values, perhaps thousands."""

    column: str
    values: tuple[Scalar, ...]
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False)

    def derived(self, name: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, which is called once for each ``name``: a read needs it for each file."""
        value = self._derived.get(name)
        if value is None:
            value = self._derived[name] = make()
        return cast("T", value)

    @property
    def types(self) -> frozenset[type]:
        """The types of the values."""
        return self.derived(("types",), lambda: frozenset(map(type, self.values)))

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.values

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Self:
        return type(self)(self.column, tuple(map(change, self.values)))

    def __str__(self) -> str:
        return f"{self.subject} {show_many(self.values)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.column, self.values)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class In(_AnyOf):
    """Membership, never null: a null is a member if ``values`` holds None, NaN if it holds NaN; -0.0 is not 0.0."""

    operator: ClassVar[str] = "in"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyIn(_AnyOf):
    """``column == key`` for any of the keys, as an OR of comparisons.

    Null and NaN keys count as absent, 0.0 matches -0.0; null for a null row if there is any key, false without.
    """

    operator: ClassVar[str] = "== any of"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IsNull(Atom):
    """Whether the column is null (or NaN, with ``nan_is_null``); never null itself."""

    operator: ClassVar[str] = "is null"
    column: str
    nan_is_null: bool = False

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.nan_is_null)

    def __str__(self) -> str:
        return f"{self.column} is null or nan" if self.nan_is_null else f"{self.column} is null"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StartsWith(Atom):
    """Whether a string or binary column begins with ``prefix``; null where the column is null."""

    operator: ClassVar[str] = "starts with"
    column: str
    prefix: str | bytes

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.prefix,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Contains(Atom):
    """Whether a string or binary column contains ``text``, case included; null where the column is null."""

    operator: ClassVar[str] = "contains"
    column: str
    text: str | bytes

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.text,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Like(Atom):
    """SQL's LIKE: ``%`` is any string, ``_`` any character, a backslash takes their meaning from them.

    Null where the column is null. Of binary columns, ``_`` is any byte.
    """

    operator: ClassVar[str] = "like"
    column: str
    pattern: str | bytes

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.pattern,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HasTokens(Atom):
    """Whether each of ``tokens`` is a token of a string column (:mod:`asyncpq.expressions.tokens`); null where null."""

    operator: ClassVar[str] = "has tokens"
    column: str
    tokens: tuple[str, ...]

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.tokens

    def __str__(self) -> str:
        return f"{self.subject} {show_many(self.tokens)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HasPhrase(Atom):
    """Whether ``tokens`` are tokens of a string column one after another; null where the column is null."""

    operator: ClassVar[str] = "has phrase"
    column: str
    tokens: tuple[str, ...]

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.tokens

    def __str__(self) -> str:
        return f"{self.subject} {show(' '.join(self.tokens))}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Has(Atom):
    """Whether ``value`` equals (``==``) an element of a list column; null where the list is null."""

    operator: ClassVar[str] = "has"
    column: str
    value: Scalar

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Has:
        return Has(self.column, change(self.value))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class And(Expression):
    """Kleene AND: false if any argument is false, else null if any is null, else true. Empty: true."""

    args: tuple[Expression, ...]

    def _key(self) -> tuple[object, ...]:
        return self.args

    def __str__(self) -> str:
        return " and ".join(f"({arg})" for arg in self.args) or "true"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Or(Expression):
    """Kleene OR: true if any argument is true, else null if any is null, else false. Empty: false."""

    args: tuple[Expression, ...]

    def _key(self) -> tuple[object, ...]:
        return self.args

    def __str__(self) -> str:
        return " or ".join(f"({arg})" for arg in self.args) or "false"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Not(Expression):
    """Kleene NOT: null stays null."""

    arg: Expression

    def _key(self) -> tuple[object, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"not ({self.arg})"


class Column:
    """A column by name; comparing it makes an :class:`Expression`. Made by :func:`col`."""

    __slots__ = ("name",)
    __hash__ = None  # type: ignore[assignment]  # == makes an expression, so columns cannot be dict keys
    __array_ufunc__ = None  # numpy scalars on the left leave the comparison to us

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ExpressionError(f"a column is named by a string, not {name!r}")
        self.name = name

    def _compare(self, op: CompareOp, other: object) -> Expression:
        if isinstance(other, Column):
            return ColumnComparison(self.name, op, other.name)
        return Comparison(self.name, op, as_scalar(other))

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
        return In(self.name, as_scalars(values))

    def is_null(self, nan_is_null: bool = False) -> Expression:
        """True where the column is null, or NaN if ``nan_is_null``."""
        return IsNull(self.name, bool(nan_is_null))

    def is_valid(self) -> Expression:
        """True where the column is not null."""
        return Not(IsNull(self.name))

    def between(self, low: object, high: object) -> Expression:
        """``low <= column <= high``, both ends included.

        A bound of None is null, not an open end: it matches no row. Write ``col(...) <= high`` for one bound.
        """
        return (self >= low) & (self <= high)

    def starts_with(self, prefix: str | bytes) -> Expression:
        """True where a string or binary column begins with ``prefix``."""
        return StartsWith(self.name, self._text(prefix, "starts_with"))

    def contains(self, text: str | bytes) -> Expression:
        """True where a string or binary column has ``text`` in it, case and all."""
        return Contains(self.name, self._text(text, "contains"))

    def like(self, pattern: str | bytes) -> Expression:
        """True where a string or binary column matches an SQL pattern.

        ``%`` is any string, ``_`` any character; a backslash before one of them makes it stand for itself.
        """
        return Like(self.name, self._text(pattern, "like"))

    def has_tokens(self, text: str) -> Expression:
        """True where every token (word, case folded) of ``text`` is one of the column's, in whatever order.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return HasTokens(self.name, tuple(dict.fromkeys(self._tokens(text, "has_tokens"))))

    def has_phrase(self, text: str) -> Expression:
        """True where the tokens (words, case folded) of ``text`` are in the column one after another.

        Raises:
            ExpressionError: ``text`` has no token.
        """
        return HasPhrase(self.name, tuple(self._tokens(text, "has_phrase")))

    def has(self, value: object) -> Expression:
        """True where ``value`` equals (``==``) an element of a list column.

        Raises:
            ExpressionError: ``value`` is null, which equals nothing.
        """
        scalar = as_scalar(value)
        if scalar is None:
            raise ExpressionError("has takes a value: null equals no element", column=self.name)
        return Has(self.name, scalar)

    def _text(self, text: str | bytes, verb: str) -> str | bytes:
        if not isinstance(text, (str, bytes)):
            raise ExpressionError(f"{verb} takes str or bytes, not {text!r}", column=self.name)
        return text

    def _tokens(self, text: str, verb: str) -> list[str]:
        if not isinstance(text, str):
            raise ExpressionError(f"{verb} takes str, not {text!r}", column=self.name)
        found = tokens(text)
        if not found:
            raise ExpressionError(
                f"{verb}: {text!r} has no token",
                column=self.name,
                hint="Tokens are words of letters and numbers; ask for other text with contains().",
            )
        return found

    def _no_logic(self, other: object = None) -> NoReturn:
        raise bare_column(self)

    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _no_logic

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> Column:
    """The column ``name``; nested leaves by dotted path, such as ``"address.city"``."""
    return Column(name)


# -- building and looking at trees ----------------------------------------------------------------

_Node = TypeVar("_Node", bound="And | Or")


def parts(expr: Expression, node: type[_Node]) -> tuple[Expression, ...]:
    """The arguments of ``expr`` if it is a ``node``, else ``expr`` alone."""
    return expr.args if isinstance(expr, node) else (expr,)


def join(node: type[_Node], args: list[Expression]) -> Expression:
    """``args`` as one predicate."""
    return args[0] if len(args) == 1 else node(tuple(args))


def _operand(value: object, symbol: str) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool):
        return Constant(value)
    if isinstance(value, Column):
        raise bare_column(value)
    raise ExpressionError(
        f"{symbol} joins predicates, not {value!r}",
        hint="Put each comparison in parentheses: (col('a') == 1) & (col('b') < 2).",
    )


def bare_column(column: Column) -> ExpressionError:
    """What is wrong with a column where a predicate belongs."""
    return ExpressionError(
        f"{column!r} is a column, not a predicate",
        column=column.name,
        hint=f"Compare it, such as {column!r} == 1, or {column!r} == True for a column of booleans.",
    )


def atoms(expr: Expression) -> Iterator[Atom]:
    """The comparisons that ``expr`` is made of, in order of appearance."""
    if isinstance(expr, (And, Or)):
        for arg in expr.args:
            yield from atoms(arg)
    elif isinstance(expr, Not):
        yield from atoms(expr.arg)
    elif not isinstance(expr, Constant):
        yield expr  # type: ignore[misc]  # all other nodes are atoms


def columns(expr: Expression) -> tuple[str, ...]:
    """The names of the columns that ``expr`` reads, in order of appearance."""
    names: dict[str, None] = {}
    for atom in atoms(expr):
        if atom.column is not None:
            names[atom.column] = None
        elif isinstance(atom, ColumnComparison):
            names[atom.left] = names[atom.right] = None
    return tuple(names)


def replace_atoms(expr: Expression, replace: Callable[[Atom], Expression]) -> Expression:
    """``expr`` with ``replace`` applied to its atoms; ``expr`` itself where all of them stay."""
    if isinstance(expr, (And, Or)):
        args = tuple([replace_atoms(arg, replace) for arg in expr.args])
        return expr if all(map(operator.is_, args, expr.args)) else type(expr)(args)
    if isinstance(expr, Not):
        arg = replace_atoms(expr.arg, replace)
        return expr if arg is expr.arg else Not(arg)
    return expr if isinstance(expr, Constant) else replace(expr)  # type: ignore[arg-type]  # all others are atoms
