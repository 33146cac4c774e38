"""Lookup joins: each task looks up the keys of its own rows in the lake, without a scan or shuffle.

Tasks look up distinct keys in batches, and match rows in Arrow. Each process has one dataset, of the file versions that
the driver planned.
:func:`explain_lookup_join` estimates the join and compares it with Spark's broadcast join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast, get_args

from cachetools import LRUCache
from pyspark.sql.types import StructType

from asyncpq.distributed import DatasetJoin, JoinKey, run_on_worker
from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, InvalidOptionError, QueryError
from asyncpq.options import RequestOptions, one_of, whole_number
from asyncpq.spark.join_keys import KeyRefused, KeyRule, has_equal_values, key_rules
from asyncpq.spark.join_strategy import How, JoinPlan, JoinStrategy, choose_join
from asyncpq.spark.reads.conditions import quoted
from asyncpq.spark.reads.lake_scan import PLAN_AGAIN, lake_of
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake, SparkFiles, open_lake
from asyncpq.spark.settings import FilesKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import FIRST_SURE_DAY, FIRST_SURE_TIME, ReadConf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Distinct keys of one lookup in a task.
DEFAULT_BATCH_KEYS: Final = 4096
_KEPT: Final = 8  # empty DataFrames of a session


class OpenKeywords(FilesKeywords, total=False):
    """The keyword arguments that open the lake of a join: options of the dataset, and settings."""

    index: Any
    batch_keys: int
    view: Literal["snapshot", "listed", "table"] | None


def lookup_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    strategy: JoinStrategy = "auto",
    **options: Unpack[OpenKeywords],
) -> DataFrame:
    """Join a small DataFrame with a lake by looking up its keys; the rows are those of
    ``df.join(spark.read.parquet(lake), on=on, how=how)``.

    Keys compare as in Spark's joins: null matches nothing, NaN equals NaN and -0.0 equals 0.0. Lookups read the file
    versions that exist at this call, in retried tasks too.

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
        batch_keys: maximum number of distinct keys in one lookup of a task, with "lookups".
        options: attributes of :class:`asyncpq.spark.SparkSettings`, and options of the dataset such as ``format``.

    Raises:
        AnalysisException: a key column does not exist, or Spark cannot compare the types.
        ColumnNotFoundError: the lake lacks a column of ``columns``.
        QueryError: the strategy is "lookups", or ``df`` is a stream, and the keys cannot be looked up. The message says
            why, the hint what helps.
    """
    one_of("strategy", strategy, get_args(JoinStrategy))
    opened = open_join(df, lake, on, columns, how, **options)
    if strategy != "lookups" and not df.isStreaming:
        return choose_join(df, opened, strategy).frame(opened.on, opened.how)
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


def plan_lookup_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    *,
    with_cost: bool = False,
    **options: Unpack[OpenKeywords],
) -> JoinPlan:
    """Plan a lookup join. ``with_cost``: measure the cost of a key even if an index maps keys to rows."""
    return with_task(open_join(df, lake, on, columns, how, **options), with_cost=with_cost)


def open_join(
    df: DataFrame,
    lake: Any,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    how: How = "inner",
    **options: Unpack[OpenKeywords],
) -> JoinPlan:
    """Open the lake of a join, and find how its keys are made of the left's."""
    if not hasattr(df, "sparkSession"):
        raise InvalidOptionError(f"df: must be a Spark DataFrame, not {type(df).__name__}", option="df")
    how = cast(How, _SPELLINGS.get(str(how), how))
    one_of("how", how, get_args(How))
    names = _names("on", [on] if isinstance(on, str) else on or None)
    wanted = None if columns is None else _names("columns", columns)
    keys_at_once = whole_number("batch_keys", options.get("batch_keys"), 1) or DEFAULT_BATCH_KEYS
    spark = df.sparkSession
    target, own = _target(lake, options)
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
        settings=frozen,
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
    if how not in ("inner", "left"):  # no other column is part of the result
        right = StructType([opened.struct.fields[at] for at in dict.fromkeys(lake_places)])
    types = opened.state.source.types if isinstance(opened.state.source, SparkFiles) else None
    join = DatasetJoin(
        state=opened.state,
        scan=replace(lake_of(opened, read, frozen), partitioning=opened.partitioning),
        keys=_join_keys(opened, rules, lake_places, read, len(df.columns)),
        target=target.target,
        index=target.index,
        wrap=None if types is None else partial(SparkFiles, conf=conf, types=types),
        again=PLAN_AGAIN,
        limits={"task_bytes": frozen.split_bytes, "most_tasks": frozen.most_splits, "work_folder": frozen.work_folder},
    )
    return replace(plan, right=right, rules=tuple(rules), join=join)


