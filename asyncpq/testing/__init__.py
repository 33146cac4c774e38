"""Test support for projects that use asyncpq: shipped, and covered by the version promise (docs/testing.md).

`object_server` is an S3 server in the test's process, with the faults of `faults`. `stores` wraps a session's stores to
record, delay or fail their calls. A contract is a set of checks that each implementation of an interface must pass: the
`*_contract` modules check your own stores, cache tiers, index backends and catalogs. `traces` records and replays the
accesses of a memory cache.

Attributes:
    CATALOGUE: all faults: functions by the fault's name. Each is called with a :class:`Scene` and returns a
        :class:`Fault`. Faults that stall never answer, so a client needs a timeout.
    STORE_CHECKS: coroutine functions. Call each with a new :class:`StoreStorage` whose object "key" holds
        ``store_contract.DATA``; it raises AssertionError if the store breaks the contract.
    STORE_WRITE_CHECKS: the same for stores that can be written.
    CACHE_TIER_CHECKS: the same for cache tiers: call each with a new, empty :class:`TierStorage`.
    BACKEND_CHECKS: the same for index backends: call each with a function that opens yours on a new, empty storage.
"""

from __future__ import annotations

from asyncpq.testing.backend_contract import BACKEND_CHECKS
from asyncpq.testing.cache_contract import CACHE_TIER_CHECKS, FolderStorage, ServerStorage, TierStorage
from asyncpq.testing.catalog_contract import check_catalog
from asyncpq.testing.faults import CATALOGUE, Fault, Scene
from asyncpq.testing.object_server import Answer, LoggedRequest, ObjectServer, ServedObject
from asyncpq.testing.store_contract import STORE_CHECKS, STORE_WRITE_CHECKS, StoreStorage, filesystem_storage
from asyncpq.testing.stores import (
    FaultStore,
    LatencyStore,
    RecordingStore,
    StoreCall,
    StoreFault,
    StoreWrite,
    WrappedStore,
    wrap_store,
)
from asyncpq.testing.traces import Access, HitRate, RecordingCache, Replay, read_trace, replay, write_trace

__all__ = [
    "Access",
    "Answer",
    "CACHE_TIER_CHECKS",
    "CATALOGUE",
    "Fault",
    "FaultStore",
    "FolderStorage",
    "HitRate",
    "LatencyStore",
    "LoggedRequest",
    "ObjectServer",
    "BACKEND_CHECKS",
    "RecordingCache",
    "RecordingStore",
    "Replay",
    "STORE_CHECKS",
    "STORE_WRITE_CHECKS",
    "Scene",
    "ServedObject",
    "ServerStorage",
    "StoreCall",
    "StoreFault",
    "StoreStorage",
    "StoreWrite",
    "TierStorage",
    "WrappedStore",
    "check_catalog",
    "filesystem_storage",
    "read_trace",
    "replay",
    "wrap_store",
    "write_trace",
]
