"""What footers say to engines with types of their own; against Spark: tests/spark/types/test_types.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.distributed.engine_scans import EngineDataset
from asyncpq.distributed.footers import FooterFacts
from asyncpq.errors import NotParquetError, ObjectNotFoundError
from asyncpq.parquet.metadata import decode_file_metadata
from tests.parquet_bytes import parquet_bytes

_TABLE = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "at": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "l": pa.array([["a"], []], pa.list_(pa.string())),
        "price": pa.array([None, None], pa.decimal128(9, 2)),
    }
)


def _facts(table: pa.Table, **options: Any) -> FooterFacts:
    data = parquet_bytes(table, **options)
    length = int.from_bytes(data[-8:-4], "little")
    return FooterFacts(decode_file_metadata(data[-8 - length : -8]))


def test_the_tree_of_the_schema() -> None:
    facts = _facts(_TABLE, store_schema=False)
    number, at, lists, price = facts.fields
    assert (number.name, number.physical_type, number.annotation, number.is_repeated) == ("id", "INT32", None, False)
    assert at.annotation == "TIMESTAMP"
    assert at.logical_type is not None
    assert (at.logical_type.unit, at.logical_type.is_adjusted_to_utc) == ("us", True)
    assert (lists.annotation, lists.physical_type) == ("LIST", None)
    (repeated,) = lists.children
    assert repeated.is_repeated
    assert [child.annotation for child in repeated.children] == ["STRING"]
    assert (price.annotation, price.physical_type, price.type_length) == ("DECIMAL", "FIXED_LEN_BYTE_ARRAY", 4)
    assert facts.num_rows == 2
    assert facts.created_by.startswith("parquet-cpp-arrow")
    assert facts.key_values == {}


def test_calendars() -> None:
    plain = _facts(_TABLE).calendars
    assert (plain.datetimes, plain.int96, plain.zone) == (None, None, None)
    assert (plain.int96_fields, plain.timestamp_fields) == (frozenset(), frozenset({"at"}))
    old = _TABLE.replace_schema_metadata(
        {"org.apache.spark.version": "2.4.8", "org.apache.spark.timeZone": "Asia/Tokyo"}
    )
    calendars = _facts(old, use_deprecated_int96_timestamps=True).calendars
    assert (calendars.datetimes, calendars.int96, calendars.zone) == (True, True, "Asia/Tokyo")
    assert (calendars.int96_fields, calendars.timestamp_fields) == (frozenset({"at"}), frozenset())


def test_what_a_reader_lacks() -> None:
    encodings = ("PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY")
    facts = _facts(_TABLE, compression="zstd")
    assert facts.undecodable(["ZSTD"], encodings) == ""
    assert "codec" in facts.undecodable(["SNAPPY"], encodings)
    assert "encoding" in facts.undecodable(["ZSTD"], ["PLAIN"])


async def test_footers_of_files(tmp_path: Path) -> None:
    for name, table in (("a", _TABLE), ("b", _TABLE), ("c", _TABLE.select(["id"]))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    async with asyncpq.Session() as session:
        dataset = EngineDataset.of(await session.open_dataset(tmp_path, on_bad_file="skip"))
        operation = dataset.runtime.operation("open", dataset.url)
        files = [file async for some in dataset.files(operation) for file in some]
        (tmp_path / "a.parquet").write_bytes(b"PAR1 not any more")
        footers = [footer async for footer in dataset.footers(files, operation)]
        assert [footer.url.rpartition("/")[2] for footer in footers] == ["b.parquet", "c.parquet"]
        assert len({footer.schema_bytes for footer in footers}) == 2
        assert footers[1].schema.names == [field.name for field in footers[1].facts.fields] == ["id"]
        first = [footer async for footer in dataset.footers(files, operation, first=True)]
        assert [footer.url for footer in first] == [footers[0].url]
        with pytest.raises(ObjectNotFoundError, match="all were skipped"):
            _ = [footer async for footer in dataset.footers(files[:1], operation)]
        strict = EngineDataset.of(await session.open_dataset([str(tmp_path / "b.parquet")]))
        with pytest.raises(NotParquetError):
            _ = [footer async for footer in strict.footers(files[:1], operation, first=True)]
