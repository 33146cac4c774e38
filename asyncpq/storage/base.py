"""What every store offers, and what the layers above may rely on.

A :class:`Store` serves all urls of one protocol with one set of storage options; it opens
:class:`StoredObject` handles, which fetch bytes. Stores check what they get (status, Content-Range,
length, validator) and raise typed errors; whoever calls them never sees wrong or short bytes.

When a time of last change, which is all that some stores say, tells a version from the next one.

A clock that counts whole seconds, or pairs of them, gives two versions the same time if both were written
within one of its ticks. So nothing is known of an object that was written just before it was looked at
(RFC 9110, section 8.8.2.2, says the same of Last-Modified). Pure.

What stores that write have in common: above all whether they create objects in one step.

Not all that take the request do: some overwrite, and tell nobody. So it is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

from asyncpq.errors import (
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    ObjectNotFoundError,
    StoreError,
    UnsupportedStoreError,
)
from asyncpq.metrics import Purpose, ReadMetrics

__all__ = [
    "Guarantee",
    "ListedObject",
    "RangeResult",
    "RequestContext",
    "Store",
    "StoreLimits",
    "StoredObject",
    "Unpicklable",
    "Validator",
    "Wants",
    "WritableStore",
    "writable",
]


class Unpicklable:
    """Holds secrets or connections, so it is of one process: pickling and copying it are refused."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: make one in each process")


class Guarantee(enum.StrEnum):
    """How surely a read sees one version of one object (docs/architecture.md, One version)."""

    PINNED = "pinned"  # each GET carries If-Match (or a generation), or reads one open descriptor
    COMPARED = "compared"  # each response's strong validator is compared
    BRACKETED = "bracketed"  # info before and after; a race remains
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Validator:
    """What identifies one version of an object.

    Attributes:
        size: length of the object in bytes.
        etag: verbatim, with quotes, weak prefix and multi-part suffix.
        last_modified: verbatim header, or an ISO time of a filesystem's info.
        version: a version id, generation, or a filesystem's inode and mtime in nanoseconds.
    """

    size: int
    etag: str | None = None
    last_modified: str | None = None
    version: str | None = None

    @property
    def is_strong(self) -> bool:
        """True when the etag or version alone identifies the bytes."""
        return self.version is not None or (self.etag is not None and not self.etag.startswith("W/"))

    def same_version(self, other: Validator) -> bool:
        """Whether two responses spoke of the same bytes, as far as they can tell."""
        if self.size != other.size or self.version != other.version or self.etag != other.etag:
            return False
        return self.is_strong or self.last_modified == other.last_modified

    def digest(self) -> bytes:
        """16 bytes for cache keys."""
        parts = (str(self.size), self.etag, self.version, None if self.is_strong else self.last_modified)
        text = "\0".join("\1" if part is None else part for part in parts)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object as a listing has it.

    Attributes:
        url: what :meth:`Store.open_object` takes; begins with the url that was listed.
        size: bytes.
        validator: of the listed version, the same that a GET of it has; None where the listing does not tell
            it from other ones.
        modified: when it was written, in seconds since the epoch of the store's clock; None where it does not say.
    """

    url: str
    size: int
    validator: Validator | None
    modified: float | None = None


#: Given a folder's url, with its slash: False if nothing in it is needed.
Wants = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Bytes of an object and the version they belong to. ``data`` starts at ``start``.

    Attributes:
        validates: True if the store has just said that this is the object's present version; False where
            it cannot tell versions apart, or read on from a file whose name means another one by now.
    """

    data: bytes
    start: int
    validator: Validator
    validates: bool = True

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class RequestContext:
    """What a read passes down with each request.

    Attributes:
        metrics: where the request is counted.
        deadline: ``loop.time()`` after which the read gives up, or None.
        scan: True for scans, which leave some connections to lookups.
        round: dependency step, for the request log.
        purpose: what the request is for.
        probation: cache what it fetches on probation, so that it evicts nothing that lookups use.
        began: ``time.monotonic()`` when the read began; what was sent before does not tell it the object's version.
    """

    metrics: ReadMetrics
    deadline: float | None = None
    scan: bool = False
    round: int = 1
    purpose: Purpose = "data"
    probation: bool = False
    began: float = field(default_factory=time.monotonic)

    def step(self, purpose: Purpose, round_: int) -> RequestContext:
        """The same read, another purpose and round."""
        return RequestContext(self.metrics, self.deadline, self.scan, round_, purpose, self.probation, self.began)


