"""Values in paths are those that pyarrow.dataset finds there: columns, their order and types, nulls and encodings."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncpq.datasets.partitioning import HIVE_NULL, Partitioning, Partitions, parse_partitioning, read_partitions
from asyncpq.errors import InvalidOptionError, PartitionError, ResourceLimitError


def by_pyarrow(folders: list[str], partitioning: Any) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """What pyarrow finds; no file is read, so none need be there."""
    options = ds.FileSystemFactoryOptions(partition_base_dir="/root")
    if isinstance(partitioning, ds.PartitioningFactory):
        options.partitioning_factory = partitioning
    else:
        options.partitioning = partitioning
    paths = [f"/root/{folder}file{number}" for number, folder in enumerate(folders)]
    factory = ds.FileSystemDatasetFactory(pyarrow.fs._MockFileSystem(), paths, ds.ParquetFileFormat(), options)
    schema = factory.inspect(fragments=0)
    found = {
        fragment.path: ds.get_partition_keys(fragment.partition_expression)
        for fragment in factory.finish(schema).get_fragments()
    }
    return schema, [dict.fromkeys(schema.names) | found[path] for path in paths]


def with_longs(schema: pa.Schema, values: list[dict[str, Any]]) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """pyarrow's columns of strings as int64, if all their values are such numbers."""
    for number, name in enumerate(schema.names):
        texts = [item[name] for item in values if item[name] is not None]
        if schema.field(name).type != pa.string() or not all(re.fullmatch("-?[0-9]+", text) for text in texts):
            continue
        if texts and all(-(2**63) <= int(text) < 2**63 for text in texts):
            schema = schema.set(number, pa.field(name, pa.int64()))
            values = [item | {name: None if item[name] is None else int(item[name])} for item in values]
    return schema, values


def read(folders: list[str], partitioning: Partitioning | None) -> Partitions:
    return read_partitions(folders, [f"s3://bucket/{folder}file" for folder in folders], partitioning)


TEXTS = st.one_of(
    st.sampled_from(
        ["1", "-1", "007", "0", "-0", "2147483647", "2147483648", "-2147483648", "-2147483649", "99999999999"]
    ),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"]),
    st.sampled_from(["a", "", "+1", " 1", "1.5", "true", "2020-01-01", "\uff11", "a b+c", "a/b", "x=y", "100%", "%2F"]),
    st.integers(-300, 300).map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)
NAMES = st.sampled_from(["k", "year", "K", "a b", "\u00e9", "x%y"])
VALUES = st.one_of(st.integers(0, 40).map(str), TEXTS)


@st.composite
def hive_folders(draw: st.DrawFn) -> list[str]:
    pools = {name: draw(st.lists(VALUES | st.just(HIVE_NULL), min_size=1, max_size=4)) for name in draw(st.sets(NAMES))}

    def segment(name: str) -> str:
        value = draw(st.sampled_from(pools[name]))
        key = quote(name, safe="" if draw(st.booleans()) else " \u00e9").replace("=", "%3D")
        return f"{key}={quote(value, safe=draw(st.sampled_from(['', ' =+'])))}/"

    folders = []
    for _ in range(draw(st.integers(1, 8))):
        names = draw(st.permutations(sorted(pools)))[: draw(st.integers(0, len(pools)))]
        parts = [segment(name) for name in names]
        if draw(st.booleans()):
            parts.insert(draw(st.integers(0, len(parts))), "plain/")
        folders.append("".join(parts))
    return folders


@given(hive_folders())
@example(["k=1/", "k=__HIVE_DEFAULT_PARTITION__/", ""])
@example(["k=%5F_HIVE_DEFAULT_PARTITION__/", "k=x/"])
@example(["=1/"])
@example(["k=9223372036854775807/", "k=-9223372036854775808/", "k=007/"])
@example(["k=9223372036854775808/", "k=1/"])
def test_hive_as_pyarrow(folders: list[str]) -> None:
    found = read(folders, parse_partitioning("hive"))
    assert not found.errors
    try:
        schema, values = with_longs(*by_pyarrow(folders, ds.HivePartitioning.discover()))
    except pa.ArrowInvalid as error:
        assert "No non-null segments" in str(error)  # noqa: PT017  # all null: strings here
        assert any({item.get(name) for item in found.values} == {None} for name in found.schema.names)
        return
    assert found.schema.equals(schema)
    assert list(found.values) == values


@given(st.lists(st.lists(TEXTS.filter(bool) | st.just(HIVE_NULL), max_size=4), min_size=1, max_size=6))
def test_folders_as_pyarrow(rows: list[list[str]]) -> None:
    folders = ["".join(f"{quote(text, safe='')}/" for text in row) for row in rows]
    names = ["a", "b", "c"]
    found = read(folders, parse_partitioning(names))
    assert not found.errors
    try:
        schema, values = with_longs(*by_pyarrow(folders, ds.DirectoryPartitioning.discover(names)))
    except pa.ArrowInvalid:
        assert any({item.get(name) for item in found.values} == {None} for name in names)
        return
    assert found.schema.equals(schema)
    assert list(found.values) == values


