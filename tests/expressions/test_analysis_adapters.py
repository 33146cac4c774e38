"""Every adapter of the analysis, on the same predicates and values: it keeps what the exact filter keeps, and where the
analysis is exact and the adapter knows the values, nothing else."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import (
    Atom,
    Comparison,
    Constant,
    Contains,
    Expression,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    atoms,
    column_ranges,
    implied,
    is_unsatisfiable,
    simplify,
    without_contradictions,
)
from asyncpq.expressions.analysis import Comparable, Truth, follow, result_values
from asyncpq.indexing.key_encoding import needed_ngrams, normalised
from asyncpq.indexing.query.key_ranges import atom_ranges
from asyncpq.parquet.bloom_filter import xxh64
from asyncpq.parquet.statistics import ColumnOrder, order_of
from asyncpq.pruning.bloom_hashes import compile_probes, may_match, plain_encoder
from asyncpq.pruning.literals import domain_of, kind_of_leaf
from asyncpq.pruning.zone_maps import FileBounds, ZonedColumn, Zones, file_zones, rows_where, value_zones
from tests.example_counts import examples
from tests.parquet_files import PrunedFile
from tests.predicates import COLUMNS, KINDS, array, arrays, trees
from tests.predicates import atoms as random_atoms

TRUTHS = {True: Truth.TRUE, False: Truth.FALSE, None: Truth.NULL}
_LONGEST_KEY = 64  # bytes; longer values share an index's keys


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Any], Expression]:
    """A kind of column, values of it, and a predicate on the column ``x``."""
    kind = draw(KINDS)
    atom = random_atoms("x", kind)
    return kind, draw(arrays(kind, min_size=1, max_size=8)), draw(st.one_of(atom, atom.map(Not), trees(atom)))


def results(expr: Expression, kind: str, values: list[Any]) -> tuple[list[bool | None], tuple[Atom, ...]]:
    """The exact filter's result for each value, and the atoms whose literals it casts."""
    try:
        compiled = compile_filter(expr, {"x": COLUMNS[kind][0]})
        mask = compiled.mask({"x": array(kind, values)}, len(values))
    except PredicateTypeError:
        assume(False)
    return mask.to_pylist(), compiled.engine_atoms


def is_exact(expr: Expression, kind: str) -> bool:
    """Whether ``expr`` is one atom whose values the analysis knows exactly."""
    inner = expr.arg if isinstance(expr, Not) else expr
    if not isinstance(inner, Atom):
        return False
    domain = domain_of(kind_of(COLUMNS[kind][0]))
    return all(result_values(inner, truth, domain).exact for truth in Truth)


def is_short(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) or len(value) < _LONGEST_KEY


@settings(max_examples=examples(120, thorough=1000))
@given(cases())
def test_zones_of_one_value(case: tuple[str, list[Any], Expression]) -> None:
    kind, values, expr = case
    exact, _ = results(expr, kind, values)
    zones = {"x": value_zones(kind_of(COLUMNS[kind][0]), values)}
    for result, truth in TRUTHS.items():
        kept = set(rows_where(expr, truth, len(values), zones).rows())
        wanted = {at for at, found in enumerate(exact) if found is result}
        assert wanted <= kept
        compared = kind_of(COLUMNS[kind][0]).why_not == ""
        if is_exact(expr, kind) and compared:
            # A zone of -0.0 has the bounds of one of 0.0, one of NaN has none, and lists no nulls where all are.
            assert all(at in wanted or values[at] is None or values[at] != values[at] for at in kept)


