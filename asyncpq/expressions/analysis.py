"""Decides for which values of a column a predicate is true, false or null.

This module alone defines what null, NaN and -0.0 do to each comparison. Zone maps, index keys, Bloom filters, catalogs
and the search for contradictions adapt it: each brings a :class:`ValueDomain`, which says how literals compare with a
column's values, and turns the resulting :class:`ResultValues` into zones, key ranges or probes. A new kind of
comparison takes one function in ``_RESULT_VALUES``.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from asyncpq.checkpoints import paused, sorted_distinct
from asyncpq.expressions import tree
from asyncpq.expressions.scalars import Scalar
from asyncpq.expressions.tree import FunctionTest, VariantTest
from asyncpq.records import NamedTuple, dataclass

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)
_SURROGATES: Final = (0xD800, 0xDFFF)


class Truth(enum.Enum):
    """The three results that a predicate may have for a row: true, false and null."""

    TRUE = enum.auto()
    FALSE = enum.auto()
    NULL = enum.auto()

    __hash__: ClassVar[Callable[[object], int]] = object.__hash__  # Enum's is a Python function


OPPOSITE: Final = {Truth.TRUE: Truth.FALSE, Truth.FALSE: Truth.TRUE, Truth.NULL: Truth.NULL}
COMPLEMENTS: Final[Mapping[str, str]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


# -- literals among the values of a column ----------------------------------------------------------


class Comparable(NamedTuple):
    """A literal that compares exactly with the column's values.

    Attributes:
        key: the value that compares with the keys of values; perhaps NaN.
        same_type: the literal has the column's own type and one of its values may equal it. ``isin`` casts literals to
            the column's type; only these survive the cast unchanged.
    """

    key: Any
    same_type: bool = True


class Incomparable(NamedTuple):
    """A literal that cannot be compared exactly with the column's values.

    Attributes:
        reason: why the literal cannot be compared, for ``explain()``.
    """

    reason: str


ToKey: TypeAlias = Callable[[Scalar], Comparable | Incomparable]


@dataclass(frozen=True, slots=True, eq=False)
class ValueDomain:
    """The rules by which literals compare with the values of one column. Domains are equal only if they are
    identical.

    Attributes:
        to_key: makes the key of a literal that is not None. Keys have the order of the values.
        plain: types whose literals are all comparable and of the column's type, each with a function that makes the
            key; None where the literal is the key.
        spark: comparisons follow Spark: NaN equals itself and is greater than all else; ``In`` without None is null for
            null.
        shared: the domain is made once for all columns like this one, so that predicates keep the keys of their
            literals for it.
    """

    to_key: ToKey
    plain: Mapping[type, Callable[[Any], Any] | None] = field(default_factory=dict)
    spark: bool = False
    shared: bool = False


class _Keys(NamedTuple):
    """The literals of an ``In`` or ``KeyIn``, converted to keys that compare with the column's values."""

    keys: Sequence[Any]  # without null and NaN, ascending, distinct
    null: bool
    nan: bool
    incomparable: str | None = None  # why some literal is not comparable; None if all are
    same_type: bool = True  # all literals have the column's type


def keys_of(atom: tree.In | tree.KeyIn, domain: ValueDomain) -> _Keys:
    """Return the literals of ``atom`` as sorted keys. If ``domain`` is shared, ``atom`` keeps them for the
    next call."""
    return atom.derived(domain, lambda: _keys(atom, domain)) if domain.shared else _keys(atom, domain)


def _keys(atom: tree.In | tree.KeyIn, domain: ValueDomain) -> _Keys:
    values, types = atom.values, atom.types
    only = next(iter(types)) if len(types) == 1 else type(None)
    if only in domain.plain:
        make = domain.plain[only]
        try:
            plain = sorted_distinct(values if make is None else map(make, values))
        except UnicodeEncodeError:  # a string with lone surrogates
            pass
        else:
            return _Keys(plain, null=False, nan=False)
    null, nan = type(None) in types, float in types and any(value != value for value in values)
    # No key equals NaN. A member that is NaN may be cast, as any other.
    asked = [value for value in values if value is not None and (value == value or isinstance(atom, tree.In))]
    literals = [domain.to_key(value) for value in asked]
    incomparable = next((literal.reason for literal in literals if isinstance(literal, Incomparable)), None)
    if incomparable is not None:
        return _Keys((), null, nan, incomparable, same_type=False)
    known = [literal for literal in literals if isinstance(literal, Comparable)]
    keys = sorted_distinct(literal.key for literal in known if literal.key == literal.key)
    return _Keys(keys, null, nan, same_type=all(literal.same_type for literal in known))