TYPED = {
    pa.int64(): ["1", "-1", "01", "9223372036854775807", "9223372036854775808", " 1", "+1", "1.0", "", "x"],
    pa.uint8(): ["255", "256", "-1"],
    pa.bool_(): ["true", "True", "1", "0", "FALSE", "yes", ""],
    pa.float64(): ["1.5", "nan", "inf", "-inf", "-0", "1e3", "1,5", " 1"],
    pa.float32(): ["0.1", "16777217"],
    pa.date32(): ["2020-01-01", "2020-1-1", "20200101", "1960-02-29", "1961-02-29"],
    pa.timestamp("s"): ["2020-01-01 00:00:00", "2020-01-01", "2020-01-01 00:00:00.5"],
    pa.timestamp("us"): ["2020-01-01T00:00:00", "2020-01-01 10%3A00%3A00.123456", "x"],
    pa.timestamp("us", "Europe/Berlin"): ["2020-01-01 00:00:00", "2020-01-01T00:00:00Z"],
    pa.timestamp("ns"): ["2020-01-01 00:00:00", "1960-01-01 00:00:00.000001"],
    pa.string(): ["x", "", "1", "a%2Fb"],
    pa.large_string(): ["x"],
    pa.binary(): ["x", "%00"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TYPED.items() for text in texts], ids=str)
def test_given_types_as_pyarrow(kind: pa.DataType, text: str) -> None:
    folders = [f"k={text}/"]
    found = read(folders, parse_partitioning("hive", {"k": kind}))
    try:
        schema, (expected,) = by_pyarrow(folders, ds.partitioning(pa.schema([("k", kind)]), flavor="hive"))
    except pa.ArrowInvalid:
        assert isinstance(found.errors[0], PartitionError)
        assert found.errors[0].column == "k"
        assert str(kind) in str(found.errors[0])
        return
    assert not found.errors
    assert found.schema.equals(schema)
    value = found.values[0]["k"]
    wanted = expected["k"].to_pydatetime() if hasattr(expected["k"], "to_pydatetime") else expected["k"]
    assert value == wanted or (math.isnan(value) and math.isnan(wanted))
    assert type(value) is type(wanted)
    if isinstance(value, dt.datetime):
        assert value.utcoffset() == wanted.utcoffset()


def test_types_that_pyarrow_does_not_parse() -> None:
    decimal = read(["k=1.5/", "k=1.555/"], parse_partitioning("hive", {"k": pa.decimal128(5, 2)}))
    assert decimal.values[0]["k"] == Decimal("1.50")
    assert list(decimal.errors) == [1]
    coded = read(["k=x/"], parse_partitioning("hive", {"k": pa.dictionary(pa.int32(), pa.string())}))
    assert (coded.schema.field("k").type, coded.values[0]["k"]) == (pa.dictionary(pa.int32(), pa.string()), "x")
    with pytest.raises(InvalidOptionError, match=r"values of type list.* cannot be parsed from paths"):
        read(["k=1/"], parse_partitioning("hive", {"k": pa.list_(pa.int64())}))
    nanoseconds = read(["k=2020-01-01 00:00:00.000000001/"], parse_partitioning("hive", {"k": pa.timestamp("ns")}))
    assert list(nanoseconds.errors) == [0]


def test_large_integers_are_int64() -> None:
    found = read(["k=20240229120000/", "k=1/", f"k={HIVE_NULL}/"], parse_partitioning("hive"))
    assert found.schema == pa.schema([("k", pa.int64())])
    assert [item["k"] for item in found.values] == [20240229120000, 1, None]
    text = read(["k=20240229120000/"], parse_partitioning("hive", {"k": pa.string()}))
    assert text.values[0]["k"] == "20240229120000"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("text", ["2020-01-01T00:00:00Z", "2020-01-01 00:00:00.5+01:00", "2020-01-01 00:00-0030"])
def test_times_with_a_zone_need_a_type_with_one(text: str, unit: str) -> None:
    """pyarrow.dataset shifts them to UTC, where a column without a zone would have another time than its path."""
    folders = [f"k={text}/", "k=2020-01-01 00:00:00/"]
    found = read(folders, parse_partitioning("hive", {"k": pa.timestamp(unit)}))
    assert list(found.errors) == [0]
    assert "pyarrow.timestamp('us', 'UTC') for times with a zone" in str(found.errors[0])
    assert found.values[1]["k"] == dt.datetime(2020, 1, 1)
    zoned = read(folders, parse_partitioning("hive", {"k": pa.timestamp("us", "UTC")}))
    assert not zoned.errors
    assert zoned.values[0]["k"] == dt.datetime.fromisoformat(text)


