"""Open an :class:`ObjectSource` for a url, with the session's stores and caches.

:func:`held_source` makes a source from bytes in memory, such as rows that a table's catalog stores.
"""

from __future__ import annotations

import hashlib
import os

from asyncpq.errors import InvalidResponseError, NotParquetError, ObjectChangedError
from asyncpq.metrics import RequestRecord
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import ObjectSource, PackedTail
from asyncpq.objects.version import Decryption, FileVersion, KnownVersion
from asyncpq.options import CachePolicy, immutable
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator
from asyncpq.storage.urls import safe_url


class HeldObject:
    """A :class:`asyncpq.storage.base.StoredObject` in memory, with a validator made from the content."""

    client = "memory"
    server = ""
    guarantee = Guarantee.PINNED

    def __init__(self, url: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        self.url = url
        self.identity: str = f"held://{digest}"
        self._content = content
        self._validator = Validator(len(content), etag=f'"{digest}"')

    def learn(self, validator: Validator) -> None:
        """Do nothing: the content in memory never changes."""

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """Return the last ``length`` bytes of the content, or all of a shorter one."""
        if not self._content:
            raise NotParquetError("the object is empty", url=self.url)
        return self._fetch(max(0, len(self._content) - length), len(self._content), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """Return the bytes ``[start, stop)`` of the content. Raises InvalidResponseError if it ends earlier."""
        if stop > len(self._content):
            raise InvalidResponseError(
                f"the object ends at byte {len(self._content)}, before the range does",
                url=self.url,
                byte_range=(start, stop),
            )
        return self._fetch(start, stop, context)

    async def close(self) -> None:
        """Do nothing: no handle is open."""

    def _fetch(self, start: int, stop: int, context: RequestContext) -> RangeResult:
        data = self._content[start:stop]
        context.metrics.record(
            RequestRecord(
                "GET", context.purpose, start, stop, 200, len(data), 1, context.round, 0.0, began=context.began
            )
        )
        return RangeResult(data, start, self._validator)


async def open_source(
    runtime: Runtime,
    url: str,
    decryption: Decryption | None = None,
    *,
    tail_hint: str | None = None,
    policy: CachePolicy | None = None,
    packed: PackedTail | None = None,
    once: bool = False,
) -> ObjectSource:
    """Open the object at ``url``. The caller closes ``source.handle``.

    Args:
        decryption: keys of an encrypted file.
        tail_hint: a name shared by objects whose footers have similar sizes, from which the size of
            the first GET is guessed; by default the folder's url.
        policy: how long cached parts are served without validation; by default the session's policy.
        packed: a compressed copy of the object's tail, which is fetched in place of the tail.
        once: the object is read once: caches outside this process are not used.

    Raises:
        StoreError: no store serves the url, or credentials are missing.
    """
    store, namespace = await runtime.store(url)
    handle = await store.open_object(url)
    try:
        if runtime.options.cache_namespace is None:  # else the caller says who shares
            namespace = f"{namespace}:{await store.credential_identity(url)}"
        if decryption is not None:
            namespace = f"{namespace}:{os.urandom(16).hex()}"  # shares nothing with anyone
        if policy is None:
            policy = runtime.options.policy(handle.url, safe_url(url))
        return ObjectSource(runtime, handle, namespace, policy, decryption, tail_hint, packed, once=once)
    except BaseException:
        await handle.close()
        raise


def held_source(runtime: Runtime, url: str, content: bytes, tail_hint: str | None = None) -> ObjectSource:
    """Return a source for bytes in memory: ``content`` is the whole object, ``url`` its name in errors."""
    return ObjectSource(runtime, HeldObject(safe_url(url), content), "held", immutable(), None, tail_hint)


async def load_version(source: ObjectSource, context: RequestContext, known: KnownVersion | None = None) -> FileVersion:
    """Return the object's current version, from the caches or the store. Starts again if the object was replaced
    between two requests for its footer.

    Args:
        known: a version that an index describes. It is used without a request until a GET contradicts it.
    """
    metrics = context.metrics
    adopted = None if known is None else source.adopt(known, context)
    if adopted is not None:
        return adopted
    while True:
        try:
            version = await source.version(context)
        except ObjectChangedError:
            if metrics.restarts >= source.runtime.options.limits.max_restarts:
                raise
            metrics.restarts += 1
            continue
        if known is not None and version.decryption is None and version.validator.same_version(known.validator):
            version.learn(known)
        return version
