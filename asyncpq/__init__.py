"""asyncpq: read the few pages a query needs out of Parquet objects in object stores, from asyncio."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; `typing` takes time
if TYPE_CHECKING:
    from asyncpq import blocking
    from asyncpq import duckdb as duckdb
    from asyncpq import indexing as indexing
    from asyncpq import polars as polars
    from asyncpq.caching.memory import MemoryCache
    from asyncpq.dataset import Dataset
    from asyncpq.datasets.dataset_files import DatasetScan
    from asyncpq.datasets.dataset_plan import DatasetPlan
    from asyncpq.datasets.model import (
        Catalog,
        CatalogReader,
        ColumnBounds,
        DataFile,
        Deletes,
        FileList,
        Snapshot,
        TableField,
        View,
    )
    from asyncpq.datasets.providers import SkippedFile
    from asyncpq.distributed.lake_writes import RewriteResult
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
    from asyncpq.events import ArrowSchemaIgnored, FileEnded, Progress, ReadEnded, RequestEnded
    from asyncpq.expressions import Expression, col
    from asyncpq.expressions.scalars import now
    from asyncpq.file import File
    from asyncpq.metrics import ReadMetrics, RequestRecord, measure
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
    from asyncpq.reports.inspection import InspectionReport
    from asyncpq.reports.lint import LintReport
    from asyncpq.reports.why import WhyReport
    from asyncpq.scan.plan import Plan
    from asyncpq.scan.stream import Scan
    from asyncpq.session import Session, open_dataset, open_file
    from asyncpq.storage.base import Validator
    from asyncpq.tables.ducklake.catalog import DuckLakeTable
    from asyncpq.writing import BloomFilter, SortedBy, WriteOptions

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
    "ArrowSchemaIgnored",
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
    "InspectionReport",
    "LintReport",
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
    "CatalogReader",
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
    "SortedBy",
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
    "measure",
    "now",
    "open_dataset",
    "open_file",
    "ttl",
]

# The public names of each module. It loads when one of them is first used, so that `import asyncpq` and the command
# line's help take no time.
_NAMES = {
    "asyncpq.caching.memory": ("MemoryCache",),
    "asyncpq.dataset": ("Dataset",),
    "asyncpq.datasets.dataset_files": ("DatasetScan",),
    "asyncpq.datasets.dataset_plan": ("DatasetPlan",),
    "asyncpq.datasets.model": (
        "Catalog",
        "ColumnBounds",
        "DataFile",
        "Deletes",
        "FileList",
        "CatalogReader",
        "Snapshot",
        "TableField",
        "View",
    ),
    "asyncpq.datasets.providers": ("SkippedFile",),
    "asyncpq.errors": (
        "AccessDeniedError",
        "AmbiguousColumnError",
        "AsyncpqError",
        "BucketNotFoundError",
        "ColumnNotFoundError",
        "ConcurrentCommitUnsupported",
        "CorruptFileError",
        "CorruptIndexError",
        "CredentialsError",
        "DeadlineExceededError",
        "ExpressionError",
        "FormatError",
        "InvalidOptionError",
        "InvalidResponseError",
        "NotParquetError",
        "ObjectChangedError",
        "ObjectNotFoundError",
        "PartitionError",
        "PredicateTypeError",
        "QueryError",
        "ResourceLimitError",
        "RowIndexError",
        "SchemaMismatchError",
        "StaleSnapshotError",
        "StoreError",
        "ThrottledError",
        "TransportError",
        "UnsupportedFeatureError",
        "UnsupportedStoreError",
        "UsageError",
    ),
    "asyncpq.events": ("ArrowSchemaIgnored", "FileEnded", "Progress", "ReadEnded", "RequestEnded"),
    "asyncpq.expressions": ("Expression", "col"),
    "asyncpq.expressions.scalars": ("now",),
    "asyncpq.file": ("File",),
    "asyncpq.metrics": ("ReadMetrics", "RequestRecord", "measure"),
    "asyncpq.options": (
        "BuildOptions",
        "CachePolicy",
        "DiskCacheOptions",
        "LimitOptions",
        "ReadOptions",
        "RequestOptions",
        "RetryOptions",
        "SharedCacheOptions",
        "etag",
        "immutable",
        "ttl",
    ),
    "asyncpq.pruning.access_plan": ("AccessPlan",),
    "asyncpq.reports.inspection": ("InspectionReport",),
    "asyncpq.reports.lint": ("LintReport",),
    "asyncpq.reports.why": ("WhyReport",),
    "asyncpq.scan.plan": ("Plan",),
    "asyncpq.scan.stream": ("Scan",),
    "asyncpq.session": ("Session", "open_dataset", "open_file"),
    "asyncpq.storage.base": ("Validator",),
    "asyncpq.tables.ducklake.catalog": ("DuckLakeTable",),
    "asyncpq.writing": ("BloomFilter", "SortedBy", "WriteOptions"),
    "asyncpq.distributed.lake_writes": ("RewriteResult",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
# Modules that need no import of their own: `asyncpq.errors` is there after `import asyncpq`.
_SUBMODULES = {
    *(
        "blocking",
        "caching",
        "distributed",
        "duckdb",
        "engine",
        "errors",
        "events",
        "expressions",
        "fsspec",
        "indexing",
    ),
    *("metrics", "objects", "opening", "options", "page_map", "parquet", "polars", "pruning", "records", "reports"),
    *("session", "storage", "tracing", "typing"),
}

if not TYPE_CHECKING:  # type checkers would take it that every name exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _SUBMODULES:
            return import_module(f"asyncpq.{name}")
        if name not in _MODULES:
            from asyncpq.scan.foreign_names import opens_first

            raise AttributeError(f"module 'asyncpq' has no attribute {name!r}{opens_first(name)}")
        module = _MODULES[name]
        # Its package first, as that imports it: two threads would wait for each other.
        import_module(module.rpartition(".")[0])
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_SUBMODULES})
