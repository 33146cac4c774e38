"""The contract of every store: :class:`Store` opens :class:`StoredObject` handles, which fetch bytes.

A store serves all urls of one protocol with one set of storage options. It checks status, Content-Range, length and
validator of each response and raises typed errors (fsspec and s3fs check none of these): its callers never see wrong or
short bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias, runtime_checkable

from asyncpq.errors import (
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.metrics import Purpose, ReadMetrics
from asyncpq.records import LazyRecords, NamedTuple, dataclass
from asyncpq.storage.threads import results_of
from asyncpq.storage.urls import safe_url

if TYPE_CHECKING:
    from pathlib import Path


class Unpicklable:
    """Base of classes that refuse pickling and copying, since they hold secrets or connections of one process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: make one in each process")


def closed_store() -> UsageError:
    """Return the error of a call after the store was closed."""
    return UsageError("the store is closed", hint="Read and write while the session is open.")


class Guarantee(enum.StrEnum):
    """How surely a read sees one version of one object (docs/architecture.md, One version)."""

    PINNED = "pinned"  # each GET carries If-Match (or a generation), or reads one open descriptor
    COMPARED = "compared"  # each response's strong validator is compared
    BRACKETED = "bracketed"  # info before and after; a race remains
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Validator:
    """The fields of a response that identify one version of an object.

    Attributes:
        size: size of the object in bytes.
        etag: the ETag as sent, with quotes, weak prefix and multi-part suffix; None without one.
        last_modified: the Last-Modified header as sent, or the ISO time of a filesystem's info; None without one.
        version: a version id, a generation, or a filesystem's inode and mtime in nanoseconds; None without one.
    """

    size: int
    etag: str | None = None
    last_modified: str | None = None
    version: str | None = None

    @property
    def is_strong(self) -> bool:
        """Whether the etag or the version alone identifies the bytes."""
        return self.version is not None or (self.etag is not None and not self.etag.startswith("W/"))

    def same_version(self, other: Validator) -> bool:
        """Return whether this validator and ``other`` describe the same bytes, as far as their fields can tell."""
        if self is other:
            return True
        if self.size != other.size or self.version != other.version or self.etag != other.etag:
            return False
        return self.is_strong or self.last_modified == other.last_modified

    @property
    def identity(self) -> tuple[int, str | None, str | None, str | None]:
        """What identifies the version, for keys within this process."""
        return self.size, self.etag, self.version, None if self.is_strong else self.last_modified

    def digest(self) -> bytes:
        """Return 16 bytes that identify the version, for cache keys."""
        text = "\0".join(["\1" if part is None else str(part) for part in self.identity])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a listing.

    Attributes:
        url: accepted by Store.open_object; begins with the url that was listed.
        size: in bytes.
        validator: of a GET of the listed version; None if the listing cannot tell versions apart.
        modified: time of the write, in seconds since the epoch of the store's clock.
    """

    url: str
    size: int
    validator: Validator | None
    modified: float | None = None


#: The url, size and time of a listed object; whether its validator is known, and that validator's etag, time, version.
ObjectRow: TypeAlias = tuple[str, int, float | None, bool, str | None, str | None, str | None]


class ListedObjects(LazyRecords[ListedObject]):
    """The objects of a listing; ``rows`` are :data:`ObjectRow`."""

    __slots__ = ()

    def __init__(self, rows: Sequence[ObjectRow]) -> None:
        super().__init__(rows, _listed_object)

    @classmethod
    def of(cls, objects: Iterable[ListedObject]) -> ListedObjects:
        """Return ``objects`` as rows."""
        return objects if isinstance(objects, cls) else cls([_object_row(listed) for listed in objects])


def _object_row(listed: ListedObject) -> ObjectRow:
    known = listed.validator
    if known is None:
        return listed.url, listed.size, listed.modified, False, None, None, None
    return listed.url, listed.size, listed.modified, True, known.etag, known.last_modified, known.version


def _listed_object(row: ObjectRow) -> ListedObject:
    url, size, modified, known, *fields = row
    return ListedObject(url, size, Validator(size, *fields) if known else None, modified)


#: A function that gets the url of a folder, with its final slash, and returns False if nothing in the folder is needed.
Wants = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Bytes of an object and the validator of the version that they belong to. ``data`` starts at byte ``start``.

    A view keeps the memory of the whole response alive: copy what is kept for longer.

    Attributes:
        validates: the response proves that this is the object's current version. False if the store cannot tell
            versions apart, or the bytes come from an open file whose path now names another one.
    """

    data: bytes | memoryview
    start: int
    validator: Validator
    validates: bool = True

    @property
    def stop(self) -> int:
        """Offset of the byte after ``data`` in the object."""
        return self.start + len(self.data)


