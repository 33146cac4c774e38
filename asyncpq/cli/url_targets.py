"""What the url of a command line names, at which version: a file, files, or a table of Delta, Iceberg or DuckLake."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

from asyncpq import Session
from asyncpq.cli.parameters import Argument, Option
from asyncpq.engine.target_facts import default_index_url, safe_url, url_facts
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError

if TYPE_CHECKING:
    import asyncpq.typing
    from asyncpq import Dataset, File
    from asyncpq.indexing import Index

_DUCKLAKE: Final = "ducklake:"
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_DUCKDB_MAGIC: Final = b"DUCK"  # after a checksum of 8 bytes
_LAKE_HINT: Final = (
    "Write ducklake:CATALOG#TABLE, where CATALOG is a SQLite or DuckDB file or a url such as "
    "postgresql://user@host/database, and TABLE may be schema.table."
)
TableFormat = Literal["delta", "iceberg"]
Url = Annotated[
    str,
    Argument(
        metavar="URL",
        help="A file, prefix, pattern or table: a local path, s3://bucket/key, https://..., or any url of fsspec; the "
        "folder of a Delta or Iceberg table; ducklake:CATALOG#TABLE.",
        show_default=False,
    ),
]
IndexUrl = Annotated[
    str | None,
    Option(
        "--index",
        metavar="URL",
        help="Use the index at this url. Without it, the one below the prefix, if there is one.",
        show_default=False,
    ),
]
VersionName = Annotated[
    str | None,
    Option(
        "--version",
        metavar="VERSION",
        help="Of a table: a version of Delta; a snapshot id, branch or tag of Iceberg; a snapshot of DuckLake.",
        show_default=False,
    ),
]
AtTime = Annotated[
    str | None,
    Option(
        "--at",
        metavar="TIME",
        help="Of a table: its version at this time, such as 2026-05-01T12:00:00; UTC without an offset.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The target of a command that uses no index: url, version and time."""

    url: Url
    version: VersionName = None
    at: AtTime = None
    index: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class IndexedSource:
    """The target of a command that reads through an index, if there is one."""

    url: Url
    index: IndexUrl = None
    version: VersionName = None
    at: AtTime = None


class OpenArguments(NamedTuple):
    """How a session opens what a url names: the arguments for its ``open_dataset``, ``build_index`` or ``optimize``."""

    target: Any
    format: TableFormat | None = None

    @property
    def is_table(self) -> bool:
        """Whether the target is a table, not a prefix or pattern."""
        return self.format is not None or not isinstance(self.target, str)


def names_table(url: str) -> bool:
    """Return whether the text of a url alone, without a request, shows that it names a table."""
    return url.startswith(_DUCKLAKE) or url_facts(url).table_format is not None


@asynccontextmanager
async def opened(session: Session, source: ReadSource | IndexedSource) -> AsyncIterator[File | Dataset]:
    """Open the file or dataset that a command reads, for an ``async with`` block. If its url may mean either, the file
    is opened if it exists. With the url of an index, the dataset is always opened.

    Raises InvalidOptionError if the version is not one, or the url names files, which have none.
    """
    url, index, version = source.url, source.index, version_of(source.version, source.at)
    if index is not None or names_table(url) or url_facts(url).many:
        async with await _open_files(session, url, index, version) as dataset:
            yield dataset
        return
    try:
        file = await session.open_file(url)
    except ObjectNotFoundError as missing:
        try:
            lake = await _open_files(session, url, version=version)
        except ObjectNotFoundError:
            missing.hint = "Look for a mistyped folder, bucket or file."
            raise missing from None
        async with lake:
            yield lake
        return
    async with file:
        if version is not None:
            raise _no_versions(url)
        yield file


