"""Options of Spark for the layout of files, without a JVM."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.errors import InvalidOptionError
from asyncpq.spark.lake_writer import parse_write_options
from asyncpq.writing import BloomFilter, SortedBy, WriteOptions


def test_options_of_a_source_are_parsed() -> None:
    options = parse_write_options(
        {
            "pagerows": "100",
            "compression": "snappy",
            "bloomfilters": '["id", {"column": "s.b", "fpp": 0.001}]',
            "sortedby": '[{"column": "id", "descending": true, "nullsFirst": false}]',
            "dictionarycolumns": '["s.b"]',
            "storeschema": "false",
        }
    )
    assert options == WriteOptions(
        page_rows=100,
        compression="snappy",
        bloom_filters=(BloomFilter(column="id"), BloomFilter(column="s.b", fpp=0.001)),
        sorted_by=(SortedBy(column="id", descending=True, nulls_first=False),),
        dictionary_columns=("s.b",),
        store_schema=False,
    )
    assert parse_write_options({}) == WriteOptions()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pagerows": "0"}, "page_?[rR]ows"),
        ({"compression": "zip"}, "compression='zip'"),
        ({"bloomfilters": '{"id": 1}'}, "bloomFilters"),
        ({"bloomfilters": '[{"column": "id", "fpp": 2}]'}, "fpp"),
        ({"dictionarycolumns": "[1]"}, "must be a list of names"),
        ({"sortedby": "[id"}, "must be JSON"),
    ],
)
def test_invalid_values_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_write_options(given)


@pytest.mark.parametrize(
    "given",
    [
        {"compression": "lzo"},
        {"pageRows": "0"},
        {"pageBytes": "64k"},
        {"bloomFilters": "[id"},
        {"bloomFilters": '{"column": "id"}'},
        {"bloomFilters": '[{"column": "id", "size": 3}]'},
        {"bloomFilters": '[{"column": "id", "fpp": 2}]'},
        {"bloomFilters": '[{"column": "id", "ndv": 0}]'},
        {"sortedBy": '[{"column": "id", "descending": "yes"}]'},
        {"sortedBy": "[7]"},
        {"dictionaryColumns": "[7]"},
        {"storeSchema": "perhaps"},
    ],
    ids=str,
)
def test_options_that_cannot_be(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError):
        parse_write_options(given)


def test_options_by_their_names_in_spark() -> None:
    found = parse_write_options(
        {
            "COMPRESSION": "ZSTD",
            "compressionlevel": "7",
            "pageRows": "10",
            "bloomFilters": '["a", {"column": "b", "ndv": 5, "fpp": 0.1}]',
            "sortedBy": '[{"column": "a", "descending": true, "nullsFirst": false}, "b"]',
            "dictionaryColumns": "[]",
            "storeSchema": "FALSE",
        }
    )
    assert found == WriteOptions(
        compression_level=7,
        page_rows=10,
        bloom_filters=(BloomFilter(column="a"), BloomFilter(column="b", ndv=5, fpp=0.1)),
        sorted_by=(SortedBy(column="a", descending=True, nulls_first=False), SortedBy(column="b")),
        dictionary_columns=(),
        store_schema=False,
    )