@dataclass(slots=True)
class RequestContext:
    """The facts that a read passes to the store with each request: its metrics, the request's purpose, and limits.

    Attributes:
        scan: scans leave some connections to lookups.
        round: dependency step, for the request log.
        began: time.monotonic() at the start of the read; responses to earlier requests do not validate for it.
    """

    metrics: ReadMetrics  # count the request
    scan: bool = False
    round: int = 1
    purpose: Purpose = "data"
    began: float = field(default_factory=time.monotonic)

    def step(self, purpose: Purpose, round_: int) -> RequestContext:
        """Return a copy of the context for a request with another purpose, or in another round (``round_``), of the
        same read."""
        return RequestContext(self.metrics, self.scan, round_, purpose, self.began)


class StoredObject(Protocol):
    """A handle on one object. Cheap to make; holds no connection (a local file holds a descriptor)."""

    @property
    def url(self) -> str:
        """The url as shown in messages: without user info, query and secrets."""

    @property
    def identity(self) -> str:
        """The complete canonical url, which identifies the object in caches (see
        :func:`asyncpq.storage.urls.identity_of`). It may hold secrets and is never shown."""

    @property
    def guarantee(self) -> Guarantee:
        """The best guarantee that reads of the object may have. A response, or :meth:`learn`, may lower it."""

    def learn(self, validator: Validator) -> None:
        """Set ``guarantee`` from a validator that did not come from a request, such as one from a cache."""

    @property
    def client(self) -> str:
        """The client that sends requests, for metrics: "direct", "aiohttp", "s3fs", "fsspec", "obstore",
        "memory" or "file"."""

    @property
    def server(self) -> str:
        """Host and non-default port of the server, for metrics; "" if unknown."""

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """Fetch the last ``length`` bytes of the object, or all bytes of a shorter object.

        ``pin`` is the version that the object must have; None for any. Raises NotParquetError if the object is empty,
        ObjectChangedError if its version is not ``pin``, or StoreError.
        """

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """Fetch exactly the bytes ``[start, stop)`` (0 <= start < stop). Raises the errors of :meth:`fetch_tail`."""

    async def close(self) -> None:
        """Release what the handle holds, such as a local file's descriptor. Idempotent."""


def is_here(handle: StoredObject) -> bool:
    """Return whether the object's bytes are in this machine's memory or files, so that caches outside this process save
    nothing."""
    return handle.client in ("memory", "file")


def version_check(handle: StoredObject) -> Callable[[Validator], bool] | None:
    """Return the handle's function that tells without a request whether its object has a version now; None if it has
    none."""
    return getattr(handle, "has_version", None)


def listing_check(store: Store) -> Callable[[Iterable[tuple[str, Validator | None]]], bool] | None:
    """Return the store's ``any_changed``, which tells without a request whether any object of a listing has changed;
    None if the store has none."""
    return getattr(store, "any_changed", None)


class Store(Protocol):
    """Opens and lists objects of one protocol, with one set of storage options."""

    async def open_object(self, url: str) -> StoredObject:
        """Return a handle on the object of ``url``; most stores send no request for it."""

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> Sequence[ListedObject]:
        """List the objects whose urls begin with ``url``, in bytewise order of their names: each with ``url``, ``size``
        in bytes, ``validator`` and ``modified`` (None: unknown).

        Names that end in a slash (folder markers) are left out, and so may be a folder for whose url ``wants`` returns
        False. The caller must not change the list, since the store may return it again while nothing has changed.
        Raises StoreError: UnsupportedStoreError if the store has no listings.
        """

    async def credential_identity(self, url: str) -> str:
        """Return a digest of the credentials for ``url``, which shows no secret; "anonymous" or "" if there are none.

        No request is sent for the object. Raises CredentialsError if the store needs credentials and finds none.
        """

    async def close(self) -> None:
        """Close all connections of the store, and end its tasks and threads. Idempotent."""


