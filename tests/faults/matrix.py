"""Runs every fault of the catalogue against every operation, and says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import asyncpq
from asyncpq.testing import CATALOGUE, Fault, LoggedRequest, ObjectServer, Scene
from tests.example_counts import examples
from tests.faults.operations import OPERATIONS, REQUESTS, Rows, by_pyarrow, options_for, parquet, url_for
from tests.leaks import assert_back_to, held

CLIENTS = ("S3", "s3fs", "HTTP")
OLD, NEW = parquet(), parquet(1_000_000)
EXPECTED = {
    (operation, version): by_pyarrow(operation, data)
    for operation in OPERATIONS
    for version, data in (("rows", OLD), ("new rows", NEW))
}
ATTEMPTS = 3
THROTTLES = ("503 SlowDown", "429", "SlowDown inside a 200")  # they slow down all reads of a session
RETRY = asyncpq.RetryOptions(
    max_attempts=ATTEMPTS,
    backoff_base_s=0.001,
    backoff_max_s=0.01,
    connect_timeout_s=10.0,  # a pause of the machine is no fault
    first_byte_timeout_s=10.0,
    stall_timeout_s=10.0,
    read_timeout_s=20.0,
    retry_budget=None,  # what one case wastes, another one must not lack
)
SHORT_TIMEOUTS = replace(RETRY, connect_timeout_s=2.0, first_byte_timeout_s=1.2, stall_timeout_s=1.2)
AT_ONCE = 8  # cases that run at the same time: more would let healthy answers wait for their turn on the loop
HANGING = ("stall before headers", "stall mid-body", "one byte at a time", "503 with a huge Retry-After")
_CLEAN: dict[str, dict[str, Clean]] = {}


@dataclass(frozen=True)
class Case:
    """A fault from the request with number ``after`` on: once, or for ever."""

    operation: str
    after: int
    lasts: bool

    @property
    def path(self) -> str:
        return f"lake/{self.operation}-{self.after}-{self.lasts}/file.parquet"


@dataclass(frozen=True)
class Clean:
    """An operation without faults: what it requests, and which of that (places in the order of requests) is met.

    ``places``: the tail's, that for the rest of the footer, the first for an index, two for pages.
    """

    requests: int
    sent: int
    places: tuple[int, ...]


@dataclass
class Outcome:
    """``what`` is "rows", "new rows" (those of the version that replaced the first), or an error's name."""

    case: Case
    what: str
    requests: int


