"""Flat columns of many small files are decoded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.decoding.leaf import SmallFile, decode_together, is_decoded_together, leaf_decoder
from asyncpq.errors import AsyncpqError
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile

NUM_FILES = 3


def small_file(table: pa.Table, *, start: int = 0, damage: slice | None = None, **options: Any) -> SmallFile:
    data = bytearray(parquet_bytes(table, **options))
    if damage is not None:
        data[damage] = bytes(len(data[damage]))
    return SmallFile(OpenFile(bytes(data)).version, start, memoryview(bytes(data))[start:])


def decoded(files: Sequence[SmallFile], most_bytes: int = 1 << 20) -> tuple[pa.Array, list[int]] | None:
    decoder = leaf_decoder(files[0].version, 0, frozenset())
    assert decoder is not None
    return decode_together(files, decoder, verify_crc=True, most_bytes=most_bytes)


VALUES = [
    pa.array([1, None, 3], pa.int32()),
    pa.array(["a", None, "a"]),
    pa.array([0.5, float("nan"), -0.0]),
    pa.array([True, False, None]),
    pa.array([b"abc", None, b"xyz"], pa.binary(3)),
    pa.array([1, 2, 3], pa.timestamp("ns", "UTC")),
    pa.array([None, None, None], pa.decimal128(20, 2)),
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.type))
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_values_of_all_files_in_order(values: pa.Array, codec: str, version: str, dictionary: bool) -> None:
    table = pa.table({"x": values})
    options: dict[str, Any] = {
        "compression": codec,
        "data_page_version": version,
        "use_dictionary": dictionary,
        "row_group_size": 2,
        "write_page_checksum": True,
    }
    found = decoded([small_file(table.slice(number), **options) for number in range(NUM_FILES)])
    assert found is not None
    array, num_pages = found
    expected = pa.concat_arrays([values.slice(number) for number in range(NUM_FILES)])
    assert array.type == values.type
    assert repr(array.to_pylist()) == repr(expected.to_pylist())
    assert num_pages == [2, 1, 1]


def test_files_without_rows() -> None:
    table = pa.table({"x": [1, 2]})
    found = decoded([small_file(table.slice(0, 0)), small_file(table), small_file(table.slice(0, 0))])
    assert found is not None
    assert found[0].to_pylist() == [1, 2]
    assert found[1] == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "dictionary"),
    [
        (lambda: pa.array([None] * 100, pa.binary(100_000)), True),  # nulls take room, too
        (lambda: pa.array(["x" * 10_000] * 1000), True),  # one value of a dictionary for each row
        (lambda: pa.array(["x" * 2_000_000]), False),
    ],
    ids=["nulls of fixed size", "dictionary", "page"],
)
def test_what_decodes_to_much_is_not_decoded(values: Callable[[], pa.Array], dictionary: bool) -> None:
    file = small_file(pa.table({"x": values()}), compression="zstd", use_dictionary=dictionary)
    assert decoded([file], 1 << 40) is None


def test_the_bytes_of_all_files_are_bounded() -> None:
    files = [small_file(pa.table({"x": range(1000)}))] * 20
    assert decoded(files, 1 << 20) is not None
    assert decoded(files, 100_000) is None


def test_unusual_encodings_and_bytes_that_have_not_come() -> None:
    table = pa.table({"x": ["a", "ab"]})
    delta: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}}
    assert decoded([small_file(table, **delta)]) is None
    assert decoded([small_file(table), small_file(table, start=10)]) is None


@pytest.mark.parametrize("damage", [slice(4, 12), slice(30, 40)], ids=["header", "values"])
def test_damage_is_an_error(damage: slice) -> None:
    table = pa.table({"x": range(100)})
    good = small_file(table, use_dictionary=False, compression="none", write_page_checksum=True)
    bad = small_file(table, use_dictionary=False, compression="none", write_page_checksum=True, damage=damage)
    with pytest.raises(AsyncpqError):
        decoded([good, bad])


def test_nested_leaves_and_old_timestamps_are_not_usual() -> None:
    table = pa.table({"x": [1], "l": [[1]], "s": [{"a": 1}], "t": pa.array([0], pa.timestamp("ns"))})
    version = small_file(table, use_deprecated_int96_timestamps=True).version
    assert [is_decoded_together(leaf) for leaf in version.metadata.schema.leaves] == [True, False, False, False]
