"""Share one asyncpq session and event loop among all calls of a process with the same settings, in driver and tasks.

A PySpark worker process serves many tasks, so the caches of its session serve all of them. The event loop runs in a
thread of the process, since tasks have none. Errors of a task reach the driver as the asyncpq error that the task
raised.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from asyncpq import errors
from asyncpq.errors import AsyncpqError, CredentialsError, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError
from asyncpq.objects.loop_threads import Portal
from asyncpq.options import MIB, DiskCacheOptions, LimitOptions, ReadOptions, etag
from asyncpq.session import Session
from asyncpq.spark.settings import DEFAULT_MEMORY_BYTES, SparkSettings

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: A read that starts when it is entered, and iterates over batches.
BatchStream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]

_KEPT: Final = 4  # idle sessions that stay open
_INLINE_BYTES: Final = 4 * MIB  # a task has one core, so decoding in another thread gains nothing
_LEAST_MEMORY: Final = 8 * MIB
_CACHE_FOLDER: Final = "asyncpq-cache"
_NO_PROVIDER: Final = (
    "Set credentials_provider='module:function' (option credentialsProvider), or put the credentials into the"
    " environment of the executors."
)


class ProcessSession:
    """A session with an event loop of its own, which threads of the process may share."""

    def __init__(self, settings: SparkSettings) -> None:
        self.users = 0  # calls in progress
        self.dropped = False  # no further call gets this session
        self.storage: dict[str, Any] = settings.resolved_storage()
        self._session = Session(
            self.storage,
            memory_cache_bytes=_memory_bytes(settings),
            cache_policy=etag(0),  # a query fails if a file was replaced, so each read asks
            disk_cache=_disk_cache(settings),
            limits=LimitOptions(inline_decode_bytes=_INLINE_BYTES),
            # values are rebased when they are converted to Spark's types, as Spark's settings say
            read=ReadOptions(int96_unit=settings.int96_unit, legacy_calendar="ignore"),
        )
        self._session.runtime.takes_table_options = False  # tasks open files of a table with the settings alone
        self._portal = Portal(end=lambda: self._session.close())
        try:
            self._portal.call(self._session.__aenter__())
        except BaseException:
            self._portal.close()
            raise

    def call(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that ``work(session)`` returns in the session's loop, wait for it, and return its
        result."""
        return self._portal.call(work(self._session))

    def counts(self) -> dict[str, int]:
        """Return the counts of all reads of the session that have ended."""
        counts = self._session.metrics.counts()
        return {name: value for name, value in counts.items() if isinstance(value, int)}

    def close(self) -> None:
        """Close the session, its loop and its thread."""
        self._portal.close()


def run(
    settings: SparkSettings,
    work: Callable[[Session], Coroutine[Any, Any, T]],
    *,
    repeatable: Callable[[], bool] = lambda: True,
) -> T:
    """Run ``work`` with this process's session for ``settings``, and return its result.

    If the store refuses the credentials and the credentials provider returns new ones, ``work`` runs a second time,
    unless ``repeatable()`` returns False. Raises CredentialsError if the provider failed or the store refused its
    credentials.
    """

    def once(session: ProcessSession) -> Iterator[T]:
        yield session.call(work)

    (result,) = _repeated(settings, once, repeatable)
    return result


