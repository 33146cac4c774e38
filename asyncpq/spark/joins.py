"""Lookup joins: each task looks up the keys of its own rows in the lake, without a scan or shuffle.

Tasks look up distinct keys in batches, and match rows in Arrow. Each process has one dataset, of the file versions that
the driver planned.
:func:`explain_lookup_join` estimates the join and compares it with Spark's broadcast join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import pyarrow as pa
from cachetools import LRUCache
from pyspark.sql.types import StructType

from asyncpq.distributed import plan_again_hint, refresh_hint, run_on_worker
from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, InvalidOptionError, QueryError
from asyncpq.objects.prices import Prices
from asyncpq.options import LimitOptions, RequestOptions, one_of, whole_number
from asyncpq.spark.join_keys import (
    JoinKey,
    KeyRefused,
    KeyRule,
    candidate_columns,
    has_equal_values,
    key_rules,
    numbered,
)
from asyncpq.spark.join_lake import KeyCost, key_cost, keys_part, pin_lake
from asyncpq.spark.join_strategy import JoinStrategy, LakeSide, choose_join
from asyncpq.spark.join_task import How, LookupTask
from asyncpq.spark.reads.lake_scan import PLAN_AGAIN
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake, open_lake
from asyncpq.spark.reads.predicates import quoted
from asyncpq.spark.settings import SparkSettings, refuse_secrets
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Distinct keys of one lookup in a task.
DEFAULT_BATCH_KEYS: Final = 4096
_KEPT: Final = 8  # empty DataFrames of a session


def lookup_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    index: Any = None,
    strategy: JoinStrategy = "auto",
    batch_keys: int = DEFAULT_BATCH_KEYS,
    **settings: Any,
) -> DataFrame:
    """Join a small DataFrame with a lake, as ``df.join(spark.read.parquet(lake), on=on, how=how)``.

    Keys compare as in Spark's joins: null matches nothing, NaN equals NaN and -0.0 equals 0.0. Lookups read the file
    versions of the moment of this call, in retried tasks too.

    Args:
        df: the left side; its partitions are the tasks.
        lake: url of a prefix or pattern, a list of urls, or a table, as :func:`asyncpq.spark.scan` takes it.
        on: names of the key columns on both sides.
        columns: columns of the lake behind those of ``df``; None for all. Keys need not be named.
        how: "inner", "left", "semi" or "anti".
        index: url of the lake's index; None: the index below the prefix, if there is one.
        strategy: "auto": run ``df`` at this call, once, and take the strategy that probably takes less time: tasks read
            the rows of its keys (the driver, if they are few), or Spark's join reads the files that may have the keys
            (as ``reader="auto"`` of :func:`asyncpq.spark.scan`). "lookups": do not run ``df`` now; its tasks look up
            their own keys. "spark": Spark's join with the files that may have the keys.
        batch_keys: distinct keys of one lookup in a task, with "lookups".
        settings: :class:`asyncpq.spark.settings.SparkSettings`, and options of the dataset such as ``format``.

    Raises:
        AnalysisException: a key column does not exist, or Spark cannot compare the types.
        ColumnNotFoundError: the lake lacks a column of ``columns``.
        QueryError: the strategy is "lookups", or ``df`` is a stream, and the keys cannot be looked up. The message says
            why, the hint what helps.
    """
    one_of("strategy", strategy, get_args(JoinStrategy))
    opened = open_join(df, lake, on, columns, how, index=index, batch_keys=batch_keys, **settings)
    if strategy != "lookups" and not df.isStreaming:
        return choose_join(df, opened.side(), strategy).frame(opened.on, opened.how)
    plan = with_task(opened)
    if plan.refused is None:
        return plan.dataframe(df)
    remedy = plan.refused.remedy
    other = "foreachBatch join each batch" if df.isStreaming else "asyncpq choose the join: strategy='auto'"
    raise QueryError(
        f"a lookup join would scan the lake: {plan.refused.why}",
        url=plan.opened.state.url,
        column=plan.on[0],
        hint=f"{remedy + ', or let' if remedy else 'Let'} {other}.",
    )


#: Spark's other names of joins.
_SPELLINGS: Final = {
    f"{side}{separator}{join}": how
    for side, join, how in (("left", "semi", "semi"), ("left", "anti", "anti"), ("left", "outer", "left"))
    for separator in ("", "_")
}


@dataclass(frozen=True, kw_only=True)
class JoinPlan:
    """A planned join: with the reason why the keys cannot be looked up (``refused``), or with how they are made. A
    lookup join also has a ``task``."""

    on: tuple[str, ...]
    how: How
    opened: OpenLake  # on the driver
    target: LakeTarget
    settings: SparkSettings
    key_names: tuple[str, ...]  # asyncpq's names of the lake's key columns
    right: StructType  # the lake's columns that take part in the join
    schema: StructType  # of the result
    left_width: int  # columns of the left
    places: tuple[int, ...]  # positions of the left's key columns
    batch_keys: int
    rules: tuple[KeyRule, ...] = ()  # how the keys are made
    keys: tuple[JoinKey, ...] = ()
    read: tuple[int, ...] = ()  # positions of the lake's columns that lookups read
    task: LookupTask | None = None
    refused: KeyRefused | None = None
    cost: KeyCost | None = None  # average of a key

    def dataframe(self, df: DataFrame) -> DataFrame:
        """Return the joined DataFrame, a ``mapInArrow`` of the task over ``df``."""
        assert self.task is not None, "the keys can be looked up"
        left = numbered(df)
        candidates = candidate_columns(left, self.rules, self.places)
        return left.select("*", *candidates).mapInArrow(self.task, self.schema)

    def side(self) -> LakeSide:
        """Return the lake's side of the join, for :func:`asyncpq.spark.join_strategy.choose_join`."""
        return LakeSide(
            opened=self.opened,
            right=self.right,
            rules=self.rules,
            places=self.places,
            keys=self.keys,
            settings=self.settings,
            refused="" if self.refused is None else self.refused.why,
        )


