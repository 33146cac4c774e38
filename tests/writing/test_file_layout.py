"""The layout of written files: which options are valid, and which fit a schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.writing.file_layout import BloomFilter, SortedBy, WriteOptions, check_options, leaf_places, sorting

_SCHEMA = pa.schema(
    [("id", pa.int64()), ("flag", pa.bool_()), ("s", pa.struct([("b", pa.string())])), ("many", pa.list_(pa.int64()))]
)


def test_a_size_is_not_a_bool() -> None:
    with pytest.raises(InvalidOptionError, match="row_group_bytes"):
        WriteOptions(row_group_bytes=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WriteOptions(bloom_filters=(BloomFilter(column="nothing"),)), "bloom_filters: there is no such column"),
        (WriteOptions(bloom_filters=(BloomFilter(column="flag"),)), "boolean column"),
        (WriteOptions(dictionary_columns=("s",)), "dictionary_columns: there is no such column"),
        (WriteOptions(sorted_by=(SortedBy(column="nothing"),)), "sorted_by: the column does not exist"),
        (WriteOptions(compression="snappy", compression_level=3), "cannot be combined"),
    ],
)
def test_options_that_do_not_fit_the_schema_are_refused(options: WriteOptions, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        check_options(_SCHEMA, options)


def test_leaves_are_found_outside_of_lists() -> None:
    assert leaf_places(_SCHEMA, "id") == (0,)
    assert leaf_places(_SCHEMA, "s.b") == (2, 0)
    assert leaf_places(_SCHEMA, "nothing") is None
    assert sorting(_SCHEMA, ()) is None
    (column,) = sorting(_SCHEMA, [SortedBy(column="s.b", descending=True)]) or []
    assert (column.column_index, column.descending) == (2, True)
