"""One object as seen through the caches: its current version, and parts of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from asyncpq.caching.keys import ContentKey, Pointer, PointerKey
from asyncpq.caching.single_flight import Flight
from asyncpq.caching.tiers import look_up
from asyncpq.errors import AsyncpqError, FormatError, UnsupportedStoreError
from asyncpq.fetching.version import Decryption, FileVersion
from asyncpq.format.footer import MAGIC, FooterDecoder, FooterFound, NeedBytes
from asyncpq.format.metadata import decode_file_metadata
from asyncpq.planning.coalesce import ByteRange, coalesce, cut
from asyncpq.resources import Resources, TailSizes
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, StoredObject, Validator

TRAILER_BYTES = 8  # footer length and magic


class Tail(NamedTuple):
    """The end of an object, kept for the indexes (and, of small objects, the pages) in it."""

    start: int
    data: bytes

    def cut(self, start: int, stop: int) -> bytes | None:
        if start < self.start:
            return None
        return self.data[start - self.start : stop - self.start]

    def take_out(self, keys: Iterable[ContentKey], found: dict[ContentKey, bytes]) -> list[ContentKey]:
        """The keys of parts that are not in here; the others are put into ``found``."""
        missing: list[ContentKey] = []
        for key in keys:
            value = self.cut(key.start, key.stop)
            if value is None:
                missing.append(key)
            else:
                found[key] = value
        return missing


class ObjectSource:
    """Fetches footer and parts of one object through the session's caches.

    Args:
        resources: of the session.
        handle: the store's handle on the object.
        namespace: who reads, for cache keys.
        decryption: keys of the file, where the caller gave some.
    """

    def __init__(
        self, resources: Resources, handle: StoredObject, namespace: str, decryption: Decryption | None = None
    ) -> None:
        self.resources = resources
        self.handle = handle
        self._namespace = namespace
        self._decryption = decryption
        self._pointer_key = PointerKey(namespace, handle.identity)

    # -- versions ---------------------------------------------------------------------------------

    def check_guarantee(self) -> None:
        """Refuse a store that cannot hold a read to one version, where the session asks for that.

        Raises:
            UnsupportedStoreError: the guarantee is too weak.
        """
        guarantee = self.handle.guarantee
        if self.resources.options.read.require_pinning and guarantee not in (Guarantee.PINNED, Guarantee.COMPARED):
            raise UnsupportedStoreError(
                f"the store's guarantee for one version is only {guarantee.value!r}",
                url=self.handle.url,
                hint="Drop require_pinning=True to read it all the same.",
            )

    async def version(self, context: RequestContext) -> FileVersion:
        """The version that the caches point to, or else the one the store has now.

        A footer found through a pointer is used at once: the read's first GET validates it.
        """
        pointer = await self._pointer()
        if pointer is not None:
            version: FileVersion | None = self.resources.memory.get(self._version_key(pointer.validator))
            if version is not None:
                self.handle.learn(version.validator)
                self.check_guarantee()
                context.metrics.cache_hits += 1
                return version
        context.metrics.cache_misses += 1
        return await self.resources.flights.run(
            ("version", self._pointer_key), lambda: self._fetch_version(_undated(context))
        )

    async def _pointer(self) -> Pointer | None:
        pointer: Pointer | None = self.resources.memory.get(self._pointer_key)
        for tier in self.resources.tiers:
            if pointer is not None:
                break
            pointer = await tier.get_pointer(self._pointer_key)
            if pointer is not None:
                self.resources.memory.put(self._pointer_key, pointer, 300)
        return pointer

    def _version_key(self, validator: Validator) -> tuple[str, PointerKey, bytes]:
        return ("version", self._pointer_key, validator.digest())

    async def _fetch_version(self, context: RequestContext) -> FileVersion:
        """Footer and tail from the store: one suffix GET, and one more if it was too short."""
        resources = self.resources
        guess = resources.tail_sizes.guess(self.handle.url)
        sent = time.monotonic()
        tail = await self.handle.fetch_tail(guess, context=context.step("tail", 1))
        self.check_guarantee()  # known better once the store has answered
        decoder = FooterDecoder(
            max_footer_bytes=resources.options.limits.max_footer_bytes, encrypted=self._decryption is not None
        )
        try:
            found = decoder.next(tail.data, tail.start, tail.validator.size)
            while isinstance(found, NeedBytes):
                rest = await self.handle.fetch_range(
                    found.start, tail.start, context=context.step("footer", 2), pin=tail.validator
                )
                tail = RangeResult(rest.data + tail.data, rest.start, tail.validator)
                found = decoder.next(tail.data, tail.start, tail.validator.size)
            version = await self._version(found, tail, sent)
        except AsyncpqError as error:
            raise error.locate(url=self.handle.url) from error.__cause__
        resources.tail_sizes.learn(self.handle.url, _needed_tail(version))
        pointer = Pointer(tail.validator, sent)
        self.keep(version)
        resources.memory.put(self._pointer_key, pointer, 300)
        resources.memory.put(version.key("tail", 0, 0), Tail(tail.start, tail.data), len(tail.data))
        for tier in resources.tiers:
            await tier.put_pointer(self._pointer_key, pointer)
        return version

    async def _version(self, found: FooterFound, tail: RangeResult, observed_at: float) -> FileVersion:
        decryption, footer, data = self._decryption, b"", found.metadata_bytes
        if decryption is not None:
            footer = tail.data[found.start - tail.start :]
            data = await self.resources.in_thread(partial(decryption.footer, footer, tail.validator.size))
        limits = self.resources.options.limits
        metadata = decode_file_metadata(
            data, max_elements=limits.max_footer_elements, max_schema_elements=limits.max_schema_elements
        )
        if decryption is not None and footer.endswith(MAGIC) and not metadata.has_encryption:
            decryption, footer = None, b""  # keys were given for a file that needs none
        return FileVersion(
            url=self.handle.url,
            namespace=self._namespace,
            identity=self.handle.identity,
            validator=tail.validator,
            footer_start=found.start,
            metadata=metadata,
            observed_at=observed_at,
            decryption=decryption,
            footer=footer,
        )

    def keep(self, version: FileVersion) -> None:
        """Put ``version`` into the memory cache with its present weight, unless it stands there with that."""
        if version.kept_weight == version.weight:
            return
        version.kept_weight = version.weight
        self.resources.memory.put(self._version_key(version.validator), version, version.weight)

    async def forget(self, version: FileVersion) -> None:
        """The object is not ``version`` any more: drop the pointers that say so, in every tier."""
        pointer: Pointer | None = self.resources.memory.get(self._pointer_key)
        if pointer is not None and not pointer.validator.same_version(version.validator):
            return  # another read has seen the new version already
        self.resources.memory.discard(self._pointer_key)
        for tier in self.resources.tiers:
            await tier.drop_pointer(self._pointer_key)

    # -- validity ---------------------------------------------------------------------------------

    def is_fresh(self, version: FileVersion) -> bool:
        """Whether the cache policy lets ``version`` be served without asking the store."""
        policy = self.resources.options.cache_policy
        if policy.kind == "immutable":
            return True
        pointer: Pointer | None = self.resources.memory.get(self._pointer_key)
        if pointer is None or not pointer.validator.same_version(version.validator):
            return False
        return time.monotonic() - pointer.validated_at < policy.max_age_s

    def _validated(self, version: FileVersion, sent: float) -> None:
        pointer: Pointer | None = self.resources.memory.get(self._pointer_key)
        if pointer is not None and sent <= pointer.validated_at:
            return  # what is known is newer
        if pointer is not None and pointer.validator.same_version(version.validator):
            pointer.validated_at = sent
        else:
            self.resources.memory.put(self._pointer_key, Pointer(version.validator, sent), 300)

    def start_validation(self, version: FileVersion, context: RequestContext) -> Flight[None]:
        """:meth:`validate` as a flight that concurrent reads share; the caller joins it."""
        key = ("validate", version.digest)
        flight: Flight[None] | None = self.resources.flights.get(key)
        return flight or self.resources.flights.start((key,), partial(self.validate, version, context))

    async def validate(self, version: FileVersion, context: RequestContext) -> None:
        """One conditional GET of a few bytes.

        Raises:
            ObjectChangedError: the object has another version now.
        """
        sent = time.monotonic()
        stop = version.size
        result = await self.handle.fetch_range(
            stop - TRAILER_BYTES, stop, context=context.step("validate", context.round), pin=version.validator
        )
        if result.validates:
            self._validated(version, sent)

    # -- bytes ------------------------------------------------------------------------------------

    async def _get_in_parts(self, version: FileVersion, start: int, stop: int, context: RequestContext) -> bytes:
        """Many bytes of ``version`` from the store, in parts side by side."""
        parts = cut(ByteRange(start, stop), self.resources.options.requests.part_bytes)
        tasks = [asyncio.ensure_future(self._get(version, *part, context)) for part in parts]
        try:
            return b"".join(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _get(self, version: FileVersion, start: int, stop: int, context: RequestContext) -> bytes:
        sent = time.monotonic()
        result = await self.handle.fetch_range(start, stop, context=context, pin=version.validator)
        if result.validates:
            self._validated(version, sent)
        return result.data

    async def fetch_parts(
        self, version: FileVersion, keys: Sequence[ContentKey], context: RequestContext, *, admit: bool
    ) -> tuple[dict[ContentKey, bytes], Collection[ContentKey]]:
        """The bytes of each key: from memory, a running fetch, another tier, or the store.

        Misses of one call are coalesced and sent at once.

        Args:
            keys: distinct parts of ``version``.
            context: whose requests they are.
            admit: keep in memory and tiers what the store had to send.

        Returns:
            The bytes, and the keys that the store was asked for (which validated the version).

        Raises:
            ObjectChangedError: the object has another version now.
            StoreError: the store failed.
        """
        resources = self.resources
        metrics = context.metrics
        found: dict[ContentKey, bytes] = {}
        missing: list[ContentKey] = []
        for key, value in zip(keys, resources.memory.get_many(keys), strict=True):
            if value is None:
                missing.append(key)
            else:
                found[key] = value
        if missing:
            tail: Tail | None = resources.memory.get(version.key("tail", 0, 0))
            if tail is not None:
                missing = tail.take_out(missing, found)
        if missing and resources.tiers:
            missing = await self._from_tiers(missing, found)
        metrics.cache_hits += len(found)
        metrics.cache_misses += len(missing)
        if not missing:
            return found, ()
        await self._fly(version, missing, found, context, admit)
        return found, missing

    async def _from_tiers(self, missing: Sequence[ContentKey], found: dict[ContentKey, bytes]) -> list[ContentKey]:
        """What no tier outside this process has; the rest is in ``found``."""
        lower = await look_up(self.resources.tiers, missing)
        found.update(lower)
        for key, value in lower.items():
            self.resources.memory.put(key, value, len(value))
        return [key for key in missing if key not in lower]

    async def _fly(
        self,
        version: FileVersion,
        missing: Sequence[ContentKey],
        found: dict[ContentKey, bytes],
        context: RequestContext,
        admit: bool,
    ) -> None:
        """Join running flights, start the others, wait for all; fills ``found``."""
        flights = self.resources.flights
        joined: dict[int, tuple[Flight[dict[ContentKey, bytes]], list[ContentKey]]] = {}
        rest: list[ContentKey] = []
        for key in missing:
            flight = flights.get(key)
            if flight is None:
                rest.append(key)
            else:
                joined.setdefault(id(flight), (flight, []))[1].append(key)
        for flight, _ in joined.values():
            flight.join()
        undated = _undated(context)
        for members in self._groups(rest):
            flight = flights.start(members, partial(self._fetch_group, version, members, undated, admit))
            flight.join()
            joined[id(flight)] = (flight, members)
        pending = [flight.task for flight, _ in joined.values() if not flight.task.done()]
        try:
            if pending:
                await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            for flight, members in joined.values():
                if flight.task.done():  # all are, unless one has failed, which raises here
                    data = await flight.wait()
                    for key in members:
                        found[key] = data[key]
        finally:
            for flight, _ in joined.values():
                flight.leave()

    def _groups(self, keys: Iterable[ContentKey]) -> list[list[ContentKey]]:
        """Parts that one merged range brings, for each merged range."""
        ordered = sorted(keys, key=lambda key: key.start)
        if not ordered:
            return []
        requests = self.resources.options.requests
        merged = coalesce(
            [(key.start, key.stop) for key in ordered],
            gap_bytes=requests.gap_bytes,
            part_bytes=1 << 62,  # parts are cut inside the flight, which joins what a cut divides
            wave=self.resources.options.limits.max_connections,
            max_requests=requests.max_requests,
        )
        groups: list[list[ContentKey]] = []
        position = 0
        for item in merged:
            members: list[ContentKey] = []
            while position < len(ordered) and ordered[position].start < item.stop:
                members.append(ordered[position])
                position += 1
            groups.append(members)
        return groups

    async def _fetch_group(
        self, version: FileVersion, members: Sequence[ContentKey], context: RequestContext, admit: bool
    ) -> dict[ContentKey, bytes]:
        start, stop = members[0].start, max([key.stop for key in members])
        if stop - start <= self.resources.options.requests.part_bytes:
            data = await self._get(version, start, stop, context)
        else:
            data = await self._get_in_parts(version, start, stop, context)
        if len(members) == 1:
            parts = {members[0]: data}
        else:
            parts = {}
            for key in members:
                parts[key] = data[key.start - start : key.stop - start]
        if admit:
            for key, value in parts.items():
                if key.kind == "page":  # the other kinds are kept parsed or decoded by whoever asked
                    self.resources.memory.put(key, value, len(value))
            for tier in self.resources.tiers:
                lasting = {key: value for key, value in parts.items() if key.kind != "part"}
                self.resources.spawn(tier.put_many(lasting))
        return parts


def _undated(context: RequestContext) -> RequestContext:
    """For flights: they serve several reads, and carry the deadline of none."""
    return RequestContext(context.metrics, None, context.scan, context.round, context.purpose)


def _needed_tail(version: FileVersion) -> int:
    """Bytes from the end that hold footer and indexes, judged by the first row group's first indexes.

    Indexes that lie far from the footer do not count: they stand beside their row groups.
    """
    start = version.footer_start
    groups = version.metadata.row_groups
    if groups and groups[0].num_columns:
        try:
            first = groups[0].chunk(0)
        except FormatError:  # a broken or encrypted column; others can be read
            return version.size - start
        for offset in (first.column_index_offset, first.offset_index_offset):
            if offset is not None and version.size - TailSizes.MAX_LEARNT_BYTES <= offset < start:
                start = offset
    return version.size - start
