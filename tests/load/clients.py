"""Clients whose answers are measured: ordinary ones on a schedule, a crowd, and a probe of /healthz."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.load.client import Answer, Client, Connection, request, sleep_until
from tests.load.questions import everything, heavy_count, ordinary
from tests.load.service import CROWD, ORDINARY, token

VERBS: Final = ("lookup", "count", "scan")
_HALF: Final = 0.5


@dataclass
class Seconds:
    """Times of requests, in seconds."""

    all: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        """Return the time within which ``share`` of the requests, 0 to 1, were answered."""
        ordered = sorted(self.all)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Tally:
    """What came of the requests of one phase."""

    seconds: dict[str, Seconds] = field(default_factory=lambda: {verb: Seconds() for verb in VERBS})
    errors: Counter[str] = field(default_factory=Counter)
    hung: int = 0
    lag: Seconds = field(default_factory=Seconds)  # how much too late this process sent a request
    after_sigterm: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """The number of requests that were answered."""
        return sum(len(one.all) for one in self.seconds.values())

    def latency(self) -> dict[str, dict[str, float]]:
        """Return for each verb how many answers there were, and their median, p99 and maximum in milliseconds."""
        return {
            verb: {
                "answers": len(one.all),
                "p50_ms": round(one.at(0.5) * 1000, 1),
                "p99_ms": round(one.at(0.99) * 1000, 1),
                "max_ms": round(one.at(1) * 1000, 1),
            }
            for verb, one in self.seconds.items()
        }


class Questions:
    """The requests of ordinary tokens, and the answers that an idle service gave to them."""

    def __init__(self, prefix: str, tokens: int, of_each: int, rows: int, seed: int) -> None:
        self._prefix, rng = prefix, random.Random(seed)
        self.made: list[tuple[str, bytes]] = []  # verb and request, in the order in which they are sent
        for _ in range(of_each):  # of each verb and token
            for number in range(tokens):
                self.made += [
                    (verb, request("GET", ordinary(verb, rng, rows), token(f"{prefix}-{number}"))) for verb in VERBS
                ]
        self._right: dict[bytes, bytes] = {}

    def of_token(self, number: int) -> list[tuple[str, bytes]]:
        """Return those of :attr:`made` that one token sends."""
        secret = token(f"{self._prefix}-{number}").encode()
        return [(verb, data) for verb, data in self.made if secret in data]

    async def learn(self, port: int, timeout_s: float) -> None:
        """Ask each once, and remember the answers. Raises RuntimeError if there is none."""
        client = Client(port)
        for _, data in self.made:
            answer = await client.ask(data, timeout_s)
            if answer is None or answer.status != 200:
                raise RuntimeError(f"an idle service does not answer {data!r}: {answer}")
            self._right[data] = answer.body
        client.close()

    def wrong(self, data: bytes, answer: Answer | None) -> str | None:
        """Return what is wrong with an answer; None if it is as :meth:`learn` got it."""
        if answer is None:
            return "no answer"
        if not answer.complete:
            return "cut" if answer.status else "no connection"
        if answer.status != 200:
            return str(answer.status)
        return None if answer.body == self._right[data] else "another answer"


class OrdinaryClients:
    """Send requests on a fixed schedule, whether or not earlier ones are answered. A request's time counts from the
    moment when it was due."""

    def __init__(self, port: int, questions: Questions, per_s: float, timeout_s: float) -> None:
        self._client = Client(port)
        self._questions = questions
        self._per_s = per_s
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.tally = Tally()
        self.sigterm_at: float | None = None  # by time.perf_counter()

    async def run(self, until: asyncio.Event) -> None:
        """Send until the event is set, and wait for what is under way."""
        began = time.perf_counter()
        for number, (verb, data) in enumerate(itertools.cycle(self._questions.made)):
            due = began + number / self._per_s
            await sleep_until(due)
            if until.is_set():
                break
            task = asyncio.ensure_future(self._ask(verb, data, due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self._client.close()

    async def _ask(self, verb: str, data: bytes, due: float) -> None:
        self.tally.lag.all.append(time.perf_counter() - due)
        answer = await self._client.ask(data, self._timeout_s)
        wrong = self._questions.wrong(data, answer)
        if self.sigterm_at is not None:
            # what was under way may end by a clear close; what came later finds no service
            if wrong in ("cut", "no connection"):
                self.tally.after_sigterm["closed" if due < self.sigterm_at else "refused"] += 1
                return
            self.tally.after_sigterm["answered"] += wrong is None
        if answer is None:
            self.tally.hung += 1
        if wrong is None or answer is None or answer.complete:
            self.tally.seconds[verb].all.append(time.perf_counter() - due)
        if wrong is not None:
            self.tally.errors[wrong] += 1


class Crowd:
    """Many clients at once, each with a connection of its own, some of which are killed in the middle."""

    def __init__(self, port: int, questions: Questions, clients: int, killed: int, timeout_s: float) -> None:
        self._port = port
        self._questions = questions
        self._clients = clients
        self._killed = killed
        self._timeout_s = timeout_s
        self.tally = Tally()
        self.killed: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Ask for as long as that."""
        stop = time.perf_counter() + seconds
        kill_at = stop - seconds * _HALF
        lasting = [self._lasting(number, stop) for number in range(self._clients - self._killed)]
        await asyncio.gather(*lasting, *(self._short(number, kill_at) for number in range(self._killed)))

    async def _lasting(self, number: int, stop: float) -> None:
        client, made = Client(self._port), self._questions.of_token(number % CROWD)
        for verb, data in itertools.islice(itertools.cycle(made), number % len(made), None):
            began = time.perf_counter()
            if began >= stop:
                break
            answer = await client.ask(data, self._timeout_s)
            wrong = self._questions.wrong(data, answer)
            self.tally.seconds[verb].all.append(time.perf_counter() - began)
            self.tally.hung += answer is None
            if wrong is not None:
                self.tally.errors[wrong] += 1
        client.close()

    async def _short(self, number: int, kill_at: float) -> None:
        """One client that is killed: in the middle of its answer, before its answer, or in the middle of its body."""
        secret = token(f"crowd-{number % CROWD}")
        connection = await Connection.open(self._port)
        how = ("half of an answer", "no answer", "half of a body")[number % 3]
        if how == "half of an answer":
            await connection.send(request("GET", everything("json"), secret))
            await connection.first_bytes()
        else:
            whole = heavy_count(secret)
            await connection.send(whole if how == "no answer" else whole[:-20])
        await sleep_until(kill_at)
        connection.reset()
        self.killed[how] += 1


class HealthProbe:
    """Asks /healthz again and again, one request at a time."""

    def __init__(self, port: int, gap_s: float, timeout_s: float = 15.0) -> None:
        self._client = Client(port)
        self._gap_s = gap_s
        self._timeout_s = timeout_s
        self.seconds = Seconds()
        self.failed = 0

    async def run(self, until: asyncio.Event) -> None:
        """Ask until the event is set."""
        data = request("GET", "/healthz")
        while not until.is_set():
            began = time.perf_counter()
            answer = await self._client.ask(data, self._timeout_s)
            if until.is_set() and (answer is None or not answer.complete):
                break  # the service has ended
            self.seconds.all.append(time.perf_counter() - began)
            self.failed += answer is None or not answer.complete or answer.status != 200
            await asyncio.sleep(self._gap_s)
        self._client.close()


def ordinary_questions(rows: int, seed: int, of_each: int = 25) -> Questions:
    """Return the requests of the ordinary tokens. ``of_each``: how many of each verb and token."""
    return Questions("ordinary", ORDINARY, of_each, rows, seed)


def crowd_questions(rows: int, seed: int, of_each: int = 6) -> Questions:
    """Return the requests of the crowd's tokens."""
    return Questions("crowd", CROWD, of_each, rows, seed)
