"""Why a shared tier's server did not do what it was asked, in words that show no secret.

What it refuses is told in the log, once for each cause and minute.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 60.0
_MAX_CAUSES = 32  # a server may say anything
_CODE = re.compile(r"[A-Z]{2,24}(?= |$)")  # how a server's error begins
_MEANINGS: Final = {
    "NOAUTH": "the url names no user and password",
    "NOPERM": "its user may not run it, or not with keys that begin with the prefix; see cache/valkey/users.acl",
    "OOM": "it has no memory left, and may evict nothing; see cache/valkey/valkey.conf",
    "READONLY": "it is a replica",
    "NOREPLICAS": "it has too few replicas",
    "LOADING": "it is starting",
    "MOVED": "it is a cluster, which is not supported",
    "ASK": "it is a cluster, which is not supported",
    "CROSSSLOT": "it is a cluster, which is not supported",
    "CLUSTERDOWN": "it is a cluster, which is not supported",
}

_OTHER = "an error"

_log = logging.getLogger("asyncpq.caching.shared")


def cause_of(error: BaseException, handled: BaseException | None) -> str:
    """What an exchange failed with in the first place: its class, and the code of what a server answered.

    Args:
        handled: what the caller was handling when the exchange began, which Python adds to the context of ``error``.
    """
    found = error
    cause: BaseException | None = error
    while cause is not None and cause is not handled:
        if isinstance(cause, Exception):  # a timeout is made of a cancellation
            found = cause
        cause = cause.__cause__ or cause.__context__
    name = type(found).__name__
    return f"{name} {_code(str(found))}" if name == "ResponseError" else name


def _code(message: str) -> str:
    found = _CODE.match(message)
    return _OTHER if found is None else found.group()


class Refusals:
    """Those of one server.

    Args:
        place: the server, safe to be shown.
        clock: seconds that never go back.
    """

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._told_at: dict[tuple[str, str], float] = {}
        self._untold: dict[tuple[str, str], int] = {}

    def add(self, command: str, message: str) -> None:
        """``command`` was refused with ``message``, of which nothing but the code is shown."""
        cause = (command, _code(message))
        if cause not in self._told_at and len(self._told_at) >= _MAX_CAUSES:
            cause = (command, _OTHER)
        now = self._clock()
        if now < self._told_at.get(cause, float("-inf")) + EVERY_S:
            self._untold[cause] = self._untold.get(cause, 0) + 1
            return
        self._told_at[cause] = now
        untold = self._untold.pop(cause, 0)
        meaning = _MEANINGS.get(cause[1])
        _log.warning(
            "the shared cache at %s refuses %s with %s%s%s",
            self._place,
            *cause,
            f": {meaning}" if meaning else "",
            f" ({untold} times more before)" if untold else "",
        )
