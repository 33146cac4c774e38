"""Every type and encoding that pyarrow decodes: the whole column, every page alone, and rows found by value.

Types that pyarrow does not write are made of others by annotating the column anew.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from tests.parquet_files import I32, STRUCT, EditedFile, Struct
from tests.predicates import oracle
from tests.reads import ask, by_pyarrow

ROWS = 14
PAGE = 4
CODECS = itertools.cycle(["none", "snappy", "zstd", "gzip", "lz4", "brotli"])

INTEGERS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
FLOATS = ("PLAIN", "BYTE_STREAM_SPLIT")
TEXTS = ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
FIXED = ("PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT")


class Kind(NamedTuple):
    """One type.

    Attributes:
        type: in which it is written.
        values: a few.
        encodings: besides the dictionary.
        options: of the writer.
        annotate: makes it another type.
    """

    type: pa.DataType
    values: list[Any]
    encodings: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    annotate: Callable[[EditedFile], None] | None = None


def _annotation(converted: int | None, logical: Struct | None) -> Callable[[EditedFile], None]:
    def annotate(file: EditedFile) -> None:
        for leaf in range(2):
            file.element(leaf).put(6, converted, I32)
            file.element(leaf).put(10, logical)

    return annotate


def _decimal(precision: int, scale: int) -> Callable[[EditedFile], None]:
    def annotate(file: EditedFile) -> None:
        for leaf in range(2):
            element = file.element(leaf)
            for field, value in ((6, 5), (7, scale), (8, precision)):
                element.put(field, value, I32)
            element.put(10, Struct({5: (STRUCT, Struct({1: (I32, scale), 2: (I32, precision)}))}))

    return annotate


def _empty(member: int) -> Struct:
    return Struct({member: (STRUCT, Struct())})


def _kinds() -> dict[str, Kind]:
    bare = {"store_schema": False}
    words = ["", "a", "word", "word and more", "é", "a" * 300]
    blobs = [b"", b"\0", b"blob", b"\xff\xff", b"blob and more"]
    kinds = {
        "bool": Kind(pa.bool_(), [True, False, False], ("PLAIN", "RLE")),
        "null": Kind(pa.null(), [None], ("PLAIN",)),
        "float16": Kind(pa.float16(), [0.0, -0.0, 1.5, math.nan, math.inf, -2.0], FIXED),
        "float32": Kind(pa.float32(), [0.0, -0.0, 1.5, math.nan, -math.inf], FLOATS),
        "float64": Kind(pa.float64(), [0.0, -0.0, 0.1, math.nan, math.inf], FLOATS),
        "string": Kind(pa.string(), words, TEXTS),
        "string without schema": Kind(pa.string(), words, TEXTS, bare),
        "large_string": Kind(pa.large_string(), words, TEXTS),
        "string_view": Kind(pa.string_view(), words, TEXTS),
        "binary": Kind(pa.binary(), blobs, TEXTS),
        "large_binary": Kind(pa.large_binary(), blobs, TEXTS),
        "binary_view": Kind(pa.binary_view(), blobs, TEXTS),
        "fixed": Kind(pa.binary(5), [b"abcde", b"abcdf", b"\0" * 5, b"\xff" * 5], FIXED),
        "uuid": Kind(pa.uuid(), [uuid.UUID(int=n << 120 | n).bytes for n in range(4)], FIXED),
        "uuid without schema": Kind(pa.uuid(), [uuid.UUID(int=n << 120 | n).bytes for n in range(4)], FIXED, bare),
        "json": Kind(pa.json_(), ['{"a": 1}', "[]", "null"], TEXTS),
        "json without schema": Kind(pa.json_(), ['{"a": 1}', "[]", "null"], TEXTS, bare),
        "bool8": Kind(pa.bool8(), [0, 1, 1], INTEGERS),
        "bson": Kind(pa.binary(), blobs, TEXTS, bare, _annotation(20, _empty(13))),
        "enum": Kind(pa.string(), words, TEXTS, bare, _annotation(4, _empty(4))),
        "enum by converted type": Kind(pa.string(), words, TEXTS, bare, _annotation(4, None)),
        "geometry": Kind(pa.binary(), blobs, TEXTS, bare, _annotation(None, _empty(17))),
        "geography": Kind(pa.binary(), blobs, TEXTS, bare, _annotation(None, _empty(18))),
        "unknown annotation": Kind(pa.binary(), blobs, TEXTS, bare, _annotation(None, _empty(77))),
        "unknown annotation of numbers": Kind(pa.int64(), [1, 2, 3], INTEGERS, bare, _annotation(None, _empty(77))),
        "interval": Kind(pa.binary(12), [b"\1" * 12, b"\2" * 12], FIXED, bare, _annotation(21, None)),
        "decimal of bytes": Kind(
            pa.binary(), [b"\x05", b"\xff", b"\0\x80", b"\xfe\xee\x90"], TEXTS, bare, _decimal(9, 2)
        ),
        "int96": Kind(
            pa.timestamp("ns"), [dt.datetime(1950, 1, 1), dt.datetime(2024, 2, 29, 1)], ("PLAIN",),
            {"use_deprecated_int96_timestamps": True},
        ),
        "date32": Kind(pa.date32(), [dt.date(1969, 1, 1), dt.date(2024, 2, 29)], INTEGERS),
        "date64": Kind(pa.date64(), [dt.date(1969, 1, 1), dt.date(2024, 2, 29)], INTEGERS),
    }  # fmt: skip
    for width in (8, 16, 32, 64):
        for prefix in ("int", "uint"):
            top = (1 << width - (prefix == "int")) - 1
            numbers = [0, 1, top, -top - 1 if prefix == "int" else top - 1]
            kinds[f"{prefix}{width}"] = Kind(getattr(pa, f"{prefix}{width}")(), numbers, INTEGERS)
            if width <= 16 or prefix == "uint":
                kinds[f"{prefix}{width} without schema"] = Kind(
                    getattr(pa, f"{prefix}{width}")(), numbers, INTEGERS, bare
                )
    values = [Decimal(n) / 4 for n in (-5, 0, 1, 5, 300)]
    for precision in (5, 9, 10, 18, 19, 38, 39, 76):
        kind = pa.decimal128(precision, 2) if precision <= 38 else pa.decimal256(precision, 2)
        kinds[f"decimal({precision},2)"] = Kind(kind, values, FIXED)
        if precision <= 18:
            whole = {"store_decimal_as_integer": True}
            kinds[f"decimal({precision},2) as integers"] = Kind(kind, values, INTEGERS, whole)
    kinds["decimal32"] = Kind(pa.decimal32(7, 2), values, FIXED)
    kinds["decimal64"] = Kind(pa.decimal64(15, 2), values, FIXED)
    hours = [dt.time(0), dt.time(1, 2, 3), dt.time(23, 59, 59)]
    spans = [dt.timedelta(-1), dt.timedelta(0), dt.timedelta(1, 5)]
    for unit in ("s", "ms", "us", "ns"):
        kinds[f"time {unit}"] = Kind(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit), hours, INTEGERS)
        kinds[f"duration {unit}"] = Kind(pa.duration(unit), spans, INTEGERS)
        for zone in (None, "UTC" if unit == "s" else "+05:30" if unit == "ms" else "America/New_York"):
            moments = [dt.datetime(year, 2, 28, 3, tzinfo=dt.UTC if zone else None) for year in (1960, 1970, 2024)]
            kinds[f"timestamp {unit} {zone}"] = Kind(pa.timestamp(unit, zone), moments, INTEGERS)
    kinds["timestamp without schema"] = Kind(pa.timestamp("ms", "UTC"), [dt.datetime(2024, 1, 1)], INTEGERS, bare)
    dictionaries: tuple[tuple[pa.DataType, pa.DataType, list[Any]], ...] = (
        (pa.int8(), pa.string(), words),
        (pa.int32(), pa.large_string(), words),
        (pa.uint16(), pa.binary(), blobs),
        (pa.int32(), pa.int64(), [1, 2, 3]),
        (pa.int16(), pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    )
    for index, of, held in dictionaries:
        kinds[f"dictionary {index} {of}"] = Kind(pa.dictionary(index, of), held, ("PLAIN",))
    kinds["ordered dictionary"] = Kind(pa.dictionary(pa.int32(), pa.string(), ordered=True), words, ("PLAIN",))
    return kinds


KINDS = _kinds()


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.DictionaryType):
        distinct = list(dict.fromkeys(value for value in values if value is not None))
        places = [None if value is None else distinct.index(value) for value in values]
        return pa.DictionaryArray.from_arrays(
            pa.array(places, kind.index_type), pa.array(distinct, kind.value_type), ordered=kind.ordered
        )
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def _table(kind: Kind) -> pa.Table:
    """A nullable column x, in which a page is nulls alone, and a required one."""
    full = list(itertools.islice(itertools.cycle(kind.values), ROWS))
    some = [None if row % 5 == 1 or PAGE <= row < 2 * PAGE else value for row, value in enumerate(full)]
    fields = [pa.field("x", kind.type), pa.field("required", kind.type, nullable=pa.types.is_null(kind.type))]
    return pa.Table.from_arrays([_array(kind.type, some), _array(kind.type, full)], schema=pa.schema(fields))


def _files(kind: Kind) -> Iterator[tuple[str, bytes]]:
    """The same column in every way to write it."""
    ways: list[dict[str, Any]] = [{"use_dictionary": True}, {"use_dictionary": True, "dictionary_pagesize_limit": 8}]
    ways += [{"use_dictionary": False, "column_encoding": encoding} for encoding in kind.encodings]
    for way, version in itertools.product(ways, ("1.0", "2.0")):
        options = {"compression": next(CODECS), "data_page_version": version, **way, **kind.options}
        options["write_page_index"] = kind.annotate is None or way.get("column_encoding") == "PLAIN"
        file = EditedFile.of(_table(kind), rows_per_page=PAGE, **options)
        if kind.annotate is not None:
            kind.annotate(file)
            for leaf in range(2):
                file.meta(leaf).put(12, None)
                file.set_column_index(None, leaf)
        yield str(options), file.data()


def text(table: pa.Table) -> list[str]:
    """Values as text, those of dictionaries and extensions as what they hold."""
    found = []
    for column in table.columns:
        parts = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
        found.append(repr([value for part in parts for value in part.to_pylist()]))
    return found


def _filtered(whole: pa.Table, predicate: asyncpq.Expression) -> pa.Table | None:
    """pyarrow's rows; None where it does not compare the type."""
    try:
        mask = ds.dataset(whole).to_table({"mask": oracle(predicate)})["mask"].to_pylist()
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    # it does not filter views, but concatenates them
    return pa.concat_tables([whole.slice(0, 0), *[whole.slice(row, 1) for row in range(ROWS) if mask[row]]])


