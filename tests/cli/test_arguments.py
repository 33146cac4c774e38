"""Keys on the command line have the types of their columns: a lookup by them finds what is there."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.cli.arguments import parse_columns, parse_keys
from asyncpq.errors import InvalidOptionError

UTC = dt.UTC
VALUES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int64(), "-42", -42),
    (pa.uint64(), str(2**64 - 1), 2**64 - 1),
    (pa.float32(), "0.1", 0.1),
    (pa.float64(), "1e300", 1e300),
    (pa.bool_(), "true", True),
    (pa.string(), "a=b, c", "a=b, c"),
    (pa.string(), "", ""),
    (pa.dictionary(pa.int32(), pa.string()), "red", "red"),
    (pa.binary(), "text", b"text"),
    (pa.binary(), "0x00ff", b"\x00\xff"),
    (pa.binary(2), "0x00ff", b"\x00\xff"),
    (pa.decimal128(10, 2), "-1.25", Decimal("-1.25")),
    (pa.date32(), "2024-02-29", dt.date(2024, 2, 29)),
    (pa.time64("us"), "12:30:00.25", dt.time(12, 30, 0, 250_000)),
    (pa.timestamp("us"), "2024-02-29 12:00:00", dt.datetime(2024, 2, 29, 12)),
    (pa.timestamp("ns"), "2024-02-29T12:00:00.000000001", 1_709_208_000_000_000_001),
    (pa.timestamp("ms", "UTC"), "2024-02-29T12:00:00Z", dt.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (pa.timestamp("us", "Europe/Paris"), "2024-02-29T12:00:00", dt.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (pa.uuid(), "12345678-1234-5678-1234-567812345678", uuid.UUID(int=0x12345678123456781234567812345678).bytes),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES, ids=lambda part: str(part)[:30])
async def test_a_key_finds_the_row_of_its_value(kind: pa.DataType, text: str, value: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"key": pa.array([None, value], kind), "row": [0, 1]}), url)
    async with asyncpq.Session() as session, await session.open_file(url) as file:
        table = await file.lookup(parse_keys([f"key={text}"], file.schema), columns=["row"])
    assert table.to_pydict() == {"row": [1]}


def test_several_values_of_a_column_are_a_list_and_paths_name_leaves() -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.struct([("b", pa.string())])), ("a.c", pa.int32())])
    keys = parse_keys(["id=1", "a.b=x", "id=2", "a.b=y", "a.c=3"], schema)
    assert {name: [str(one) for one in value] for name, value in keys.items() if name != "a.c"} == {
        "id": ["1", "2"],
        "a.b": ["x", "y"],
    }
    assert keys["a.c"].as_py() == 3


@pytest.mark.parametrize("argument", ["id", "id=x", "id=", "at=yesterday", "raw=0xzz", "wait=3 s"])
def test_what_does_not_fit_is_wrong_usage(argument: str) -> None:
    kinds: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("wait", pa.duration("s")),
    ]
    with pytest.raises(asyncpq.InvalidOptionError, match=f"--key {argument}"):
        parse_keys([argument], pa.schema(kinds))


def test_an_unknown_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(asyncpq.ColumnNotFoundError, match="'nr'") as caught:
        parse_keys(["nr=1"], pa.schema([("id", pa.int64())]))
    assert "id" in str(caught.value.hint)


def test_columns() -> None:
    assert parse_columns(None) is None
    assert parse_columns("a, b.c,") == ["a", "b.c"]
    for nothing in ("", " ,"):  # an empty variable of a shell, not a wish for rows without columns
        with pytest.raises(InvalidOptionError, match="has no column name"):
            parse_columns(nothing)
