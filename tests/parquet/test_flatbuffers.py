"""Tables of flatbuffers, by Arrow's own messages."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from asyncpq.parquet.flatbuffers import FlatBuffer

HEADER, FIELDS, METADATA, NAME, KEY, VALUE = 2, 1, 2, 0, 0, 1


def test_an_arrow_schema() -> None:
    schema = pa.schema([("a", pa.int64()), ("é", pa.string())], metadata={"key": "value", "empty": ""})
    message = FlatBuffer(schema.serialize().to_pybytes(), 8)
    header = message.table(message.root, HEADER)
    assert header is not None
    assert [message.text(field, NAME).decode() for field in message.tables(header, FIELDS)] == ["a", "é"]
    found = {message.text(entry, KEY): message.text(entry, VALUE) for entry in message.tables(header, METADATA)}
    assert found == schema.metadata
    pairs = [(message.text(entry, KEY), message.text(entry, VALUE)) for entry in message.tables(header, METADATA)]
    assert [*message.text_pairs(header, METADATA, KEY, VALUE)] == pairs
    assert [*message.text_pairs(header, METADATA, 40, KEY)] == [(b"", key) for key, _ in pairs]
    assert not [*message.text_pairs(header, 40, KEY, VALUE)]
    assert message.slot(header, 40) is None
    assert not [*message.tables(header, 40)]
    assert not message.text(header, 40)


@pytest.mark.parametrize("data", [b"", b"\x04\0\0\0", b"\x04\0\0\0\xff\xff\0\0"])
def test_bytes_that_are_no_flatbuffer(data: bytes) -> None:
    message = FlatBuffer(data)
    with pytest.raises((struct.error, ValueError)):
        message.slot(message.root, 0)
