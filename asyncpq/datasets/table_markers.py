"""Find tables by the files that only a table has, such as a Delta log: in a listing, and around what is listed.

A table's files may have rows that are deleted or replaced, which only the table knows: a listing that contains such
files is refused, and the error names the table. A listing of ``t/part-*`` or ``t/day=1/`` does not pass the log of the
table ``t/``. So the folders around it that may be those of tables, by the names below them, are looked into once a
session, at the same time as the listing.
"""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from asyncpq.errors import AccessDeniedError, Hint, InvalidOptionError, StoreError, UnsupportedStoreError
from asyncpq.objects.runtime import Runtime
from asyncpq.records import dataclass
from asyncpq.storage.base import FolderStore, RequestContext, Store
from asyncpq.storage.threads import results_of
from asyncpq.storage.urls import ICEBERG_METADATA, local_path, safe_url, split_url

logger: logging.Logger = logging.getLogger(__name__)

_FOLDERS: Final = (("_delta_log/", "Delta"), (".hoodie/", "Hudi"), ("_spark_metadata/", "Spark Structured Streaming"))
_HUDI_PARTITION: Final = ".hoodie_partition_metadata"  # a file in each of a Hudi table's folders of data
_ICEBERG_ENDS: Final = (*ICEBERG_METADATA, ".avro", "/version-hint.text")  # .gz.metadata.json is among them
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: Others name their files in folders of metadata, too: an Avro file has to look like a manifest of Iceberg.
_ICEBERG: Final = re.compile(
    rf"metadata/(?:version-hint\.text|[^/]+\.metadata\.json(?:\.gz)?|(?:snap-\d+-[^/]+|[^/]*{_UUID}(?:-m\d+)?)\.avro)"
)
_DUCKLAKE: Final = re.compile(rf"ducklake-{_UUID}(?:-delete)?\.parquet")
_PAIMON: Final = re.compile(r"snapshot/snapshot-\d+")
#: Folders of Hive's transactions, numbered in 7 digits: a base replaces the deltas before it. The first digit is a
#: zero, unlike a date's.
_HIVE: Final = re.compile(r"(?<![^/])(?:base_0\d{6}|(?:delete_)?delta_0\d{6}_0\d{6}(?:_\d{4})?)(?:_v\d{7,})?/")
#: Formats of tables that are opened by url, as ``format=`` takes them.
_OPENED_BY_URL: Final[Mapping[str, Literal["delta", "iceberg"]]] = {"Delta": "delta", "Iceberg": "iceberg"}

_METADATA: Final = ("metadata/", "snapshot/")  # folders that hold files of Iceberg and Paimon, and those of others too

