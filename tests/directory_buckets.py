"""Directory buckets of S3 Express One Zone, as AWS documents them: a gate before an ObjectServer.

The gate checks the signature and every header of each request by its own means, opens sessions, and lists in no order.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
import secrets
import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from asyncpq.testing import Answer, LoggedRequest, ObjectServer, ServedObject
from asyncpq.testing.object_server import error_answer

BUCKET = "data--use1-az4--x-s3"
REGION = "us-east-1"
OWN_KEY, OWN_SECRET, OWN_TOKEN = "AKUSER", "own/secret+", "own-token/+=="

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/([a-z0-9]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)
_REFUSED_HEADERS = ("x-amz-request-payer", "x-amz-server-side-encryption-customer-key")


@dataclass(slots=True)
class OpenSession:
    """A session that the gate has opened."""

    key: str
    secret: str
    token: str
    mode: str
    until: float


class DirectoryBuckets:
    """The gate. ``modes`` are those that the policy allows; ``lasts_s`` is how long new sessions last."""

    def __init__(self, server: ObjectServer) -> None:
        self.server = server
        self.modes = {"ReadWrite", "ReadOnly"}
        self.lasts_s = 300.0
        self.skew_s = 0.0  # by which the gate's clock is ahead
        self.page_keys = 1000
        self.sessions: dict[str, OpenSession] = {}  # by access key
        self.refused: list[str] = []  # codes of refused requests
        server.before = self.answer
        server.buckets.add(BUCKET)

    @property
    def storage_options(self) -> dict[str, Any]:
        own = {"key": OWN_KEY, "secret": OWN_SECRET, "token": OWN_TOKEN}
        return {**own, "endpoint_url": self.server.endpoint, "client_kwargs": {"region_name": REGION}}

    def put(self, key: str, data: bytes) -> ServedObject:
        """Store an object, whose ETag is no MD5."""
        return self.server.put(f"{BUCKET}/{key}", data, etag=f'"{secrets.token_hex(16)}z"')

    def end_sessions(self) -> None:
        """Let all sessions be expired."""
        for session in self.sessions.values():
            session.until = 0.0

    @property
    def opened(self) -> int:
        """The number of requests to open a session."""
        return sum("?session" in request.target for request in self.server.log)

    def answer(self, request: LoggedRequest) -> Answer | None:
        if request.headers["host"].startswith(f"{BUCKET}."):
            request.path = f"/{BUCKET}{request.path}"
        answer = self._answer(request)
        if answer is not None:
            answer.headers.setdefault("Date", formatdate(self._now(), usegmt=True))
            if answer.status >= 400:
                self.refused.append(f"{answer.status} {answer.body.decode().partition('<Code>')[2].partition('<')[0]}")
        return answer

    def _now(self) -> float:
        return time.time() + self.skew_s

    def _answer(self, request: LoggedRequest) -> Answer | None:
        query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
        found = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if found is None:
            return error_answer(403, "AccessDenied")
        if found[3] != REGION or found[4] != "s3express":
            return error_answer(400, "AuthorizationHeaderMalformed")
        if "session" in query:
            return self._check(request, found, OWN_SECRET if found[1] == OWN_KEY else "") or self._open(request)
        session = self.sessions.get(found[1])
        if session is None:
            return error_answer(403, "InvalidAccessKeyId")
        refused = self._check(request, found, session.secret) or self._check_session(request, session, query)
        if refused is not None:
            return refused
        if "list-type" in query:
            return self._list(query)
        if request.method == "PUT" and "uploadId" not in query:
            return self._put(request)
        return None

    def _check(self, request: LoggedRequest, found: re.Match[str], secret: str) -> Answer | None:
        """Return the refusal of a request that is not signed by ``secret`` with all that it says."""
        headers = request.headers
        _, day, region, service, names, signature = found.groups()
        signed = names.split(";")
        must = {"host"} | {name for name in headers if name.startswith("x-amz-")}
        if signed != sorted(signed) or not must <= set(signed):
            return error_answer(403, "AccessDenied")
        stamp, payload = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
        sent = time.strptime(stamp, "%Y%m%dT%H%M%SZ")
        if abs(self._now() - (time.mktime(sent) - time.timezone)) > 900:
            return error_answer(403, "RequestTimeTooSkewed")
        if payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(request.body).hexdigest()) or (
            request.body and payload == "UNSIGNED-PAYLOAD"
        ):
            return error_answer(400, "XAmzContentSHA256Mismatch")
        path, _, query = request.target.partition("?")
        parameters = sorted(parse_qsl(query, keep_blank_values=True))
        canonical_query = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in parameters)
        lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed)
        canonical = "\n".join([request.method, path, canonical_query, lines, names, payload])
        scope = f"{day}/{region}/{service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        if hmac.new(key, text.encode(), "sha256").hexdigest() != signature:
            return error_answer(403, "SignatureDoesNotMatch")
        return None

    def _check_session(self, request: LoggedRequest, session: OpenSession, query: dict[str, str]) -> Answer | None:
        headers = request.headers
        if headers.get("x-amz-s3session-token") != session.token or "x-amz-security-token" in headers:
            return error_answer(400, "InvalidToken")
        if self._now() >= session.until:
            return error_answer(400, "ExpiredToken")
        if any(name in headers for name in _REFUSED_HEADERS) or "versionId" in query:
            return error_answer(501, "NotImplemented")
        if request.method not in ("GET", "HEAD") and session.mode != "ReadWrite":
            return error_answer(403, "AccessDenied")
        return None

    def _open(self, request: LoggedRequest) -> Answer:
        headers = request.headers
        if headers.get("x-amz-security-token") != OWN_TOKEN or "x-amz-s3session-token" in headers:
            return error_answer(400, "InvalidToken")
        if not request.path.startswith(f"/{BUCKET}"):
            return error_answer(404, "NoSuchBucket")
        asked = headers.get("x-amz-create-session-mode")
        mode = next((mode for mode in ("ReadWrite", "ReadOnly") if mode in self.modes and asked in (None, mode)), None)
        if mode is None:
            return error_answer(403, "AccessDenied")
        number = len(self.sessions) + 1
        made = OpenSession(
            f"AKSESSION{number}", secrets.token_urlsafe(30), f"session-{number}/+==&", mode, self._now() + self.lasts_s
        )
        self.sessions[made.key] = made
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made.until))
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Credentials>'
            f"<SessionToken>{escape(made.token)}</SessionToken><SecretAccessKey>{made.secret}</SecretAccessKey>"
            f"<AccessKeyId>{made.key}</AccessKeyId><Expiration>{until}</Expiration></Credentials></CreateSessionResult>"
        )
        return Answer(200, {"Content-Type": "application/xml"}, text.encode())

    def _put(self, request: LoggedRequest) -> Answer:
        path = request.path[1:]
        if request.headers.get("if-none-match") == "*" and path in self.server.objects:
            return error_answer(412, "PreconditionFailed")
        return Answer(200, {"ETag": self.put(path.partition("/")[2], request.body).etag})

    def _list(self, query: dict[str, str]) -> Answer:
        """Return a page of a listing, in an order that is always the same and of no meaning."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        if "start-after" in query or (prefix and not prefix.endswith("/")) or delimiter not in (None, "/"):
            return error_answer(400, "InvalidRequest")
        root = f"{BUCKET}/"
        keys = [path[len(root) :] for path in self.server.objects if path.startswith(root + prefix)]
        entries = sorted({_rolled_up(key, prefix) for key in keys}) if delimiter else sorted(keys)
        # folder by folder, as the service does, but with the folders and what is in them in any order
        folders = sorted({key.rpartition("/")[0] for key in entries}, key=lambda folder: random.Random(folder).random())
        places = {folder: place for place, folder in enumerate(folders)}
        entries.sort(key=lambda key: (places[key.rpartition("/")[0]], random.Random(key).random()))
        first = int(query.get("continuation-token", "token-0").partition("-")[2])
        last = first + min(int(query.get("max-keys", self.page_keys)), self.page_keys)
        parts = [f"<IsTruncated>{str(last < len(entries)).lower()}</IsTruncated>"]
        if last < len(entries):
            parts.append(f"<NextContinuationToken>token-{last}</NextContinuationToken>")
        for entry in entries[first:last]:
            served = self.server.objects.get(root + entry)
            if served is None:
                parts.append(f"<CommonPrefixes><Prefix>{escape(entry)}</Prefix></CommonPrefixes>")
                continue
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(served.modified))
            parts.append(
                f"<Contents><Key>{escape(entry)}</Key><LastModified>{stamp}</LastModified>"
                f"<ETag>{escape(served.etag)}</ETag><Size>{len(served.data)}</Size></Contents>"
            )
        text = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(parts)}</ListBucketResult>'
        return Answer(200, {"Content-Type": "application/xml"}, text.encode())


def _rolled_up(key: str, prefix: str) -> str:
    end = key.find("/", len(prefix))
    return key if end < 0 else key[: end + 1]