class Matrix:
    """One client's operations against one server. ``elsewhere`` has the same objects: HTTP's redirects lead there."""

    def __init__(self, client: str, server: ObjectServer, elsewhere: ObjectServer) -> None:
        self.client, self.server, self.elsewhere = client, server, elsewhere

    def session(self, retry: asyncpq.RetryOptions = RETRY) -> asyncpq.Session:
        limits = asyncpq.LimitOptions(unit_bytes=20_000)
        options = options_for(self.client, self.server)
        for name in ("key", "secret"):  # those of the environment can be looked up again
            options.pop(name, None)
        return asyncpq.Session(options, retry=retry, requests=REQUESTS, limits=limits)

    @property
    def clean(self) -> dict[str, Clean]:
        """By operation; known after :meth:`measure`."""
        return _CLEAN[self.client]

    async def measure(self) -> None:
        """Run each operation without faults, the first time that a client is used."""
        if self.client in _CLEAN:
            return
        self.server.faults = []
        before = held()
        async with self.session() as session:
            clean = {operation: await self._measure(session, operation) for operation in OPERATIONS}
        await assert_back_to(before)
        _CLEAN[self.client] = clean

    async def _measure(self, session: asyncpq.Session, operation: str) -> Clean:
        case = Case(operation, -1, False)
        self.server.put(case.path, OLD)
        self.server.log.clear()
        outcome, rows = await self._run(session, case)
        assert outcome == "rows"
        if rows.metrics is None:
            places: tuple[int, ...] = (0, 1)
        else:
            index = sum(record.purpose == "index" for record in rows.metrics.log)
            assert index
            places = (0, 1, 2, 2 + index, 3 + index)
        assert places[-1] < len(self.server.log)
        return Clean(len(self.server.log), self.server.bytes_sent, places)

    async def run(self, name: str, *, every_request: bool = False) -> list[Outcome]:
        """Run all cases of one fault. Assert that each gives rows or a typed error, within its bounds."""
        cases = [case for operation in OPERATIONS for case in self._cases(operation, every_request)]
        faults = {case.path: self._fault(name, case) for case in cases}
        self.server.log.clear()
        seen = dict.fromkeys(faults, 0)

        def fault_of(request: LoggedRequest) -> Fault | None:
            path = request.path[1:]
            number = seen[path]
            seen[path] += 1
            return faults[path] if faults[path].applies(number) else None

        self.server.faults = fault_of
        for case in cases:
            self.server.put(case.path, OLD)
            self.elsewhere.put(case.path, OLD)
        retry = SHORT_TIMEOUTS if name in HANGING else RETRY
        if "Retry-After" in name:
            retry = replace(retry, read_timeout_s=1.5)
        turn = asyncio.Semaphore(len(cases) if name in HANGING else AT_ONCE)
        async with self.session(retry) as session:

            async def one(case: Case) -> Outcome:
                async with turn, asyncio.timeout(60):
                    if name in THROTTLES:
                        async with self.session(retry) as own:
                            what, _ = await self._run(own, case)
                        own.metrics.add_to(session.metrics)
                    else:
                        what, _ = await self._run(session, case)
                return Outcome(case, what, len(self._log(case)))

            outcomes = await asyncio.gather(*(one(case) for case in cases))
            fetched, budget = session.metrics.bytes_fetched, session._runtime.budget.used
        assert budget == 0
        assert fetched <= sum(self._bytes_bound(name, case) for case in cases)
        for outcome in outcomes:
            assert outcome.requests <= self._requests_bound(name, outcome.case), outcome
        assert self.client == "HTTP" or not self.elsewhere.log, "a redirect was followed"
        return outcomes

    def _cases(self, operation: str, every_request: bool) -> list[Case]:
        clean = self.clean[operation]
        # The layers above are the same for all clients, and what they do is shown by S3.
        if every_request:
            step = 1 if self.client == "S3" else examples(2, thorough=1)
            once, lasting = tuple(range(0, clean.requests, step)), tuple(range(step - 1, clean.requests, step))
        elif self.client == "S3":
            once, lasting = clean.places, clean.places[::3]
        else:
            once, lasting = clean.places[-2:-1], clean.places[:1]
        cases = [Case(operation, after, False) for after in once]
        return cases + [Case(operation, after, True) for after in lasting]

    def _fault(self, name: str, case: Case) -> Fault:
        scene = Scene(
            other=NEW,
            location=f"{self.server.endpoint}/{case.path}",
            elsewhere=f"{self.elsewhere.endpoint}/{case.path}",
            drip_s=0.05,
        )
        return replace(CATALOGUE[name](scene), after=case.after, times=None if case.lasts else 1)

    async def _run(self, session: asyncpq.Session, case: Case) -> tuple[str, Rows]:
        url = url_for(self.client, self.server, case.path)
        rows = Rows()
        try:
            file = await session.open_file(url)
            await OPERATIONS[case.operation](file, rows)
        except asyncpq.AsyncpqError as error:
            if error.url != url:
                raise AssertionError(f"{case}: {error!r} names {error.url}") from error
            if rows.value is not None:  # what came before the error is the beginning of one version's rows
                assert any(
                    rows.value.equals(EXPECTED[case.operation, version].slice(0, rows.value.num_rows))
                    for version in ("rows", "new rows")
                ), case
            return type(error).__name__, rows
        assert rows.value is not None
        for version in ("rows", "new rows"):
            if rows.value.equals(EXPECTED[case.operation, version]):
                return version, rows
        raise AssertionError(f"{case}: other rows than pyarrow's: {rows.value}")

    def _log(self, case: Case) -> list[LoggedRequest]:
        return [request for request in self.server.log if request.path[1:] == case.path]

    def _requests_bound(self, name: str, case: Case) -> int:
        clean = self.clean[case.operation].requests
        if not case.lasts:
            return 2 * clean + 1  # the request again, or all of them for a new version
        if self.client == "HTTP" and name == "redirect loop":
            return 6 * (clean + 1)  # each is redirected five times
        # a connection that was kept, and is closed before it answers, may have been closed for its age: no attempt
        return ATTEMPTS * (clean + 1) * (2 if name == "closed before the answer" else 1)

    def _bytes_bound(self, name: str, case: Case) -> int:
        clean = self.clean[case.operation].sent
        if name == "200 for a Range" and case.lasts and self.client == "HTTP":
            return self._requests_bound(name, case) * len(OLD)  # objects of up to 1 MiB are taken whole
        return (ATTEMPTS if case.lasts else 2) * clean + len(OLD)


async def run_clients(
    name: str, servers: Mapping[str, tuple[ObjectServer, ObjectServer]], *, every_request: bool = False
) -> dict[str, list[Outcome]]:
    """Run one fault through several clients at the same time. Assert that they leave nothing behind.

    Args:
        servers: by client, the server that it asks and the one that redirects lead to.
    """
    matrices = [Matrix(client, *pair) for client, pair in servers.items()]
    for matrix in matrices:
        await matrix.measure()
    before = held()
    outcomes = await asyncio.gather(*(matrix.run(name, every_request=every_request) for matrix in matrices))
    await assert_back_to(before)
    return dict(zip(servers, outcomes, strict=True))
