"""What bounds say about a predicate: where it may be true, where false, where null.

Every answer is a superset: a zone of rows (a file, row group or page) is left out only where its bounds and counts
prove that no row of it has that result. All three results are followed, so that NOT needs no rewriting: ``~x``
may be true where ``x`` may be false.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from asyncpq.expressions import (
    And,
    Atom,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Expression,
    HasPhrase,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
)
from asyncpq.expressions.analysis import Incomparable
from asyncpq.pruning.literals import plain_keys
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zones import Zones


class Truth(enum.Enum):
    """The three results of a predicate."""

    TRUE = enum.auto()
    FALSE = enum.auto()
    NULL = enum.auto()


AtomRows: TypeAlias = Callable[[Atom, Truth], RowRanges]

_OPPOSITE = {Truth.TRUE: Truth.FALSE, Truth.FALSE: Truth.TRUE, Truth.NULL: Truth.NULL}
_COMPLEMENTS = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_EMPTY = RowRanges.empty()


def rows_where(expr: Expression, truth: Truth, total: int, atom_rows: AtomRows) -> RowRanges:
    """Rows (or zones) in which ``expr`` may have the result ``truth``.

    Args:
        expr: a predicate.
        truth: the result asked for.
        total: number of rows (or zones).
        atom_rows: the same for one atom.
    """
    if isinstance(expr, Not):
        return rows_where(expr.arg, _OPPOSITE[truth], total, atom_rows)
    if isinstance(expr, (And, Or)):
        # An AND is true only where all are; it is false or null only where one is. An OR mirrors that.
        if truth is (Truth.TRUE if isinstance(expr, And) else Truth.FALSE):
            rows = RowRanges.all(total)
            for arg in expr.args:
                rows &= rows_where(arg, truth, total, atom_rows)
                if not rows:
                    break
            return rows
        rows = _EMPTY
        for arg in expr.args:
            rows |= rows_where(arg, truth, total, atom_rows)
        return rows
    if isinstance(expr, Constant):
        result = Truth.NULL if expr.value is None else Truth.TRUE if expr.value else Truth.FALSE
        return RowRanges.all(total) if result is truth else _EMPTY
    return atom_rows(expr, truth)  # type: ignore[arg-type]  # all other nodes are atoms


def zones_where(atom: Atom, truth: Truth, zones: Zones) -> RowRanges:
    """Zones in which ``atom``, on the zones' leaf, may have the result ``truth``."""
    if isinstance(atom, Comparison):
        return _comparison(atom, truth, zones)
    if isinstance(atom, KeyIn):
        return zones.maybe_null if truth is Truth.NULL else _key_in(atom, truth, zones)
    if isinstance(atom, In):
        return _EMPTY if truth is Truth.NULL else _in(atom, truth, zones)
    if isinstance(atom, IsNull):
        return _is_null(atom, truth, zones)
    if isinstance(atom, StartsWith):
        return zones.maybe_null if truth is Truth.NULL else _with_prefix(atom.prefix, truth, zones)
    if isinstance(atom, (Contains, Like, HasTokens, HasPhrase)):
        if truth is Truth.NULL:
            return zones.maybe_null
        if isinstance(atom, Like) and truth is Truth.TRUE:
            return _with_prefix(atom.prefix, truth, zones)
        return zones.present | zones.unknown
    return RowRanges.all(zones.num_zones)


def why_not(atom: Atom, zones: Zones) -> str | None:
    """Why ``atom`` cannot use the bounds, for ``explain()``; None if it can."""
    if zones.column.is_repeated:
        return "the column is repeated"
    if isinstance(atom, ColumnComparison):
        return "two columns are compared"
    values: tuple[Any, ...] = ()
    if isinstance(atom, (In, KeyIn)):
        values = atom.values
    elif isinstance(atom, Comparison):
        values = (atom.value,)
    elif isinstance(atom, Like) and not atom.prefix:
        return "its matches begin with anything"
    elif isinstance(atom, (StartsWith, Like)):
        values = (atom.prefix,)
    elif isinstance(atom, (Contains, HasTokens, HasPhrase)):
        return "bounds say nothing of what is inside a text"
    # One of each type: there may be thousands, and what is wrong is wrong with the type.
    for value in {type(value): value for value in values}.values():
        literal = None if value is None else zones.to_key(value)
        if isinstance(literal, Incomparable):
            return literal.reason
        if literal is not None and isinstance(atom, In) and not literal.same_type:
            return "pyarrow's isin casts literals to the column's type"
    return None


