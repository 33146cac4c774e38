"""The long run: ``make soak``, or ``make soak ARGS="--minutes 1 --seed 7"``.

64 readers ask lookups, scans, takes and counts of a few objects over S3 and HTTP, through every cache tier, while
some 2 % of the requests meet a fault of the catalogue, objects are replaced, readers give up and sessions come and
go. It fails if any row differs from pyarrow's, if rows are older than the cache policy allows, if an error is none
of the store's, if a read hangs, if memory or tasks grow, or if descriptors, tasks or threads are left at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import asyncpq
from asyncpq import col
from asyncpq.testing import CATALOGUE, Fault, LoggedRequest, ObjectServer, Scene
from tests.leaks import Held, assert_back_to, held
from tests.soak import tiers
from tests.soak.objects import FILES, VERSIONS, SoakObject, SoakQuestion, random_question

READERS = 64
OBJECTS = 12
FAULT_RATE = 0.02
MAX_AGE_S = 2.0
MEMORY_CACHE_BYTES = 4 << 20  # less than all versions together: it evicts
SESSION_S = 5.0  # one of two sessions is replaced so often
REPLACE_S = 0.5
READ_TIMEOUT_S = 10.0
CLOCK_S = 0.5  # how far a busy loop may be behind
MOST_TASKS = 2000  # 64 readers, what they fetch, and what is on its way into the caches
GROWTH_BYTES = 48 << 20  # of resident memory after the warm-up
# Those under which a server gives different bytes under one name: nothing could tell them apart.
LEFT_OUT = {"no ETag", "another ETag"}
FAULTS = [name for name in CATALOGUE if name not in LEFT_OUT]


@dataclass
class Report:
    """What happened."""

    reads: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    requests: int = 0
    replaced: int = 0
    sessions: int = 0
    most_tasks: int = 0
    seconds: list[float] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    metrics: asyncpq.ReadMetrics = field(default_factory=asyncpq.ReadMetrics)
    warnings: Counter[str] = field(default_factory=Counter)

    def memory_growth(self) -> int:
        """Bytes by which the last third of the samples is above the third before it, median by median."""
        sizes = [size for _, size in self.resident]
        third = max(1, len(sizes) // 3)
        middle, last = sorted(sizes[-2 * third : -third]), sorted(sizes[-third:])
        return last[len(last) // 2] - middle[len(middle) // 2] if middle else 0


class Soak:
    """One run. Everything random comes from ``seed``, but for the order in which the loop runs things."""

    def __init__(self, server: ObjectServer, seconds: float, seed: int, folder: Path, shared_cache: str) -> None:
        self.server = server
        self.seconds = seconds
        self.rng = random.Random(seed)
        self.fault_rng = random.Random(seed + 1)  # asked in the server's thread
        self.options = tiers.session_options(folder, shared_cache)
        self.objects = [SoakObject(f"lake/part-{number:02d}/file.parquet") for number in range(OBJECTS)]
        self.by_path = {one.path: one for one in self.objects}
        self.report = Report()
        self.stop_at = 0.0

    async def run(self) -> Report:
        """For as long as asked; closes all that it opens."""
        for one in self.objects:
            one.replace(self.server, self.rng.randrange(VERSIONS))
        self.server.faults = self.fault_of
        self.stop_at = time.monotonic() + self.seconds
        pairs = [self.session() for _ in range(2)]
        async with pairs[0] as lasting:
            keeper = asyncio.ensure_future(self.keep())
            self.current = pairs[1]
            await self.current.__aenter__()
            changer = asyncio.ensure_future(self.change_sessions())
            readers = [asyncio.ensure_future(self.read_on(lasting, random.Random(n))) for n in range(READERS)]
            for reader in readers:
                await reader
            keeper.cancel()
            changer.cancel()
            await asyncio.wait([keeper, changer])
            await self.current.close()
            lasting.metrics.add_to(self.report.metrics)
            self.current.metrics.add_to(self.report.metrics)
        return self.report

    def session(self) -> asyncpq.Session:
        self.report.sessions += 1
        retry = asyncpq.RetryOptions(
            max_attempts=4,
            backoff_base_s=0.01,
            backoff_max_s=0.1,
            connect_timeout_s=1.0,
            first_byte_timeout_s=1.0,
            stall_timeout_s=1.0,
            read_timeout_s=READ_TIMEOUT_S,
        )
        return asyncpq.Session(
            {"s3": self.server.storage_options, "http": {}},
            retry=retry,
            memory_cache_bytes=MEMORY_CACHE_BYTES,
            cache_policy=asyncpq.etag(MAX_AGE_S),
            requests=asyncpq.RequestOptions(tail_bytes=16_384, gap_bytes=512),
            limits=asyncpq.LimitOptions(unit_bytes=32_768, in_flight_bytes=1 << 20, inline_decode_bytes=4096),
            **self.options,
        )

    def fault_of(self, request: LoggedRequest) -> Fault | None:
        path = request.path[1:]
        self.report.requests += 1
        one = self.by_path[path]
        if path not in self.server.objects:
            one.replace(self.server, one.current)
        one.observe(self.server)
        if self.fault_rng.random() >= FAULT_RATE:
            return None
        name = self.fault_rng.choice(FAULTS)
        self.report.faults[name] += 1
        version = self.fault_rng.randrange(VERSIONS)
        scene = Scene(
            other=FILES[version],
            location=f"{self.server.endpoint}/{path}",
            elsewhere="http://127.0.0.2:9/elsewhere",
            drip_s=0.05,
            retry_after_s=1.0,
        )
        if "replaced" in name:
            one.history.append((time.monotonic(), version))
        return CATALOGUE[name](scene)

    async def keep(self) -> None:
        """Replaces objects, forgets the server's log, samples memory."""
        beat = 0
        while True:
            await asyncio.sleep(REPLACE_S)
            beat += 1
            self.rng.choice(self.objects).replace(self.server, self.rng.randrange(VERSIONS))
            self.report.replaced += 1
            self.server.log.clear()
            self.report.resident.append((time.monotonic(), resident_bytes()))
            self.report.most_tasks = max(self.report.most_tasks, len(asyncio.all_tasks()))

    async def change_sessions(self) -> None:
        """Closes one session under its readers, and opens another."""
        while True:
            await asyncio.sleep(SESSION_S)
            old, self.current = self.current, self.session()
            await self.current.__aenter__()
            await old.close()
            old.metrics.add_to(self.report.metrics)

    async def read_on(self, lasting: asyncpq.Session, rng: random.Random) -> None:
        while time.monotonic() < self.stop_at:
            session = lasting if rng.random() < 0.5 else self.current
            one = self.objects[int(OBJECTS * rng.random() ** 2)]
            over = "s3" if rng.random() < 0.7 else "http"
            question = random_question(rng)
            try:
                await self.ask(session, over, one, question, rng)
            except asyncpq.UsageError as error:
                self.report.errors["UsageError: its session was closed"] += 1
                if session in (lasting, self.current):
                    self.report.wrong.append(f"{question}: {error!r}")

    async def ask(
        self, session: asyncpq.Session, over: str, one: SoakObject, question: SoakQuestion, rng: random.Random
    ) -> None:
        """One read, and what is wrong with it."""
        url = f"s3://{one.path}" if over == "s3" else f"{self.server.endpoint}/{one.path}"
        start = time.monotonic()
        try:
            async with asyncio.timeout(4 * READ_TIMEOUT_S):
                rows = await read(session, url, question, rng)
        except TimeoutError as error:
            if not isinstance(error, asyncpq.AsyncpqError):
                self.report.wrong.append(f"{question}: it hung")
            self.report.errors[type(error).__name__] += 1
        except asyncpq.StoreError as error:
            self.report.errors[type(error).__name__] += 1
        except asyncpq.NotParquetError as error:  # a page in HTML, or an object that is said to be empty
            self.report.errors[type(error).__name__] += 1
        except asyncpq.UsageError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever else it is, it is what this looks for
            self.report.wrong.append(f"{question}: {error!r}")
        else:
            stop = time.monotonic()
            allowed = one.versions_between(start - MAX_AGE_S - CLOCK_S, stop)
            if rows is not None and not any(rows.equals(question.answer(version)) for version in allowed):
                stale = [version for version in range(VERSIONS) if rows.equals(question.answer(version))]
                self.report.wrong.append(f"{question} of {url}: rows of version {stale}, allowed {allowed}")
            self.report.reads[f"{over} {question.what}"] += 1
            self.report.seconds.append(stop - start)
            if len(self.report.seconds) > 20_000:
                del self.report.seconds[::2]


