"""The phases of the load test: idle, a crowd, single expensive requests, greedy tokens, SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.load.client import Client
from tests.load.clients import Crowd, HealthProbe, OrdinaryClients, Tally, crowd_questions, ordinary_questions
from tests.load.questions import EXPENSIVE, expensive, write_lake
from tests.load.service import END_S, ROOT, Limits, ServiceProcess, token
from tests.load.store import StoreProcess

RATIO: Final = 3.0  # the most of ordinary p99 beside greedy tokens, to that of an idle service
HEALTH_S: Final = 0.05  # the most of /healthz under one expensive request
ALIVE_S: Final = 5.0  # the most of /healthz at any time, on a machine however busy
SETTLE_S: Final = 5.0  # within it, beyond the time limit of an answer, nothing is under way any more
GROWTH_BYTES: Final = 96 << 20  # of resident memory from one crowd to the next
_MOST_GROWTH_BYTES: Final = 160 << 20  # of it from before the greedy tokens to after them
_MOST_THREADS: Final = 48  # those of all pools together: two for each token, and what the standard library keeps
_TIMEOUT_S: Final = 5.0  # of a client beyond the service's own limit
_ROUNDS: Final = 2
_SINGLE: Final = 0.8  # of the seconds, at most for the single requests
_LEAST_SINGLE_S: Final = 30.0
_IDLE_CORES: Final = 0.2  # of a core: what the requests of all ordinary tokens take, on a machine of any speed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much load for how long.

    Attributes:
        timed: whether latencies have goals, beside the answers and ends.
        names: of the expensive requests.
        s3: whether the files are in an S3 server, not in a folder.
    """

    seconds: float = 90.0
    rows: int = 100_000
    clients: int = 500
    killed: int = 50
    per_s: float = 45.0  # requests of all ordinary tokens, at most
    seed: int = 1
    timed: bool = True
    names: tuple[str, ...] = tuple(EXPENSIVE)
    limits: Limits = field(default_factory=Limits)
    s3: bool = False


