"""What helps where a file is not the one any more that a plan or an index knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from asyncpq.errors import AsyncpqError, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError

_AGAIN: Final = (
    "It was replaced or deleted after the read was planned. Plan again: make the DataFrame anew, or restart the stream."
)
_REFRESH: Final = "It was replaced or deleted after the index was built or refreshed: refresh the index."


def told_to_plan_again(by_index: bool) -> AbstractContextManager[None]:
    """Reading what was planned: errors of files that changed, or are gone, have a hint.

    Args:
        by_index: an index said which files there are.
    """
    hint = f"{_AGAIN} If that does not help: {_REFRESH[0].lower()}{_REFRESH[1:]}" if by_index else _AGAIN
    return _hinted(hint, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError)


def told_to_refresh(by_index: bool) -> AbstractContextManager[None]:
    """Planning: errors of files that changed, or are gone, have a hint.

    Args:
        by_index: an index says which files there are.
    """
    return _hinted(_REFRESH, ObjectChangedError, ObjectNotFoundError) if by_index else nullcontext()


@contextmanager
def _hinted(hint: str, *errors: type[AsyncpqError]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        error.hint = hint
        raise
