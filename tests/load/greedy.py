"""The greedy clients, in a process of their own: ``python -m tests.load.greedy``.

Each slot that a token may use sends the most expensive requests, one after the other. Whatever is refused is asked
again after a moment. It runs until its standard input ends; then it prints what it got as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter

from tests.load.client import Client
from tests.load.questions import EXPENSIVE, expensive
from tests.load.service import GREEDY, token

_PAUSE_S = 0.25  # after a refusal
_NICE = 5  # clients are elsewhere: the cores are the service's first


class Greedy:
    """All slots of all greedy tokens."""

    def __init__(self, port: int, concurrent: int, seconds: float, names: list[str]) -> None:
        self._client = Client(port)
        self._timeout_s = seconds + 10
        self._concurrent = concurrent
        self._names = names
        self.outcomes: Counter[str] = Counter()
        self.unanswered = 0
        self.slowest_s = 0.0

    async def run(self, until: asyncio.Event) -> None:
        """Ask until the event is set, and for what is under way then at most until the service ends it."""
        slots = []
        for greedy in range(GREEDY):
            requests = [expensive(name, token(f"greedy-{greedy}")) for name in self._names]
            for slot in range(self._concurrent):
                first = (slot * len(requests) // self._concurrent + greedy) % len(requests)
                slots.append(self._slot(requests[first:] + requests[:first], until))
        await asyncio.gather(*slots)
        self._client.close()

    async def _slot(self, requests: list[bytes], until: asyncio.Event) -> None:
        number = 0
        while not until.is_set():
            began = time.perf_counter()
            answer = await self._client.ask(requests[number % len(requests)], self._timeout_s, body=False)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
            number += 1
            if answer is None:
                self.unanswered += 1
                self.outcomes["no answer"] += 1
            else:
                self.outcomes[str(answer.status) if answer.complete else "cut"] += 1
            if answer is None or answer.status != 200 or not answer.complete:
                await asyncio.sleep(_PAUSE_S)


async def _run(greedy: Greedy) -> None:
    loop, until = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            until.set()

    loop.add_reader(0, read)
    await greedy.run(until)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrent", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--names", default="", help="of the requests, with ';' between them; all without it")
    given = parser.parse_args()
    os.nice(_NICE)
    names = given.names.split(";") if given.names else list(EXPENSIVE)
    greedy = Greedy(given.port, given.concurrent, given.limit_s, names)
    asyncio.run(_run(greedy))
    result = {
        "outcomes": dict(greedy.outcomes.most_common()),
        "unanswered": greedy.unanswered,
        "slowest_s": round(greedy.slowest_s, 3),
    }
    sys.stdout.write(f"{json.dumps(result)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
