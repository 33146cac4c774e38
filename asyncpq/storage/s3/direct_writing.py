"""The request that writes one key of a :class:`asyncpq.storage.s3.direct.DirectBucket`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from asyncpq.errors import AsyncpqError, TransportError
from asyncpq.storage.base import Validator
from asyncpq.storage.responses import WRITING_HINT, ExpectedBody, RangeRequest, error_in_200, parse_error
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.direct import ANSWER_BYTES, DirectBucket, SignedExchange
from asyncpq.storage.s3.sigv4 import canonical_query
from asyncpq.storage.s3.writer import WriteAnswer, WriteCall, parse_upload_id, write_error


class S3Write(SignedExchange):
    """A write request, whose signature covers the digest of its content."""

    denied_hint = WRITING_HINT

    def __init__(self, bucket: DirectBucket, path: str, call: WriteCall, url: str) -> None:
        self.request: RangeRequest = RangeRequest(0, len(call.content), url)
        self._bucket = bucket
        self._path = path
        self._targets = {}
        self._call = call
        self.method: str = call.method
        self.content: bytes = call.content
        self.has_content: bool = call.method == "PUT" or "uploads" in call.query
        self.payload_sha256: str | None = hashlib.sha256(call.content).hexdigest()
        self.answer: WriteAnswer = WriteAnswer()
        self._etag: str | None = None

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        return canonical_query(**self._call.query), {"if-none-match": "*"} if self._call.create else {}

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        self._etag = headers.get("etag")
        if self._call.etag and self._etag is None:
            return None  # S3 always sends an ETag: this may be an error document
        return ExpectedBody(0, ANSWER_BYTES, Validator(0), check=self._check)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        refusal = write_error(self._call, self.request, status, parse_error(body)[0])
        return refusal or super().refuse(status, headers, body)

    def _check(self, body: bytes) -> None:
        if parse_error(body)[0]:  # completing an upload may fail after the head was sent
            raise error_in_200(self.request, body, WRITING_HINT)
        self.answer = WriteAnswer(self._etag, parse_upload_id(body) if self._call.upload_id else None)
        if self._call.upload_id and self.answer.upload_id is None:
            raise RetryableError(TransportError("the store's response has no upload id", url=self.request.url))
