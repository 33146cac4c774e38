"""The keyword arguments of sessions and datasets, spelled out once for type checkers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from asyncpq.caching.memory import MemoryCache
from asyncpq.events import Event
from asyncpq.options import (
    CachePolicy,
    DiskCacheOptions,
    LimitOptions,
    ReadOptions,
    RequestOptions,
    RetryOptions,
    SharedCacheOptions,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncpq.datasets.schemas import SchemaPolicy
    from asyncpq.tables import Format, Version


class SessionOptionKeywords(TypedDict, total=False):
    """The fields of :class:`asyncpq.options.SessionOptions` that are keyword arguments of :class:`Session`."""

    memory_cache_bytes: int
    cache_policy: CachePolicy | Mapping[str, CachePolicy]
    negative_ttl_s: float
    cache_namespace: str | None
    requests: RequestOptions
    retry: RetryOptions
    limits: LimitOptions
    read: ReadOptions


class OptionKeywords(SessionOptionKeywords, total=False):
    """The keyword-only arguments of :class:`Session`, without ``storage_options``."""

    memory_cache: MemoryCache | None
    disk_cache: str | os.PathLike[str] | DiskCacheOptions | None
    shared_cache: str | SharedCacheOptions | None
    on_event: Callable[[Event], None] | None


class SessionKeywords(OptionKeywords, total=False):
    """All arguments of :class:`Session`."""

    storage_options: Mapping[str, Any] | None


class TargetKeywords(TypedDict, total=False):
    """The keyword arguments that say which files and columns a dataset has: fields of
    :class:`asyncpq.opening.datasets.DatasetOptions`."""

    format: Format | None
    version: Version | None
    schema: pa.Schema | None
    schema_policy: SchemaPolicy
    partitioning: Literal["hive"] | Sequence[str] | None
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None


class DatasetKeywords(TargetKeywords, total=False):
    """Keyword arguments of a dataset: all fields of :class:`asyncpq.opening.datasets.DatasetOptions`."""

    on_bad_file: Literal["raise", "skip"]
    listing_max_age_s: float


class DatasetSessionKeywords(SessionKeywords, DatasetKeywords, total=False):
    """Keyword arguments of a session and of a dataset that is opened in the session."""


def split_keywords(options: DatasetSessionKeywords) -> tuple[SessionKeywords, DatasetKeywords]:
    """Split keyword arguments into those of the session and those of the dataset."""
    given = dict(options)
    dataset = {name: given.pop(name) for name in DatasetKeywords.__annotations__ if name in given}
    return cast("SessionKeywords", given), cast("DatasetKeywords", dataset)