def plan_lookup_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    with_cost: bool = False,
    **options: Any,
) -> JoinPlan:
    """Plan a lookup join. ``with_cost``: measure the cost of a key even if an index maps keys to rows."""
    return with_task(open_join(df, lake, on, columns, how, **options), with_cost=with_cost)


def open_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    index: Any = None,
    batch_keys: int = DEFAULT_BATCH_KEYS,
    **settings: Any,
) -> JoinPlan:
    """Open the lake of a join, and find how its keys are made of the left's."""
    if not hasattr(df, "sparkSession"):
        raise InvalidOptionError(f"df: must be a Spark DataFrame, not {type(df).__name__}")
    how = cast(How, _SPELLINGS.get(str(how), how))
    one_of("how", how, get_args(How))
    names = _names("on", [on] if isinstance(on, str) else on or None)
    wanted = None if columns is None else _names("columns", columns)
    keys_at_once = whole_number("batch_keys", batch_keys, 1) or DEFAULT_BATCH_KEYS
    spark = df.sparkSession
    target, own = _target(lake, index, settings)
    frozen, conf = SparkSettings.of(spark, own), ReadConf.of(spark)
    opened = run_on_worker(frozen, lambda session: open_lake(session, target, conf))

    right = _right(opened, names, wanted)
    joined = df.join(_empty(spark, right), on=list(names), how=how).schema  # analysed but not executed
    arrow_schema(joined)  # raises now: PySpark's error at run time names no column
    left_places = [_place(df.columns, name, conf) for name in names]
    lake_places = [opened.columns([name])[0] for name in names]
    plan = JoinPlan(
        on=names,
        how=how,
        opened=opened,
        target=target,
        settings=frozen,
        key_names=tuple([opened.names[at] for at in lake_places]),
        right=right,
        schema=joined,
        left_width=len(df.columns),
        places=tuple(left_places),
        batch_keys=keys_at_once,
    )
    rules = _rules(df, opened, left_places, lake_places, conf)
    if isinstance(rules, KeyRefused):
        return replace(plan, refused=rules)
    rest = [at for at in opened.columns(right.names) if at not in lake_places] if how in ("inner", "left") else []
    read = list(dict.fromkeys([*lake_places, *rest]))
    keys = _join_keys(opened, rules, lake_places, read, _types(opened, read), len(df.columns))
    if how not in ("inner", "left"):  # no other column is part of the result
        right = StructType([opened.struct.fields[at] for at in dict.fromkeys(lake_places)])
    return replace(plan, right=right, rules=tuple(rules), keys=keys, read=tuple(read))


def _types(opened: OpenLake, read: Sequence[int]) -> pa.Schema:
    """Return the Arrow types in Spark of the lake's columns at the positions ``read``."""
    return arrow_schema(StructType([opened.struct.fields[at] for at in read]))


