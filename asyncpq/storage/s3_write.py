"""What writes send to S3, as both carriers are told: signed by asyncpq, or by s3fs's client. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, unescape

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError
from asyncpq.storage.creating import ObjectExistsError, cannot_create
from asyncpq.storage.responses import RangeRequest

_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,2000})</UploadId>")
_HINT = "Writing needs s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects."
#: The most of an answer that is read: those to writes are short.
ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """What is used of an answer: an object's or part's ETag, or the id of an upload."""

    etag: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True)
class WriteCall:
    """One request.

    Attributes:
        operation: of botocore's client. arguments: to it, besides bucket, key and body.
        method, query, content: as they are sent without it.
        create: with If-None-Match.
        etag, upload_id: what a good answer must have.
    """

    operation: str
    method: str
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    create: bool = False
    etag: bool = False
    upload_id: bool = False


def put(data: bytes, *, create: bool) -> WriteCall:
    """PutObject; ``create``: only where there is no object."""
    arguments = {"Body": data, "IfNoneMatch": "*"} if create else {"Body": data}
    return WriteCall("put_object", "PUT", content=data, arguments=arguments, create=create, etag=True)


def delete() -> WriteCall:
    """DeleteObject."""
    return WriteCall("delete_object", "DELETE")


def begin_upload() -> WriteCall:
    """CreateMultipartUpload."""
    return WriteCall("create_multipart_upload", "POST", {"uploads": ""}, upload_id=True)


def upload_part(upload_id: str, number: int, data: bytes) -> WriteCall:
    """UploadPart; ``number`` from 1."""
    query = {"partNumber": str(number), "uploadId": upload_id}
    arguments = {"UploadId": upload_id, "PartNumber": number, "Body": data}
    return WriteCall("upload_part", "PUT", query, data, arguments, etag=True)


def complete_upload(upload_id: str, etags: Sequence[str], *, create: bool) -> WriteCall:
    """CompleteMultipartUpload of parts from 1 on; ``create``: only where there is no object."""
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    listed = "".join(
        f"<Part><PartNumber>{part['PartNumber']}</PartNumber><ETag>{escape(str(part['ETag']))}</ETag></Part>"
        for part in parts
    )
    document = (
        f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{listed}</CompleteMultipartUpload>'
    )
    arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
    if create:
        arguments["IfNoneMatch"] = "*"
    query = {"uploadId": upload_id}
    return WriteCall("complete_multipart_upload", "POST", query, document.encode(), arguments, create=create)


def abort_upload(upload_id: str) -> WriteCall:
    """AbortMultipartUpload."""
    return WriteCall("abort_multipart_upload", "DELETE", {"uploadId": upload_id}, arguments={"UploadId": upload_id})


def parse_upload_id(body: bytes) -> str | None:
    """Of the answer to CreateMultipartUpload."""
    found = _UPLOAD_ID.search(body)
    return unescape(found[1].decode("utf-8", "replace")) if found is not None else None


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """The ETag that S3 gives an object of these parts; None where theirs are not MD5 sums."""
    try:
        sums = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return None
    return f'"{hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"'


def write_error(call: WriteCall, request: RangeRequest, status: int, code: str) -> AsyncpqError | None:
    """What a refusal stands for where reads have nothing like it."""
    if call.create and (status == 412 or code == "PreconditionFailed"):
        return ObjectExistsError("there is an object already", url=request.url)
    if call.create and (status == 501 or code == "NotImplemented"):
        return cannot_create("the store", request.url)
    return None


def explained(error: AsyncpqError) -> AsyncpqError:
    """With the permission that it is about."""
    if isinstance(error, AccessDeniedError) and not isinstance(error, CredentialsError):
        error.hint = _HINT
    return error
