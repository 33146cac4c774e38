"""What helps where a file is not the planned one any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from asyncpq.errors import ObjectChangedError, ObjectNotFoundError, StaleSnapshotError

_AGAIN: Final = (
    "It was replaced or deleted after the read was planned. Plan again: make the DataFrame anew, or restart the stream."
)
_BY_INDEX: Final = f"{_AGAIN} If that does not help, it was after the index was built or refreshed: refresh the index."


@contextmanager
def told_to_plan_again(by_index: bool) -> Iterator[None]:
    """Errors of files that changed, or are gone, have a hint.

    Args:
        by_index: an index says which files there are.
    """
    try:
        yield
    except (ObjectChangedError, ObjectNotFoundError, StaleSnapshotError) as error:
        error.hint = _BY_INDEX if by_index else _AGAIN
        raise
