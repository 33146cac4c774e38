"""What may be said of options that a client refuses: their names. Its own text may quote their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def refusal(error: Exception, options: Mapping[str, Any]) -> str:
    """The class of ``error``, and the options whose name or value its text mentions."""
    text = str(error)
    mentioned = [name for name, value in _leaves("", options) if _mentions(text, name, value)]
    return f"{', '.join(mentioned)} ({type(error).__name__})" if mentioned else type(error).__name__


def _leaves(prefix: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _mentions(text: str, name: str, value: Any) -> bool:
    quoted = name.rpartition(".")[2]
    if any(f"{mark}{quoted}{mark}" in text for mark in "'\"`") or text.endswith(f" {quoted}"):
        return True
    return isinstance(value, str) and len(value) > 3 and value in text
