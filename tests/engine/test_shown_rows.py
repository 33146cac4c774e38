"""Names and rows that cross the border to another program."""

from __future__ import annotations

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.engine.shown_rows import check_names, compact_batch

SCHEMA = pa.schema({"id": pa.int64(), "place": pa.struct({"zip": pa.string()}), "twice": pa.int8()})


@pytest.mark.parametrize("names", [[], ["id"], ["place.zip", "twice"]])
def test_names_of_columns_and_fields(names: list[str]) -> None:
    check_names(SCHEMA, names)


@pytest.mark.parametrize(
    ("schema", "name", "error"),
    [
        (SCHEMA, "ident", asyncpq.ColumnNotFoundError),
        (SCHEMA, "place.street", asyncpq.ColumnNotFoundError),
        (SCHEMA.append(pa.field("twice", pa.int8())), "twice", asyncpq.AmbiguousColumnError),
    ],
)
def test_other_names_are_refused_as_by_reads(schema: pa.Schema, name: str, error: type[asyncpq.AsyncpqError]) -> None:
    with pytest.raises(error):
        check_names(schema, [name])


def test_a_compact_batch_has_its_own_rows_alone() -> None:
    whole = pa.record_batch({"text": [f"secret {number}" for number in range(100)]})
    batch = compact_batch(whole.slice(40, 2), hidden_rows=True)
    assert batch.equals(whole.slice(40, 2))
    buffers = [bytes(buffer) for buffer in batch.column(0).buffers() if buffer is not None]
    assert not any(b"secret 39" in data or b"secret 42" in data for data in buffers)
