"""The errors of asyncpq, one tree under :class:`AsyncpqError`, their hints, and numbers and names as people read them.

Every error says what happened, where (``url``, ``byte_range``, ``column``) and, if possible, what to do (``hint``).
Some classes also derive from the builtin that Python users expect (``FileNotFoundError``, ``IndexError``, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, Final, Literal

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HALF: Final = 1000  # of the characters that an error shows of its message, column and url


def printable(text: str) -> str:
    """Return ``text`` with its control characters escaped, so that names from files are safe in logs."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def counted(number: int, noun: str, form: str = "") -> str:
    """Return ``number``, formatted by ``form``, and its noun in singular or plural, such as ``1 request``."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def plural(number: int, noun: str) -> str:
    """Return a number, with commas, and its noun in singular or plural, such as ``1 file`` or ``2,000 files``."""
    return counted(number, noun, ",")


def size_text(num_bytes: float | None) -> str:
    """Return a number of bytes with three digits and a unit, such as ``1.46 MiB``; "?" for None."""
    if num_bytes is None:
        return "?"
    unit = 0
    while abs(num_bytes) >= 999.5 and unit < len(_UNITS) - 1:
        num_bytes /= 1024
        unit += 1
    return f"{num_bytes:.0f} B" if unit == 0 else f"{num_bytes:.3g} {_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds, or in milliseconds below one."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _cut(text: str) -> str:
    """Return ``text`` without its middle if it is very long: it may quote a name or value of any length."""
    return text if len(text) <= 2 * _HALF else f"{text[:_HALF]}...{text[-_HALF:]}"


class Hint(str):
    """A hint for users of the library. Its attribute ``command`` is the text for users of the command line.

    A hint that names no argument of Python fits both, and is a plain ``str``. ``text + hint`` and ``hint + text`` add
    the text to both forms; an f-string and ``str.join`` keep only the library's.
    """

    command: str

    def __new__(cls, library: str, command: str = "") -> Hint:
        """``command`` is left out by pickle alone, which sets it later."""
        hint = super().__new__(cls, library)
        hint.command = command
        return hint

    def __add__(self, text: str) -> Hint:
        return Hint(str(self) + str(text), self.command + command_words(text))

    def __radd__(self, text: str) -> Hint:
        return Hint(text + str(self), text + self.command)


def command_words(text: str) -> str:
    """Return the text of ``text`` for the command line if it is a :class:`Hint`; else ``text``."""
    return text.command if isinstance(text, Hint) else text


class AsyncpqError(Exception):
    """Base of every error that asyncpq raises on purpose.

    Args:
        message: what happened, in one sentence.
        url: the object, without user info, query string or secrets.
        byte_range: ``(start, stop)`` in the object, stop exclusive.
        column: dotted path of the column.
        hint: what the caller can do, a :class:`Hint` if the command line must say it in other words; by default the
            ``default_hint`` of the class, which fits each of its errors.

    Attributes:
        message, url, byte_range, column, hint: the arguments, None where not known; ``str(error)`` joins them.
        default_hint: hint of the class's errors that are raised without ``hint``; None for most classes.
        option: the argument that the message begins with, such as "rows" of ``rows=3: must be a list``; or None.
    """

    default_hint: ClassVar[str | None] = None
    option: str | None = None

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
        self.hint: str | None = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return self._text(self.hint)

    def command_text(self, options: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the error's text for users of the command line. ``options`` maps names of arguments in the text to the
        command's options, such as ``{"sort_by": "--sort-by"}``."""
        text, name = self._text(None if self.hint is None else command_words(self.hint)), self.option
        if name is None or name not in options or not text.startswith(name):
            return text
        return f"{options[name]}{text.removeprefix(name)}"

    def _text(self, hint: str | None) -> str:
        parts = [_cut(printable(self.message))]
        if self.column is not None:
            parts.append(f"column {_cut(printable(self.column))!r}")
        if self.byte_range is not None:
            parts.append(f"bytes {self.byte_range[0]}-{self.byte_range[1] - 1}")
        if self.url is not None:
            parts.append(_cut(printable(self.url)))
        text = "; ".join(parts)
        return f"{text}. {hint}" if hint else text

    def locate(
        self, *, url: str | None = None, byte_range: tuple[int, int] | None = None, column: str | None = None
    ) -> AsyncpqError:
        """Set ``url``, ``byte_range`` and ``column`` where the error has None; return ``self``."""
        self.url = self.url if self.url is not None else url
        self.byte_range = self.byte_range if self.byte_range is not None else byte_range
        self.column = self.column if self.column is not None else column
        return self


