"""What a project that uses asyncpq can test with. Shipped, and covered by the version promise: docs/testing.md."""

from __future__ import annotations

from asyncpq.testing.answers import LoggedRequest, ServedObject
from asyncpq.testing.backend_contract import BACKEND_CHECKS
from asyncpq.testing.cache_contract import CACHE_TIER_CHECKS, TierStorage
from asyncpq.testing.catalog_contract import check_catalog
from asyncpq.testing.faults import CATALOGUE, Fault, Scene
from asyncpq.testing.server import ObjectServer
from asyncpq.testing.store_contract import STORE_CHECKS, StoreStorage, filesystem_storage
from asyncpq.testing.store_write_contract import STORE_WRITE_CHECKS
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
from asyncpq.testing.tier_storages import FolderStorage, ServerStorage
from asyncpq.testing.traces import Access, HitRate, RecordingCache, Replay, read_trace, replay, write_trace

__all__ = [
    "Access",
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
