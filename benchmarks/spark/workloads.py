"""What is measured: for each workload its sides, which answer the same question, and the lake that is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.functions import broadcast

import asyncpq.spark
from asyncpq import col
from asyncpq.indexing import Bloom, Bounds, Footers, IndexKind, Keys, Text
from benchmarks.datasets import BUCKET, WANTED
from benchmarks.spark.credentials import PROVIDER
from benchmarks.spark.lakes import Lake

Store = Literal["local", "s3"]
LakeName = Literal["one", "large", "random", "small"]
#: Rows that a query found, or nothing, for jobs that have no answer.
Answer = list[tuple[Any, ...]] | None


@dataclass
class Stage:
    """What a side works with.

    Attributes:
        endpoint: of the S3 server, for the store "s3".
        loaded: DataFrames that are kept from query to query.
    """

    spark: SparkSession
    store: Store
    endpoint: str
    lake: Lake
    loaded: dict[str, DataFrame] = field(default_factory=dict)

    @property
    def native_url(self) -> str:
        return self._url("s3a", f"{self.lake.key}/")

    @property
    def url(self) -> str:
        return self._url("s3", f"{self.lake.key}/")

    @property
    def index_url(self) -> str:
        folder = self.lake.index_folder(self.store)
        return f"s3://{BUCKET}/{folder.name}/" if self.store == "s3" else str(folder)

    @property
    def settings(self) -> dict[str, Any]:
        """Of asyncpq."""
        if self.store == "local":
            return {}
        options = {"endpoint_url": self.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        return {"storage_options": {"s3": options}, "credentials_provider": PROVIDER}

    def _url(self, protocol: str, key: str) -> str:
        return f"{protocol}://{BUCKET}/{key}" if self.store == "s3" else f"{self.lake.folder}/"


#: Answers a question about keys, which differ from question to question.
Side = Callable[[Stage, Sequence[int]], Answer]


def _rows(frame: DataFrame) -> Answer:
    return sorted((row["user"], row["event"], row["price"]) for row in frame.select(*WANTED).collect())


def _native(stage: Stage) -> DataFrame:
    return stage.spark.read.parquet(stage.native_url)


# -- one key --------------------------------------------------------------------------------------


def _native_fresh(stage: Stage, keys: Sequence[int]) -> Answer:
    return _rows(_native(stage).filter(f"id = {keys[0]}"))


def _native_loaded(stage: Stage, keys: Sequence[int]) -> Answer:
    if "native" not in stage.loaded:
        stage.loaded["native"] = _native(stage)
    return _rows(stage.loaded["native"].filter(f"id = {keys[0]}"))


def _scan(stage: Stage, keys: Sequence[int]) -> Answer:
    where = col("id") == keys[0]
    return _rows(asyncpq.spark.scan(stage.spark, stage.url, where=where, columns=[*WANTED], **stage.settings))


def _indexed_scan(stage: Stage, keys: Sequence[int]) -> Answer:
    where, index = col("id") == keys[0], stage.index_url
    return _rows(asyncpq.spark.scan(stage.spark, stage.url, where, [*WANTED], index, **stage.settings))


def _view(stage: Stage, keys: Sequence[int]) -> Answer:
    """The condition is the query's, which the plan of the scan does not know."""
    return _rows(asyncpq.spark.scan(stage.spark, stage.url, **stage.settings).filter(f"id = {keys[0]}"))


# -- all rows -------------------------------------------------------------------------------------


def _total(frame: DataFrame) -> Answer:
    (row,) = frame.agg(functions.sum("price")).collect()
    return [(round(row[0]),)]  # the order of the sum differs


def _counted(frame: DataFrame) -> Answer:
    return [(frame.count(),)]


def _limited(frame: DataFrame) -> Answer:
    return [(len(frame.limit(10).collect()),)]


def _by_spark(ask: Callable[[DataFrame], Answer]) -> Side:
    return lambda stage, keys: ask(_native(stage))


def _by_scan(ask: Callable[[DataFrame], Answer], **how: Any) -> Side:
    return lambda stage, keys: ask(asyncpq.spark.scan(stage.spark, stage.url, **how, **stage.settings))


# -- many keys ------------------------------------------------------------------------------------


def _frame_of(stage: Stage, keys: Sequence[int]) -> DataFrame:
    return stage.spark.createDataFrame([(key,) for key in keys], "id long")


def _broadcast_join(stage: Stage, keys: Sequence[int]) -> Answer:
    return _rows(_native(stage).join(broadcast(_frame_of(stage, keys)), "id"))


def _lookup_join(stage: Stage, keys: Sequence[int]) -> Answer:
    frame, index = _frame_of(stage, keys), stage.index_url
    return _rows(asyncpq.spark.lookup_join(frame, stage.url, on="id", columns=[*WANTED], index=index, **stage.settings))


# -- indexes --------------------------------------------------------------------------------------


def _query_anew(stage: Stage, keys: Sequence[int]) -> Answer:
    stage.spark.catalog.refreshByPath(stage.native_url)
    _native_fresh(stage, keys)
    return None


def _sorted(*columns: str) -> Side:
    """Reads and sorts columns, each for itself."""

    def run(stage: Stage, keys: Sequence[int]) -> Answer:
        for column in columns:
            frame = stage.spark.read.parquet(stage.native_url).select(column).sort(column)
            frame.write.format("noop").mode("overwrite").save()
        return None

    return run


def _build(*kinds: IndexKind) -> Side:
    def run(stage: Stage, keys: Sequence[int]) -> Answer:
        backend = stage.lake.index_folder("built")
        shutil.rmtree(backend, ignore_errors=True)
        asyncpq.spark.build_index(stage.spark, stage.url, list(kinds), at=str(backend), **stage.settings)
        return None

    return run


