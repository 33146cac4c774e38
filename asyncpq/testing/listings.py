"""What :class:`~asyncpq.testing.server.ObjectServer` answers to ListObjectsV2."""

from __future__ import annotations

import base64
import time
from bisect import bisect_right
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote_plus
from xml.sax.saxutils import escape

from asyncpq.testing.answers import Answer, LoggedRequest, ServedObject, error_answer
from asyncpq.testing.faults import Fault


def listing_query(request: LoggedRequest) -> dict[str, str] | None:
    """The parameters of a LIST; None for another request."""
    query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
    bucket = request.path[1:].rstrip("/")
    return query if request.method == "GET" and query.get("list-type") == "2" and "/" not in bucket else None


def answer_list(
    query: Mapping[str, str], bucket: str, objects: Mapping[str, ServedObject], page_keys: int, fault: Fault
) -> Answer:
    """One page of at most ``page_keys`` keys and folders of ``objects``, which are named "bucket/key"."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after, token = query.get("start-after", ""), query.get("continuation-token")
    if fault.ignore_start_after:
        after = ""
    if token is not None:
        try:
            after = base64.urlsafe_b64decode(token).decode()
        except ValueError:
            return error_answer(400, "InvalidArgument")
    if fault.endless_listing:
        after, token = "", None
    most = min(int(query.get("max-keys", page_keys)), page_keys)
    root = f"{bucket}/"
    keys = sorted(path[len(root) :] for path in objects if path.startswith(root + prefix))
    entries: list[str] = []
    at = bisect_right(keys, after)
    while at < len(keys) and len(entries) <= most:
        key = keys[at]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            entries.append(key)
            at += 1
            continue
        folder = key[: cut + len(delimiter)]
        if token is None or folder != after:  # the token says that this one was told
            entries.append(folder)
        while at < len(keys) and keys[at].startswith(folder):
            at += 1
    more = len(entries) > most or fault.endless_listing
    return _page(query, bucket, entries[:most], more, objects, delimiter)


def _page(
    query: Mapping[str, str],
    bucket: str,
    entries: list[str],
    more: bool,
    objects: Mapping[str, ServedObject],
    delimiter: str,
) -> Answer:
    def coded(text: str) -> str:
        if query.get("encoding-type") == "url":
            return quote_plus(text, safe="/")
        return "".join(mark if mark >= " " else f"&#x{ord(mark):x};" for mark in escape(text))  # as S3: no XML 1.0

    prefix = query.get("prefix", "")
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{escape(bucket)}</Name><Prefix>{coded(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>",
        f"<IsTruncated>{str(more).lower()}</IsTruncated>",
    ]
    if query.get("encoding-type") == "url":
        parts.append("<EncodingType>url</EncodingType>")
    if more:
        token = base64.urlsafe_b64encode((entries[-1] if entries else "").encode()).decode() or "none"
        parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    for entry in entries:
        if delimiter and delimiter in entry[len(prefix) :]:
            parts.append(f"<CommonPrefixes><Prefix>{coded(entry)}</Prefix></CommonPrefixes>")
            continue
        served = objects[f"{bucket}/{entry}"]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(served.modified))
        parts.append(
            f"<Contents><Key>{coded(entry)}</Key><LastModified>{stamp}</LastModified>"
            f"<ETag>{escape(served.etag, {chr(34): '&quot;'})}</ETag><Size>{len(served.data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    parts.append("</ListBucketResult>")
    return Answer(200, {"Content-Type": "application/xml"}, "".join(parts).encode())