@settings(max_examples=examples(80, thorough=1000))
@given(cases(), st.integers(1, 4), st.booleans())
def test_zones_of_several_values(case: tuple[str, list[Any], Expression], size: int, know_nulls: bool) -> None:
    kind, values, expr = case
    exact, _ = results(expr, kind, values)
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    valid = [[value for value in group if value is not None and value == value] for group in groups]
    domain = domain_of(kind_of(COLUMNS[kind][0]))
    lows = [min(group, key=lambda value: _order(domain, value), default=None) for group in valid]
    highs = [max(group, key=lambda value: _order(domain, value), default=None) for group in valid]
    bounds = FileBounds(
        lows,
        highs,
        null_counts=[group.count(None) if know_nulls else None for group in groups],
        all_null=[know_nulls and group.count(None) == len(group) for group in groups],
        may_be_nan=[any(value != value for value in group) or not know_nulls for group in groups],
    )
    zones = file_zones(kind_of(COLUMNS[kind][0]), bounds)
    for result, truth in TRUTHS.items():
        kept = rows_where(expr, truth, len(groups), {"x": zones})
        assert all(at // size in kept for at, found in enumerate(exact) if found is result)


def _order(domain: Any, value: Any) -> Any:
    return getattr(domain.to_key(value), "key", 0)


@given(st.data())
def test_zones_of_strings_cut_short(data: st.DataObject) -> None:
    texts = st.text("abz", max_size=4).map(str.encode)
    groups = data.draw(st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=5))
    expr = data.draw(trees(random_atoms("x", "binary", foreign=False, own=texts)))
    length = data.draw(st.integers(1, 3))
    leaf = PrunedFile(pa.table({"x": pa.array([b""])}), rows_per_page=1).leaf("x")
    zones = Zones(
        ZonedColumn.of_leaf(leaf, order_of(leaf, None)),
        [min(group)[:length] for group in groups],
        [max(group)[:length] for group in groups],
        all_null=[False] * len(groups),
        null_counts=[0] * len(groups),
        exact=[max(map(len, group)) <= length for group in groups],
    )
    for number, group in enumerate(groups):
        exact, _ = results(expr, "binary", list(group))
        for result in exact:
            assert number in rows_where(expr, TRUTHS[result], len(groups), {"x": zones})


@settings(max_examples=examples(120, thorough=1000))
@given(cases())
def test_index_keys(case: tuple[str, list[Any], Expression]) -> None:
    kind, values, expr = case
    type_ = COLUMNS[kind][0]
    exact, _ = results(expr, kind, values)
    keys = normalised(array(kind, values), type_).to_pylist()
    for key, value, result in zip(keys, values, exact, strict=True):
        for other, truth in TRUTHS.items():

            def holds(atom: Atom, wanted: Truth, key: bytes = key) -> bool:
                ranges = atom_ranges(atom, wanted, type_)
                return ranges is None or any(key in range_ for range_ in ranges)

            kept = follow(expr, truth, holds, all, any)
            if other is result:
                assert kept, (expr, value)
            elif is_exact(expr, kind) and is_short(value) and all(map(is_short, _literals(expr))):
                assert not kept, (expr, value)


def _literals(expr: Expression) -> Iterable[Any]:
    return [literal for atom in atoms(expr) for literal in atom.literals]


@settings(max_examples=examples(80, thorough=1000))
@given(cases())
def test_contradictions(case: tuple[str, list[Any], Expression]) -> None:
    kind, values, expr = case
    exact, inexact = results(expr, kind, values)
    kept = [value for value, result in zip(values, exact, strict=True) if result]
    ranges = column_ranges(expr, inexact)
    assert is_unsatisfiable(expr, inexact) is (ranges is None)
    assert ranges is not None or not kept
    assert all(value in ranges["x"] for value in kept if ranges and "x" in ranges)
    for shorter in (simplify(expr), without_contradictions(simplify(expr), inexact)):
        assert [bool(result) for result in results(shorter, kind, values)[0]] == [bool(result) for result in exact]


@given(cases(), st.integers(0, 7))
def test_weaker_predicates(case: tuple[str, list[Any], Expression], kept_atoms: int) -> None:
    """With some atoms left out, the rest is true wherever the predicate is."""
    kind, values, expr = case
    exact, _ = results(expr, kind, values)
    numbers = {atom: number for number, atom in enumerate(dict.fromkeys(atoms(expr)))}
    weaker = implied(expr, lambda atom: atom if kept_atoms >> numbers[atom] & 1 else None)
    if weaker is not None:
        found, _ = results(weaker, kind, values)
        assert all(after for before, after in zip(exact, found, strict=True) if before)
    rest = implied(expr, lambda _: None)  # of constants alone
    assert rest is None or simplify(rest) == Constant(False)


