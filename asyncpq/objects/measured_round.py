"""One round of requests, from which a session learns what requests and bytes cost at a server."""

from __future__ import annotations

import time
from collections.abc import Sequence

from asyncpq.metrics import RequestRecord
from asyncpq.objects.prices import LARGE_BYTES, MANY_REQUESTS, Measured
from asyncpq.objects.source import ObjectSource


class MeasuredRound:
    """Measures one round of requests, from its making on. A large one is measured together with the others that run at
    its server, until it is closed.

    Args:
        log: has the requests of the read.
        sizes: bytes of the ranges, of which those longer than ``part_bytes`` take several requests.
    """

    __slots__ = ("_began", "_burst", "_log", "_logged", "_num_bytes", "_requests", "_source")

    def __init__(
        self, source: ObjectSource, log: Sequence[RequestRecord], sizes: Sequence[int], part_bytes: int
    ) -> None:
        self._source = source
        self._log = log
        self._logged = len(self._log)
        self._num_bytes = sum(sizes)
        self._requests = sum([-(-size // part_bytes) for size in sizes])
        self._burst = source.burst() if self._num_bytes >= LARGE_BYTES else None
        if self._burst is not None:
            self._burst.join(self._num_bytes)
        self._began = time.monotonic()

    def ended(self) -> None:
        """Learn from the round, which went without errors."""
        burst, self._burst = self._burst, None
        if burst is None:
            seconds = time.monotonic() - self._began
            self._source.learn_prices(Measured(self._requests, self._num_bytes, seconds))
            return
        fastest_s = None
        if self._requests >= MANY_REQUESTS:
            fastest_s = min(
                [record.seconds for record in self._log[self._logged :] if record.status in (200, 206)], default=None
            )
        measured = burst.ended(self._requests, self._num_bytes, fastest_s)
        if measured is not None:
            self._source.learn_prices(measured)

    def close(self) -> None:
        """Leave the others, if the round has not ended. Idempotent."""
        if self._burst is not None:
            self._burst.failed()
            self._burst = None
