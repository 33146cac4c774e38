"""The errors of asyncpq: one tree under :class:`AsyncpqError`.

Every error says what happened, where (``url``, ``byte_range``, ``column``) and, where there is
something to do, what to do (``hint``). Some classes also derive from the builtin that Python
users expect (``FileNotFoundError``, ``IndexError``, ...), so both spellings of ``except`` work.

What may have been meant by a name that is not there: hints of errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that names from files are safe in logs."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


class AsyncpqError(Exception):
    """Base of every error that asyncpq raises on purpose.

    Args:
        message: what happened, one sentence.
        url: the object, without user info, query string or secrets.
        byte_range: ``(start, stop)`` in the object, stop exclusive.
        column: dotted path of the column concerned.
        hint: what the caller can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        byte_range: tuple[int, int] | None = None,
        column: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.url = url
        self.byte_range = byte_range
        self.column = column
        self.hint = hint

    def __str__(self) -> str:
        parts = [printable(self.message)]
        if self.column is not None:
            parts.append(f"column {printable(self.column)!r}")
        if self.byte_range is not None:
            parts.append(f"bytes {self.byte_range[0]}-{self.byte_range[1] - 1}")
        if self.url is not None:
            parts.append(printable(self.url))
        text = "; ".join(parts)
        return f"{text}. {self.hint}" if self.hint else text

    def locate(
        self,
        *,
        url: str | None = None,
        byte_range: tuple[int, int] | None = None,
        column: str | None = None,
    ) -> AsyncpqError:
        """Fill in what a lower layer could not know; never overwrites. Returns ``self``."""
        self.url = self.url if self.url is not None else url
        self.byte_range = self.byte_range if self.byte_range is not None else byte_range
        self.column = self.column if self.column is not None else column
        return self


# -- how asyncpq is used ------------------------------------------------------------------------


class InvalidOptionError(AsyncpqError, ValueError):
    """An option has a value that cannot work."""


class UsageError(AsyncpqError, RuntimeError):
    """An object was used in a way its contract excludes (closed, wrong event loop, not entered)."""


class QueryError(AsyncpqError, ValueError):
    """A query that cannot be asked of this file."""


class ColumnNotFoundError(QueryError, KeyError):
    """A column named in ``columns`` or ``where`` is not in the file."""

    __str__ = AsyncpqError.__str__  # KeyError would show the repr


class AmbiguousColumnError(QueryError):
    """A column name occurs more than once in the file."""


class ExpressionError(QueryError, TypeError):
    """A predicate that cannot be understood."""


class PredicateTypeError(ExpressionError):
    """A literal whose type cannot be compared with its column's type."""


class PartitionError(QueryError):
    """A file's path has a partition value that is none of its column's type."""


class RowIndexError(QueryError, IndexError):
    """A row number outside the file."""


# -- the store ----------------------------------------------------------------------------------


class StoreError(AsyncpqError, OSError):
    """The object store did not give what was asked for."""

    __str__ = AsyncpqError.__str__


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No such object."""

    __str__ = AsyncpqError.__str__


class BucketNotFoundError(ObjectNotFoundError):
    """No such bucket."""


class AccessDeniedError(StoreError, PermissionError):
    """The store refused access."""

    __str__ = AsyncpqError.__str__


class CredentialsError(AccessDeniedError):
    """Credentials are missing, malformed or expired."""


class ObjectChangedError(StoreError):
    """The object is not the version that the read began with."""


class InvalidResponseError(StoreError):
    """The server's answer is not the bytes that were asked for."""


class TransportError(StoreError, ConnectionError):
    """The connection failed, and retries did not help."""

    __str__ = AsyncpqError.__str__


class ThrottledError(StoreError):
    """The store asked to slow down, and retries did not help."""


class DeadlineExceededError(StoreError, TimeoutError):
    """The read's deadline passed."""

    __str__ = AsyncpqError.__str__


class UnsupportedStoreError(StoreError):
    """No store serves this url, or the store lacks what an option requires."""


class ConcurrentCommitUnsupported(UnsupportedStoreError):  # noqa: N818
    """The place of an index cannot refuse to create what is there, so two commits could pass for one."""


class StaleSnapshotError(StoreError):
    """The snapshot of an index is gone: it was vacuumed, or the index was dropped."""


# -- the bytes ----------------------------------------------------------------------------------


class FormatError(AsyncpqError):
    """The bytes are not what the Parquet specification says."""


class NotParquetError(FormatError):
    """The object is not a Parquet file."""


class CorruptFileError(FormatError):
    """A Parquet file with a part that contradicts the specification or another part."""


class CorruptIndexError(CorruptFileError):
    """An index that cannot be trusted. Users are shown it for indexes beside or inside of their files; without a page
    index, reads fall back to whole chunks.
    """


class UnsupportedFeatureError(FormatError, NotImplementedError):
    """A valid file with a feature that asyncpq does not read."""


class SchemaMismatchError(FormatError):
    """Files of a dataset, or a file and its dataset, that have a column of types which do not go together."""


class ResourceLimitError(FormatError, MemoryError):
    """A limit on memory, elements or depth was reached while reading a file."""


_NAMES_SHOWN: Final = 8
_CHARACTERS_SHOWN: Final = 60

#: For a file that an index lists, and that is gone.
GONE_SINCE: Final = (
    "The index still lists it. Where others write and remove the files, `await index.refresh()` brings it up to date."
)


def shown(name: str) -> str:
    """The name in quotes; files may have very long ones."""
    return repr(name if len(name) <= _CHARACTERS_SHOWN else f"{name[:_CHARACTERS_SHOWN]}...")


def many_files(url: str) -> str:
    """What helps who opens ``url`` as one file, and it is not there: perhaps it names many."""
    if url.lower().startswith(("http://", "https://")):
        return "HTTP has no listings: of many files, Session.open_dataset reads a list of their urls."
    return "If it is a prefix, a folder or a pattern of many files, Session.open_dataset reads it."


def stray_file(folder: str, url: str) -> str:
    """What helps who reads all files below ``folder``, of which ``url`` is no Parquet."""
    skip = 'pass on_bad_file="skip" to leave out what is no Parquet.'
    if url.lower().endswith((".parquet", ".parq", ".pq")):
        return f"It is damaged, or was cut off while being written; {skip}"
    return f'Name the files by a pattern, such as "{folder}**/*.parquet", or {skip}'


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """The names that are like it, whose case does not count.

    Args:
        otherwise: the hint where none is.
    """
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=3)
    return f"Did you mean {' or '.join(shown(folded[one]) for one in close)}?" if close else otherwise


def first_columns(names: Sequence[str]) -> str | None:
    """The first columns that there are; None where there are none."""
    rest = f", ... {len(names)} in all" if len(names) > _NAMES_SHOWN else ""
    return f"Its columns are {', '.join(map(shown, names[:_NAMES_SHOWN]))}{rest}." if names else None


def nearest_column(name: str, names: Sequence[str]) -> str | None:
    """The columns that are like it, or else the first ones."""
    return nearest(name, names, first_columns(names))
