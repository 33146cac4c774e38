"""Predicates on columns. What users write comes in, trees and sets of values go out; no files, no pyarrow.

``scalars`` brings literals into plain types, ``builder`` makes trees of ``col()`` and ``filters=`` lists, ``tree`` is
their nodes, ``simplify`` shortens them and resolves ``now()``, ``analysis`` tells which values give a comparison each
of its results, ``ranges`` applies that to a predicate alone, ``tokens`` splits text into words.
"""

from asyncpq.expressions.analysis import Interval
from asyncpq.expressions.builder import Column, col, parse_filters
from asyncpq.expressions.ranges import ValueRanges, column_ranges, is_unsatisfiable, without_contradictions
from asyncpq.expressions.simplify import conjunction, disjunction, has_relative_times, implied, resolve_times, simplify
from asyncpq.expressions.tree import (
    And,
    Atom,
    ColumnComparison,
    CompareOp,
    Comparison,
    Constant,
    Contains,
    Expression,
    Has,
    HasPhrase,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    atoms,
    columns,
    replace_atoms,
)

__all__ = [
    "And",
    "Atom",
    "Column",
    "ColumnComparison",
    "CompareOp",
    "Comparison",
    "Constant",
    "Contains",
    "Expression",
    "Has",
    "HasPhrase",
    "HasTokens",
    "In",
    "Interval",
    "IsNull",
    "KeyIn",
    "Like",
    "Not",
    "Or",
    "StartsWith",
    "ValueRanges",
    "atoms",
    "col",
    "column_ranges",
    "columns",
    "conjunction",
    "disjunction",
    "has_relative_times",
    "implied",
    "is_unsatisfiable",
    "parse_filters",
    "replace_atoms",
    "resolve_times",
    "simplify",
    "without_contradictions",
]
