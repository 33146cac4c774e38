"""Predicates on columns. Users' conditions come in, trees and sets of values go out; no files, no pyarrow.

``scalars`` converts literals to plain types. ``builder`` makes trees from ``col()`` and ``filters=`` lists, and
``tree`` defines the nodes. ``analysis`` says for which values of a column a comparison is true, false or null.
``simplify`` shortens predicates and resolves ``now()``. ``tokens`` splits text into words.
"""

from asyncpq.expressions.analysis import Interval as Interval
from asyncpq.expressions.builder import Column as Column
from asyncpq.expressions.builder import col as col
from asyncpq.expressions.builder import parse_filters as parse_filters
from asyncpq.expressions.builder import parse_where as parse_where
from asyncpq.expressions.simplify import ValueRanges as ValueRanges
from asyncpq.expressions.simplify import column_ranges as column_ranges
from asyncpq.expressions.simplify import conjunction as conjunction
from asyncpq.expressions.simplify import disjunction as disjunction
from asyncpq.expressions.simplify import has_open_literals as has_open_literals
from asyncpq.expressions.simplify import implied as implied
from asyncpq.expressions.simplify import is_unsatisfiable as is_unsatisfiable
from asyncpq.expressions.simplify import resolve_times as resolve_times
from asyncpq.expressions.simplify import simplify as simplify
from asyncpq.expressions.simplify import with_conditions as with_conditions
from asyncpq.expressions.simplify import with_key_sets as with_key_sets
from asyncpq.expressions.simplify import without_contradictions as without_contradictions
from asyncpq.expressions.tree import And as And
from asyncpq.expressions.tree import Atom as Atom
from asyncpq.expressions.tree import ColumnComparison as ColumnComparison
from asyncpq.expressions.tree import CompareOp as CompareOp
from asyncpq.expressions.tree import Comparison as Comparison
from asyncpq.expressions.tree import Constant as Constant
from asyncpq.expressions.tree import Contains as Contains
from asyncpq.expressions.tree import Expression as Expression
from asyncpq.expressions.tree import FunctionTest as FunctionTest
from asyncpq.expressions.tree import Has as Has
from asyncpq.expressions.tree import HasPhrase as HasPhrase
from asyncpq.expressions.tree import HasTokens as HasTokens
from asyncpq.expressions.tree import In as In
from asyncpq.expressions.tree import IntersectsBox as IntersectsBox
from asyncpq.expressions.tree import IsNull as IsNull
from asyncpq.expressions.tree import KeyIn as KeyIn
from asyncpq.expressions.tree import Like as Like
from asyncpq.expressions.tree import Not as Not
from asyncpq.expressions.tree import Or as Or
from asyncpq.expressions.tree import StartsWith as StartsWith
from asyncpq.expressions.tree import VariantTest as VariantTest
from asyncpq.expressions.tree import atoms as atoms
from asyncpq.expressions.tree import columns as columns
from asyncpq.expressions.tree import is_nan as is_nan
from asyncpq.expressions.tree import replace_atoms as replace_atoms
