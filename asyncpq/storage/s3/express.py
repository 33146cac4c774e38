"""Sessions of directory buckets (S3 Express One Zone), whose short-lived credentials sign all requests for objects.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateSession.html. A store has one session for each directory
bucket. All requests share its opening, and the next session is opened in the background before the present one expires.
Requests under way keep the credentials that signed them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from functools import partial
from typing import Any

from asyncpq.caching.single_flight import SingleFlight
from asyncpq.errors import AsyncpqError, CredentialsError, InvalidOptionError, InvalidResponseError
from asyncpq.records import dataclass
from asyncpq.storage.base import RequestContext, Unpicklable, Validator, http_date_s
from asyncpq.storage.response_checks import ExpectedBody, RangeRequest
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.direct import ANSWER_BYTES, DirectBucket, SignedExchange
from asyncpq.storage.s3.sigv4 import REFRESH_S, Credentials, canonical_query
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import mapping_option

logger: logging.Logger = logging.getLogger(__name__)

#: How requests of directory buckets are signed; those of a session also have its token in a header of its own.
SERVICE = "s3express"
TOKEN_HEADER = "x-amz-s3session-token"

_NEEDED_S = REFRESH_S + 5.0  # a session must stay valid until credentials are next checked
_RENEWED_S = 90.0  # before a session expires, the next one is opened
_RETRY_S = 5.0  # between attempts to open the next one
_QUERY = canonical_query(session="")
_FIELD = re.compile(rb"<(AccessKeyId|SecretAccessKey|SessionToken|Expiration)>([^<]{1,8000})</")
_HINT = (
    "Allow s3express:CreateSession on the directory bucket; to write, do not limit s3express:SessionMode to ReadOnly "
    "in the policy."
)


def check_options(options: Mapping[str, Any], url: str) -> None:
    """Raise InvalidOptionError for an option that directory buckets do not have."""
    kinds = {
        "anon": ("anonymous access", options.get("anon")),
        "requester_pays": ("requester pays", options.get("requester_pays")),
        "s3_additional_kwargs": (
            "keys of the customer (SSE-C)",
            "SSECustomerKey" in mapping_option(options, "s3_additional_kwargs"),
        ),
    }
    for name, (what, is_given) in kinds.items():
        if is_given:
            raise InvalidOptionError(
                f"a directory bucket (S3 Express One Zone) does not support {what}",
                url=url,
                hint=f"Leave {name} out of the storage_options; read other buckets that need it in a session of their "
                "own.",
            )


@dataclass(frozen=True, slots=True)
class BucketSession(Unpicklable):
    """An open session: its credentials, a digest of the user's key that opened it (``owner``), and when it ends
    (``until``, on ``time.monotonic()``)."""

    credentials: Credentials = field(repr=False)
    owner: str
    until: float


class BucketSessions(Unpicklable):
    """Opens the sessions of one directory bucket. ``bucket`` signs with the user's own credentials.

    ``transport`` sends nothing but the opening of sessions, since requests that wait for a session may hold all
    connections of their own transport.
    """

    denied_hint: str = _HINT  # of the requests that a session signs

    def __init__(self, bucket: DirectBucket, transport: Transport, url: str) -> None:
        self._bucket = bucket
        self._transport = transport
        self._url = url
        self._flights = SingleFlight()
        self._session: BucketSession | None = None
        self._retry_at = 0.0

    async def ready(self, expired: Credentials | None, context: RequestContext) -> RequestContext:
        """Open a new session, unless the present one stays valid long enough (``REFRESH_S``, until credentials are
        checked again).

        Returns the context of the request that needs the session, one round later if it waited for a new session. If
        the present session is still valid, a failure to open the next one is ignored.

        Args:
            expired: credentials that S3 refused; the session that has them is not used again.

        Raises:
            CredentialsError: the user has no credentials.
            AccessDeniedError: the user's credentials may not open a session.
            AsyncpqError: the request for the session failed in another way.
        """
        owner = await self._bucket.signers.identity()
        session, now, left_s = self._session, time.monotonic(), 0.0
        if session is not None and session.owner == owner and session.credentials != expired:
            left_s = session.until - now
        if left_s < _NEEDED_S:
            try:
                await self._flights.run(owner, partial(self._open, owner, context))
            except AsyncpqError:
                if left_s <= 0.0:
                    raise  # else the present session signs on until S3 refuses it
            return context.step(context.purpose, context.round + 1)
        if left_s < _RENEWED_S and now >= self._retry_at and self._flights.get(owner) is None:
            self._retry_at = now + _RETRY_S
            self._flights.start((owner,), partial(self._open, owner, context))
        return context

    async def fetch(self, again: bool) -> Credentials:
        """Return the credentials of the session that :meth:`ready` has opened. ``again`` makes no difference."""
        if self._session is None:
            raise CredentialsError(
                "the request to the directory bucket cannot be signed: S3 Express has opened no session for it",
                url=self._url,
                hint="Send the request again. If it fails again, report it as a defect of asyncpq.",
            )
        return self._session.credentials

    async def close(self) -> None:
        """Cancel the opening of a session. Idempotent."""
        await self._flights.close()

    async def _open(self, owner: str, context: RequestContext) -> None:
        exchange = _CreateSession(self._bucket, self._url)
        began = time.monotonic()
        try:
            await self._transport.send(exchange, context.step("session", context.round))
        except AsyncpqError as error:
            if self._session is not None:
                logger.warning("The next session of a directory bucket could not be opened (%s)", type(error).__name__)
            raise
        self._session = BucketSession(exchange.credentials, owner, began + exchange.lasts_s)
        logger.debug("A session of a directory bucket was opened for %.0f s", exchange.lasts_s)


class _CreateSession(SignedExchange):
    """A CreateSession request. It names no mode: S3 opens a session that may write if the policy allows it, else one
    that may only read."""

    denied_hint = _HINT

    def __init__(self, bucket: DirectBucket, url: str) -> None:
        self.request: RangeRequest = RangeRequest(0, 0, url)
        self._bucket = bucket
        self._path = bucket.root
        self._targets = {}
        self._date: str | None = None
        self.credentials: Credentials = Credentials("", "")
        self.lasts_s: float = 0.0

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        return _QUERY, {}

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status != 200:
            return None
        self._date = headers.get("date")
        return ExpectedBody(0, ANSWER_BYTES, Validator(0), check=self._check)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        error = super().refuse(status, headers, body)
        failure = error.error if isinstance(error, RetryableError) else error
        failure.message = f"no session of the directory bucket could be opened: {failure.message}"
        return error

    def _check(self, body: bytes) -> None:
        from xml.sax.saxutils import unescape

        found = {name.decode(): unescape(value.decode("utf-8", "replace")) for name, value in _FIELD.findall(body)}
        try:
            self.credentials = Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
            expires_s = datetime.fromisoformat(found["Expiration"]).timestamp()
        except (KeyError, ValueError):
            raise InvalidResponseError(
                "the response to CreateSession has no credentials",
                url=self.request.url,
                hint="Check endpoint_url: a bucket whose name ends in --x-s3 is a directory bucket, and its endpoint "
                "must support S3 Express One Zone.",
            ) from None
        now_s = http_date_s(self._date)
        self.lasts_s = expires_s - (self._bucket.signers.now_s() if now_s is None else now_s)