async def _check(file: asyncpq.File, whole: pa.Table, way: str, *, by_value: bool) -> int:
    """Compare the whole column, each page, and rows by value; returns how many predicates pyarrow understood."""
    assert file.schema.equals(whole.schema, check_metadata=True), way
    found = await file.read()
    found.validate(full=True)
    assert found.schema.equals(whole.schema), way
    assert text(found) == text(whole), way
    for page in range(0, ROWS, PAGE):
        rows = list(range(page, min(page + PAGE, ROWS)))
        assert text(await file.take(rows)) == text(whole.slice(page, PAGE)), way
    for row in (PAGE - 1, ROWS - 1):
        assert text(await file.take([row])) == text(whole.slice(row, 1)), way
    if not by_value:
        return 0
    predicates: list[asyncpq.Expression] = [col("x").is_null(), col("required").is_valid()]
    for value in whole["required"].slice(0, 3).to_pylist():
        if value is not None and value == value:
            predicates += [col("x") == value, ~(col("required") == value), col("required") > value]
    understood = 0
    for predicate in predicates:
        wanted = _filtered(whole, predicate)
        if wanted is not None:
            assert text(await file.read(where=predicate)) == text(wanted), f"{way}: {predicate}"
            understood += 1
    return understood


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KINDS)
def test_every_way_to_write_it(name: str, half: int) -> None:
    """Each half has every dictionary and encoding, with pages of version 1 or 2."""
    understood = 0
    for number, (way, data) in enumerate(_files(KINDS[name])):
        if (number + number // 2) % 2 != half:
            continue
        try:
            whole = by_pyarrow(data)
        except pa.ArrowNotImplementedError:
            with pytest.raises(asyncpq.UnsupportedFeatureError, match="pyarrow"):
                ask(data, lambda file: file.read())
            continue
        check = functools.partial(_check, whole=whole, way=way, by_value=number // 2 % 3 == 0)
        understood += ask(data, check)
    assert understood > 0


def test_every_encoding_is_there() -> None:
    """The files have the encodings that they are meant to have."""
    found: set[str] = set()
    for name in ("bool", "int32", "float16", "string", "fixed"):
        for _, data in _files(KINDS[name]):
            metadata = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
            found |= {encoding for at in range(2) for encoding in metadata.column(at).encodings}
    assert found >= {"PLAIN", "RLE", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"}
    assert found >= {"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_variants(version: str) -> None:
    kind = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())])
    rows = [{"metadata": b"\x01\0\0", "value": bytes([12, row])} if row % 4 else None for row in range(ROWS)]
    table = pa.table({"v": pa.array(rows, kind), "n": pa.array(range(ROWS))})
    file = EditedFile.of(table, rows_per_page=PAGE, data_page_version=version, store_schema=False)
    file.element(0).put(10, _empty(77))
    with pytest.raises(OSError, match="Undefined"):
        by_pyarrow(file.data())
    unknown = ask(file.data(), lambda opened: opened.read())
    assert unknown.to_pylist() == table.to_pylist()
    file.element(0).put(10, _empty(16))
    data = file.data()
    whole = by_pyarrow(data)

    async def question(opened: asyncpq.File) -> None:
        assert opened.schema.equals(whole.schema)
        assert text(await opened.read()) == text(whole)
        assert text(await opened.take([3, 4, 9])) == text(whole.take([3, 4, 9]))
        assert text(await opened.read(where=col("n") == 7)) == text(whole.slice(7, 1))
        assert await opened.count(col("v").is_null()) == 4

    ask(data, question)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_intervals_without_a_logical_type(version: str) -> None:
    """No logical type is an interval; parquet-java writes UNKNOWN, beside the converted type."""
    kind = pa.binary(12)
    values = [None if row % 5 == 1 else bytes([row]) * 12 for row in range(ROWS)]
    pairs = [None if row % 4 == 3 else [values[row]] * (row % 3) for row in range(ROWS)]
    table = pa.table({"x": pa.array(values, kind), "pairs": pa.array(pairs, pa.list_(kind)), "n": range(ROWS)})
    file = EditedFile.of(table, rows_per_page=PAGE, data_page_version=version, store_schema=False)
    for element in file.footer.value(2):
        if element.value(2) == 12:
            element.put(6, 21, I32)
    wanted = by_pyarrow(file.data())
    for element in file.footer.value(2):
        if element.value(2) == 12:
            element.put(10, _empty(11))

    async def question(opened: asyncpq.File) -> None:
        assert opened.schema.equals(wanted.schema, check_metadata=True)
        assert text(await opened.read()) == text(wanted)
        assert text(await opened.take([3, 4, 9])) == text(wanted.take([3, 4, 9]))
        assert text(await opened.read(where=col("n") == 7)) == text(wanted.slice(7, 1))
        assert text(await opened.read(where=col("x").is_null())) == text(wanted.filter(wanted["x"].is_null()))
        assert await opened.count(col("x").is_null()) == 3

    ask(file.data(), question)