def with_task(plan: JoinPlan, *, with_cost: bool = False) -> JoinPlan:
    """Pin the lake's files for a lookup join, and add its task, or why the keys cannot be looked up."""
    if plan.refused is not None:
        return plan
    opened, frozen, read = plan.opened, plan.settings, plan.read
    with refresh_hint(opened.is_snapshot):
        pinned = run_on_worker(frozen, lambda session: pin_lake(session, opened, plan.target, read, frozen))
    has_index = keys_part(opened, plan.key_names) is not None
    if with_cost or not has_index:
        with plan_again_hint(PLAN_AGAIN, pinned.index is not None):
            cost = run_on_worker(frozen, lambda session: key_cost(session, pinned, plan.key_names))
        plan = replace(plan, cost=cost)
        if not has_index and not cost.is_little:
            why = f"no index maps keys to rows, and {cost}"
            return replace(plan, refused=KeyRefused(why, "Build an index with Keys on these columns"))
    types = _types(opened, read)
    keys = {key.place for key in plan.keys}
    task = LookupTask(
        pinned=pinned,
        how=plan.how,
        keys=plan.keys,
        left=(*plan.places, *(at for at in range(plan.left_width) if at not in plan.places)),
        right=tuple((at, types.field(at).type) for at in range(len(read)) if at not in keys),
        batch_keys=plan.batch_keys,
    )
    return replace(plan, task=task)


def _rules(
    df: DataFrame, opened: OpenLake, left_places: Sequence[int], lake_places: Sequence[int], conf: ReadConf
) -> list[KeyRule] | KeyRefused:
    """Return the rules of all key columns, or why the keys of one column cannot be looked up."""
    pairs = [
        (df.schema.fields[place], opened.struct.fields[at]) for place, at in zip(left_places, lake_places, strict=True)
    ]
    rules: list[KeyRule] = []
    compared = key_rules(df.sparkSession, pairs, conf.session_time_zone)
    for rule, (_, field), at in zip(compared, pairs, lake_places, strict=True):
        if isinstance(rule, KeyRefused):
            return rule
        stored = opened.schema.field(opened.names[at]).type
        if not has_equal_values(stored, field.dataType, int96_is_shifted=conf.int96_timestamp_conversion):
            if conf.int96_timestamp_conversion and has_equal_values(stored, field.dataType, int96_is_shifted=False):
                return KeyRefused(
                    f"spark.sql.parquet.int96TimestampConversion may shift values of {field.name!r} in time"
                )
            return KeyRefused(
                f"asyncpq does not support keys of column {field.name!r}: files store {stored} for Spark's"
                f" {field.dataType.simpleString()}"
            )
        rules.append(rule)
    return rules


def _join_keys(
    opened: OpenLake,
    rules: Sequence[KeyRule],
    lake_places: Sequence[int],
    read: Sequence[int],
    types: pa.Schema,
    first_candidate: int,
) -> tuple[JoinKey, ...]:
    """Return the key columns of the join in the form that tasks need.

    ``read`` are the positions of the lake's columns that are read, ``types`` their Arrow types in Spark. Candidate
    columns follow the columns of the left, beginning at the position ``first_candidate``.
    """
    begins = accumulate((rule.num_columns for rule in rules), initial=first_candidate)
    return tuple(
        JoinKey(
            name=opened.names[at],
            stored=opened.schema.field(opened.names[at]).type,
            form=rule.form,
            candidates=tuple(range(begin, begin + rule.num_columns)),
            place=read.index(at),
            type=types.field(read.index(at)).type,
        )
        for rule, at, begin in zip(rules, lake_places, begins, strict=False)
    )