def _optimize(stage: Stage, keys: Sequence[int]) -> Answer:
    target = _emptied(stage, "optimized")
    asyncpq.spark.optimize(stage.spark, stage.url, str(target), sort_by=["id"], **stage.settings)
    return None


def _sort_and_write(stage: Stage, keys: Sequence[int]) -> Answer:
    target = _emptied(stage, "sorted")
    stage.spark.read.parquet(stage.native_url).sort("id").write.parquet(str(target))
    return None


def _emptied(stage: Stage, name: str) -> Path:
    """A place for what a side writes."""
    place = stage.lake.folder.with_name(f"{stage.lake.key}-{name}")
    shutil.rmtree(place, ignore_errors=True)
    return place


@dataclass(frozen=True)
class Workload:
    """The first side is what the others are compared with.

    Attributes:
        keys: asked for in one question.
        index: kinds of an index beside the lake, made before by one process; none if empty.
        against_first: the others are compared with the very first question of the first side, in a new JVM.
    """

    title: str
    store: Store
    lake: LakeName
    sides: dict[str, Side]
    keys: int = 1
    index: tuple[IndexKind, ...] = ()
    against_first: bool = False


#: Keys of the joins, whose times are drawn.
JOIN_KEYS = (10, 100, 1_000, 10_000)
_POINT: dict[str, Side] = {
    "native": _native_fresh,
    "native-loaded": _native_loaded,
    "asyncpq": _scan,
    "asyncpq, WHERE on a view": _view,
}
_INDEXED_POINT: dict[str, Side] = {"native": _native_fresh, "asyncpq": _scan, "asyncpq, index": _indexed_scan}
_JOIN: dict[str, Side] = {"broadcast": _broadcast_join, "asyncpq": _lookup_join}
_FULL: dict[str, tuple[str, dict[str, Side]]] = {
    "sum": (
        "sum(price)",
        {
            "native": _by_spark(_total),
            "asyncpq": _by_scan(_total),
            "asyncpq, columns named": _by_scan(_total, columns=["price"]),
        },
    ),
    "count": (
        "count(*)",
        {
            "native": _by_spark(_counted),
            "asyncpq": _by_scan(_counted),
            "asyncpq, columns=[]": _by_scan(_counted, columns=[]),
        },
    ),
    "limit": ("LIMIT 10", {"native": _by_spark(_limited), "asyncpq": _by_scan(_limited)}),
}
#: Of each lake what it is, and the kinds of its index.
_LAKES: dict[LakeName, tuple[str, tuple[IndexKind, ...]]] = {
    "one": ("a file of ten row groups", ()),
    "large": ("500 sorted files of 40,000 rows", (Bounds("id"), Footers())),
    "random": ("500 files of 40,000 rows in random order", (Keys("id"), Footers())),
}
_STORES: dict[Store, str] = {"local": "local files", "s3": "S3"}
_BUILD: dict[str, Side] = {"query": _query_anew, "asyncpq": _build(Bounds("id"), Footers())}


def _points(store: Store) -> dict[str, Workload]:
    return {
        f"point-{lake}-{store}": Workload(
            f"one key in {what}, {_STORES[store]}", store, lake, _INDEXED_POINT if index else _POINT, index=index
        )
        for lake, (what, index) in _LAKES.items()
    }


def _full_scans(store: Store, *lakes: LakeName) -> dict[str, Workload]:
    return {
        f"{name}-{lake}-{store}": Workload(f"{title} of {_LAKES[lake][0]}, {_STORES[store]}", store, lake, sides)
        for lake in lakes
        for name, (title, sides) in _FULL.items()
    }


def _joins(store: Store, lake: LakeName, *counts: int) -> dict[str, Workload]:
    what, index = _LAKES[lake]
    return {
        f"join-{count}-{lake}-{store}": Workload(
            f"{count:,} keys in {what}, {_STORES[store]}", store, lake, _JOIN, count, index
        )
        for count in counts
    }


#: What `make bench-spark` runs unless it is told otherwise.
QUERIES: dict[str, Workload] = {
    **_points("local"),
    **_full_scans("local", "one", "large"),
    **_joins("local", "large", *JOIN_KEYS),
    **_joins("local", "random", *JOIN_KEYS),
    **_points("s3"),
    **_full_scans("s3", "one"),
    **_joins("s3", "large", *JOIN_KEYS),
    **_joins("s3", "random", 100, 10_000),
}
WORKLOADS: dict[str, Workload] = {
    **QUERIES,
    "build": Workload(
        "an index of bounds and footers of 2,000 files, against Spark's first query over them",
        "local",
        "small",
        _BUILD,
        against_first=True,
    ),
    "build-s3": Workload(
        "an index of bounds and footers of 2,000 files, S3, against Spark's query over them, which lists them anew",
        "s3",
        "small",
        _BUILD,
    ),
    "build-keys": Workload(
        "keys of one column of 2,000 files, against reading and sorting it",
        "local",
        "small",
        {"sort": _sorted("ref"), "asyncpq": _build(Keys("ref"))},
    ),
    "build-text": Workload(
        "words of one column of 2,000 files, against reading and sorting it",
        "local",
        "small",
        {"sort": _sorted("user"), "asyncpq": _build(Text("user"))},
    ),
    "build-bloom": Workload(
        "bloom filters of one column of 2,000 files, against reading and sorting it",
        "local",
        "small",
        {"sort": _sorted("user"), "asyncpq": _build(Bloom("user"))},
    ),
    "optimize": Workload(
        "500 files in random order rewritten by `id`, against Spark's sort and write",
        "local",
        "random",
        {"sort": _sort_and_write, "asyncpq": _optimize},
    ),
}
