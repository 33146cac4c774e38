"""An object behind the caches: finds its current version, validates it, and loads its footer.

``Freshness`` knows the version that was last seen and says how long it may be used without validation;
``storage/response_checks.py`` and ``storage/local.py`` check responses, and so detect that an object was replaced.

The first GET is a suffix range without a HEAD: its response gives footer, most indexes, size and ETag. Its bytes are
kept, so indexes, and pages of small objects, are cut out of them without a request.

:func:`open_source` opens a url with the session's stores and caches; :func:`held_source` makes a source from bytes in
memory, such as rows that a table's catalog stores.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
import zlib
from collections.abc import Callable
from functools import partial

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey, version_digest
from asyncpq.caching.tiers import Tiers
from asyncpq.errors import (
    AsyncpqError,
    CorruptFileError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.objects.prices import Burst, Measured, Prices
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.tail_sizes import needed_tail
from asyncpq.objects.version import Decryption, FileVersion, KnownVersion, ObjectVersion
from asyncpq.options import CachePolicy, immutable
from asyncpq.parquet.metadata import (
    MAGIC,
    TRAILER_BYTES,
    FooterDecoder,
    FooterFound,
    NeedBytes,
    check_last_chunk,
    decode_file_metadata,
)
from asyncpq.records import NamedTuple
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, StoredObject, Validator, is_here, version_check
from asyncpq.storage.urls import safe_url

_INLINE_FOOTER_BYTES = 128 * 1024  # decoded on the event loop, in about 3 ms


class PackedTail(NamedTuple):
    """Where a deflated copy of an object's tail (from the footer to the end) is stored in the object.

    Attributes:
        start, stop: its bytes in the object.
        length: bytes of the tail, decompressed.
    """

    start: int
    stop: int
    length: int

    def unpacked(self, data: bytes | memoryview) -> bytes:
        """Decompress ``data``, the deflated copy of the tail. Raises CorruptFileError if the copy is damaged."""
        engine = zlib.decompressobj()
        try:
            found = engine.decompress(data, self.length + 1)
        except zlib.error:
            found = b""
        if len(found) != self.length or not engine.eof:
            raise CorruptFileError("the deflated footer is damaged", byte_range=(self.start, self.stop))
        return found


class Missing(NamedTuple):
    """Stored in the cache in place of an object that did not exist at ``seen_at`` (``time.monotonic()`` seconds)."""

    kind: type[ObjectNotFoundError]
    message: str
    hint: str | None
    seen_at: float


class Freshness:
    """The last seen version of one object, shared by all of the session's handles of that object.

    ``key`` is the key of the pointer to that version in every cache tier. ``tiers`` are the tiers outside this process;
    None if the object is not cached there. ``check`` tells without a request whether a local file still has a version;
    None for other objects.
    """

    def __init__(
        self,
        runtime: Runtime,
        key: PointerKey,
        policy: CachePolicy,
        tiers: Tiers | None,
        check: Callable[[Validator], bool] | None = None,
    ) -> None:
        self.key = key
        self.policy = policy
        self._check = check if policy.kind == "etag" else None
        self._runtime = runtime
        self._tiers = tiers
        self._own_pointer: Pointer | None = None
        self._told_at = -math.inf  # when the tiers outside this process were last told of it

    # -- which version may be served -----------------------------------------------------------------------

    def is_fresh(self, version: ObjectVersion, asked: float = math.inf) -> bool:
        """Return whether the cache policy lets ``version`` be used without asking the store, or it was validated since
        ``asked`` (``time.monotonic()``)."""
        if self.policy.kind == "immutable" or not version.can_validate:
            return True  # a version that cannot be validated expires instead
        if self._check is not None:
            return self._check(version.validator)
        pointer = self.pointer()
        if pointer is None or not pointer.validator.same_version(version.validator):
            return False
        return pointer.validated_at >= asked or time.monotonic() - pointer.validated_at < self.policy.max_age_s

    def may_be_current(self, pointer: Pointer) -> bool:
        """Return whether the object may still have the version of ``pointer``. Only local files are checked, by
        stat."""
        return self._check is None or self._check(pointer.validator)

    def identifies(self, version: ObjectVersion) -> bool:
        """Return whether an equal validator proves ``version``: the store can validate it, or the object never
        changes."""
        return version.can_validate or self.policy.kind == "immutable"

    def is_expired(self, version: ObjectVersion) -> bool:
        """Return whether all cached parts of ``version`` must be fetched again: the store cannot validate the
        version, and it is older than the cache policy allows.
        """
        if self.identifies(version):
            return False
        return time.monotonic() - version.observed_at >= self.policy.max_age_s

    # -- versions seen ----------------------------------------------------------------------------

    def validated_by(self, result: RangeResult, version: ObjectVersion, sent: float) -> None:
        """Record that the response ``result`` to a GET sent at ``sent`` (``time.monotonic()``) validated ``version``.
        Does nothing under the cache policy "ttl", which uses age alone."""
        if result.validates and self.policy.kind != "ttl":
            self.point_to(version, sent)

    def seen(self, version: ObjectVersion, sent: float) -> None:
        """Record that a listing that was requested at ``sent`` shows ``version``, which validates it too. Does nothing
        under the cache policy "ttl"."""
        if version.can_validate and self.policy.kind != "ttl":
            self.point_to(version, sent)

    def point_to(self, version: ObjectVersion, sent: float) -> None:
        """Record in every cache tier that the object had ``version`` at ``sent``, unless a newer version is known."""
        pointer, validator = self.pointer(), version.validator
        if pointer is None or not (pointer.validator is validator or pointer.validator.same_version(validator)):
            if pointer is not None and sent <= pointer.validated_at:
                return  # the known version is newer
            pointer = Pointer(validator, sent)
            self.keep(pointer)
            if self.is_outdated(validator):
                del self._runtime.outdated[self.key]  # it is back
        elif sent > pointer.validated_at:
            pointer.validated_at = sent
        tiers = self._tiers if version.can_validate else None
        # not with every GET: other processes accept a pointer of half the maximal age
        if tiers is not None and sent - self._told_at >= max(1.0, self.policy.max_age_s / 2):
            self._told_at = sent
            tiers.put_pointer(self.key, pointer)

    async def forget(self, version: ObjectVersion) -> None:
        """Drop the pointers to ``version`` from every cache tier, since the object has another version now."""
        pointer = self.pointer()
        if version.can_validate:
            self._runtime.outdated[self.key] = version.validator.identity
        if pointer is not None and not pointer.validator.same_version(version.validator):
            return  # another read has seen the new version already
        self._own_pointer = None
        self._runtime.memory.discard(self.key)
        if self._tiers is not None:
            self._told_at = -math.inf  # the next version's pointer is news to them
            await self._tiers.drop_pointer(self.key)

    # -- pointers ---------------------------------------------------------------------------------

    def pointer(self) -> Pointer | None:
        """Return the pointer to the version that any handle saw last. If the memory cache did not keep it, return that
        of this handle."""
        pointer: Pointer | None = self._runtime.memory.get(self.key)
        own = self._own_pointer
        if pointer is None and own is not None and not self.is_outdated(own.validator):
            return own
        return pointer

    def keep(self, pointer: Pointer) -> None:
        """Store ``pointer`` as the last seen version, in this object and in the memory cache."""
        self._own_pointer = pointer
        self._runtime.memory.put(self.key, pointer, self.key.weight + pointer.weight)

    def is_outdated(self, validator: Validator) -> bool:
        """Return whether this session has seen that the object with this version was replaced."""
        return bool(self._runtime.outdated.get(self.key) == validator.identity)

    def contradicts(self, validator: Validator) -> bool:
        """Return whether this session knows that the object does not have this version: it was seen replaced, or
        another version was seen within the age that the policy allows."""
        pointer = self.pointer()
        if self.is_outdated(validator) or (self._check is not None and not self._check(validator)):
            return True
        if pointer is None or pointer.validator.same_version(validator):
            return False
        return self.policy.kind == "immutable" or time.monotonic() - pointer.validated_at < self.policy.max_age_s


class ObjectSource:
    """Fetches the footer and other parts of one object through the session's caches.

    ``policy`` says how long cached parts are served without validation. ``tail_hint`` names objects with tails of
    similar size, by default those of the folder. An object that is read ``once`` is not written to caches outside this
    process, and its footer is not kept in memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        handle: StoredObject,
        namespace: str,
        policy: CachePolicy,
        decryption: Decryption | None = None,
        tail_hint: str | None = None,
        packed: PackedTail | None = None,
        *,
        once: bool = False,
    ) -> None:
        self.runtime = runtime
        self._packed = packed
        self._tail_hint = handle.url.rpartition("/")[0] if tail_hint is None else tail_hint
        self.handle = handle
        self._protocol = handle.url.partition(":")[0]
        self._namespace = namespace
        self._decryption = decryption
        self._once = once
        self.is_here: bool = is_here(handle)
        self._initial_prices = runtime.price_book.initial if self.is_here else None  # nothing is learnt of those
        # parts that are read with a user's own keys are not shared
        shared = decryption is None and not once and not self.is_here
        self.tiers: Tiers | None = runtime.tiers if shared and runtime.tiers else None
        self._pointer_key = PointerKey(namespace, handle.identity)
        self._missing_key = ("missing", self._pointer_key)
        self.freshness: Freshness = Freshness(runtime, self._pointer_key, policy, self.tiers, version_check(handle))

    # -- versions ---------------------------------------------------------------------------------

    def check_guarantee(self) -> None:
        """Raise UnsupportedStoreError if the session requires that a read sees one version, and the store cannot
        guarantee that."""
        guarantee = self.handle.guarantee
        if self.runtime.options.read.require_pinning and guarantee not in (Guarantee.PINNED, Guarantee.COMPARED):
            raise UnsupportedStoreError(
                f"the store cannot guarantee reads of one version: its guarantee is only {guarantee.value!r}",
                url=self.handle.url,
                hint="Leave out ReadOptions(require_pinning=True) to read it without that guarantee.",
            )

    def describe(self, metrics: ReadMetrics) -> None:
        """Record in ``metrics`` which guarantee of one version the store gives for the object, and its client and
        server."""
        handle = self.handle
        metrics.guarantee, metrics.store_path, metrics.server = str(handle.guarantee), handle.client, handle.server

    async def version(self, context: RequestContext) -> FileVersion:
        """Return the version that a cached pointer names, if its footer is cached too; else the store's current one.

        A cached footer is used at once: the read's first GET validates it.
        """
        version = self.held_version()
        if version is not None:
            self.handle.learn(version.validator)
            self.check_guarantee()
            context.metrics.cache_hits += 1
            return version
        context.metrics.wait_begins()
        try:
            return await self.runtime.flights.run(("version", self._pointer_key), lambda: self._load_version(context))
        finally:
            context.metrics.wait_ends()

    def held_version(self) -> FileVersion | None:
        """Return the object's version in the session's memory; None without one, or if the cache policy forbids it."""
        pointer = self.freshness.pointer()
        if pointer is None or not self.freshness.may_be_current(pointer):
            return None
        version: FileVersion | None = self.runtime.memory.get(self._version_key(pointer.validator))
        return None if version is None or self.freshness.is_expired(version) else version

    def adopt(self, known: KnownVersion, context: RequestContext) -> FileVersion | None:
        """Return the version that an external index describes, as if its footer had just been fetched.

        The read's first GET validates the version. If the index describes only some leaf columns, the use of another
        one raises ``UnknownLeafError``; the caller then calls :meth:`version`.

        Returns:
            None if the index has no footer, if the file is encrypted, if the session has seen another version, or if
            the store cannot pin requests to the version.
        """
        metadata = known.metadata
        if metadata is None or self._decryption is not None or self.freshness.contradicts(known.validator):
            return None
        self.handle.learn(known.validator)
        if self.handle.guarantee is Guarantee.NONE:
            return None
        self.check_guarantee()
        memory = self.runtime.memory
        version: FileVersion | None = memory.get(self._version_key(known.validator))
        if version is None and known.leaves is not None:
            version = memory.get(self._version_key(known.validator, partial=True))
            if version is not None and not (version.leaves is not None and known.leaves <= version.leaves):
                version = None
        if version is None:
            metadata.int96_unit = self.runtime.options.read.int96_unit
            metadata.calendar_mode = self.runtime.options.read.legacy_calendar
            version = FileVersion(
                self._seen(known.validator, time.monotonic()),
                footer_start=known.footer_start,
                metadata=metadata,
                leaves=known.leaves,
            )
        version.learn(known)
        self.keep(version)
        context.metrics.cache_hits += 1
        return version

    async def _load_version(self, context: RequestContext) -> FileVersion:
        memory, negative_ttl_s = self.runtime.memory, self.runtime.options.negative_ttl_s
        missing: Missing | None = memory.get(self._missing_key) if negative_ttl_s else None
        if missing is not None and time.monotonic() < missing.seen_at + negative_ttl_s:
            context.metrics.cache_hits += 1
            raise missing.kind(missing.message, url=self.handle.url, hint=missing.hint)
        version = await self._version_from_tiers(context)
        if version is not None:
            context.metrics.cache_hits += 1
            return version
        return await self._load_from_store(context)

    async def _load_from_store(self, context: RequestContext) -> FileVersion:
        memory, negative_ttl_s = self.runtime.memory, self.runtime.options.negative_ttl_s
        context.metrics.cache_misses += 1
        sent = time.monotonic()
        try:
            version = await self._fetch_version(context)
        except ObjectNotFoundError as error:
            if negative_ttl_s:
                missing = Missing(type(error), error.message, error.hint, sent)
                memory.put(self._missing_key, missing, self._pointer_key.weight + 300)
            raise
        memory.discard(self._missing_key)
        return version

    async def _version_from_tiers(self, context: RequestContext) -> FileVersion | None:
        """Return the version that a cached pointer names, with its footer from a cache tier outside this process; None
        if no tier has both.

        A version that this session has seen replaced is not used, though a tier may still have it.
        """
        tiers, asked = self.tiers, time.monotonic()
        if tiers is None:
            return None
        known = self.freshness.pointer()
        pointer = await self.known_pointer()
        if pointer is None:
            return None
        validator = pointer.validator
        key = ContentKey(version_digest(self._namespace, self.handle.identity, validator), "footer", 0, 0)
        entries, hits = await tiers.get_many([key])
        if key not in entries:
            return None
        data = entries[key]
        self.handle.learn(validator)
        self.check_guarantee()
        try:
            found = self._decoder().next(data, validator.size - len(data), validator.size)
            if isinstance(found, NeedBytes):
                return None
            version = await self._decode_version(found, data, validator, asked)
        except AsyncpqError:
            return None  # the file is then read from the store, which shows whether it is damaged
        context.metrics.count_hits(hits)
        self.keep(version)
        if known is None:
            self.freshness.keep(pointer)
        return version

    async def known_pointer(self) -> Pointer | None:
        """Return the cached pointer to the object's version, from memory or else from a further tier. None if there is
        none, or the session has seen that version replaced."""
        pointer = self.freshness.pointer()
        if pointer is None and self.tiers is not None:
            pointer = await self.tiers.get_pointer(self._pointer_key)
        return None if pointer is None or self.freshness.is_outdated(pointer.validator) else pointer

    def object_version(self, validator: Validator, observed_at: float | None = None) -> ObjectVersion:
        """Return the version with ``validator``, for reads of any bytes of the object. The caller has the validator
        from a cache or a response."""
        self.check_guarantee()
        return self._seen(validator, time.monotonic() if observed_at is None else observed_at)

    def _seen(self, validator: Validator, observed_at: float) -> ObjectVersion:
        return ObjectVersion(
            url=self.handle.url,
            namespace=self._namespace,
            identity=self.handle.identity,
            validator=validator,
            observed_at=observed_at,
            can_validate=self.handle.guarantee is not Guarantee.NONE,
        )

    def _version_key(self, validator: Validator, *, partial: bool = False) -> tuple[object, ...]:
        return ("version of some leaves" if partial else "version", *self._pointer_key, *validator.identity)

    async def _fetch_version(self, context: RequestContext) -> FileVersion:
        """Fetch footer and tail from the store: one suffix GET, and another if the first was too short."""
        runtime, packed = self.runtime, self._packed
        sent = time.monotonic()
        decoder = self._decoder()
        try:
            if packed is None:
                guess = runtime.tail_sizes.guess(self._tail_hint, self.handle.url)
                tail = await self.handle.fetch_tail(guess, context=context.step("tail", context.round))
                self.learn_prices(Measured(1, len(tail.data), time.monotonic() - sent))
            else:
                tail = await self._fetch_packed(packed, context)
            self.check_guarantee()  # known better once the store has answered
            data = bytes(tail.data)
            found = decoder.next(data, tail.start, tail.validator.size)
            while isinstance(found, NeedBytes):
                rest = await self.handle.fetch_range(
                    found.start, tail.start, context=context.step("footer", context.round + 1), pin=tail.validator
                )
                data = b"".join((rest.data, data))
                tail = RangeResult(data, rest.start, tail.validator)
                found = decoder.next(data, tail.start, tail.validator.size)
            footer = data[found.start - tail.start :]
            version = await self._decode_version(found, footer, tail.validator, sent)
        except AsyncpqError as error:
            raise error.locate(url=self.handle.url) from error.__cause__
        self.keep(version)
        if packed is None:
            runtime.tail_sizes.learn(self._tail_hint, needed_tail(version), self.handle.url)
            runtime.memory.put(version.tail_key, data, len(data))
        self.freshness.point_to(version, sent)
        tiers = self.tiers_of(version)
        if tiers is not None:
            tiers.put_many({version.key("footer", 0, 0): footer})
        return version

    async def _fetch_packed(self, packed: PackedTail, context: RequestContext) -> RangeResult:
        try:
            found = await self.handle.fetch_range(
                packed.start, packed.stop, context=context.step("footer", context.round)
            )
        except InvalidResponseError as error:
            raise CorruptFileError(f"the compressed copy of the footer cannot be fetched: {error.message}") from error
        return RangeResult(packed.unpacked(found.data), found.validator.size - packed.length, found.validator)

    def _decoder(self) -> FooterDecoder:
        return FooterDecoder(
            max_footer_bytes=self.runtime.options.limits.max_footer_bytes, encrypted=self._decryption is not None
        )

    async def _decode_version(
        self, found: FooterFound, footer: bytes, validator: Validator, observed_at: float
    ) -> FileVersion:
        """Decode the footer to a version; ``found.start`` is the offset of the first fetched byte."""
        decryption, data = self._decryption, found.metadata_bytes
        if decryption is not None:
            data = await self.runtime.in_thread(partial(decryption.footer, footer, validator.size))
        limits = self.runtime.options.limits
        decode = partial(
            decode_file_metadata,
            data,
            max_elements=limits.max_footer_elements,
            max_schema_elements=limits.max_schema_elements,
        )
        metadata = await self.runtime.in_thread(decode, small=len(data) <= _INLINE_FOOTER_BYTES)
        check_last_chunk(metadata, found.start)
        metadata.int96_unit = self.runtime.options.read.int96_unit
        metadata.calendar_mode = self.runtime.options.read.legacy_calendar
        if decryption is not None and footer.endswith(MAGIC) and not metadata.has_encryption:
            decryption = None  # keys were given for a file that needs none
        return FileVersion(
            self._seen(validator, observed_at),
            footer_start=found.start,
            metadata=metadata,
            decryption=decryption,
            footer=b"" if decryption is None else footer,
        )

    def forget_content(self, version: FileVersion) -> None:
        """Drop from memory what was read of an object that is read once, unless another read keeps its version."""
        memory = self.runtime.memory
        if memory.get(self._version_key(version.validator)) is None:
            memory.discard(version.tail_key)
            memory.discard(self.freshness.key)

    def keep(self, version: FileVersion) -> None:
        """Put ``version`` into the memory cache with its current weight, unless the cache has it with that weight."""
        version.has_grown = False
        version = version.original
        if self._once or version.kept_weight == version.weight:
            return
        version.kept_weight = version.weight
        key = self._version_key(version.validator, partial=version.leaves is not None)
        self.runtime.memory.put(key, version, version.weight)

    async def forget(self, version: ObjectVersion) -> None:
        """Drop the pointer to ``version`` from memory and from every cache tier."""
        self.runtime.memory.discard(self._missing_key)  # the object is there
        await self.freshness.forget(version)

    async def restarts(self, version: ObjectVersion | None, operation: Operation) -> bool:
        """Return whether ``operation``, which found that the object was replaced, starts again, and count that. It does
        ``max_restarts`` times. ``version``, the one that it used, is forgotten."""
        if version is not None:
            await self.forget(version)
        if operation.metrics.restarts >= self.runtime.options.limits.max_restarts:
            return False
        operation.restarts()
        return True

    def tiers_of(self, version: ObjectVersion) -> Tiers | None:
        """Return the cache tiers outside this process to use for ``version``; None if there are none, or the store
        cannot tell this version from the next."""
        return self.tiers if self.tiers is not None and version.can_validate else None

    async def validate(self, version: ObjectVersion, context: RequestContext) -> None:
        """Check with one conditional GET of a few bytes that the object still has ``version``. Raises
        ObjectChangedError if it was replaced."""
        sent = time.monotonic()
        stop = version.size
        result = await self.handle.fetch_range(
            max(0, stop - TRAILER_BYTES), stop, context=context.step("validate", context.round), pin=version.validator
        )
        if result.validates:
            self.freshness.point_to(version, sent)

    async def present(self, version: FileVersion, context: RequestContext) -> FileVersion:
        """Ask the store which version the object has: return ``version`` if it still has that, else the new one."""
        if version.can_validate:
            try:
                await self.validate(version, context)
            except ObjectChangedError:
                pass
            else:
                return version
        return await self.reload(version, context)

    async def reload(self, version: FileVersion, context: RequestContext) -> FileVersion:
        """Load the object's current version from the store, after ``version`` was seen replaced."""
        await self.forget(version)
        return await self._load_from_store(context)  # not shared: a request sent before may not see the newest version

    def prices(self) -> Prices:
        """Return the current prices of requests and bytes at the object's server, as measured by the session."""
        return self._initial_prices or self.runtime.price_book.prices(self.handle.server or self._protocol)

    def burst(self) -> Burst | None:
        """Return what measures large rounds of requests to the object's server; None if nothing is learned of it."""
        return None if self._initial_prices else self.runtime.price_book.burst(self.handle.server or self._protocol)

    def learn_prices(self, measured: Measured) -> None:
        """Learn from a round of requests; see :meth:`PriceBook.learn`."""
        if self._initial_prices is None:
            self.runtime.price_book.learn(self.handle.server or self._protocol, measured)


# -- opening --------------------------------------------------------------------------------------


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
        is_told = source.freshness.identifies(version)  # else the pages may be those of another version
        if known and is_told and version.decryption is None and version.validator.same_version(known.validator):
            version.learn(known)
        return version
