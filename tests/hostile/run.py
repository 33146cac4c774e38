"""Asks everything of the hostile files of some threats, in a process of its own, whose memory is measured.

``python -m tests.hostile.run 1 "row counts" names`` prints a line for each thing that went wrong, then how many
files there were. The number is the step: 3 takes every third file of each threat.
"""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import asyncpq
from asyncpq.testing import ObjectServer
from tests.fuzz import bases
from tests.fuzz.judge import same
from tests.hostile.lies import Hostile
from tests.leaks import peak_bytes

KEY = "lake/hostile.parquet"
LIMITS = asyncpq.LimitOptions(max_page_bytes=16 << 20, max_decoded_bytes=64 << 20)
MAX_REQUESTS = 100  # of all questions to one file, which has at most 16 column chunks
GROWTH = 128 << 20  # bytes that all files may take, of which the limits above allow 64 MiB

# What is wrong is a number in the footer, or what it names.
WITHOUT_BYTES = {"names", "row counts", "offsets", "file_path", "encryption"}

Question = tuple[str, Callable[[asyncpq.File], Awaitable[Any]], Callable[[pa.Table], Any]]


def questions(table: pa.Table | None) -> list[Question]:
    """Every verb."""
    asked: list[Question] = [
        ("read", lambda file: file.read(), lambda good: good),
        ("take", lambda file: file.take([3, 150, 41]), lambda good: good.take([3, 150, 41])),
        ("limit", lambda file: file.read(limit=50), lambda good: good.slice(0, 50)),
        ("scan", _scan, lambda good: good),
        ("count", lambda file: file.count(), lambda good: good.num_rows),
        ("read no columns", _rows_alone, lambda good: good.num_rows),
    ]
    if table is None or table.column_names.count(bases.ID) == 1:
        between = (pc.field(bases.ID) >= 70) & (pc.field(bases.ID) < 100)
        where = asyncpq.col(bases.ID).between(70, 99)
        asked += [
            ("filter", lambda file: file.read(where=where), lambda good: good.filter(between)),
            ("lookup", lambda file: file.lookup({bases.ID: [78, 80]}), lambda good: good.slice(39, 2)),
            ("count where", lambda file: file.count(where), lambda good: good.filter(between).num_rows),
        ]
    return asked


async def _scan(file: asyncpq.File) -> pa.Table:
    async with file.scan(batch_size=17) as scan:
        return pa.Table.from_batches([batch async for batch in scan], schema=scan.schema)


async def _rows_alone(file: asyncpq.File) -> int:
    """However many they are said to be: the first batch comes at once, and a table of all takes no room."""
    async with file.scan([], batch_size=20) as scan:
        assert (await anext(scan)).num_rows <= 20
    return int((await file.read([])).num_rows)


async def ask(server: ObjectServer, case: Hostile) -> list[str]:
    """What is wrong with the answers about one file."""
    server.put(KEY, case.data)
    server.log.clear()
    wrong: list[str] = []
    requests = asyncpq.RequestOptions(tail_bytes=512, gap_bytes=0)
    async with asyncpq.Session(server.storage_options, limits=LIMITS, requests=requests) as session:
        try:
            file = await session.open_file(f"s3://{KEY}")
        except asyncpq.AsyncpqError as error:
            wrong += _judge_error(case, "open", error)
        else:
            wrong += await _ask_all(file, case)
    wrong += _judge_requests(server, case)
    return wrong


async def _ask_all(file: asyncpq.File, case: Hostile) -> list[str]:
    wrong: list[str] = []
    for name, question, of in questions(case.good):
        try:
            answer = await question(file)
        except asyncpq.AsyncpqError as error:
            wrong += _judge_error(case, name, error)
        else:
            if case.good is not None:
                wanted = of(case.good)
                right = same(answer, wanted) if isinstance(wanted, pa.Table) else answer == wanted
                wrong += [] if right else [f"{name}: other rows"]
            elif name in ("read", "scan"):
                wrong.append(f"{name}: {answer.num_rows} rows, and no error")
    if case.good is not None and case.column is not None:
        others = [name for name in case.good.column_names if name != case.column]
        try:
            if not same(await file.read(others), case.good.select(others)):
                wrong.append("other columns: other rows")
        except asyncpq.AsyncpqError as error:
            wrong.append(f"other columns: {error!r}")
    try:
        str(await file.plan())
    except asyncpq.AsyncpqError as error:
        wrong += _judge_error(case, "plan", error)
    return wrong


def _judge_error(case: Hostile, name: str, error: asyncpq.AsyncpqError) -> list[str]:
    if isinstance(error, asyncpq.QueryError) and case.good is None:
        return []  # a column or row that is asked for is not there
    if case.error is None or not isinstance(error, asyncpq.FormatError):
        return [f"{name}: {error!r}"]
    if not isinstance(error, case.error) and (name in ("open", "read", "scan") or case.good is not None):
        return [f"{name}: {error!r} is no {case.error.__name__}"]
    text = str(error)
    if error.url is None or not text.isprintable():
        return [f"{name}: no url, or text that is not printable: {text!r}"]
    if case.column is not None and error.byte_range is None and case.threat not in WITHOUT_BYTES:
        return [f"{name}: no byte range: {text}"]
    if case.column is not None and case.column != error.column and repr(case.column) not in text:
        return [f"{name}: the column {error.column!r} is blamed: {text}"]
    return []


def _judge_requests(server: ObjectServer, case: Hostile) -> list[str]:
    size = len(case.data)
    wrong = [f"a request for {request.path}" for request in server.log if request.path != f"/{KEY}"]
    for request in server.log:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.range or "")
        if found is not None and not 0 <= int(found[1]) <= int(found[2]) < size:
            wrong.append(f"a request for {request.range} of {size} bytes")
    if len(server.log) > MAX_REQUESTS or server.bytes_sent > 30 * size:
        wrong.append(f"{len(server.log)} requests and {server.bytes_sent} bytes of an object of {size}")
    return wrong


def _load(path: Path) -> Hostile:
    case: Hostile = pickle.loads(path.read_bytes())
    return case


async def main(paths: list[Path]) -> None:
    """Every pickled file."""
    good = Hostile("", "none", bases.data("plain"), bases.table("plain"), None)
    async with ObjectServer() as server:
        failures = [f"a good file: {text}" for text in await ask(server, good)]
        before = peak_bytes()
        for path in paths:
            case = _load(path)
            failures += [f"{case.name}: {text}" for text in await ask(server, case)]
            grown = peak_bytes() - before
            if grown > GROWTH:
                failures.append(f"{case.name}: memory grew by {grown >> 10} KiB")
                before += grown
    sys.stdout.write("\n".join([*failures, f"{len(paths)} files"]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        # the process that makes them may be large, this one must not be
        subprocess.run([sys.executable, "-m", "tests.hostile.files", made, *sys.argv[1:]], check=True)
        asyncio.run(main(sorted(Path(made).iterdir())))
