"""From a url to an object as seen through the session's caches."""

from __future__ import annotations

import secrets

from asyncpq.errors import ObjectChangedError
from asyncpq.fetching.known_version import KnownVersion
from asyncpq.fetching.source import ObjectSource, PackedTail
from asyncpq.fetching.version import Decryption, FileVersion
from asyncpq.options import CachePolicy, immutable
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext
from asyncpq.storage.held import HeldObject
from asyncpq.storage.urls import safe_url


async def open_source(
    resources: Resources,
    url: str,
    decryption: Decryption | None = None,
    *,
    neighbours: str | None = None,
    policy: CachePolicy | None = None,
    packed: PackedTail | None = None,
    once: bool = False,
) -> ObjectSource:
    """A handle on the object at ``url``; its caller closes ``source.handle``.

    Args:
        decryption: keys of the file.
        neighbours: names the objects whose footers are alike; by default those of its folder.
        policy: how long what is cached of it may be served unasked; by default as the session's options say.
        packed: a shorter form of its tail, which is fetched in place of that.
        once: nobody reads it again: no cache outside of this process is asked or told.

    Raises:
        StoreError: no store serves it, or credentials are missing.
    """
    store, namespace = await resources.store(url)
    handle = await store.open_object(url)
    try:
        if resources.options.cache_namespace is None:  # else the caller says who shares
            namespace = f"{namespace}:{await store.credential_identity(url)}"
        if decryption is not None:
            namespace = f"{namespace}:{secrets.token_hex(16)}"  # shares nothing with anyone
        if policy is None:
            policy = resources.options.policy(handle.url, safe_url(url))
        return ObjectSource(resources, handle, namespace, policy, decryption, neighbours, packed, once=once)
    except BaseException:
        await handle.close()
        raise


def held_source(resources: Resources, url: str, content: bytes, neighbours: str | None = None) -> ObjectSource:
    """A handle on an object that is in no store: ``content`` is all of it, ``url`` only names it."""
    return ObjectSource(resources, HeldObject(safe_url(url), content), "held", immutable(), None, neighbours)


async def load_version(source: ObjectSource, context: RequestContext, known: KnownVersion | None = None) -> FileVersion:
    """The object's version; over again where it was replaced between two requests for its footer.

    Args:
        known: from an index; it is believed, without a request, until a GET says otherwise.
    """
    metrics = context.metrics
    adopted = None if known is None else source.adopt(known, context)
    if adopted is not None:
        return adopted
    while True:
        try:
            version = await source.version(context)
        except ObjectChangedError:
            if metrics.restarts >= source.resources.options.limits.max_restarts:
                raise
            metrics.restarts += 1
            continue
        if known is not None and version.decryption is None and version.validator.same_version(known.validator):
            version.learn(known)
        return version
