"""Requests to one bucket: signed, and sent again once what the store refused them for is corrected."""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from asyncpq.errors import AsyncpqError, CredentialsError, InvalidResponseError, StoreError
from asyncpq.storage.base import Unpicklable
from asyncpq.storage.responses import RangeRequest, redirected
from asyncpq.storage.retry import RetryableError, parse_retry_after_s
from asyncpq.storage.s3_errors import EXPIRED, error_for, error_in_200, parse_error, parse_region
from asyncpq.storage.s3_route import Route, Signers
from asyncpq.storage.sigv4 import Signer
from asyncpq.storage.wire import DEFAULT_HEADERS, DirectWire, Target

_REGION = re.compile(r"[a-z0-9-]{2,40}")


class S3Resource(Unpicklable):
    """What requests are sent to: one path of a bucket's route.

    Args:
        path: as it is sent.
    """

    def __init__(self, *, wire: DirectWire, signers: Signers, route: Route, path: str) -> None:
        self._wire = wire
        self.signers = signers
        self._route = route
        self._path = path

    @property
    def server(self) -> str:
        """See :meth:`asyncpq.storage.base.StoredObject.server`."""
        return self._route.host

    def _target(self, route: Route, query: str) -> Target:
        headers = DEFAULT_HEADERS if route.user_agent is None else DEFAULT_HEADERS | {"User-Agent": route.user_agent}
        return self._wire.target(f"{route.scheme}://{route.host}{self._path}" + (f"?{query}" if query else ""), headers)

    def move(self, signed_for: str, region: str) -> bool:
        """Learn the bucket's region; False if the request was signed for it already."""
        if region == signed_for:
            return False
        if self._route.region != region:
            self._route.move(region)
        return True

    def set_clock(self, date: str | None) -> bool:
        """Learn the store's clock from its Date header; False if there is none."""
        try:
            store = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return False
        self.signers.clock_offset_s = store - time.time()
        return True


class SignedExchange:
    """One request, however often it is sent. What can be corrected is corrected once each."""

    method = "GET"

    def __init__(self, resource: S3Resource, request: RangeRequest) -> None:
        self.request = request
        self._resource = resource
        self.signer: Signer | None = None
        self._expired: Signer | None = None
        self._corrected = ""

    def prepare(self) -> Coroutine[Any, Any, None] | None:
        """See :class:`asyncpq.storage.transport.Exchange`."""
        if self._expired is None and self._resource.signers.are_fresh():
            return None
        return self._find_credentials()

    async def _find_credentials(self) -> None:
        expired, self._expired = self._expired, None
        signers = self._resource.signers
        try:
            await (signers.refresh() if expired is None else signers.renew(expired))
        except CredentialsError as error:
            error.locate(url=self.request.url)
            raise

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        code, message = parse_error(body)
        retry_after = parse_retry_after_s(headers.get("retry-after"), now=time.time())
        request = self.request
        if status == 416 and request.start < 0 and not headers.get("content-range", "*/0").endswith("*/0"):
            return InvalidResponseError("the store does not know suffix ranges", url=request.url)
        if status == 200:
            return error_in_200(request, body)
        if 300 <= status < 400 and "location" in headers:
            error: AsyncpqError | RetryableError = redirected(request, headers["location"])
        else:
            error = error_for(request, status, code, message, retry_after_s=retry_after)
        if isinstance(error, StoreError) and self._correct(status, code, headers, body):
            return RetryableError(error, at_once=True)
        return error

    def _correct(self, status: int, code: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether sending again can help since something was learned from the refusal."""
        signer = self.signer
        region = headers.get("x-amz-bucket-region") or parse_region(body)
        if region and _REGION.fullmatch(region) and status in (301, 307, 400, 403) and self._once("region"):
            signed_for = signer.region if signer is not None else ""
            return self._resource.move(signed_for, region)
        if code == "RequestTimeTooSkewed" and self._once("clock"):
            return self._resource.set_clock(headers.get("date"))
        if code in EXPIRED and signer is not None and self._once("credentials"):
            self._expired = signer
            return True
        return False

    def _once(self, what: str) -> bool:
        if what in self._corrected:
            return False
        self._corrected += what
        return True
