"""asyncpq: read the few pages a query needs out of Parquet objects in object stores, from asyncio."""

from __future__ import annotations

from asyncpq import blocking
from asyncpq.caching.memory import MemoryCache
from asyncpq.dataset import Dataset
from asyncpq.datasets.dataset_plan import DatasetPlan
from asyncpq.datasets.dataset_scan import DatasetScan
from asyncpq.datasets.model import (
    Catalog,
    ColumnBounds,
    DataFile,
    Deletes,
    FileList,
    Reader,
    Snapshot,
    TableField,
    View,
)
from asyncpq.datasets.providers import SkippedFile
from asyncpq.errors import (
    AccessDeniedError,
    AmbiguousColumnError,
    AsyncpqError,
    BucketNotFoundError,
    ColumnNotFoundError,
    ConcurrentCommitUnsupported,
    CorruptFileError,
    CorruptIndexError,
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
    StaleSnapshotError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.events import FileEnded, ReadEnded, RequestEnded
from asyncpq.expressions import Expression, col
from asyncpq.expressions.scalars import now
from asyncpq.file import File
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.options import (
    BuildOptions,
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
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.plan import Plan
from asyncpq.scan.stream import Scan
from asyncpq.session import Session, open_dataset, open_file
from asyncpq.storage.base import Validator
from asyncpq.tables.ducklake.catalog import DuckLakeTable

__version__ = "0.1.0"

__all__ = [
    "StaleSnapshotError",
    "CorruptIndexError",
    "ConcurrentCommitUnsupported",
    "BuildOptions",
    "AccessDeniedError",
    "AccessPlan",
    "AmbiguousColumnError",
    "AsyncpqError",
    "BucketNotFoundError",
    "CachePolicy",
    "Catalog",
    "ColumnBounds",
    "ColumnNotFoundError",
    "CorruptFileError",
    "CredentialsError",
    "DataFile",
    "Dataset",
    "DatasetPlan",
    "DatasetScan",
    "DeadlineExceededError",
    "Deletes",
    "DiskCacheOptions",
    "DuckLakeTable",
    "Expression",
    "ExpressionError",
    "File",
    "FileEnded",
    "FileList",
    "FormatError",
    "InvalidOptionError",
    "InvalidResponseError",
    "LimitOptions",
    "MemoryCache",
    "NotParquetError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "PartitionError",
    "Plan",
    "PredicateTypeError",
    "QueryError",
    "ReadEnded",
    "ReadMetrics",
    "ReadOptions",
    "Reader",
    "RequestEnded",
    "RequestOptions",
    "RequestRecord",
    "ResourceLimitError",
    "RetryOptions",
    "RowIndexError",
    "Scan",
    "SchemaMismatchError",
    "Session",
    "SharedCacheOptions",
    "SkippedFile",
    "Snapshot",
    "StoreError",
    "TableField",
    "ThrottledError",
    "TransportError",
    "UnsupportedFeatureError",
    "UnsupportedStoreError",
    "UsageError",
    "Validator",
    "View",
    "blocking",
    "col",
    "etag",
    "immutable",
    "now",
    "open_dataset",
    "open_file",
    "ttl",
]
