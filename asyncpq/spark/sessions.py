"""One event loop and one session for each process and settings, on executors and the driver alike.

PySpark runs a task in a worker process of its own, which serves further tasks: what a session has learnt serves them,
too. Tasks have no event loop; theirs is in a thread of the process.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.blocking import Portal
from asyncpq.errors import AsyncpqError, CredentialsError
from asyncpq.options import MIB, DiskCacheOptions, ReadOptions
from asyncpq.session import Session
from asyncpq.spark.settings import DEFAULT_MEMORY_BYTES, SparkSettings

T = TypeVar("T")

#: Gives batches of one read, which begins when it is entered.
Batches: TypeAlias = AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]

_KEPT: Final = 4  # sessions of other settings that nobody uses
_LEAST_MEMORY: Final = 8 * MIB
_CACHE_FOLDER: Final = "asyncpq-cache"
_NO_PROVIDER: Final = (
    "Name who gives them, credentials_provider='module:function' (option credentialsProvider), or let the executors'"
    " environment have them."
)

logger = logging.getLogger(__name__)


class ProcessSession:
    """A session in a loop of its own. Threads of the process may share it.

    Args:
        settings: what it is made by.
        on_executor: whether this process is a worker of an executor.

    Attributes:
        users: how many calls are under way.
        dropped: nobody gets it any more.
    """

    def __init__(self, settings: SparkSettings, *, on_executor: bool) -> None:
        self.users = 0
        self.dropped = False
        self.storage = settings.resolved_storage()
        self._portal = Portal()

        async def enter() -> Session:
            session = Session(
                self.storage,
                memory_cache_bytes=_memory_bytes(settings),
                disk_cache=_disk_cache(settings, on_executor=on_executor),
                read=ReadOptions(int96_unit=settings.int96_unit),
            )
            return await session.__aenter__()

        try:
            self._session = self._portal.call(enter())
        except BaseException:
            self._portal.close()
            raise

    def call(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` gives, in the loop."""
        return self._portal.call(work(self._session))

    def close(self) -> None:
        """End the session, its loop and its thread."""
        if not self._portal.closed:
            self._portal.call(self._session.close())
            self._portal.close()


_sessions: OrderedDict[SparkSettings, ProcessSession] = OrderedDict()
_lock = threading.Lock()
_process = os.getpid()


def run(settings: SparkSettings, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """Wait for what ``work`` gives, with the process's session.

    Where credentials have expired, and the provider gives others now, it is done again.

    Raises:
        AsyncpqError: as ``work`` does.
    """
    session = _take(settings)
    try:
        return session.call(work)
    except CredentialsError as error:
        if not _renewed(settings, session, error):
            raise
    finally:
        _give_back(session)
    session = _take(settings)
    try:
        return session.call(work)
    finally:
        _give_back(session)


def batches(settings: SparkSettings, make: Callable[[Session], Awaitable[Batches]]) -> Iterator[pa.RecordBatch]:
    """Batches of a read, as a task asks for them; the read runs ahead as far as the session's limits let it.

    Where credentials have expired before the first batch, it is done again, as in :func:`run`.

    Args:
        make: gives the read, which is entered and left here.

    Raises:
        AsyncpqError: as the read does.
    """
    given_out = False
    for attempt in (0, 1):
        session = _take(settings)
        try:
            for batch in _iterate(session, make):
                given_out = True
                yield batch
            return
        except CredentialsError as error:
            renewed = _renewed(settings, session, error)
            if given_out or attempt or not renewed:
                raise
        finally:
            _give_back(session)


def _iterate(session: ProcessSession, make: Callable[[Session], Awaitable[Batches]]) -> Iterator[pa.RecordBatch]:
    async def enter(inner: Session) -> tuple[Batches, AsyncIterator[pa.RecordBatch]]:
        context = await make(inner)
        return context, aiter(await context.__aenter__())

    context, rows = session.call(enter)

    async def step(inner: Session) -> pa.RecordBatch | None:
        return await anext(rows, None)

    async def leave(inner: Session) -> None:
        await context.__aexit__(None, None, None)

    try:
        while (batch := session.call(step)) is not None:
            yield batch
    finally:
        session.call(leave)


# -- which session --------------------------------------------------------------------------------


def _take(settings: SparkSettings) -> ProcessSession:
    global _process
    with _lock:
        if _process != os.getpid():  # the loops stayed with the parent
            _process = os.getpid()
            _sessions.clear()
        session = _sessions.get(settings)
        if session is None:
            session = _sessions[settings] = ProcessSession(settings, on_executor=_on_executor())
        _sessions.move_to_end(settings)
        session.users += 1
        idle = [key for key, other in _sessions.items() if not other.users]
        closing = [_sessions.pop(key) for key in idle[: max(0, len(_sessions) - _KEPT)]]
    for other in closing:
        other.close()
    return session


def _give_back(session: ProcessSession) -> None:
    with _lock:
        session.users -= 1
        closing = session.dropped and not session.users
    if closing:
        session.close()


def _renewed(settings: SparkSettings, session: ProcessSession, refusal: CredentialsError) -> bool:
    """Whether there are other credentials than those that ``session`` was refused with; it is not used any more."""
    provider = settings.credentials_provider
    refusal.hint = _NO_PROVIDER if provider is None else f"They are those that the provider {provider!r} gives."
    try:
        different = settings.credentials_provider is not None and settings.resolved_storage() != session.storage
    except AsyncpqError as error:
        logger.warning("credentials are not renewed: %s", error)
        different = False
    with _lock:
        if _sessions.get(settings) is session:
            del _sessions[settings]
        session.dropped = True
    return different


def _on_executor() -> bool:
    return "SPARK_LOCAL_DIRS" in os.environ and "SPARK_BUFFER_SIZE" in os.environ


def _memory_bytes(settings: SparkSettings) -> int:
    if settings.memory_cache_bytes is not None:
        return settings.memory_cache_bytes
    share = os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB")  # of this process: that of the executor by its cores
    return DEFAULT_MEMORY_BYTES if share is None else max(_LEAST_MEMORY, int(share) * MIB // 4)


def _disk_cache(settings: SparkSettings, *, on_executor: bool) -> DiskCacheOptions | None:
    if settings.disk_cache == "host" and settings.disk_cache_folder is not None:
        return DiskCacheOptions(path=settings.disk_cache_folder, max_bytes=settings.disk_cache_bytes)
    if settings.disk_cache == "off" or not on_executor:
        return None
    local = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    return DiskCacheOptions(path=str(Path(local) / _CACHE_FOLDER), max_bytes=settings.disk_cache_bytes)


def close_all() -> None:
    """End all sessions of the process that nobody uses."""
    with _lock:
        closing = [key for key, session in _sessions.items() if not session.users]
        sessions = [_sessions.pop(key) for key in closing] if _process == os.getpid() else []
    for session in sessions:
        with suppress(AsyncpqError, RuntimeError):  # at the interpreter's end there are no new threads
            session.close()


# What is registered last runs first: stores end their threads by finalizers, which weakref gives up when it ends.
weakref.finalize(SparkSettings, int).detach()
atexit.register(close_all)
