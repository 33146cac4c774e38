"""``async with asyncpq.open_file(...)``: a session for one file or dataset, and an error for other uses of the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from asyncpq.errors import UsageError

T = TypeVar("T")


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
        except BaseException:
            await self._stack.aclose()
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

        def __exit__(self, *exc_info: object) -> None:
            """Do nothing: a plain ``with`` needs this method, or it fails before ``__enter__`` can raise its error."""
