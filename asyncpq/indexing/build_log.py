"""What a build says to the logger ``asyncpq.builds``: that it begins, how far it is, and what it committed."""

from __future__ import annotations

import logging
import time
from typing import Final

from asyncpq.errors import printable
from asyncpq.events import OperationName

logger = logging.getLogger("asyncpq.builds")

_LINES: Final = 20  # of one build's progress, at most


class BuildLog:
    """The log of one build.

    Args:
        name: "build", "refresh", ...
        place: description of where the index is kept, safe to be shown.
    """

    def __init__(self, name: OperationName, place: str) -> None:
        self._what = f"{name} of {printable(place)}"
        self._began = time.perf_counter()
        self._files = self._done = self._step = 0

    def begins(self, files: int, known: int) -> None:
        """``files`` are to be read; ``known`` ones need not be."""
        self._files, self._step = files, -(-files // _LINES)
        logger.info("%s begins: %d files to read, %d known", self._what, files, known)

    def file_done(self) -> None:
        """One of the files was read."""
        self._done += 1
        if self._done % self._step == 0 and self._done < self._files:
            logger.info("%s: %d of %d files read, %.1f s", self._what, self._done, self._files, self._seconds)

    def committed(self, snapshot: int, added: int, removed: int, problems: int) -> None:
        """The build has ended well."""
        logger.info(
            "%s committed snapshot %d: %d files added, %d removed, %d could not be read; %.1f s",
            self._what,
            snapshot,
            added,
            removed,
            problems,
            self._seconds,
        )

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began