def _names(argument: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise InvalidOptionError(f"{argument}: must be a list of column names (str), not {given!r}")
    return tuple(given)


def _target(lake: Any, index: Any, settings: Mapping[str, Any]) -> tuple[LakeTarget, dict[str, Any]]:
    """Return the lake to open and the remaining settings. Raises InvalidOptionError for a url with credentials."""
    refuse_secrets("lake", lake)
    refuse_secrets("index", index)
    names = {field.name for field in fields(LakeTarget)} - {"schema", "on_bad_file"}
    of_lake = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return LakeTarget(target=lake, index=index, **of_lake), others


def _right(opened: OpenLake, on: Sequence[str], columns: Sequence[str] | None) -> StructType:
    """Return the lake's columns in the join: keys and ``columns`` (None: all). ColumnNotFoundError: one is missing."""
    if columns is None:
        return opened.struct
    for name in columns:
        if not opened.columns([name]):
            raise opened.missing(name)
    places = dict.fromkeys([*opened.columns(on), *opened.columns(columns)])
    return StructType([opened.struct.fields[at] for at in places])


def _empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame with this schema. Creation is as slow as a lookup, so the session caches some."""
    kept: LRUCache[str, DataFrame] = vars(spark).setdefault("_asyncpq_empty", LRUCache(_KEPT))
    key = schema.json()
    if key not in kept:
        kept[key] = spark.createDataFrame([], schema)
    return kept[key]


def _place(names: Sequence[str], name: str, conf: ReadConf) -> int:
    try:
        place = find_name(names, name, conf)
    except AmbiguousColumnError:
        raise AmbiguousColumnError(
            "several columns of the left DataFrame match the name of the key",
            column=name,
            hint="Rename or drop the others before the join.",
        ) from None
    if place is None:
        raise ColumnNotFoundError("the left DataFrame has no such key column", column=name)  # Spark has found it
    return place


_KEY_S: Final = 0.003  # processor time for one key


@dataclass(frozen=True, kw_only=True)
class JoinEstimate:
    """The estimated cost of a lookup join, and of Spark's broadcast join for comparison.

    Attributes:
        strategy: what ``strategy="auto"`` takes: "lookups" or "spark".
        reason: why, with the files that are read.
        refused: why the tasks of ``df`` cannot look up its keys; None if they can.
        index: the index table that is used, or "footers and bounds".
        description: the lake and its version; for an index its place and snapshot.
        num_keys: number of distinct keys that are not null.
        requests, num_bytes: approximate totals of all tasks.
        lookup_s: approximate seconds if one task runs at a time.
        scan_s: seconds to read the lake's bytes of these columns, as a broadcast join does. None if the types of the
            keys prevent a lookup, since then the files are not examined.
    """

    strategy: Literal["lookups", "spark"]
    reason: str
    refused: str | None
    index: str
    description: str
    num_keys: int
    requests: int
    num_bytes: int
    lookup_s: float
    scan_s: float | None

    @property
    def scan_is_cheaper(self) -> bool:
        """Whether Spark's broadcast join probably takes less time."""
        return self.scan_s is not None and self.scan_s < self.lookup_s

    def __str__(self) -> str:
        lines = [
            f"join by {self.strategy}, since {self.reason}",
            *([] if self.refused is None else [f'  no strategy="lookups": {self.refused}']),
            f"  {self.description}",
            f"  by {self.index}",
        ]
        if self.scan_s is not None:
            lines += [
                f"  {self.num_keys} keys: about {self.requests} requests, {self.num_bytes} bytes,"
                f" {self.lookup_s:.1f} s",
                f"  a broadcast join reads the lake: about {self.scan_s:.1f} s",
            ]
        return "\n".join(lines)


def explain_lookup_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    index: Any = None,
    batch_keys: int = DEFAULT_BATCH_KEYS,
    num_keys: int | None = None,
    requests: RequestOptions = RequestOptions(),  # noqa: B008
    **settings: Any,
) -> JoinEstimate:
    """Estimate :func:`asyncpq.spark.lookup_join` with these arguments.

    Args:
        num_keys: number of distinct keys of ``df``; None: ``df`` runs, and the choice is that of the join itself.
        requests: assumed latency and bandwidth.

    Raises:
        AsyncpqError, AnalysisException: as :func:`asyncpq.spark.lookup_join` does.
    """
    plan = plan_lookup_join(df, lake, on, columns, how, index=index, batch_keys=batch_keys, with_cost=True, **settings)
    if num_keys is not None:
        return _estimate(plan, num_keys, requests)
    chosen = choose_join(df, plan.side(), "auto")
    keys = chosen.num_keys
    if keys is None:
        keys = df.select(*[df[quoted(name)] for name in plan.on]).dropna().distinct().count()
    return replace(_estimate(plan, keys, requests), strategy=chosen.strategy, reason=chosen.why)


def _estimate(plan: JoinPlan, num_keys: int, requests: RequestOptions) -> JoinEstimate:
    """Estimate the join of so many keys, which are not known."""
    cost = plan.cost
    part = keys_part(plan.opened, plan.key_names)
    prices = Prices.initial(requests, LimitOptions())
    wait = prices.latency_s / prices.connections
    each = num_bytes = 0.0
    if cost is not None:
        each, num_bytes = cost.requests + (part is not None), cost.num_bytes * num_keys
        if num_bytes > cost.scan_bytes:  # keys share cached pages, so no more than the whole lake is read
            each, num_bytes = each * cost.scan_bytes / num_bytes, float(cost.scan_bytes)
    lookup_s = num_keys * (each * wait + _KEY_S) + num_bytes / prices.bandwidth_bytes_s
    scan_s = None if cost is None else cost.scan_bytes / prices.bandwidth_bytes_s
    by_spark = plan.refused is not None or (scan_s is not None and scan_s < lookup_s)
    return JoinEstimate(
        strategy="spark" if by_spark else "lookups",
        reason=plan.refused.why if plan.refused is not None else "it is estimated at less time for this number of keys",
        refused=None if plan.refused is None else plan.refused.why,
        index="footers and bounds" if part is None else f"{part} of the index",
        description=plan.opened.state.source.description,
        num_keys=num_keys,
        requests=round(each * num_keys),
        num_bytes=round(num_bytes),
        lookup_s=lookup_s,
        scan_s=scan_s,
    )