@dataclass
class Report:
    """The figures of each phase, and the goals that were missed."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    health: dict[str, dict[str, Any]] = field(default_factory=dict)  # by expensive request
    missed: list[str] = field(default_factory=list)

    def need(self, met: bool, goal: str) -> None:
        """Note a goal that was missed."""
        if not met:
            self.missed.append(goal)


class LoadTest:
    """One run, in a folder of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.report = Report()
        lake = folder / "lake"
        write_lake(lake, settings.rows)
        self._store = StoreProcess(lake) if settings.s3 else None
        if self._store is None:
            self.service = ServiceProcess(folder, f"{lake}/", {}, settings.limits)
        else:
            self.service = ServiceProcess(folder, self._store.url, self._store.storage, settings.limits)
        self._ordinary = ordinary_questions(settings.rows, settings.seed)
        self._crowd = crowd_questions(settings.rows, settings.seed)
        self._timeout_s = settings.limits.ordinary_s + _TIMEOUT_S
        self._idle_p99: dict[str, float] = {}
        self._per_s = settings.per_s

    async def run(self) -> Report:
        """Run all phases; ends the service in any case."""
        try:
            await self._start()
            await self._choose_rate()
            await self.idle()
            await self.crowd()
            await self.single()
            await self.greedy()
            await self.sigterm()
        finally:
            self.service.kill()
            if self._store is not None:
                self._store.close()
        return self.report

    async def _start(self) -> None:
        await self.service.start()
        # also fills the caches and starts all threads, which stay
        await self._ordinary.learn(self.service.port, self._timeout_s)
        await self._crowd.learn(self.service.port, self._timeout_s)

    async def _choose_rate(self) -> None:
        """Lower the rate on a slow machine: the test is of greedy tokens, not of a service with too many clients."""
        client, began = Client(self.service.port), self.service.cpu_s()
        for _, data in self._ordinary.made:
            await client.ask(data, self._timeout_s)
        client.close()
        each_s = (self.service.cpu_s() - began) / len(self._ordinary.made)
        self._per_s = min(self.settings.per_s, _IDLE_CORES / max(each_s, 1e-4))

    async def _restart(self) -> None:
        self.service.kill()
        await self._start()

    # -- the phases -------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Ordinary tokens alone."""
        clients, probe, cpu = self._clients(), HealthProbe(self.service.port, 0.05), Cpu(self.service)
        async with _running(clients, probe):
            await asyncio.sleep(self.settings.seconds * 0.25)
            shares = cpu.shares()
        self._add("idle", clients.tally, probe, {"per_s": round(self._per_s, 1), **shares})
        self.report.need(not clients.tally.errors, f"idle: errors {dict(clients.tally.errors)}")
        self._idle_p99 = {verb: one.at(0.99) for verb, one in clients.tally.seconds.items()}

    async def crowd(self) -> None:
        """Many clients at once, some of them killed: nothing of them stays."""
        settings = self.settings
        tally, killed, settled, quiet = Tally(), 0, 0.0, None
        await self.service.quiet_after(SETTLE_S)
        before = self.service.footprint()
        after = []
        for _ in range(_ROUNDS):
            crowd = Crowd(self.service.port, self._crowd, settings.clients, settings.killed, self._timeout_s)
            await crowd.run(settings.seconds * 0.06)
            quiet = await self.service.quiet_after(settings.limits.ordinary_s + SETTLE_S)
            self.report.need(quiet is not None, f"crowd: work goes on {self._working()}")
            settled = max(settled, quiet or 0.0)
            after.append(await self.service.footprint_back_to(before))
            killed += crowd.killed.total()
            _merge(tally, crowd.tally)
            if quiet is None:
                break
        tally.errors.update(await self._as_before())
        self._add("crowd", tally, None, {})
        growth = after[-1].resident - after[0].resident
        self.report.rows["crowd"].update(
            clients=settings.clients,
            killed=killed,
            settled_s=round(settled, 2),
            descriptors=[before.descriptors, *(one.descriptors for one in after)],
            threads=[before.threads, *(one.threads for one in after)],
            resident_mb=[one.resident >> 20 for one in (before, *after)],
        )
        need = self.report.need
        need(not tally.errors, f"crowd: errors {dict(tally.errors)}")
        need(killed == settings.killed * _ROUNDS, f"crowd: only {killed} clients were killed")
        need(after[-1].descriptors <= before.descriptors, "crowd: descriptors stay open")
        need(after[-1].threads <= _MOST_THREADS, f"crowd: {after[-1].threads} threads stay")
        need(growth <= GROWTH_BYTES, f"crowd: memory grew by {growth >> 20} MiB from one crowd to the next")
        if quiet is None:
            await self._restart()

    async def single(self) -> None:
        """One expensive request at a time, and how long /healthz takes meanwhile."""
        limits, client = self.settings.limits, Client(self.service.port)
        stop = time.perf_counter() + max(_LEAST_SINGLE_S, self.settings.seconds * _SINGLE)
        for name in self.settings.names:
            if time.perf_counter() > stop:
                self.report.missed.append(f"{name}: not tried, since those before it took so long")
                continue
            data = expensive(name, token("greedy-0"))
            probe, client.port = HealthProbe(self.service.port, 0.005, _TIMEOUT_S + 1), self.service.port
            async with _running(probe):
                await asyncio.sleep(0.1)
                began = time.perf_counter()
                answer = await client.ask(data, limits.greedy_s + _TIMEOUT_S, body=False)
                seconds = time.perf_counter() - began
                await asyncio.sleep(0.1)
            slowest = probe.seconds.at(1)
            quiet = await self.service.quiet_after(limits.greedy_s)
            self.report.health[name] = {
                "status": answer.status if answer is not None else None,
                "seconds": round(seconds, 3),
                "healthz_max_ms": round(slowest * 1000, 1),
                "work_went_on_s": None if quiet is None else round(quiet, 2),
            }
            need = self.report.need
            need(answer is not None, f"{name}: no answer")
            need(not probe.failed and slowest <= ALIVE_S, f"{name}: /healthz fails, or takes more than {ALIVE_S:g} s")
            need(quiet is not None, f"{name}: its work goes on after the answer {self._working()}")
            if self.settings.timed:
                need(
                    slowest <= HEALTH_S, f"{name}: /healthz took {slowest * 1000:.0f} ms, more than {HEALTH_S * 1000:g}"
                )
            if quiet is None:
                client.close()
                await self._restart()
        client.close()

    async def greedy(self) -> None:
        """Ordinary tokens beside greedy ones."""
        settings, limits = self.settings, self.settings.limits
        before = self.service.footprint()
        clients, probe, cpu = self._clients(), HealthProbe(self.service.port, 0.05), Cpu(self.service)
        resident = [before.resident]
        async with _Greedy(self) as greedy:
            await asyncio.sleep(min(2.0, settings.seconds * 0.05))
            async with _running(clients, probe):
                stop = time.perf_counter() + settings.seconds * 0.25
                while time.perf_counter() < stop:
                    await asyncio.sleep(0.25)
                    resident.append(self.service.footprint().resident)
                shares = cpu.shares()
        quiet = await self.service.quiet_after(limits.greedy_s + SETTLE_S)
        after = await self.service.footprint_back_to(before)
        self._add("greedy", clients.tally, probe, shares)
        row = self.report.rows["greedy"]
        ratios = {
            verb: round(one.at(0.99) / self._idle_p99[verb], 2)
            for verb, one in clients.tally.seconds.items()
            if one.all
        }
        row.update(
            ratio_p99=ratios,
            greedy=greedy.result,
            settled_s=None if quiet is None else round(quiet, 2),
            resident_mb=[before.resident >> 20, max(resident) >> 20, after.resident >> 20],
            descriptors=[before.descriptors, after.descriptors],
            threads=[before.threads, after.threads],
        )
        need = self.report.need
        need(not clients.tally.errors, f"greedy: errors of ordinary tokens {dict(clients.tally.errors)}")
        need(not greedy.result.get("unanswered", 1), "greedy: a request of a greedy token has no answer")
        need(not probe.failed and probe.seconds.at(1) <= ALIVE_S, "greedy: /healthz fails, or takes seconds")
        need(quiet is not None, f"greedy: work goes on {self._working()}")
        if quiet is not None:
            need(after.descriptors <= before.descriptors, "greedy: descriptors stay open")
            need(after.threads <= _MOST_THREADS, f"greedy: {after.threads} threads stay")
            growth = after.resident - before.resident
            need(growth <= _MOST_GROWTH_BYTES, f"greedy: memory grew by {growth >> 20} MiB")
            wrong = await self._as_before()
            need(not wrong, f"greedy: {wrong}")
        if settings.timed:
            for verb, ratio in ratios.items():
                need(
                    ratio <= RATIO, f"greedy: p99 of {verb} is {ratio} x that of the idle service, more than {RATIO:g}"
                )

    async def sigterm(self) -> None:
        """SIGTERM while ordinary and greedy tokens ask."""
        limits = self.settings.limits
        tracebacks = self.service.tracebacks()
        self.report.need(not tracebacks, f"the service's log has tracebacks: {dict(tracebacks)}")
        clients = self._clients()
        at_most_s = limits.drain_s + END_S
        async with _Greedy(self) as greedy, _running(clients):
            await asyncio.sleep(min(2.0, self.settings.seconds * 0.1))
            clients.sigterm_at = began = time.perf_counter()
            self.service.terminate()
            code = await self.service.ended(at_most_s)
            took = time.perf_counter() - began
            if code is None:
                self.service.kill()
        tally = clients.tally
        self.report.rows["SIGTERM"] = {
            "ended_s": round(took, 2) if code is not None else None,
            "exit_code": code,
            "ordinary": dict(tally.after_sigterm),
            "errors": dict(tally.errors),
            "greedy": greedy.result,
            "tracebacks": dict(self.service.tracebacks() - tracebacks),
        }
        need = self.report.need
        need(code is not None, f"SIGTERM: alive after {at_most_s:g} s, drain_s + {END_S:g}")
        need(code in (0, None), f"SIGTERM: exit code {code}")
        need(not tally.hung and not greedy.result.get("unanswered", 1), "SIGTERM: a client waits for ever")
        need("another answer" not in tally.errors, "SIGTERM: an answer was cut short, and looked whole")

    # -- parts of them ----------------------------------------------------------------------------

    def _clients(self) -> OrdinaryClients:
        return OrdinaryClients(self.service.port, self._ordinary, self._per_s, self._timeout_s)

    def _working(self) -> str:
        return f"({self.service.footprint().threads} threads)"

    async def _as_before(self) -> dict[str, int]:
        """Ask all that the idle service was asked; return what is wrong with the answers."""
        wrong: dict[str, int] = {}
        client = Client(self.service.port)
        for _, data in self._ordinary.made[:30]:
            what = self._ordinary.wrong(data, await client.ask(data, self._timeout_s))
            if what is not None:
                wrong[f"afterwards: {what}"] = wrong.get(f"afterwards: {what}", 0) + 1
        client.close()
        return wrong

    def _add(self, phase: str, tally: Tally, probe: HealthProbe | None, cpu: dict[str, float]) -> None:
        self.report.rows[phase] = {
            "verbs": tally.latency(),
            "errors": dict(tally.errors),
            "lag_p99_ms": round(tally.lag.at(0.99) * 1000, 1),
            **cpu,
        }
        if probe is not None:
            self.report.rows[phase]["healthz_p99_ms"] = round(probe.seconds.at(0.99) * 1000, 1)
            self.report.rows[phase]["healthz_max_ms"] = round(probe.seconds.at(1) * 1000, 1)