@contextmanager
def located(
    *, url: str | None = None, byte_range: tuple[int, int] | None = None, column: str | None = None
) -> Iterator[None]:
    """Set ``url``, ``byte_range`` and ``column``, where None, of an AsyncpqError that the ``with`` block raises."""
    try:
        yield
    except AsyncpqError as error:
        error.locate(url=url, byte_range=byte_range, column=column)
        raise


# -- how asyncpq is used ------------------------------------------------------------------------


class InvalidOptionError(AsyncpqError, ValueError):
    """An argument or option has a value that is not allowed, or contradicts another one.

    Args:
        option: the argument's name, if the message begins with it: ``"rows"`` of ``rows=3: must be a list``; else None.
        table_format: if a table's folder was opened as plain files, the value for ``format=`` that opens the table:
            ``"delta"`` or ``"iceberg"``. None for any other error.
    """

    def __init__(
        self,
        message: str,
        *,
        option: str | None = None,
        table_format: Literal["delta", "iceberg"] | None = None,
        url: str | None = None,
        byte_range: tuple[int, int] | None = None,
        column: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, url=url, byte_range=byte_range, column=column, hint=hint)
        self.option = option
        self.table_format = table_format


class UsageError(AsyncpqError, RuntimeError):
    """An object was used against its contract: it is closed, not entered, or belongs to another event loop."""


class QueryError(AsyncpqError, ValueError):
    """The query does not fit the columns or rows of the file. Base of the errors of queries."""


class ColumnNotFoundError(QueryError, KeyError):
    """A column named in ``columns`` or ``where`` is not in the file."""


class AmbiguousColumnError(QueryError):
    """A column name occurs more than once in the file, or a dotted path is that of several fields."""


class ExpressionError(QueryError, TypeError):
    """A predicate is malformed."""


class PredicateTypeError(ExpressionError):
    """A literal's type cannot be compared with its column's type."""


class PartitionError(QueryError):
    """A file's path has a partition value that is not of its column's type.

    That type is the one in ``partition_types=`` of :meth:`asyncpq.Session.open_dataset`, which raises this error, or
    was inferred from the files when the dataset was opened; then a read raises it that finds a new file. Give the
    column a type that has all values.
    """


class RowIndexError(QueryError, IndexError):
    """A row number is outside the file."""


# -- the store ----------------------------------------------------------------------------------


class StoreError(AsyncpqError, OSError):
    """A request to the object store failed."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object does not exist."""


class BucketNotFoundError(ObjectNotFoundError):
    """The bucket does not exist."""


class AccessDeniedError(StoreError, PermissionError):
    """The store refused access."""


class CredentialsError(AccessDeniedError):
    """Credentials are missing, malformed or expired."""


class ObjectChangedError(StoreError):
    """The object has another version than the one that the read began with.

    Attributes:
        is_gone: whether the object no longer exists.
    """

    is_gone: bool = False

    default_hint: ClassVar[str | None] = (
        Hint("Open it again, or call await file.refresh(), to read the new version.", "Repeat the command.")
        + " If that fails too, a cache on the way has parts of two versions: it must be purged."
    )


class InvalidResponseError(StoreError):
    """The server's response does not contain the requested bytes."""

    default_hint: ClassVar[str | None] = "Check the server and the proxies on the way, or read from another endpoint."


