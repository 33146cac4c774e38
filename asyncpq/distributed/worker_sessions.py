"""Share one asyncpq session and event loop among all tasks of a process whose settings make the same session.

A worker process runs many tasks, so the caches of its session serve all of them. The event loop runs in a thread of
the process, since tasks have none.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.errors import AsyncpqError, CredentialsError, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError
from asyncpq.objects.loop_threads import Portal
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.options import SessionOptions
from asyncpq.session import Session

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: A read that starts when it is entered, and iterates over batches.
BatchStream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[pa.RecordBatch]]

_KEPT: Final = 4  # idle sessions that stay open


class WorkerSettings(Protocol):
    """How worker processes open the session that their tasks share. Picklable, and part of each task.

    :class:`WorkerOptions` implements it, and is enough for most engines. Implement it yourself if workers get their
    credentials in another way, as :class:`asyncpq.spark.SparkSettings` does. asyncpq calls the methods on the worker.
    """

    @property
    def identity(self) -> Hashable:
        """Key of the session: settings with equal keys share one in each process. Never shown: it may hold secrets."""

    def resolved_storage(self) -> dict[str, Any]:
        """Return the storage options, as of :class:`asyncpq.Session`, with current credentials. Called before
        :meth:`session`, and again after the store refused them. Raises CredentialsError if there are none."""

    def session(self, storage: Mapping[str, Any]) -> Session:
        """Return a new session with these storage options, not entered. asyncpq enters it, shares it among the tasks of
        the process, and closes it (:func:`close_workers`)."""

    def local_folder(self) -> str | None:
        """Return the path of the worker's folder for temporary files; None for the system's."""

    def refusal_hint(self) -> str:
        """Return a sentence that says where to put credentials. If a task raises a CredentialsError, since the store
        refused them, asyncpq sets it as the error's ``hint`` (:class:`asyncpq.AsyncpqError`)."""

    def task_ended(self) -> None:
        """Called after each use of the session, also one that failed, for cleanup. May do nothing."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of the session that workers open: those of the planner's session, without disk and shared cache.

    Pass one as ``worker`` of a planner such as :func:`plan_scan`. asyncpq calls its methods, which are those of
    :class:`WorkerSettings`.

    Attributes:
        storage_options: as of :class:`asyncpq.Session`. They are pickled with each task, secrets included; leave
            secrets out if the workers' environment has the credentials.
        options: the other options of the session, an :class:`asyncpq.options.SessionOptions`.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: SessionOptions = field(default_factory=SessionOptions)

    @property
    def identity(self) -> Hashable:
        """Key of the session: its options, pickled."""
        return pickle.dumps((self.storage_options, self.options))

    def resolved_storage(self) -> dict[str, Any]:
        """Return ``storage_options``."""
        return dict(self.storage_options)

    def session(self, storage: Mapping[str, Any]) -> Session:
        """Return a new session with ``options``, not entered."""
        return Session(storage, **{item.name: getattr(self.options, item.name) for item in fields(SessionOptions)})

    def local_folder(self) -> None:
        """Return None: temporary files are in the system's folder."""

    def refusal_hint(self) -> str:
        """Return the ``hint`` of the CredentialsError of a task: to put the credentials into ``storage_options``, or
        into the environment of the workers."""
        return "Put the credentials into storage_options, or into the environment of the workers."

    def task_ended(self) -> None:
        """Do nothing."""


def worker_options(runtime: Runtime) -> WorkerOptions:
    """Return the options of the session to which ``runtime`` belongs, without the shared cache, whose url may have a
    password, and the disk cache, whose folder is on this host."""
    options = replace(runtime.options, disk_cache=None, shared_cache=None)
    return WorkerOptions(storage_options=runtime.storage_options, options=options)


class ProcessSession:
    """A session with an event loop of its own, which threads of the process may share."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.users = 0  # calls in progress
        self.dropped = False  # no further call gets this session
        self.storage: dict[str, Any] = settings.resolved_storage()
        self._session = settings.session(self.storage)
        runtime_of(self._session).takes_table_options = False  # tasks open files of a table with the settings alone
        self._portal = Portal(end=lambda: self._session.close())
        try:
            self._portal.call(self._session.__aenter__())
        except BaseException:
            self._portal.close()
            raise

    def call(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that ``work(session)`` returns in the session's loop, wait, and return its result."""
        return self._portal.call(work(self._session))

    def counts(self) -> dict[str, int]:
        """Return the counts of all reads of the session that have ended."""
        counts = self._session.metrics.counts()
        return {name: value for name, value in counts.items() if isinstance(value, int)}

    def close(self) -> None:
        """Close the session, its loop and its thread."""
        self._portal.close()


