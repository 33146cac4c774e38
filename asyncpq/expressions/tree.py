"""Predicates as a small immutable tree: comparisons, ``&``, ``|``, ``~``.

A predicate is true, false or null for a row; rows come out where it is true. Null and NaN follow
``pyarrow.dataset``'s rules, which differ between its forms::

    col("a") == None            null for every row: no rows
    ~(col("a") == 1)            null where a is null: drops them, as does ``!=``
    ~col("a").is_in([1])        true where a is null: keeps them
    col("a").is_in([1, None])   true where a is null
    col("x") == nan             never true;   col("x").is_in([nan]) is true for a NaN of the same bits
    col("x") == 0.0             true for -0.0; col("x").is_in([0.0]) is not

The tree knows no types: the compiled filter checks that a literal fits its column.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, TypeAlias, TypeVar, cast

from asyncpq.checkpoints import paused, pieces
from asyncpq.errors import ColumnNotFoundError, ExpressionError
from asyncpq.expressions.scalars import Scalar, literal_key, show, show_many
from asyncpq.records import dataclass

CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
#: For each operator that with both sides exchanged.
MIRRORED: Final[Mapping[CompareOp, CompareOp]] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: For each operator Python's function.
OPERATORS: Final[Mapping[CompareOp, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
T = TypeVar("T")

# Plain characters and escaped wildcards. A backslash before another character ends them: pyarrow takes it for a
# character in some patterns, and passes over it in others.
_LIKE_PREFIX: Final = re.compile(rb"(?:[^%_\\]|\\[%_])*", re.DOTALL)
_LIKE_PIECE: Final = re.compile(rb"((?:[^%_\\]|\\[%_])+)|[%_]", re.DOTALL)
_LIKE_ESCAPED: Final = re.compile(rb"\\([%_])")
_LIKE_PLAIN_WILDCARDS: Final = re.compile(rb"%+|_")
_LIKE_WILDCARDS: Final = re.compile(rb"\\[%_]|(%+|_)", re.DOTALL)

MAX_NESTING: Final = 100
"""The most levels of a predicate: ANDs, ORs and NOTs inside one another. The number of their arguments has no limit.
Predicates are followed by recursion, with up to five calls a level, of which Python allows 1,000."""

MAX_WILDCARDS: Final = 100
"""The most wildcards of a pattern of LIKE; several ``%`` in a row count once. Beyond that, the time to match a text is
no longer that of reading it: 300 take a hundred times as long."""


class Expression:
    """A predicate: the base class of all its nodes. Nodes are immutable and hashable.

    Comparisons of :func:`asyncpq.col` make them, as ``col("id") == 42``; ``&``, ``|`` and ``~`` join and negate them.

    Equal nodes have the same form and literals. The literals ``1``, ``1.0`` and ``True`` differ, as do ``0.0`` and
    ``-0.0``; a NaN equals those of the same bits.
    """

    __slots__ = ()

    def __and__(self, other: Expression | bool) -> Expression:
        return _joined(And, self, _operand(other, "&"))

    def __or__(self, other: Expression | bool) -> Expression:
        return _joined(Or, self, _operand(other, "|"))

    def __rand__(self, other: bool) -> Expression:
        return _operand(other, "&") & self

    def __ror__(self, other: bool) -> Expression:
        return _operand(other, "|") | self

    def __invert__(self) -> Expression:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise ExpressionError(
            f"{self} has a result for each row, so it has no single truth value",
            hint="Combine predicates with & | ~, each in parentheses; write between() for a < x < b, is_in() for in.",
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
    """A predicate that is true, false or null (None) for every row."""

    value: bool | None

    def _key(self) -> tuple[object, ...]:
        return (self.value,)

    def __str__(self) -> str:
        return "null" if self.value is None else str(self.value).lower()


class Atom(Expression):
    """A comparison: a leaf of the tree.

    Attributes:
        column: the column compared; None where there are several.
    """

    __slots__ = ()

    column: str | None
    operator: ClassVar[str]  # names the comparison in ``explain()``

    @property
    def subject(self) -> str:
        """The column and the operator as text, for messages. Values are left out: there may be thousands."""
        return f"{self.column} {self.operator}"

    @property
    def literals(self) -> tuple[Scalar, ...]:
        """The values that the column is compared with."""
        return ()

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Atom:
        """Return the same comparison with ``change`` applied to each of :attr:`literals`."""
        return self

    def _key(self) -> tuple[object, ...]:
        return (self.column, *map(literal_key, self.literals))

    def __str__(self) -> str:
        return f"{self.subject} {', '.join(map(show, self.literals))}"


class DerivedTest(Atom):
    """A comparison with what is made of a column, such as a part or a function of it: ``test`` compares that."""

    __slots__ = ()

    column: str
    test: Atom  # of a column that is named as what is compared is shown

    @property
    def subject(self) -> str:
        return self.test.subject

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.test.literals

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> Self:
        copy: Any = self
        return cast("Self", replace(copy, test=self.test.with_literals(change)))

    def __str__(self) -> str:
        return str(self.test)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Atom):
    """The comparison ``column op value``; null if the column or the value is null."""

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
    """The comparison ``left op right`` of two columns; null if either is null. Statistics cannot prune with it."""

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
    """A comparison of a column with a list of values, perhaps thousands."""

    column: str
    values: tuple[Scalar, ...]
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False)

    def derived(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the result of ``make()``, which is called once for each ``name`` and then remembered."""
        value = self._derived.get(name)
        if value is None:
            value = self._derived[name] = make()
        return cast("T", value)

    @property
    def types(self) -> frozenset[type]:
        """The Python types of the values."""
        return self.derived(
            ("types",), lambda: frozenset().union(*[frozenset(map(type, piece)) for piece in pieces(self.values)])
        )

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
    """Whether the column has one of ``values``; never null.

    A null column value matches if ``values`` contains None. Floats match by their bits: -0.0 does not match 0.0, and a
    NaN matches only a NaN of the same sign and payload (:func:`is_nan` finds every NaN).
    """

    operator: ClassVar[str] = "in"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyIn(_AnyOf):
    """Whether ``column == value`` for any of ``values``, like an OR of comparisons.

    Null and NaN among the values are ignored; 0.0 matches -0.0. Where the column is null, the result is null, or false
    if no other values are left.
    """

    operator: ClassVar[str] = "== any of"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IsNull(Atom):
    """Whether the column is null or, if ``nan_is_null``, NaN; the result is never null."""

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
    """Whether a string or binary column contains ``text``; case matters. Null where the column is null."""

    operator: ClassVar[str] = "contains"
    column: str
    text: str | bytes

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.text,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Like(Atom):
    """Whether a string or binary column matches a pattern of SQL's LIKE.

    ``%`` matches any string, ``_`` any character. A backslash before either makes it an ordinary character. Null where
    the column is null. In binary columns ``_`` matches any byte.

    Raises:
        ExpressionError: the pattern has more than :data:`MAX_WILDCARDS` wildcards.
    """

    operator: ClassVar[str] = "like"
    column: str
    pattern: str | bytes

    def __post_init__(self) -> None:
        if (count := self.num_wildcards) > MAX_WILDCARDS:
            raise ExpressionError(
                f"a pattern of LIKE has {count} wildcards, but at most {MAX_WILDCARDS} are allowed",
                column=self.column,
                hint="Ask for the texts that matter with several conditions.",
            )

    @property
    def num_wildcards(self) -> int:
        """The number of wildcards in the pattern; several ``%`` in a row count once."""
        raw = self._raw()
        if b"\\" not in raw:
            return len(_LIKE_PLAIN_WILDCARDS.findall(raw))
        return sum(1 for match in _LIKE_WILDCARDS.finditer(raw) if match[1])

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.pattern,)

    @property
    def prefix(self) -> str | bytes:
        """The text before the first wildcard: every match begins with it."""
        prefix = _LIKE_PREFIX.match(self._raw())
        assert prefix is not None, "it may be empty"
        return self._unescaped(prefix[0])

    @property
    def texts(self) -> tuple[str | bytes, ...]:
        """The texts between the wildcards: every match contains them."""
        raw = self._raw()
        if b"\\" not in raw:
            texts = filter(None, _LIKE_PLAIN_WILDCARDS.split(raw))
            if isinstance(self.pattern, str):
                return tuple([text.decode("utf-8", "surrogatepass") for text in texts])
            return tuple(texts)
        found, end = [], 0
        while (piece := _LIKE_PIECE.match(raw, end)) is not None:
            if piece[1]:
                found.append(self._unescaped(piece[1]))
            end = piece.end()
        return tuple(found)

    def _raw(self) -> bytes:
        # Only ASCII counts here, so bytes that are no characters stay as they are.
        pattern = self.pattern
        return pattern.encode("utf-8", "surrogatepass") if isinstance(pattern, str) else pattern

    def _unescaped(self, raw: bytes) -> str | bytes:
        plain = _LIKE_ESCAPED.sub(rb"\1", raw)
        return plain.decode("utf-8", "surrogatepass") if isinstance(self.pattern, str) else plain


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Words(Atom):
    column: str
    tokens: tuple[str, ...]

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.tokens


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HasTokens(_Words):
    """Whether a string column has each of ``tokens``, in any order; null where the column is null.

    :mod:`asyncpq.expressions.tokens` defines how text is split into tokens.
    """

    operator: ClassVar[str] = "has tokens"

    def __str__(self) -> str:
        return f"{self.subject} {show_many(self.tokens)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HasPhrase(_Words):
    """Whether a string column has ``tokens`` one directly after another; null where the column is null."""

    operator: ClassVar[str] = "has phrase"

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
class IntersectsBox(Atom):
    """Whether the bounding box of a geometry meets the given box; touching edges count. False for a geometry without
    coordinates.

    Null where the geometry is null. If ``xmin`` is above ``xmax``, the given box crosses the antimeridian.
    """

    operator: ClassVar[str] = "intersects box"
    column: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float

    def meets(self, xmin: float, ymin: float, xmax: float, ymax: float) -> bool:
        """Return whether this box meets the given one, which does not cross the antimeridian."""
        if ymin > self.ymax or ymax < self.ymin:
            return False
        join = any if self.xmin > self.xmax else all
        return join((xmax >= self.xmin, xmin <= self.xmax))

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return (self.xmin, self.ymin, self.xmax, self.ymax)