class StoredObject(Protocol):
    """A handle on one object. Cheap to make; holds no connection (a local file holds a descriptor)."""

    @property
    def url(self) -> str:
        """For messages: without user info, query and secrets."""

    @property
    def identity(self) -> str:
        """Canonical and complete: endpoint, region, bucket and key, or the url with its query's
        non-signature parameters hashed. Never shown."""

    @property
    def guarantee(self) -> Guarantee:
        """The best that the store can do until a response, or :meth:`learn`, shows what the object allows."""

    def learn(self, validator: Validator) -> None:
        """Refine ``guarantee`` by a version that is known without a request, as its response did."""

    @property
    def client(self) -> str:
        """Which client serves it, for metrics: "direct", "aiohttp", "s3fs", "fsspec", "memory", "file"."""

    @property
    def server(self) -> str:
        """Host, with its port unless that is the scheme's own, which is asked, for metrics; "" where none is known."""

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """The last ``length`` bytes, or all of a shorter object, with the object's size.

        Raises:
            NotParquetError: the object is empty.
            StoreError: any of the store's errors.
        """

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """Exactly the bytes ``[start, stop)`` (0 <= start < stop).

        With ``pin``, of that version or ObjectChangedError.
        """

    async def close(self) -> None: ...


def is_here(handle: StoredObject) -> bool:
    """Whether its bytes are in this machine's memory or files: no cache outside of the process has them sooner."""
    return handle.client in ("memory", "file")


def version_check(handle: StoredObject) -> Callable[[Validator], bool] | None:
    """A check whether the object has a version at this moment, where that takes no request: for local files, a stat."""
    return getattr(handle, "has_version", None)


def listing_check(store: Store) -> Callable[[Iterable[tuple[str, Validator | None]]], bool] | None:
    """A check whether objects that were listed have changed, where that takes no request: see
    :meth:`asyncpq.storage.local.LocalStore.any_changed`."""
    return getattr(store, "any_changed", None)


class Store(Protocol):
    """All objects of one protocol with one set of storage options."""

    async def open_object(self, url: str) -> StoredObject:
        """A handle; does no I/O against the object itself where the store can do without."""

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """The objects whose urls begin with ``url``, as they are now, in bytewise order of their names.

        None is no error. Names that end in a slash (folder markers) are left out. The list is not to be changed: it may
        be that of the last call, where nothing has changed.

        Args:
            wants: asked of folders below; what it does not want may be left out, where that saves requests.

        Raises:
            UnsupportedStoreError: the store has no listings.
            StoreError: any of the store's errors.
        """

    async def credential_identity(self, url: str) -> str:
        """Who reads ``url``: a digest that shows no secret, "anonymous", or "" where nobody in particular.

        It follows the credentials that are in use, so it changes when they do. Costs no request to
        the object; the first call may look for credentials.

        Raises:
            CredentialsError: there are none where the store needs some.
        """

    async def close(self) -> None:
        """Closes connections; idempotent. Leaves no task, socket or thread."""


