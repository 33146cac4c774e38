"""``async with asyncpq.open_file(...)``: a session for one file or dataset, and an error for other uses of the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from asyncpq.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


class OneOff(AbstractAsyncContextManager[T], Generic[T]):
    """The result of ``asyncpq.open_file(...)`` or ``open_dataset(...)``: an async context manager, which raises a
    UsageError with a hint if it is awaited or used in a plain ``with``."""

    def __init__(self, name: str, manager: AbstractAsyncContextManager[T]) -> None:
        self._name = name
        self._manager = manager

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)

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


def one_off(function: Callable[P, AsyncIterator[T]]) -> Callable[P, OneOff[T]]:
    """Make an async generator function return a :class:`OneOff`, as :func:`contextlib.asynccontextmanager` does."""
    make = asynccontextmanager(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> OneOff[T]:
        return OneOff(function.__name__, make(*args, **kwargs))

    return call
