"""Spark's values from Arrow batches, without Spark; against Spark itself: tests/spark/test_types*.py."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from asyncpq.errors import AmbiguousColumnError, CorruptFileError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.spark.types.conversion import (
    FIELD_ID_KEY,
    LeafRules,
    arrow_schema,
    for_other_files,
    from_spark,
    lake_column,
    lake_field,
    leaf_conversion,
    rebase_days,
    rebase_micros,
)
from asyncpq.spark.types.read_conf import FileDates, ReadConf, RebaseCalendar, TimestampLoss, nullable_struct
from tests.spark.types.test_parquet_schema import INT96, element, file_of
from tests.spark.types_files import to_spark

CONF = ReadConf()
LEGACY = RebaseCalendar("LEGACY", "UTC")


def struct(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def converted(
    table: dict[str, pa.Array], schema: StructType, conf: ReadConf = CONF, dates: FileDates | None = None
) -> pa.RecordBatch:
    batch = pa.record_batch(table)
    got = to_spark(batch, schema, conf) if dates is None else to_spark(batch, schema, conf, dates)
    got.validate(full=True)
    assert got.schema.equals(arrow_schema(schema), check_metadata=True)
    return got


# -- columns --------------------------------------------------------------------------------------


def test_columns_are_found_by_name() -> None:
    table = {"B": pa.array([1], pa.int32()), "s": pa.array([{"X": 1, "y": 2}]), "z": pa.array(["z"])}
    schema = struct(s=struct(x=LongType(), w=StringType()), b=IntegerType(), missing=ArrayType(LongType()))
    (row,) = converted(table, schema).to_pylist()
    assert row == {"s": {"x": 1, "w": None}, "b": 1, "missing": None}
    (row,) = converted(table, schema, ReadConf(case_sensitive=True)).to_pylist()
    assert row == {"s": {"x": None, "w": None}, "b": None, "missing": None}


def test_columns_that_differ_in_case_only() -> None:
    table = {"b": pa.array([1]), "B": pa.array([2])}
    with pytest.raises(AmbiguousColumnError, match="'b', 'B'") as raised:
        converted(table, struct(b=LongType()))
    assert raised.value.column == "b"
    inside = {"s": pa.array([{"b": 1, "B": 2}])}
    with pytest.raises(AmbiguousColumnError) as raised:
        converted(inside, struct(s=struct(B=LongType())))
    assert raised.value.column == "s.B"


def test_what_needs_nothing_is_not_copied() -> None:
    table = {"a": pa.array([1, None]), "l": pa.array([["x"]] * 2, pa.list_(pa.field("element", pa.string())))}
    batch = pa.record_batch(table)
    got = to_spark(batch, struct(a=LongType(), l=ArrayType(StringType())), CONF)
    for before, after in zip(batch.columns, got.columns, strict=True):
        theirs = [None if buffer is None else buffer.address for buffer in before.buffers()]
        assert theirs == [None if buffer is None else buffer.address for buffer in after.buffers()]


def test_errors_name_the_part() -> None:
    table = {"l": pa.array([[{"d": 1.5}]])}
    with pytest.raises(SchemaMismatchError, match="PARQUET_COLUMN_DATA_TYPE_MISMATCH") as raised:
        converted(table, struct(l=ArrayType(struct(d=StringType()))))
    assert raised.value.column == "l.element.d"
    with pytest.raises(SchemaMismatchError) as raised:
        converted({"t": pa.array([2**62], pa.timestamp("ms"))}, struct(t=TimestampType()))
    assert raised.value.column == "t"
    with pytest.raises(UnsupportedFeatureError, match="interval") as refused:
        arrow_schema(struct(y=YearMonthIntervalType()))
    assert refused.value.column == "y"


def test_field_ids_are_refused() -> None:
    schema = StructType([StructField("a", LongType(), True, {FIELD_ID_KEY: 1})])
    assert converted({"a": pa.array([1])}, schema).num_rows == 1
    with pytest.raises(UnsupportedFeatureError, match="field ids"):
        converted({"a": pa.array([1])}, schema, ReadConf(field_ids=True))


def test_bytes_that_are_not_utf8() -> None:
    """Spark does not look at them."""
    got = to_spark(pa.record_batch({"s": pa.array([b"\xff"])}), struct(s=StringType()), CONF)
    assert got.column(0).view(pa.binary()).to_pylist() == [b"\xff"]


def _lists(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(leaves, max_size=3)


_ROWS = st.lists(
    _lists(st.none() | st.fixed_dictionaries({"m": _lists(st.tuples(st.integers(0, 9), st.none() | st.text()))})),
    max_size=8,
)


@given(rows=_ROWS, start=st.integers(0, 4), view=st.booleans())
@settings(max_examples=60, deadline=None)
def test_nested_values_stay(rows: list[Any], start: int, view: bool) -> None:
    """Whatever the kind of lists, and for slices, too."""
    entries = pa.struct([("m", pa.map_(pa.uint8(), pa.large_string()))])
    source = pa.large_list(entries) if view else pa.list_(pa.field("item", entries))
    array = pa.array(rows, source)[start:]
    schema = struct(c=ArrayType(struct(m=MapType(IntegerType(), StringType()))))
    assert converted({"c": array}, schema).column(0).to_pylist() == rows[start:]


def test_variants() -> None:
    fields = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
    array = pa.array([{"metadata": b"m", "value": b"v"}, None], pa.struct(fields))
    got = converted({"v": array}, struct(v=VariantType()))
    assert got.column(0).to_pylist() == [{"value": b"v", "metadata": b"m"}, None]
    shredded = pa.array(
        [{"metadata": b"\x01\0\0", "value": None, "typed_value": 1}, None, {"metadata": b"\x01\0\0", "value": b"v"}]
    )
    got = converted({"v": shredded}, struct(v=VariantType()))
    values = [{"value": value, "metadata": b"\x01\0\0"} for value in (b"\x0c\x01", b"v")]
    assert got.column(0).to_pylist() == [values[0], None, values[1]]
    with pytest.raises(CorruptFileError, match="malformed") as raised:
        converted({"v": pa.array([{"metadata": b"m", "typed_value": 1}])}, struct(v=VariantType()))
    assert raised.value.column == "v"
    with pytest.raises(UnsupportedFeatureError, match="not shredded into"):
        converted({"v": pa.array([{"metadata": b"m", "value": b"v", "more": 1}])}, struct(v=VariantType()))


# -- calendars ------------------------------------------------------------------------------------


def _julian_day(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date by the Julian calendar."""
    years, months = year + 4800 - (14 - month) // 12, month + 12 * ((14 - month) // 12) - 3
    number = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
    return number - 2_440_588


