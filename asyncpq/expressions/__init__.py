"""Predicates: what they are made of, how they are written, how they are made shorter."""

from asyncpq.expressions.filters import parse_filters
from asyncpq.expressions.simplify import simplify
from asyncpq.expressions.tree import (
    And,
    Atom,
    Column,
    ColumnComparison,
    CompareOp,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    KeyIn,
    Not,
    Or,
    StartsWith,
    col,
    columns,
)

__all__ = [
    "And",
    "Atom",
    "Column",
    "ColumnComparison",
    "CompareOp",
    "Comparison",
    "Constant",
    "Expression",
    "In",
    "IsNull",
    "KeyIn",
    "Not",
    "Or",
    "StartsWith",
    "col",
    "columns",
    "parse_filters",
    "simplify",
]
