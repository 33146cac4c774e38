"""Hash, header and blocks of bloom filters, and what they say about predicates: exact values, no files."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import uuid
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from asyncpq import col
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.expressions import Constant, Expression, In, KeyIn
from asyncpq.parquet.bloom_filter import (
    BloomFilterHeader,
    block_mask,
    block_of,
    decode_bloom_filter_header,
    may_contain,
    usual_header,
    xxh64,
)
from asyncpq.parquet.logical_types import LogicalKind, LogicalType, PhysicalType
from asyncpq.parquet.schema import Leaf, SchemaElement
from asyncpq.parquet.thrift import EndOfDataError
from asyncpq.pruning.bloom_hashes import compile_probes, hashes_by_column, may_match, num_values, plain_encoder

# Lengths on both sides of every branch: stripes of 32 bytes, lanes of 8, one of 4, single bytes.
XXH64 = {
    0: 0xEF46DB3751D8E999,
    1: 0xE934A84ADB052768,
    4: 0xFFCED8604453CC1E,
    7: 0x14CC643F630C72D2,
    8: 0x884A173614B81B8D,
    12: 0x424AF23F1F08DCA5,
    15: 0xA948F5F0F6ABAC2D,
    31: 0xC346D2B59B4D8EE1,
    32: 0xCBF59C5116FF32B4,
    33: 0x0C535D1ACAFB8EAD,
    63: 0xE26AA9E2A95F8E4F,
    64: 0xF7C67301DB6713F0,
    100: 0x6AC1E58032166597,
}
USUAL = b"\x15\x80\x04\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00"  # 256 bytes of blocks


@pytest.mark.parametrize("length", XXH64)
def test_xxh64(length: int) -> None:
    assert xxh64(bytes(range(length))) == XXH64[length]


def test_header() -> None:
    assert decode_bloom_filter_header(USUAL + b"blocks") == BloomFilterHeader(16, 256)
    assert decode_bloom_filter_header(USUAL).num_blocks == 8
    for length in range(len(USUAL)):
        with pytest.raises(EndOfDataError):
            decode_bloom_filter_header(USUAL[:length])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((USUAL[1:3], b"\x82\x04"), CorruptFileError),  # 257 bytes
        ((USUAL[1:3], b"\x80\x00"), CorruptFileError),  # 0
        ((USUAL[1:3], b"\xff\x03"), CorruptFileError),  # negative
        ((USUAL[1:3], b"\x80\x80\x80\x80\x10"), CorruptFileError),  # 2 GiB
        ((USUAL[:3], b""), CorruptFileError),  # no number of bytes
        ((USUAL[:3], b"\x16\x80\x04"), None),  # another integer type
        ((USUAL[3:7], b"\x1c\x2c\x00\x00"), UnsupportedFeatureError),  # another algorithm
        ((USUAL[3:7], b"\x1c\x1c\x00\x2c\x00\x00"), CorruptFileError),  # then the fields behind it are off
        ((USUAL[3:11], b"\x1c\x1c\x00\x00\x1c\x2c\x00\x00"), UnsupportedFeatureError),  # another hash
        ((USUAL[3:], b"\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x2c\x00\x00\x00"), UnsupportedFeatureError),  # compressed
        ((USUAL[3:], b"\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00"), UnsupportedFeatureError),  # compression not said
    ],
)
def test_headers_that_say_something_else(change: tuple[bytes, bytes], error: type[Exception] | None) -> None:
    changed = USUAL.replace(*change, 1)
    if error is None:
        assert decode_bloom_filter_header(changed).num_bytes == 256
        return
    with pytest.raises((error, UnsupportedFeatureError)):
        decode_bloom_filter_header(changed)


def test_usual_header_is_the_header_that_a_length_implies() -> None:
    assert usual_header(len(USUAL) + 256) == BloomFilterHeader(len(USUAL), 256)
    for num_bytes in (32, 64, 2**13, 2**20, 2**20 * 3, 2**27):
        sizes = [size for size in range(15, 20) if usual_header(num_bytes + size) == BloomFilterHeader(size, num_bytes)]
        assert len(sizes) == 1
    assert usual_header(len(USUAL) + 257) is None
    assert usual_header(0) is None
    assert usual_header(16) is None


def test_a_block_holds_the_values_that_were_put_in() -> None:
    blocks = [0] * 7
    hashes = [xxh64(bytes([n, n])) for n in range(60)]
    for hash_ in hashes[:30]:
        blocks[block_of(hash_, 7)] |= block_mask(hash_)
    found = [may_contain(blocks[block_of(hash_, 7)].to_bytes(32, "little"), hash_) for hash_ in hashes]
    assert all(found[:30])
    assert sum(found[30:]) < 10
    assert all(block_mask(hash_).bit_count() == 8 for hash_ in hashes)
    assert {block_of(hash_, 7) for hash_ in hashes} == set(range(7))


# -- PLAIN bytes ----------------------------------------------------------------------------------


def leaf(physical: PhysicalType, kind: LogicalKind | None = None, *, width: int | None = None, **logical: Any) -> Leaf:
    """A flat leaf ``c``."""
    annotation = None if kind is None else LogicalType(kind, **logical)
    element = SchemaElement("c", physical, width, None, 0, None, annotation, None, None, None, 0, 0)
    return Leaf(0, ("c",), "c", element, 1, (), 0, 1, 0)


INT32, INT64 = PhysicalType.INT32, PhysicalType.INT64
BYTE_ARRAY, FIXED = PhysicalType.BYTE_ARRAY, PhysicalType.FIXED_LEN_BYTE_ARRAY


@pytest.mark.parametrize(
    ("column", "key", "forms"),
    [
        (leaf(INT32), 1, [b"\1\0\0\0"]),
        (leaf(INT32), -1, [b"\xff" * 4]),
        (leaf(INT32), 1.0, [b"\1\0\0\0"]),
        (leaf(INT32), Fraction(2), [b"\2\0\0\0"]),
        (leaf(INT32), 1.5, []),
        (leaf(INT32), Fraction(3, 2), []),
        (leaf(INT32), math.nan, []),
        (leaf(INT32), math.inf, []),
        (leaf(INT32), 2**31, []),
        (leaf(INT32), b"1", []),
        (leaf(INT32, LogicalKind.INTEGER, bit_width=32, is_signed=False), 2**32 - 1, [b"\xff" * 4]),
        (leaf(INT32, LogicalKind.INTEGER, bit_width=32, is_signed=False), -1, []),
        (leaf(INT64, LogicalKind.INTEGER, bit_width=64, is_signed=False), 2**64 - 1, [b"\xff" * 8]),
        (leaf(INT64, LogicalKind.TIMESTAMP, unit="ms"), -2, [b"\xfe" + b"\xff" * 7]),
        (leaf(INT64, LogicalKind.DECIMAL, precision=16, scale=2), 125, [b"\x7d" + bytes(7)]),
        (leaf(PhysicalType.FLOAT), 1.5, [b"\0\0\xc0\x3f"]),
        (leaf(PhysicalType.FLOAT), 0.1, []),
        (leaf(PhysicalType.FLOAT), 1e300, []),
        (leaf(PhysicalType.FLOAT), math.inf, [b"\0\0\x80\x7f"]),
        (leaf(PhysicalType.FLOAT), 2**24 + 1, []),
        (leaf(PhysicalType.DOUBLE), 1, [b"\0\0\0\0\0\0\xf0\x3f"]),
        (leaf(PhysicalType.DOUBLE), 2**53 + 1, []),
        (leaf(PhysicalType.DOUBLE), 2**2000, []),
        (leaf(PhysicalType.DOUBLE), math.nan, []),
        (leaf(PhysicalType.DOUBLE), 0.0, []),
        (leaf(PhysicalType.DOUBLE), -0.0, []),
        (leaf(PhysicalType.DOUBLE), 0, []),
        (leaf(BYTE_ARRAY, LogicalKind.STRING), b"ab", [b"ab"]),
        (leaf(BYTE_ARRAY), b"", [b""]),
        (leaf(FIXED, width=2), b"ab", [b"ab"]),
        (leaf(FIXED, width=2), b"abc", []),
        (leaf(FIXED, LogicalKind.DECIMAL, width=4, precision=7, scale=2), -2, [b"\xff\xff\xff\xfe"]),
        (leaf(FIXED, LogicalKind.DECIMAL, width=1, precision=2, scale=0), 128, []),
        (leaf(FIXED, LogicalKind.DECIMAL, width=1, precision=2, scale=0), -128, [b"\x80"]),
    ],
)
def test_plain_bytes(column: Leaf, key: Any, forms: list[bytes]) -> None:
    encode = plain_encoder(column)
    assert encode is not None
    assert list(encode(key)) == forms


def test_a_decimal_in_byte_arrays_is_asked_for_in_every_length_that_pyarrow_reads() -> None:
    for precision, longest in ((38, 16), (39, 32)):
        encode = plain_encoder(leaf(BYTE_ARRAY, LogicalKind.DECIMAL, precision=precision, scale=0))
        assert encode is not None
        assert list(encode(-129)) == [(-129).to_bytes(size, "big", signed=True) for size in range(2, longest + 1)]
        assert next(iter(encode(127))) == b"\x7f"
        assert next(iter(encode(128))) == b"\0\x80"


def test_types_that_have_no_filters() -> None:
    repeated = replace(leaf(INT32), max_repetition_level=1)
    for column in (leaf(PhysicalType.BOOLEAN), leaf(PhysicalType.INT96), repeated):
        assert plain_encoder(column) is None


# -- predicates -----------------------------------------------------------------------------------

LEAVES = {
    "i": leaf(INT64),
    "s": leaf(BYTE_ARRAY, LogicalKind.STRING),
    "f": leaf(PhysicalType.DOUBLE),
    "half": leaf(FIXED, LogicalKind.FLOAT16, width=2),
    "day": leaf(INT32, LogicalKind.DATE),
    "uuid": leaf(FIXED, LogicalKind.UUID, width=16),
    "x": leaf(PhysicalType.INT96),
}


def plain(value: int) -> int:
    return xxh64(value.to_bytes(8, "little"))


def left_over(where: Expression, *present: int) -> bool:
    """Whether rows may match where column ``i`` holds these values, and nothing is known of the others."""
    probes = compile_probes(where, LEAVES)
    if probes is None:
        return True
    hashes = {plain(value) for value in present}
    return may_match(probes, lambda column, hash_: column != "i" or hash_ in hashes)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (col("i") == 1, True),
        (col("i") == 3, False),
        (col("i") == 3.0, False),
        (col("i") != 3, True),
        (~(col("i") != 3), False),
        (~(col("i") == 1), True),
        (col("i") < 0, True),
        (col("i").is_in([3, 4]), False),
        (col("i").is_in([3, 1]), True),
        (col("i").is_in([3, None]), True),
        (col("i").is_in([3.0]), True),  # isin casts its literals
        (col("i").is_in([]), False),
        (KeyIn("i", (3, None, math.nan)), False),
        (KeyIn("i", (3, 2)), True),
        (KeyIn("i", (3, "a")), True),
        ((col("i") == 3) & (col("s") == "a"), False),
        ((col("i") == 1) & (col("i") == 3), False),
        ((col("i") == 3) & (col("i") > 3), False),
        ((col("i") == 3) | (col("i") == 4), False),
        ((col("i") == 3) | (col("i") == 2), True),
        ((col("i") == 3) | (col("s") == "a"), True),
        ((col("i") == 3) | (col("i") > 3), True),
        ((col("i") == 3) | Constant(False), False),
        ((col("i") == 3) | Constant(None), False),
        ((col("i") == 3) | Constant(True), True),
        (col("i").is_null(), True),
        (col("missing") == 3, True),
    ],
    ids=str,
)
def test_predicates(where: Expression, expected: bool) -> None:
    assert left_over(where, 1, 2) is expected


@pytest.mark.parametrize(
    "where",
    [
        col("f") == 0.0,
        col("f") == -0.0,
        col("f") == 0,
        KeyIn("f", (1.0, 0.0)),
        In("f", (1.0, math.nan)),
        In("f", (1.0, None)),
        col("half") == 1.5,
        col("x") == dt.datetime(2024, 1, 1),
        col("s") == 1,
        col("s") == "\ud800",
        col("i") == "1",
        col("i") == Decimal("1.5"),
        col("day") == dt.datetime(2024, 1, 1, 12),
    ],
    ids=str,
)
def test_what_is_never_asked(where: Expression) -> None:
    assert compile_probes(where, LEAVES) is None


@pytest.mark.parametrize("where", [col("f") == math.nan, col("i") == None], ids=str)  # noqa: E711
def test_what_no_value_equals(where: Expression) -> None:
    probes = compile_probes(where, LEAVES)
    assert probes is not None
    assert not may_match(probes, lambda column, value_hash: True)


def test_literals_are_hashed_as_the_column_stores_them() -> None:
    value = uuid.UUID(int=5)
    for where, raw in (
        (col("day") == dt.date(1970, 1, 3), b"\2\0\0\0"),
        (col("day") == dt.datetime(1970, 1, 3), b"\2\0\0\0"),
        (col("uuid") == value, value.bytes),
        (col("s") == "é", "é".encode()),
        (col("f") == 1, b"\0\0\0\0\0\0\xf0\x3f"),
    ):
        probes = compile_probes(where, LEAVES)
        assert probes is not None
        assert list(itertools.chain(*hashes_by_column(probes).values())) == [xxh64(raw)]


def test_how_many_values_must_be_absent() -> None:
    def count(where: Expression) -> int:
        probes = compile_probes(where, LEAVES)
        assert probes is not None
        return num_values(probes)

    assert count(col("i") == 1) == 1
    assert count(col("i").is_in([1, 2, 2])) == 2
    assert count((col("i") == 1) | (col("s") == "a")) == 2
    assert count(col("i").is_in([1, 2, 3]) & (col("s") == "a")) == 1


def test_long_lists_are_not_looked_up() -> None:
    for where in (col("i").is_in([1, 2, 3]), KeyIn("i", (1, 2, 3)), (col("i") == 1) | col("i").is_in([1, 2, 3])):
        assert compile_probes(where, LEAVES, max_values=3) is not None
        assert compile_probes(where, LEAVES, max_values=2) is None
    one_side = col("i").is_in([1, 2, 3]) & (col("i") == 4)
    probes = compile_probes(one_side, LEAVES, max_values=2)
    assert probes is not None
    assert num_values(probes) == 1
