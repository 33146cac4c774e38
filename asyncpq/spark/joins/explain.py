"""What a lookup join would do, and whether Spark's own join would do it in less time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asyncpq.options import LimitOptions, RequestOptions
from asyncpq.spark.joins.lake import keys_part
from asyncpq.spark.joins.lookup_join import DEFAULT_BATCH_KEYS, JoinPlan, plan_lookup_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncpq.spark.joins.task import How

_KEY_S: Final = 0.003  # of a processor, for one key


@dataclass(frozen=True, kw_only=True)
class JoinEstimate:
    """
    Attributes:
        refused: why it is no lookup join; None: it is one.
        index: what it goes by: the part of the index, or bounds.
        description: the lake and its version: of an index, where it is and which snapshot.
        num_keys: distinct keys.
        requests, num_bytes: that they take, about, all tasks together.
        lookup_s: time of one task at a time, about.
        scan_s: time to read the lake's bytes of these columns, as a broadcast join does. None where types refuse the
            join: then nothing was looked at.
    """

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
        """Whether Spark's broadcast join is likely to take less time."""
        return self.scan_s is not None and self.scan_s < self.lookup_s

    def __str__(self) -> str:
        lines = [
            "lookup join" if self.refused is None else f"no lookup join: {self.refused}",
            f"  {self.description}",
            f"  by {self.index}",
        ]
        if self.scan_s is not None:
            lines += [
                f"  {self.num_keys} keys: about {self.requests} requests, {self.num_bytes} bytes,"
                f" {self.lookup_s:.1f} s",
                f"  a broadcast join reads the lake: about {self.scan_s:.1f} s",
            ]
        if self.scan_is_cheaper:
            lines.append("  A broadcast join would be cheaper: df.join(asyncpq.spark.scan(spark, lake), on=...).")
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
    """What :func:`asyncpq.spark.lookup_join` would do with these arguments.

    Args:
        num_keys: distinct keys of ``df``; None: they are counted, which runs ``df``.
        requests: latency and bandwidth that are assumed.

    Raises:
        AsyncpqError, AnalysisException: as the join.
    """
    plan = plan_lookup_join(df, lake, on, columns, how, index=index, batch_keys=batch_keys, with_cost=True, **settings)
    keys = df.select(list(plan.on)).distinct().count() if num_keys is None else num_keys
    return _estimate(plan, keys, requests)


def _estimate(plan: JoinPlan, num_keys: int, requests: RequestOptions) -> JoinEstimate:
    cost = plan.cost
    part = keys_part(plan.opened, plan.key_names)
    each = 0.0 if cost is None else cost.requests + (part is not None)
    wait = requests.latency_s / LimitOptions().max_connections
    num_bytes = 0.0 if cost is None else cost.num_bytes * num_keys
    # keys share pages, which a worker keeps: more than all of them are not read
    once = 1.0 if cost is None or num_bytes <= cost.scan_bytes else cost.scan_bytes / num_bytes
    num_bytes, each = num_bytes * once, each * once
    return JoinEstimate(
        refused=plan.refused,
        index="footers and bounds" if part is None else f"{part} of the index",
        description=plan.opened.state.source.description,
        num_keys=num_keys,
        requests=round(each * num_keys),
        num_bytes=round(num_bytes),
        lookup_s=num_keys * (each * wait + _KEY_S) + num_bytes / requests.bandwidth_bytes_s,
        scan_s=None if cost is None else cost.scan_bytes / requests.bandwidth_bytes_s,
    )
