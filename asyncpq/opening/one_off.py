"""Context managers for one-off use: awaiting them, or a plain ``with``, raises an error that says ``async with``."""

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
    """A context manager for ``async with``."""

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
                f"asyncpq.{self._name}(...) is not awaited",
                hint=f"Write `async with asyncpq.{self._name}(...) as opened:`, or `await session.{self._name}(...)` "
                "in a Session that stays open.",
            )

        def __enter__(self) -> NoReturn:
            raise UsageError(
                f"asyncpq.{self._name}(...) needs `async with`",
                hint=f"Without an event loop, write `with asyncpq.blocking.{self._name}(...) as opened:`.",
            )

        def __exit__(self, *exc_info: object) -> None:
            """Python looks for it before it calls ``__enter__``."""


def one_off(function: Callable[P, AsyncIterator[T]]) -> Callable[P, OneOff[T]]:
    """Return :func:`contextlib.asynccontextmanager` of ``function``, whose result is a :class:`OneOff`."""
    make = asynccontextmanager(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> OneOff[T]:
        return OneOff(function.__name__, make(*args, **kwargs))

    return call
