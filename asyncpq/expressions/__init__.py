"""Predicates: what they are made of, how they are written, how they are made shorter."""

from asyncpq.expressions.filters import parse_filters
from asyncpq.expressions.intervals import Interval
from asyncpq.expressions.ranges import ValueRanges, column_ranges, is_unsatisfiable
from asyncpq.expressions.relative_times import has_relative_times, resolve_times
from asyncpq.expressions.simplify import simplify, without_contradictions
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
    atoms,
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
    "Interval",
    "IsNull",
    "KeyIn",
    "Not",
    "Or",
    "StartsWith",
    "ValueRanges",
    "atoms",
    "col",
    "column_ranges",
    "columns",
    "has_relative_times",
    "is_unsatisfiable",
    "parse_filters",
    "resolve_times",
    "simplify",
    "without_contradictions",
]
