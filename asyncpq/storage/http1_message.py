"""Messages of HTTP/1.1 (RFC 9112): a response's head, and the chunked transfer coding. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_MAX_LINE_BYTES = 8 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
# A header field with the line end before it; leading blanks of a value do not belong to it.
_FIELD = re.compile(rb"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class ProtocolError(Exception):
    """What came is not an HTTP/1.1 response."""


class Headers(Mapping[str, str]):
    """Header fields; names are compared without case, of repeated ones the first counts."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        """``fields`` by lower-cased name."""
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower().encode()].rstrip(b" \t").decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode() in self._fields

    def get(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(name.lower().encode())
        return default if value is None else value.rstrip(b" \t").decode("utf-8", "surrogateescape")


def parse_head(head: bytes) -> tuple[int, int, Headers]:
    """Status, minor version and headers of a response's head, without its final empty line.

    Raises:
        ProtocolError: it is none.
    """
    end = head.find(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(head, 0, len(head) if end < 0 else end)
    if status_line is None:
        raise ProtocolError("the answer is not HTTP/1.1")
    found = _FIELD.findall(head, status_line.end())
    if not len(found) == head.count(b"\n") == head.count(b"\r") or b"\0" in head:
        raise ProtocolError("a header is malformed")
    found.reverse()  # the first of several counts
    fields = {name.lower(): value for name, value in found}
    if len(fields) < len(found):
        lengths = {value for name, value in found if name.lower() == b"content-length"}
        if len(lengths) > 1:
            raise ProtocolError("the response has two lengths")
    return int(status_line[2]), int(status_line[1]), Headers(fields)


class ChunkedBody:
    """The chunked transfer coding (RFC 9112, section 7.1).

    Attributes:
        data: decoded so far.
        over: bytes follow the end.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.over = False
        self._pending = b""
        self._left = 0  # bytes of the present chunk to come
        self._behind_chunk = False  # at the line end that closes a chunk
        self._in_trailers = False

    def feed(self, coded: bytes) -> bool:
        """Take the next bytes; True at the end of the body."""
        coded = self._pending + coded
        at = 0
        while True:
            if self._left:
                part = coded[at : at + self._left]
                self.data += part
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._behind_chunk = True
            end = coded.find(b"\r\n", at)
            if end < 0:
                if len(coded) - at > _MAX_LINE_BYTES:
                    raise ProtocolError("a line of the chunked body is too long")
                break
            line, at = coded[at:end], end + 2
            if self._behind_chunk:
                if line:
                    raise ProtocolError("a chunk is longer than it says")
                self._behind_chunk = False
            elif self._in_trailers:
                if not line:
                    self.over = at < len(coded)
                    return True
            else:
                size = _CHUNK_SIZE.fullmatch(line)
                if size is None:
                    raise ProtocolError("a chunk's size is malformed")
                self._left = int(size[1], 16)
                self._in_trailers = self._left == 0
        self._pending = coded[at:]
        return False
