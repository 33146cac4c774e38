"""Facts that urls and table objects tell about what they name, without a request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from asyncpq.storage.urls import ICEBERG_METADATA, absolute, local_path, names_bucket, safe_url, split_url
from asyncpq.typing import TableVersion

if TYPE_CHECKING:
    from asyncpq.datasets.partitioning import Partitioning

__all__ = [
    "UrlFacts",
    "absolute_target",
    "default_index_url",
    "hive_ignoring_case",
    "opens_table",
    "safe_url",
    "url_facts",
]


class UrlFacts:
    """Facts that the text of a url tells. Made by :func:`url_facts`."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def many(self) -> bool:
        """Whether the url names many files, for :meth:`asyncpq.Session.open_dataset`: a prefix that ends in a slash, a
        bucket, a pattern, an existing local folder or a table. If False, it may name a file, or a prefix without
        slash."""
        url = self._url
        if url.endswith(("/", *ICEBERG_METADATA)) or "*" in url:
            return True
        return names_bucket(url) or os.path.isdir(url)

    @property
    def table_format(self) -> Literal["iceberg"] | None:
        """The format "iceberg" if the url names the metadata file of an Iceberg table; else None."""
        return "iceberg" if self._url.endswith(ICEBERG_METADATA) else None

    @property
    def protocol(self) -> str:
        """The protocol in lower case, such as "s3"; "file" for local files and paths."""
        return split_url(self._url)[0]

    @property
    def key(self) -> str:
        """The url without its protocol: bucket and key, or the absolute path of a local file."""
        protocol, rest = split_url(self._url)
        return local_path(self._url) if protocol == "file" else rest

    @property
    def hidden(self) -> bool:
        """Whether listings skip a file of this name, as Hadoop does: ``_SUCCESS``, ``.part-0.crc``, unfinished copies,
        markers of folders."""
        from asyncpq.datasets.listing import COPYING, FOLDER_MARKER, HIDDEN  # most doors need none of it

        name = self._url.rpartition("/")[2]
        return name.startswith(HIDDEN) or name.endswith((COPYING, FOLDER_MARKER))


def url_facts(url: str) -> UrlFacts:
    """Return facts about what a url names, such as its protocol, without a request."""
    return UrlFacts(url)


def absolute_target(target: Any) -> Any:
    """Return a target of :meth:`asyncpq.Session.open_dataset` with absolute local paths, for processes with another
    working folder. Urls, tables and other values stay as they are."""
    return absolute(target)


def opens_table(
    target: Any, format: Literal["parquet", "delta", "iceberg"] | None, version: TableVersion | None
) -> bool:
    """Return whether :meth:`asyncpq.Session.open_dataset` opens a table with these arguments. Raises InvalidOptionError
    for a ``version`` or ``format`` that does not fit ``target``."""
    from asyncpq.tables import catalog_of  # which loads the format's reader

    return catalog_of(target, format, version) is not None


def default_index_url(prefix: str) -> str:
    """Return the url of the index that reads of a prefix use by default: where
    :meth:`asyncpq.Session.build_index` without ``at`` writes it."""
    from asyncpq.datasets.listing import INDEX_FOLDER  # the command line needs it for nothing else

    return f"{prefix.rstrip('/')}/{INDEX_FOLDER}"


def hive_ignoring_case() -> Partitioning:
    """Return a value for ``partitioning=`` of :meth:`asyncpq.Session.open_dataset`, for engines whose column names
    ignore case, such as Spark and Hive: "hive", with ``P=1/`` and ``p=2/`` as values of one column. The column has the
    spelling of the first path."""
    from asyncpq.datasets.partitioning import Partitioning  # the command line needs none of it

    return Partitioning(ignore_case=True)