@given(st.dates(max_value=dt.date(1582, 10, 4)))
def test_days_keep_their_names(date: dt.date) -> None:
    stored = pa.array([_julian_day(date.year, date.month, date.day)], pa.int32())
    assert rebase_days(stored, LEGACY).view(pa.date32()).to_pylist() == [date]
    clock = pa.array([stored[0].as_py() * 86_400_000_000 + 1], pa.int64())
    expected = dt.datetime(date.year, date.month, date.day, 0, 0, 0, 1)
    assert rebase_micros(clock, LEGACY, "datetime").view(pa.timestamp("us")).to_pylist() == [expected]


def test_days_of_todays_calendar_stay() -> None:
    for days in (pa.array([-141_427, None, 0], pa.int32()), pa.array([], pa.int32()), pa.nulls(2, pa.int32())):
        for mode in ("LEGACY", "EXCEPTION", "CORRECTED"):
            assert rebase_days(days, RebaseCalendar(mode, "UTC")).equals(days)
    old = pa.array([-141_428], pa.int32())
    assert rebase_days(old, RebaseCalendar("CORRECTED")) is old
    with pytest.raises(UnsupportedFeatureError, match="READ_ANCIENT_DATETIME"):
        rebase_days(old, RebaseCalendar("EXCEPTION"))
    before = rebase_days(pa.array([-719_165], pa.int32()), LEGACY)
    assert before.to_pylist() == [-719_163]  # 31 December of the year before 1


def test_what_a_footer_says() -> None:
    metadata = file_of(element("c", INT96))
    assert CONF.of_file(metadata) == FileDates(int96_fields=frozenset({"c"}))
    found = ReadConf(datetime_rebase_mode="EXCEPTION", int96_rebase_mode="LEGACY").of_file(metadata)
    assert (found.datetime.mode, found.int96.mode, found.int96_zone) == ("EXCEPTION", "LEGACY", None)
    assert pickle.loads(pickle.dumps(found)) == found


def test_int96_is_rounded_down() -> None:
    nanos = [0, 999, 1000, -1, -999, -1000, -1001, None]
    dates = FileDates(int96_fields=frozenset({"t"}))
    got = converted({"t": pa.array(nanos, pa.timestamp("ns"))}, struct(t=TimestampType()), dates=dates)
    assert got.column(0).view(pa.int64()).to_pylist() == [0, 0, 1, -1, -1, -1, -2, None]
    with pytest.raises(SchemaMismatchError):  # TIMESTAMP(NANOS) is none of Spark's
        converted({"t": pa.array(nanos, pa.timestamp("ns"))}, struct(t=TimestampType()))


