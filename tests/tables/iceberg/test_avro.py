"""Avro files: what pyiceberg writes is read, and no damage reads beyond the bytes, loops for long or loses records."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from asyncpq.datasets.model import MetadataBudget
from asyncpq.errors import ResourceLimitError, UnsupportedFeatureError
from asyncpq.options import LimitOptions
from asyncpq.tables.iceberg.avro import BoundedDecoder, Inflater, read_records
from tests.avro_files import packed, text, varint

WANTED = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "real", DoubleType(), required=False))
SYNC = bytes(range(16))
LIMITS = LimitOptions()


def avro(*blocks: tuple[int, bytes], codec: str = "null", more: list[dict[str, Any]] | None = None) -> bytes:
    """An Avro file of records of a long ``id``, and the fields ``more``."""
    fields = [{"name": "id", "type": "long", "field-id": 1}, *(more or [])]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    head = b"Obj\x01" + varint(2) + text("avro.codec") + text(codec) + text("avro.schema") + text(schema) + b"\0" + SYNC
    return head + b"".join(varint(count) + varint(len(block)) + block + SYNC for count, block in blocks)


def decoder_of(data: bytes) -> BoundedDecoder:
    return BoundedDecoder(data, MetadataBudget(len(data), LIMITS))


def ids(data: bytes, limits: LimitOptions = LIMITS) -> list[int]:
    return [record[0] for record in read_records(data, WANTED, {}, limits)]


GOOD = b"".join(map(varint, range(-3, 300)))
NUMBERS = list(range(-3, 300))


CODECS = ("null", "deflate", "zstandard", "bzip2", "snappy")


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(codec: str) -> None:
    data = avro((303, packed(GOOD, codec)), (0, packed(b"", codec)), (1, packed(varint(7), codec)), codec=codec)
    assert ids(data) == [*NUMBERS, 7]  # pyiceberg ends at the empty block


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_integers(numbers: list[int]) -> None:
    data = b"".join(map(varint, numbers))
    decoder = decoder_of(data)
    assert [decoder.read_int() for _ in numbers] == numbers
    assert decoder.at_end
    assert list(decoder_of(data).read_ints(len(numbers))) == numbers


def test_doubles_are_exact() -> None:
    """iceberg-python #3808: pyiceberg 0.12 rounds them to single precision."""
    data = avro((1, varint(1) + struct.pack("<d", 0.1)), more=[{"name": "real", "type": "double", "field-id": 2}])
    assert [record[1] for record in read_records(data, WANTED, {}, LIMITS)] == [0.1]


@pytest.mark.parametrize(
    "read",
    [
        lambda decoder: decoder.read(4),
        lambda decoder: decoder.read(-1),
        lambda decoder: decoder.read(1 << 62),
        lambda decoder: decoder.skip(-1),
        lambda decoder: decoder.skip(1 << 62),
        lambda decoder: decoder.read_ints(4),
        lambda decoder: decoder.read_ints(1 << 28),
        lambda decoder: decoder.read_ints(-1),
        lambda decoder: decoder.read_int_bytes_dict(1 << 60, {}),
        lambda decoder: decoder.read_double(),
        lambda decoder: decoder.read_float(),
        lambda decoder: decoder.skip_double(),
    ],
)
def test_nothing_is_read_beyond_the_bytes(read: Any) -> None:
    with pytest.raises(ValueError, match="at byte"):
        read(decoder_of(b"\x02\x02\x02"))


@pytest.mark.parametrize("data", [b"\x80" * 11, b"\xff" * 100_000, b"\x80", b""])
def test_an_integer_ends_after_ten_bytes(data: bytes) -> None:
    for read in (BoundedDecoder.read_int, BoundedDecoder.skip_int):
        with pytest.raises(ValueError, match="has no end"):
            read(decoder_of(data))


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_is_cut_off_loses_no_records_in_silence(codec: str) -> None:
    data = avro((303, packed(GOOD, codec)), codec=codec)
    begin = len(avro(codec=codec))
    assert ids(data[:begin]) == []
    for stop in range(begin + 1, len(data), 7):
        with pytest.raises((ValueError, OSError)):
            ids(data[:stop])


