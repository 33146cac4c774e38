"""Count requests to database servers in the caller's operation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from asyncpq.events import Operation
from asyncpq.metrics import Purpose, RequestRecord


class SentRequest:
    """A request under way.

    Attributes:
        bytes: of the response; set by the caller.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def counted_request(operation: Operation | None, method: str, purpose: Purpose = "table") -> Iterator[SentRequest]:
    """Count one round trip.

    Args:
        operation: counts the request; None: it is not counted.
        method: name of the command, such as "SELECT".
    """
    sent = SentRequest()
    if operation is None:
        yield sent
        return
    metrics = operation.metrics
    round_, began = metrics.rounds + 1, time.perf_counter()
    status = 0
    metrics.wait_begins()
    try:
        yield sent
        status = 200
    finally:
        metrics.wait_ends()
        seconds = time.perf_counter() - began
        metrics.record(RequestRecord(method, purpose, 0, sent.bytes, status, sent.bytes, 1, round_, seconds))