# -- writing --------------------------------------------------------------------------------------


def test_files_for_everybody() -> None:
    schema = StructType(
        [
            StructField("t", TimestampType(), False),
            StructField("n", TimestampNTZType()),
            StructField("clock", ArrayType(TimeType(6))),
            StructField("finest", TimeType(9)),
            StructField("text", StringType(), True, {"comment": "c"}),
            StructField("v", VariantType()),
        ]
    )
    writing = from_spark(schema, CONF)
    source = {
        "t": pa.array([1], pa.timestamp("us", "Asia/Tokyo")),
        "n": pa.array([1], pa.timestamp("us")),
        "clock": pa.array([[1000, None]], pa.list_(pa.time64("ns"))),
        "finest": pa.array([1], pa.time64("ns")),
        "text": pa.array(["x"], pa.large_string()),
        "v": pa.array([{"value": b"v", "metadata": b"m"}]),
    }
    batch = writing.convert(pa.record_batch(source))
    assert batch.schema.types[:4] == [
        pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.list_(pa.time64("us")), pa.time64("ns"),
    ]  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    back = pq.read_table(sink)
    assert back.to_pylist() == batch.to_pylist()
    assert back.schema.field("t").nullable  # as in files that Spark writes
    written = (back.schema.metadata or {})[b"org.apache.spark.sql.parquet.row.metadata"]
    assert StructType.fromJson(json.loads(written)) == nullable_struct(schema)
    with pytest.raises(UnsupportedFeatureError, match="void") as raised:
        from_spark(struct(a=struct(b=ArrayType(NullType()))), CONF)
    assert raised.value.column == "a.b"
    with pytest.raises(UnsupportedFeatureError, match="without fields"):
        from_spark(struct(a=StructType([])), CONF)
    with pytest.raises(AmbiguousColumnError):
        from_spark(struct(a=LongType(), A=LongType()), CONF)
    with pytest.raises(SchemaMismatchError, match="columns"):
        writing.convert(pa.record_batch({"t": source["t"]}))