@pytest.mark.parametrize("size", [b"", varint(3)], ids=["as the schema says", "with sizes, by Iceberg's Java library"])
def test_fixed_values(size: bytes) -> None:
    values = [None, None, b"\x06\0\1", b"\6\6\6", b"\0\0\0", b"\xff\xc0\x80", None]
    records = [varint(3) + (varint(0) if value is None else varint(1) + size + value) for value in values]
    fixed = {"name": "f", "type": ["null", {"type": "fixed", "name": "fixed_3", "size": 3}], "field-id": 4}
    data = avro((2, b"".join(records[:2])), (5, b"".join(records[2:])), more=[fixed])
    wanted = Schema(*WANTED.fields, NestedField(4, "f", FixedType(3), required=False))
    assert [(record[0], record[2]) for record in read_records(data, wanted, {}, LIMITS)] == [(3, v) for v in values]


@pytest.mark.parametrize("count", [-1, 302, 304, 1 << 40, (1 << 63) - 1])
def test_counts_of_records(count: int) -> None:
    with pytest.raises(ValueError, match=r"at byte|more bytes|has no end"):
        ids(avro((count, GOOD)))


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "array", "items": {"type": "record", "name": "e", "fields": []}, "element-id": 4},
        {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}, "element-id": 4},
    ],
)
def test_lists_of_elements_without_bytes_are_refused(type_: Any) -> None:
    """Some bytes would stand for 2**60 of them, which are skipped one by one."""
    data = avro((1, varint(1) + varint(1 << 60) + b"\0"), more=[{"name": "x", "type": type_, "field-id": 3}])
    with pytest.raises(ValueError, match="take no bytes"):
        ids(data)


def test_an_unknown_codec() -> None:
    with pytest.raises(UnsupportedFeatureError, match="codec 'lzma'"):
        ids(avro((1, b"x"), codec="lzma"))


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec not in ("null", "snappy")])
def test_what_a_small_file_may_become_is_bounded(codec: str) -> None:
    """Blocks are counted whatever records they hold."""
    block = packed(bytes(1 << 20), codec)
    data = avro((0, block), codec=codec)
    most = 1 << 20
    assert len(data) * 256 < most
    with pytest.raises(ValueError, match="0 records, but more bytes"):
        ids(data, LimitOptions(max_decoded_bytes=most))
    with pytest.raises(ResourceLimitError, match=f"decodes to more than max_decoded_bytes={most - 1} bytes"):
        ids(data, LimitOptions(max_decoded_bytes=most - 1))


def test_a_size_that_a_snappy_block_claims_is_counted_before_it_is_decompressed() -> None:
    """Blocks themselves become at most about 21 times as long."""
    block = b"\xff\xff\xff\xff\x0f" + bytes(8)
    with pytest.raises(ResourceLimitError, match="max_decoded_bytes=1048576 bytes"):
        ids(avro((1, block), codec="snappy"), LimitOptions(max_decoded_bytes=1 << 20))


ID_BYTES = 2048 + 1  # that a record with an id of one byte takes


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_larger_file_may_become_256_times_its_size(codec: str) -> None:
    limits = LimitOptions(max_decoded_bytes=1)

    def file(count: int) -> bytes:
        return avro((count, packed(bytes(count), codec)), codec=codec)

    most = len(file(50)) * 256 // ID_BYTES  # the block is as long, or a few bytes longer
    assert len(ids(file(most - 2), limits)) == most - 2
    with pytest.raises(ResourceLimitError, match=r"decodes to more than 256 times its own \d+ bytes"):
        ids(file(most * 2), limits)


def _pairs(value: str) -> dict[str, Any]:
    """A map of integers, as Iceberg's manifests write it."""
    fields = [{"name": "key", "type": "long", "field-id": 4}, {"name": "value", "type": value, "field-id": 5}]
    return {"type": "array", "logicalType": "map", "items": {"type": "record", "name": "k_v", "fields": fields}}