class _Chain(Expression):
    """The arguments of a junction that grew by ``|`` or ``&``. A loop of 10,000 steps would copy 50 million arguments
    if each step had its own, so the steps share one list, which each appends to, and a junction makes the tuple of its
    own arguments when it is first looked at."""

    # Unset in a junction that was made of a tuple. `_shared`: the list, and how many of it are this junction's.
    # `_end`: the list again, until a junction that is made of this one takes it to append to; others copy.
    __slots__ = ("_end", "_shared")
    _end: list[list[Expression]]
    _shared: tuple[list[Expression], int]

    def __getattr__(self, name: str) -> Any:
        if name != "args":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        shared, count = self._shared
        args = tuple(shared[:count])
        object.__setattr__(self, "args", args)
        return args


def _joined(node: type[And | Or], left: Expression, right: Expression) -> Expression:
    """Join two predicates; the arguments of those that are a ``node`` (the class And or Or) become its own."""
    more = parts(right, node)
    if not isinstance(left, node):
        return node((left, *more))
    try:
        shared: list[Expression] = left._end.pop()  # noqa: SLF001 -- one junction gets it, also of those made by other threads
    except (AttributeError, IndexError):
        shared = [*left.args]
    shared.extend(more)
    joined = object.__new__(node)
    object.__setattr__(joined, "_shared", (shared, len(shared)))
    object.__setattr__(joined, "_end", [shared])
    return joined


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Junction(_Chain):
    args: tuple[Expression, ...]

    def _key(self) -> tuple[object, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class And(_Junction):
    """Kleene AND: false if any argument is false, else null if any is null, else true. True without arguments."""

    def __str__(self) -> str:
        return " and ".join(f"({arg})" for arg in self.args) or "true"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Or(_Junction):
    """Kleene OR: true if any argument is true, else null if any is null, else false. False without arguments."""

    def __str__(self) -> str:
        return " or ".join(f"({arg})" for arg in self.args) or "false"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Not(Expression):
    """Kleene NOT: true where the argument is false, false where it is true, null where it is null."""

    arg: Expression

    def _key(self) -> tuple[object, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        arg = self.arg
        if isinstance(arg, Comparison) and arg.op == "<=" and arg.value == math.inf:  # as is_nan() makes it
            return f"is_nan({arg.column})"
        return f"not ({arg})"


class NamedColumn:
    """A column, identified by its name. :func:`asyncpq.col` makes columns that can be compared."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ExpressionError(f"a column name must be a string, not {name!r}")
        self.name: str = name

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def not_a_predicate(column: NamedColumn, *, combined: bool = False) -> ExpressionError:
    """Return the error to raise if a column is passed where a predicate is expected, ``combined`` by & or |."""
    brackets = " Put each comparison in parentheses: & and | bind more tightly than ==." if combined else ""
    return ExpressionError(
        f"{column!r} is a column, not a predicate",
        column=column.name,
        hint=f"Compare the column, such as {column!r} == 1, or {column!r} == True for a column of booleans.{brackets}",
    )


# -- building and looking at trees ----------------------------------------------------------------

_Node = TypeVar("_Node", bound="And | Or")


def parts(expr: Expression, node: type[_Node]) -> tuple[Expression, ...]:
    """Return the arguments of ``expr`` if it is a ``node`` (the class And or Or), otherwise ``expr`` alone."""
    return expr.args if isinstance(expr, node) else (expr,)


def join(node: type[_Node], args: list[Expression]) -> Expression:
    """Join predicates with ``node`` (the class And or Or); a single predicate is returned as it is."""
    return args[0] if len(args) == 1 else node(tuple(args))


def _operand(value: object, symbol: str) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool):
        return Constant(value)
    if isinstance(value, NamedColumn):
        raise not_a_predicate(value)
    raise ExpressionError(
        f"{symbol} expects predicates on both sides, not {value!r}",
        hint="Put each comparison in parentheses: (col('a') == 1) & (col('b') < 2).",
    )


def atoms(expr: Expression) -> Iterator[Atom]:
    """Iterate over the comparisons in ``expr``, in order of appearance."""
    todo = [expr]  # the last one is next: recursion takes twice as long
    while todo:
        node = todo.pop()
        if isinstance(node, (And, Or)):
            todo.extend(reversed(node.args))
        elif isinstance(node, Not):
            todo.append(node.arg)
        elif not isinstance(node, Constant):
            yield node  # type: ignore[misc]  # all other nodes are atoms


def require_shallow(expr: Expression) -> Expression:
    """Return ``expr``. Raises ExpressionError if it has more than :data:`MAX_NESTING` levels, before a function that
    follows it by recursion does."""
    level = [expr]
    for _ in range(MAX_NESTING + 1):
        level = [arg for node in level if not isinstance(node, Atom) for arg in _args(node)]
        if not level:
            return expr
    raise ExpressionError(
        f"the predicate has more than {MAX_NESTING} levels of ANDs, ORs and NOTs inside one another",
        hint="Write is_in(...) for many values, and join conditions with | or & alone.",
    )


def _args(expr: Expression) -> tuple[Expression, ...]:
    return expr.args if isinstance(expr, (And, Or)) else (expr.arg,) if isinstance(expr, Not) else ()


def is_nan(column: str) -> Expression:
    """Return a predicate on a column of floats that is true for NaN of any sign and payload, null for null."""
    return Not(Comparison(column, "<=", math.inf))


def columns(expr: Expression) -> tuple[str, ...]:
    """Return the names of the columns that ``expr`` reads, in order of appearance."""
    if isinstance(expr, Atom) and expr.column is not None:
        return (expr.column,)
    names: dict[str, None] = {}
    for atom in atoms(expr):
        if atom.column is not None:
            names[atom.column] = None
        elif isinstance(atom, ColumnComparison):
            names[atom.left] = names[atom.right] = None
    return tuple(names)


def replace_atoms(expr: Expression, replace: Callable[[Atom], Expression]) -> Expression:
    """Return ``expr`` with each comparison replaced by ``replace``; ``expr`` itself if nothing changes."""
    if isinstance(expr, (And, Or)):
        args = tuple([replace_atoms(arg, replace) for arg in paused(expr.args)])
        return expr if all(map(operator.is_, args, expr.args)) else type(expr)(args)
    if isinstance(expr, Not):
        arg = replace_atoms(expr.arg, replace)
        return expr if arg is expr.arg else Not(arg)
    return expr if isinstance(expr, Constant) else replace(expr)  # type: ignore[arg-type]  # all others are atoms


#: Functions of columns in conditions: ``lower(name) = 'a'``, ``name ILIKE 'a%'``, ``id % 10 = 3``.
Function: TypeAlias = Literal["lower", "upper", "mod", "folded"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FunctionTest(DerivedTest):
    """A comparison with a function of a column; null where the column is null.

    ``lower`` and ``upper`` map each character of a text to one, as SQL engines do. ``folded`` is ``lower`` of the
    column and of what it is compared with, for ILIKE. ``mod`` is the remainder of the division of an integer by
    ``divisor``, with the integer's sign. Statistics cannot prune with it.
    """

    operator: ClassVar[str] = "function"
    column: str
    function: Function
    divisor: int  # at least 1; 0 for other functions
    test: Atom  # of a column that is named as the function is shown

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.function, self.divisor, self.test)


_SHOWN: Final = 60  # characters of a name


def text_hint(name: str) -> str:
    """Return the hint for a column ``name`` that may be meant as a text."""
    shown = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...").replace("'", "''")
    return f"In SQL, double quotes name columns, and text stands in single quotes: '{shown}'."


def hint_at_text(error: ColumnNotFoundError, where: Expression | None) -> ColumnNotFoundError:
    """Add :func:`text_hint` to the error for an unknown column, if ``where`` compares it with another column, as
    ``user = "u-1"`` does; return the error."""
    if where is not None and error.column is not None:
        compared = (atom for atom in atoms(where) if isinstance(atom, ColumnComparison))
        if any(error.column in (atom.left, atom.right) for atom in compared):
            hint = text_hint(error.column)
            error.hint = hint if error.hint is None else f"{error.hint} {hint}"
    return error


Path: TypeAlias = tuple[str | int, ...]
"""The way to a part: names of an object's fields, positions in an array."""

# As Spark's VariantPathParser has it.
_SEGMENT: Final = r"""\[(\d+)\]|\.([^.\[]+)|\['([^'?]+)'\]|\["([^"?]+)"\]"""
_NAMES: Final = {
    "int8": ("tinyint", "byte"),
    "int16": ("smallint", "short"),
    "int32": ("int", "integer"),
    "int64": ("bigint", "long"),
    "float": ("float32", "real"),
    "double": ("float64",),
    "bool": ("boolean",),
    "string": (),
    "binary": (),
    "date": ("date32",),
    "timestamp": ("timestamp[us, tz=UTC]",),
    "timestamp_ntz": ("timestamp[us]",),
}
_TYPES: Final = {name: kind for kind, others in _NAMES.items() for name in (kind, *others)}
_DECIMAL: Final = r"decimal\((\d{1,2})(?:, ?(\d{1,2}))?\)"
MAX_DIGITS: Final = 38
_MAX_POSITION: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VariantTest(DerivedTest):
    """A comparison with a part of a VARIANT column: the part is cast to ``type``, and ``test`` compares the result.

    As in Spark's ``try_variant_get``, the part is null where the VARIANT is null or lacks the part, and where the part
    cannot be cast.
    """

    operator: ClassVar[str] = "variant_get"
    column: str
    path: Path
    type: str  # a key of ``_NAMES``, or decimal(precision, scale)
    test: Atom  # of a column that is named as the part is shown

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.path, self.type, self.test)


def variant_path(text: object) -> Path:
    """Parse the path of a variant's part, such as ``$.a[0]['b c']``. Raises ExpressionError for others."""
    path: list[str | int] = []
    rest = text[1:] if isinstance(text, str) and text.startswith("$") else None
    while rest:
        match = re.match(_SEGMENT, rest, re.ASCII)
        if match is None or (match[1] and int(match[1]) > _MAX_POSITION):
            break
        rest = rest[match.end() :]
        path.append(int(match[1]) if match[1] else match[2] or match[3] or match[4])
    if rest == "":
        return tuple(path)
    raise ExpressionError(f"{text!r} is not a path in a variant", hint="Write a path such as $.a, $.a[0] or $['a b'].")


def variant_type(name: object) -> str:
    """Return asyncpq's name for a type to which parts of variants can be cast. ``name`` is that name, or Spark's name.
    Raises ExpressionError if it is neither."""
    kind = _TYPES.get(name) if isinstance(name, str) else None
    decimal = re.fullmatch(_DECIMAL, name) if isinstance(name, str) else None
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 0 < precision <= MAX_DIGITS and scale <= precision:
            kind = f"decimal({precision}, {scale})"
    if kind is None:
        raise ExpressionError(
            f"{name!r} is not a type of a variant's part", hint=f"Use one of {', '.join(_NAMES)}, decimal(p, s)."
        )
    return kind