def batches(settings: SparkSettings, make: Callable[[Session], Awaitable[BatchStream]]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a read, which runs ahead of them within the limits of the session.

    ``make`` returns the read, which is entered and exited here. If the credentials expire before the first batch, the
    read starts again with new ones, as in :func:`run`.
    """
    return _repeated(settings, lambda session: _iterate(session, make), lambda: True)


def _repeated(
    settings: SparkSettings, read: Callable[[ProcessSession], Iterator[T]], repeatable: Callable[[], bool]
) -> Iterator[T]:
    """Yield the items that ``read`` yields with this process's session for ``settings``.

    ``read`` runs a second time if it raised a CredentialsError before its first item, ``repeatable()`` returns True,
    and the credentials provider has new credentials.
    """
    for is_last in (False, True):
        is_begun = False
        session = _take(settings)
        try:
            for item in read(session):
                is_begun = True
                yield item
            return
        except CredentialsError as error:
            _drop(session)
            provider = settings.credentials_provider
            error.hint = _NO_PROVIDER if provider is None else f"The provider {provider!r} gave these credentials."
            if is_last or is_begun or not repeatable() or not _renewed(settings, session, error):
                raise
        finally:
            _give_back(session)
            _freeze()


def _iterate(session: ProcessSession, make: Callable[[Session], Awaitable[BatchStream]]) -> Iterator[pa.RecordBatch]:
    async def enter(inner: Session) -> tuple[BatchStream, AsyncIterator[pa.RecordBatch]]:
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


def counts() -> dict[str, int]:
    """Return the summed counts of all reads of this process's open sessions that have ended."""
    with _changed:
        of_all = [session.counts() for session in _sessions.values()]
    names = dict.fromkeys(name for counted in of_all for name in counted)
    return {name: sum(counted[name] for counted in of_all) for name in names}


# -- which session --------------------------------------------------------------------------------

#: The settings that define a session. Calls whose other settings differ share the session and its caches.
_DEFINING: Final = (
    "credentials_provider",
    "memory_cache_bytes",
    "disk_cache",
    "disk_cache_folder",
    "disk_cache_bytes",
    "int96_unit",
)

_sessions: OrderedDict[tuple[object, ...], ProcessSession] = OrderedDict()
_building: set[tuple[object, ...]] = set()  # keys of sessions that a thread is making
_changed = threading.Condition()
_process = os.getpid()
_frozen = False


def _take(settings: SparkSettings) -> ProcessSession:
    """Return the session for these settings, made if necessary, and count the caller as its user."""
    key = (json.dumps(settings.storage, sort_keys=True), *[getattr(settings, name) for name in _DEFINING])
    session = _known(key)
    if session is None:  # made outside of the lock: the provider may take long, and other sessions must not wait
        try:
            session = ProcessSession(settings)
        finally:
            with _changed:
                _building.discard(key)
                if session is not None:
                    session.users += 1
                    _sessions[key] = session
                _changed.notify_all()
    with _changed:
        idle = [key for key, other in _sessions.items() if not other.users]
        closing = [_sessions.pop(key) for key in idle[: max(0, len(_sessions) - _KEPT)]]
    for other in closing:
        _close(other)
    return session


def _known(key: tuple[object, ...]) -> ProcessSession | None:
    """Return the open session with this key, and count the caller as its user.

    None if there is no such session: the caller must then make it. Meanwhile, other threads that ask for the key wait.
    """
    global _process
    with _changed:
        if _process != os.getpid():  # after a fork: the loops run in the parent
            _process = os.getpid()
            _sessions.clear()
            _building.clear()
        _changed.wait_for(lambda: key in _sessions or key not in _building)
        session = _sessions.get(key)
        if session is None:
            _building.add(key)
            return None
        _sessions.move_to_end(key)
        session.users += 1
        return session


def _drop(session: ProcessSession) -> None:
    """Let no further calls use the session. Calls that use it already may continue; the last one closes it."""
    with _changed:
        for key in [key for key, other in _sessions.items() if other is session]:
            del _sessions[key]
        session.dropped = True


def _give_back(session: ProcessSession) -> None:
    with _changed:
        session.users -= 1
        closing = session.dropped and not session.users
    if closing:
        _close(session)


def _close(session: ProcessSession) -> None:
    """Close a session. Errors are logged and not raised, since the caller's own work does not need this session."""
    try:
        session.close()
    except AsyncpqError as error:
        logger.warning("an idle session could not be closed: %s", error)


def _freeze() -> None:
    """Exempt the objects that exist now, such as imported modules and caches, from garbage collection.

    PySpark's workers collect garbage after every task, which takes tenths of a second with all that asyncpq imports.
    """
    global _frozen
    if not _frozen and _on_executor():
        _frozen = True
        gc.freeze()


def _renewed(settings: SparkSettings, session: ProcessSession, refusal: CredentialsError) -> bool:
    """Return whether the credentials provider now returns other storage options than those of ``session``; False if it
    fails or none is set.

    A failure of the provider is added to the hint of ``refusal``.
    """
    if settings.credentials_provider is None:
        return False
    try:
        return settings.resolved_storage() != session.storage
    except AsyncpqError as error:  # the refusal is the error that is raised
        refusal.hint = f"{refusal.hint} A second call of the provider failed: {error}"
        return False


def _on_executor() -> bool:
    return "SPARK_LOCAL_DIRS" in os.environ and "SPARK_BUFFER_SIZE" in os.environ


def _memory_bytes(settings: SparkSettings) -> int:
    if settings.memory_cache_bytes is not None:
        return settings.memory_cache_bytes
    share = os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB")  # of one worker: the executor's memory divided by its cores
    return DEFAULT_MEMORY_BYTES if share is None else max(_LEAST_MEMORY, int(share) * MIB // 4)


def _disk_cache(settings: SparkSettings) -> DiskCacheOptions | None:
    if settings.disk_cache == "host" and settings.disk_cache_folder is not None:
        return DiskCacheOptions(path=settings.disk_cache_folder, max_bytes=settings.disk_cache_bytes)
    if settings.disk_cache == "off" or not _on_executor():
        return None
    local = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    return DiskCacheOptions(path=str(Path(local) / _CACHE_FOLDER), max_bytes=settings.disk_cache_bytes)


def close_all() -> None:
    """Close all sessions of the process that no call is using."""
    with _changed:
        closing = [key for key, session in _sessions.items() if not session.users]
        sessions = [_sessions.pop(key) for key in closing] if _process == os.getpid() else []
    for session in sessions:
        with suppress(AsyncpqError):
            session.close()


#: The last line of a traceback in an error message of Spark.
_RAISED: Final = re.compile(r"^(?:\s*\S*: )?asyncpq\.errors\.(\w+): (.*)$", re.MULTILINE)


def named_error(name: str, message: str) -> AsyncpqError:
    """Return an error of asyncpq's class ``name``, or an AsyncpqError if there is no such class."""
    error = getattr(errors, name, None)
    return error(message) if isinstance(error, type) and issubclass(error, AsyncpqError) else AsyncpqError(message)


@contextmanager
def raised_as_asyncpq() -> Iterator[None]:
    """Convert Spark's error into the AsyncpqError with which a task failed; other errors pass unchanged."""
    try:
        yield
    except PySparkException as failed:
        raised = list(_RAISED.finditer(str(failed)))
        if not raised:
            raise
        raise named_error(raised[-1][1], raised[-1][2]) from failed


_AGAIN: Final = (
    "The file was replaced or deleted after the read was planned. Plan again: create a new DataFrame, or restart the"
    " stream."
)
_REFRESH: Final = "The file was replaced or deleted after the index was built. Refresh the index."


def plan_again_hint(by_index: bool) -> AbstractContextManager[None]:
    """Add the hint to plan again to errors that the block raises about files that were replaced or deleted after
    planning.

    ``by_index``: an index lists the files, so the hint also names its refresh.
    """
    hint = f"{_AGAIN} If that does not help: {_REFRESH[0].lower()}{_REFRESH[1:]}" if by_index else _AGAIN
    return _hinted(hint, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError)


def refresh_hint(by_index: bool) -> AbstractContextManager[None]:
    """Add the hint to refresh the index to errors that the block raises about replaced or deleted files.

    ``by_index``: an index lists the files. If not, the errors stay as they are.
    """
    return _hinted(_REFRESH, ObjectChangedError, ObjectNotFoundError) if by_index else nullcontext()


@contextmanager
def _hinted(hint: str, *errors: type[AsyncpqError]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        error.hint = hint
        raise
