"""Functions of columns in conditions: ``lower(name) = 'a'``, ``name ILIKE 'a%'``, ``id % 10 = 3``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from asyncpq.expressions import tree
from asyncpq.expressions.scalars import Scalar
from asyncpq.records import dataclass

Function: TypeAlias = Literal["lower", "upper", "mod"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FunctionTest(tree.Atom):
    """A comparison with a function of a column; null where the column is null.

    ``lower`` and ``upper`` map each character of a text to one, as SQL engines do. ``mod`` is the remainder of the
    division of an integer by ``divisor``, with the integer's sign. Statistics cannot prune with it.
    """

    operator: ClassVar[str] = "function"
    column: str
    function: Function
    divisor: int  # at least 1; 0 for other functions
    test: tree.Atom  # of a column that is named as the function is shown

    @property
    def subject(self) -> str:
        return self.test.subject

    @property
    def literals(self) -> tuple[Scalar, ...]:
        return self.test.literals

    def with_literals(self, change: Callable[[Scalar], Scalar]) -> FunctionTest:
        return FunctionTest(self.column, self.function, self.divisor, self.test.with_literals(change))

    def _key(self) -> tuple[object, ...]:
        return (self.column, self.function, self.divisor, self.test)

    def __str__(self) -> str:
        return str(self.test)


def lowered(text: str) -> str:
    """Return ``text`` in small letters, one for each character, as a column's texts are lowered: Python may know fewer
    letters than pyarrow."""
    if not text.isascii():
        from pyarrow import compute, scalar

        try:
            return str(compute.utf8_lower(scalar(text)).as_py())
        except UnicodeEncodeError:  # no column has such a text: the comparison says so
            pass
    return text.lower()
