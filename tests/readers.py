"""What readers of tests have in common: those that lend catalogs files without a session."""

from __future__ import annotations

from typing import Any


class PlainReader:
    """The parts of a :class:`asyncpq.datasets.model.Reader` that take a session: they are not there."""

    trust_statistics = True

    def read_rows(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def once(self, *_: Any) -> Any:
        raise NotImplementedError
