"""What went wrong in a task, as the driver raises it.

What helps where a file is not the one any more that a plan or an index knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from pyspark.errors import PySparkException

from asyncpq import errors
from asyncpq.errors import AsyncpqError, ObjectChangedError, ObjectNotFoundError, StaleSnapshotError

#: The last line of a traceback in what Spark says.
_RAISED: Final = re.compile(r"^(?:\s*\S*: )?asyncpq\.errors\.(\w+): (.*)$", re.MULTILINE)


def named_error(name: str, message: str) -> AsyncpqError:
    """An error of the class that is called ``name``, as another process has shown it."""
    found = getattr(errors, name, None)
    kind = found if isinstance(found, type) and issubclass(found, AsyncpqError) else AsyncpqError
    return kind(message)


@contextmanager
def raised_as_asyncpq() -> Iterator[None]:
    """
    Raises:
        AsyncpqError: a task failed with one; Spark's own account is its cause. Other errors of Spark are as they were.
    """
    try:
        yield
    except PySparkException as failed:
        found = list(_RAISED.finditer(str(failed)))
        if not found:
            raise
        raise named_error(found[-1][1], found[-1][2]) from failed


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