@runtime_checkable
class SettledStore(Store, Protocol):
    """A store that looks for credentials, endpoint and region in several places, and reports what it found."""

    async def settings(self, url: str) -> dict[str, str]:
        """Return what was found for ``url``, such as "credentials" (where they came from), "endpoint" and "region".

        The values show no secrets. No request is sent for the object.
        """


class FirstNames(NamedTuple):
    """The first entries of a folder: urls of objects, and of folders with a slash at their ends."""

    urls: list[str]
    is_whole: bool  # the folder holds nothing else


@runtime_checkable
class FolderStore(Store, Protocol):
    """A store that can look into a folder without listing what its subfolders hold."""

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return the names directly in the folder ``url`` (with its slash) that one small request gives, in any order;
        none if there is no such folder. Raises StoreError."""


@runtime_checkable
class WritableStore(Store, Protocol):
    """A store that also writes; :func:`writable` casts a store to this type.

    A written object is visible whole or not at all, and to every reader once the call returns. Requests have purpose
    "write" and are retried like reads, so a call that failed or was cancelled may have written. Each method raises the
    store's errors, which are StoreErrors. ``context`` counts the requests of the read that writes
    (:class:`RequestContext`).
    """

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object. Raises StoreError; see :class:`WritableStore`."""

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object unless it exists, in one step; return whether this call created it.

        False may also mean that this call created the object, but the first response was lost, and a retry found it.
        Some stores overwrite an existing object anyway: see :meth:`probe_create`. Raises ConcurrentCommitUnsupported if
        the store is known to have no such step.
        """

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Return whether :meth:`create_object` in the folder ``url`` (with its slash) refuses to replace an object.

        To find out, objects of random names are created several times, and deleted: once for each bucket or local
        folder.
        Raises StoreError.
        """

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object with the content of the local file ``path``, in bounded memory. Raises StoreError
        or the file's OSError."""

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces`` of its content, in bounded memory. It becomes visible after the last piece.

        Returns and raises the same as :meth:`create_object`. An error, also one of ``pieces``, leaves no object behind.
        """

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects; a missing object is not an error. Raises StoreError; some objects may then remain."""

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """Return the time of the store's clock in seconds since the epoch, for the age of objects: it is comparable
        with ``modified`` of what :meth:`list_objects` returns. Raises StoreError."""


def writable(store: Store, url: str) -> WritableStore:
    """Return ``store`` as a WritableStore; raise UnsupportedStoreError, which shows ``url``, if it cannot write."""
    if isinstance(store, WritableStore):
        return store
    raise UnsupportedStoreError(
        "the store of this url cannot be written to", url=url, hint="Write to S3, GCS, Azure, or a local folder."
    )


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How many requests of one store may run at once, and how many objects one listing may have.

    Attributes:
        max_connections: requests under way at once.
        scan_connections: how many of them may be requests of scans.
    """

    max_connections: int
    scan_connections: int
    max_listed_objects: int = 10_000_000


GRAIN_S = 2.0  # coarsest tick of file times, that of FAT; most other file systems count seconds or finer


def may_change_unseen(modified_s: float | None, now_s: float) -> bool:
    """Return whether an object written at ``modified_s`` may, at ``now_s``, be replaced by a version of the same time.

    A clock that counts whole seconds, or pairs of them, gives both versions of one tick the same time (RFC 9110,
    section 8.8.2.2). Both are seconds of the store's clock; a time with a fraction comes from a finer clock.
    """
    return modified_s is not None and modified_s == int(modified_s) and now_s - modified_s < GRAIN_S


def http_date_s(value: str | None) -> float | None:
    """Parse a Date or Last-Modified header to seconds since the epoch; None if the header is missing or malformed."""
    from email.utils import parsedate_to_datetime  # few responses need it

    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None


_MILLISECONDS = 100_000_000_000  # of 1973; as seconds it is 5138


def info_time_s(value: object) -> float | None:
    """Convert a time in fsspec's ``info()`` to seconds since the epoch. It is a datetime, an ISO 8601 string, or a
    number of such seconds, or of milliseconds (WebHDFS). None for anything else. Times without a zone are local."""
    try:
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if not isinstance(value, int | float):
            return None
        return value / 1000 if value > _MILLISECONDS else float(value)
    except (ValueError, OverflowError):
        return None


class ObjectExistsError(StoreError):
    """The object to be created exists already."""


def cannot_create(subject: str, url: str) -> ConcurrentCommitUnsupported:
    """Return the error for a store that cannot create an object only if it does not exist. ``subject``, such as "the
    file system", begins the message."""
    hint = "Keep the index in a store that can, or write to it from one place alone, with single_writer=True."
    return ConcurrentCommitUnsupported(f"{subject} cannot create an object in one step", url=url, hint=hint)


