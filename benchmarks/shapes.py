"""How a lookup in one file grows with its columns and row groups: ``python -m benchmarks.shapes``.

Local files of 1 to 10,000 columns, and of 1 to 1,000 row groups, are opened and asked for one row, of one column and of
all. The figures are CPU milliseconds of opening, of the first lookup and of a warm one, each in a fresh process, and of
pyarrow, which reads the footer and the row group that holds the row. Prints a Markdown table and draws it
(``--picture``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.run import HERE, ROOT

COLUMNS = (1, 10, 100, 1_000, 10_000)
ROW_GROUPS = (1, 10, 100, 1_000)
_ROWS = {"columns": 1_000, "row groups": 100_000}
_WARM = 50  # lookups


def ensure(folder: Path, shape: str, size: int) -> Path:
    """Write the file of a shape, unless it is there: ``key`` counts the rows, the other columns are random."""
    path = folder / f"{shape.replace(' ', '-')}-{size}.parquet"
    if not path.is_file():
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows, random = _ROWS[shape], np.random.default_rng(1)
        more = size - 1 if shape == "columns" else 2
        columns = {"key": np.arange(rows), **{f"c{number}": random.random(rows) for number in range(more)}}
        folder.mkdir(parents=True, exist_ok=True)
        group_rows = rows if shape == "columns" else rows // size
        pq.write_table(pa.table(columns), path, row_group_size=group_rows, write_page_index=True, use_dictionary=False)
    return path


async def by_asyncpq(path: Path, rows: int) -> dict[str, float]:
    """CPU milliseconds of opening the file, of a first lookup and of warm ones."""
    import asyncpq

    async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
        began = time.process_time()
        file = await session.open_file(str(path))
        opened = time.process_time()
        await file.lookup({"key": rows // 2}, columns=["key"])
        first = time.process_time()
        await file.lookup({"key": rows // 3}, columns=["key"])
        warm_began = time.process_time()
        found = [(await file.lookup({"key": rows // 3}, columns=["key"])).num_rows for _ in range(_WARM)]
        warm = time.process_time() - warm_began
        assert found == [1] * _WARM
        figures = {"open": opened - began, "first": first - opened, "warm": warm / _WARM}
        for name in ("first all", "warm all"):
            began = time.process_time()
            assert (await file.lookup({"key": rows // 2})).num_rows == 1
            figures[name] = time.process_time() - began
        return {name: 1000 * seconds for name, seconds in figures.items()}


def by_pyarrow(path: Path, rows: int) -> dict[str, float]:
    """CPU milliseconds of reading the footer and one row."""
    import pyarrow.parquet as pq

    figures: dict[str, float] = {}
    for name, columns in (("pyarrow", ["key"]), ("pyarrow all", None)):
        began = time.process_time()
        found = pq.read_table(path, columns=columns, filters=[("key", "==", rows // 2)], use_threads=False)
        figures[name] = 1000 * (time.process_time() - began)
        assert found.num_rows == 1
    return figures


def measure(reader: str, path: Path, rows: int, repeats: int) -> dict[str, float]:
    """The medians over fresh processes, in which another small file was read before."""
    command = [sys.executable, "-m", "benchmarks.shapes", "--measure", reader, str(path), str(rows)]
    runs: list[dict[str, float]] = []
    for _ in range(repeats):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: median(run[name] for run in runs) for name in runs[0]}


def draw(results: list[dict[str, Any]], picture: Path) -> None:
    """CPU of opening and lookups by columns and by row groups."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, shape in zip(axes, _ROWS, strict=True):
        rows = [result for result in results if result["shape"] == shape]
        for name, label in (
            ("open", "opening"),
            ("first", "first lookup"),
            ("warm", "warm lookup"),
            ("pyarrow", "pyarrow, footer and row"),
        ):
            axis.plot([row["size"] for row in rows], [row[name] for row in rows], marker="o", label=label)
        axis.set(xscale="log", yscale="log", xlabel=shape)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU milliseconds")
    axes[0].legend(frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)


def main() -> None:
    """Parse the command line, run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", nargs="+", type=int, default=COLUMNS)
    parser.add_argument("--row-groups", nargs="+", type=int, default=ROW_GROUPS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "shapes", help="where the files are kept")
    parser.add_argument("--picture", type=Path, default=HERE / "results" / "shapes.svg")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        reader, path, rows = args.measure
        warm_up = ensure(Path(path).parent, "columns", 10)
        runs = [  # the first run imports, which does not count
            by_pyarrow(file, number) if reader == "pyarrow" else asyncio.run(by_asyncpq(file, number))
            for file, number in ((warm_up, _ROWS["columns"]), (Path(path), int(rows)))
        ]
        print(json.dumps(runs[-1]))
        return
    folder, results = args.data.resolve(), []
    lines = [
        "| file | MB | open ms | first ms | warm ms | pyarrow ms | all: first ms | all: warm ms | all: pyarrow ms |",
        f"| --- |{' ---: |' * 8}",
    ]
    for shape, sizes in (("columns", args.columns), ("row groups", args.row_groups)):
        for size in sizes:
            path = ensure(folder, shape, size)
            figures = measure("asyncpq", path, _ROWS[shape], args.repeats)
            figures |= measure("pyarrow", path, _ROWS[shape], args.repeats)
            results.append({"shape": shape, "size": size, **figures})
            cells = [f"{figures['open']:.1f}", f"{figures['first']:.1f}", f"{figures['warm']:.2f}"]
            cells += [f"{figures[name]:.1f}" for name in ("pyarrow", "first all", "warm all", "pyarrow all")]
            lines.append(f"| {size:,} {shape} | {path.stat().st_size / 1e6:.1f} | {' | '.join(cells)} |")
    print("\n".join(lines))
    if find_spec("matplotlib") is not None:
        draw(results, args.picture)
        print(f"picture: {os.path.relpath(args.picture)}")


if __name__ == "__main__":
    main()