@settings(max_examples=examples(80, thorough=1000))
@given(cases())
def test_bloom_filters(case: tuple[str, list[Any], Expression]) -> None:
    kind, values, expr = case
    exact, _ = results(expr, kind, values)
    leaf = PrunedFile(pa.table({"x": array(kind, values)}), rows_per_page=1).leaf("x")
    probes, encode = compile_probes(expr, {"x": leaf}), plain_encoder(leaf)
    if probes is None or encode is None:
        return
    domain = domain_of(kind_of_leaf(leaf, order_of(leaf, ColumnOrder.TYPE_ORDER)))
    for value, result in zip(values, exact, strict=True):
        literal = None if value is None else domain.to_key(value)
        hashes = set(map(xxh64, encode(literal.key))) if isinstance(literal, Comparable) else set()
        assert may_match(probes, lambda _, hash_, hashes=hashes: hash_ in hashes) or result is not True, (expr, value)  # type: ignore[misc]


@given(st.data(), st.sampled_from(["string", "binary"]), st.integers(1, 4))
def test_ngrams(data: st.DataObject, kind: str, n: int) -> None:
    values = data.draw(arrays(kind, min_size=1))
    atom: Any = data.draw(random_atoms("x", kind, foreign=False))
    for value, result in zip(values, results(atom, kind, values)[0], strict=True):
        for gram in needed_ngrams(atom, TRUTHS[result], n) or ():
            assert gram in (value.encode() if isinstance(value, str) else value)


# -- catalogs and engines with rules of their own -----------------------------------------------------


@pytest.mark.heavy
@settings(max_examples=examples(80, thorough=1000))
@given(cases())
def test_iceberg_partitions(case: tuple[str, list[Any], Expression]) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg import types
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform

    from asyncpq.tables.iceberg.manifests import PartitionFilter

    kind, values, expr = case
    kinds: dict[str, Any] = {
        "int32": types.IntegerType(),
        "int64": types.LongType(),
        "float64": types.DoubleType(),
        "float32": types.FloatType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "bool": types.BooleanType(),
        "decimal": types.DecimalType(7, 2),
    }
    assume(kind in kinds)
    field = types.NestedField(1, "x", kinds[kind], required=False)
    schema, spec = Schema(field), PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    exact, _ = results(expr, kind, values)
    kept = PartitionFilter(expr, schema, {"x": field})
    for value, result in zip(values, exact, strict=True):
        held = value.quantize(Decimal("0.01")) if isinstance(value, Decimal) else value
        assert kept.keeps_partition([held], spec, "x") or result is not True, (expr, value)


_FLOATS = [-math.inf, -1.0, -0.0, 0.0, 0.1, 1.0, math.inf, math.nan]
_SINGLES = [struct.unpack("<f", struct.pack("<f", value))[0] for value in _FLOATS]
_SPARK: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "double": (pa.float64(), _FLOATS, [*_FLOATS, 1, Decimal("0.1")]),
    "float": (pa.float32(), _SINGLES, [*_FLOATS, *_SINGLES, 1]),
    "bigint": (pa.int64(), [-1, 0, 1, 2**53 + 1], [0, 1, 2, Decimal(1), 2**53 + 1]),
    "string": (pa.string(), ["", "a", "ab", "b", "é"], ["", "a", "ab", "b"]),
    "boolean": (pa.bool_(), [True, False], [True, False]),
}


@st.composite
def spark_cases(draw: st.DrawFn) -> tuple[str, Expression]:
    """A type of Spark's, and a condition on a column of it."""
    kind = draw(st.sampled_from(list(_SPARK)))
    literal = st.sampled_from(_SPARK[kind][2])
    many = st.lists(literal | st.none(), max_size=3).map(tuple)
    choices: list[st.SearchStrategy[Expression]] = [
        st.builds(Comparison, st.just("x"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), literal | st.none()),
        st.builds(In, st.just("x"), many),
        st.builds(KeyIn, st.just("x"), many),
        st.builds(IsNull, st.just("x")),
    ]
    if kind == "string":
        choices += [st.builds(make, st.just("x"), literal) for make in (StartsWith, Contains)]
        choices.append(st.builds(Like, st.just("x"), st.sampled_from(["a%", "%b", "a_", "%a%b%", "a"])))
    if kind in ("float", "double"):
        choices += [st.builds(make, st.just("x"), st.sampled_from(["N", "NaN"])) for make in (StartsWith, Contains)]
        choices.append(st.builds(Like, st.just("x"), st.sampled_from(["N%", "%a%", "_"])))
    return kind, draw(trees(st.one_of(choices)))


