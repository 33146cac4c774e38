"""asyncpq for code without an event loop: scripts, notebooks, threads.

::

    with asyncpq.blocking.Session() as session:
        file = session.open_file("s3://bucket/trips.parquet")
        table = file.lookup({"id": 42})
        for batch in file.scan(columns=["id"]):
            ...

    with asyncpq.blocking.open_file("trips.parquet") as file:  # one file, once
        print(file.count())

Each session runs one event loop in a thread of its own; every method waits for its asynchronous counterpart there.
The classes have the names of their counterparts in :mod:`asyncpq`; messages and tracebacks call them ``BlockingFile``
and so on.
``open_file`` and ``open_dataset`` share a session with all such calls of the process that have equal options.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
)

import pyarrow as pa

from asyncpq.caching.memory import MemoryCache
from asyncpq.dataset import Dataset as AsyncDataset
from asyncpq.datasets.dataset_files import DatasetScan as AsyncDatasetScan
from asyncpq.datasets.model import View
from asyncpq.datasets.providers import SkippedFile
from asyncpq.errors import UsageError
from asyncpq.file import File as AsyncFile
from asyncpq.indexing.index import Index as AsyncIndex
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.loop_threads import Portal
from asyncpq.opening import one_off
from asyncpq.opening.keywords import (
    DatasetSessionKeywords,
    OptionKeywords,
    SessionKeywords,
    SessionSignature,
    split_keywords,
)
from asyncpq.parquet.embedded_index import EmbeddedIndexEntry
from asyncpq.scan.arrow_stream import stream_capsule
from asyncpq.scan.foreign_names import foreign_name
from asyncpq.scan.stream import RecordBatchStream, reader_of
from asyncpq.scan.stream import Scan as AsyncScan
from asyncpq.session import Session as AsyncSession
from asyncpq.storage.base import Validator

if TYPE_CHECKING:
    from asyncpq.typing import DatasetTarget, DecryptionProperties, IndexChoice

__all__ = ["Dataset", "DatasetScan", "File", "Index", "Scan", "Session", "open_dataset", "open_file"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B", bound="_Bridge[Any]")
S = TypeVar("S", bound=RecordBatchStream)
Q = TypeVar("Q", AsyncFile, AsyncDataset)


class _PlainWith:
    """Base of what a plain ``with`` enters: ``async with`` raises a UsageError that says so."""

    if not TYPE_CHECKING:  # type checkers find this mistake themselves

        def __aenter__(self) -> NoReturn:
            raise UsageError(
                "asyncpq.blocking needs a plain `with`, but was used in `async with`",
                hint="In an event loop, use the same name of asyncpq.",
            )

        def __aexit__(self, *exc_info: object) -> None:
            """Do nothing: ``async with`` needs this method, or it fails before ``__aenter__`` can raise its error."""


class _Bridge(_PlainWith, Generic[A]):
    """The blocking form of an asynchronous object, whose methods run in the session's event loop."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self.asynchronous = inner

    def __repr__(self) -> str:
        return f"Blocking{self.asynchronous!r}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied, as its session's thread and connections "
            "belong to this process. Pass on the url and the session's options, and open it again in the other process."
        )


#: What the text of an asynchronous method says, and what the text of its blocking form says instead.
_WORDS: Final = (
    ("async with file.scan(...) as scan: async for batch in scan", "for batch in file.scan(...)"),
    ("async with dataset.scan(...) as scan: async for batch in scan", "for batch in dataset.scan(...)"),
    ("async with ", "with "),
    ("async for ", "for "),
    ("await ", ""),
)


