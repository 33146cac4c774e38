"""An event loop whose time passes at once: it jumps to the next timer whenever nothing else is to be done."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any, ClassVar


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs programs without I/O or threads; equal programs have equal times."""

    BEGIN_S: ClassVar[float] = 100.0

    def __init__(self) -> None:
        self.now_s = self.BEGIN_S
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now_s


class _Jumps(selectors.SelectSelector):
    """Advances the loop's time in place of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        self._loop.now_s += max(timeout, 0.0)
        return super().select(0)
