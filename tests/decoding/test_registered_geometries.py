"""Reads of native geometries where Python code has registered an extension type for them, whose class has no hash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from tests.geometries import wkb
from tests.parquet_files import STRUCT, EditedFile, Struct

POINTS = [wkb(("Point", [float(x), 1.0])) for x in range(6)]
WHERE = col("geometry").intersects_box(2, 0, 3, 2)


class WkbType(pa.ExtensionType):  # type: ignore[misc]  # as geoarrow-pyarrow's: equal by value, without a hash
    def __init__(self) -> None:
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"{}"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> WkbType:
        return cls()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WkbType)

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def registered() -> Iterator[None]:
    pa.register_extension_type(WkbType())
    yield
    pa.unregister_extension_type("geoarrow.wkb")


def geometry_file(folder: Path, kind: int, *, nested: bool = False) -> str:
    column: Any = pa.array(POINTS)
    if nested:
        column = pa.StructArray.from_arrays([column], ["shape"])
    file = EditedFile.of(pa.table({"id": range(6), "geometry": column}), use_dictionary=not nested)
    file.footer.value(2)[-1].put(10, Struct({kind: (STRUCT, Struct())}))
    file.footer.put(5, None)
    path = folder / "geometries.parquet"
    path.write_bytes(file.data())
    return str(path)


async def read(path: str, where: Any = None, **options: Any) -> tuple[pa.Schema, pa.Table]:
    async with asyncpq.Session(**options) as session:
        file = await session.open_file(path)
        return file.schema, await file.read(["geometry"], where)


@pytest.mark.parametrize("kind", [17, 18])
async def test_registering_a_type_changes_no_read(kind: int, tmp_path: Path, request: Any) -> None:
    path = geometry_file(tmp_path, kind)
    before = await read(path)
    request.getfixturevalue("registered")
    assert await read(path) == before
    assert before[0].field("geometry").type == pa.binary()
    _, rows = await read(path, WHERE)
    assert rows["geometry"].to_pylist() == POINTS[2:4]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read(["geometry"], WHERE))["geometry"].to_pylist() == POINTS[2:4]
        file = await session.open_file(path)
        assert (await file.lookup({"id": [4, 1]}, columns=["geometry"]))["geometry"].to_pylist() == [
            POINTS[1],
            POINTS[4],
        ]
        assert (await file.take([5, 0], columns=["geometry"]))["geometry"].to_pylist() == [POINTS[5], POINTS[0]]


async def test_registering_a_type_changes_no_read_of_structs(tmp_path: Path, request: Any) -> None:
    path = geometry_file(tmp_path, 17, nested=True)
    before = await read(path)
    request.getfixturevalue("registered")
    assert await read(path) == before


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", [17, 18])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_named_type_is_read(kind: int, nested: bool, tmp_path: Path) -> None:
    path = geometry_file(tmp_path, kind, nested=nested)
    options = asyncpq.ReadOptions(extension_types=frozenset({"geoarrow.wkb"}))
    schema, rows = await read(path, read=options)
    type_ = schema.field("geometry").type
    assert (type_.field(0).type if nested else type_) == WkbType()
    assert rows.schema.field("geometry").type == type_
    column = rows["geometry"].combine_chunks()
    values = column.field(0) if nested else column
    assert values.storage.to_pylist() == POINTS
    if not nested:
        _, rows = await read(path, WHERE, read=options)
        assert rows["geometry"].combine_chunks().storage.to_pylist() == POINTS[2:4]
