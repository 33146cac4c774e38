"""What went wrong in a task, as the driver raises it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from asyncpq import errors
from asyncpq.errors import AsyncpqError

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
