"""One S3 object: ranges signed with SigV4, pinned with If-Match. The hot path."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.responses import (
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    check_head_response,
    check_range_response,
    guarantee_of,
    strong_etag,
)
from asyncpq.storage.s3_request import S3Resource, SignedExchange
from asyncpq.storage.s3_route import Route, Signers
from asyncpq.storage.sigv4 import canonical_path, canonical_query
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import safe_url
from asyncpq.storage.wire import DirectWire, Target


class S3Object(S3Resource):
    """See :class:`asyncpq.storage.base.StoredObject`. Made by S3Store.

    Args:
        key: decoded; every character counts.
        version_id: of the url, or None.
        if_match: False for servers that do not know the header; versions are then compared only.
        version_aware: pin by the version id that the store names, where it names one.
    """

    client = "direct"

    def __init__(
        self,
        *,
        transport: Transport,
        wire: DirectWire,
        signers: Signers,
        route: Route,
        bucket: str,
        key: str,
        version_id: str | None = None,
        if_match: bool = True,
        version_aware: bool = False,
    ) -> None:
        self.url = safe_url(f"s3://{bucket}/{key}")
        super().__init__(wire=wire, signers=signers, route=route, path=canonical_path(route.prefix + key))
        self._transport = transport
        self._query = _version_query(version_id)
        self._if_match = if_match
        self.version_aware = version_aware
        self._targets: dict[tuple[str, str], Target] = {}
        self.guarantee = Guarantee.PINNED if if_match else Guarantee.COMPARED
        self._learnt: Validator | None = None
        self.identity = f"s3 {route.name}{self._path}?{self._query}"

    def __repr__(self) -> str:
        return f"<S3Object {self.url}>"

    def learn(self, validator: Validator) -> None:
        """See :meth:`asyncpq.storage.base.StoredObject.learn`."""
        self._learnt = validator
        self.guarantee = guarantee_of(validator, if_match=self._if_match)

    # Each of a GET's awaited functions costs at every wake-up: these two hand out the coroutine.

    def fetch_tail(
        self, length: int, *, context: RequestContext, pin: Validator | None = None
    ) -> Coroutine[Any, Any, RangeResult]:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_tail`."""
        return self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> Coroutine[Any, Any, RangeResult]:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_range`."""
        return self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Nothing is held."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        try:
            expected, body = await self._transport.send(_Get(self, request), context)
        except RangeIgnoredError as ignored:
            raise InvalidResponseError(
                f"the store sent {ignored.size or 'unknown'} bytes instead of the range",
                url=self.url,
                byte_range=request.byte_range,
                hint="The endpoint does not support range requests.",
            ) from None
        validator = expected.validator
        if validator.size == UNKNOWN_SIZE:
            validator = request.pin or await self._fetch_size(validator, context)
        if validator is not self._learnt:
            self.learn(validator)
        if expected.young:
            self.guarantee = Guarantee.NONE
        return RangeResult(body, expected.start, validator, self.guarantee is not Guarantee.NONE)

    async def _fetch_size(self, validator: Validator, context: RequestContext) -> Validator:
        """One HEAD, for a store whose Content-Range does not say the size."""
        pin = replace(validator, size=UNKNOWN_SIZE)
        head = _Head(self, RangeRequest(0, 0, self.url, pin))
        expected, _ = await self._transport.send(head, context.step("stat", context.round + 1))
        return replace(validator, size=expected.validator.size)

    # -- what the exchanges need ----------------------------------------------------------------

    def send(self, get: _Get, byte_range: str | None, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """One attempt, signed now."""
        route, pin = self._route, get.request.pin
        get.signer = signer = self.signers.signer(route.region)
        query = self._query if pin is None or pin.version is None else _version_query(pin.version)
        target = self._targets.get((route.host, query))
        if target is None:
            target = self._targets[route.host, query] = self._target(route, query)
        if_match = strong_etag(pin) if self._if_match else None
        if signer is not None:
            now = time.time() + self.signers.clock_offset_s
            lines = signer.sign(
                get.method, route.host, self._path, query, now=now, byte_range=byte_range, if_match=if_match
            )
        else:
            lines = "" if byte_range is None else f"Range: {byte_range}\r\n"
            if if_match is not None:
                lines += f"If-Match: {if_match}\r\n"
        return self._wire.exchange(get.method, target, lines, get.request, receiver)


def _version_query(version_id: str | None) -> str:
    return canonical_query(versionId=version_id) if version_id is not None else ""


class _Get(SignedExchange):
    """One ranged GET."""

    def __init__(self, stored: S3Object, request: RangeRequest) -> None:
        super().__init__(stored, request)
        self._stored = stored

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._stored.send(self, self.request.header, receiver)

    def again(self) -> _Get:
        return type(self)(self._stored, self.request)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status == 200 and "etag" not in headers:
            return None  # S3 always sends one: this may be an error document (a late SlowDown)
        expected = check_range_response(self.request, status, headers)
        if self._stored.version_aware and self.request.pin is None and "x-amz-version-id" in headers:
            return replace(expected, validator=replace(expected.validator, version=headers["x-amz-version-id"]))
        return expected


class _Head(_Get):
    """The object's size, for stores whose Content-Range does not say it."""

    method = "HEAD"

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._stored.send(self, None, receiver)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return check_head_response(self.request, headers) if status == 200 else None
