"""Assertions of the contracts. Test runners do not explain a bare ``assert`` in an installed package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import RequestContext

E = TypeVar("E", bound=Exception)
_MAX_CHARACTERS = 300  # of a value in a message


def checks_of(module: Mapping[str, Any]) -> tuple[Callable[[Any], Awaitable[None]], ...]:
    """Return the functions named ``check_*`` of a module, in order of definition. ``module``: the module's globals."""
    return tuple(value for name, value in module.items() if name.startswith("check_"))


def equal(actual: object, expected: object, name: str) -> None:
    """Raise AssertionError unless the values are equal. ``name`` describes the value in the message."""
    if actual != expected:
        raise AssertionError(f"{name}: got {_short(actual)}, expected {_short(expected)}")


async def raised(expected: type[E], work: Awaitable[object]) -> E:
    """Return the error that ``work`` raises. Raise AssertionError if it raises none."""
    try:
        await work
    except expected as error:
        return error
    raise AssertionError(f"no {expected.__name__} was raised")


def request_context(*, scan: bool = False) -> RequestContext:
    """Return a new context for requests, with metrics of its own. ``scan``: the requests belong to a scan."""
    return RequestContext(ReadMetrics(), scan)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)"
