"""Spark's types for Parquet schemas, without Spark; against Spark itself: tests/spark/types/test_types.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from asyncpq.distributed import FooterFacts
from asyncpq.errors import AmbiguousColumnError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY, row_schema, spark_schema
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY, ReadConf, merged_schema
from tests.parquet_files import BINARY, BYTE, FALSE, I32, LIST, STRUCT, TRUE, EditedFile, Items, Struct, encode

INT32, INT64, INT96, BYTES, FIXED = 1, 2, 3, 6, 7
REQUIRED, OPTIONAL, REPEATED = range(3)
UTF8, MAP, MAP_KEY_VALUE, LIST_OF, ENUM, DECIMAL, DATE = range(7)


def element(name: str, physical: int | None = None, **fields: Any) -> Struct:
    """A SchemaElement; ``fields`` are named as in parquet.thrift."""
    made = Struct()
    numbers = {"length": 2, "repetition": 3, "children": 5, "converted": 6, "scale": 7, "precision": 8}
    fields.setdefault("repetition", OPTIONAL)
    if physical is not None:
        made.put(1, physical, I32)
    for key, number in numbers.items():
        if key in fields:
            made.put(number, fields[key], I32)
    made.put(4, name.encode())
    if "logical" in fields:
        made.put(10, fields["logical"])
    return made


def logical(member: int, **fields: Any) -> Struct:
    """A LogicalType."""
    return Struct({member: (STRUCT, Struct({int(key[1:]): value for key, value in fields.items()}))})


def timed(member: int, unit: int, adjusted: bool) -> Struct:
    """TIME (7) or TIMESTAMP (8); units 1 to 3 are milli-, micro- and nanoseconds."""
    return logical(member, _1=(TRUE if adjusted else FALSE, adjusted), _2=(STRUCT, logical(unit)))


def footer_of(*elements: Struct, top: int = 1, words: str | None = None) -> EditedFile:
    """A file without rows."""
    edited = EditedFile.of(pa.table({"x": pa.array([], pa.int32())}))
    root: Struct = edited.footer.value(2)[0]
    root.put(5, top, I32)
    edited.footer.put(2, Items(STRUCT, [root, *elements]))
    edited.footer.put(4, Items(STRUCT))
    edited.footer.put(7, None)
    pairs = [] if words is None else [Struct({1: (BINARY, ROW_METADATA_KEY.encode()), 2: (BINARY, words.encode())})]
    edited.footer[5] = (LIST, Items(STRUCT, pairs))
    return edited


def file_of(*elements: Struct, top: int = 1, words: str | None = None) -> FooterFacts:
    return FooterFacts(decode_file_metadata(encode(footer_of(*elements, top=top, words=words).footer)))


def type_of(*elements: Struct, conf: ReadConf | None = None) -> str:
    (field,) = spark_schema(file_of(*elements), conf or ReadConf()).fields
    assert field.nullable
    return field.dataType.simpleString()


LEAVES: list[tuple[str, Struct]] = [
    ("tinyint", element("c", INT32, converted=15)),
    ("smallint", element("c", INT32, converted=11)),
    ("int", element("c", INT32, converted=12)),
    ("bigint", element("c", INT32, converted=13)),
    ("decimal(20,0)", element("c", INT64, converted=14)),
    ("date", element("c", INT32, converted=DATE)),
    ("decimal(9,2)", element("c", INT32, converted=DECIMAL, precision=9, scale=2)),
    ("decimal(38,10)", element("c", BYTES, converted=DECIMAL, precision=38, scale=10)),
    ("decimal(9,9)", element("c", FIXED, length=4, converted=DECIMAL, precision=9, scale=9)),
    ("string", element("c", BYTES, converted=ENUM)),
    ("string", element("c", BYTES, logical=logical(12))),
    ("binary", element("c", BYTES, logical=logical(13))),
    ("binary", element("c", FIXED, length=5)),
    ("timestamp", element("c", INT96)),
    ("timestamp", element("c", INT64, logical=timed(8, 2, True))),
    ("timestamp_ntz", element("c", INT64, logical=timed(8, 1, False))),
    # the old annotation counts where they contradict each other
    ("timestamp", element("c", INT64, converted=9, logical=timed(8, 2, False))),
    ("string", element("c", BYTES, converted=UTF8, logical=logical(13))),
    ("int", element("c", INT32, logical=logical(11))),
    ("array<int>", element("c", INT32, repetition=REPEATED)),
]


@pytest.mark.parametrize(("expected", "leaf"), LEAVES)
def test_leaves(expected: str, leaf: Struct) -> None:
    assert type_of(leaf) == expected


REFUSED: list[tuple[str, Struct]] = [
    ("INT32.*TIME.MILLIS,true", element("c", INT32, converted=7)),
    ("INT64.*TIMESTAMP.NANOS,false", element("c", INT64, logical=timed(8, 3, False))),
    ("not support the type TIME", element("c", INT64, logical=timed(7, 2, False))),
    ("UUID", element("c", FIXED, length=16, logical=logical(14))),
    ("FLOAT16", element("c", FIXED, length=2, logical=logical(15))),
    ("INTERVAL", element("c", FIXED, length=12, converted=21)),
    ("cannot store 10", element("c", INT32, converted=DECIMAL, precision=10, scale=0)),
    ("cannot store 10", element("c", FIXED, length=4, converted=DECIMAL, precision=10, scale=0)),
    ("decimals have 38 at most", element("c", FIXED, length=17, converted=DECIMAL, precision=39, scale=0)),
    ("UNRECOGNISED", element("c", BYTES, logical=logical(25))),
    ("INT64.*STRING", element("c", INT64, converted=UTF8)),
]


@pytest.mark.parametrize(("message", "leaf"), REFUSED)
def test_leaves_that_spark_refuses(message: str, leaf: Struct) -> None:
    with pytest.raises(UnsupportedFeatureError, match=message) as raised:
        type_of(leaf)
    assert raised.value.column == "c"


def test_settings() -> None:
    nanos = element("c", INT64, logical=timed(8, 3, True))
    assert type_of(nanos, conf=ReadConf(nanos_as_long=True)) == "bigint"
    with pytest.raises(UnsupportedFeatureError, match="pyspark does not have"):
        type_of(nanos, conf=ReadConf(timestamp_nanos_types=True))
    assert type_of(element("c", BYTES), conf=ReadConf(binary_as_string=True)) == "string"
    assert type_of(element("c", INT32, logical=logical(11)), conf=ReadConf(respect_unknown_annotation=True)) == "void"
    local = element("c", INT64, logical=timed(8, 2, False))
    assert type_of(local, conf=ReadConf(infer_timestamp_ntz=False)) == "timestamp"
    clock = element("c", INT64, logical=timed(7, 3, False))
    assert type_of(clock, conf=ReadConf(time_type=True)) == "time(9)"
    with pytest.raises(UnsupportedFeatureError, match="int96AsTimestamp"):
        type_of(element("c", INT96), conf=ReadConf(int96_as_timestamp=False))


def group(name: str, children: int, **fields: Any) -> Struct:
    return element(name, children=children, **fields)


LEAF = element("a", INT32)
GROUPS: list[tuple[str | None, Sequence[Struct]]] = [
    ("array<int>", (group("c", 1, converted=LIST_OF), group("list", 1, repetition=REPEATED), LEAF)),
    ("array<int>", (group("c", 1, converted=LIST_OF), element("element", INT32, repetition=REPEATED))),
    ("array<struct<a:int>>", (group("c", 1, converted=LIST_OF), group("array", 1, repetition=REPEATED), LEAF)),
    ("array<struct<a:int>>", (group("c", 1, converted=LIST_OF), group("c_tuple", 1, repetition=REPEATED), LEAF)),
    ("array<int>", (group("c", 1, converted=LIST_OF), group("d_tuple", 1, repetition=REPEATED), LEAF)),
    ("array<struct<a:int,b:binary>>",
     (group("c", 1, converted=LIST_OF), group("e", 2, repetition=REPEATED), LEAF, element("b", BYTES))),
    ("array<struct<a:int>>", (group("c", 1, repetition=REPEATED), LEAF)),
    (None, (group("c", 1, converted=LIST_OF), group("list", 1), LEAF)),
    (None, (group("c", 2, converted=LIST_OF), element("x", INT32, repetition=REPEATED), LEAF)),
    ("map<int,binary>", (group("c", 1, converted=MAP), group("kv", 2, repetition=REPEATED), LEAF, element("b", BYTES))),
    ("map<int,binary>",
     (group("c", 1, converted=MAP_KEY_VALUE), group("map", 2, repetition=REPEATED), LEAF, element("b", BYTES))),
    (None, (group("c", 1, converted=MAP), group("kv", 1, repetition=REPEATED), LEAF)),
    (None, (group("c", 1, converted=UTF8), LEAF)),
    ("variant",
     (group("c", 2, logical=logical(16, _1=(BYTE, b"\x01"))), element("metadata", BYTES), element("value", BYTES))),
    (None, (group("c", 2, logical=logical(16)), element("metadata", BYTES), element("value", BYTES))),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "elements"), GROUPS)
def test_groups(expected: str | None, elements: Sequence[Struct]) -> None:
    if expected is None:
        with pytest.raises(UnsupportedFeatureError) as raised:
            type_of(*elements)
        assert raised.value.column == "c"
    else:
        assert type_of(*elements) == expected


def test_names() -> None:
    twice = file_of(element("c", INT32), element("C", INT32), top=2)
    with pytest.raises(AmbiguousColumnError, match="COLUMN_ALREADY_EXISTS"):
        spark_schema(twice, ReadConf())
    assert spark_schema(twice, ReadConf(case_sensitive=True)).names == ["c", "C"]
    inside = file_of(group("s", 2), element("x", INT32), element("X", INT32))
    with pytest.raises(AmbiguousColumnError) as raised:
        spark_schema(inside, ReadConf())
    assert raised.value.column == "s.X"


# -- Spark's own words ----------------------------------------------------------------------------


def test_words_go_before_the_schema() -> None:
    words = {
        "type": "struct",
        "fields": [
            {"name": "c", "type": "varchar(3)", "nullable": False, "metadata": {"k": 1}},
            {"name": "l", "type": {"type": "array", "elementType": "char(2)", "containsNull": False}, "nullable": True,
             "metadata": {}},
        ],
    }  # fmt: skip
    schema = spark_schema(file_of(element("c", BYTES), words=json.dumps(words)), ReadConf())
    assert schema.simpleString() == "struct<c:string,l:array<string>>"
    assert schema["c"].metadata == {"k": 1, CHAR_VARCHAR_KEY: "varchar(3)"}
    assert schema["l"].metadata == {CHAR_VARCHAR_KEY: "array<char(2)>"}
    assert schema["c"].nullable
    for nonsense in (
        "{",
        "[]",
        '"int"',
        '{"type":"struct"}',
        "StructType(List(StructField(id,LongType,false)))",  # the form of Spark before 1.2
        '{"type":"struct","fields":[{"name":"x","type":"?"}]}',
    ):
        assert spark_schema(file_of(LEAF, words=nonsense), ReadConf()).simpleString() == "struct<a:int>"


def test_no_code_is_chosen_by_a_file() -> None:
    """A file names classes; but for pyspark's own vectors, their values come as they are stored."""
    udt = {"type": "udt", "class": "x", "pyClass": "tests.spark.types.test_parquet_schema.Trap",
           "serializedClass": "gASVAA==", "sqlType": "integer"}  # fmt: skip
    field = {"name": "u", "type": {"type": "array", "elementType": udt, "containsNull": True}, "nullable": True}
    schema = row_schema(json.dumps({"type": "struct", "fields": [field]}))
    assert schema is not None
    assert schema.simpleString() == "struct<u:array<int>>"
    with pytest.raises(UnsupportedFeatureError, match=r"timestamp_ntz\(9\)"):
        row_schema('{"type":"struct","fields":[{"name":"t","type":"timestamp_ntz(9)","nullable":true,"metadata":{}}]}')


def test_merged_schemas() -> None:
    def struct(words: str) -> StructType:
        fields = [part.split(":") for part in words.split(",") if part]
        return StructType.fromJson(
            {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True} for name, kind in fields]}
        )

    conf = ReadConf()
    assert merged_schema([struct("a:long,b:string"), struct("B:string,c:date")], conf).simpleString() == (
        "struct<a:bigint,b:string,c:date>"
    )
    with pytest.raises(SchemaMismatchError, match="CANNOT_MERGE_SCHEMAS") as raised:
        merged_schema([struct("a:long"), struct("a:string")], conf)
    assert raised.value.column == "a"
    both = merged_schema([struct("a:long"), struct("A:string")], ReadConf(case_sensitive=True))
    assert both.names == ["a", "A"]
