"""The requests that obstore sends for one bucket, in the form of exchanges for the transport.

obstore (https://developmentseed.org/obstore) returns no response heads. So its results are written as the head that the
server must have sent, and :mod:`asyncpq.storage.responses` checks it like any other. Its exceptions become statuses or
typed errors: their texts quote urls and documents, which may hold secrets, and are never shown.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import format_datetime
from typing import TYPE_CHECKING, Final, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from asyncpq.errors import (
    AsyncpqError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.storage.base import ObjectExistsError, RequestContext, Unpicklable, Validator, cannot_create
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.listing_limits import ListingLimit
from asyncpq.storage.responses import (
    TRANSIENT,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    check_head_response,
    check_range_response,
    error_for,
    parse_error,
    refused_suffix,
    strong_etag,
)
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.server_traits import ServerTraits
from asyncpq.storage.wire import read_body

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode
    from obstore.store import AzureStore, GCSStore, S3Store

    Client = AzureStore | GCSStore | S3Store

_WHOLE_BYTES: Final = 256 * 1024  # longer bodies come in pieces, which show the watchdog their progress
_PIECE_BYTES: Final = 1024 * 1024
_LISTED_AT_ONCE: Final = 1000

_DENIED_HINT: Final = (
    "obstore finds credentials in the storage_options of the protocol's obstore, or in the environment; they need the "
    "right to get objects, and to list, create and delete them where asyncpq lists and writes."
)
_STATUSES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (FileNotFoundError, 404),
    (PreconditionError, 412),
    (PermissionDeniedError, 403),
    (UnauthenticatedError, 401),
)
#: Azure's codes, as the codes of S3 that mean the same.
_CODES: Final = {"ContainerNotFound": "NoSuchBucket", "ServerBusy": "ServiceUnavailable"}

# The text before the first colon, or the address of a cloud's metadata, tells a failed search for credentials from a
# request for an object, whose url may hold any word.
_NO_CREDENTIALS: Final = re.compile(
    r"Generic \w+ error: (?:[^:]*(?:token request|redential)|Error performing \w+ http://169\.254\.169\.254/)"
)
_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})\b")
_PAST_THE_END: Final = re.compile(r"error: Wanted range starting at \d+, but object was only \d+ bytes long")
_BAD_RANGE: Final = "Failed to parse value for CONTENT_RANGE"
_NO_RANGE: Final = "Content-Range header not present"
_OTHER_RANGE: Final = "Requested "
_OTHER_RANGES: Final = frozenset((_BAD_RANGE, _NO_RANGE, _OTHER_RANGE))
#: Responses that obstore refuses, by a part of its text.
_BAD_RESPONSES: Final[Mapping[str, str]] = {
    _BAD_RANGE: "the response has a malformed Content-Range",
    _OTHER_RANGE: "the response has another range than the requested one",
    _NO_RANGE: "the response has a part of the object, but no Content-Range",
    "Header missing from response": "the response lacks its ETag, time or length",
    "Received redirect without LOCATION": "the store redirects, and does not say where",
}


class ObstoreBucket(Unpicklable):
    """One bucket or container, until it is closed. ``has_suffixes``: its protocol has ranges of the last n bytes."""

    def __init__(self, client: Client, name: str, *, has_suffixes: bool) -> None:
        self._client: Client | None = client
        self.name = name
        self.traits: ServerTraits = ServerTraits()
        self.has_suffixes = has_suffixes

    @property
    def client(self) -> Client:
        """The obstore object that sends the bucket's requests. Raises UsageError once the bucket is closed."""
        if self._client is None:
            raise UsageError("the store is closed", hint="Read and write while the session is open.")
        return self._client

    def close(self) -> None:
        """Drop the client, whose connections then end."""
        self._client = None


