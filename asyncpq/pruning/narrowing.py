"""Predicates with many keys, narrowed to those that one file may hold: what it is asked then takes no more time for
the keys of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncpq.expressions import And, Expression, In, KeyIn, Not, Or, atoms
from asyncpq.expressions.scalars import Scalar
from asyncpq.pruning.bounds import sorted_keys
from asyncpq.pruning.zones import Zones

_FEW: Final = 16  # keys are not worth a search


def has_many_keys(expr: Expression) -> bool:
    """Whether :func:`narrowed` may leave out some."""
    return any(isinstance(atom, (In, KeyIn)) and len(atom.values) > _FEW for atom in atoms(expr))


def narrowed(expr: Expression, zones: Mapping[str, Zones]) -> Expression:
    """The predicate, with the same result for every row of a file; itself where nothing is left out.

    Args:
        expr: a predicate whose literals are known to fit their columns' types.
        zones: for columns that it names, the file's row groups.
    """
    if isinstance(expr, Not):
        arg = narrowed(expr.arg, zones)
        return expr if arg is expr.arg else Not(arg)
    if isinstance(expr, (And, Or)):
        args = tuple([narrowed(arg, zones) for arg in expr.args])
        same = all(new is old for new, old in zip(args, expr.args, strict=True))
        return expr if same else type(expr)(args)
    if isinstance(expr, (In, KeyIn)) and len(expr.values) > _FEW and expr.column in zones:
        return _narrowed(expr, zones[expr.column])
    return expr


def _narrowed(atom: In | KeyIn, zones: Zones) -> In | KeyIn:
    if len(atom.types) != 1 or not atom.types <= {int, str, bytes}:
        return atom
    keys, _, same_type = sorted_keys(atom, zones)
    if not same_type or len(keys) != len(atom.values):
        return atom
    start, stop = zones.within(keys)
    if stop - start == len(keys):
        return atom
    some = keys[start:stop] or keys[:1]  # with no key at all, null rows would not give null
    values: list[Scalar] = [key.decode() for key in some] if str in atom.types else some
    return type(atom)(atom.column, tuple(values))
