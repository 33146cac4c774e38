"""SSE-C: objects that S3 encrypts with a key of the customer, which is sent with each request for them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from asyncpq.errors import InvalidOptionError
from asyncpq.storage.s3.sigv4 import LateHeaders, Route
from asyncpq.storage.urls import word_set

_PREFIX: Final = "x-amz-server-side-encryption-customer-"
HEADERS: Final = word_set(f"{_PREFIX}algorithm {_PREFIX}key {_PREFIX}key-md5")
_OPTIONS: Final = word_set("SSECustomerAlgorithm SSECustomerKey")
_LOOPBACK: Final = ("127.", "localhost", "[::1]")


def customer_key(options: Mapping[str, Any]) -> LateHeaders | None:
    """Return the headers with the customer's key in ``s3_additional_kwargs``, encoded as botocore does. None if it has
    no key, or also other arguments, which asyncpq cannot send."""
    given = options.get("s3_additional_kwargs")
    if not isinstance(given, Mapping) or set(given) != _OPTIONS:
        return None
    key, algorithm = given["SSECustomerKey"], given["SSECustomerAlgorithm"]
    if algorithm != "AES256" or not isinstance(key, (str, bytes)) or not key:
        return None
    secret = key.encode() if isinstance(key, str) else key
    values = (algorithm, _text(secret), _text(hashlib.md5(secret, usedforsecurity=False).digest()))
    return LateHeaders.of(dict(zip(sorted(HEADERS), values, strict=True)))


def check_transport(route: Route, url: str) -> None:
    """Raise InvalidOptionError if a key would be sent without TLS to another machine."""
    if route.scheme != "https" and not route.host.startswith(_LOOPBACK):
        raise InvalidOptionError(
            "a customer's encryption key (SSECustomerKey) is not sent without TLS",
            url=url,
            hint="Use an https endpoint.",
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