class TransportError(StoreError, ConnectionError):
    """The connection failed, or the server answered 408 or 5xx, in every attempt."""


class ThrottledError(StoreError):
    """The store asked to slow down in every attempt."""


class DeadlineExceededError(StoreError, TimeoutError):
    """The read's deadline passed.

    Most reads have that of ``RetryOptions.read_timeout_s``.
    """


class UnsupportedStoreError(StoreError):
    """No store serves this url, or the store does not support an operation or option."""


class ConcurrentCommitUnsupported(UnsupportedStoreError):  # noqa: N818
    """The store of an index overwrites existing objects, so one of two concurrent commits could be lost."""


class StaleSnapshotError(StoreError):
    """The snapshot of an index that a call uses no longer exists: a vacuum removed it, or the index was dropped."""


# -- the bytes ----------------------------------------------------------------------------------


class FormatError(AsyncpqError):
    """The bytes cannot be read as Parquet. Base of the errors of file contents."""


class NotParquetError(FormatError):
    """The object is not a Parquet file."""

    default_hint: ClassVar[str | None] = (
        "Check that the url names a Parquet file, and that its writer has finished the file."
    )


class CorruptFileError(FormatError):
    """A part of a Parquet file contradicts the specification or another part."""

    default_hint: ClassVar[str | None] = (
        "Restore the file, or write it again: it is damaged, or its writer has a defect."
    )


class CorruptIndexError(CorruptFileError):
    """An index beside or inside a file is damaged. A damaged page index raises no error: reads fetch whole chunks."""

    default_hint: ClassVar[str | None] = "Drop the index and build it again."


class UnsupportedFeatureError(FormatError, NotImplementedError):
    """The file is valid but has a feature that asyncpq does not support."""

    default_hint: ClassVar[str | None] = "Read it with another program, or write it without this feature."


class SchemaMismatchError(FormatError):
    """A column's types in two files, or in a file and its dataset, cannot be converted to one type."""


class ResourceLimitError(FormatError, MemoryError):
    """Reading a file reached a limit on memory, elements or depth.

    Most limits are fields of :class:`asyncpq.LimitOptions`; the hint then names the field.
    """


def closed_while_reading() -> UsageError:
    """Return the error of a read whose session was closed before the read ended."""
    message = "the session was closed while this read was under way"
    return UsageError(message, hint="Close a session after its reads have ended.")


NAMES_SHOWN: Final = 8
_CHARACTERS_SHOWN: Final = 60

#: Hint of the error for a missing file that an index lists.
GONE_SINCE: Final = "The index still lists it. If other programs write and remove the files, " + Hint(
    "`await index.refresh()` updates the index.", "`asyncpq index refresh` updates the index."
)


def shown(name: str) -> str:
    """Return ``name`` in quotes, cut to 60 characters, since names in files may be very long."""
    return repr(name if len(name) <= _CHARACTERS_SHOWN else f"{name[:_CHARACTERS_SHOWN]}...")


def many_files(url: str) -> str:
    """Return the hint for a missing object at ``url`` opened as one file: it may be a folder or pattern."""
    if url.lower().startswith(("http://", "https://")):
        return "HTTP has no listings: " + Hint(
            "to read many files, pass a list of their urls to Session.open_dataset.", "read the files one by one."
        )
    return Hint(
        "If it is a prefix, a folder or a pattern of many files, Session.open_dataset reads it.",
        "End the url of a folder with /.",
    )


#: Hint of the error for local files that cannot be written while an index is built.
LOCAL_FILES: Final = "Free disk space, or set " + Hint(
    "BuildOptions.folder to another folder for local files.", "TMPDIR to another folder for local files."
)


def limit_hint(name: str) -> Hint:
    """Return the hint of a file that is larger than a field of :class:`asyncpq.LimitOptions` allows."""
    raised = f"LimitOptions.{name} if the file is trusted."
    return Hint(f"Raise {raised}", f"In Python, raise {raised}")