#: Name of the folder of an Iceberg table that holds its data.
_DATA: Final = "data"
#: Names of folders of data right below a table's own: of a partition or a bucket of Paimon, and the random prefix of
#: Delta's column mapping.
_PARTITION: Final = re.compile(r"[^/=]+=[^/]*|bucket-(?:\d+|postpone)")
_RANDOM_PREFIX: Final = re.compile(r"[A-Za-z0-9]{2}")
_MOST_AROUND: Final = 16  # folders around one prefix that are looked into


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that a listing contains."""

    format: str  # such as "Delta"
    url: str  # of the table's folder, with a slash at its end; for a DuckLake, a folder of its files
    is_whole: bool = False  # the folder is the one that the caller opened
    others: int = 0  # the number of other tables in the listing

    def error(self, target: str) -> InvalidOptionError:
        """Return the error that refuses to read the table's files as plain ones. ``target``: the caller's url."""
        table = f"{'an' if self.format == 'Iceberg' else 'a'} {self.format} table"
        url = safe_url(self.url)
        if self.is_whole:
            where = f"these files belong to {table}"
        else:
            more = f" (and {self.others} more)" if self.others else ""
            where = f"some of these files are those of {table}, {url}{more}"
        plain = 'pass format="parquet" to read every listed file.'
        if (name := _OPENED_BY_URL.get(self.format)) is not None:
            opens = "pass " if self.is_whole else f"open {url} with "
            hint = Hint(f'To read the table, {opens}format="{name}"; or {plain}', f"To read the table, name {url}.")
        elif self.format == "DuckLake":
            hint = Hint(
                f"Open the table by its catalog, as a DuckLakeTable; or {plain}",
                "Name the table by its catalog: ducklake:CATALOG#TABLE.",
            )
        else:
            hint = Hint(f"To ignore that, {plain}", 'In Python, format="parquet" reads every file anyway.')
        message = f"{where}: some may have rows that are deleted or replaced"
        return InvalidOptionError(message, url=target, hint=hint, table_format=name if self.is_whole else None)


def not_parquet_hint(url: str, folder: str | None = None) -> str | None:
    """Return the hint for an object at ``url`` that is not Parquet; None if the error's own hint says enough.

    ``folder``: url of the dataset whose files are all those below it; None for another dataset, or a single file.
    """
    if url.endswith(ICEBERG_METADATA):
        what = "It is the metadata of an Iceberg table: "
        reads = 'Session.open_dataset reads the table by this url with format="iceberg".'
        return what + Hint(reads, "name the table's folder.")
    if "/_delta_log/" in f"/{url}":
        what = "It belongs to the log of a Delta table: "
        reads = 'Session.open_dataset reads the table by the folder that has _delta_log, with format="delta".'
        return what + Hint(reads, "name the folder that has _delta_log.")
    if folder is None or folder == f"{url}/":
        return None
    skip = 'pass on_bad_file="skip" to leave out files that are not Parquet.'
    if url.lower().endswith((".parquet", ".parq", ".pq")):
        return "The file is damaged or cut off; " + Hint(skip, "a pattern of the others leaves it out.")
    pattern = f'Name the files by a pattern, such as "{folder}**/*.parquet"' + Hint(f", or {skip}", ".")
    if url != f"{folder}latest":
        return pattern
    index = Hint(f'open the files that it indexes with index="{folder}". ', f"name its files, and --index {folder}. ")
    return "If the folder is an index, " + index + pattern


def find_table(folder: str, listed: Iterable[str], files: Sequence[str], *, whole: bool) -> FoundTable | None:
    """Return the first table, by url, that has some of ``files``; None if there is none.

    Args:
        folder: url of the target's folder, or of the folder before a pattern's first wildcard.
        listed: urls of all listed objects.
        files: urls of the target's files.
        whole: the target is ``folder``, and no pattern: a table whose folder it is counts without files too.
    """
    start = len(folder)
    found = (_marked(url, start) for url in listed)
    tables = dict(table for table in found if table is not None)
    if not tables:
        return None
    names = sorted(files)

    def has_files(table: str) -> bool:
        if whole and table == folder:
            return True
        at = bisect_left(names, table)
        return at < len(names) and names[at].startswith(table)

    having = [table for table in sorted(tables) if has_files(table)]
    if not having:
        return None
    first = having[0]
    others = sum(not table.startswith(first) for table in having)
    return FoundTable(tables[first], first, whole and first == folder, others)


def _marked(url: str, start: int) -> tuple[str, str] | None:
    """Return the folder and the format of the table that the file at ``url`` marks; None if it marks no table. A
    folder of a table's own files, such as its log, counts only from the position ``start`` on."""
    if "_delta_log/" in url or ".hoodie/" in url or "_spark_metadata/" in url:
        for marker, name in _FOLDERS:
            at = start if url.startswith(marker, start) else url.find(f"/{marker}", start) + 1
            if url.startswith(marker, at):
                return url[:at], name
    elif f"/{_HUDI_PARTITION}" in url:
        at = url.rfind("/") + 1
        if url.startswith(_HUDI_PARTITION, at):
            return url[:at], "Hudi"
    elif url.endswith(_ICEBERG_ENDS):  # of a table around the folder too, whose metadata alone is listed
        at = url.rfind("/", 0, url.rfind("/")) + 1
        if _ICEBERG.fullmatch(url, at):
            return url[:at], "Iceberg"
    elif "/ducklake-" in url:
        at = url.rfind("/") + 1
        if _DUCKLAKE.fullmatch(url, at):
            return url[:at], "DuckLake"
    elif "/snapshot/" in url or "base_0" in url or "delta_0" in url:
        return _paimon_or_hive(url, start)
    return None