def _like(method: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that gives a function the name, arguments and text of ``method``, as they are without an
    event loop."""

    def named(call: Callable[P, T]) -> Callable[P, T]:
        made = cast("Callable[P, T]", wraps(method)(call))
        if made.__doc__ is not None:  # as with python -OO
            for asynchronous, blocking in _WORDS:
                made.__doc__ = made.__doc__.replace(asynchronous, blocking)
        return made

    return named


def _bridged(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Bridge[A], P], T]:
    """Return the blocking form of an async method, with the same name and arguments."""

    @_like(method)
    def call(self: _Bridge[A], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(method(self.asynchronous, *args, **kwargs))

    return cast("Callable[Concatenate[_Bridge[A], P], T]", call)


def _scanning(
    method: Callable[Concatenate[A, P], T], kind: Callable[[Portal, Callable[[], T]], B]
) -> Callable[Concatenate[_Bridge[A], P], B]:
    """Return the blocking form of the method ``scan``, with the same arguments. ``kind`` is the class of its result,
    such as :class:`BlockingScan`."""

    @_like(method)
    def call(self: _Bridge[A], *args: P.args, **kwargs: P.kwargs) -> B:
        return kind(self._portal, lambda: method(self.asynchronous, *args, **kwargs))

    return cast("Callable[Concatenate[_Bridge[A], P], B]", call)


def _opening(
    method: Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, T]], bridge: Callable[[Portal, T], B]
) -> Callable[Concatenate[_Bridge[AsyncSession], P], B]:
    """Return the blocking form of a method of Session that opens something. ``bridge`` is the class of its result, such
    as :class:`BlockingFile`.

    Arguments may be blocking objects, such as an index.
    """

    @_like(method)
    def call(self: _Bridge[AsyncSession], *args: P.args, **kwargs: P.kwargs) -> B:
        work = cast("Callable[..., Coroutine[Any, Any, T]]", method)
        inner = {name: _inner(value) for name, value in kwargs.items()}
        return bridge(self._portal, self._portal.call(work(self.asynchronous, *args, **inner)))

    return cast("Callable[Concatenate[_Bridge[AsyncSession], P], B]", call)


def _inner(value: object) -> object:
    """Return the asynchronous object behind a blocking object, also for each item of a list; anything else
    unchanged."""
    if isinstance(value, (list, tuple)):
        return [_inner(item) for item in value]
    return value.asynchronous if isinstance(value, _Bridge) else value


class _OneOff(_PlainWith, AbstractContextManager[T], Generic[T]):
    """The result of ``open_file(...)`` or ``open_dataset(...)``: a context manager."""

    def __init__(self, name: str, inner: AbstractContextManager[T]) -> None:
        self._name = name
        self._inner = inner

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"asyncpq.blocking.{self._name}(...) cannot be pickled or copied: call it in each process")

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers find this mistake themselves

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # copy, pickle and inspect look for such names
                raise AttributeError(name)
            raise one_off.not_entered(f"asyncpq.blocking.{self._name}", name, "with")


def _one_off(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    enter = contextmanager(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _OneOff(function.__name__, enter(*args, **kwargs))

    return call


class _Attribute(Generic[A, T]):
    """A read-only attribute of a blocking object. ``read`` gets its value from the asynchronous object, ``source`` is
    the asynchronous property, whose type and text ``help()`` shows, or that text."""

    def __init__(self, read: Callable[[A], T], source: object) -> None:
        self._read = read
        if isinstance(source, property):
            source = f"{source.fget.__annotations__['return']}: {source.__doc__}"
        self.__doc__ = cast("str", source)

    def __get__(self, bridge: _Bridge[A] | None, owner: object) -> T:
        if bridge is None:  # pydoc and inspect ask the class
            return cast("T", self)
        return self._read(bridge.asynchronous)

    def __set__(self, bridge: _Bridge[A], value: object) -> NoReturn:
        raise AttributeError("the attribute is read-only")


class _Batches(_Bridge[S]):
    """A stream of record batches, for iteration, with or without a ``with`` block, and for readers of Arrow streams.

    Outside of a ``with`` block each iteration and each stream is a read of its own; inside, all share one read.
    """

    def __init__(self, portal: Portal, make: Callable[[], S]) -> None:
        async def made() -> S:
            stream = make()
            portal.streams.add(stream)
            return stream

        self._make: Callable[[], Coroutine[Any, Any, S]] = made
        self._inside = False
        self._taking = threading.Lock()
        self._closing: weakref.finalize[..., Any] | None = None  # of a read that was entered and not yet given away
        super().__init__(portal, portal.call(made()))

    if not TYPE_CHECKING:
        __getattr__ = foreign_name

    metrics: Final = _Attribute[Any, ReadMetrics](
        lambda inner: inner.metrics, "Cost of the read so far, an :class:`asyncpq.ReadMetrics`."
    )

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches. Outside of a ``with`` block, this plans the read of the next iteration.

        Raises:
            AsyncpqError: the arguments of the scan do not fit, or planning failed.
        """
        with self._turn():
            self._enter()
            return self.asynchronous.schema

    def __enter__(self) -> Self:
        with self._turn():
            self._inside = True
            if self._closing is None:
                self._portal.call(self.asynchronous.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the scan. Does nothing if it has ended or the session is closed."""
        self._portal.finish(self.asynchronous.close)

    def end_soon(self) -> None:
        """End the scan without waiting: for finalizers, which the garbage collector runs in any thread."""
        self._portal.post(self.asynchronous.close)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        inner = self._take()
        try:
            while True:
                try:
                    yield self._portal.call(inner.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if not self._inside:
                self._portal.post(inner.close)  # this may be the garbage collector, in any thread

    def to_table(self) -> pa.Table:
        """Return the rows as one table; inside a ``with`` block, the rows that were not returned yet.

        Raises:
            AsyncpqError: reading failed.
        """
        return self._portal.call(self._take().to_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches as a pyarrow.RecordBatchReader, which raises asyncpq's errors.

        Outside of a ``with`` block, dropping the reader ends the read.
        """
        inner = self._take()

        async def make() -> pa.RecordBatchReader:
            return reader_of(inner, closes=not self._inside)

        return self._portal.call(make())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return an Arrow PyCapsule stream, for pyarrow, Polars and DuckDB: batches are fetched when they are consumed.

        Raises:
            QueryError: the consumer requests a schema that the batches cannot be cast to.
        """
        return stream_capsule(self.to_reader(), requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return an Arrow PyCapsule of the schema of the batches."""
        return self.schema.__arrow_c_schema__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        """Raise UsageError: pandas and NumPy would take each batch for a row."""
        raise UsageError(
            "a scan cannot become a NumPy array: it is a stream of Arrow batches, not of rows",
            hint="Write scan.to_table().to_pandas(), or iterate the scan and convert each batch.",
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one thread at a time start a read of this scan, so that each gets a read of its own."""
        self._portal.check()  # the loop's thread must not wait for one that waits for the loop
        with self._taking:
            yield

    def _enter(self) -> None:
        """Start the read for the next iteration. It ends at the latest when this scan is garbage-collected."""
        inner = self.asynchronous
        if not inner.entered:
            self._portal.call(inner.__aenter__())
            self._closing = weakref.finalize(self, self._portal.post, inner.close)

    def _take(self) -> S:
        """Return a read that has started: inside a ``with`` block the shared one, else one that the caller must end."""
        with self._turn():
            if self._inside:
                return self.asynchronous
            if self.asynchronous.entered and self._closing is None:
                self.asynchronous = self._portal.call(self._make())
            self._enter()
            if self._closing is not None:
                self._closing.detach()
                self._closing = None
            return self.asynchronous


class BlockingScan(_Batches[AsyncScan]):
    """A stream of the batches of one file's rows; see :class:`asyncpq.Scan`. Made by ``scan``.

    Outside of a ``with`` block each iteration and each stream is a read of its own; inside, all share one read.
    """


class BlockingDatasetScan(_Batches[AsyncDatasetScan]):
    """A stream of the batches of a dataset's rows; see :class:`asyncpq.DatasetScan`. Made by ``scan``.

    Outside of a ``with`` block each iteration and each stream is a read of its own; inside, all share one read.
    """

    skipped: Final = _Attribute[AsyncDatasetScan, list[SkippedFile]](
        lambda inner: inner.skipped, AsyncDatasetScan.skipped
    )


class _BlockingReads(_Bridge[Q]):
    """The blocking form of a file or dataset, for use with or without a ``with`` block."""

    url: Final = _Attribute[Any, str](
        lambda inner: inner.url, "Url of the object, prefix, pattern or table, without user info, query and secrets."
    )
    schema: Final = _Attribute[Any, pa.Schema](
        lambda inner: inner.schema, "The Arrow schema of the rows, partition columns included."
    )
    metrics: Final = _Attribute[Any, ReadMetrics](
        lambda inner: inner.metrics,
        "Summed costs, an :class:`asyncpq.ReadMetrics`, of the calls of this handle that have ended, whether they "
        "returned or raised.",
    )
    opening: Final = _Attribute[Any, ReadMetrics | None](
        lambda inner: inner.opening,
        "Cost of opening the file or dataset, an :class:`asyncpq.ReadMetrics`, which ``metrics`` leaves out.",
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing: only a file has something to close."""

    if not TYPE_CHECKING:
        __getattr__ = foreign_name

    def _repr_html_(self) -> str | None:
        async def drawn() -> str | None:
            return self.asynchronous._repr_html_()

        return self._portal.call(drawn())


class BlockingFile(_BlockingReads[AsyncFile]):
    """A Parquet object, open for reading with blocking methods; see :class:`asyncpq.File`. Made by
    :meth:`Session.open_file`.

    Its methods wait for their results, without ``await``: ``for batch in file.scan(...)``."""

    scan: Final = _scanning(AsyncFile.scan, BlockingScan)
    lookup: Final = _bridged(AsyncFile.lookup)
    read: Final = _bridged(AsyncFile.read)
    take: Final = _bridged(AsyncFile.take)
    count: Final = _bridged(AsyncFile.count)
    plan: Final = _bridged(AsyncFile.plan)
    why: Final = _bridged(AsyncFile.why)
    refresh: Final = _bridged(AsyncFile.refresh)
    embedded_index: Final = _bridged(AsyncFile.embedded_index)
    inspect: Final = _bridged(AsyncFile.inspect)
    lint: Final = _bridged(AsyncFile.lint)
    num_rows: Final = _Attribute[AsyncFile, int](lambda inner: inner.num_rows, AsyncFile.num_rows)
    num_row_groups: Final = _Attribute[AsyncFile, int](lambda inner: inner.num_row_groups, AsyncFile.num_row_groups)
    version: Final = _Attribute[AsyncFile, Validator](lambda inner: inner.version, AsyncFile.version)
    embedded_indexes: Final = _Attribute[AsyncFile, Mapping[str, EmbeddedIndexEntry]](
        lambda inner: inner.embedded_indexes, AsyncFile.embedded_indexes
    )

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle, and with it the descriptor of a local file. Does nothing if it or the session is closed."""
        self._portal.finish(self.asynchronous.close)


class BlockingDataset(_BlockingReads[AsyncDataset]):
    """A dataset of many Parquet files, with blocking methods; see :class:`asyncpq.Dataset`. Made by
    :meth:`Session.open_dataset`.

    Its methods wait for their results, without ``await``: ``for batch in dataset.scan(...)``."""

    scan: Final = _scanning(AsyncDataset.scan, BlockingDatasetScan)
    lookup: Final = _bridged(AsyncDataset.lookup)
    read: Final = _bridged(AsyncDataset.read)
    take: Final = _bridged(AsyncDataset.take)
    count: Final = _bridged(AsyncDataset.count)
    plan: Final = _bridged(AsyncDataset.plan)
    why: Final = _bridged(AsyncDataset.why)
    files: Final = _bridged(AsyncDataset.files)
    inspect: Final = _bridged(AsyncDataset.inspect)
    lint: Final = _bridged(AsyncDataset.lint)
    view: Final = _Attribute[AsyncDataset, View](lambda inner: inner.view, AsyncDataset.view)
    description: Final = _Attribute[AsyncDataset, str](lambda inner: inner.description, AsyncDataset.description)
    skipped: Final = _Attribute[AsyncDataset, list[SkippedFile]](
        lambda inner: inner.skipped, 'Bad files that the call that ended last left out, if ``on_bad_file`` is "skip".'
    )


class BlockingIndex(_Bridge[AsyncIndex]):
    """An index of a dataset's files, with blocking methods; see :class:`asyncpq.indexing.Index`. Made by
    :meth:`Session.build_index` and :meth:`Session.open_index`."""

    refresh: Final = _bridged(AsyncIndex.refresh)
    compact: Final = _bridged(AsyncIndex.compact)
    vacuum: Final = _bridged(AsyncIndex.vacuum)
    verify: Final = _bridged(AsyncIndex.verify)
    show: Final = _bridged(AsyncIndex.show)
    drop: Final = _bridged(AsyncIndex.drop)

    url: Final = _Attribute[AsyncIndex, str](lambda inner: inner.url, AsyncIndex.url)
    snapshot: Final = _Attribute[AsyncIndex, int](lambda inner: inner.snapshot, AsyncIndex.snapshot)
    metrics: Final = _Attribute[AsyncIndex, ReadMetrics](
        lambda inner: inner.metrics,
        "Summed costs of the calls of this handle that have ended, its build or opening included.",
    )


class BlockingSession(_Bridge[AsyncSession]):
    """A session with blocking methods and the arguments of :class:`asyncpq.Session`. Close it, or use ``with``.

    Several threads may use one session, its files and its datasets at once. ``on_event`` is called in the session's own
    thread, where the blocking methods raise UsageError.
    """

    __signature__ = SessionSignature()

    def __init__(self, storage_options: Mapping[str, Any] | None = None, **options: Unpack[OptionKeywords]) -> None:
        inner = AsyncSession(storage_options, **options)
        super().__init__(Portal(end=inner.close), inner)
        try:
            self._portal.call(inner.__aenter__())
        except BaseException:
            self._portal.close()
            raise

    open_file: Final = _opening(AsyncSession.open_file, BlockingFile)
    open_dataset: Final = _opening(AsyncSession.open_dataset, BlockingDataset)
    build_index: Final = _opening(AsyncSession.build_index, BlockingIndex)
    open_index: Final = _opening(AsyncSession.open_index, BlockingIndex)
    optimize: Final = _bridged(AsyncSession.optimize)
    diagnose: Final = _bridged(AsyncSession.diagnose)

    if not TYPE_CHECKING:
        __getattr__ = foreign_name

    metrics: Final = _Attribute[AsyncSession, ReadMetrics](lambda inner: inner.metrics, AsyncSession.metrics)

    memory_cache: Final = _Attribute[AsyncSession, MemoryCache](
        lambda inner: inner.memory_cache, AsyncSession.memory_cache
    )

    def progress(self) -> AbstractContextManager[None]:
        """Show the progress of the calls in the ``with`` block; see :meth:`asyncpq.Session.progress`."""
        return self.asynchronous.progress()

    def cache_counters(self) -> dict[str, dict[str, int]]:
        """Return the counters of the disk and shared cache; see :meth:`asyncpq.Session.cache_counters`."""
        return self.asynchronous.cache_counters()

    @property
    def closed(self) -> bool:
        """Whether the session is closed, or belongs to the parent of this forked process."""
        return self._portal.closed

    def close(self) -> None:
        """End the session, its event loop and its thread. Idempotent. Called in a session's own thread, as in
        ``on_event``, it does not wait for the end."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


# What users call them.
Session = BlockingSession
File = BlockingFile
Dataset = BlockingDataset
Index = BlockingIndex
Scan = BlockingScan
DatasetScan = BlockingDatasetScan


# -- one session for all one-off calls with equal options ------------------------------------------


class OneOffSession(BlockingSession):
    """A use of the session that all one-off calls of this process with equal ``options`` share: of its connections,
    memory cache and thread.

    Closing or dropping it ends the scans that it has begun. The shared session stays open for the next call, unless the
    ``with`` block failed: what the session knows of credentials and stores may be the reason.
    """

    def __init__(self, options: SessionKeywords) -> None:
        key = one_off.options_key(options)
        with _sharing:
            shared = _shared_sessions.get(key)
            portal = None if shared is None or shared.closed else shared.portal()
        if shared is None or portal is None:
            made = _SharedSession(key, options)  # without the lock, as it takes time
            with _sharing:
                shared = _shared_sessions.get(key)
                if shared is None or shared.closed:
                    shared = _shared_sessions[key] = made
                portal = shared.portal()
            if shared is not made:  # another thread was faster
                made.close()
        self._shared = shared
        _Bridge.__init__(self, portal, shared.asynchronous)
        weakref.finalize(self, portal.post, portal.leave).atexit = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception):
            self.retire()
        self.close()

    def retire(self) -> None:
        """Let later calls make another session."""
        self._shared.retire()


class _SharedSession(BlockingSession):
    """A session with several users, each of whom has a portal of its own to the session's thread."""

    def __init__(self, key: Hashable, options: SessionKeywords) -> None:
        super().__init__(**options)
        self.users: set[Portal] = set()
        self.used_at: float = time.monotonic()
        self._key = key
        self._portal.post(self._end_when_idle)

    @property
    def is_shared(self) -> bool:
        """Whether it is given to new users."""
        return _shared_sessions.get(self._key) is self

    def portal(self) -> Portal:
        """Return the portal of a new user. Called with the lock."""

        async def end() -> None:
            try:
                for stream in list(portal.streams):
                    await stream.close()
            finally:
                with _sharing:
                    self.users.discard(portal)
                    self.used_at = time.monotonic()
                    _retire_surplus()
                    is_last = not self.users and not self.is_shared
                if is_last:
                    await self._portal.leave()

        portal = Portal(end=end, beside=self._portal)
        self.users.add(portal)
        return portal

    def retire(self) -> None:
        """Do not give the session to new users, and end it with its last one."""
        with _sharing:
            if self.is_shared:
                del _shared_sessions[self._key]
                if not self.users:
                    self._portal.post(self._portal.leave)

    async def _end_when_idle(self) -> None:
        while not self.closed:
            await asyncio.sleep(one_off.IDLE_S)
            with _sharing:
                if not self.users and time.monotonic() - self.used_at >= one_off.IDLE_S:
                    self.retire()


def _retire_surplus() -> None:
    idle = [session for session in _shared_sessions.values() if not session.users and not session.closed]
    for session in sorted(idle, key=lambda session: session.used_at)[: -one_off.MOST_IDLE]:
        session.retire()


def _end_shared() -> None:
    """End the shared sessions of this process, for tests that look at what is left."""
    with _sharing:
        ended = [session for session in _shared_sessions.values() if not session.closed]
        _shared_sessions.clear()
    for session in ended:
        session.close()


_shared_sessions: dict[Hashable, _SharedSession] = {}
_sharing = threading.RLock()  # a finalizer may need it in the midst of its holder
if hasattr(os, "register_at_fork"):  # no thread of the parent holds it in the child
    os.register_at_fork(before=_sharing.acquire, after_in_parent=_sharing.release, after_in_child=_sharing.release)


@_one_off
def open_dataset(
    target: DatasetTarget,
    *,
    index: IndexChoice = None,
    view: Literal["snapshot", "listed", "table"] | None = None,
    **options: Unpack[DatasetSessionKeywords],
) -> Iterator[BlockingDataset]:
    """Open a dataset for one-off use: ``with asyncpq.blocking.open_dataset(url) as dataset``.

    It shares a session as :func:`open_file` does.

    Args:
        target, index, view: as in :meth:`asyncpq.Session.open_dataset`.
        options: the other arguments of :meth:`asyncpq.Session.open_dataset`, and those of :class:`asyncpq.Session`.
    """
    session_options, dataset_options = split_keywords(options)
    with OneOffSession(session_options) as session:
        yield session.open_dataset(target, index=index, view=view, **dataset_options)


@_one_off
def open_file(
    url: str | os.PathLike[str],
    *,
    decryption_properties: DecryptionProperties | None = None,
    **session_options: Unpack[SessionKeywords],
) -> Iterator[BlockingFile]:
    """Open one file for one-off use: ``with asyncpq.blocking.open_file(url) as file``.

    All such calls of this process with equal session options share one session with its caches and connections, which
    ends 30 seconds after the last one. The file has the version of the time of the call. Arguments
    are those of :func:`asyncpq.open_file`, errors those of :meth:`Session.open_file`.
    """
    with (
        OneOffSession(session_options) as session,
        session.open_file(url, decryption_properties=decryption_properties) as file,
    ):
        opening = file.asynchronous.opening
        if opening is not None and not opening.requests:  # the caches had it
            file.refresh()
        yield file
