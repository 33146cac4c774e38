"""When a small GET that has no response yet is sent a second time, and how often that may happen.

Pure: times are arguments. See Dean and Barroso, The Tail at Scale (CACM 56, 2, 2013).
"""

from __future__ import annotations

from collections import deque

#: GETs of more than this are not hedged: their time is that of their body.
HEDGED_BYTES = 1024 * 1024

_RECENT = 128  # times that are kept
_FEWEST = 20  # times without which the 95th percentile says nothing
_EVERY = 16  # times after which it is worked out again
_MOST_AT_ONCE = 4.0  # second requests that may have been saved up


class Hedging:
    """The times of one store's small GETs, and the account of second requests.

    Args:
        ratio: second requests for each first one, at most.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._account = 0.0
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._learnt = 0
        self._p95_s: float | None = None

    def begin(self) -> float | None:
        """A small GET is sent: seconds after which a second one may follow; None while too little is known."""
        self._account = min(self._account + self._ratio, _MOST_AT_ONCE)
        return self._p95_s

    def take(self) -> bool:
        """Whether a second request may be sent now; if so, it is counted."""
        if self._account < 1.0:
            return False
        self._account -= 1.0
        return True

    def learn(self, seconds: float) -> None:
        """A small GET had its response after this time."""
        self._times.append(seconds)
        self._learnt += 1
        if self._learnt % _EVERY == 0 and len(self._times) >= _FEWEST:
            times = sorted(self._times)
            self._p95_s = times[len(times) * 95 // 100]
