"""examples/places.py: the places of a box, for a part of the bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from asyncpq import Session, col
from asyncpq.indexing import Bounds
from examples.places import ZURICH, places_in, size_of, write_places


@pytest.mark.parametrize("box", [ZURICH, (170.0, -10.0, -170.0, 10.0), (0.0, 0.0, 0.0, 0.0)])
async def test_places(tmp_path: Path, box: tuple[float, float, float, float]) -> None:
    points = write_places(tmp_path, 12_000)
    table, metrics = await places_in(f"{tmp_path}/", box)
    xmin, ymin, xmax, ymax = box

    def is_inside(x: float, y: float) -> bool:
        return ymin <= y <= ymax and (xmin <= x <= xmax if xmin <= xmax else x >= xmin or x <= xmax)

    rows = [number for number, point in enumerate(points) if is_inside(*point)]
    assert len(rows) > 50 or box[0] == 0
    found = pa.compute.count_distinct(table["id"]).as_py()
    assert table.num_rows == found == len(rows)
    assert metrics.bytes_fetched < size_of(tmp_path) / 2


async def test_places_beside_an_index(tmp_path: Path) -> None:
    write_places(tmp_path, 2_000, num_files=2)
    async with Session() as session:
        await session.build_index(f"{tmp_path}/", [Bounds("id", "geometry")])
        places = await session.open_dataset(f"{tmp_path}/")
        where = col("geometry").intersects_box(*ZURICH)
        found = await places.count(where=where)
        assert found == len(await places.read(["id"], f"intersects_box(geometry, {', '.join(map(str, ZURICH))})")) > 0
        assert await places.count(where=where | (col("id") == "place-000000")) in (found, found + 1)
        assert await places.count(where=~where) == 2_000 - found
