"""Predicates with many keys, narrowed to those that one file may hold: what it is asked then takes no more time for
the keys of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncpq.expressions import Atom, Expression, In, KeyIn, atoms, replace_atoms
from asyncpq.expressions.analysis import keys_of
from asyncpq.expressions.scalars import Scalar
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

    def narrow(atom: Atom) -> Expression:
        many = isinstance(atom, (In, KeyIn)) and len(atom.values) > _FEW and atom.column in zones
        return _narrowed(atom, zones[atom.column]) if many else atom  # type: ignore[arg-type, index]  # checked above

    return replace_atoms(expr, narrow)


def _narrowed(atom: In | KeyIn, zones: Zones) -> In | KeyIn:
    if len(atom.types) != 1 or not atom.types <= {int, str, bytes}:
        return atom
    literals = keys_of(atom, zones.domain)
    keys = literals.keys
    if not literals.same_type or len(keys) != len(atom.values):
        return atom
    start, stop = zones.within(keys)
    if stop - start == len(keys):
        return atom
    kept = keys[start:stop] or keys[:1]  # with no key at all, null rows would not give null
    values: list[Scalar] = [key.decode() for key in kept] if str in atom.types else list(kept)
    return type(atom)(atom.column, tuple(values))
