"""Which columns Arrow's writers name as dictionaries; broken schemas name none, and raise nothing."""

from __future__ import annotations

import base64
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.parquet.writer_faults import dictionary_columns

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


# Fields of a flatbuffer may refer to the same bytes. These are laid out by hand: two tables of slots (of a dictionary,
# and of a field that is none), the message, its schema, and the schema's vector of fields, each of 24 bytes.
DICTIONARY, PLAIN, ROOT, FIELDS = 12, 28, 44, 92


def table(at: int, vtable: int, *, name: int = 0, fields: int = 0, header: int = 0, children: int = 0) -> bytes:
    places = [place and place - at - slot for slot, place in ((4, name), (8, fields), (12, header), (20, children))]
    return struct.pack("<iIIIII", at - vtable, *places[:3], 0, places[3])


def vector(at: int, places: list[int]) -> bytes:
    return struct.pack(f"<{1 + len(places)}I", len(places), *(place - at - 4 * i for i, place in enumerate(places, 1)))


def message(places: list[int]) -> bytes:
    slots = (struct.pack("<8H", 16, 24, 4, 8, 12, 0, dictionary, 20) for dictionary in (16, 0))
    schema = table(ROOT, DICTIONARY, header=ROOT + 24) + table(ROOT + 24, DICTIONARY, fields=FIELDS)
    return struct.pack("<III", 0xFFFFFFFF, 0, ROOT - 8) + b"".join(slots) + schema + vector(FIELDS, places)


@pytest.mark.parametrize(("num_names", "known"), [(2, frozenset({"p\0\0\0" * 28})), (2000, None)])
def test_names_that_share_their_bytes_are_not_held_in_memory(num_names: int, known: frozenset[str] | None) -> None:
    first = FIELDS + 4 + 4 * num_names
    texts = first + 24 * num_names  # words that are text, and the length of the text behind them, too
    data = message([first + 24 * i for i in range(num_names)])
    data += b"".join(table(first + 24 * i, DICTIONARY, name=texts + 4 * i) for i in range(num_names))
    data += struct.pack("<I", 112) * (num_names + 29)
    assert dictionary_columns(encoded(data)) == known


def test_fields_that_share_their_children() -> None:
    """Each is looked at, none of them has its children counted up."""
    number = 20_000
    field = FIELDS + 4 + 4 * number
    children, child = field + 24 + 8, field + 24 + 8 + 4 + 4 * number
    data = message([field] * number)
    data += table(field, PLAIN, name=field + 24, children=children) + struct.pack("<I4s", 1, b"x")
    data += vector(children, [child] * number) + table(child, DICTIONARY)
    assert dictionary_columns(encoded(data)) == frozenset({"x"})
