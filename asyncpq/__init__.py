"""asyncpq: read the few pages a query needs out of Parquet objects in object stores, from asyncio."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from asyncpq.caching.memory import MemoryCache
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
from asyncpq.events import FileEnded, Progress, ReadEnded, RequestEnded
from asyncpq.expressions import Expression, col
from asyncpq.expressions.scalars import now
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
from asyncpq.session import Session, open_dataset, open_file
from asyncpq.storage.base import Validator

if TYPE_CHECKING:
    from asyncpq import blocking
    from asyncpq import duckdb as duckdb
    from asyncpq import indexing as indexing
    from asyncpq import polars as polars
    from asyncpq.dataset import Dataset
    from asyncpq.datasets.dataset_files import DatasetScan
    from asyncpq.datasets.dataset_plan import DatasetPlan
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
    from asyncpq.file import File
    from asyncpq.reports.why import WhyReport
    from asyncpq.scan.plan import Plan
    from asyncpq.scan.stream import Scan
    from asyncpq.tables.ducklake.catalog import DuckLakeTable
    from asyncpq.writing.file_layout import BloomFilter, WriteOptions
    from asyncpq.writing.optimize import RewriteResult

__version__ = "0.2.0"

__all__ = [
    "StaleSnapshotError",
    "CorruptIndexError",
    "ConcurrentCommitUnsupported",
    "BloomFilter",
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
    "WhyReport",
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
    "Progress",
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
    "RewriteResult",
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
    "WriteOptions",
    "blocking",
    "col",
    "etag",
    "immutable",
    "now",
    "open_dataset",
    "open_file",
    "ttl",
]

# Public names whose modules load when the name is first used, so that `import asyncpq` stays fast.
_MODULES = {
    "Catalog": "asyncpq.datasets.model",
    "ColumnBounds": "asyncpq.datasets.model",
    "DataFile": "asyncpq.datasets.model",
    "Dataset": "asyncpq.dataset",
    "DatasetPlan": "asyncpq.datasets.dataset_plan",
    "WhyReport": "asyncpq.reports.why",
    "DatasetScan": "asyncpq.datasets.dataset_files",
    "Deletes": "asyncpq.datasets.model",
    "DuckLakeTable": "asyncpq.tables.ducklake.catalog",
    "File": "asyncpq.file",
    "FileList": "asyncpq.datasets.model",
    "Plan": "asyncpq.scan.plan",
    "Reader": "asyncpq.datasets.model",
    "Scan": "asyncpq.scan.stream",
    "SkippedFile": "asyncpq.datasets.providers",
    "Snapshot": "asyncpq.datasets.model",
    "TableField": "asyncpq.datasets.model",
    "View": "asyncpq.datasets.model",
    "BloomFilter": "asyncpq.writing.file_layout",
    "RewriteResult": "asyncpq.writing.optimize",
    "WriteOptions": "asyncpq.writing.file_layout",
}

if not TYPE_CHECKING:  # type checkers would take it that every name exists

    def __getattr__(name: str) -> object:
        if name in ("blocking", "duckdb", "fsspec", "indexing", "polars"):
            return import_module(f"asyncpq.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module 'asyncpq' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
