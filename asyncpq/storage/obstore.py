"""The store of Google Cloud Storage, Azure Blob Storage and S3 through obstore, if the storage options ask for it.

obstore (https://developmentseed.org/obstore) has its own names for options, and finds credentials in other places than
gcsfs, adlfs and s3fs do, so it is never chosen unasked. It signs and sends the requests; limits, retries, deadlines and
the checks of responses are asyncpq's, in ``transport`` and ``response_checks``. A GET is one call, pinned with
If-Match; a server that ignores If-Match is detected by the ETag of its response.

obstore returns no response heads. So its results are written as the head that the server must have sent, and
:mod:`asyncpq.storage.response_checks` checks it like any other. Its exceptions become statuses or typed errors: their
texts quote urls and documents, which may hold secrets, and are never shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import format_datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from asyncpq.errors import (
    AsyncpqError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
    install_hint,
)
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    CreateProbe,
    FirstNames,
    Guarantee,
    ListedObject,
    ListedObjects,
    ObjectExistsError,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    cannot_create,
    closed_store,
    http_date_s,
    is_gone,
    temporary_file_error,
    time_of_probe,
)
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import ListingLimit
from asyncpq.storage.response_checks import (
    COMPARED,
    SIZE_FIRST,
    TRANSIENT,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    ServerTraits,
    check_head_response,
    check_range_response,
    empty,
    error_for,
    guarantee_of,
    parse_error,
    quoted_etag,
    refused_suffix,
    strong_etag,
)
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.threads import call_each
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import (
    END_OF_KEY,
    FOLDER_HINT,
    bucket_url,
    mapping_option,
    refusal,
    safe_url,
    split_url,
    split_version,
    url_of_key,
)
from asyncpq.storage.wire import read_body

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotSupportedError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as _missing:
    raise UnsupportedStoreError(
        "the option obstore requires the package obstore, which is not installed",
        hint=install_hint("obstore", "obstore"),
    ) from _missing

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode

    Client = AzureStore | GCSStore | S3Store


_CLASSES: Final = {"gs": GCSStore, "az": AzureStore, "s3": S3Store}
_PROVIDERS: Final = {"gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "s3": "s3", "s3a": "s3"}
_ENVIRONMENT: Final = {"gs": "GOOGLE_", "az": "AZURE_", "s3": "AWS_"}
#: Options that the url or asyncpq's own options state.
_REFUSED: Final = re.compile(r"prefix|retry_config|config|(?:\w+_)?(?:bucket|container)(?:_name)?")
#: Names of the options and variables that choose the server and account.
_PLACES: Final = re.compile(r"url|endpoint|account_name|emulator|fabric|region")
_WHOLE_BYTES: Final = 8 * 1024 * 1024  # larger objects are sent from a file

# obstore's threads are those of the process that used it first, and a fork does not copy them.
_process: int | None = None


class ObstoreStore(Unpicklable):
    """The store of one protocol through obstore; see :class:`asyncpq.storage.base.WritableStore`.

    ``storage_options`` is ``{"obstore": {...}}``: the configuration of obstore's GCSStore, AzureStore or S3Store,
    including ``client_options`` and ``credential_provider``. An empty mapping leaves the configuration to the
    environment. Raises InvalidOptionError for other options.
    """

    def __init__(
        self, protocol: str, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits
    ) -> None:
        provider = _PROVIDERS.get(protocol)
        if provider is None:
            raise InvalidOptionError(
                f"obstore does not serve {protocol}:// urls here",
                hint="Give the option obstore to gs, az, abfs or s3 alone: storage_options={'gs': {'obstore': {}}}.",
            )
        beside = sorted(storage_options.keys() - {"obstore"})
        if beside:
            raise InvalidOptionError(
                f"storage_options for {protocol} have other options beside obstore: {', '.join(beside)}",
                hint="Put obstore's own options into the mapping obstore, and drop those of other clients.",
            )
        options = dict(mapping_option(storage_options, "obstore"))
        refused = [name for name in options if _REFUSED.fullmatch(name.lower())]
        if refused:
            raise InvalidOptionError(
                f"the option obstore must not have {', '.join(refused)}",
                hint="Leave them out: the url names the bucket, RetryOptions sets the retries, and other entries go "
                "into the mapping itself.",
            )
        self.protocol = protocol
        self._provider = provider
        self._options = options
        self._connect_timeout_s = retry.connect_timeout_s
        prefix = _ENVIRONMENT[provider]
        environment = {name: value for name, value in os.environ.items() if name.upper().startswith(prefix)}
        self._credentials = _digest(environment) if environment else ""
        self._place = _digest(
            {name.lower(): value for name, value in {**environment, **options}.items() if _PLACES.search(name.lower())}
        )
        self._limits = limits
        self._transport = Transport(retry=retry, limits=limits)
        self._buckets: dict[str, ObstoreBucket] = {}
        self._create_probe = CreateProbe()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ObstoreStore {self.protocol}>"

    async def open_object(self, url: str) -> ObstoreObject:
        """Return a handle on an object; sends no request."""
        bucket, key = self._object(url)
        name = split_url(url)[1]
        return ObstoreObject(self._transport, bucket, url, key, f"{self._provider}://{name} {self._place}")

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> Sequence[ListedObject]:
        """List objects with obstore, which requests all pages below the last folder of ``url`` (counted as one)."""
        if self._provider == "s3":
            url = url.removesuffix(END_OF_KEY)
        bucket, prefix = self._split(url)
        root = bucket_url(url, prefix)
        folder = prefix[: prefix.rfind("/") + 1]
        listing = ObstoreList(
            bucket, folder.rstrip("/"), RangeRequest(0, 0, safe_url(url)), self._limits.max_listed_objects
        )
        await self._transport.send(listing, context)
        found = listing.listings[-1]
        # obstore names the markers of folders like objects, without their slash
        folders = {meta["path"][:end] for meta in found if (end := meta["path"].rfind("/")) > 0}
        listed = []
        for meta in found:
            path, size, etag = meta["path"], meta["size"], meta["e_tag"]
            if path.startswith(prefix) and (size or path not in folders):
                validator = None if etag is None else Validator(size=size, etag=quoted_etag(etag))
                name = self._named(root + path)
                listed.append(ListedObject(name, size, validator, meta["last_modified"].timestamp()))
        return ListedObjects.of(sorted(listed, key=lambda item: os.fsencode(item.url)))

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return what a folder holds directly."""
        bucket, prefix = self._split(url)
        root = bucket_url(url, prefix)
        exchange = ObstoreNames(bucket, prefix.rstrip("/"), RangeRequest(0, 0, safe_url(url)))
        await self._transport.send(exchange, context)
        keys, folders = exchange.listings[-1]
        names = [self._named(root + key) for key in keys]
        return FirstNames([*names, *(f"{root}{folder.rstrip('/')}/" for folder in folders)], True)

    def _named(self, url: str) -> str:
        """Return the url that names the key at the end of ``url``."""
        return url_of_key(url) if self._provider == "s3" else url

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object."""
        await self._put(url, data, context, creates=False)

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object; return False if it exists."""
        return await self._create(url, data, context)

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Return whether the server refuses to create an existing object; tried once for each bucket."""
        name = split_url(url)[1].partition("/")[0]
        return await self._create_probe.ask(self, name, url, context.step("write", context.round))

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object with the content of the local file ``path``, in one PUT."""
        with tempfile.TemporaryFile(prefix="asyncpq-object-") as copy:
            try:
                await asyncio.to_thread(_copy, path, copy)
            except OSError as error:
                message = f"the local file to upload cannot be read: {error.strerror}"
                raise StoreError(message, url=safe_url(url)) from error
            await self._put(url, _content(copy), context, creates=False)

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces`` of its content, through a temporary local file; return False if it
        exists."""
        with tempfile.TemporaryFile(prefix="asyncpq-object-") as file:
            async for piece in pieces:
                try:
                    await asyncio.to_thread(file.write, piece)
                except OSError as error:
                    raise temporary_file_error(error, url) from error
            return await self._create(url, _content(file), context)

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, one request each."""
        context = context.step("write", context.round)

        async def delete(url: str) -> None:
            bucket, key = self._object(url)
            try:
                await self._transport.send(ObstoreDelete(bucket, key, RangeRequest(0, 0, safe_url(url))), context)
            except StoreError as error:
                if not is_gone(error):
                    raise

        await call_each(delete, urls)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """Return the store's time in seconds since the epoch, from a probe object that is written and deleted."""

        async def modified_s(probe: str, context: RequestContext) -> float | None:
            bucket, key = self._object(probe)
            head = ObstoreHead(bucket, key, RangeRequest(0, 0, safe_url(probe)))
            expected, _ = await self._transport.send(head, context.step("write", context.round))
            return http_date_s(expected.validator.last_modified)

        return await time_of_probe(self, url, context, modified_s)

    async def credential_identity(self, url: str) -> str:
        """Return a digest of the environment variables that obstore reads. The storage options tell users apart
        already, by the cache's namespace."""
        self._check_open()
        return self._credentials

    async def close(self) -> None:
        """Close all connections of the store. Idempotent."""
        self._closed = True
        await self._transport.close()
        for bucket in self._buckets.values():
            bucket.close()

    async def _create(self, url: str, data: bytes | memoryview, context: RequestContext) -> bool:
        try:
            await self._put(url, data, context, creates=True)
        except ObjectExistsError:
            return False
        return True

    async def _put(self, url: str, data: bytes | memoryview, context: RequestContext, *, creates: bool) -> None:
        bucket, key = self._object(url)
        put = ObstorePut(bucket, key, RangeRequest(0, len(data), safe_url(url)), data, creates=creates)
        await self._transport.send(put, context.step("write", context.round))

    def _object(self, url: str) -> tuple[ObstoreBucket, str]:
        """Return the bucket and the key of an object's url."""
        bucket, key = self._split(url)
        if not key or key.endswith("/"):
            raise InvalidOptionError(
                "the url of one file must have a bucket and a name that does not end with a slash",
                url=safe_url(url),
                hint=FOLDER_HINT,
            )
        if self._provider != "s3":
            return bucket, key
        key, version = split_version(key)
        if version is not None:
            raise UnsupportedStoreError(
                "asyncpq cannot read a version of an S3 object through obstore",
                url=safe_url(url),
                hint="Leave out the option obstore for s3.",
            )
        return bucket, key

    def _split(self, url: str) -> tuple[ObstoreBucket, str]:
        """Return the bucket of a url, and the rest of the url. A bucket is connected at its first use."""
        self._check_open()
        name, _, key = split_url(url)[1].partition("/")
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = self._connect(name, url)
        return bucket, key

    def _connect(self, name: str, url: str) -> ObstoreBucket:
        global _process
        if _process is not None and _process != os.getpid():
            raise UsageError(
                "obstore was used before this process was forked, and its threads do not exist in this process",
                hint='Start processes by "spawn" or "forkserver", or open the first store after the fork.',
            )
        _process = os.getpid()
        account = name.partition("@")[2]
        if not name:
            raise InvalidOptionError(
                "the url has no bucket", url=safe_url(url), hint=f"Write {self.protocol}://bucket/key."
            )
        if account and self._provider != "az":
            raise InvalidOptionError(
                "the url has user info before the bucket (not shown)",
                url=safe_url(url),
                hint="Pass credentials in storage_options.",
            )
        options = dict(self._options)
        if account and options.pop("account_name", account.partition(".")[0]) != account.partition(".")[0]:
            raise InvalidOptionError(
                "the url and the option account_name name different accounts",
                url=safe_url(url),
                hint="Leave out one of them.",
            )
        # The watchdog limits each request; 30 seconds, obstore's own limit, are too short for large ones.
        options["client_options"] = {
            "connect_timeout": f"{max(1, round(self._connect_timeout_s * 1000))}ms",
            "timeout": "1day",
            **mapping_option(self._options, "client_options"),
        }
        options["retry_config"] = {"max_retries": 0}
        if self._provider == "s3":
            options["disable_bulk_delete"] = True  # each request names one object
        store_class: Any = _CLASSES[self._provider]
        try:
            client = store_class.from_url(f"abfss://{name}", **options) if account else store_class(name, **options)
        except (BaseError, TypeError, ValueError) as error:
            hint = None
            if "Account must be specified" in str(error):
                hint = "Set account_name, or AZURE_STORAGE_ACCOUNT_NAME in the environment."
            message = f"obstore refuses these storage_options for {self.protocol}: {refusal(error, self._options)}"
            raise InvalidOptionError(message, url=safe_url(url), hint=hint) from None
        return ObstoreBucket(client, name, has_suffixes=self._provider != "az")

    def _check_open(self) -> None:
        if self._closed:
            raise closed_store()


