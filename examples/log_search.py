"""Search text in logs: words, phrases and parts of words, out of Parquet files, without reading them all.

    python examples/log_search.py     # makes 200,000 lines in a temporary folder, indexes and searches them

``Text`` knows the rows of each word; ``NGrams`` knows which files may hold a part of a word. The same code works on
``s3://`` urls. New files are found without the index until ``refresh`` has read them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import Expression, col
from asyncpq.indexing import Footers, NGrams, Text

_VERBS = ("accepted", "rejected", "queued", "retried", "dropped")
_THINGS = ("request", "payment", "session", "upload", "invoice")
_LEVELS = ("INFO", "INFO", "INFO", "WARNING", "ERROR")


def write_logs(folder: Path, lines: int, files: int = 8) -> None:
    """Write log lines to files, one for each hour, with a needle in one of them."""
    draw = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    step = lines // files
    for hour in range(files):
        texts = [
            f"{draw.choice(_VERBS)} {draw.choice(_THINGS)} of tenant-{draw.randrange(400)} in {draw.randrange(900)} ms,"
            f" trace {draw.getrandbits(64):016x}"
            for _ in range(step)
        ]
        if hour == files // 2:
            texts[step // 3] = "kernel panic on host seven: watchdog did not stop, trace 00c0ffee00c0ffee"
        table = pa.table(
            {
                "line": range(hour * step, (hour + 1) * step),
                "level": [draw.choice(_LEVELS) for _ in range(step)],
                "message": texts,
            }
        )
        pq.write_table(
            table,
            folder / f"hour-{hour:02}.parquet",
            write_page_index=True,
            max_rows_per_page=2_000,
            compression="zstd",
        )


async def index_logs(url: str) -> None:
    """Build the index, beside the files."""
    async with asyncpq.Session() as session:
        await session.build_index(url, [Text("message"), NGrams("message"), Footers()])


async def search(url: str, where: Expression) -> tuple[pa.Table, asyncpq.ReadMetrics]:
    """Return the lines that match, and the cost of finding them."""
    async with asyncpq.Session() as session:
        logs = await session.open_dataset(url)
        with asyncpq.measure() as cost:
            return await logs.read(["line", "level", "message"], where), cost


SEARCHES: dict[str, Expression] = {
    "words, in any order": col("message").has_tokens("watchdog panic"),
    "a phrase": col("message").has_phrase("kernel panic on host"),
    "a part of a word": col("message").contains("watchdo"),
    "words and a level": col("message").has_tokens("tenant 17 rejected invoice") & (col("level") == "ERROR"),
}


async def main() -> None:
    """Make logs, index and search them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "logs"
        write_logs(folder, 200_000)
        size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
        await index_logs(f"{folder}/")
        for title, where in SEARCHES.items():
            found, cost = await search(f"{folder}/", where)
            print(f"{title}: {found.num_rows} lines, {cost.bytes_fetched:,} of {size:,} bytes")
            for line in found.slice(0, 2).to_pylist():
                print(f"    {line['line']} {line['level']} {line['message']}")


if __name__ == "__main__":
    asyncio.run(main())