def temporary_file_error(error: OSError, url: str) -> StoreError:
    """Return the error for a temporary local file that cannot be written; it was to have the content of the object at
    ``url``."""
    return StoreError(
        f"the temporary local file of the object cannot be written: {error.strerror}",
        url=safe_url(url),
        hint="Free disk space in the folder for temporary files (TMPDIR), or set another.",
    )


def is_gone(error: StoreError) -> bool:
    """Return whether the error means that the object or upload is missing in an existing bucket."""
    return isinstance(error, ObjectNotFoundError) and not isinstance(error, BucketNotFoundError)


#: Creates at once, for each of the objects. Several of 8 succeed in half of the tries at OpenStack Swift 2.38.
_RACES = (8, 8, 8)


class CreateProbe:
    """Finds out, for each bucket or local folder, whether its store refuses to create an object that exists. Belongs to
    one event loop.

    Some stores accept the conditional request and overwrite the object all the same, always or if it was created
    meanwhile, so the request is tried.
    """

    def __init__(self, races: Sequence[int] = _RACES) -> None:
        """``races``: of each object, how many creates are sent at once."""
        self._races = races
        self._known: dict[str, bool] = {}
        self._lock = asyncio.Lock()

    async def ask(self, store: WritableStore, place: str, url: str, context: RequestContext) -> bool:
        """Return whether ``store`` refuses to create an existing object in the folder ``url``. The answer is remembered
        for ``place``, the bucket or folder."""
        async with self._lock:
            if place not in self._known:
                self._known[place] = await self._try(store, f"{url}.probe-{os.urandom(8).hex()}", context)
            return self._known[place]

    async def _try(self, store: WritableStore, url: str, context: RequestContext) -> bool:
        urls = [f"{url}-{number}" for number in range(len(self._races))]
        try:
            # OpenStack Swift looks first and writes later, so several creates at once may all succeed. If none does,
            # the response to the one that did was lost, and its retry was refused.
            for each, count in zip(urls, self._races, strict=True):
                creating = [store.create_object(each, b"1", context=context) for _ in range(count)]
                if sum(await results_of(creating)) > 1:
                    return False
                context = context.step(context.purpose, context.round + 1)
            return not await store.create_object(urls[0], b"2", context=context)
        except ConcurrentCommitUnsupported:
            return False
        finally:
            with contextlib.suppress(StoreError):  # a later delete that matters reports a missing permission
                await store.delete_objects(urls, context=context.step(context.purpose, context.round + 1))


async def time_of_probe(
    store: WritableStore,
    url: str,
    context: RequestContext,
    modified_s: Callable[[str, RequestContext], Awaitable[float | None]],
) -> float:
    """Return the store's time in seconds since the epoch: the time of an object that is written beside ``url`` for
    this, and deleted.

    ``modified_s`` returns the time at which an object was written, by its url.
    """
    probe = f"{url[: url.rindex('/') + 1]}.clock-{os.urandom(8).hex()}"
    await store.put_object(probe, b"1", context=context)
    context = context.step(context.purpose, context.round + 1)
    try:
        seconds = await modified_s(probe, context)
    finally:
        await store.delete_objects([probe], context=context.step(context.purpose, context.round + 1))
    if seconds is None:
        raise InvalidResponseError(
            "the store did not return the modification time of an object that was just written", url=safe_url(url)
        )
    return seconds
