"""A process that judges cases of ``index_cases`` or ``listing_cases``, over an S3 server of its own.

``python -m tests.fuzz.served_worker indexes`` reads seeds, a line each, and answers a line each, as
``tests.fuzz.worker`` does. Its memory is bounded: growth by more than ``MOST_BYTES`` over its whole life is a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer
from asyncpq.testing.faults import Fault
from asyncpq.testing.object_server import Answer, LoggedRequest, answer_list
from tests.fuzz import index_cases, listing_cases
from tests.leaks import peak_bytes

ADDRESS_SPACE = 6 << 30
MOST_BYTES = 200_000_000
LIMITS = asyncpq.LimitOptions(
    max_footer_bytes=1 << 20,
    max_page_bytes=4 << 20,
    max_decoded_bytes=64 << 20,
    decode_threads=0,
    max_listed_objects=listing_cases.MAX_LISTED,
)
RETRY = asyncpq.RetryOptions(max_attempts=2, backoff_base_s=0.001, backoff_max_s=0.01, read_timeout_s=10.0)


class WrongAnswerError(AssertionError):
    """A read gave rows that it must not give."""


def _session(server: ObjectServer) -> asyncpq.Session:
    return asyncpq.Session(server.storage_options, limits=LIMITS, retry=RETRY)


def _ids(table: pa.Table) -> list[int]:
    return sorted(table.column("id").to_pylist())


_WHERE = (col("word") == "word 3") & (col("id") < 100)
_QUESTIONS: list[tuple[str, Callable[[asyncpq.Dataset], Awaitable[pa.Table]], list[int]]] = [
    ("read", lambda dataset: dataset.read(), [*range(index_cases.ROWS, (index_cases.FILES + 1) * index_cases.ROWS)]),
    ("lookup", lambda dataset: dataset.lookup({"id": [77, 90]}), [77, 90]),
    ("where", lambda dataset: dataset.read(where=_WHERE), [*range(43, 100, 5)]),
    ("both", lambda dataset: dataset.lookup({"word": ["word 2"], "id": [77]}), [77]),
    ("text", lambda dataset: dataset.read(where=col("text").contains("text 88")), [88]),
    ("token", lambda dataset: dataset.read(where=col("text").has_tokens("99 some")), [99]),
    ("first", lambda dataset: dataset.read(limit=3), [40, 41, 42]),
]


class Judge:
    """Serves the good objects, and asks for them with each case's damage."""

    def __init__(self, kind: str, server: ObjectServer) -> None:
        self._kind = kind
        self._server = server

    async def prepare(self) -> None:
        """Build what the cases damage, and ask everything once of the good ones."""
        await index_cases.build(self._server)
        index_cases.put(self._server, 50)
        self._server.objects[f"{index_cases.BUCKET}/elsewhere/secret.parquet"] = self._server.objects.pop(
            f"{index_cases.DATA}part-50.parquet"
        )
        self._objects = dict(self._server.objects)
        self._content = {path: served.data for path, served in self._objects.items()}
        for index in index_cases.INDEXES:
            await self._ask_index(index_cases.Case(index, {}, False, "the good one"))
        await self._ask_listing(lambda ids: ids == _ids(index_cases.good()))

    async def judge(self, seed: int) -> None:
        """Raise unless the case of a seed gives good rows or a typed error."""
        self._server.log.clear()
        if self._kind == "listings":
            await self._listing(listing_cases.make(seed))
            return
        case = index_cases.make(seed, self._content)
        for path, data in case.changed.items():
            if data is None:
                self._server.delete(path)
            else:
                self._server.put(path, data)
        try:
            await self._ask_index(case)
        finally:
            self._server.objects = dict(self._objects)

    async def _ask_index(self, case: index_cases.Case) -> None:
        at, folder = f"s3://{index_cases.BUCKET}/{case.place}", f"s3://{index_cases.DATA}"
        good = index_cases.good()
        async with _session(self._server) as session:
            for view in ("snapshot", "listed"):
                try:
                    dataset = await session.open_dataset(folder, index=at, view=view)
                except asyncpq.AsyncpqError:
                    continue
                for name, ask, wanted in _QUESTIONS:
                    try:
                        ids = _ids(await ask(dataset))
                    except asyncpq.AsyncpqError:
                        continue
                    if ids != wanted and not (case.says_other and set(ids) <= {*_ids(good), *range(index_cases.ROWS)}):
                        raise WrongAnswerError(f"{view}, {name}: {ids}")
                try:
                    await dataset.count(_WHERE)
                    str(await dataset.plan(where=_WHERE))
                except asyncpq.AsyncpqError:
                    pass
            await self._maintain(session, at)

    async def _maintain(self, session: asyncpq.Session, at: str) -> None:
        """What a keeper of an index does: it must end in typed errors, too."""
        try:
            index = await session.open_index(at)
        except asyncpq.AsyncpqError:
            return
        random.seed(1)  # of the sample that verify() draws: a seed finds the same again
        steps: list[Any] = [
            index.show,
            lambda: index.verify(sample=2, rows=5),
            index.compact,
            index.refresh,
            lambda: index.vacuum(keep=1, older_than=timedelta(0)),
        ]
        for step in steps:
            try:
                await step()
            except asyncpq.AsyncpqError:
                pass

    async def _listing(self, case: listing_cases.Case) -> None:
        seen = 0

        def before(request: LoggedRequest) -> Answer | None:
            nonlocal seen
            if "list-type=2" not in request.target:
                return None
            seen += 1
            return case.answer(request, seen - 1, self._good_page(request))

        self._server.before = before
        files = [set(_ids(index_cases.table(file))) for file in range(1, index_cases.FILES + 1)]
        whole = set().union(*files)

        def is_good(ids: list[int]) -> bool:
            """Whole files of the prefix, in any number: which there are is what the listing says."""
            return set(ids) <= whole and all(file <= set(ids) or not file & set(ids) for file in files)

        try:
            await self._ask_listing(is_good)
        finally:
            self._server.before = lambda request: None
        if seen > 5000:
            raise WrongAnswerError(f"{seen} listings")

    def _good_page(self, request: LoggedRequest) -> bytes:
        query = dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
        return answer_list(query, index_cases.BUCKET, self._server.objects, 3, Fault()).body

    async def _ask_listing(self, is_good: Any) -> None:
        targets = (
            f"s3://{index_cases.DATA}",
            f"s3://{index_cases.DATA}*.parquet",
            f"s3://{index_cases.BUCKET}/data/part-1*",
        )
        async with _session(self._server) as session:
            for target in targets[:2]:
                try:
                    dataset = await session.open_dataset(target)
                    ids = _ids(await dataset.read(columns=["id"]))
                except asyncpq.AsyncpqError:
                    continue
                if not is_good(ids):
                    raise WrongAnswerError(f"{target}: {ids}")
            try:
                store, _ = await session._runtime.store(targets[2])
                context = asyncpq.storage.base.RequestContext(asyncpq.metrics.ReadMetrics(), purpose="list")
                for wants in (None, lambda folder: False):
                    await store.list_objects(targets[0], context=context, wants=wants)
            except asyncpq.AsyncpqError:
                pass


async def serve(kind: str) -> None:
    """Answer seeds until standard input ends."""
    loop = asyncio.get_running_loop()
    async with ObjectServer() as server:
        judge = Judge(kind, server)
        await judge.prepare()
        start = peak_bytes()
        _write("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                await judge.judge(int(line))
            except BaseException:  # noqa: BLE001 - whatever it was is the answer
                answer = f"fail {traceback.format_exc()!r}"
            else:
                grown = peak_bytes() - start  # without the libraries, which take two thirds of it in all
                answer = f"fail 'memory grew by {grown >> 20} MiB'" if grown > MOST_BYTES else f"ok {grown >> 10}"
            if os.environ.get("ASYNCPQ_FUZZ_PEAK"):
                sys.stderr.write(f"{line.strip()} {peak_bytes() >> 20} MiB\n")
            _write(answer)


def _write(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    asyncio.run(serve(sys.argv[1]))
