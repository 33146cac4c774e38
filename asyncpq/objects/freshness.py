"""Freshness: which version an object had when it was last seen, and how long that version may be used without
validation.

``storage/responses.py`` and ``storage/local.py`` check responses, and so detect that an object was replaced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from asyncpq.caching.entry_format import Pointer, PointerKey
from asyncpq.caching.tiers import Tiers
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import ObjectVersion
from asyncpq.options import CachePolicy
from asyncpq.storage.base import RangeResult, Validator


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

    def is_fresh(self, version: ObjectVersion) -> bool:
        """Return whether the cache policy lets ``version`` be used without asking the store."""
        if self.policy.kind == "immutable" or not version.can_validate:
            return True  # a version that cannot be validated expires instead
        if self._check is not None:
            return self._check(version.validator)
        pointer = self.pointer()
        if pointer is None or not pointer.validator.same_version(version.validator):
            return False
        return time.monotonic() - pointer.validated_at < self.policy.max_age_s

    def may_be_current(self, pointer: Pointer) -> bool:
        """Return whether the object may still have the version of ``pointer``. Only a local file is checked, by its
        stat."""
        return self._check is None or self._check(pointer.validator)

    def is_expired(self, version: ObjectVersion) -> bool:
        """Return whether all cached parts of ``version`` must be fetched again: the store cannot validate the
        version, and it is older than the cache policy allows.
        """
        if version.can_validate or self.policy.kind == "immutable":
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
            self._runtime.outdated[self.key] = version.validator.digest()
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
        known = self._runtime.outdated.get(self.key)
        return known is not None and bool(known == validator.digest())

    def contradicts(self, validator: Validator) -> bool:
        """Return whether this session knows that the object does not have this version: it was seen replaced, or
        another version was seen within the age that the policy allows."""
        pointer = self.pointer()
        if self.is_outdated(validator) or (self._check is not None and not self._check(validator)):
            return True
        if pointer is None or pointer.validator.same_version(validator):
            return False
        return self.policy.kind == "immutable" or time.monotonic() - pointer.validated_at < self.policy.max_age_s
