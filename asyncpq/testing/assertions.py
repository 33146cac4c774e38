"""Assertions of the contracts. Test runners do not explain a bare ``assert`` in an installed package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import RequestContext

E = TypeVar("E", bound=Exception)
_MAX_CHARACTERS = 300  # of a value in a message


def checks_of(module: Mapping[str, Any]) -> tuple[Callable[[Any], Awaitable[None]], ...]:
    """The functions ``check_...`` among the globals of a module, in their order."""
    return tuple(value for name, value in module.items() if name.startswith("check_"))


def equal(actual: object, expected: object, name: str) -> None:
    """Raise AssertionError unless the values are equal; ``name`` says what they are."""
    if actual != expected:
        raise AssertionError(f"{name}: {_short(actual)} where {_short(expected)} should be")


async def raised(expected: type[E], work: Awaitable[object]) -> E:
    """Return the error that ``work`` raises. Raise AssertionError if it raises none."""
    try:
        await work
    except expected as error:
        return error
    raise AssertionError(f"no {expected.__name__}")


def request_context(*, scan: bool = False) -> RequestContext:
    """Return the context of a read with its own metrics."""
    return RequestContext(ReadMetrics(), scan)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)"