_LONGEST_NAME: Final = 200


def install_hint(package: str, extra: str) -> str:
    """Return the hint that says how to install ``package``, which ``extra`` of asyncpq needs.

    It follows how this copy of asyncpq was installed.
    """
    import json  # these are needed only where a package is missing
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    tree = Path(__file__).parents[1]
    if (tree / "pyproject.toml").is_file():
        return f"Install {package}: pip install -e '{tree}[{extra}]'."
    found = next((other for other in distributions(name="asyncpq-parquet", path=[str(tree)])), None)
    text = None if found is None else found.read_text("direct_url.json")
    if text is None:
        return f"Install {package}: pip install 'asyncpq-parquet[{extra}]'."
    origin = json.loads(text)
    parts = urlsplit(origin["url"])
    if "dir_info" in origin:
        return f"Install {package}: pip install '{unquote(parts.path)}[{extra}]'."
    version = origin.get("vcs_info", {})
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()  # without secrets
    if version:
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    return f"Install {package}: pip install 'asyncpq-parquet[{extra}] @ {url}'."


def ambiguous_path(path: str, fields: Sequence[Sequence[str]], *, in_lists: bool = False) -> AmbiguousColumnError:
    """Return the error for a dotted ``path`` that fits several ``fields``, each a sequence of the names from the
    top-level column to the field. It names the fields and says how to read one. ``in_lists``: a field is inside a list
    or map, for which pyarrow has no ``pc.field``."""
    names = list(dict.fromkeys([", ".join(map(_quoted, field)) for field in fields]))
    tops = [_quoted(top) for top in dict.fromkeys([field[0] for field in fields])]
    message = f"{len(fields)} fields have this path"
    if len(names) > 1:
        message += f": {' and '.join(f'({name})' for name in names)}"
    if len(names) == 1 or in_lists:
        hint = (
            f"Select the whole top-level {'column by its ordinal' if len(tops) == 1 else 'columns by their ordinals'}."
        )
    else:
        ways = " and ".join([f"pc.field({name})" for name in names])
        whole = f"{'column' if len(tops) == 1 else 'columns'} {' and '.join(tops)}"
        hint = f"Read the whole {whole}, and filter the table with pyarrow, which tells {ways} apart."
    return AmbiguousColumnError(message, column=path, hint=hint)


def _quoted(name: str) -> str:
    return f'"{shown(name)[1:-1]}"'


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return the hint "Did you mean ...?" with up to three of the ``known`` names most like ``name``, ignoring case.

    Args:
        otherwise: the hint if no known name is similar.
    """
    if len(name) > _LONGEST_NAME:  # comparing takes the product of the lengths
        return otherwise
    by_folded = {candidate.casefold(): candidate for candidate in known}
    import difflib  # for this message alone

    close = difflib.get_close_matches(name.casefold(), by_folded, n=3)
    return f"Did you mean {' or '.join(shown(by_folded[folded]) for folded in close)}?" if close else otherwise


def first_columns(names: Sequence[str]) -> str | None:
    """Return a hint with the first eight column names; None if ``names`` is empty."""
    rest = f", ... {len(names)} in all" if len(names) > NAMES_SHOWN else ""
    return f"Its columns are {', '.join(map(shown, names[:NAMES_SHOWN]))}{rest}." if names else None


def nearest_column(name: str, names: Sequence[str], first: Sequence[str] | None = None) -> str | None:
    """Return a hint with the columns whose names are most like ``name``; if none is similar, with the first columns, of
    ``first`` if given."""
    if name == "*":
        return "Leave the columns out to read all of them."
    return nearest(name, names, first_columns(names if first is None else first))


def named_error(name: str, message: str) -> AsyncpqError:
    """Return an error of the class ``name`` of this module, or an AsyncpqError if there is no such class."""
    error = globals().get(name)
    return error(message) if isinstance(error, type) and issubclass(error, AsyncpqError) else AsyncpqError(message)
