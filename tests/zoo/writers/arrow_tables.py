"""The tables of rows.py as pyarrow has them, for pyarrow and for the libraries that take its tables."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import rows

TYPES = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "fixed4": pa.binary(4),
    "date": pa.date32(),
    "time_ms": pa.time32("ms"),
    "time_us": pa.time64("us"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamp_utc": pa.timestamp("us", "UTC"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(18,4)": pa.decimal128(18, 4),
    "decimal(38,10)": pa.decimal128(38, 10),
}
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
NESTED = {
    "n": pa.int64(),
    "numbers": pa.list_(pa.int32()),
    "words": pa.list_(pa.string()),
    "deep": pa.list_(pa.list_(pa.int64())),
    "point": POINT,
    "points": pa.list_(POINT),
    "box": pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int32())), ("at", POINT)]),
    "pairs": pa.map_(pa.string(), pa.int64()),
}


def array(kind, values):
    """One column of `flat`."""
    if kind == "category":
        return pa.array(values, pa.string()).dictionary_encode()
    if kind == "uuid":
        stored = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), stored) if hasattr(pa, "uuid") else stored
    if kind == "timestamp_ns":
        since = [None if value is None else nanoseconds(row, value) for row, value in enumerate(values)]
        return pa.array(since, pa.int64()).cast(pa.timestamp("ns"))
    return pa.array(values, TYPES[kind])


def nanoseconds(row, value):
    """Since 1970."""
    return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000 + rows.nanoseconds(row)


def flat(number=rows.ROWS, without=()):
    """The table `flat`, without those kinds of columns."""
    columns, kinds = rows.flat(number), rows.kinds(*without)
    return pa.Table.from_arrays([array(kind, columns[name]) for name, kind in kinds], [name for name, _ in kinds])


def nested(number=rows.ROWS):
    """The table `nested`, with those columns that this version can write."""
    columns = rows.nested(number)
    names = [name for name in NESTED if _writes(NESTED[name])]
    return pa.Table.from_arrays([pa.array(columns[name], NESTED[name]) for name in names], names)


def _writes(type_):
    try:
        pq.write_table(pa.Table.from_arrays([pa.array([None], type_)], ["c"]), pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return True


def select(table, names):
    """Some columns of a table."""
    return pa.Table.from_arrays([table.column(name) for name in names], names)
