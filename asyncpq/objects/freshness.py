"""Freshness: the version that an object had when it was last seen, and how long that may be served.

That an object was replaced is seen where responses are checked: in ``storage/responses.py`` and ``storage/local.py``.
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
    """The last seen version of one object, shared by all handles of the session.

    ``key`` is the key of the pointer to the version in every tier. ``tiers`` is None if the object is not shared.
    ``check`` compares a version with a local file, without a request; None for other objects.
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
        """Whether the cache policy lets ``version`` be served without asking the store."""
        if self.policy.kind == "immutable" or not version.can_validate:
            return True  # a version that cannot be validated expires instead
        if self._check is not None:
            return self._check(version.validator)
        pointer = self.pointer()
        if pointer is None or not pointer.validator.same_version(version.validator):
            return False
        return time.monotonic() - pointer.validated_at < self.policy.max_age_s

    def may_be_current(self, pointer: Pointer) -> bool:
        """Return whether the object may still have the version of ``pointer``; for a local file, by its stat."""
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
        """Record that a GET sent at ``sent`` validated ``version``, unless the cache policy uses age alone."""
        if result.validates and self.policy.kind != "ttl":
            self.point_to(version, sent)

    def seen(self, version: ObjectVersion, sent: float) -> None:
        """Record that a listing requested at ``sent`` has this version, which also validates it."""
        if version.can_validate and self.policy.kind != "ttl":
            self.point_to(version, sent)

    def point_to(self, version: ObjectVersion, sent: float) -> None:
        """Record in every tier that the object had ``version`` at ``sent``."""
        pointer = self.pointer()
        if pointer is None or not pointer.validator.same_version(version.validator):
            if pointer is not None and sent <= pointer.validated_at:
                return  # the known version is newer
            pointer = Pointer(version.validator, sent)
            self.keep(pointer)
            if self.is_outdated(version.validator):
                del self._runtime.outdated[self.key]  # it is back
        elif sent > pointer.validated_at:
            pointer.validated_at = sent
        tiers = self._tiers if version.can_validate else None
        # not with every GET: other processes accept a pointer of half the maximal age
        if tiers is not None and sent - self._told_at >= max(1.0, self.policy.max_age_s / 2):
            self._told_at = sent
            tiers.put_pointer(self.key, pointer)

    async def forget(self, version: ObjectVersion) -> None:
        """Drop the pointers to ``version`` in every tier: the object has another version now."""
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
        """The last version seen by any handle, or by this one if the memory cache did not keep the pointer."""
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
        """Whether this session has seen that the object no longer has this version."""
        return bool(self._runtime.outdated.get(self.key) == validator.digest())

    def contradicts(self, validator: Validator) -> bool:
        """Whether this session has seen that the object no longer has this version, or has seen another one within
        the age that the policy allows."""
        pointer = self.pointer()
        if self.is_outdated(validator) or (self._check is not None and not self._check(validator)):
            return True
        if pointer is None or pointer.validator.same_version(validator):
            return False
        return self.policy.kind == "immutable" or time.monotonic() - pointer.validated_at < self.policy.max_age_s