def _paimon_or_hive(url: str, start: int) -> tuple[str, str] | None:
    at = url.rfind("/", 0, url.rfind("/")) + 1
    if _PAIMON.fullmatch(url, at):
        return url[:at], "Paimon"
    transaction = _HIVE.search(url, start)
    return None if transaction is None else (url[: transaction.start()], "transactional Hive")


def unseen_folders(runtime: Runtime, prefixes: Sequence[str]) -> list[str]:
    """Return the folders around ``prefixes`` (see :func:`folders_around`) that this session does not know to be no
    tables."""
    folders = sorted({folder for prefix in prefixes for folder in folders_around(prefix)})
    return [folder for folder in folders if folder not in runtime.plain_folders]


async def first_table(
    runtime: Runtime, store: Store, folders: Sequence[str], context: RequestContext
) -> FoundTable | None:
    """Return the first table whose folder is one of ``folders``; None if there is none, or none that can be looked for:
    the store lists no folders, or refuses to."""
    if not isinstance(store, FolderStore):
        return None
    formats = await results_of([_format_of(store, folder, context) for folder in folders])
    found: FoundTable | None = None
    for folder, format_ in zip(folders, formats, strict=True):
        if format_ is None:
            runtime.plain_folders[folder] = True
        elif format_ and found is None:
            found = FoundTable(format_, folder)
    return found


def folders_around(prefix: str) -> list[str]:
    """Return urls of the folders that may be those of tables whose data files begin with ``prefix``, by the names of
    the folders in between; those whose own files begin with ``prefix`` are left out."""
    protocol, rest = split_url(prefix)
    if protocol == "file":
        folder, name = os.path.split(rest)
        prefix = os.path.join(local_path(folder), name)
        begin = 1
    else:
        begin = len(prefix) - len(rest) + rest.find("/") + 1
        if "/" not in rest:
            return []
    end = prefix.rfind("/") + 1
    folders = [prefix[:end]] if end < len(prefix) else []
    partitions = True  # all folders between are those of partitions
    for name in reversed(prefix[begin : end - 1].split("/") if end > begin else ()):
        end -= len(name) + 1
        may_be = name == _DATA or (partitions and _RANDOM_PREFIX.fullmatch(name) is not None)
        partitions = partitions and _PARTITION.fullmatch(name) is not None
        if may_be or partitions:
            folders.append(prefix[:end])
    return folders[:_MOST_AROUND]


async def _format_of(store: FolderStore, folder: str, context: RequestContext) -> str | None:
    """Return the format of the table whose folder is ``folder``; None if it is no table or cannot be looked into, "" if
    that failed for once."""
    try:
        names, is_whole = await store.first_names(folder, context=context)
        marked = _format_in(folder, names)
        if marked is not None:
            return marked
        below = [folder + name for name in _METADATA if folder + name in names or not is_whole]
        if not is_whole:  # more names than a page of the listing has
            below += [folder + marker for marker, _ in _FOLDERS]
        for names, _ in await results_of([store.first_names(url, context=context) for url in below]):
            marked = marked or _format_in(folder, names)
        return marked
    except (AccessDeniedError, UnsupportedStoreError) as error:
        logger.debug("%s: is not looked into for a table: %s", safe_url(folder), error)
        return None
    except StoreError as error:
        logger.debug("%s: cannot be looked into for a table now: %s", safe_url(folder), error)
        return ""


def _format_in(folder: str, names: Sequence[str]) -> str | None:
    """Return the format of the table ``folder`` that a file or folder of ``names`` marks."""
    marks = (_marked(name, len(folder)) for name in names)
    return next((mark[1] for mark in marks if mark is not None and mark[0] == folder and mark[1] != "DuckLake"), None)
