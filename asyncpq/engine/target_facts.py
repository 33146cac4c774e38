"""What the text of a url says, without a request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from asyncpq.storage.urls import ICEBERG_METADATA, names_bucket, safe_url, split_url

if TYPE_CHECKING:
    from asyncpq.datasets.partitioning import Partitioning

__all__ = ["UrlFacts", "default_index_url", "hive_ignoring_case", "safe_url", "url_facts"]


class UrlFacts(NamedTuple):
    """What the text of a url says.

    Attributes:
        many: it names many files, for :meth:`asyncpq.Session.open_dataset`: a prefix, a bucket, a pattern, a local
            folder or a table. If False, it may name one file or a prefix without its slash: only the store knows.
        table_format: the format of the table whose metadata it names; None if it does not say.
        protocol: in lower case, such as "s3"; "file" for local files and paths.
    """

    many: bool
    table_format: Literal["iceberg"] | None
    protocol: str


def url_facts(url: str) -> UrlFacts:
    """Return what the text of a url says about what it names. It looks whether a local path is a folder."""
    table_format: Literal["iceberg"] | None = "iceberg" if url.endswith(ICEBERG_METADATA) else None
    return UrlFacts(_names_many(url), table_format, split_url(url)[0])


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


def _names_many(url: str) -> bool:
    """Return whether the text of ``url`` shows that it names many files: a prefix, a bucket, a pattern, a local folder
    or an Iceberg table's metadata."""
    if url.endswith(("/", *ICEBERG_METADATA)) or "*" in url:
        return True
    return names_bucket(url) or os.path.isdir(url)
