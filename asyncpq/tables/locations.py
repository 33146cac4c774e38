"""Where a table's metadata may say that its files are.

Whoever can write to a table chooses the locations in its metadata, and the session reads them with its user's rights.
So the metadata of a table in a remote store may name objects of that store alone: no local files, no other protocols
and, where urls name servers rather than buckets, no other server. Other buckets are allowed: shallow clones need them.
"""

from __future__ import annotations

import re
from typing import Final

from asyncpq.errors import UnsupportedFeatureError, UnsupportedStoreError
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url, split_url

_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs"}
#: Urls of these protocols begin with a bucket or a path, which names no server.
_SERVERLESS: Final = frozenset({"s3", "gs", "file", "memory", "az", "b2", "cos", "cosn", "obs", "oci", "oss", "tos"})
_AUTHORITY_ENDS: Final = re.compile(r"[/?#\\]")
_HINT: Final = "If you trust the table, copy the file beside it, or open the table's files by a list of their urls."


def store_protocol(protocol: str) -> str:
    """Return one name for all protocols of a store, such as "s3" for "s3a"."""
    return _SAME.get(protocol, protocol)


@dataclass(frozen=True, slots=True)
class TableStore:
    """The store of a table's metadata, in which its files must be, too."""

    table: str  # for messages
    protocol: str  # by :func:`store_protocol`
    server: str  # that urls of this protocol name; "" where they name none
    shown: str  # where the metadata is, for messages

    @classmethod
    def of(cls, table: str, url: str) -> TableStore:
        """Return the store of the metadata at ``url``, a url or a local path."""
        return cls(table, *_store(url), safe_url(url))

    def check(self, url: str) -> None:
        """Raise UnsupportedFeatureError if ``url`` is in another store, unless the table's metadata is local."""
        if self.protocol != "file" and not self.has(url):
            raise another_store(self.table, url, self.shown)

    def has(self, url: str) -> bool:
        """Return whether ``url``, as the table's metadata writes it, is in this store."""
        try:
            return _store(url) == (self.protocol, self.server)
        except UnsupportedStoreError:  # a chain of filesystems
            return False


def another_store(table: str, url: str, shown: str) -> UnsupportedFeatureError:
    """Return the error for a table whose metadata names ``url``, a file in another store than its own. ``shown``: where
    the metadata is, for messages."""
    return UnsupportedFeatureError(
        f"{table} names a file of another store, which is not allowed: {safe_url(url)}", url=shown, hint=_HINT
    )


def _store(url: str) -> tuple[str, str]:
    protocol, rest = split_url(url)
    protocol = store_protocol(protocol)
    if protocol in _SERVERLESS:
        return protocol, ""
    authority = _AUTHORITY_ENDS.split(rest, maxsplit=1)[0].lower()
    return protocol, authority.rpartition("@")[2] if protocol == "abfs" else authority  # container@account