def run_on_worker(
    settings: WorkerSettings,
    work: Callable[[Session], Coroutine[Any, Any, T]],
    *,
    repeatable: Callable[[], bool] = lambda: True,
) -> T:
    """Run ``work`` with the session of this process for ``settings``, wait, and return its result. For work on workers
    that no task of asyncpq does, such as :meth:`PlannedChunk.of`.

    Args:
        settings: how the session is opened; calls with equal settings share it.
        work: called with the session, returns a coroutine, which runs in the session's event loop. It runs a second
            time if the store refuses the credentials and ``settings`` now return others.
        repeatable: returns whether ``work`` may run a second time; always, by default.

    Raises:
        CredentialsError: there are no credentials, or the store refused them. Errors of ``work`` pass unchanged.
    """

    def once(session: ProcessSession) -> Iterator[T]:
        yield session.call(work)

    (result,) = _repeated(settings, once, repeatable)
    return result


def batches_on_worker(
    settings: WorkerSettings, make: Callable[[Session], Awaitable[BatchStream]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a read, which runs ahead of them within the limits of the session.

    ``make`` returns the read, which is entered and exited here. If the credentials expire before the first batch, the
    read starts again with new ones, as in :func:`run_on_worker`.
    """
    return _repeated(settings, lambda session: _iterate(session, make), lambda: True)


def _repeated(
    settings: WorkerSettings, read: Callable[[ProcessSession], Iterator[T]], repeatable: Callable[[], bool]
) -> Iterator[T]:
    """Yield the items that ``read`` yields with this process's session for ``settings``.

    ``read`` runs a second time if it raised a CredentialsError before its first item, ``repeatable()`` returns True,
    and the settings have new credentials.
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
            error.hint = settings.refusal_hint()
            if is_last or is_begun or not repeatable() or not _renewed(settings, session, error):
                raise
        finally:
            _give_back(session)
            settings.task_ended()


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


def worker_counts() -> dict[str, int]:
    """Return the costs of all ended reads in the open worker sessions of this process, summed: numbers by the name of
    the attribute of :class:`asyncpq.ReadMetrics`. Empty if no session is open."""
    with _changed:
        of_all = [session.counts() for session in _sessions.values()]
    names = dict.fromkeys(name for counted in of_all for name in counted)
    return {name: sum(counted[name] for counted in of_all) for name in names}


# -- which session --------------------------------------------------------------------------------

_sessions: OrderedDict[Hashable, ProcessSession] = OrderedDict()
_building: set[Hashable] = set()  # keys of sessions that a thread is making
_changed = threading.Condition()
_process = os.getpid()


def _take(settings: WorkerSettings) -> ProcessSession:
    """Return the session for these settings, made if necessary, and count the caller as its user."""
    key = settings.identity
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


def _known(key: Hashable) -> ProcessSession | None:
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


def _renewed(settings: WorkerSettings, session: ProcessSession, refusal: CredentialsError) -> bool:
    """Return whether the settings now have other storage options than those of ``session``; False if they fail to
    get them, which is added to the hint of ``refusal``."""
    try:
        return settings.resolved_storage() != session.storage
    except AsyncpqError as error:  # the refusal is the error that is raised
        failed = f"A second attempt to get credentials failed: {error}"
        refusal.hint = failed if refusal.hint is None else f"{refusal.hint} {failed}"
        return False


def close_workers() -> None:
    """Close all sessions that tasks opened in this process and no call is using. A later task opens a new one."""
    with _changed:
        closing = [key for key, session in _sessions.items() if not session.users]
        sessions = [_sessions.pop(key) for key in closing] if _process == os.getpid() else []
    for session in sessions:
        with suppress(AsyncpqError):
            session.close()


_REFRESH: Final = "The file was replaced or deleted after the index was built. Refresh the index."


def plan_again_hint(again: str, by_index: bool) -> AbstractContextManager[None]:
    """Add the hint to plan again to errors of the block about files that were replaced or deleted after planning.

    ``again``: how to plan again. ``by_index``: an index lists the files, so the hint also names its refresh.
    """
    hint = f"The file was replaced or deleted after the read was planned. Plan again: {again}"
    hint += f" If that does not help: {_REFRESH[0].lower()}{_REFRESH[1:]}" if by_index else ""
    return _hinted(hint, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError)


def refresh_hint(by_index: bool) -> AbstractContextManager[None]:
    """Return a context manager that sets ``hint`` of each ObjectChangedError and ObjectNotFoundError of its block: the
    file was replaced or deleted after the index was built, which has to be refreshed.

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
