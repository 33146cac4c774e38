"""The pictures of the documents, each in light and in dark: `python .ci/pictures.py` makes docs/pictures anew.

Page maps are of reads that run here, from a server that waits 25 ms before it answers; Chromium draws them. Charts are
those of the benchmarks (`*.svg`): their dark form is made of the light one.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.page_map import render
from asyncpq.testing import ObjectServer

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
DARK = {"#ffffff": "#1c1e26", "#000000": "#d5d7de", "#b0b0b0": "#6b6f7c"}  # paper, ink, grid
WIDTH = 1200
MARGIN = 36
ATTEMPTS = 15


def darkened(chart: str) -> str:
    """Return a chart of matplotlib with the colours of the dark theme. Its text has no colour of its own."""
    swapped = re.sub("|".join(DARK), lambda match: DARK[match[0]], chart)
    return swapped.replace("<svg ", f'<svg fill="{DARK["#000000"]}" ', 1)


def dark(picture: Path) -> Path:
    """Return the path of a picture's dark form."""
    return picture.with_stem(f"{picture.stem}-dark")


def charts() -> Iterator[Path]:
    """Yield the charts in their light form."""
    return (path for path in sorted(PICTURES.glob("*.svg")) if not path.stem.endswith("-dark"))


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a table as a Parquet file with page indexes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_index=True, compression="zstd", **options)
    return sink.getvalue()


def trips(rows: int) -> pa.Table:
    """Return trips, sorted by user."""
    draw = random.Random(7)
    start = datetime.datetime(2026, 4, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "user": [f"user-{100_000 + row // 6}" for row in range(rows)],
            "ts": [start + datetime.timedelta(seconds=draw.randrange(10**7)) for _ in range(rows)],
            "price": [draw.randrange(10**5) / 100 for _ in range(rows)],
            "city": [draw.choice(["Basel", "Bern", "Chur", "Genf"]) for _ in range(rows)],
            "distance_km": [draw.random() * 40 for _ in range(rows)],
            "note": [f"note {draw.randrange(20_000)}" for _ in range(rows)],
            "rating": pa.array([draw.randrange(6) for _ in range(rows)], pa.int8()),
            "driver": [f"d{draw.randrange(3_000)}" for _ in range(rows)],
        }
    )


async def documents() -> dict[str, Any]:
    """Return the stories that are drawn, by the name of their picture."""
    with ObjectServer.in_thread() as server:
        server.put("lake/trips.parquet", parquet(trips(1_200_000), row_group_size=150_000, max_rows_per_page=5_000))
        draw = random.Random(5)
        for number in range(500):
            day = datetime.date(2026, 4, 1) + datetime.timedelta(days=number // 100)
            users = [draw.randrange(500_000) for _ in range(1_000)] + ([4_242] if number in (98, 291) else [])
            table = pa.table({"user": users, "price": [user % 997 / 10 for user in users]})
            data = parquet(table, max_rows_per_page=200, row_group_size=400)
            server.put(f"bucket/lake/day={day}/part-{number:05}.parquet", data)
        options = server.storage_options
        async with asyncpq.Session(storage_options=options) as session:
            await session.build_index("s3://bucket/lake/", [Bounds("day"), Keys("user"), Footers()])
        server.latency_s = 0.025
        lookups, founds = [], []
        for _ in range(ATTEMPTS):  # the first loads modules, and others meet a busy machine
            async with asyncpq.Session(storage_options=options) as session:
                file = await session.open_file("s3://lake/trips.parquet")
                lookups.append((await file.why(["user", "price", "note"], lookup={"user": "user-204242"})).to_dict())
            async with asyncpq.Session(storage_options=options) as session:
                lake = await session.open_dataset("s3://bucket/lake/")
                founds.append((await lake.why(["user", "price"], lookup={"user": 4_242})).to_dict())
    return {"page-map-lookup": min(lookups, key=seconds), "page-map-lake": min(founds, key=seconds)}


def seconds(story: dict[str, Any]) -> float:
    """Return how long the read of a story took."""
    return float(story["time"]["total_s"])


def photograph(stories: dict[str, Any]) -> None:
    """Draw each story in a browser, light and dark, and one row group of the lookup."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("the page maps are drawn by Chromium, which is not installed")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, story in stories.items():
            page_file = Path(folder) / f"{name}.html"
            page_file.write_text(render(story), encoding="utf-8")
            for scheme, place in (("light", PICTURES / f"{name}.png"), ("dark", dark(PICTURES / f"{name}.png"))):
                page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
                page.goto(page_file.as_uri())
                page.wait_for_selector("html[data-ready]")
                page.screenshot(path=place, full_page=True)
                if name == "page-map-lookup":
                    page.focus("#stage")
                    page.keyboard.press("Enter")
                    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")  # without its outline
                    box = page.locator("#map").bounding_box()
                    box = {"x": 0, "y": box["y"] - MARGIN / 2, "width": WIDTH, "height": box["height"] + MARGIN}
                    group = place.with_name(place.name.replace("lookup", "row-group"))
                    page.screenshot(path=group, full_page=True, clip=box)
                page.close()
        browser.close()


if __name__ == "__main__":
    for chart in charts():
        dark(chart).write_text(darkened(chart.read_text(encoding="utf-8")), encoding="utf-8")
    photograph(asyncio.run(documents()))
    if find_spec("PIL") is not None:  # a third of the bytes
        from PIL import Image

        for picture in PICTURES.glob("*.png"):
            Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)
