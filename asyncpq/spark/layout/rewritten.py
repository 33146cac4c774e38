"""What is rewritten: which files these are, and who reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncpq.datasets.model import View
from asyncpq.errors import InvalidOptionError, UnsupportedStoreError
from asyncpq.metrics import ReadMetrics
from asyncpq.session import Session
from asyncpq.spark.held_settings import held_settings
from asyncpq.spark.layout.nanoseconds import (
    NANOS_AS_LONG,
    check_timestamps,
    has_nanoseconds,
    in_microseconds,
    numbers_of,
    timestamp_columns,
)
from asyncpq.spark.reads.predicates import filter_column, quoted
from asyncpq.spark.reads.scan import scan
from asyncpq.spark.sessions import run
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import canonical_url, safe_url, split_url

TimestampLoss: TypeAlias = Literal["error", "truncate"]

#: A filter in Spark's reader loses rows with NaN of files that other writers made.
_FILTER_PUSHDOWN: Final = "spark.sql.parquet.filterPushdown"


@dataclass(frozen=True)
class Source:
    """Rows to be written.

    Attributes:
        frame: reads them; to be used while its settings are held.
        urls: of its files; empty where Spark does not say.
        num_bytes: of these files; None where unknown.
        settings: of Spark, that ``frame`` needs; see :func:`asyncpq.spark.held_settings.held_settings`.
    """

    frame: DataFrame
    urls: tuple[str, ...]
    num_bytes: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    schema: pa.Schema
    urls: tuple[str, ...]
    num_bytes: int | None
    is_listed: bool


def open_source(
    spark: SparkSession,
    source: object,
    settings: SparkSettings,
    given: Mapping[str, Any],
    *,
    columns: Sequence[str] | None,
    where: object,
    timestamp_loss: TimestampLoss,
) -> Source:
    """A DataFrame as it is; local files by Spark's own reader; other urls, tables, and what has an index by asyncpq.

    Args:
        given: what ``settings`` were made of beside Spark's.

    Raises:
        InvalidOptionError: Spark does not see all of the files.
        UnsupportedFeatureError: a timestamp that microseconds cannot hold, unless it is to be truncated.
        AsyncpqError: as :meth:`asyncpq.Session.open_dataset`.
    """
    if isinstance(source, DataFrame):
        frame = _chosen(source, columns, where)
        return Source(frame, tuple(source.inputFiles()))
    all_digits = replace(settings, int96_unit="ns")
    found = run(all_digits, lambda session: _look(session, source))
    wanted = {_FILTER_PUSHDOWN: "false"}
    if any(has_nanoseconds(one.type) for one in found.schema):
        wanted[NANOS_AS_LONG] = "true"
    with held_settings(spark, wanted):
        frame = _read(spark, source, found, given)
        numbers = numbers_of(frame, found.schema) if NANOS_AS_LONG in wanted else []
        if numbers:
            frame = in_microseconds(frame, found.schema, zoneless=ReadConf.of(spark).infer_timestamp_ntz)
        frame = _chosen(frame, columns, where)
        exact = [] if timestamp_loss == "truncate" else timestamp_columns(found.schema)
        chosen = columns or ()
        asked = [name for name in exact if name in frame.columns or any(_is_of(one, name) for one in chosen)]
        if asked or numbers:
            check_timestamps(spark, found.urls, all_digits, columns=asked, numbers=numbers)
    return Source(frame, found.urls, found.num_bytes, wanted)


def _read(spark: SparkSession, source: object, found: _Found, given: Mapping[str, Any]) -> DataFrame:
    paths = source_paths(source)
    if not found.is_listed or any(split_url(path)[0] != "file" for path in paths):
        return scan(spark, source, **given)
    frame = spark.read.parquet(*paths)
    seen = len(frame.inputFiles())
    if seen != len(found.urls):
        raise InvalidOptionError(
            f"Spark's reader finds {seen} files there, and asyncpq {len(found.urls)}",
            url=safe_url(paths[0]),
            hint="Give a DataFrame: spark.read with recursiveFileLookup, or asyncpq.spark.scan.",
        )
    if not {name.lower() for name in found.schema.names} <= {name.lower() for name in frame.columns}:
        return scan(spark, source, **given)  # of patterns and single files, Spark's own has no columns from paths
    return frame


def _chosen(frame: DataFrame, columns: Sequence[str] | None, where: object) -> DataFrame:
    if where is not None:
        frame = frame.filter(filter_column(where, frame))
    if columns is None:
        return frame
    return frame.select(*[quoted(name) if name in frame.columns else name for name in columns])


def _is_of(asked: str, name: str) -> bool:
    """Whether what is asked for is a column, or a part of it: by Spark's rules, or more than by them."""
    asked, name = asked.replace("`", "").lower(), name.lower()
    return asked == name or asked.startswith(f"{name}.")


async def _look(session: Session, source: Any) -> _Found:
    dataset = await session.open_dataset(source)
    urls = await dataset.files()
    is_listed = dataset.view is View.LISTED
    sizes: dict[str, int] = {}
    for one in source_paths(source):
        sizes.update(await _sizes(session, one))
    known = [sizes.get(url) for url in urls]
    num_bytes = None if None in known else sum(filter(None, known))
    return _Found(dataset.schema, tuple(urls), num_bytes, is_listed)


async def _sizes(session: Session, url: str) -> dict[str, int]:
    """Of objects whose urls begin as a folder's or pattern's; none where the store does not list."""
    store, _ = await session._resources.store(url)
    try:
        found = await store.list_objects(url.split("*")[0], context=RequestContext(ReadMetrics(), purpose="list"))
    except UnsupportedStoreError:
        return {}
    return {one.url: one.size for one in found}


def source_paths(source: object) -> list[str]:
    """
    Raises:
        InvalidOptionError: it is something else.
    """
    given: Sequence[Any] = source if isinstance(source, (list, tuple)) else [source]
    if not given or not all(isinstance(one, (str, os.PathLike)) for one in given):
        raise InvalidOptionError(
            f"source: must be a url, a list of them, or a DataFrame, not a {type(source).__name__}",
            hint="Of a table, give asyncpq.spark.scan(spark, table).",
        )
    return [os.fspath(one) for one in given]


# -- places ---------------------------------------------------------------------------------------


def overlaps(url: str, target: str) -> bool:
    """Whether one of them is the other, or a folder around it."""
    ones, others = _places(url), _places(target)
    return any(one.startswith(other) or other.startswith(one) for one in ones for other in others)


def _places(url: str) -> set[str]:
    """As far as one can say: the same for urls of the same object, with a slash at its end; two where ``%`` may be
    itself, as asyncpq reads it, or escape something, as Spark writes it."""
    protocol, rest = split_url(url)
    if protocol == "file":
        paths = {rest}
        if rest.startswith("file:"):  # as Java's paths are written: file:/folder
            paths = {unquote(rest.removeprefix("file:"))}
        elif url.startswith("file://"):
            paths.add(unquote(rest))
        return {f"{canonical_url(path).rstrip('/')}/" for path in paths}
    return {f"{canonical_url(url).rstrip('/')}/"}
