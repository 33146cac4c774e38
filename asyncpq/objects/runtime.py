"""The runtime of a session: the stores, caches, limits, threads and metrics that its reads share."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import Context
from copy import copy
from dataclasses import field
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary, ref

from cachetools import LRUCache

from asyncpq.caching.entry_format import PointerKey, storage_namespace
from asyncpq.caching.memory import MemoryCache
from asyncpq.caching.single_flight import Claims, SingleFlight
from asyncpq.caching.tiers import CacheTier, Tiers
from asyncpq.errors import AsyncpqError, DeadlineExceededError, Hint, UsageError, closed_while_reading
from asyncpq.events import Event, Operation, OperationName
from asyncpq.metrics import ReadMetrics, measuring
from asyncpq.objects.fair_threads import FairThreads
from asyncpq.objects.prices import PriceBook
from asyncpq.objects.tail_sizes import TailSizes
from asyncpq.options import SessionOptions
from asyncpq.records import NamedTuple, dataclass
from asyncpq.storage import client_module, open_store
from asyncpq.storage.base import Store, StoreLimits
from asyncpq.storage.threads import OwnersQueue, end_tasks, import_whole, is_imported
from asyncpq.storage.urls import options_for, place_of, refuse_one_slash, split_url

SLICE_S: Final = 0.005  # of one iteration of the event loop, for work that waits for its turn
_MOST_TURNS: Final = 16  # of one iteration: what waits may take ten times as long as what came before


class LoopTurns:
    """Turns on one event loop: the work of many tasks that are ready at once is spread over several of its iterations.

    A read of a lake opens a hundred files ahead. If they all come at once, planning them would keep all other tasks
    waiting for their sum. Owners (:data:`work_owner`, such as tokens of the service) have their turns one after the
    other, however many tasks of each wait.
    """

    __slots__ = ("_began_s", "_no_owner", "_num", "_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: OwnersQueue[asyncio.Future[None]] = OwnersQueue()
        # All owners wait for :meth:`_next`. A context of its own: the loops of two threads cannot be in one at once.
        self._no_owner = Context()
        self._running = False  # whether :meth:`_next` will be called in the next iteration
        # The loop's CPU time when it was called last. Times in which the loop waits for Python's lock do not count.
        self._began_s = 0.0
        self._num = 1  # turns of one iteration, so that they take about :data:`SLICE_S`

    async def turn(self) -> None:
        """Wait for an iteration with time for some milliseconds of work, in the order of the calls of one owner."""
        loop = asyncio.get_running_loop()
        if not self._running:
            self._running = True
            self._num = 1
            self._began_s = time.thread_time()
            loop.call_soon(self._next, context=self._no_owner)
        elif self._waiting or time.thread_time() - self._began_s > SLICE_S:
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        before_s, self._began_s = self._began_s, time.thread_time()
        if not self._waiting:
            self._running = False
            return
        self._num = min(self._num * 2, _MOST_TURNS) if self._began_s - before_s < SLICE_S else max(self._num // 2, 1)
        num = self._num
        while num and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                num -= 1
        loop.call_soon(self._next, context=self._no_owner)


T = TypeVar("T")

_MAX_OUTDATED = 4096
_MAX_PLAIN_FOLDERS = 4096
INLINE_STEPS = 100
FEW_CALLS = 16  # at once: the event loop runs a step of each in some milliseconds; of more, each waits for its turn


class ByteBudget:
    """A limit on the bytes that reads have fetched but not yet delivered; granted first come, first served.

    A read requests the bytes of one unit (of its fetch plan) at a time, in delivery order, and holds no lock while it
    waits. It can always take its next unit (:meth:`take`), even over the budget, so a waiting consumer is never blocked
    by other reads.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: int = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, amount: int) -> None:
        """Grant ``amount`` bytes at once, even if that exceeds the budget."""
        self.used += amount

    def request(self, amount: int) -> asyncio.Future[None]:
        """Return a future that is done when ``amount`` bytes are granted. Cancel it with :meth:`withdraw`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, future))
        self._grant()
        return future

    def withdraw(self, future: asyncio.Future[None]) -> bool:
        """Cancel a request. Return True if it was already granted: the caller then releases the bytes."""
        if future.done() and not future.cancelled():
            return True
        future.cancel()
        self._grant()
        return False

    def release(self, amount: int) -> None:
        """Give ``amount`` bytes back, for those that wait."""
        self.used -= amount
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            amount, future = self._waiting[0]
            if not future.cancelled():
                if self.used + amount > self.limit:
                    return
                self.used += amount
                future.set_result(None)
            self._waiting.popleft()


class Deadlines:
    """One timer for all deadlines of a session. All deadlines are equally long, so they expire in order.

    ``asyncio.timeout`` is not used because it sets a timer for each read. That takes about 20 Python calls, a tenth of
    the calls of a lookup in memory.
    """

    __slots__ = ("running", "timeout_s", "timer", "turns")

    def __init__(self, timeout_s: float | None, turns: LoopTurns) -> None:
        self.timeout_s: float | None = timeout_s
        self.turns = turns
        self.running: dict[Deadline, float] = {}  # when they end, by time.monotonic(); in the order of their ends
        self.timer: asyncio.TimerHandle | None = None  # set for the first deadline, or an earlier one that is over

    def arm(self) -> None:
        """Start the timer for the first deadline. The timer must not be running."""
        if self.running:
            ends = next(iter(self.running.values()))
            self.timer = asyncio.get_running_loop().call_later(max(0.0, ends - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self.timer = None
        now = time.monotonic()
        for deadline in [deadline for deadline, ends in self.running.items() if ends <= now]:
            del self.running[deadline]
            deadline.expire()
        self.arm()

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Deadline:
    """The context manager that :meth:`Runtime.deadline` returns.

    On expiry it cancels the task, and converts the cancellation to DeadlineExceededError, as ``asyncio.timeout`` does
    to TimeoutError.
    """

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_task", "_url")

    def __init__(self, deadlines: Deadlines, url: str) -> None:
        self._deadlines = deadlines
        self._url = url
        self._expired = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def expire(self) -> None:
        """Cancel the task whose deadline has passed."""
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> None:
        self._task = task = asyncio.current_task()
        deadlines = self._deadlines
        if task is not None:
            self._cancelling = task.cancelling()
            timeout_s = deadlines.timeout_s
            deadlines.running[self] = math.inf if timeout_s is None else time.monotonic() + timeout_s
            if deadlines.timer is None and timeout_s is not None:
                deadlines.arm()
        try:  # reads of what is in memory wait for nothing else: thousands would run without a pause
            await deadlines.turns.turn()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deadlines.running.pop(self, None)
        task, self._task = self._task, None  # its error's frames have this deadline
        if not self._expired or task is None:
            return
        ended = task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
        if ended or (isinstance(error, TimeoutError) and not isinstance(error, AsyncpqError)):
            raise DeadlineExceededError(
                f"the call did not end within {self._deadlines.timeout_s} s",
                url=self._url,
                hint=Hint(
                    "Raise RetryOptions.read_timeout_s if the store is slow.", "The store may be slow: try again later."
                ),
            ) from error


def _store_key(protocol: str, place: Mapping[str, Any]) -> str:
    return repr((protocol, sorted(place.items()))) if place else protocol


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return asyncio's running loop. Raises UsageError if there is none, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "no event loop of asyncio is running",
            hint="Run the coroutine with asyncio.run(...); under trio or without an event loop, use asyncpq.blocking "
            "(with trio, in a thread).",
        ) from None


class _ScopedStores(NamedTuple):
    """The stores of a runtime that :meth:`Runtime.scoped` made."""

    runtime: ref[Runtime]
    stores: dict[str, Store]


@dataclass(slots=True, eq=False)
class _Life:
    """The state that the runtime of a session shares with its copies (:meth:`Runtime.scoped`)."""

    loop: asyncio.AbstractEventLoop | None = None
    process: int = field(default_factory=os.getpid)
    closed: bool = False
    ended: bool = False  # closing has ended
    threads: FairThreads | None = None
    scoped_stores: list[_ScopedStores] = field(default_factory=list)
    unused_stores: list[dict[str, Store]] = field(default_factory=list)  # which are being closed


@dataclass(slots=True, eq=False)
class _Lease:
    """The state that a lent runtime (:meth:`Runtime.lent`) shares with its copies."""

    ended: bool = False


class Runtime:
    """The state that all files and scans of one session share; belongs to one event loop and one process.

    ``storage_options`` are fsspec's: flat, or one mapping for each protocol. ``memory`` is a cache shared with other
    sessions, by default one of the session's own; ``tiers`` are further cache tiers, nearest first.
    """

    def __init__(
        self,
        options: SessionOptions,
        storage_options: Mapping[str, Any],
        *,
        memory: MemoryCache | None = None,
        tiers: Sequence[CacheTier] = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.options = options
        self.storage_options: dict[str, Any] = dict(storage_options)
        whole = memory if memory is not None else MemoryCache(options.memory_cache_bytes)
        # footers, bounds and statistics are kept as these options have them read
        form = (options.read.int96_unit, options.read.legacy_calendar)
        self.memory: MemoryCache = whole if form == ("ns", "rebase") else whole.apart(form)
        self.tiers: Tiers = Tiers(tiers)
        self.metrics: ReadMetrics = ReadMetrics()
        self._on_event = on_event
        self._watchers: list[Callable[[Event], None]] = []
        self.tail_sizes: TailSizes = TailSizes(options.requests.tail_bytes)
        self.price_book: PriceBook = PriceBook(options.requests, options.limits)
        self.budget: ByteBudget = ByteBudget(options.limits.in_flight_bytes)
        self.flights: SingleFlight = SingleFlight()
        self.claims: Claims = Claims()
        # identity of the validator that an object was seen not to have any more
        self.outdated: LRUCache[PointerKey, tuple[object, ...]] = LRUCache(_MAX_OUTDATED)
        # urls of folders that were seen to be no tables
        self.plain_folders: LRUCache[str, bool] = LRUCache(_MAX_PLAIN_FOLDERS)
        self._stores: dict[str, Store] = {}
        self._namespaces: dict[str, str] = {}
        self.turns: LoopTurns = LoopTurns()
        self._closers: dict[int, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._life: _Life = _Life()
        self._lease: _Lease | None = None  # of :meth:`lent`
        self._scoped: WeakValueDictionary[str, Runtime] = WeakValueDictionary()
        self.scope: str = ""  # of :meth:`scoped`
        self.takes_table_options: bool = True  # loaded tables are read with their own storage options
        self._deadlines = Deadlines(options.retry.read_timeout_s, self.turns)
        self.calls: Sized = self._deadlines.running  # reads that run now

    # -- life -------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Bind the session to the running event loop."""
        if self._life.closed:
            raise UsageError("the session is closed", hint="Make a new Session.")
        loop = _running_loop()
        if self._life.loop is None:
            self._life.process = os.getpid()
        if self._life.loop is not None and self._life.loop is not loop:
            raise UsageError(
                "a Session belongs to the event loop it was entered in", hint="Make one Session for each event loop."
            )
        self._life.loop = loop

    def check(self) -> None:
        """Raise UsageError unless the session is open, and the caller runs in its event loop and process."""
        life, lease = self._life, self._lease
        if life.closed or (lease is not None and lease.ended):
            raise UsageError("the session is closed", hint="Use files and scans inside `async with Session()`.")
        loop = asyncio._get_running_loop() or _running_loop()  # noqa: SLF001
        if life.loop is not loop or life.process != os.getpid():
            raise UsageError(
                "a Session belongs to the event loop and process it was entered in"
                if self._life.loop is not None
                else "the session has not been entered",
                hint="Write `async with asyncpq.Session() as session:` in the coroutine that uses it; in a notebook, "
                "`session = await asyncpq.Session()`.",
            )

    def check_place(self, what: str, block: str) -> None:
        """Raise UsageError if ``what``, which ``block`` closes, is closed in another event loop or process than the
        session's, while the session is open."""
        if self._life.ended:
            return
        if self._life.loop is not None and (
            self._life.loop is not _running_loop() or self._life.process != os.getpid()
        ):
            raise UsageError(
                f"{what} belongs to the event loop and process it was entered in",
                hint=f"Close it there: `{block}` does.",
            )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the session, for other threads. Raises UsageError if it is not open in this process."""
        if self._life.loop is None or self._life.closed or self._life.process != os.getpid():
            raise UsageError(
                "the session is closed" if self._life.closed else "the session has not been entered in this process",
                hint="Use files and scans inside `async with Session()`.",
            )
        return self._life.loop

    async def close(self) -> None:
        """End every scan, fetch, thread and connection. Idempotent. A step that fails does not stop the others, and a
        cancelled close can be called again.

        Raises UsageError in another event loop or process than the session's, unless it was closed in its own.
        """
        if self._life.ended:
            return
        self.check_place("a Session", "async with asyncpq.Session() as session:")
        if self._lease is not None:
            self._lease.ended = True
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self.tiers.flush)
                self._push_work(stack)
            return
        self._life.closed = True
        self._deadlines.close()
        async with AsyncExitStack() as stack:  # in reverse order, each whatever the others raise
            stack.push_async_callback(self._close_threads)
            stack.push_async_callback(self.tiers.close)
            scoped = [stores for _, stores in self._life.scoped_stores]
            for stores in (self._stores, *scoped, *self._life.unused_stores):
                for store in stores.values():
                    stack.push_async_callback(store.close)
            stack.push_async_callback(self.flights.close)
            self._push_work(stack)
        self._life.ended = True

    def _push_work(self, stack: AsyncExitStack) -> None:
        """Let ``stack`` end the scans, other owners and tasks that began in this runtime."""
        stack.push_async_callback(self._close_tasks)
        for close_owner in list(self._closers.values()):
            stack.push_async_callback(close_owner)

    def lent(self) -> Runtime:
        """Return a runtime that shares all with this one. Closing it ends what was begun in it, and nothing else."""
        made = copy(self)
        made._lease = _Lease()  # noqa: SLF001
        made.metrics = ReadMetrics()
        made._closers, made._tasks, made._watchers = {}, set(), []  # noqa: SLF001
        made._scoped = WeakValueDictionary()  # noqa: SLF001
        return made

    async def _close_tasks(self) -> None:
        await end_tasks(self._tasks)

    async def _close_threads(self) -> None:
        if self._life.threads is not None:
            await self._life.threads.close()

    def register(self, owner: object, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Register ``closer``, which the session calls when it closes, to end the work of ``owner``."""
        self._closers[id(owner)] = closer

    def unregister(self, owner: object) -> None:
        """Forget ``owner``, which was closed: the session need not close it."""
        self._closers.pop(id(owner), None)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` as a task that the session ends when it closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def operation(self, name: OperationName, url: str, *sums: ReadMetrics) -> Operation:
        """Return a new, not yet begun operation, which counts the cost of a call. The cost is added to ``sums``, to
        those of the ``with measure()`` blocks that this call is in, and to the session's. ``url`` has no secret."""
        on_event = self._tell_watchers if self._watchers else self._on_event
        return Operation(name, url, (*sums, *measuring.get(), self.metrics), on_event)

    @contextmanager
    def watched(self, watcher: Callable[[Event], None]) -> Iterator[None]:
        """Call ``watcher``, in addition to the session's ``on_event``, with events of calls that begin in the ``with``
        block."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _tell_watchers(self, event: Event) -> None:
        for watcher in [*self._watchers, self._on_event]:
            if watcher is not None:
                watcher(event)

    def deadline(self, url: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that raises DeadlineExceededError after ``read_timeout_s``. The error names ``url``
        and the option."""
        return Deadline(self._deadlines, url)

    def scoped(self, scope: str, storage_options: Mapping[str, Any]) -> Runtime:
        """Return a runtime with ``storage_options`` and stores of its own, which shares all else with this one. Caches
        keep what is read through it apart, under ``scope``. The runtime of a ``scope`` is made once, while somebody
        holds it: keys may rotate for as long as a session lives.
        """
        made = self._scoped.get(scope)
        if made is None:
            self._close_unused()
            self._scoped[scope] = made = copy(self)
            made.storage_options = dict(storage_options)
            made.scope = scope
            made.plain_folders = LRUCache(_MAX_PLAIN_FOLDERS)
            made._stores, made._namespaces = {}, {}  # noqa: SLF001
            self._life.scoped_stores.append(_ScopedStores(ref(made), made._stores))  # noqa: SLF001
        return made

    def _close_unused(self) -> None:
        """Begin to close the stores of scoped runtimes that nobody holds any more."""
        life, held = self._life, []
        for scoped in life.scoped_stores:
            if scoped.runtime() is not None:
                held.append(scoped)
            else:
                life.unused_stores.append(scoped.stores)
                self.spawn(self._close_stores(scoped.stores))
        life.scoped_stores = held

    async def _close_stores(self, stores: dict[str, Store]) -> None:
        for store in stores.values():
            await store.close()
        self._life.unused_stores = [other for other in self._life.unused_stores if other is not stores]

    # -- shared resources ---------------------------------------------------------------------------

    async def store(self, url: str) -> tuple[Store, str]:
        """Return the store for ``url``, and the namespace under which caches keep its objects. Raises
        InvalidOptionError if asyncpq does not support the url, UsageError if the session was closed meanwhile."""
        refuse_one_slash(url)
        protocol, _ = split_url(url)
        if protocol not in self._stores:
            module = client_module(protocol, options_for(protocol, self.storage_options))
            if module is not None:
                await self.load(module)
        return self._store(protocol, url)

    def _store(self, protocol: str, url: str) -> tuple[Store, str]:
        place = place_of(protocol, url, self.storage_options)
        key = _store_key(protocol, place)
        if key not in self._stores:
            self._open_store(key, protocol, place)
        return self._stores[key], self._namespaces[key]

    def _open_store(self, key: str, protocol: str, place: Mapping[str, Any]) -> None:
        options = options_for(protocol, self.storage_options)
        limits = self.options.limits
        self._stores[key] = open_store(
            protocol,
            options,
            retry=self.options.retry,
            limits=StoreLimits(
                limits.max_connections, limits.max_connections - limits.lookup_connections, limits.max_listed_objects
            ),
            place=place,
        )
        shared = self.options.cache_namespace
        if self.scope:
            self._namespaces[key] = f"{shared}:{self.scope}" if shared else self.scope
        else:
            self._namespaces[key] = shared or storage_namespace(protocol, {**options, **place})

    async def load(self, module: str) -> None:
        """Import a module in a thread, as that may take some tenths of a second. Raises UsageError if the session
        was closed meanwhile."""
        if not is_imported(module):
            await self.in_thread(partial(import_whole, module))
            if self._life.closed:
                raise closed_while_reading()

    def wrap_store(self, url: str, wrap: Callable[[Store], Store]) -> None:
        """Replace the store for the protocol of ``url`` by ``wrap(store)``, for objects that are opened from now on."""
        protocol, _ = split_url(url)
        store, _ = self._store(protocol, url)
        self._stores[_store_key(protocol, place_of(protocol, url, self.storage_options))] = wrap(store)

    async def off_loop(self, work: Callable[[], T], steps: int) -> T:
        """Run ``work`` and return its result: in a thread if it would block the event loop too long. ``steps`` is its
        size in steps of about 20 microseconds, such as column chunks. Short work can skip this call."""
        return work() if steps <= INLINE_STEPS else await self.in_thread(work)

    async def in_thread(self, work: Callable[[], T], *, small: bool = False) -> T:
        """Run ``work`` in the session's decode threads and return its result. It runs in the caller's thread if the
        session has no such threads, or if the work is ``small``, so that the handover would take longer."""
        threads = self.options.limits.decode_threads
        if threads == 0 or small:
            return work()
        if self._life.closed:
            raise closed_while_reading()
        if self._life.threads is None:
            self._life.threads = FairThreads(threads, "asyncpq-decode")
        return await self._life.threads.run(work)

    async def in_threads(self, works: Sequence[Callable[[], T]], threads: int) -> list[T]:
        """Run ``works`` in up to ``threads`` decode threads, started in their order; return their results in order. If
        some fail, raise the error of the first of these in order."""
        todo = deque(enumerate(works))
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}

        def run() -> None:
            while todo and not errors:
                try:
                    number, work = todo.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    results[number] = work()
                except Exception as error:  # noqa: BLE001
                    errors[number] = error

        await asyncio.gather(*[self.in_thread(run) for _ in range(max(1, min(threads, len(works))))])
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(works))]


class HasRuntime(Protocol):
    """An :class:`asyncpq.Session`."""

    _runtime: Runtime


def runtime_of(session: HasRuntime) -> Runtime:
    """Return the stores, caches, limits and threads of a session, for asyncpq's own modules."""
    return session._runtime  # noqa: SLF001  # users have no need of it
