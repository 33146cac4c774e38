"""What asyncpq fetches, beside pyarrow over s3fs, on an S3 server of its own: ``make demo``.

Writes two million rows twice, with and without a page index, puts both files into a LocalStack bucket and asks
the same questions of both readers. Every answer is compared. Ends by itself and leaves nothing running.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import s3fs

import asyncpq
from asyncpq import col
from localstack.seed import storage_options
from localstack.start import running_localstack, stop_on_signals

BUCKET = "asyncpq-demo"
COLUMNS = ["id", "user", "event", "price"]
FILES = {"with a page index": "events.parquet", "without": "events-noindex.parquet"}
EVENTS = [f"{verb}_{thing}" for verb in ("open", "close", "like", "buy") for thing in ("page", "item", "cart", "form")]


# -- the data -----------------------------------------------------------------------------------


def events(rows: int) -> pa.Table:
    """``rows`` events sorted by an id that counts in threes."""
    draw = random.Random(7)
    ids = range(0, 3 * rows, 3)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array([1_700_000_000_000_000 + 1_000 * i for i in ids], pa.timestamp("us", tz="UTC")),
            "user": [f"u-{draw.getrandbits(40):013d}" for _ in ids],
            "event": pa.DictionaryArray.from_arrays([draw.randrange(16) for _ in ids], EVENTS).cast(pa.string()),
            "price": [round(draw.expovariate(0.02), 2) for _ in ids],
            "score": [draw.random() for _ in ids],
        }
    )


def write_files(folder: Path, rows: int) -> None:
    """Write the table twice, the same but for the page index."""
    table = events(rows)
    for title, name in FILES.items():
        pq.write_table(
            table,
            folder / name,
            row_group_size=500_000,
            compression="zstd",
            use_dictionary=["event"],
            data_page_size=64 * 1024,
            max_rows_per_page=20_000,
            write_page_index=title == "with a page index",
        )


# -- asking and counting ------------------------------------------------------------------------


@dataclass
class Cost:
    """What one question cost one reader."""

    table: pa.Table
    requests: int
    rounds: int
    bytes: int
    seconds: float


class CountedS3fs:
    """s3fs, with its requests and their bodies counted by hooks in its client.

    A request's round is one more than the latest round that had been answered when it was made.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.requests = 0
        self.rounds = 0
        self.bytes = 0
        began = time.perf_counter()
        # Without a block cache of s3fs's own: pyarrow asks for just the ranges that it wants.
        self.fs = s3fs.S3FileSystem(skip_instance_cache=True, default_cache_type="none", **options)
        self.fs.connect()
        self.connect_s = time.perf_counter() - began
        emitter = self.fs.s3.meta.events
        emitter.register("before-send.s3", self._sent)
        emitter.register("before-call.s3", self._made)
        emitter.register("after-call.s3", self._received)

    def _sent(self, **_: Any) -> None:
        self.requests += 1

    def _made(self, context: dict[str, Any], **_: Any) -> None:
        context["round"] = self.rounds + 1

    def _received(self, model: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        self.rounds = max(self.rounds, context["round"])
        if model.name == "GetObject":
            self.bytes += parsed.get("ContentLength", 0)

    def ask(self, question: Callable[[], pa.Table]) -> Cost:
        """Run a question and count what it sends."""
        requests, rounds, received, began = self.requests, self.rounds, self.bytes, time.perf_counter()
        table = question()
        seconds = time.perf_counter() - began
        return Cost(table, self.requests - requests, self.rounds - rounds, self.bytes - received, seconds)


async def ask(session: asyncpq.Session, question: Callable[[], Any]) -> Cost:
    """Run a question of asyncpq's; the session counts."""
    before, began = replace(session.metrics), time.perf_counter()
    table = await question()
    seconds, after = time.perf_counter() - began, session.metrics
    fetched = after.bytes_fetched - before.bytes_fetched
    return Cost(table, after.requests - before.requests, after.rounds - before.rounds, fetched, seconds)


@dataclass
class Questions:
    """What is asked: two keys, a range of ids, row numbers."""

    first_key: int
    second_key: int
    low: int
    high: int
    rows: Sequence[int]

    @classmethod
    def of(cls, rows: int) -> Questions:
        """Questions for a file of ``rows`` rows."""
        middle = rows // 2
        taken = [rows - 1, 17, middle, middle + 1, rows // 3]
        return cls(3 * (rows // 7), 3 * (rows // 5 * 4), 3 * middle, 3 * (middle + rows // 1000) - 1, taken)


async def with_asyncpq(url: str, options: dict[str, Any], asked: Questions) -> dict[str, Cost]:
    """The answers of asyncpq, in the order in which they are asked."""
    async with asyncpq.Session(storage_options=options) as session:
        costs = {}

        async def cold() -> pa.Table:
            file = await session.open_file(url)
            return await file.lookup({"id": asked.first_key}, columns=COLUMNS)

        costs["cold lookup"] = await ask(session, cold)
        file = await session.open_file(url)
        costs["warm lookup"] = await ask(session, lambda: file.lookup({"id": asked.second_key}, columns=COLUMNS))
        in_range = col("id").between(asked.low, asked.high)
        costs["0.1 % range"] = await ask(session, lambda: file.read(columns=COLUMNS, where=in_range))
        costs["take 5 rows"] = await ask(session, lambda: file.take(asked.rows, columns=COLUMNS))
        return costs


def with_pyarrow(path: str, options: dict[str, Any], asked: Questions) -> dict[str, Cost]:
    """The answers of pyarrow, which keeps the footer from the second question on."""
    counted = CountedS3fs(options)
    costs = {}
    costs["cold lookup"] = counted.ask(
        lambda: pq.read_table(path, columns=COLUMNS, filters=[("id", "==", asked.first_key)], filesystem=counted.fs)
    )
    costs["cold lookup"].seconds += counted.connect_s  # asyncpq's first read makes its client, too
    dataset = ds.dataset(path, format="parquet", filesystem=counted.fs)
    for fragment in dataset.get_fragments():
        fragment.ensure_complete_metadata()
    id_ = ds.field("id")
    in_range = (id_ >= asked.low) & (id_ <= asked.high)
    costs["warm lookup"] = counted.ask(lambda: dataset.to_table(columns=COLUMNS, filter=id_ == asked.second_key))
    costs["0.1 % range"] = counted.ask(lambda: dataset.to_table(columns=COLUMNS, filter=in_range))
    costs["take 5 rows"] = counted.ask(lambda: dataset.take(list(asked.rows), columns=COLUMNS))
    return costs


# -- showing ------------------------------------------------------------------------------------


def show(title: str, answers: dict[str, dict[str, Cost]]) -> None:
    """Print one table: questions down, readers beside each other."""
    print(f"\n{title}")
    line = "{:<13} {:<17} {:>8} {:>9} {:>7} {:>13} {:>9}"
    print(line.format("question", "reader", "rows", "requests", "rounds", "bytes", "ms"))
    print(line.format("-" * 13, "-" * 17, "-" * 8, "-" * 9, "-" * 7, "-" * 13, "-" * 9))
    for question in next(iter(answers.values())):
        for number, (reader, costs) in enumerate(answers.items()):
            cost = costs[question]
            cells = [f"{count:,}" for count in (cost.table.num_rows, cost.requests, cost.rounds, cost.bytes)]
            cells.append(f"{1000 * cost.seconds:,.1f}")
            print(line.format("" if number else question, reader, *cells))


def check_equal(answers: dict[str, dict[str, Cost]]) -> None:
    """Fail unless all readers gave the same rows."""
    expected, *others = answers.values()
    for question, cost in expected.items():
        for costs in others:
            if not costs[question].table.equals(cost.table):
                raise SystemExit(f"{question}: the readers disagree")


async def explain(url: str, options: dict[str, Any], asked: Questions) -> str:
    """The plan of the range, in words."""
    async with asyncpq.Session(storage_options=options) as session:
        file = await session.open_file(url)
        plan = await file.plan(columns=COLUMNS, where=col("id").between(asked.low, asked.high))
        return str(plan.explain())


def main() -> None:
    """Write, upload, ask, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    rows = parser.parse_args().rows
    asked = Questions.of(rows)
    stop_on_signals()
    with tempfile.TemporaryDirectory(prefix="asyncpq-demo-") as folder:
        print(f"writing {rows:,} rows, with and without a page index ...", flush=True)
        write_files(Path(folder), rows)
        print("starting LocalStack (the first time, it is installed) ...", flush=True)
        with running_localstack() as endpoint:
            options = storage_options(endpoint)
            filesystem = s3fs.S3FileSystem(skip_instance_cache=True, **options)
            filesystem.call_s3("create_bucket", Bucket=BUCKET)
            for title, name in FILES.items():
                path = f"{BUCKET}/{name}"
                filesystem.put_file(str(Path(folder, name)), path)
                answers = {
                    "asyncpq": asyncio.run(with_asyncpq(f"s3://{path}", options, asked)),
                    "pyarrow over s3fs": with_pyarrow(path, options, asked),
                }
                check_equal(answers)
                size = Path(folder, name).stat().st_size
                show(f"{name}: {size / 1e6:.1f} MB, {title}; the rows are equal", answers)
            print("\nms of a cold lookup include the client's start and, for asyncpq, a first GET of the last 640 KiB.")
            print("\nWhat the range read plans to fetch, and why:\n")
            print(asyncio.run(explain(f"s3://{BUCKET}/{FILES['with a page index']}", options, asked)))


if __name__ == "__main__":
    main()
