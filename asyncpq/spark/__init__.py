"""asyncpq on Spark: the extra ``asyncpq[spark]``; see docs/spark.md.

The driver opens a lake (``reads/opened_lake``), plans it into splits (``reads/planning``), and returns a frame
whose tasks read their splits (``reads/splits``) with the session of their process (``sessions``) and convert values to
Spark's types (``types/``). Lookup joins (``joins``), the data source (``data_source``), writes (``lake_writer``),
``optimize`` and index builds (``index_builds``) start from the same parts.

Names are imported when they are first used, since executors import single modules below this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncpq.spark.index_builds import BuiltIndex, FileProblem, build_index, refresh_index, vacuum, verify_index
    from asyncpq.spark.joins import JoinEstimate, explain_lookup_join, lookup_join
    from asyncpq.spark.optimize_lake import OptimizeResult, optimize
    from asyncpq.spark.reads.scan import SparkScanPlan, explain_scan, scan
    from asyncpq.spark.settings import SparkSettings
    from asyncpq.spark.shipping import add_to, register
    from asyncpq.spark.source_options import predicate_option
    from asyncpq.spark.write_options import BloomFilter, SortedBy, WriteOptions

_HOMES: Final = {
    "register": "shipping",
    "add_to": "shipping",
    "scan": "reads.scan",
    "explain_scan": "reads.scan",
    "SparkScanPlan": "reads.scan",
    "lookup_join": "joins",
    "explain_lookup_join": "joins",
    "JoinEstimate": "joins",
    "build_index": "index_builds",
    "refresh_index": "index_builds",
    "verify_index": "index_builds",
    "vacuum": "index_builds",
    "BuiltIndex": "index_builds",
    "FileProblem": "index_builds",
    "optimize": "optimize_lake",
    "OptimizeResult": "optimize_lake",
    "WriteOptions": "write_options",
    "BloomFilter": "write_options",
    "SortedBy": "write_options",
    "predicate_option": "source_options",
    "SparkSettings": "settings",
}

__all__ = [
    "register",
    "add_to",
    "scan",
    "explain_scan",
    "SparkScanPlan",
    "lookup_join",
    "explain_lookup_join",
    "JoinEstimate",
    "build_index",
    "refresh_index",
    "verify_index",
    "vacuum",
    "BuiltIndex",
    "FileProblem",
    "optimize",
    "OptimizeResult",
    "WriteOptions",
    "BloomFilter",
    "SortedBy",
    "predicate_option",
    "SparkSettings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
