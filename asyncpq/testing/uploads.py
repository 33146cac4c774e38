"""What :class:`~asyncpq.testing.server.ObjectServer` answers to uploads of large objects in parts, as S3 has them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from asyncpq.testing.answers import Answer, LoggedRequest, ServedObject, error_answer

_PART = re.compile(rb"<PartNumber>(\d+)</PartNumber>")
_LEAST_PART_BYTES = 5 * 1024 * 1024


@dataclass(slots=True)
class Upload:
    """Parts by number, of an object "bucket/key" that is not there yet."""

    path: str
    parts: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """Those under way.

    Args:
        put: stores an object: its path, content and ETag.
    """

    def __init__(self, put: Callable[[str, bytes, str], ServedObject]) -> None:
        self.running: dict[str, Upload] = {}
        self._put = put

    def answer(self, request: LoggedRequest, path: str, exists: bool) -> Answer | None:
        """The answer to a request that is about an upload; None to another.

        Args:
            exists: an object is there, and the request was to be refused then.
        """
        query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
        if request.method == "POST" and "uploads" in query:
            name = secrets.token_urlsafe(24)
            self.running[name] = Upload(path)
            return _document("InitiateMultipartUploadResult", f"<UploadId>{escape(name)}</UploadId>")
        if "uploadId" not in query:
            return None
        upload = self.running.get(query["uploadId"])
        if upload is None or upload.path != path:
            return error_answer(404, "NoSuchUpload")
        if request.method == "PUT":
            upload.parts[int(query["partNumber"])] = request.body
            return Answer(200, {"ETag": _quoted(request.body)})
        if request.method == "DELETE":
            del self.running[query["uploadId"]]
            return Answer(204, {})
        if exists:
            return error_answer(412, "PreconditionFailed")
        return self._complete(query["uploadId"], upload, request)

    def _complete(self, name: str, upload: Upload, request: LoggedRequest) -> Answer:
        numbers = [int(number) for number in _PART.findall(request.body)]
        if not numbers or any(number not in upload.parts for number in numbers) or numbers != sorted(set(numbers)):
            return error_answer(400, "InvalidPart")
        parts = [upload.parts[number] for number in numbers]
        if any(len(part) < _LEAST_PART_BYTES for part in parts[:-1]):
            return error_answer(400, "EntityTooSmall")
        sums = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
        etag = f'"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(parts)}"'
        del self.running[name]
        self._put(upload.path, b"".join(parts), etag)
        return _document("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>")


def _quoted(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _document(name: str, content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{content}</{name}>'
    return Answer(200, {"Content-Type": "application/xml"}, text.encode())
