"""The files that a Delta table's log names: urls of data files, and deletion vectors in files or inline.

A log's paths are url-encoded, relative to the table or absolute. Inline vectors are Z85 text.
:mod:`asyncpq.tables.deleted_rows` reads the vectors. PROTOCOL.md, "Deletion Vectors".
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url, split_url
from asyncpq.tables.deleted_rows import DeletionVector

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs"}
#: Urls of these protocols name a bucket or a path, but no host: a log may name a bucket other than the table's.
_HOSTLESS = ("s3", "gs", "file", "memory")
_UUID_CHARACTERS = 20
_FRAME_BYTES = 8
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"  # RFC 1924
_TO_B85 = str.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True)
class DeltaRoot:
    """The folder of a Delta table."""

    url: str  # as given, without a trailing slash

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> DeltaRoot:
        """Return the root for a url or path."""
        text = os.fspath(url)
        return cls(text.rstrip("/") or text)

    @property
    def shown(self) -> str:
        """The url without secrets, for messages."""
        return safe_url(self.url)

    def join(self, path: str) -> str:
        """Return the url of ``path``, which is relative to the table's folder and not url-encoded."""
        return f"{self.url}/{path}"

    def resolve(self, path: str) -> str:
        """Return the url of the file that an action names by a url-encoded path.

        Raises CorruptFileError if the path cannot be decoded; UnsupportedFeatureError if the path is absolute and leads
        to another protocol or host than the table's own url: a log must not choose which servers are contacted.
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
            f"the Delta table names a file of another store, which is not allowed: {safe_url(path)}", url=self.shown
        )


@dataclass(frozen=True, slots=True)
class VectorDescriptor:
    """The deletion vector descriptor of an ``add`` or ``remove`` action."""

    storage: str  # "u" for a file with a relative path, "p" for one with an absolute path, "i" for an inline vector
    text: str  # the file's name, or the inline vector
    offset: int | None  # where the vector begins in the file; None where the action does not say
    size: int  # bytes of the vector without its frame
    cardinality: int  # number of deleted rows

    @classmethod
    def from_action(cls, action: Mapping[str, Any] | None) -> VectorDescriptor | None:
        """Decode the ``deletionVector`` of an action. Raises TypeError, ValueError or KeyError if it is malformed."""
        if action is None:
            return None
        storage, text, offset = action["storageType"], action["pathOrInlineDv"], action.get("offset")
        numbers = (action["sizeInBytes"], action["cardinality"], 0 if offset is None else offset)
        if not all(isinstance(part, str) for part in (storage, text)) or any(type(n) is not int for n in numbers):
            raise TypeError(f"the deletion vector has a field of a wrong type: {dict(action)}")
        if min(numbers) < 0:
            raise ValueError(f"the deletion vector has a negative number: {dict(action)}")
        return cls(storage, text, offset, numbers[0], numbers[1])

    @property
    def unique_id(self) -> str:
        """A text that distinguishes the deletion vectors of one data file."""
        return f"{self.storage}{self.text}" if self.offset is None else f"{self.storage}{self.text}@{self.offset}"

    def resolve(self, root: DeltaRoot, data_url: str) -> DeletionVector:
        """Return the vector, with the url of its own file, that deletes rows of the data file ``data_url``."""
        inline = None
        url = root.shown
        try:
            if self.storage == "i":
                inline = self._inline()
            elif self.storage == "u":
                prefix, name = self.text[:-_UUID_CHARACTERS], self.text[-_UUID_CHARACTERS:]
                file_name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(name))}.bin"
                url = root.join(f"{prefix}/{file_name}" if prefix else file_name)
            elif self.storage == "p":
                url = root.resolve(self.text)
            else:
                raise UnsupportedFeatureError(
                    f"asyncpq does not support deletion vectors of storage type {self.storage!r}", url=url
                )
        except ValueError as error:
            raise CorruptFileError(f"malformed deletion vector {self.text[:64]!r}: {error}", url=root.shown) from error
        start = self.offset or 0
        return DeletionVector(
            url=url,
            start=start,
            stop=start + self.size + _FRAME_BYTES,
            inline=inline,
            cardinality=self.cardinality,
            data_url=data_url,
        )

    def _inline(self) -> bytes:
        padded = decode_z85(self.text)
        if not 0 <= len(padded) - self.size < 4:
            raise ValueError(f"it has {len(padded)} bytes for a vector of {self.size}")
        return padded[: self.size]


def decode_z85(text: str) -> bytes:
    """Decode Z85 text (ZeroMQ RFC 32): five characters for four bytes. Raises ValueError if the text is malformed."""
    if len(text) % 5:
        raise ValueError(f"Z85 text has {len(text)} characters, which is not a multiple of 5")
    if not set(text) <= set(_Z85):
        raise ValueError("the text has a character that Z85 does not have")
    return base64.b85decode(text.translate(_TO_B85))
