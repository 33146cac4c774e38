"""Keys that come as text have the types of their columns. tests/cli/test_arguments.py looks them up."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, InvalidOptionError
from asyncpq.scan.key_texts import key_value

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.dictionary(pa.int32(), pa.string()),
        "a": pa.struct({"b": pa.struct({"c": pa.binary()})}),
        "at": pa.timestamp("us", "Europe/Paris"),
        "uuid": pa.uuid(),
        "ratio": pa.float32(),
    }
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("id", "-42", -42),
        ("name", "42", "42"),
        ("a.b.c", "0x00ff", b"\x00\xff"),
        ("at", "2024-02-29T12:00:00", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        ("uuid", str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        ("ratio", "0.1", pa.scalar(0.1, pa.float32()).as_py()),
    ],
)
def test_text_becomes_a_value_of_the_column(name: str, text: str, value: Any) -> None:
    key = key_value(name, text, SCHEMA)
    assert (key.as_py() if isinstance(key, pa.Scalar) else key) == value


@pytest.mark.parametrize(("name", "text"), [("id", "1.5"), ("at", "noon"), ("uuid", "1"), ("a.b.c", "0x0"), ("a", "1")])
def test_text_of_no_value_names_the_column(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match="is not a value of type") as raised:
        key_value(name, text, SCHEMA)
    assert raised.value.column == name


_C_AND_D = pa.struct({"a": pa.struct({"b.c": pa.int32()}), "a.b": pa.struct({"d": pa.date32()})})
BESIDE = {
    "st.a.b": pa.schema({"st.a": pa.struct({"x": pa.string()}), "st": pa.struct({"a.b": pa.int32()})}),
    "st.a.b.c": pa.schema({"st": _C_AND_D}),
    "st.a.b.d": pa.schema({"st": _C_AND_D}),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_path_means_the_field_that_exists(name: str) -> None:
    """Beside it lies a struct whose name the path begins with, too."""
    text, value = ("2024-02-29", dt.date(2024, 2, 29)) if name.endswith("d") else ("4", 4)
    assert key_value(name, text, BESIDE[name]).as_py() == value
    for unknown in (f"{name}.e", f"{name}.", "st.a.e", "st."):
        with pytest.raises(ColumnNotFoundError) as raised:
            key_value(unknown, "4", BESIDE[name])
        assert raised.value.column == unknown


def test_a_path_of_two_fields_is_an_error() -> None:
    inside = pa.struct({"b": pa.int32()})
    with pytest.raises(AmbiguousColumnError, match="2 fields have this path"):
        key_value("st.a.b", "4", pa.schema({"st.a": inside, "st": pa.struct({"a": inside})}))


def test_an_unknown_column_has_the_nearest_in_its_hint() -> None:
    with pytest.raises(ColumnNotFoundError, match="Did you mean 'name'"):
        key_value("nmae", "1", SCHEMA)