def _comparison(atom: Comparison, truth: Truth, zones: Zones) -> RowRanges:
    if atom.value is None:
        return RowRanges.all(zones.num_zones) if truth is Truth.NULL else _EMPTY
    if truth is Truth.NULL:
        return zones.maybe_null
    literal = zones.to_key(atom.value)
    if isinstance(literal, Incomparable):
        return RowRanges.all(zones.num_zones)
    key, op, wanted = literal.key, atom.op, truth is Truth.TRUE
    if key != key:  # only != is true of NaN, and it is of every value
        return zones.present | zones.unknown | zones.maybe_nan if wanted is (op == "!=") else _EMPTY
    if op == "==" or op == "!=":
        equal = wanted is (op == "==")
        found = zones.matching("==", key) if equal else zones.other_than([key])
        with_nan = not equal
    else:
        found = zones.matching(op if wanted else _COMPLEMENTS[op], key)
        with_nan = not wanted
    if with_nan and zones.maybe_nan:
        found |= zones.maybe_nan
    return found | zones.unknown if zones.unknown else found


def _key_in(atom: KeyIn, truth: Truth, zones: Zones) -> RowRanges:
    keys, complete, _ = sorted_keys(atom, zones)
    if not complete:
        return RowRanges.all(zones.num_zones)
    if truth is Truth.TRUE:
        return zones.holding_any(keys) | zones.unknown
    if not keys:
        return RowRanges.all(zones.num_zones)  # false for nulls too
    return zones.other_than(keys) | zones.maybe_nan | zones.unknown


def _in(atom: In, truth: Truth, zones: Zones) -> RowRanges:
    keys, _, same_type = sorted_keys(atom, zones)
    if not same_type:
        return RowRanges.all(zones.num_zones)
    with_null = None in atom.values
    if truth is Truth.FALSE:
        # 0.0 and -0.0 are two members but one bound, so zero proves nothing.
        found = zones.other_than([key for key in keys if key != 0]) | zones.maybe_nan | zones.unknown
        return found if with_null else found | zones.maybe_null
    found = zones.holding_any(keys) | zones.unknown
    if zones.maybe_nan and any(value != value for value in atom.values):
        found |= zones.maybe_nan
    return found | zones.maybe_null if with_null else found


def sorted_keys(atom: In | KeyIn, zones: Zones) -> tuple[list[Any], bool, bool]:
    """The keys without None and NaN, sorted; whether all are comparable; whether all are of the column's type."""
    return atom.derived(("keys", zones.column.kind), lambda: _sorted_keys(atom.values, zones))


def _sorted_keys(values: Sequence[Any], zones: Zones) -> tuple[list[Any], bool, bool]:
    to_key = zones.to_key
    plain = plain_keys(values, to_key)
    if plain is not None:
        plain.sort()
        return plain, True, True
    literals = [to_key(value) for value in values if value is not None]
    comparable = [literal for literal in literals if not isinstance(literal, Incomparable)]
    complete = len(comparable) == len(literals)
    same_type = complete and all(literal.same_type for literal in comparable)
    return sorted({literal.key for literal in comparable if literal.key == literal.key}), complete, same_type


def _is_null(atom: IsNull, truth: Truth, zones: Zones) -> RowRanges:
    if truth is Truth.NULL:
        return _EMPTY
    if truth is Truth.FALSE:
        return RowRanges.all(zones.num_zones) - zones.all_null
    return zones.maybe_null | zones.maybe_nan if atom.nan_is_null else zones.maybe_null


def _with_prefix(prefix: str | bytes, truth: Truth, zones: Zones) -> RowRanges:
    literal = zones.to_key(prefix)
    if isinstance(literal, Incomparable) or not isinstance(literal.key, bytes):
        return RowRanges.all(zones.num_zones)
    find = zones.starting_with if truth is Truth.TRUE else zones.not_starting_with
    return find(literal.key) | zones.unknown
