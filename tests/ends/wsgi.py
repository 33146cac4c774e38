"""A web application that holds two sessions and opens one for each request, for servers of green threads."""

from __future__ import annotations

import os
from collections.abc import Callable

from asyncpq import blocking

kept: list[blocking.Session] = []


def application(environ: dict[str, object], start: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
    """Answer with the numbers of rows that three sessions count, or more, if first requests came at once."""
    if len(kept) < 2:
        kept.extend(blocking.Session() for _ in range(2))
    with blocking.Session() as own:
        counts = {session.open_file(os.environ["ASYNCPQ_TEST_FILE"]).count("id < 10") for session in (*kept, own)}
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(counts).encode()]