# -- sets of values ---------------------------------------------------------------------------------


class Interval(NamedTuple):
    """The values from ``low`` to ``high``. If ``low`` or ``high`` is None, the interval has no end on that side."""

    low: Any = None
    high: Any = None
    low_open: bool = False
    high_open: bool = False

    @property
    def prefix(self) -> Any:
        """The string or bytes with which exactly the values of the interval begin; None if there is no such prefix."""
        is_text = type(self.low) in (str, bytes) and self.high_open and not self.low_open
        return self.low if is_text and self.high == successor(self.low) else None


class Points(NamedTuple):
    """A set of values: the ascending, distinct ``keys``, or if ``inverted`` all values except the keys."""

    keys: Sequence[Any]
    inverted: bool = False


Intervals: TypeAlias = tuple[Interval, ...]
EVERYTHING: Final[Intervals] = (Interval(),)


class ResultValues(NamedTuple):
    """The set of values for which a comparison has a given result. If ``exact`` is False, it is a superset of them.

    Attributes:
        null, nan: whether nulls, and NaN, are members.
        comparable: False if a literal is not comparable; ``values`` is then everything.
        reason: why ``values`` is everything although the predicate is narrower; None otherwise.
        of_elements: the values are elements of a list: a list gives the result only if one of its elements is a member.
        texts: substrings of all members.
        box: all members are geometries that meet it.
        tokens: tokens (:mod:`asyncpq.expressions.tokens`) of all members.
    """

    values: Intervals | Points  # those other than null and NaN: intervals that ascend and do not meet, or points
    null: bool
    nan: bool
    exact: bool = True  # all members give the result
    comparable: bool = True
    reason: str | None = None
    of_elements: bool = False
    texts: tuple[str | bytes, ...] = ()
    box: tree.IntersectsBox | None = None
    tokens: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the set is empty: the comparison has the result for no value, null or NaN."""
        values = self.values
        held = values.keys or values.inverted if isinstance(values, Points) else values
        return not (held or self.null or self.nan)


NOTHING: Final = ResultValues((), null=False, nan=False)
_ANY: Final = ResultValues(EVERYTHING, null=True, nan=True)
_NULL: Final = ResultValues((), null=True, nan=False)
_VALID: Final = ResultValues(EVERYTHING, null=False, nan=True)
_INSIDE: Final = "bounds say nothing of what is inside a text"
_TEXT: Final = ResultValues(EVERYTHING, null=False, nan=False, exact=False, reason=_INSIDE)


def _unknown(reason: str, *, null: bool = False) -> ResultValues:
    return ResultValues(EVERYTHING, null, nan=True, exact=False, comparable=False, reason=reason)


def prefixed(key: Text) -> Intervals:
    """Return the intervals that contain exactly the strings, or bytes, that begin with ``key``."""
    if not key:
        return EVERYTHING
    above = successor(key)
    return (Interval(key, above, high_open=above is not None),)


def successor(prefix: Text) -> Text | None:
    """Return the least string above all strings that begin with ``prefix``; None if no string is above them."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    text = prefix.rstrip(chr(sys.maxunicode))
    if not text:
        return None
    after = ord(text[-1]) + 1
    first, last = _SURROGATES
    return text[:-1] + chr(last + 1 if first <= after <= last else after)


# -- predicates -------------------------------------------------------------------------------------


