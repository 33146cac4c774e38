"""What reads of a Delta table of many small files cost: ``python -m benchmarks.small_files``.

The table is written by deltalake: as many commits as files, three rows each, on the local disk. Each reader runs in a
fresh process, after a table of one file, so that imports and threads do not count: *cold* opens the table and reads all
rows; *warm* reads the same rows again, from what the reader holds open. Shown are CPU seconds, the least of some
repetitions, since other processes share the machine, and their ratio to pyarrow's cold read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

ROWS = 3  # of a file
READERS = ("pyarrow", "deltalake", "asyncpq")


def write(folder: str, files: int) -> None:
    """Write the table: one commit a file."""
    from deltalake import write_deltalake

    for number in range(files):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": ids, "text": [f"v{number}"] * ROWS, "x": [number / 2] * ROWS})
        write_deltalake(folder, rows, mode="append")


def spent(read: Callable[[], int], expected: int) -> float:
    """Return the CPU seconds of one read."""
    began = time.process_time()
    found = read()
    seconds = time.process_time() - began
    assert found == expected, found
    return seconds


def run(reader: str, folder: str, expected: int) -> dict[str, float]:
    """Return the CPU seconds of a cold and a warm read of the table in ``folder``, which has ``expected`` rows."""
    import deltalake
    import pyarrow.dataset  # noqa: F401  # loaded before it is measured

    if reader == "asyncpq":
        return asyncio.run(run_asyncpq(folder, expected))
    if reader == "pyarrow":

        def opened() -> Callable[[], int]:
            dataset = deltalake.DeltaTable(folder).to_pyarrow_dataset()
            return lambda: int(dataset.to_table().num_rows)
    else:

        def opened() -> Callable[[], int]:
            builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
            return lambda: int(pa.table(builder.execute("SELECT * FROM t")).num_rows)

    warm: list[Callable[[], int]] = []

    def cold() -> int:
        warm.append(opened())
        return warm[0]()

    return {"cold": spent(cold, expected), "warm": spent(lambda: warm[0](), expected)}


async def run_asyncpq(folder: str, expected: int) -> dict[str, float]:
    """The same for asyncpq, in one session."""
    import asyncpq

    async with asyncpq.Session() as session:
        seconds = {}
        dataset = None
        for name in ("cold", "warm"):
            began = time.process_time()
            if dataset is None:
                dataset = await session.open_dataset(folder, format="delta")
            found = (await dataset.read()).num_rows
            seconds[name] = time.process_time() - began
            assert found == expected, found
        return seconds


def main() -> None:
    """Write the table, run the readers in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="a table that an earlier run has written")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        reader, folder = arguments.run
        with tempfile.TemporaryDirectory() as one:
            write(one, 1)
            run(reader, one, ROWS)
        print(json.dumps(run(reader, folder, arguments.files * ROWS)), flush=True)
        os._exit(0)  # threads of other readers may abort a process that ends as usual
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if not (Path(folder) / "_delta_log").exists():
            write(folder, arguments.files)
        least: dict[tuple[str, str], float] = {}
        for _ in range(arguments.repeats):
            for reader in READERS:
                command = [sys.executable, "-m", "benchmarks.small_files", "--files", str(arguments.files)]
                done = subprocess.run([*command, "--run", reader, folder], stdout=subprocess.PIPE, check=True)
                for name, seconds in json.loads(done.stdout).items():
                    least[reader, name] = min(seconds, least.get((reader, name), seconds))
    unit = least["pyarrow", "cold"]
    print("| reader | cold, CPU ms | of pyarrow's cold | warm, CPU ms | of pyarrow's cold |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for reader in READERS:
        cells = [f"{1000 * least[reader, name]:.0f} | {least[reader, name] / unit:.2f}" for name in ("cold", "warm")]
        print(f"| {reader} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
