"""``async with asyncpq.open_file(...)``: one-off calls, the sessions that they share, and an error for other uses.

The one-off calls of an event loop with equal options share a session: its connections, caches and threads. It stays
open for a while without users, for the next call, and ends with its loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakValueDictionary

from asyncpq.errors import UsageError

if TYPE_CHECKING:
    from asyncpq.opening.keywords import SessionKeywords
    from asyncpq.session import Session

T = TypeVar("T")

#: How long a shared session without users stays open, for the next one-off call.
IDLE_S: Final = 30.0
#: The most shared sessions without users that stay open.
MOST_IDLE: Final = 4


class OneOff(AbstractAsyncContextManager[T], Generic[T]):
    """The result of ``asyncpq.open_file(...)`` or ``open_dataset(...)``: an async context manager, which raises a
    UsageError with a hint if it is awaited or used in a plain ``with``.

    ``enter`` returns what was opened; leaving the block closes what it has put on the stack. (It is no async generator,
    since asyncio ends all suspended ones at once, also one inside of another.)
    """

    def __init__(self, name: str, enter: Callable[[AsyncExitStack], Awaitable[T]]) -> None:
        self._name = name
        self._enter = enter
        self._stack = AsyncExitStack()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"asyncpq.{self._name}(...) cannot be pickled or copied: call it in each process")

    async def __aenter__(self) -> T:
        try:
            return await self._enter(self._stack)
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves

        def __await__(self) -> Generator[Any, Any, NoReturn]:
            raise UsageError(
                f"asyncpq.{self._name}(...) is a context manager and cannot be awaited",
                hint=f"Write `async with asyncpq.{self._name}(...) as opened:`, or `await session.{self._name}(...)` "
                "in a Session that stays open.",
            )

        def __enter__(self) -> NoReturn:
            raise UsageError(
                f"asyncpq.{self._name}(...) needs `async with`, but was used in a plain `with`",
                hint=f"Without an event loop, write `with asyncpq.blocking.{self._name}(...) as opened:`.",
            )

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # copy, pickle and inspect look for such names
                raise AttributeError(name)
            raise not_entered(f"asyncpq.{self._name}", name, "async with")

        def __exit__(self, *exc_info: object) -> None:
            """Do nothing: a plain ``with`` needs this method, or it fails before ``__enter__`` can raise its error."""


def not_entered(call: str, name: str, keyword: str) -> AttributeError:
    """Return the error for the attribute ``name`` of a context manager that ``keyword`` did not enter. ``call``: the
    function that returned it."""
    return AttributeError(
        f"{call}(...) has no attribute {name!r}: it is a context manager. Write `{keyword} {call}(...) as opened:`, "
        f"and use opened.{name} in the block"
    )


class SessionLoan(AbstractAsyncContextManager["Session"]):
    """A use of the session that all one-off calls of the running event loop with equal ``options`` share.

    Leaving the block ends what was begun in it. The shared session stays open for the next call, unless the block
    failed: what the session knows of credentials and stores may be the reason.
    """

    def __init__(self, options: SessionKeywords, make: Callable[..., Session]) -> None:
        self._options = options
        self._make = make

    async def __aenter__(self) -> Session:
        loop = asyncio.get_running_loop()
        key = (id(loop), options_key(self._options))
        shared = _shared_sessions.get(key)
        if shared is None or shared.loop is not loop:
            shared = _shared_sessions[key] = _SharedSession(key, self._make(**self._options))
        self._shared = shared
        self._session = await shared.lend()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._session.close()
        finally:
            await self._shared.take_back(failed=kind is not None and issubclass(kind, Exception))


class _SharedSession:
    """A session of one event loop. Its users hold it, and its loop while it is idle; so it is gone with its loop."""

    def __init__(self, key: Hashable, session: Session) -> None:
        self.loop = asyncio.get_running_loop()
        self._key = key
        self._session = session
        self._users = 0
        self._lifetime = self._live()
        self._entering = self.loop.create_task(self._lifetime.__anext__())
        self.idle: asyncio.TimerHandle | None = None  # ends the session

    async def _live(self) -> AsyncGenerator[None, None]:
        """Enter the session, and close it at the end: asyncio ends suspended generators with their loop."""
        async with self._session:
            yield

    async def lend(self) -> Session:
        """Return a session for a new user, who must give it back."""
        self._users += 1
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None
        try:
            await asyncio.shield(self._entering)
            return self._session.lent()
        except BaseException as error:
            await self.take_back(failed=isinstance(error, Exception))
            raise

    async def take_back(self, *, failed: bool) -> None:
        """End the use of a session. After a failure, later calls make another session."""
        self._users -= 1
        if failed:
            self._retire()
        if self._users:
            return
        if _shared_sessions.get(self._key) is not self:
            await self._end()
            return
        self.idle = self.loop.call_later(IDLE_S, self.end_soon)
        # a list of references, since threads with other event loops add sessions meanwhile
        known = [reference() for reference in _shared_sessions.valuerefs()]
        others = [other for other in known if other is not None and other.loop is self.loop]
        idle = [(other.idle.when(), other) for other in others if other.idle is not None]
        for _, other in sorted(idle, key=itemgetter(0))[:-MOST_IDLE]:
            other.end_soon()

    def _retire(self) -> None:
        """Give the session to no new users."""
        if _shared_sessions.get(self._key) is self:
            del _shared_sessions[self._key]

    def end_soon(self) -> None:
        """Begin to close the session, which has no users."""
        self._retire()
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None
        task = self.loop.create_task(self._end())
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    async def _end(self) -> None:
        await self._lifetime.aclose()


class _Same:
    """An object that is equal to itself alone."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def options_key(options: Mapping[str, Any] | SessionKeywords) -> Hashable:
    """Return a value that is equal for calls that can share a session, in this process. What a session finds in the
    environment, such as credentials, is an option, too."""
    return (os.getpid(), _by_value(options), frozenset(os.environ.items()))


def _by_value(value: object) -> Hashable:
    """Return a hashable form of options, which is equal for equal options of the same types."""
    if isinstance(value, Mapping):
        return (dict, frozenset([(name, _by_value(item)) for name, item in value.items()]))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple([_by_value(item) for item in value]))
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return (type(value), value)


_shared_sessions: WeakValueDictionary[Hashable, _SharedSession] = WeakValueDictionary()
_ending: set[asyncio.Task[None]] = set()