def _merge(into: Tally, more: Tally) -> None:
    for verb, one in more.seconds.items():
        into.seconds[verb].all += one.all
    into.errors.update(more.errors)
    into.hung += more.hung


@contextlib.asynccontextmanager
async def _running(*clients: OrdinaryClients | HealthProbe) -> AsyncIterator[None]:
    """Run clients until the block ends, and until they have their last answers."""
    until = asyncio.Event()
    tasks = [asyncio.ensure_future(one.run(until)) for one in clients]
    try:
        yield
    finally:
        until.set()
        await asyncio.gather(*tasks)


class _Greedy:
    """The process of the greedy clients, until the block ends. Then ``result`` is what they got."""

    def __init__(self, test: LoadTest) -> None:
        self._test = test
        self.result: dict[str, Any] = {}

    async def __aenter__(self) -> _Greedy:
        limits = self._test.settings.limits
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.load.greedy", "--port", str(self._test.service.port)),
            *("--concurrent", str(limits.greedy_concurrent), "--limit-s", str(limits.greedy_s)),
            *("--names", ";".join(self._test.settings.names)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            async with asyncio.timeout(60):
                output, _ = await self._process.communicate(b"")
            self.result = json.loads(output)
        except (TimeoutError, ValueError):
            self.result = {"outcomes": {}, "unanswered": -1}
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


class Cpu:
    """Cores that the service and this process use, from now on."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._service.cpu_s(), time.process_time()

    def shares(self) -> dict[str, float]:
        """Return how many cores each used."""
        seconds, *used = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return {f"{name}_cores": round(one / seconds, 2) for name, one in zip(("service", "client"), used, strict=True)}


def load_average() -> float:
    """Return the machine's load of the last minute, in running processes."""
    return os.getloadavg()[0]
