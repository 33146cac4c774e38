"""Messages of HTTP/1.1 (RFC 9112): a response's head, and the chunked transfer coding. Pure."""

from __future__ import annotations

import re

_MAX_LINE_BYTES = 8 * 1024
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?", re.ASCII)
_KNOWN_STATUS_LINES = {"HTTP/1.1 206 Partial Content": (206, 1), "HTTP/1.1 200 OK": (200, 1)}
# A header field with the line end before it; leading blanks of a value do not belong to it.
_FIELD = re.compile(r"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

#: Field names as a server sends them, always the same ones, to lower case.
_lower_names: dict[tuple[str, ...], tuple[str, ...]] = {}
_MAX_LOWER_NAMES = 256


class ProtocolError(Exception):
    """What came is not an HTTP/1.1 response."""


def parse_head(head: str) -> tuple[int, int, dict[str, str]]:
    """Status, minor version and headers of a response's head, without its final empty line.

    Headers by lower-cased name; of repeated ones the first counts.

    Raises:
        ProtocolError: it is none.
    """
    end = head.find("\r\n")
    if end < 0:
        end = len(head)
    known = _KNOWN_STATUS_LINES.get(head[:end])
    if known is None:
        status_line = _STATUS_LINE.fullmatch(head, 0, end)
        if status_line is None:
            raise ProtocolError("the answer is not HTTP/1.1")
        known = int(status_line[2]), int(status_line[1])
    found = _FIELD.findall(head, end)
    if not len(found) == head.count("\n") == head.count("\r") or "\0" in head:
        raise ProtocolError("a header is malformed")
    if not found:
        return *known, {}
    names, values = zip(*found, strict=True)
    lower = _lower_names.get(names)
    if lower is None:
        if len(_lower_names) >= _MAX_LOWER_NAMES:
            _lower_names.clear()
        lower = _lower_names[names] = tuple([name.lower() for name in names])
    if " \r" in head or "\t\r" in head or head[-1] in " \t":
        values = tuple([value.rstrip(" \t") for value in values])
    fields = dict(zip(lower, values, strict=True))
    if len(fields) < len(found):
        fields = dict(zip(reversed(lower), reversed(values), strict=True))
        if len({value for name, value in zip(lower, values, strict=True) if name == "content-length"}) > 1:
            raise ProtocolError("the response has two lengths")
    return *known, fields


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