def test_some_types_are_given() -> None:
    found = read(["a=1/b=2/", "a=3/"], parse_partitioning("hive", pa.schema([("b", pa.int8()), ("c", pa.date32())])))
    assert found.schema == pa.schema([("a", pa.int32()), ("b", pa.int8()), ("c", pa.date32())])
    assert list(found.values) == [{"a": 1, "b": 2, "c": None}, {"a": 3, "b": None, "c": None}]


def test_errors_name_file_and_segment() -> None:
    found = read(["k=1/", "k=%E4/", "k=1/k=2/", "k=1/k=1/"], parse_partitioning("hive"))
    assert list(found.errors) == [1, 2]
    assert "'%E4' in the file's path is not UTF-8; s3://bucket/k=%E4/file" in str(found.errors[1])
    assert "two values of the partition column 'k': 'k=2'" in str(found.errors[2])
    assert [found.values[number]["k"] for number in (0, 3)] == [1, 1]


def test_only_null_is_a_string() -> None:
    found = read([f"k={HIVE_NULL}/"], parse_partitioning("hive"))
    assert found == Partitions(pa.schema([("k", pa.string())]), [{"k": None}], {})


def test_no_partitioning() -> None:
    assert read(["k=1/"], None) == Partitions(pa.schema([]), [{}], {})


@pytest.mark.parametrize(
    ("partitioning", "types"),
    [
        ("hiv", None),
        (["a", "a"], None),
        (["a", ""], None),
        ([1], None),
        (7, None),
        (None, {"k": pa.int32()}),
        (["a"], {"b": pa.int32()}),
        ("hive", {"k": "int32"}),
        ("hive", [("k", pa.int32())]),
        ("hive", pa.schema([("k", pa.int32()), ("k", pa.int32())])),
    ],
)
def test_options_that_cannot_be(partitioning: Any, types: Any) -> None:
    with pytest.raises(InvalidOptionError, match="partition"):
        parse_partitioning(partitioning, types)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1e-100000000", pa.decimal128(9, 2)),  # crashes pyarrow 26
        ("1e100000000", pa.decimal256(50, 2)),
        ("0." + "0" * 200 + "1", pa.decimal128(9, 2)),
        ("1_0", pa.decimal128(9, 2)),
        ("NaN", pa.decimal128(9, 2)),
        ("0000-01-01", pa.date32()),  # which Python's dates do not have
        ("0000-01-01", pa.timestamp("us")),
        ("9" * 5000, pa.int64()),
    ],
)
def test_values_that_no_type_of_python_or_arrow_has(text: str, kind: pa.DataType) -> None:
    found = read_partitions([f"x={text}/"], ["url"], Partitioning(types={"x": kind}))
    assert isinstance(found.errors[0], PartitionError)
    assert len(str(found.errors[0])) < 1000


def test_decimals_in_paths() -> None:
    found = read_partitions(["x=1.50/", "x=-.5e1/"], ["a", "b"], Partitioning(types={"x": pa.decimal128(9, 1)}))
    assert [str(values["x"]) for values in found.values] == ["1.5", "-5.0"]
    assert not found.errors


def test_columns_in_paths_are_bounded() -> None:
    """Each file has a value of each: the names of some thousand folders would fill the memory."""
    folders = [f"k{number}=1/" for number in range(257)]
    assert len(read_partitions(folders[1:], folders[1:], Partitioning()).schema) == 256
    with pytest.raises(ResourceLimitError, match="more than 256 partition columns, such as 'k0'"):
        read_partitions(folders, folders, Partitioning())


@given(st.lists(st.tuples(st.sampled_from(["ab", "AB", "aB"]), st.integers(0, 9)), min_size=1, max_size=6))
def test_names_that_ignore_case_are_one_column(columns: list[tuple[str, int]]) -> None:
    found = read([f"{name}={value}/" for name, value in columns], Partitioning(ignore_case=True))
    first = columns[0][0]
    assert found.schema == pa.schema([(first, pa.int32())])
    assert list(found.values) == [{first: value} for _, value in columns]
    assert not found.errors


def test_names_that_ignore_case_have_the_spelling_of_given_types() -> None:
    found = read(["AB=1/", "ab=x/"], Partitioning(types={"aB": pa.string()}, ignore_case=True))
    assert list(found.values) == [{"aB": "1"}, {"aB": "x"}]
    twice = read(["ab=1/AB=2/", "ab=1/AB=1/"], Partitioning(ignore_case=True))
    assert list(twice.errors) == [0]
    assert twice.values[1] == {"ab": 1}
