"""A file never chooses code: extension types that Python code registered stay hidden unless allowed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.decoding.field_types import StoredArrowSchema, field_types
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile

NAMES = ["arrow.mine", "arrow.parquet.variant", "mine"]


class Mine(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    made: list[bytes] = []  # noqa: RUF012 - shared on purpose: what files made pyarrow call

    def __init__(self, name: str) -> None:
        super().__init__(pa.int32(), name)

    def __arrow_ext_serialize__(self) -> bytes:
        return b"from the file"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Mine:
        cls.made.append(serialized)
        return cls(NAMES[0])


@pytest.fixture(params=NAMES)
def registered(request: pytest.FixtureRequest) -> Iterator[str]:
    kind = Mine(request.param)
    pa.register_extension_type(kind)
    Mine.made.clear()
    try:
        yield request.param
    finally:
        pa.unregister_extension_type(request.param)


def extension(name: str, kind: pa.DataType | None = None) -> pa.Field:
    metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": "from the file", "mine": "kept"}
    return pa.field("e", kind or pa.int32(), metadata=metadata)


def shown(schema: pa.Schema, *allowed: str) -> pa.Schema | None:
    """What is left of a schema that a file of one column ``x`` keeps."""
    file = OpenFile(parquet_bytes(pa.table({"x": [1]}), store_schema=False))
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    metadata: Any = SimpleNamespace(key_value_metadata={"ARROW:schema": text}, schema=file.metadata.schema)
    stored = StoredArrowSchema(metadata, frozenset(allowed))
    encoded = stored.encoded(file.metadata.schema.fields)
    if encoded is None:
        return None
    message = base64.b64decode(encoded)
    assert b"async:extension" not in message
    return pa.ipc.read_schema(pa.py_buffer(message))


def wrapped(field: pa.Field) -> list[pa.DataType]:
    return [
        pa.list_(field),
        pa.large_list(field),
        pa.list_(field, 3),
        pa.list_view(field),
        pa.large_list_view(field),
        pa.struct([pa.field("before", pa.int8()), field]),
        pa.map_(pa.string(), field),
        pa.map_(pa.field("key", pa.struct([field]), nullable=False), pa.int8()),
        pa.dictionary(pa.int8(), pa.struct([field])),
        pa.dense_union([field]),
        pa.list_(pa.struct([pa.field("deep", pa.list_view(field))])),
        pa.run_end_encoded(pa.int32(), pa.struct([field])),
    ]


@pytest.mark.parametrize("at", range(len(wrapped(extension("mine")))))
def test_python_types_are_not_made_wherever_they_stand(registered: str, at: int) -> None:
    schema = shown(pa.schema([pa.field("x", wrapped(extension(registered))[at])]))
    assert Mine.made == []
    assert schema is not None
    assert "extension" not in str(schema.field(0).type)


def test_python_type_of_a_whole_column(registered: str) -> None:
    schema = shown(pa.schema([extension(registered).with_name("x")]))
    assert schema is not None
    assert schema.field(0).type == pa.int32()
    assert schema.field(0).metadata[b"mine"] == b"kept"
    assert Mine.made == []


@pytest.mark.parametrize("at", range(5))
def test_allowed_types_come_back(registered: str, at: int) -> None:
    schema = shown(pa.schema([pa.field("x", wrapped(extension(registered))[at])]), registered)
    assert schema is not None
    assert isinstance(schema.field(0).type.value_type, Mine)


def test_reads_of_such_a_file(registered: str) -> None:
    schema = pa.schema([extension(registered).with_name("x")])
    table = pa.table([pa.array([1, 2], pa.int32())], schema=schema)
    data = parquet_bytes(table)
    Mine.made.clear()
    (kind,) = field_types(OpenFile(data).version, [0], frozenset())
    assert kind.arrow.type == pa.int32()
    assert Mine.made == []
    (kind,) = field_types(OpenFile(data).version, [0], frozenset([registered]))
    assert isinstance(kind.arrow.type, Mine)


@pytest.mark.parametrize(
    ("name", "storage", "metadata"),
    [
        ("arrow.uuid", pa.binary(16), ""),
        ("arrow.json", pa.string(), ""),
        ("arrow.bool8", pa.int8(), ""),
        ("arrow.opaque", pa.null(), '{"type_name":"x","vendor_name":"y"}'),
        ("arrow.fixed_shape_tensor", pa.list_(pa.int32(), 4), '{"shape":[2,2]}'),
    ],
)
def test_built_in_types_need_no_leave(name: str, storage: pa.DataType, metadata: str) -> None:
    field = pa.field("x", storage, metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": metadata})
    with pytest.raises(pa.ArrowKeyError):  # nobody can put a Python type in its place
        pa.register_extension_type(Mine(name))
    schema = shown(pa.schema([field]))
    assert schema is not None
    assert schema.field(0).type.extension_name == name