class ObstoreExchange:
    """One request through obstore, over all its attempts, for the object or prefix ``key``."""

    method = "GET"
    creates = False

    def __init__(self, bucket: ObstoreBucket, key: str, request: RangeRequest) -> None:
        self.request = request
        self.host: str = bucket.name
        self.key = key
        self._bucket = bucket
        self._code = ""  # of the error document of the last refusal

    def prepare(self, context: RequestContext) -> None:
        """Return None, since no other request has to come first."""

    async def call(self, client: Client, receiver: Receiver) -> Body:
        """Call obstore once and return the body. Raises the errors of obstore and of the receiver."""
        raise NotImplementedError

    async def send(self, receiver: Receiver) -> Body:
        client = self._bucket.client
        try:
            return await self.call(client, receiver)
        except StoreError:  # an OSError, too
            raise
        except (BaseError, FileNotFoundError) as error:
            answer = self._explain(error)
        except ValueError as error:
            if isinstance(error, AsyncpqError):
                raise
            raise InvalidOptionError(
                "obstore cannot name this object",
                url=self.request.url,
                hint="Its names have no empty parts, no parts . and .., and no control characters.",
            ) from None
        if isinstance(answer, Exception):
            raise answer
        status, self._code = answer
        receiver.head(status, {})
        return Body(b"", True)  # to be refused

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return ExpectedBody(0, 0, Validator(0))

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        if self.creates and status == 412:
            return ObjectExistsError("the object exists already", url=self.request.url)
        if self.creates and status == 501:
            return cannot_create("the store", self.request.url)
        return error_for(self.request, status, self._code, denied_hint=_DENIED_HINT)

    def _explain(self, error: Exception) -> tuple[int, str] | Exception:
        """Return status and error code of the response that ``error`` describes; if it describes none, a typed
        error."""
        url, text = self.request.url, str(error)
        if _NO_CREDENTIALS.match(text):
            return RetryableError(CredentialsError("obstore got no credentials", url=url, hint=_DENIED_HINT))
        status = _STATUS.search(text)
        code = parse_error(text[status.end() :].encode("utf-8", "replace"))[0] if status else ""
        code = _CODES.get(code, code)
        if isinstance(error, AlreadyExistsError) and code not in TRANSIENT:
            return 412, code
        for error_class, known in _STATUSES:
            if isinstance(error, error_class):
                return known, code
        if status is not None:
            return int(status[1]), code
        if _PAST_THE_END.search(text):
            return 416, code
        if isinstance(error, NotSupportedError):
            return UnsupportedStoreError("the store does not support this call of obstore", url=url)
        return self._explain_response(text)

    def _explain_response(self, text: str) -> Exception:
        """Return the error for ``text``, a message of obstore that does not mention a response with an error status."""
        url, byte_range = self.request.url, self.request.byte_range
        if "HTTP error: builder error" in text:
            hint = 'An endpoint that begins with http:// needs "client_options": {"allow_http": True} beside it.'
            return InvalidOptionError("obstore cannot send a request to this endpoint", url=url, hint=hint)
        if "Received non-partial response" in text:
            return RangeIgnoredError(None)
        for part, message in _BAD_RESPONSES.items():
            if part in text:
                if self.request.start < 0 and part in _OTHER_RANGES:
                    return RangeIgnoredError(None)
                return InvalidResponseError(message, url=url, byte_range=byte_range)
        return RetryableError(TransportError("the connection failed, as obstore says", url=url, byte_range=byte_range))


def _headers(meta: ObjectMeta) -> dict[str, str]:
    headers = {"last-modified": format_datetime(meta["last_modified"], usegmt=True)}
    etag = meta["e_tag"]
    if etag is not None:
        headers["etag"] = etag
    return headers


