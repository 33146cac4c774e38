"""Which columns Arrow's writers name as dictionaries; broken schemas name none, and raise nothing."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.format.arrow_schema import dictionary_columns

CATEGORY = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema(
    [
        ("plain", pa.string()),
        ("category", CATEGORY),
        ("list", pa.list_(CATEGORY)),
        ("struct", pa.struct([("i", pa.int32()), ("c", pa.map_(pa.string(), CATEGORY))])),
        ("numbers", pa.struct([("i", pa.int32())])),
        ("ü", CATEGORY),
    ]
)
NAMES = frozenset({"category", "list", "struct", "ü"})
MESSAGE = SCHEMA.serialize().to_pybytes()


def encoded(message: bytes) -> str:
    return base64.b64encode(message).decode()


def test_dictionaries_at_any_depth() -> None:
    assert dictionary_columns(encoded(MESSAGE)) == NAMES
    assert dictionary_columns(encoded(MESSAGE[4:])) == NAMES  # as before Arrow 0.15
    assert dictionary_columns(encoded(pa.schema([("x", pa.int8())]).serialize().to_pybytes())) == frozenset()


@pytest.mark.parametrize("value", [None, "", "no base64!", "AAAA", encoded(b"\xff" * 40), encoded(bytes(100))])
def test_no_schema(value: str | None) -> None:
    assert dictionary_columns(value) is None


@given(
    st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255)), max_size=8), st.integers(0, len(MESSAGE))
)
def test_damaged_schemas(changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(MESSAGE)
    for at, byte in changes:
        damaged[at] = byte
    found = dictionary_columns(encoded(bytes(damaged[:length])))
    assert found is None or all(isinstance(name, str) for name in found)
