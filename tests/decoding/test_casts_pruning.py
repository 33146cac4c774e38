"""Every cast from a file's type to a dataset's, with literals of every type: pruning loses no row, and proves no
row that does not match. Values are exact or an error."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.datasets.column_matching import view_of
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError, SchemaMismatchError
from asyncpq.expressions import Comparison, Expression, In, IsNull, KeyIn, Not, StartsWith, atoms
from asyncpq.objects.version import FileVersion
from asyncpq.pruning.zone_maps import RowGroupPruning, RowGroupZones
from tests.parquet_files import row_groups_left, write
from tests.parquet_samples import OpenFile
from tests.predicates import DAY, EVERY_LITERAL, OPS, UTC

_INTS = [-(2**31), -4, -1, 0, 0, 1, 3, 255, 2**24, 2**24 + 1, 2**31 - 1]
_BIG = [-(2**53), -4, 0, 1, 2**53 - 1, 2**53]
_REALS = [-math.inf, -7.25, -1.0, -0.0, 0.0, 1.0, 1.5, 3.0, 2.0**24, math.inf, math.nan]
_DECIMALS = [Decimal(n) / 4 for n in (-5, -1, 0, 1, 5, 12)]
_TEXT = ["", "a", "ab", "b", "z" * 70, "é"]
_DAYS = [DAY + dt.timedelta(n) for n in (-400, -1, 0, 1, 2)]
_DATES = [day.date() for day in _DAYS]
_INSTANTS = [day.replace(tzinfo=UTC) for day in _DAYS]
_CLOCKS = [dt.time(0), dt.time(1), dt.time(0, 0, 1), dt.time(23, 59)]
_SPANS = [dt.timedelta(n) for n in (-1, 0, 1)]
_RAW = [b"", b"a", b"ab", b"\xc3\xa9", b"b"]

CASTS: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    *[(pa.int32(), target, _INTS) for target in (pa.int64(), pa.float64(), pa.decimal128(12, 2), pa.decimal128(11, 0))],
    (pa.int8(), pa.int32(), [-128, -1, 0, 3, 127]),
    (pa.int8(), pa.float32(), [-128, -1, 0, 3, 127]),
    (pa.int8(), pa.uint64(), [0, 3, 127]),
    (pa.uint8(), pa.int16(), [0, 3, 255]),
    (pa.uint32(), pa.int64(), [0, 3, 2**31, 2**32 - 1]),
    (pa.uint64(), pa.int64(), [0, 3, 2**63 - 1]),
    (pa.int64(), pa.int32(), _INTS),
    (pa.int64(), pa.uint64(), [0, 1, 2**63 - 1]),
    (pa.int64(), pa.float64(), _BIG),
    (pa.int64(), pa.decimal128(20, 0), [*_BIG, 2**53 + 1, 2**63 - 1]),
    (pa.int64(), pa.decimal256(50, 3), [*_BIG, -(2**63)]),
    (pa.int32(), pa.float32(), [-(2**24), -1, 0, 1, 2**24]),
    (pa.float32(), pa.float64(), _REALS),
    (pa.float16(), pa.float32(), [-1.5, 0.0, -0.0, 2.0, math.nan]),
    (pa.decimal128(5, 2), pa.decimal128(7, 2), _DECIMALS),
    (pa.decimal128(5, 2), pa.decimal128(20, 6), _DECIMALS),
    (pa.decimal128(20, 2), pa.decimal256(50, 2), _DECIMALS),
    (pa.decimal128(20, 2), pa.decimal128(9, 2), _DECIMALS),
    (pa.date32(), pa.timestamp("us"), _DATES),
    (pa.date32(), pa.timestamp("s"), _DATES),
    (pa.date32(), pa.date64(), _DATES),
    (pa.timestamp("ms"), pa.timestamp("us"), _DAYS),
    (pa.timestamp("ms"), pa.timestamp("ns"), _DAYS),
    (pa.timestamp("us"), pa.timestamp("ms"), _DAYS),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"), _INSTANTS),
    (pa.timestamp("us", "+02:00"), pa.timestamp("ns", "UTC"), _INSTANTS),
    (pa.time32("ms"), pa.time64("us"), _CLOCKS),
    (pa.time64("us"), pa.time64("ns"), _CLOCKS),
    (pa.duration("ms"), pa.duration("us"), _SPANS),
    *[(pa.string(), target, _TEXT) for target in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())],
    (pa.large_string(), pa.string(), _TEXT),
    (pa.string_view(), pa.string(), _TEXT),
    *[(pa.binary(), target, _RAW) for target in (pa.string(), pa.large_binary(), pa.binary_view())],
    (pa.binary(2), pa.binary(), [b"aa", b"ab", b"\xff\xff"]),
    (pa.binary(), pa.binary(2), [b"aa", b"ab", b"\xff\xff"]),
    (pa.binary(16), pa.uuid(), [bytes([0x10]) * 16, b"b" * 16]),
    (pa.uuid(), pa.binary(16), [bytes([0x10]) * 16, b"b" * 16]),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), _TEXT),
    (pa.string(), pa.dictionary(pa.int8(), pa.string()), _TEXT),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), _TEXT),
]
_EXTRA: list[Any] = [-(2**63), 2**31 - 1, 2**53, 2.0**53, -math.inf, 1e-3, Decimal(2**53 + 1), Decimal("-0.25")]
_EXTRA += [DAY - dt.timedelta(400), dt.datetime(9999, 12, 31), dt.date(9999, 12, 31), dt.date(1, 1, 1), b"aa", "b"]
_LITERALS: list[Any] = [value for value in EVERY_LITERAL if value is not None] + _EXTRA


def _version(data: bytes) -> FileVersion:
    return OpenFile(data).version


def _id(case: tuple[pa.DataType, pa.DataType, list[Any]]) -> str:
    return f"{case[0]}-{case[1]}"


def _predicates(literals: list[Any]) -> list[Expression]:
    found: list[Expression] = []
    for value in literals:
        found += [Comparison("v", op, value) for op in OPS]  # type: ignore[arg-type]  # the operators
        found += [In("v", (value,)), In("v", (value, None)), KeyIn("v", (value,))]
        if isinstance(value, (str, bytes)):
            found.append(StartsWith("v", value))
    found += [IsNull("v"), IsNull("v", nan_is_null=True), Comparison("v", "==", None), KeyIn("v", (0, 0.0, 1))]
    return found + [Not(expr) for expr in found]


PREDICATES = [_predicates(_LITERALS[third::3]) for third in range(3)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("third", [0, *(pytest.param(third, marks=pytest.mark.slow) for third in (1, 2))])
@pytest.mark.parametrize("case", CASTS, ids=map(_id, CASTS))
def test_pruning_by_the_files_statistics_is_sound_for_the_datasets_type(
    case: tuple[pa.DataType, pa.DataType, list[Any]], third: int
) -> None:
    source, target, values = case
    plain = source.value_type if isinstance(source, pa.DictionaryType) else source
    array = pa.array([*values, None], plain)
    array = array.dictionary_encode() if plain is not source else array
    blooms = [] if pa.types.is_float16(source) or isinstance(source, pa.UuidType) else ["v"]
    data = write(pa.table({"v": array}), blooms, rows_per_group=1, write_statistics=True)
    version, schema = _version(data), pa.schema([("v", target)])
    view = view_of(version, schema, None, {})
    (column,) = view.columns(version, view.ordinals(None), frozenset())
    conformed = column.array(array, len(array))
    assert conformed.type == target
    if not any(isinstance(kind, (pa.DictionaryType, pa.UuidType)) for kind in (source, target)):
        wide = pa.types.is_integer(source) and pa.types.is_decimal(target)
        cast = (array.cast(pa.decimal128(30, 5)) if wide else array).cast(target)
        assert repr(conformed.to_pylist()) == repr(cast.to_pylist())
    leaf, inexact = view.leaf(version, "v")
    assert leaf is not None
    zones = {"v": RowGroupZones(version.metadata, leaf)}
    judged = pruned = 0
    for predicate in PREDICATES[third]:
        try:
            mask = compile_filter(predicate, schema).mask({"v": conformed}, len(array))
        except PredicateTypeError:
            continue
        judged += 1
        matching = {row for row, matches in enumerate(mask.to_pylist()) if matches}
        (atom,) = atoms(predicate)
        if not inexact.isdisjoint(map(type, atom.literals)):
            continue
        found = RowGroupPruning(predicate, zones, len(array))
        pruned += found.kept.num_rows < len(array)
        assert matching <= set(found.kept.rows()), (predicate, conformed)
        assert set(found.all_match.rows()) <= matching, (predicate, conformed)
        if blooms and (
            isinstance(predicate, (In, KeyIn)) or (isinstance(predicate, Comparison) and predicate.op == "==")
        ):
            assert matching <= set(row_groups_left(data, predicate)), (predicate, conformed)
    assert pruned > 2 or pa.types.is_float16(source) or pa.types.is_duration(source)
    assert judged > 5


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        (pa.int64(), pa.int32(), [2**31]),
        (pa.int32(), pa.uint32(), [-1]),
        (pa.uint64(), pa.int64(), [2**63]),
        (pa.int64(), pa.float64(), [2**53 + 1]),
        (pa.int32(), pa.float32(), [2**24 + 1]),
        (pa.int32(), pa.decimal128(5, 2), [1000]),
        (pa.decimal128(5, 2), pa.decimal128(5, 1), [Decimal("1.25")]),
        (pa.decimal128(5, 0), pa.decimal128(5, 2), [Decimal(99999)]),
        (pa.timestamp("us"), pa.timestamp("ms"), [dt.datetime(2020, 1, 1, microsecond=1)]),
        (pa.timestamp("us"), pa.timestamp("ns"), [dt.datetime(9999, 1, 1)]),
        (pa.date32(), pa.timestamp("ns"), [dt.date(9999, 1, 1)]),
        (pa.time64("us"), pa.time32("ms"), [dt.time(0, 0, 0, 1)]),
        (pa.binary(), pa.string(), [b"\xff"]),
        (pa.binary(), pa.binary(2), [b"abc"]),
        (pa.list_(pa.int64()), pa.list_(pa.int8()), [[1, 300]]),
        (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), [[1, 2], [1]]),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8())]), [{"a": 300}]),
        (pa.dictionary(pa.int32(), pa.binary()), pa.string(), [b"\xff"]),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), [str(at) for at in range(200)]),
    ],
    ids=str,
)
def test_a_value_that_the_datasets_type_does_not_hold_is_an_error(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    plain = source.value_type if isinstance(source, pa.DictionaryType) else source
    array = pa.array([*values, None], plain)
    array = array.dictionary_encode() if plain is not source else array
    version = _version(write(pa.table({"v": array}), [], rows_per_group=1000))
    view = view_of(version, pa.schema([("v", target)]), None, {})
    (column,) = view.columns(version, view.ordinals(None), frozenset())
    with pytest.raises(SchemaMismatchError, match="cannot be converted to the dataset's type") as raised:
        column.array(array, len(array))
    assert raised.value.column == "v"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.bool_(), pa.int8()),
        (pa.int32(), pa.date32()),
        (pa.int64(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.float64()),
        (pa.decimal128(5, 0), pa.int64()),
        (pa.string(), pa.uuid()),
        (pa.struct([("a", pa.int32())]), pa.int32()),
        (pa.int32(), pa.struct([("a", pa.int32())])),
        (pa.list_(pa.int32()), pa.struct([("a", pa.int32())])),
        (pa.map_(pa.string(), pa.int32()), pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())]))),
        (pa.list_(pa.string()), pa.list_(pa.int32())),
    ],
    ids=str,
)
def test_types_without_an_exact_cast_are_refused_once_the_column_is_asked_for(
    source: pa.DataType, target: pa.DataType
) -> None:
    data = write(pa.table({"v": pa.nulls(3, source), "w": [1, 2, 3]}), [], rows_per_group=1000)
    version = _version(data)
    view = view_of(version, pa.schema([("v", target), ("w", pa.int64())]), None, {})
    view.columns(version, view.ordinals(["w"]), frozenset())
    with pytest.raises(SchemaMismatchError) as raised:
        view.columns(version, view.ordinals(["v"]), frozenset())
    assert raised.value.url == "memory://file"
    assert str(raised.value.column).startswith("v")