class ObstoreGet(ObstoreExchange):
    """A range GET, pinned with If-Match. If its body is short, it is a view of obstore's memory."""

    _conditional = True  # If-Match is sent

    @property
    def _if_match(self) -> str | None:
        known = self._bucket.traits.if_match
        return strong_etag(self.request.pin) if self._conditional and known is not False else None

    async def call(self, client: Client, receiver: Receiver) -> Body:
        request = self.request
        options: GetOptions = {
            "range": {"suffix": -request.start} if request.start < 0 else (request.start, request.stop)
        }
        etag = self._if_match
        if etag is not None:
            options["if_match"] = etag
        result = await obstore.get_async(client, self.key, options=options)
        meta, (start, stop) = result.meta, result.range
        headers = _headers(meta)
        headers["content-range"] = f"bytes {start}-{stop - 1}/{meta['size']}"
        headers["content-length"] = str(stop - start)
        wanted = receiver.head(206, headers)
        if wanted <= _WHOLE_BYTES:
            data = memoryview(await result.bytes_async())
            receiver.received = len(data)
            return Body(data, True)
        pieces = result.stream(min_chunk_size=_PIECE_BYTES)

        async def read() -> bytes:
            return bytes(await anext(pieces, b""))

        return await read_body(read, wanted, receiver)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        expected = check_range_response(self.request, status, headers)
        if strong_etag(self.request.pin) is not None:
            self._bucket.traits.learn_if_match(sent=self._conditional)
        return expected

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        error = super().refuse(status, headers, body)
        if self._if_match is not None and self._bucket.traits.may_refuse_if_match(self.request, status, error):
            self._conditional = False
            return RetryableError(cast("StoreError", error), at_once=True)
        answer = refused_suffix(self.request, status, headers, error)
        if isinstance(answer, RangeIgnoredError):
            raise answer
        return answer


class ObstoreHead(ObstoreExchange):
    """A HEAD for the size of an object whose store does not support ranges of the last n bytes."""

    method = "HEAD"

    async def call(self, client: Client, receiver: Receiver) -> Body:
        meta = await obstore.head_async(client, self.key)
        receiver.head(200, {**_headers(meta), "content-length": str(meta["size"])})
        return Body(b"", True)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return check_head_response(self.request, headers)


class ObstoreList(ObstoreExchange):
    """A listing of all objects below a folder, at most ``most``. obstore requests its pages. The result is appended to
    ``listings``."""

    def __init__(self, bucket: ObstoreBucket, folder: str, request: RangeRequest, most: int) -> None:
        super().__init__(bucket, folder, request)
        self._most = most
        self.listings: list[list[ObjectMeta]] = []

    async def call(self, client: Client, receiver: Receiver) -> Body:
        stream = obstore.list(client, self.key or None, chunk_size=_LISTED_AT_ONCE)
        chunks: AsyncIterator[Sequence[ObjectMeta]] = aiter(stream)
        chunk = await anext(chunks, None)
        receiver.head(200, {})
        found: list[ObjectMeta] = []
        while chunk is not None:
            found += chunk
            ListingLimit(self.request.url, self._most).check(len(found))
            receiver.received += sum([len(meta["path"]) for meta in chunk])
            chunk = await anext(chunks, None)
        self.listings.append(found)
        return Body(b"", True)


class ObstoreNames(ObstoreExchange):
    """A listing of what a folder holds directly. Its keys, and its folders, are appended to ``listings``."""

    def __init__(self, bucket: ObstoreBucket, folder: str, request: RangeRequest) -> None:
        super().__init__(bucket, folder, request)
        self.listings: list[tuple[list[str], list[str]]] = []

    async def call(self, client: Client, receiver: Receiver) -> Body:
        found = await obstore.list_with_delimiter_async(client, self.key or None)
        receiver.head(200, {})
        self.listings.append(([meta["path"] for meta in found["objects"]], list(found["common_prefixes"])))
        return Body(b"", True)


class ObstorePut(ObstoreExchange):
    """A PUT of a whole object. With ``creates``, the store refuses it if the object exists."""

    method = "PUT"

    def __init__(
        self, bucket: ObstoreBucket, key: str, request: RangeRequest, data: bytes | memoryview, *, creates: bool
    ) -> None:
        super().__init__(bucket, key, request)
        self.creates = creates
        self._data = data

    async def call(self, client: Client, receiver: Receiver) -> Body:
        mode: PutMode = "create" if self.creates else "overwrite"
        await obstore.put_async(client, self.key, self._data, mode=mode, use_multipart=False)
        receiver.head(200, {})
        return Body(b"", True)


class ObstoreDelete(ObstoreExchange):
    """The DELETE of an object."""

    method = "DELETE"

    async def call(self, client: Client, receiver: Receiver) -> Body:
        await obstore.delete_async(client, self.key)
        receiver.head(204, {})
        return Body(b"", True)
