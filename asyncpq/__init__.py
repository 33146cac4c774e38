"""asyncpq: read the few pages a query needs out of Parquet objects in object stores, from asyncio."""

from __future__ import annotations

from asyncpq import blocking
from asyncpq.caching.memory import MemoryCache
from asyncpq.errors import (
    AccessDeniedError,
    AmbiguousColumnError,
    AsyncpqError,
    BucketNotFoundError,
    ColumnNotFoundError,
    CorruptFileError,
    CredentialsError,
    DeadlineExceededError,
    ExpressionError,
    FormatError,
    InvalidOptionError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    PartitionError,
    PredicateTypeError,
    QueryError,
    ResourceLimitError,
    RowIndexError,
    SchemaMismatchError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.events import ReadEnded, RequestEnded
from asyncpq.expressions import Expression, col
from asyncpq.file import File
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.options import (
    CachePolicy,
    DiskCacheOptions,
    LimitOptions,
    ReadOptions,
    RequestOptions,
    RetryOptions,
    SharedCacheOptions,
    etag,
    immutable,
    ttl,
)
from asyncpq.plan import Plan
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.scalars import now
from asyncpq.scan import Scan
from asyncpq.session import Session, open_file
from asyncpq.storage.base import Validator

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "AccessPlan",
    "AmbiguousColumnError",
    "AsyncpqError",
    "BucketNotFoundError",
    "CachePolicy",
    "ColumnNotFoundError",
    "CorruptFileError",
    "CredentialsError",
    "DeadlineExceededError",
    "DiskCacheOptions",
    "Expression",
    "ExpressionError",
    "File",
    "FormatError",
    "InvalidOptionError",
    "InvalidResponseError",
    "LimitOptions",
    "MemoryCache",
    "NotParquetError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "Plan",
    "PredicateTypeError",
    "QueryError",
    "ReadEnded",
    "ReadMetrics",
    "ReadOptions",
    "RequestEnded",
    "RequestOptions",
    "RequestRecord",
    "ResourceLimitError",
    "RetryOptions",
    "PartitionError",
    "RowIndexError",
    "Scan",
    "SchemaMismatchError",
    "Session",
    "SharedCacheOptions",
    "StoreError",
    "ThrottledError",
    "TransportError",
    "UnsupportedFeatureError",
    "UnsupportedStoreError",
    "UsageError",
    "Validator",
    "blocking",
    "col",
    "etag",
    "immutable",
    "now",
    "ttl",
    "open_file",
]