def follow(
    expr: tree.Expression,
    truth: Truth,
    atom: Callable[[tree.Atom, Truth], T],
    all_of: Callable[[Iterable[T]], T],
    any_of: Callable[[Iterable[T]], T],
) -> T:
    """Combine the answers for each comparison in ``expr`` into one: the rows for which ``expr`` may be ``truth``.

    An answer is any description of a set of rows. ``~x`` is true where ``x`` is false. An AND is true only where all of
    its arguments are true; an AND is false, or null, only where one of its arguments is. An OR mirrors the AND.

    Args:
        atom: returns the answer for one comparison and the result that it must have.
        all_of: returns the intersection of answers; all rows if there are no answers.
        any_of: returns the union of answers; no rows if there are none. Both get lazily computed answers.
    """
    if isinstance(expr, tree.Not):
        return follow(expr.arg, OPPOSITE[truth], atom, all_of, any_of)
    if isinstance(expr, (tree.And, tree.Or)):
        parts = (follow(arg, truth, atom, all_of, any_of) for arg in paused(expr.args))
        return (all_of if truth is (Truth.TRUE if isinstance(expr, tree.And) else Truth.FALSE) else any_of)(parts)
    if isinstance(expr, tree.Constant):
        result = Truth.NULL if expr.value is None else Truth.TRUE if expr.value else Truth.FALSE
        return (all_of if result is truth else any_of)(())
    return atom(expr, truth)  # type: ignore[arg-type]  # all other nodes are atoms


def texts_needed(
    expr: tree.Expression, columns: Collection[str], domain: ValueDomain, *, most: int
) -> dict[str, frozenset[bytes]]:
    """Return, for each column, texts of which its value must contain at least one where ``expr`` is true.

    Args:
        columns: the string and binary columns to examine.
        domain: the rules by which literals compare with texts.
        most: columns with more texts than this are left out, as are columns without any.
    """

    def of_atom(atom: tree.Atom, truth: Truth) -> dict[str, frozenset[bytes]]:
        wanted = result_values(atom, truth, domain) if atom.column in columns else _ANY
        if wanted.null or wanted.nan or wanted.of_elements:
            return {}
        texts: Sequence[Any] = ()
        if isinstance(wanted.values, Points) and not wanted.values.inverted:
            texts = wanted.values.keys
        elif wanted.texts:
            texts = (max(wanted.texts, key=len),)
        if not 0 < len(texts) <= most:
            return {}
        try:
            needed = frozenset([text.encode() if isinstance(text, str) else text for text in texts])
            return {atom.column or "": needed}
        except UnicodeEncodeError:
            return {}

    def all_of(parts: Iterable[dict[str, frozenset[bytes]]]) -> dict[str, frozenset[bytes]]:
        return {name: texts for part in parts for name, texts in part.items()}

    def any_of(parts: Iterable[dict[str, frozenset[bytes]]]) -> dict[str, frozenset[bytes]]:
        first, *others = [*parts] or [{}]
        shared = [name for name in first if all(name in part for part in others)]
        return {name: first[name].union(*[part[name] for part in others]) for name in shared}

    by_name = follow(expr, Truth.TRUE, of_atom, all_of, any_of)
    return {name: texts for name, texts in by_name.items() if len(texts) <= most and b"" not in texts}


def result_values(atom: tree.Atom, truth: Truth, domain: ValueDomain) -> ResultValues:
    """Return the values of the column for which ``atom`` may have the result ``truth``.

    If ``atom`` compares two columns, the set applies to the values of each of them. ``domain`` says how literals
    compare with the values. Raises TypeError if ``atom`` is not a comparison.
    """
    make = _RESULT_VALUES.get(type(atom))
    if make is None:
        raise TypeError(f"{atom!r} is not a comparison")
    return make(atom, truth, domain)


def _comparison(atom: tree.Comparison, truth: Truth, domain: ValueDomain) -> ResultValues:
    value, op = atom.value, atom.op
    if value is None:
        return _ANY if truth is Truth.NULL else NOTHING
    if truth is Truth.NULL:
        return _NULL
    wanted = truth is Truth.TRUE
    if type(value) is float and value != value:
        return _compared_with_nan(op, wanted, domain)
    if domain.plain.get(type(value), domain) is None:  # the literal is the key
        key: Any = value
    else:
        literal = domain.to_key(value)
        if type(literal) is Incomparable:
            return _unknown(literal.reason)
        key = literal[0]
    nan = (op == "!=" or (domain.spark and op[0] == ">")) is wanted
    asked = op if wanted else COMPLEMENTS[op]
    if asked == "==" or asked == "!=":
        return ResultValues(Points((key,), asked == "!="), False, nan)
    if asked[0] == "<":
        return ResultValues((Interval(None, key, False, asked == "<"),), False, nan)
    return ResultValues((Interval(key, None, asked == ">", False),), False, nan)


