"""Find out whether a url of the command line names a table: a Delta or Iceberg folder, or a table of a DuckLake."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from asyncpq import Session
from asyncpq.engine.target_facts import safe_url, url_facts
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError

if TYPE_CHECKING:
    from asyncpq import Dataset
    from asyncpq.typing import TableVersion

_DUCKLAKE: Final = "ducklake:"
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_DUCKDB_MAGIC: Final = b"DUCK"  # after a checksum of 8 bytes
_LAKE_HINT: Final = (
    "Write ducklake:CATALOG#TABLE, where CATALOG is a SQLite or DuckDB file or a url such as "
    "postgresql://user@host/database, and TABLE may be schema.table."
)
TableFormat = Literal["delta", "iceberg"]
_FORMATS: Final[tuple[tuple[str, TableFormat], ...]] = (
    ("belong to a Delta table", "delta"),  # of the error of a folder that is a table
    ("belong to an Iceberg table", "iceberg"),
)


class OpenArguments(NamedTuple):
    """How a session opens what a url names: the arguments for its ``open_dataset``, ``build_index`` or ``optimize``."""

    target: Any
    format: TableFormat | None = None

    @property
    def is_table(self) -> bool:
        return self.format is not None or not isinstance(self.target, str)


def names_table(url: str) -> bool:
    """Return whether the text of a url alone, without a request, shows that it names a table."""
    return url.startswith(_DUCKLAKE) or url_facts(url).table_format is not None


async def open_files(
    session: Session, url: str, index: str | None = None, version: TableVersion | None = None
) -> Dataset:
    """Open the files at ``url``, or the table that they belong to. ``index``: url of an index to use; None for the
    default. ``version``: of the table; None for the current one."""
    known = _known(url, version)
    asked = version if known.format is not None else None
    try:
        dataset = await session.open_dataset(known.target, format=known.format, index=index, version=asked)
    except InvalidOptionError as error:
        format_ = _format(error)
    else:
        if version is not None and not known.is_table:
            raise no_versions(url)
        return dataset
    return await session.open_dataset(url, format=format_, index=index, version=version)


def no_versions(url: str) -> InvalidOptionError:
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
        return OpenArguments(url, _format(error))


def _format(error: InvalidOptionError) -> TableFormat:
    """Return the format of the table ("delta" or "iceberg") that ``error`` says the files belong to; raise any other
    error."""
    table_format = next((format_ for text, format_ in _FORMATS if text in error.message), None)
    if table_format is None:
        raise error
    return table_format


def _known(url: str, version: TableVersion | None = None) -> OpenArguments:
    """Return the arguments with which a session opens ``url``, without a request: a table, or else files."""
    if url.startswith(_DUCKLAKE):
        return OpenArguments(_lake_table(url.removeprefix(_DUCKLAKE), version))
    return OpenArguments(url, url_facts(url).table_format)


def _lake_table(text: str, version: TableVersion | None) -> object:
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
