"""The hint about quotes in SQL: double quotes name columns, and text stands in single quotes."""

from __future__ import annotations

from typing import Final

from asyncpq.errors import ColumnNotFoundError
from asyncpq.expressions import tree
from asyncpq.expressions.tree import Expression

_SHOWN: Final = 60  # characters of a name


def text_hint(name: str) -> str:
    """Return the hint for a column ``name`` that may be meant as a text."""
    shown = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...").replace("'", "''")
    return f"In SQL, double quotes name columns, and text stands in single quotes: '{shown}'."


def hint_at_text(error: ColumnNotFoundError, where: Expression | None) -> ColumnNotFoundError:
    """Add :func:`text_hint` to the error for an unknown column, if ``where`` compares it with another column, as
    ``user = "u-1"`` does; return the error."""
    if where is not None and error.column is not None:
        compared = (atom for atom in tree.atoms(where) if isinstance(atom, tree.ColumnComparison))
        if any(error.column in (atom.left, atom.right) for atom in compared):
            hint = text_hint(error.column)
            error.hint = hint if error.hint is None else f"{error.hint} {hint}"
    return error