def _compared_with_nan(op: str, wanted: bool, domain: ValueDomain) -> ResultValues:
    """Return the values for which ``column op NaN`` is true (``wanted``) or false (not ``wanted``).

    NaN is unordered, so only ``!=`` is true, for every value. In Spark, NaN equals itself and exceeds all other values.
    """
    if not domain.spark:
        return _VALID if wanted is (op == "!=") else NOTHING
    others, nan = op in ("!=", "<", "<="), op in ("==", "<=", ">=")
    return ResultValues(EVERYTHING if others is wanted else (), null=False, nan=nan is wanted)


def _in(atom: tree.In, truth: Truth, domain: ValueDomain) -> ResultValues:
    if truth is Truth.NULL:
        return _NULL if domain.spark and atom.values and None not in atom.values else NOTHING
    wanted = truth is Truth.TRUE
    if not domain.shared:
        return _membership(atom, wanted, domain)
    return atom.derived((wanted, domain), lambda: _membership(atom, wanted, domain))


def _membership(atom: tree.In, wanted: bool, domain: ValueDomain) -> ResultValues:
    literals = keys_of(atom, domain)
    null, nan = literals.null is wanted, literals.nan is wanted
    one_nan = domain.spark or not literals.nan
    if not one_nan:
        nan = True  # the list has some NaNs and lacks others: members are compared bit by bit
    if domain.spark and not wanted and atom.values:
        null = False
    if literals.incomparable is not None:
        return _unknown(literals.incomparable, null=null)
    if not literals.same_type:
        return _unknown("pyarrow's isin casts literals to the column's type", null=null)
    # 0.0 and -0.0 are two members but one key, so zero proves nothing.
    others = [key for key in literals.keys if key != 0]
    exact = one_nan and len(others) == len(literals.keys)
    return ResultValues(Points(literals.keys if wanted else others, not wanted), null, nan, exact)


def _key_in(atom: tree.KeyIn, truth: Truth, domain: ValueDomain) -> ResultValues:
    literals = keys_of(atom, domain)
    if literals.incomparable is None and not literals.keys:
        return _ANY if truth is Truth.FALSE else NOTHING
    if truth is Truth.NULL:
        return _NULL
    if literals.incomparable is not None:
        return _unknown(literals.incomparable)
    wanted = truth is Truth.TRUE
    return ResultValues(Points(literals.keys, not wanted), null=False, nan=not wanted)


def _is_null(atom: tree.IsNull, truth: Truth, _: ValueDomain) -> ResultValues:
    if truth is Truth.NULL:
        return NOTHING
    wanted = truth is Truth.TRUE
    return ResultValues(() if wanted else EVERYTHING, null=wanted, nan=atom.nan_is_null is wanted)


def _starts_with(atom: tree.StartsWith, truth: Truth, domain: ValueDomain) -> ResultValues:
    if truth is Truth.NULL:
        return _NULL
    literal = domain.to_key(atom.prefix)
    if isinstance(literal, Incomparable):
        return _unknown(literal.reason)
    inside = prefixed(literal.key)
    if truth is Truth.TRUE:
        return ResultValues(inside, null=False, nan=False, texts=(atom.prefix,))
    return ResultValues(complement(inside), null=False, nan=False)


def _like(atom: tree.Like, truth: Truth, domain: ValueDomain) -> ResultValues:
    if truth is not Truth.TRUE:
        return _NULL if truth is Truth.NULL else _TEXT
    texts = atom.texts
    literal = domain.to_key(atom.prefix)
    if isinstance(literal, Incomparable):
        return _unknown(literal.reason)._replace(texts=texts)
    reason = None if literal.key else "its matches begin with anything"
    return ResultValues(prefixed(literal.key), null=False, nan=False, exact=False, reason=reason, texts=texts)


def _inside(atom: tree.Contains | tree.HasTokens | tree.HasPhrase, truth: Truth, _: ValueDomain) -> ResultValues:
    if truth is not Truth.TRUE:
        return _NULL if truth is Truth.NULL else _TEXT
    return _TEXT._replace(texts=(atom.text,)) if isinstance(atom, tree.Contains) else _TEXT._replace(tokens=atom.tokens)