async def read(session: asyncpq.Session, url: str, question: SoakQuestion, rng: random.Random) -> pa.Table | None:
    """The answer, or None where the reader left before it had one."""
    file = await session.open_file(url)
    columns = list(question.columns)
    if question.what == "lookup":
        return await file.lookup({"id": question.first}, columns)
    if question.what == "cancelled lookup":
        task = asyncio.ensure_future(file.lookup({"id": question.first}, columns))
        await asyncio.wait([task], timeout=rng.random() * 0.02)
        task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()
    if question.what == "take":
        return await file.take([question.stop - 1, question.first, question.first], columns)
    where = (col("id") >= question.first) & (col("id") < question.stop)
    if question.what == "count":
        return pa.table({"rows": [await file.count(where)]})
    batches = []
    async with file.scan(columns, where=where, batch_size=100) as scan:
        async for batch in scan:
            batches.append(batch)
            if question.what == "left scan":
                return None
        return pa.Table.from_batches(batches, scan.schema)


class CountedWarnings(logging.Handler):
    """Counts what asyncpq's loggers warn of, in the place of thousands of lines."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(logging.WARNING)
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        self._counts[f"{record.name}: {record.msg}"] += 1


@contextlib.contextmanager
def counted_warnings(counts: Counter[str]) -> Iterator[None]:
    """Warnings are counted, and not shown, until it is left."""
    logger, handler = logging.getLogger("asyncpq"), CountedWarnings(counts)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def resident_bytes() -> int:
    """Of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def verdict(report: Report) -> list[str]:
    """What is wrong; nothing if the run was good."""
    wrong = [f"wrong: {what}" for what in report.wrong[:20]]
    if report.memory_growth() > GROWTH_BYTES:
        wrong.append(f"memory grew by {report.memory_growth() >> 20} MiB, more than {GROWTH_BYTES >> 20}")
    if report.most_tasks > MOST_TASKS:
        wrong.append(f"{report.most_tasks} tasks at once: something piles up")
    if not report.reads or not report.faults or not report.replaced:
        wrong.append("too little happened to say anything")
    return wrong


