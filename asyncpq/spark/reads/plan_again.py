"""What helps where a file is not the one any more that a plan or an index knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from asyncpq.errors import ObjectChangedError, ObjectNotFoundError, StaleSnapshotError

_AGAIN: Final = (
    "It was replaced or deleted after the read was planned. Plan again: make the DataFrame anew, or restart the stream."
)
_REFRESH: Final = "It was replaced or deleted after the index was built or refreshed: refresh the index."


@contextmanager
def told_to_plan_again(by_index: bool) -> Iterator[None]:
    """Reading what was planned: errors of files that changed, or are gone, have a hint.

    Args:
        by_index: an index said which files there are.
    """
    try:
        yield
    except (ObjectChangedError, ObjectNotFoundError, StaleSnapshotError) as error:
        error.hint = f"{_AGAIN} If that does not help: {_REFRESH[0].lower()}{_REFRESH[1:]}" if by_index else _AGAIN
        raise


@contextmanager
def told_to_refresh(by_index: bool) -> Iterator[None]:
    """Planning: errors of files that changed, or are gone, have a hint.

    Args:
        by_index: an index says which files there are.
    """
    try:
        yield
    except (ObjectChangedError, ObjectNotFoundError) as error:
        if by_index:
            error.hint = _REFRESH
        raise
