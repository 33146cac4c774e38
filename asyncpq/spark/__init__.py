"""Read and write Parquet lakes with asyncpq in Spark. Needs the extra ``asyncpq[spark]``; see docs/spark.md.

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

_NAMES: Final = {
    "shipping": ("register", "add_to"),
    "reads.scan": ("scan", "explain_scan", "SparkScanPlan"),
    "joins": ("lookup_join", "explain_lookup_join", "JoinEstimate"),
    "index_builds": ("build_index", "refresh_index", "verify_index", "vacuum", "BuiltIndex", "FileProblem"),
    "optimize_lake": ("optimize", "OptimizeResult"),
    "write_options": ("WriteOptions", "BloomFilter", "SortedBy"),
    "source_options": ("predicate_option",),
    "settings": ("SparkSettings",),
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
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