def shown(report: Report, before: Held, seed: int) -> Iterator[str]:
    """The report, line by line."""
    seconds = sorted(report.seconds)
    sizes = [size >> 20 for _, size in report.resident] or [0]
    yield f"seed {seed}, {sum(report.reads.values())} reads, {sum(report.errors.values())} typed errors"
    yield f"reads: {dict(report.reads.most_common())}"
    yield f"errors: {dict(report.errors.most_common())}"
    yield f"{report.requests} requests, {sum(report.faults.values())} of them with faults: {dict(report.faults)}"
    yield f"warnings: {dict(report.warnings.most_common())}"
    yield f"{report.replaced} objects replaced besides, {report.sessions} sessions"
    if seconds:
        yield f"seconds of a read: median {seconds[len(seconds) // 2]:.3f}, p99 {seconds[len(seconds) * 99 // 100]:.3f}"
    yield f"resident MiB: first {sizes[0]}, median {sorted(sizes)[len(sizes) // 2]}, last {sizes[-1]}"
    yield f"growth of the last third over the one before: {report.memory_growth() / 2**20:.1f} MiB"
    yield f"most tasks at once: {report.most_tasks}; before and after: {before}"
    yield str(report.metrics)


async def soak(seconds: float, seed: int, folder: Path, shared_cache: str) -> int:
    """Run and print. Returns the exit status."""
    with ObjectServer.in_thread() as server:
        await asyncio.to_thread(len, "")  # the loop's own threads, which stay
        before = held()
        run = Soak(server, seconds, seed, folder, shared_cache)
        with counted_warnings(run.report.warnings):
            report = await run.run()
        wrong = verdict(report)
        for line in shown(report, before, seed):
            sys.stdout.write(f"{line}\n")
        server.faults = []
        try:
            await assert_back_to(before, timeout_s=20)
        except AssertionError as error:
            wrong.append(f"left behind: {error}")
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write("FAILED\n" if wrong else "ok\n")
    return 1 if wrong else 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="by default a random one")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncpq-soak-")))
        shared_cache = stack.enter_context(tiers.running_valkey())
        return asyncio.run(soak(options.minutes * 60, seed, folder, shared_cache))


if __name__ == "__main__":
    sys.exit(main())