def test_other_days_for_dates_alone() -> None:
    """A date in a file of the old calendar is rebased wherever it stands; TIMESTAMP_NTZ never is."""
    dates = FileDates(datetime=LEGACY)
    stored = _julian_day(1000, 3, 1)
    table = {
        "d": pa.array([[stored]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        "n": pa.array([stored * 86_400_000_000], pa.timestamp("us")),
    }
    got = converted(table, struct(d=ArrayType(DateType()), n=TimestampNTZType()), dates=dates)
    assert got.to_pylist()[0] == {"d": [dt.date(1000, 3, 1)], "n": dt.datetime(1000, 3, 7)}


_RULES = LeafRules(FileDates(), is_int96=False)


def _converted(array: pa.Array, target: DataType) -> list[Any]:
    convert = leaf_conversion(array.type, target, _RULES)
    values: list[Any] = (array if convert is None else convert(array)).to_pylist()
    return values


@pytest.mark.parametrize(
    ("array", "target", "values"),
    [
        (pa.array([1, None], pa.int32()), LongType(), [1, None]),
        (pa.array([1, 2], pa.int32()), DoubleType(), [1.0, 2.0]),
        (pa.array([300, -1], pa.int32()), ByteType(), [44, -1]),  # the low bits
        (pa.array([7], pa.int64()), DecimalType(20, 0), [Decimal(7)]),
        (pa.array([1.5], pa.float32()), DoubleType(), [1.5]),
        (pa.array(["a"]).dictionary_encode(), StringType(), ["a"]),
        (pa.array(["a"], pa.large_string()), StringType(), ["a"]),
        (pa.array([b"a"]), BinaryType(), [b"a"]),
        (pa.nulls(2), LongType(), [None, None]),
        (pa.array([dt.date(2024, 5, 1)]), DateType(), [dt.date(2024, 5, 1)]),
    ],
)
def test_values_are_those_of_sparks_reader(array: pa.Array, target: DataType, values: list[Any]) -> None:
    assert _converted(array, target) == values


@pytest.mark.parametrize("is_int96", [False, True])
@pytest.mark.parametrize("target", [TimestampType(), TimestampNTZType()])
def test_nanoseconds_become_timestamps_where_a_rewrite_says_what_becomes_of_digits(
    target: DataType, is_int96: bool
) -> None:
    def micros(*nanos: int | None, loss: TimestampLoss | None) -> list[Any]:
        rules = LeafRules(FileDates(), is_int96=is_int96, timestamp_loss=loss)
        convert = leaf_conversion(pa.timestamp("ns"), target, rules)
        assert convert is not None
        values: list[Any] = convert(pa.array(nanos, pa.timestamp("ns"))).cast(pa.int64()).to_pylist()
        return values

    assert micros(2_000, None, -3_000, loss="error") == [2, None, -3]
    assert micros(2_999, None, -2_999, loss="truncate") == [2, None, -3]  # down
    for digits in (2_001, -1):
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
            micros(0, digits, loss="error")
    if is_int96:
        assert micros(2_999, -1, loss=None) == [2, -1]  # as Spark reads
    else:
        with pytest.raises(SchemaMismatchError, match="Spark cannot read as"):
            micros(0, loss=None)


def test_equal_types_need_no_conversion() -> None:
    assert leaf_conversion(pa.int64(), LongType(), _RULES) is None
    assert leaf_conversion(pa.timestamp("us", "UTC"), TimestampType(), _RULES) is None


@pytest.mark.parametrize(
    ("source", "target"),
    [(pa.string(), LongType()), (pa.int64(), IntegerType()), (pa.float64(), LongType()), (pa.int32(), BooleanType())],
)
def test_types_that_spark_does_not_read_are_refused(source: pa.DataType, target: DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="Spark cannot read as"):
        leaf_conversion(source, target, _RULES)


_CONF = ReadConf(case_sensitive=False)
_UTC = pa.timestamp("us", "UTC")


def _lake_type(known: pa.DataType, asked: DataType, conf: ReadConf = _CONF) -> pa.DataType:
    field = lake_field(pa.field("Name", known), StructField("name", asked), conf)
    assert field.name == "Name"  # the name in files, whatever case Spark uses
    return field.type


def test_a_type_that_spark_reads_as_the_requested_one_stays() -> None:
    assert _lake_type(pa.int32(), IntegerType()) == pa.int32()
    assert _lake_type(pa.large_string(), StringType()) == pa.large_string()
    assert _lake_type(pa.uint32(), LongType()) == pa.uint32()  # Spark reads unsigned integers as the next wider type


def test_another_type_becomes_the_requested_one() -> None:
    assert _lake_type(pa.int32(), LongType()) == pa.int64()
    assert _lake_type(pa.timestamp("us"), TimestampType()) == _UTC


def test_parts_of_nested_columns_change_alone() -> None:
    known = pa.struct([("A", pa.large_string()), ("b", pa.list_(pa.int32())), ("unused", pa.int8())])
    asked = StructType(
        [
            StructField("a", StringType()),
            StructField("b", ArrayType(LongType())),
            StructField("new", MapType(StringType(), IntegerType())),
        ]
    )
    read = _lake_type(known, asked)
    assert [field.name for field in read] == ["A", "b", "new"]
    assert read.field("A").type == pa.large_string()
    assert read.field("b").type.value_type == pa.int64()
    assert read.field("new").type.item_type == pa.int32()
    names = [field.name for field in _lake_type(known, asked, ReadConf(case_sensitive=True))]
    assert names == ["a", "b", "new"]  # "a" is another column than "A"


def test_maps_keep_the_types_that_fit() -> None:
    read = _lake_type(pa.map_(pa.large_string(), pa.int32()), MapType(StringType(), LongType()))
    assert (read.key_type, read.item_type) == (pa.large_string(), pa.int64())


def test_a_missing_column_has_sparks_type() -> None:
    assert lake_column(StructField("at", TimestampType())).type == _UTC
    assert lake_column(StructField("n", IntegerType())).type == pa.int32()


@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [
        (pa.timestamp("ns"), TimestampType(), _UTC),
        (pa.timestamp("us"), TimestampNTZType(), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), TimestampType(), pa.timestamp("ms", "UTC")),
        (pa.int32(), LongType(), pa.int32()),
        (pa.uint32(), LongType(), pa.int64()),
        (pa.uint8(), ShortType(), pa.int16()),
        (pa.uint64(), DecimalType(20, 0), pa.uint64()),
        (pa.list_(pa.uint16()), ArrayType(IntegerType()), pa.list_(pa.int32())),
    ],
)
def test_types_of_one_file_hold_the_values_of_others(
    known: pa.DataType, asked: DataType, expected: pa.DataType
) -> None:
    assert for_other_files(pa.field("t", known), StructField("t", asked)).type == expected
