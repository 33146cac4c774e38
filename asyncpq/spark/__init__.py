"""Read and write Parquet lakes with asyncpq in Spark. Needs the extra ``asyncpq-parquet[spark]``; see docs/spark.md.

A lake is the dataset that a read or write names. Planning, tasks, workers' sessions and commits come from
:mod:`asyncpq.distributed`. This package has Spark's own rules: the driver opens a lake (``reads/opened_lake``), plans
its tasks by Spark's rules for columns (``reads/lake_scan``), and returns a DataFrame whose tasks convert values to
Spark's types (``types/``). Lookup joins (``joins``), the data source (``data_source``), writes (``lake_writer``),
``optimize`` and index builds (``index_builds``) use the same modules.

Names are imported when they are first used, since executors import single modules below this package. Without PySpark,
importing the package raises UsageError.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from asyncpq.errors import UsageError, install_hint

if find_spec("pyspark") is None:
    raise UsageError("asyncpq.spark needs PySpark, which is not installed", hint=install_hint("PySpark", "spark"))

if TYPE_CHECKING:
    from asyncpq import BloomFilter, SortedBy, WriteOptions
    from asyncpq.spark.index_builds import BuiltIndex, FileProblem, build_index, refresh_index, vacuum, verify_index
    from asyncpq.spark.joins import JoinEstimate, explain_lookup_join, lookup_join
    from asyncpq.spark.optimize_lake import OptimizeResult, optimize
    from asyncpq.spark.reads.scan import SparkScanPlan, explain_scan, scan
    from asyncpq.spark.settings import SparkSettings
    from asyncpq.spark.shipping import add_to, register
    from asyncpq.spark.source_options import predicate_option

_NAMES: Final = {
    "asyncpq.spark.shipping": ("register", "add_to"),
    "asyncpq.spark.reads.scan": ("scan", "explain_scan", "SparkScanPlan"),
    "asyncpq.spark.joins": ("lookup_join", "explain_lookup_join", "JoinEstimate"),
    "asyncpq.spark.index_builds": (
        "build_index",
        "refresh_index",
        "verify_index",
        "vacuum",
        "BuiltIndex",
        "FileProblem",
    ),
    "asyncpq.spark.optimize_lake": ("optimize", "OptimizeResult"),
    "asyncpq.spark.source_options": ("predicate_option",),
    "asyncpq.spark.settings": ("SparkSettings",),
    "asyncpq": ("WriteOptions", "BloomFilter", "SortedBy"),
}

__all__ = [
    "BloomFilter",
    "BuiltIndex",
    "FileProblem",
    "JoinEstimate",
    "OptimizeResult",
    "SortedBy",
    "SparkScanPlan",
    "SparkSettings",
    "WriteOptions",
    "add_to",
    "build_index",
    "explain_lookup_join",
    "explain_scan",
    "lookup_join",
    "optimize",
    "predicate_option",
    "refresh_index",
    "register",
    "scan",
    "vacuum",
    "verify_index",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
