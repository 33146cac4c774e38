"""Files of all types: made, and read by asyncpq as Spark would."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from asyncpq import ReadOptions, blocking
from asyncpq.distributed import FooterFacts
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.spark.types.conversion import arrow_schema, converter
from asyncpq.spark.types.parquet_schema import spark_schema
from asyncpq.spark.types.read_conf import FileDates, ReadConf


def to_spark(
    batch: pa.RecordBatch, schema: StructType, conf: ReadConf, dates: FileDates | None = None
) -> pa.RecordBatch:
    """A batch of a file with Spark's types."""
    return converter(batch.schema, schema, conf, dates or FileDates())(batch)


def metadata_of(path: Path) -> FooterFacts:
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    return FooterFacts(decode_file_metadata(data[-8 - length : -8]))


def read_as_spark(path: Path, conf: ReadConf, schema: StructType | None = None) -> pa.Table:
    """A file by asyncpq, with Spark's types."""
    metadata = metadata_of(path)
    struct = spark_schema(metadata, conf) if schema is None else schema
    dates = conf.of_file(metadata)
    with (
        blocking.Session(read=ReadOptions(int96_unit="us", legacy_calendar="ignore")) as session,
        session.open_file(str(path)) as file,
        file.scan() as scan,
    ):
        batches = [to_spark(batch, struct, conf, dates) for batch in scan]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, arrow_schema(struct))


def batches_of_paths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: the rows of the files that are named."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield from read_as_spark(Path(path), ReadConf()).to_batches()


def shown(column: pa.ChunkedArray) -> str:
    """Values in words that are equal where the values are: NaN, zeros and times of all years."""
    array = column.combine_chunks()
    if pa.types.is_date32(array.type):
        array = array.view(pa.int32())
    elif pa.types.is_temporal(array.type):
        array = array.view(pa.int64())
    return repr(array.to_pylist())


def assert_same(got: pa.Table, expected: pa.Table) -> None:
    assert got.column_names == expected.column_names
    for name in got.column_names:
        assert shown(got[name]) == shown(expected[name]), name


def every_type() -> dict[str, pa.Array]:
    """A column of each type that Spark reads by itself; three rows, the second one null."""
    text, digits = ["a", None, "ü"], [Decimal("1.25"), None, Decimal("-999.99")]
    columns: dict[str, Any] = {
        "bool": pa.array([True, None, False]),
        **{f"int{w}": pa.array([-1, None, 2 ** (w - 1) - 1], getattr(pa, f"int{w}")()) for w in (8, 16, 32, 64)},
        **{f"uint{w}": pa.array([1, None, 2**w - 1], getattr(pa, f"uint{w}")()) for w in (8, 16, 32, 64)},
        "float": pa.array([1.5, None, float("nan")], pa.float32()),
        "double": pa.array([-0.0, None, float("inf")]),
        "string": pa.array(text),
        "large_string": pa.array(text, pa.large_string()),
        "string_view": pa.array(text, pa.string_view()),
        "binary": pa.array([b"a", None, b"\xff"]),
        "large_binary": pa.array([b"a", None, b""], pa.large_binary()),
        "binary_view": pa.array([b"a", None, b""], pa.binary_view()),
        "fixed": pa.array([b"abc", None, b"def"], pa.binary(3)),
        "dictionary": pa.array(text).dictionary_encode(),
        "dictionary_of_numbers": pa.array([5, None, 7]).dictionary_encode(),
        "date": pa.array([dt.date(2020, 1, 1), None, dt.date(1, 1, 1)]),
        "date64": pa.array([dt.date(2020, 1, 1), None, dt.date(1500, 1, 1)], pa.date64()),
        "timestamp_ms": pa.array([1, None, -1001], pa.timestamp("ms")),
        "timestamp_ms_utc": pa.array([1, None, -1001], pa.timestamp("ms", "UTC")),
        "timestamp_s": pa.array([1, None, -1001], pa.timestamp("s")),
        "timestamp_us": pa.array([1, None, -(10**16)], pa.timestamp("us")),
        "timestamp_us_paris": pa.array([1, None, -(10**16)], pa.timestamp("us", "Europe/Paris")),
        "duration_us": pa.array([1, None, -1001], pa.duration("us")),
        "duration_s": pa.array([1, None, -1001], pa.duration("s")),
        "decimal5": pa.array(digits, pa.decimal128(5, 2)),
        "decimal38": pa.array([Decimal("1.25"), None, Decimal(10) ** 35], pa.decimal128(38, 2)),
        "decimal32": pa.array(digits, pa.decimal32(5, 2)),
        "decimal64": pa.array(digits, pa.decimal64(15, 2)),
        "decimal256": pa.array(digits, pa.decimal256(30, 2)),
        "null": pa.nulls(3),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "1"])),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "large_list": pa.array([[1, None], None, []], pa.large_list(pa.uint8())),
        "fixed_list": pa.array([[1, None], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "struct": pa.array(
            [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
            pa.struct([("a", pa.uint16()), ("b", pa.large_string())]),
        ),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.uint32())),
        "deep": pa.array(
            [[{"x": [[1, 2], []]}], None, [None, {"x": None}]],
            pa.list_(pa.struct([("x", pa.large_list(pa.list_(pa.uint64())))])),
        ),
    }
    return columns


def required(columns: dict[str, pa.Array]) -> pa.Table:
    """The same columns without nulls, those that are not nested required in the file."""
    filled = {
        name: array if pa.types.is_nested(array.type) or array[0].as_py() is None else pa.concat_arrays([array[:1]] * 3)
        for name, array in columns.items()
    }
    fields = [pa.field(name, array.type, nullable=array.null_count > 0) for name, array in filled.items()]
    return pa.Table.from_arrays(list(filled.values()), schema=pa.schema(fields))


def write(folder: Path, name: str, table: pa.Table, **options: Any) -> Path:
    path = folder / f"{name}.parquet"
    pq.write_table(table, path, **options)
    return path