def with_task(plan: JoinPlan, *, with_cost: bool = False) -> JoinPlan:
    """Pin the lake's files for a lookup join, and add its task, or why the keys cannot be looked up."""
    if plan.join is None:
        return plan
    opened, frozen = plan.opened, plan.settings
    unpinned = plan.join
    join = run_on_worker(frozen, lambda session: unpinned.pin())
    has_index = join.index_table is not None
    if with_cost or not has_index:
        join = run_on_worker(frozen, join.measured)
        plan = replace(plan, join=join)
        if not has_index and join.cost is not None and not join.cost.is_little:
            why = f"no index maps keys to rows, and {join.cost}"
            return replace(plan, refused=KeyRefused(why, "Build an index with Keys on these columns"))
    places = [opened.names.index(str(name)) for name in join.scan.columns or ()]
    types = arrow_schema(StructType([opened.struct.fields[at] for at in places]))
    keys = {key.place for key in join.keys}
    task = join.task(
        how=plan.how,
        left=(*plan.places, *(at for at in range(plan.left_width) if at not in plan.places)),
        right=tuple((at, field.type) for at, field in enumerate(types) if at not in keys),
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
    opened: OpenLake, rules: Sequence[KeyRule], lake_places: Sequence[int], read: Sequence[int], first_candidate: int
) -> tuple[JoinKey, ...]:
    """Return the key columns of the join in the form that tasks need.

    ``read`` are the positions of the lake's columns that are read. Candidate columns follow the columns of the left,
    beginning at the position ``first_candidate``.
    """
    types = arrow_schema(StructType([opened.struct.fields[at] for at in read]))
    begins = accumulate((rule.num_columns for rule in rules), initial=first_candidate)
    return tuple(
        JoinKey(
            name=opened.names[at],
            stored=opened.schema.field(opened.names[at]).type,
            form=rule.form,
            candidates=tuple(range(begin, begin + rule.num_columns)),
            place=read.index(at),
            type=types.field(read.index(at)).type,
            first_day=FIRST_SURE_DAY,
            first_time=FIRST_SURE_TIME,
        )
        for rule, at, begin in zip(rules, lake_places, begins, strict=False)
    )


def _names(argument: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise InvalidOptionError(f"{argument}: must be a list of column names (str), not {given!r}", option=argument)
    return tuple(given)


def _target(lake: Any, options: OpenKeywords) -> tuple[LakeTarget, dict[str, Any]]:
    """Return the lake to open and the settings. Raises InvalidOptionError for a url with credentials."""
    refuse_secrets("lake", lake)
    refuse_secrets("index", options.get("index"))
    of_lake, settings = split_settings(options, OpenKeywords)
    of_lake.pop("batch_keys", None)
    return LakeTarget(target=lake, **of_lake), settings


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
        place = conf.find(names, name)
    except AmbiguousColumnError:
        raise AmbiguousColumnError(
            "several columns of the left DataFrame match the name of the key",
            column=name,
            hint="Rename or drop the others before the join.",
        ) from None
    if place is None:
        raise ColumnNotFoundError("the left DataFrame has no such key column", column=name)  # Spark has found it
    return place


@dataclass(frozen=True, kw_only=True)
class JoinEstimate:
    """The estimated cost of a lookup join, and of Spark's broadcast join for comparison. Made by
    :func:`explain_lookup_join`.

    Attributes:
        strategy: the choice of ``strategy="auto"``: "lookups" or "spark".
        reason: the reason for the choice, with the files that are read.
        refused: why the tasks of the DataFrame cannot look up its keys; None if they can.
        index: name of the index table that lookups use, or "footers and bounds" without one.
        description: the lake and its version; for an index its url and snapshot.
        num_keys: number of distinct keys that are not null.
        requests, num_bytes: approximate number of requests and bytes of all lookups together.
        lookup_s: approximate seconds of the lookups if one task runs at a time.
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
    num_keys: int | None = None,
    requests: RequestOptions = RequestOptions(),  # noqa: B008
    **options: Unpack[OpenKeywords],
) -> JoinEstimate:
    """Return the estimated cost of :func:`asyncpq.spark.lookup_join`, and of Spark's broadcast join, without running
    either. Footers or an index are read.

    Args:
        df, lake, on, columns, how, options: as in :func:`asyncpq.spark.lookup_join`.
        num_keys: assumed number of distinct keys of ``df``. None: ``df`` is run to get its keys, as the join with
            ``strategy="auto"`` does.
        requests: its ``latency_s`` and ``bandwidth_bytes_s`` are those assumed of the store.

    Raises:
        AsyncpqError, AnalysisException: as :func:`asyncpq.spark.lookup_join` does.
    """
    plan = plan_lookup_join(df, lake, on, columns, how, with_cost=True, **options)
    if num_keys is not None:
        return _estimate(plan, num_keys, requests)
    chosen = choose_join(df, plan, "auto")
    keys = chosen.num_keys
    if keys is None:
        keys = df.select(*[df[quoted(name)] for name in plan.on]).dropna().distinct().count()
    return replace(_estimate(plan, keys, requests), strategy=chosen.strategy, reason=chosen.why)


def _estimate(plan: JoinPlan, num_keys: int, requests: RequestOptions) -> JoinEstimate:
    """Estimate the join of so many keys, which are not known."""
    join, refused = plan.join, plan.refused
    lookups = None if join is None else join.estimate(num_keys, requests)
    scan_s = None if lookups is None else lookups.scan_s
    lookup_s = 0.0 if lookups is None else lookups.seconds
    table = None if join is None else join.index_table
    by_spark = refused is not None or (scan_s is not None and scan_s < lookup_s)
    return JoinEstimate(
        strategy="spark" if by_spark else "lookups",
        reason="it is estimated at less time for this number of keys" if refused is None else refused.why,
        refused=None if refused is None else refused.why,
        index="footers and bounds" if table is None else f"{table} of the index",
        description=plan.opened.state.source.description,
        num_keys=num_keys,
        requests=0 if lookups is None else lookups.requests,
        num_bytes=0 if lookups is None else lookups.num_bytes,
        lookup_s=lookup_s,
        scan_s=scan_s,
    )