def version_of(version: str | None, at: str | None) -> asyncpq.typing.TableVersion | None:
    """Return the version that the two options name; None for the current one.

    Raises InvalidOptionError if both are given, or ``at`` is no time in ISO 8601.
    """
    if version is not None and at is not None:
        raise InvalidOptionError("both --version and --at name a version of the table", hint="Pass only one of them.")
    if at is None:
        return int(version) if version is not None and version.isascii() and version.isdigit() else version
    try:
        time = dt.datetime.fromisoformat(at)
    except ValueError:
        raise InvalidOptionError(
            f"--at {at} is not a time", hint="Write it in ISO 8601, such as 2026-05-01 or 2026-05-01T12:00:00+02:00."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


async def _open_files(
    session: Session, url: str, index: str | None = None, version: asyncpq.typing.TableVersion | None = None
) -> Dataset:
    """Open the files at ``url``, or the table that they belong to. ``index``: url of an index to use; None for the
    default. ``version``: of the table; None for the current one."""
    known = _known(url, version)
    asked = version if known.format is not None else None
    try:
        dataset = await session.open_dataset(known.target, format=known.format, index=index, version=asked)
    except InvalidOptionError as error:
        if error.table_format is None:
            raise
        return await session.open_dataset(url, format=error.table_format, index=index, version=version)
    if version is not None and not known.is_table:
        raise _no_versions(url)
    return dataset


def _no_versions(url: str) -> InvalidOptionError:
    """Return the error of ``--version`` or ``--at`` for something that is not a table."""
    return InvalidOptionError(
        "--version and --at name versions of a table, but the url names files",
        url=safe_url(url),
        hint="Leave them out, or name the folder of a Delta or Iceberg table or ducklake:CATALOG#TABLE.",
    )


async def target_of(session: Session, url: str) -> OpenArguments:
    """Return the arguments with which a session opens ``url``. A prefix is listed to find out if it is a table."""
    known = _known(url)
    if known.is_table:
        return known
    try:
        async with await session.open_dataset(url, index=False):
            return known
    except InvalidOptionError as error:
        if error.table_format is None:
            raise
        return OpenArguments(url, error.table_format)


async def open_existing_index(session: Session, url: str, at: str | None, *, refreshes: bool = False) -> Index:
    """Open the index of the files at ``url``. ``at`` is the index's url; by default the index is below the prefix.

    With ``refreshes``, the index of a table is opened with the table, which a refresh needs.
    """
    if at is None and (names_table(url) or "*" in url):
        raise InvalidOptionError(
            "--at is missing: only the index of a prefix has a default place", hint="Add --at URL, the index's url."
        )
    try:
        if at is None:
            return await session.open_index(default_index_url(url))
        named = await target_of(session, url) if refreshes else None
        if named is None or not named.is_table:
            return await session.open_index(at)
        return await session.open_index(at, table=named.target, format=named.format)
    except ObjectNotFoundError as error:
        error.hint = "`asyncpq index build` builds it; --at names one that is elsewhere."
        raise


async def only_file(dataset: Dataset, why: str) -> str:
    """Return the url of a dataset's only file. Raises InvalidOptionError, which begins with ``why``, if it has another
    number of them."""
    files = await dataset.files()
    if len(files) != 1:
        raise InvalidOptionError(
            f"{why}, but the url names {len(files)}",
            url=dataset.url,
            hint="Name one of its files; `asyncpq inspect` lists them.",
        )
    return files[0]


def _known(url: str, version: asyncpq.typing.TableVersion | None = None) -> OpenArguments:
    """Return the arguments with which a session opens ``url``, without a request: a table, or else files."""
    if url.startswith(_DUCKLAKE):
        return OpenArguments(_lake_table(url.removeprefix(_DUCKLAKE), version))
    return OpenArguments(url, url_facts(url).table_format)


def _lake_table(text: str, version: asyncpq.typing.TableVersion | None) -> object:
    """Return the DuckLake table that ``text``, of the form ``CATALOG#TABLE``, names."""
    from asyncpq import DuckLakeTable

    catalog, _, table = text.rpartition("#")
    if not catalog or not table:
        raise InvalidOptionError("the url of a DuckLake lacks the name of a table", hint=_LAKE_HINT)
    if isinstance(version, str):
        raise InvalidOptionError(
            f"--version {version}: a DuckLake numbers its snapshots", hint="Pass a snapshot's id, or --at TIME."
        )
    if isinstance(version, dt.datetime):
        return DuckLakeTable(_database(catalog), table, as_of=version)
    return DuckLakeTable(_database(catalog), table, snapshot=version)


def _database(catalog: str) -> str:
    """Return SQLAlchemy's url of a catalog. ``catalog`` is such a url, or the path of a SQLite or DuckDB file, perhaps
    with DuckDB's prefix such as ``sqlite:``."""
    if "://" in catalog:
        return catalog.replace("postgres://", "postgresql://", 1) if catalog.startswith("postgres:") else catalog
    path = catalog.removeprefix("sqlite:").removeprefix("duckdb:")
    if not os.path.exists(path):
        raise ObjectNotFoundError("there is no DuckLake catalog", url=path, hint=_LAKE_HINT)
    with open(path, "rb") as file:
        head = file.read(16)
    if head == _SQLITE_MAGIC:
        return f"sqlite:///{os.path.abspath(path)}"
    if head[8:12] == _DUCKDB_MAGIC:
        return f"duckdb:///{os.path.abspath(path)}"
    raise InvalidOptionError("the file is not a SQLite or DuckDB database", url=path, hint=_LAKE_HINT)
