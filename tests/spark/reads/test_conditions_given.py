"""What is left out by conditions against what Spark takes them for: one query of Spark judges all of them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.distributed import worker_sessions as sessions
from asyncpq.distributed.scan_tasks import read_task
from asyncpq.errors import ExpressionError
from asyncpq.expressions import Expression, col
from asyncpq.session import Session
from asyncpq.spark.reads.conditions import Condition, instants_of
from asyncpq.spark.reads.lake_scan import LakePlan, plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark import scan_lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

SETTINGS = SparkSettings(disk_cache="off")
QUESTIONS = 90


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    rng = random.Random(7)
    for number in range(3):
        scan_lakes.write(folder / f"{number}.parquet", scan_lakes.table(rng, 900, 900 * number))
    return folder


def wanted_rows(spark: SparkSession, lake: Path, questions: Sequence[Expression | str]) -> list[set[int]]:
    """For each of them the rows that Spark takes."""
    frame = spark.read.parquet(str(lake))
    conf = ReadConf.of(spark)
    asked = [Condition(one).column(frame.schema, conf).alias(f"q{at}") for at, one in enumerate(questions)]
    answers = frame.select("row", *asked).toArrow()
    rows = answers.column("row")
    return [set(rows.filter(answers.column(f"q{at}")).to_pylist()) for at in range(len(questions))]


def read_rows(spark: SparkSession, lake: Path, where: Expression | str) -> tuple[set[int], bool]:
    """What is read for it, and whether anything was left out by it."""
    conf, asked = ReadConf.of(spark), Condition(where)
    instants = instants_of(asked.times(), conf, spark)

    async def work(session: Session) -> LakePlan:
        opened = await open_lake(session, LakeTarget(target=str(lake)), conf)
        terms = asked.terms(opened.struct, opened.schema, conf, instants)
        return await plan_lake(opened, settings=SETTINGS, columns=["row"], where=terms)

    plan = sessions.run_on_worker(SETTINGS, work)
    found: set[int] = set()
    for task in plan.encoded():
        for batch in read_task(plan.scan, task):
            rows = batch.column(0).to_pylist()
            assert found.isdisjoint(rows)
            found.update(rows)
    return found, plan.scan.where is not None


def assert_nothing_is_lost(spark: SparkSession, lake: Path, questions: Sequence[Expression | str]) -> None:
    pruned = exact = 0
    for where, wanted in zip(questions, wanted_rows(spark, lake, questions), strict=True):
        found, prunes = read_rows(spark, lake, where)
        assert wanted <= found, f"{where}: {sorted(wanted - found)[:5]} of {len(wanted)} rows are missing"
        pruned += prunes
        exact += prunes and wanted == found
    assert pruned > len(questions) * 0.5
    assert exact > pruned * 0.6  # few rows travel for nothing


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "America/New_York"])
def test_expressions(spark: SparkSession, restored_conf: RuntimeConfig, lake: Path, zone: str) -> None:
    restored_conf.set("spark.sql.session.timeZone", zone)
    rng = random.Random(zone)
    assert_nothing_is_lost(spark, lake, [scan_lakes.condition(rng) for _ in range(QUESTIONS)])


def test_sql(spark: SparkSession, restored_conf: RuntimeConfig, lake: Path) -> None:
    restored_conf.set("spark.sql.session.timeZone", "America/New_York")
    rng = random.Random(3)
    assert_nothing_is_lost(spark, lake, [scan_lakes.sql(rng) for _ in range(QUESTIONS)])


def test_times_outside_of_pythons_years(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    restored_conf.set("spark.sql.session.timeZone", "UTC")
    micros = [-(1 << 62), -62_135_596_800_000_001, -62_135_596_800_000_000, 0, 253_402_300_800_000_000, 1 << 62]
    table = pa.table({"row": range(len(micros)), "t": pa.array(micros, pa.timestamp("us", "UTC"))})
    table = table.append_column("n", pa.array(micros, pa.timestamp("us")))
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=1)
    questions, expected = [], []
    for name, dtype in (("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us"))):
        for literal in micros:
            questions += [col(name) == pa.scalar(literal, dtype), col(name) > pa.scalar(literal, dtype)]
            expected += [{micros.index(literal)}, set(range(micros.index(literal) + 1, len(micros)))]
    last = dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))  # of the year 10000, in UTC
    questions.append(col("t") > last)
    expected.append({5})
    assert wanted_rows(spark, tmp_path, questions) == expected
    for question, rows in zip(questions, expected, strict=True):
        assert rows <= read_rows(spark, tmp_path, question)[0]
    beyond = Condition(col("t") > pa.scalar(1 << 60, pa.timestamp("s", "UTC")))
    with pytest.raises(ExpressionError, match="years"):
        beyond.column(spark.read.parquet(str(tmp_path)).schema, ReadConf.of(spark))
