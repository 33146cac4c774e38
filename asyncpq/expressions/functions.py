"""Functions of columns in conditions: ``lower(name) = 'a'``, ``name ILIKE 'a%'``, ``id % 10 = 3``."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from asyncpq.expressions import tree
from asyncpq.records import dataclass

Function: TypeAlias = Literal["lower", "upper", "mod", "folded"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FunctionTest(tree.DerivedTest):
    """A comparison with a function of a column; null where the column is null.

    ``lower`` and ``upper`` map each character of a text to one, as SQL engines do. ``folded`` is ``lower`` of the
    column and of what it is compared with, for ILIKE. ``mod`` is the remainder of the division of an integer by
    ``divisor``, with the integer's sign. Statistics cannot prune with it.
    """

    operator: ClassVar[str] = "function"
    column: str
    function: Function
    divisor: int  # at least 1; 0 for other functions
    test: tree.Atom  # of a column that is named as the function is shown

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.function, self.divisor, self.test)
