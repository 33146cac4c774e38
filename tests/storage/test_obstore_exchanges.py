"""What obstore's exceptions mean; their texts are those of obstore 0.12, and never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, UnauthenticatedError
from obstore.store import MemoryStore

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.storage.base import ObjectExistsError
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.obstore_exchanges import ObstoreBucket, ObstoreExchange
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.retries import RetryableError

TOKEN = "Error performing token request: Error performing GET http://169.254.169.254/computeMetadata/v1/token in 1ms"
WITH_STATUS = "Error performing GET https://host/SECRET in 1ms - Server returned non-2xx status code:"

MEANINGS: list[tuple[Exception, type[AsyncpqError], bool]] = [
    (GenericError(f"Generic GCS error: {TOKEN} - Server returned non-2xx status code: 404 "), CredentialsError, True),
    (GenericError("Generic GCS error: GCP credential error: Unable to open /SECRET"), CredentialsError, True),
    (
        GenericError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms"),
        CredentialsError,
        True,
    ),
    # the words of an url mean nothing
    (GenericError("Generic S3 error: Error performing GET http://host/credential/token in 1ms"), TransportError, True),
    (GenericError(f"Generic GCS error: {WITH_STATUS} 503 Service Unavailable: "), ThrottledError, True),
    (GenericError(f"Generic GCS error: {WITH_STATUS} 500 Internal Server Error: "), TransportError, True),
    (GenericError("Generic GCS error: HTTP error: request or response body error"), TransportError, True),
    (
        GenericError("Generic MicrosoftAzure error: Wanted range starting at 5, but object was only 5 bytes long"),
        InvalidResponseError,
        False,
    ),
    (
        GenericError('Generic GCS error: Failed to parse value for CONTENT_RANGE header: "SECRET"'),
        InvalidResponseError,
        False,
    ),
    (GenericError("Generic GCS error: Requested 0..5, got 1..6"), InvalidResponseError, False),
    (GenericError("Generic GCS error: ETag Header missing from response"), InvalidResponseError, False),
    (
        GenericError(
            f"Generic S3 error: {WITH_STATUS.partition(' - ')[0]} - Received redirect without LOCATION, this normally"
        ),
        InvalidResponseError,
        False,
    ),
    (
        GenericError("Generic S3 error: Error performing GET http://host/SECRET: HTTP error: builder error"),
        InvalidOptionError,
        False,
    ),
    (NotSupportedError("Operation not supported: SECRET"), UnsupportedStoreError, False),
    (UnauthenticatedError("SECRET"), AccessDeniedError, False),
    (AlreadyExistsError("Object at location SECRET already exists"), ObjectExistsError, False),
    (ValueError("Could not parse path: SECRET"), InvalidOptionError, False),
]


class Failing(ObstoreExchange):
    """A call that raises ``error``, and creates."""

    creates = True

    def __init__(self, error: Exception) -> None:
        bucket: Any = ObstoreBucket(MemoryStore(), "bucket", has_suffixes=True)  # type: ignore[arg-type]
        super().__init__(bucket, "key", RangeRequest(0, 5, "gs://bucket/key"))
        self._error = error

    async def call(self, client: Any, receiver: Receiver) -> Body:
        raise self._error


class Seen:
    """A receiver that keeps the status."""

    received = 0
    status = 0

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        self.status = status
        return 0

    def cut_off(self, data: bytes | memoryview) -> None:
        """Keep nothing."""


@pytest.mark.parametrize(("error", "meaning", "retried"), MEANINGS, ids=lambda value: str(value)[:60])
async def test_exceptions_become_typed_errors(error: Exception, meaning: type[AsyncpqError], retried: bool) -> None:
    exchange, seen = Failing(error), Seen()
    try:
        body = await exchange.send(seen)
        assert body == (b"", True)
        raised: Exception = exchange.refuse(seen.status, {}, b"")
    except (AsyncpqError, RetryableError) as caught:
        raised = caught
    assert isinstance(raised, RetryableError) is retried
    typed = raised.error if isinstance(raised, RetryableError) else raised
    assert type(typed) is meaning
    assert typed.url == "gs://bucket/key"
    assert "SECRET" not in str(typed)
    assert raised.__cause__ is None


async def test_other_exceptions_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await Failing(ZeroDivisionError()).send(Seen())
