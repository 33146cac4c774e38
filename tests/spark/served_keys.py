"""Credentials that expire: a provider that gives other keys each time, and a server that refuses some of them."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

from asyncpq.testing import Fault, ObjectServer
from asyncpq.testing.object_server import LoggedRequest
from tests.spark.credentials import CANARY

_given = itertools.count()


def other_keys() -> dict[str, str]:
    """The provider: executors import this module."""
    return {"key": f"P{os.getpid()}N{next(_given)}", "secret": CANARY}


class ServedKeys:
    """Which keys a server takes: its ``faults``.

    Attributes:
        bad: no key is taken.
        seen: all keys that came.
        refused: those that were not taken.
    """

    def __init__(self, server: ObjectServer) -> None:
        self.server = server
        self.bad = False
        self.seen: set[str] = set()
        self.refused: set[str] = set()
        self._expired: set[str] = set()
        self._known: set[str] | None = None
        self._left: int | None = None
        self._path: str | None = None
        server.faults = self

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for asyncpq.spark's functions."""
        shown = {"endpoint_url": self.server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        return {"storage_options": shown, "credentials_provider": f"{__name__}:other_keys"}

    def expire(self) -> None:
        """No key of before is taken any more, and of each process that comes anew not its first one."""
        self._expired |= self.seen
        self._known = set()
        self.refused.clear()

    def end_after(self, requests: int, path: str | None = None) -> None:
        """No key is taken, once there were ``requests`` more, of those that put something below ``path``."""
        self._left, self._path = requests, path

    def good(self) -> None:
        """All keys are taken."""
        self.bad, self._known, self._left = False, None, None
        self._expired.clear()
        self.refused.clear()

    def __call__(self, request: LoggedRequest) -> Fault | None:
        found = re.search(r"Credential=(P(\d+)N\d+|test)/", request.headers.get("authorization", ""))
        key, process = (found[1], found[2]) if found is not None else ("", "")
        self.seen.add(key)
        if self._known is not None and process not in self._known:
            self._known.add(process)
            self._expired.add(key)
        if self._left is not None and self._concerns(request):
            self._left -= 1
            self.bad = self.bad or self._left < 0
        if key != "test" and (self.bad or key in self._expired):
            self.refused.add(key)
            return Fault(status=400, code="ExpiredToken")
        return None

    def _concerns(self, request: LoggedRequest) -> bool:
        return self._path is None or (request.method in ("PUT", "POST") and self._path in request.path)
