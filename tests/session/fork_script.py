"""Run by test_concurrent_use: forks at a given moment, and says what child and parent could read.

``python fork_script.py MOMENT URL``; MOMENT is "before", "during", "after", "blocking" or "one_off". Prints one
line of the child and one of the parent, each ``ok`` or what went wrong. Whatever hangs is ended by the alarm.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import asyncpq
import asyncpq.blocking

LIMIT_S = 30
WANTED = [{"value": 5}]


def storage_options() -> dict[str, Any]:
    return dict(json.loads(os.environ["STORAGE_OPTIONS"]))


async def read(url: str, session: asyncpq.Session | None = None) -> None:
    """One lookup, in a session of its own or the given one."""
    if session is None:
        async with asyncpq.Session(storage_options()) as session:
            await read(url, session)
    else:
        session.memory_cache.clear()
        file = await session.open_file(url)
        assert (await file.lookup({"id": 5}, ["value"])).to_pylist() == WANTED


async def refused(session: asyncpq.Session, file: asyncpq.File, url: str) -> None:
    """What belongs to the parent is a typed error, at once."""
    for use in (lambda: session.open_file(url), lambda: file.lookup({"id": 5}), lambda: file.count()):
        try:
            await use()
        except asyncpq.UsageError:
            continue
        raise AssertionError("the parent's session was used in the child")


def child_of_a_blocking_session(url: str) -> None:
    with asyncpq.blocking.Session(storage_options()) as session:
        file = session.open_file(url)

        def child() -> None:
            for use in (lambda: session.open_file(url), lambda: file.lookup({"id": 5})):
                try:
                    use()
                except asyncpq.UsageError:
                    continue
                raise AssertionError("the parent's session was used in the child")
            session.close()  # nothing to end
            with asyncpq.blocking.Session(storage_options()) as own:
                assert own.open_file(url).lookup({"id": 5}, ["value"]).to_pylist() == WANTED

        forked(child)
        assert file.lookup({"id": 5}, ["value"]).to_pylist() == WANTED


def fork_between_one_off_calls(url: str) -> None:
    """Parent and child have shared sessions of their own; what the parent began, the child does not end."""

    def lookup() -> None:
        with asyncpq.blocking.open_file(url, storage_options=storage_options()) as file:
            assert file.lookup({"id": 5}, ["value"]).to_pylist() == WANTED

    def twice() -> None:
        lookup()
        lookup()

    lookup()
    with asyncpq.blocking.open_file(url, storage_options=storage_options()) as file:
        forked(twice)
        assert file.lookup({"id": 5}, ["value"]).to_pylist() == WANTED
    lookup()


def forked(work: Callable[[], object]) -> None:
    """Fork; ``work()`` is the child's whole life."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            work()
            os.write(1, b"child ok\n")
        except BaseException:  # noqa: BLE001  # a child must not go on as its parent
            os.write(1, f"child failed\n{traceback.format_exc()}".encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"


async def fork_during(url: str) -> None:
    async with asyncpq.Session(storage_options()) as session:
        file = await session.open_file(url)
        session.memory_cache.clear()
        reads = [asyncio.ensure_future(read(url, session)) for _ in range(5)]
        await asyncio.sleep(0.002)  # requests are under way

        def child() -> None:
            async def both() -> None:
                await refused(session, file, url)
                await read(url)

            asyncio.run(both())

        forked(child)
        await asyncio.gather(*reads)
        await read(url, session)


def fork_after(url: str) -> None:
    asyncio.run(read(url))
    kept = []

    async def use() -> None:
        session = await asyncpq.Session(storage_options()).__aenter__()
        kept.append((session, await session.open_file(url)))

        def child() -> None:
            asyncio.run(refused(*kept[0], url))
            asyncio.run(read(url))
            asyncio.run(read(url))

        forked(child)
        await read(url, session)
        await session.close()

    asyncio.run(use())
    asyncio.run(read(url))


def main() -> None:
    """See the module."""
    moment, url = sys.argv[1:]
    signal.alarm(LIMIT_S)
    if moment == "before":
        forked(lambda: asyncio.run(read(url)))
        asyncio.run(read(url))
    elif moment == "during":
        asyncio.run(fork_during(url))
    elif moment == "after":
        fork_after(url)
    elif moment == "one_off":
        fork_between_one_off_calls(url)
    else:
        child_of_a_blocking_session(url)
    sys.stdout.write("parent ok\n")


if __name__ == "__main__":
    main()