def by_spark(expr: Expression, value: Any) -> bool | None:
    """Spark's result for a value of the column: NaN equals itself and is greater than all else."""
    if isinstance(expr, (Constant, Not)):
        if isinstance(expr, Constant):
            return expr.value
        inner = by_spark(expr.arg, value)
        return None if inner is None else not inner
    if isinstance(expr, (In, KeyIn)):
        members = [one for one in expr.values if one is not None and (one == one or isinstance(expr, In))]
        found = by_spark(Or(tuple(Comparison("x", "==", one) for one in members)), value)
        with_null = isinstance(expr, In) and None in expr.values
        return value is None or found is True if with_null else found
    if isinstance(expr, Atom):
        return _atom_by_spark(expr, value)
    found_results = [by_spark(arg, value) for arg in expr.args]  # type: ignore[attr-defined]  # of AND and OR
    decisive = isinstance(expr, Or)
    return decisive if decisive in found_results else None if None in found_results else not decisive


def _atom_by_spark(atom: Atom, value: Any) -> bool | None:
    if isinstance(atom, IsNull):
        return value is None
    if value is None or None in atom.literals:
        return None
    if not isinstance(atom, Comparison):
        if isinstance(value, float):  # Spark casts it to text; that of numbers has none of the letters
            value = "NaN" if value != value else "10"
        return results(atom, "string", [value])[0][0]
    (literal,) = atom.literals
    if isinstance(value, float):
        literal = float(literal)  # type: ignore[arg-type]  # a number
    left, right = ((one != one, 0 if one != one else one) for one in (value, literal))
    below, equal = left < right, left == right
    by_op = {"==": equal, "!=": not equal, "<": below, ">=": not below, "<=": below or equal, ">": not (below or equal)}
    return by_op[atom.op]


@pytest.mark.heavy
@settings(max_examples=examples(150, thorough=1000))
@given(spark_cases())
def test_spark_conditions(case: tuple[str, Expression]) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import BooleanType, DataType, DoubleType, FloatType, LongType, StringType, StructType

    from asyncpq.spark.reads.pruning_terms import LakeColumns, pruning_terms
    from asyncpq.spark.types.read_conf import ReadConf

    kind, condition = case
    type_, values, _ = _SPARK[kind]
    schema = pa.schema([("x", type_)])
    by_name: list[DataType] = [DoubleType(), FloatType(), LongType(), StringType(), BooleanType()]
    struct = StructType().add("x", next(one for one in by_name if one.simpleString() == kind))
    terms = pruning_terms(condition, LakeColumns(struct, schema, ReadConf()), schema, {})
    if terms is None:
        return
    values = [*values, None]
    kept = compile_filter(terms, schema).mask({"x": pa.array(values, type_)}, len(values)).to_pylist()
    for value, term in zip(values, kept, strict=True):
        assert term is True or by_spark(condition, value) is not True, (condition, terms, value)


@pytest.mark.parametrize("values", [("2024-01-01",), ("2024-01-01", "2024-01-02")])
def test_spark_may_compare_dates_with_a_list_of_texts_as_texts(values: tuple[str, ...]) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import DateType, StructType

    from asyncpq.spark.reads.pruning_terms import LakeColumns, pruning_terms
    from asyncpq.spark.types.read_conf import ReadConf

    schema = pa.schema([("x", pa.date32())])
    columns = LakeColumns(StructType().add("x", DateType()), schema, ReadConf())
    assert pruning_terms(In("x", values), columns, schema, {}) is None
    assert pruning_terms(KeyIn("x", values), columns, schema, {}) is None
    assert pruning_terms(Comparison("x", "==", values[0]), columns, schema, {}) is not None