class ObstoreObject(Unpicklable):
    """A handle on one object; see :class:`asyncpq.storage.base.StoredObject`."""

    client = "obstore"
    server = ""

    def __init__(self, transport: Transport, bucket: ObstoreBucket, url: str, key: str, identity: str) -> None:
        self.url: str = safe_url(url)
        self.identity: str = identity
        self.guarantee: Guarantee = Guarantee.PINNED
        self._transport = transport
        self._bucket = bucket
        self._key = key

    def __repr__(self) -> str:
        return f"<ObstoreObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        self.guarantee = guarantee_of(validator, if_match=not self._bucket.traits.compared)

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        traits = self._bucket.traits
        refusal = None
        if has_suffixes := self._bucket.has_suffixes:
            try:
                if traits.suffix_ranges:
                    return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)
            except RangeIgnoredError as ignored:  # some servers do so for an empty object
                refusal = ignored
                context = context.step(context.purpose, context.round + 1)
        if pin is None:
            head = ObstoreHead(self._bucket, self._key, RangeRequest(0, 0, self.url))
            expected, _ = await self._transport.send(head, context.step("stat", context.round))
            pin = expected.validator
            context = context.step(context.purpose, context.round + 1)
        if pin.size == 0:
            raise empty(self.url)
        tail = await self.fetch_range(max(0, pin.size - length), pin.size, context=context, pin=pin)
        if has_suffixes:
            traits.learn_suffix_refusal(refusal, length, pin.size)
            context.metrics.fall_back(SIZE_FIRST)
        return tail

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        try:
            return await self._fetch(RangeRequest(start, stop, self.url, pin), context)
        except RangeIgnoredError:
            raise InvalidResponseError(
                "the store sent the whole object instead of the range",
                url=self.url,
                byte_range=(start, stop),
                hint="Read from an endpoint that supports range requests.",
            ) from None

    async def close(self) -> None:
        """Do nothing: the handle has no connection to close."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        expected, data = await self._transport.send(ObstoreGet(self._bucket, self._key, request), context)
        self.learn(expected.validator)
        if expected.young:
            self.guarantee = Guarantee.NONE
        if self._bucket.traits.compared:
            context.metrics.fall_back(COMPARED)
        return RangeResult(data, expected.start, expected.validator, self.guarantee is not Guarantee.NONE)


def _digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of those settings that are text, numbers or flags."""
    text = repr(sorted((name, str(value)) for name, value in settings.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _copy(path: Path, copy: IO[bytes]) -> None:
    """Copy a file. The copy is uploaded, since another program may truncate the original meanwhile, and a memory-mapped
    file must not shrink."""
    with path.open("rb") as file:
        shutil.copyfileobj(file, copy, _WHOLE_BYTES)


def _content(file: IO[bytes]) -> bytes | memoryview:
    """Return the content of a file that nothing else writes to; for a large file, as a memory map."""
    file.flush()
    size = file.tell()
    if size > _WHOLE_BYTES:
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    file.seek(0)
    return file.read()


_BODY_BYTES: Final = 256 * 1024  # longer bodies come in pieces, which show the watchdog their progress
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
            raise closed_store()
        return self._client

    def close(self) -> None:
        """Drop the client, whose connections then end."""
        self._client = None


class ObstoreExchange:
    """One request through obstore for the object or prefix ``key``, over all its attempts: an
    :class:`asyncpq.storage.transport.Exchange`."""

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
        """Return status and error code of the response that ``error`` describes; else a typed error."""
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
        if wanted <= _BODY_BYTES:
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
        return refused_suffix(self.request, status, headers, error, self._bucket.traits)


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
