"""Urls of a Delta table's files. A log's paths are url-encoded, relative to the table or absolute."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.storage.urls import safe_url, split_url

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs"}
#: Urls of these protocols name a bucket or a path, but no host: a log may name a bucket other than the table's.
_HOSTLESS = ("s3", "gs", "file", "memory")


@dataclass(frozen=True, slots=True)
class DeltaRoot:
    """The folder of a Delta table.

    Attributes:
        url: as given, without a trailing slash.
    """

    url: str

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> DeltaRoot:
        """The root at a url or path."""
        text = os.fspath(url)
        return cls(text.rstrip("/") or text)

    @property
    def shown(self) -> str:
        """The url without secrets, for messages."""
        return safe_url(self.url)

    def join(self, path: str) -> str:
        """The url of a plain path under the table."""
        return f"{self.url}/{path}"

    def resolve(self, path: str) -> str:
        """The url of an action's path.

        Raises:
            CorruptFileError: the path cannot be decoded.
            UnsupportedFeatureError: the path is absolute and leads to another protocol or host than the table's own
                url: a log must not choose which servers are contacted.
        """
        match = _SCHEME.fullmatch(path)
        plain = self._decoded(path if match is None else match[2])
        if match is None:
            if not plain.startswith("/"):
                return self.join(plain)
            if self._protocol != "file":
                raise self._refused(path)
            return plain
        protocol = _SAME.get(match[1].lower(), match[1].lower())
        if protocol != self._protocol:
            raise self._refused(path)
        if protocol == "file":
            return "/" + plain.lstrip("/")
        own_protocol, own_rest = split_url(self.url)
        rest = plain.removeprefix("//")
        if protocol not in _HOSTLESS and rest.partition("/")[0] != own_rest.partition("/")[0]:
            raise self._refused(path)
        return f"{own_protocol}://{rest}"

    def _decoded(self, path: str) -> str:
        try:
            return unquote(path, errors="strict")
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"path {path!r} is not url-encoded UTF-8", url=self.shown) from error

    @property
    def _protocol(self) -> str:
        protocol = split_url(self.url)[0]
        return _SAME.get(protocol, protocol)

    def _refused(self, path: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"the Delta table names a file of another store, {safe_url(path)}, which is not read", url=self.shown
        )