def _has(atom: tree.Has, truth: Truth, domain: ValueDomain) -> ResultValues:
    if truth is Truth.NULL:
        return _NULL
    if truth is Truth.FALSE:  # an element says nothing of the others
        return _unknown("bounds of elements say nothing of what a list lacks")
    return _comparison(tree.Comparison(atom.column, "==", atom.value), truth, domain)._replace(of_elements=True)


def _intersects_box(atom: tree.IntersectsBox, truth: Truth, _: ValueDomain) -> ResultValues:
    if truth is Truth.NULL:
        return _NULL
    values = ResultValues(EVERYTHING, null=False, nan=False, exact=False)
    return values._replace(box=atom) if truth is Truth.TRUE else values


def _part(_: VariantTest, __: Truth, ___: ValueDomain) -> ResultValues:
    return _unknown("a part of a variant is compared", null=True)


def _function(_: FunctionTest, truth: Truth, __: ValueDomain) -> ResultValues:
    return _unknown("a function of the column is compared", null=truth is Truth.NULL)


def _columns(_: tree.ColumnComparison, truth: Truth, __: ValueDomain) -> ResultValues:
    return _unknown("two columns are compared", null=truth is Truth.NULL)


_RESULT_VALUES: Final[Mapping[type, Callable[[Any, Truth, ValueDomain], ResultValues]]] = {
    tree.Comparison: _comparison,
    tree.In: _in,
    tree.KeyIn: _key_in,
    tree.IsNull: _is_null,
    tree.StartsWith: _starts_with,
    tree.Like: _like,
    tree.Contains: _inside,
    tree.HasTokens: _inside,
    tree.HasPhrase: _inside,
    tree.Has: _has,
    tree.IntersectsBox: _intersects_box,
    VariantTest: _part,
    FunctionTest: _function,
    tree.ColumnComparison: _columns,
}


# -- intervals --------------------------------------------------------------------------------------

# Where an interval begins and ends: before all values, (-1,); before or after a key, (0, key, False or True); after
# all, (1,).
_Cut: TypeAlias = tuple[Any, ...]


def _begin(interval: Interval) -> _Cut:
    return (-1,) if interval.low is None else (0, interval.low, interval.low_open)


def _end(interval: Interval) -> _Cut:
    return (1,) if interval.high is None else (0, interval.high, not interval.high_open)


def intervals(values: Intervals | Points) -> Intervals:
    """Convert a set of values (intervals, or points perhaps inverted) to ascending intervals."""
    if not isinstance(values, Points):
        return values
    points = tuple([Interval(key, key) for key in values.keys])
    return complement(points) if values.inverted else points


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return the intervals of the values that are in both ``left`` and ``right``."""
    both: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = left[i], right[j]
        low = first if _begin(first) >= _begin(second) else second
        high = first if _end(first) <= _end(second) else second
        part = Interval(low.low, high.high, low.low_open, high.high_open)
        if _begin(part) < _end(part):
            both.append(part)
        if high is first:
            i += 1
        else:
            j += 1
    return tuple(both)


def unite(left: Intervals, right: Intervals) -> Intervals:
    """Return the intervals of the values that are in ``left``, in ``right`` or in both."""
    joined: list[Interval] = []
    for interval in sorted((*left, *right), key=_begin):
        last = joined[-1] if joined else None
        if last is None or _begin(interval) > _end(last):
            joined.append(interval)
        elif _end(interval) > _end(last):
            joined[-1] = Interval(last.low, interval.high, last.low_open, interval.high_open)
    return tuple(joined)


def complement(parts: Intervals) -> Intervals:
    """Return the intervals of the values outside all of ``parts``, which ascend and do not touch."""
    gaps: list[Interval] = []
    low, low_open = None, False
    for interval in parts:
        if interval.low is not None:
            gaps.append(Interval(low, interval.low, low_open, not interval.low_open))
        low, low_open = interval.high, not interval.high_open
    if not parts or low is not None:
        gaps.append(Interval(low, None, low_open))
    return tuple(gaps)