LISTS: list[tuple[IcebergType, dict[str, Any], bytes, int]] = [
    (ListType(4, LongType(), element_required=True), {"type": "array", "items": "long", "element-id": 4}, b"\2", 32),
    (
        ListType(4, BooleanType(), element_required=True),
        {"type": "array", "items": "boolean", "element-id": 4},
        b"\1",
        32,
    ),
    (
        ListType(4, StructType(NestedField(5, "x", LongType(), required=True)), element_required=True),
        {
            "type": "array",
            "items": {"type": "record", "name": "e", "fields": [{"name": "x", "type": "long", "field-id": 5}]},
            "element-id": 4,
        },
        b"\2",
        256,
    ),
    (
        MapType(4, StringType(), 5, LongType(), value_required=True),
        {"type": "map", "values": "long", "key-id": 4, "value-id": 5},
        b"\2a\2",
        64,
    ),
    (MapType(4, LongType(), 5, LongType(), value_required=True), _pairs("long"), b"\2\2", 64),
    (MapType(4, LongType(), 5, BinaryType(), value_required=True), _pairs("bytes"), b"\2\0", 64),
]


@pytest.mark.parametrize(("type_", "written", "element", "num_bytes"), LISTS, ids=lambda value: str(value)[:20])
def test_elements_of_lists_and_maps_are_counted(
    type_: IcebergType, written: dict[str, Any], element: bytes, num_bytes: int
) -> None:
    """A small file may hold many of them."""
    count = 10_000
    record = varint(7) + varint(count) + element * count + b"\0"
    more = [{"name": "parts", "type": written, "field-id": 3}]
    data = avro((1, packed(record, "deflate")), codec="deflate", more=more)
    wanted = Schema(NestedField(1, "id", LongType(), required=True), NestedField(3, "parts", type_, required=True))
    enough = 2048 + len(record) + count * num_bytes
    assert len(data) * 256 < enough
    ((_, parts),) = [list(record) for record in read_records(data, wanted, {}, LimitOptions(max_decoded_bytes=enough))]
    assert len(parts) in (1, count)
    with pytest.raises(ResourceLimitError, match=f"max_decoded_bytes={enough - 1} bytes"):
        list(read_records(data, wanted, {}, LimitOptions(max_decoded_bytes=enough - 1)))


@pytest.mark.parametrize(
    "field",
    [
        {"name": "x", "type": "long"},
        {"name": "x", "type": ["null", {"type": "record", "name": "y", "fields": [{"name": "z", "type": "int"}]}]},
        {
            "name": "x",
            "type": {
                "type": "array",
                "element-id": 3,
                "items": {"type": "record", "name": "y", "fields": [{"name": "z", "type": "int"}]},
            },
            "field-id": 2,
        },
    ],
)
def test_schemas_without_field_ids_are_not_supported(field: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeatureError, match="without field-id"):
        ids(avro((303, GOOD), more=[field]))


@pytest.mark.parametrize("field", [7, {"name": "x", "type": "nothing", "field-id": 2}, {"name": "x", "field-id": 2}])
def test_damaged_schemas_are_not_missing_features(field: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        ids(avro((303, GOOD), more=[field]))


METADATA = b"metadata" * 100_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


INFLATED: dict[str, tuple[Callable[[bytes], bytes], Callable[[Inflater, bytes], bytes]]] = {
    "deflate": (raw_deflate, Inflater.deflate),
    "gzip": (gzip.compress, lambda inflater, data: inflater.stream(data, "gzip")),
    "bz2": (bz2.compress, lambda inflater, data: inflater.stream(data, "bz2")),
    "zstd": (lambda data: bytes(pa.Codec("zstd").compress(data)), lambda inflater, data: inflater.stream(data, "zstd")),
    "snappy": (lambda data: bytes(pa.Codec("snappy").compress(data)), Inflater.snappy),
}


def budget(max_decoded_bytes: int) -> MetadataBudget:
    return MetadataBudget(0, LimitOptions(max_decoded_bytes=max_decoded_bytes))


@pytest.mark.parametrize("codec", INFLATED)
def test_all_parts_together_stay_within_the_budget(codec: str) -> None:
    pack, unpack = INFLATED[codec]
    inflater = Inflater(budget(2 * len(METADATA)))
    for _ in range(2):
        assert unpack(inflater, pack(METADATA)) == METADATA
    with pytest.raises(ResourceLimitError, match="decodes to more than max_decoded_bytes"):
        unpack(inflater, pack(b"x"))


@pytest.mark.parametrize("codec", INFLATED)
def test_bytes_that_are_cut_off_are_an_error(codec: str) -> None:
    pack, unpack = INFLATED[codec]
    data = pack(METADATA)
    with pytest.raises((ValueError, OSError, zlib.error)):
        unpack(Inflater(budget(2 * len(METADATA))), data[: len(data) // 2])
