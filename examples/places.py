"""Places in a box, out of files laid out as Overture Maps': GeoParquet with a ``bbox`` column, in spatial order.

    python examples/places.py            # makes 40,000 places in a temporary folder, and asks for those of Zurich

A read of a box fetches the pages whose covering boxes meet it, and the exact filter leaves out what does not. The same
code reads Overture's own files: ``s3://overturemaps-us-west-2/release/.../theme=places/type=place/`` with
``storage_options={"anon": True}``.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import ReadMetrics, col

CORNERS = ("xmin", "xmax", "ymin", "ymax")
ZURICH = (8.45, 47.32, 8.62, 47.43)  # xmin, ymin, xmax, ymax


def place_on_curve(x: float, y: float, bits: int = 12) -> int:
    """The place of a point on a z-order curve: near points have near places."""
    column, row = int((x + 180) / 360 * (1 << bits)), int((y + 90) / 180 * (1 << bits))
    return sum((column >> bit & 1) << 2 * bit | (row >> bit & 1) << 2 * bit + 1 for bit in range(bits))


def places_table(points: Sequence[tuple[float, float]], first: int) -> pa.Table:
    """Points as Overture's places: geometries in well-known binary, covered by a struct of floats."""
    floats = pa.struct([pa.field(corner, pa.float32()) for corner in CORNERS])
    covering = {"bbox": {corner: ["bbox", corner] for corner in CORNERS}}
    column = {"encoding": "WKB", "geometry_types": ["Point"], "covering": covering}
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    table = pa.table(
        {
            "id": [f"place-{number:06}" for number in range(first, first + len(points))],
            "bbox": pa.array([{"xmin": x, "xmax": x, "ymin": y, "ymax": y} for x, y in points], floats),
            "geometry": pa.array([struct.pack("<BIdd", 1, 1, x, y) for x, y in points], pa.binary()),
        }
    )
    return table.replace_schema_metadata({"geo": json.dumps(geo)})


def write_places(folder: Path, num_places: int, num_files: int = 4) -> list[tuple[float, float]]:
    """Write places all over the world, in the order of a curve, as files of a partition; return their points."""
    draw = random.Random(7)
    points = [(draw.uniform(-180, 180), draw.uniform(-90, 90)) for _ in range(num_places * 9 // 10)]
    points += [(draw.gauss(8.54, 0.1), draw.gauss(47.37, 0.1)) for _ in range(num_places - len(points))]
    points.sort(key=lambda point: place_on_curve(*point))
    target = folder / "theme=places" / "type=place"
    target.mkdir(parents=True)
    step = -(-num_places // num_files)
    for number in range(num_files):
        table = places_table(points[number * step : (number + 1) * step], number * step)
        pq.write_table(
            table,
            target / f"part-{number:05}.parquet",
            row_group_size=4_000,
            max_rows_per_page=500,
            write_batch_size=500,
            write_page_index=True,
        )
    return points


async def places_in(url: str, box: tuple[float, float, float, float]) -> tuple[pa.Table, ReadMetrics]:
    """Return the places in a box (xmin, ymin, xmax, ymax), and what the read cost."""
    async with asyncpq.Session() as session:
        places = await session.open_dataset(url)
        table = await places.read(["id", "geometry"], col("geometry").intersects_box(*box))
        return table, places.metrics


def size_of(folder: Path) -> int:
    """The bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_places(folder, 40_000)
        table, metrics = await places_in(f"{folder}/", ZURICH)
        print(f"{table.num_rows} places in {ZURICH}")
        print(f"{metrics.bytes_fetched:,} of {size_of(folder):,} bytes fetched, in {metrics.requests} requests")


if __name__ == "__main__":
    asyncio.run(main())