@runtime_checkable
class WritableStore(Store, Protocol):
    """A store that also writes. Found by :func:`writable`.

    An object is seen whole or not at all, and is there for every reader once the call has returned. Requests have
    purpose "write" and are sent again as reads are: a call that failed, or was cancelled, may have written.
    """

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object.

        Raises:
            StoreError: any of the store's errors.
        """

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object in one step. False: there is one, perhaps by this call, whose first answer was lost.

        Whether the store keeps to that is asked by :meth:`probe_create`.

        Raises:
            ConcurrentCommitUnsupported: it is known that the store does not.
            StoreError: any of the store's errors.
        """

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Whether :meth:`create_object` in the folder ``url``, with its slash, refuses what is there.

        It is tried with an object of a random name, which is deleted again: once for each bucket or local folder.
        """

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object by a local file's content, in bounded memory.

        Raises:
            StoreError: any of the store's errors; also where the file cannot be read.
        """

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object by what comes, in bounded memory; it is seen once all has come. False as
        :meth:`create_object`.

        Raises:
            ConcurrentCommitUnsupported: it is known that the store does not create in one step.
            StoreError: any of the store's errors; or what ``pieces`` raises. Then nothing is left.
        """

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """What is not there is no error. After an error some may be left.

        Raises:
            StoreError: any of the store's errors.
        """

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """The store's present time, in seconds since the epoch: what ``ListedObject.modified`` is compared with.

        Raises:
            StoreError: any of the store's errors.
        """


def writable(store: Store, url: str) -> WritableStore:
    """``store``, if it writes; ``url`` is safe to be shown.

    Raises:
        UnsupportedStoreError: it does not.
    """
    if isinstance(store, WritableStore):
        return store
    raise UnsupportedStoreError(
        "the store of this url cannot be written to", url=url, hint="Write to S3, GCS, Azure, or a local folder."
    )


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What stores share within one session. ``acquire``-like limits live here as they need a loop."""

    max_connections: int
    scan_connections: int  # at most this many at once for requests whose context says ``scan``


GRAIN_S = 2.0  # FAT's; most others count seconds, or less than milliseconds


def may_change_unseen(modified_s: float | None, now_s: float) -> bool:
    """Whether a version written at ``modified_s`` may be replaced by another with that time, at ``now_s`` or later.

    Both in seconds of the store's clock; a time with a fraction is of a clock that ticks faster.
    """
    return modified_s is not None and modified_s == int(modified_s) and now_s - modified_s < GRAIN_S


def http_date_s(value: str | None) -> float | None:
    """Seconds since the epoch of a header's date; None if it is none."""
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None


def info_time_s(value: object) -> float | None:
    """Seconds since the epoch of what a filesystem's ``info`` has for a time; None if it is not understood."""
    try:
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        return float(value) if isinstance(value, int | float) else None
    except (ValueError, OverflowError):
        return None


_HINT = "Keep the index in a store that can, or write to it from one place alone, with single_writer=True."


class ObjectExistsError(StoreError):
    """There is an object where one was to be created."""


def cannot_create(what: str, url: str) -> ConcurrentCommitUnsupported:
    """The error of a store that is known to have no such step."""
    return ConcurrentCommitUnsupported(f"{what} cannot create an object in one step", url=url, hint=_HINT)


def is_gone(error: StoreError) -> bool:
    """Whether it says that there is no such object or upload, in a bucket that is there."""
    return isinstance(error, ObjectNotFoundError) and not isinstance(error, BucketNotFoundError)


class CreateProbe:
    """Asks once for each place. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = asyncio.Lock()

    async def ask(self, store: WritableStore, place: str, url: str, context: RequestContext) -> bool:
        """Whether ``store`` refuses to create what is there.

        Args:
            place: what shares one answer.
            url: of a folder, with its slash, in which it is tried.

        Raises:
            StoreError: as creating and deleting.
        """
        async with self._lock:
            known = self._known.get(place)
            if known is None:
                known = self._known[place] = await _try(store, f"{url}.probe-{secrets.token_hex(8)}", context)
            return known


async def _try(store: WritableStore, url: str, context: RequestContext) -> bool:
    try:
        # False at first: the answer was lost, and the second attempt was refused
        refused = not await store.create_object(url, b"1", context=context)
        context = context.step(context.purpose, context.round + 1)
        return refused or not await store.create_object(url, b"2", context=context)
    except ConcurrentCommitUnsupported:
        return False
    finally:
        with contextlib.suppress(StoreError):  # who may not delete is told so by what needs it
            await store.delete_objects([url], context=context.step(context.purpose, context.round + 1))
