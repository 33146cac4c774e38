"""What the contracts' checks say when they fail: no test runner shows the values of an assertion in a package."""

from __future__ import annotations

_SHOWN = 300  # characters of a value


def equal(found: object, expected: object, what: str) -> None:
    """Raises AssertionError if they are not: ``what`` was found to be other than it should."""
    if found != expected:
        raise AssertionError(f"{what}: {_short(found)} where {_short(expected)} should be")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
