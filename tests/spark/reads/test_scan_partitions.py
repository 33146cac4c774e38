"""Values in paths, against ``spark.read.parquet``: texts, what is undone in them, types, and indexes of such lakes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import StructType

from asyncpq import col
from asyncpq.errors import InvalidOptionError, PartitionError, UnsupportedFeatureError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark import build_index, explain_lookup_join, lookup_join
from asyncpq.spark.joins import plan_lookup_join
from asyncpq.spark.reads import scan as scan_module
from asyncpq.spark.reads.scan import explain_scan
from asyncpq.spark.types.partition_types import partition_scalar
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark import source_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(scan_module.scan, reader="asyncpq")

_NULL = "__HIVE_DEFAULT_PARTITION__"

#: Of each column its texts, in the paths of one file after another.
_TEXTS: Sequence[Sequence[str]] = (
    *(["%C3%A4"], ["ä"], ["%31"], ["a%2Fb"], ["1%2E5"], ["1%2E5", "2.5"], ["1", "%32"], ["a b", "c%20d"], ["a=b"]),
    *(["a:b", "a%3Ab"], ["%2B1"], ["+1"], ["+1", "1+2"], ["1 "], ["%201"], [_NULL, "1"], [_NULL, "%31"], [_NULL]),
    *(["%5F_HIVE_DEFAULT_PARTITION__", "1"], ["%", "%2", "%zz", "100%", "%%31"], ["%-1", "%+1", "%u00e4"], ["%7F"]),
    *(["%4"], ["%4a%4B"], ["01", "%30%31"], ["2024-01-01", "2024-01-02%2000%3A00%3A00"], ["2024%2D01-01"]),
    *(["12%3A30%3A00", "01:00:00"], ["2024-03-10 02:30:00", _NULL], ["3000000000", "1"], ["1", "x%41"], ["1", "2"]),
)
#: Folders of lakes whose columns have other names.
_NAMES = (["p%41=1", "pA=2"], ["p%3Dx=1"], ["x/p=%31"], ["p=1/q=%31", "p=2/q=3"])
_KINDS = ("int", "bigint", "tinyint", "double", "date", "timestamp", "timestamp_ntz", "string", "time")
#: Texts, and the types that Spark reads them as, if a schema says so: no others of :data:`_KINDS`.
_ASKED: dict[str, Sequence[str]] = {
    "1": ("int", "bigint", "tinyint", "double", "string"),
    "%31": ("string",),
    " 1": ("double", "string"),
    "%201": ("string",),
    "1.5": ("double", "string"),
    "1%2E5": ("string",),
    "2024-01-01": ("date", "timestamp", "timestamp_ntz", "string"),
    "2024%2D01-01": ("timestamp", "timestamp_ntz", "string"),
    "2024-01-01%2010%3A00%3A00": ("timestamp", "timestamp_ntz", "string"),
    "a%20b": ("string",),
    "12%3A30%3A00": ("string", "time"),
    _NULL: _KINDS,
    "+1": ("int", "bigint", "tinyint", "double", "string"),
    "%C3%A4": ("string",),
}


def _lake(folder: Path, paths: Sequence[str]) -> str:
    for row, path in enumerate(paths):
        (folder / path).mkdir(parents=True)
        pq.write_table(pa.table({"row": [row]}), folder / path / "f.parquet")
    return str(folder)


def _shown(frames: Sequence[DataFrame]) -> list[list[str]]:
    """The rows of each as text: one job for all."""
    lines = [
        frame.select(F.lit(at).alias("at"), F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("line"))
        for at, frame in enumerate(frames)
    ]
    found: list[list[str]] = [[] for _ in frames]
    for row in reduce(DataFrame.unionAll, lines).collect():
        found[row["at"]].append(row["line"])
    return [sorted(some) for some in found]


@pytest.mark.parametrize("inferred", ["true", "false"])
def test_texts_of_paths(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, inferred: str) -> None:
    restored_conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    restored_conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", inferred)
    rows = range(max(map(len, _TEXTS)))
    paths = ["/".join(f"p{at}={some[row % len(some)]}" for at, some in enumerate(_TEXTS)) for row in rows]
    lakes = [_lake(tmp_path / str(at), some) for at, some in enumerate((paths, *_NAMES))]
    ours, theirs = [scan(spark, lake) for lake in lakes], [spark.read.parquet(lake) for lake in lakes]
    for our, their in zip(ours, theirs, strict=True):
        assert [*zip(our.schema, _TEXTS, strict=False)] == [*zip(their.schema, _TEXTS, strict=False)]
    assert _shown(ours) == _shown(theirs)


def test_texts_as_the_types_of_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark refuses is refused."""
    pairs = [(text, kind) for text, kinds in _ASKED.items() for kind in kinds]
    lake = _lake(tmp_path, ["/".join(f"p{at}={text}" for at, (text, _) in enumerate(pairs))])
    schema = "row bigint, " + ", ".join(f"p{at} {kind}" for at, (_, kind) in enumerate(pairs))
    ours, theirs = scan(spark, lake, schema=schema), spark.read.schema(schema).parquet(lake)
    assert ours.schema == theirs.schema
    assert _shown([ours]) == _shown([theirs])
    conf = ReadConf.of(spark)
    fields: Any = StructType.fromDDL(", ".join(f"{kind} {kind}" for kind in _KINDS))
    for text, kinds in _ASKED.items():
        for kind in set(_KINDS).difference(kinds):
            with pytest.raises(PartitionError):
                partition_scalar(text, fields[kind].dataType, conf)


def test_texts_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="column name 'Ã¤'"):
        scan(spark, _lake(tmp_path / "a", ["%C3%A4=1"]))
    with pytest.raises(PartitionError, match="UTF-8"):
        scan(spark, _lake(tmp_path / "b", ["p=%FF"]))
    with pytest.raises(UnsupportedFeatureError, match="cast it") as raised:  # Spark reads 0.15
        scan(spark, _lake(tmp_path / "c", ["p=1.5"]), schema="row bigint, p decimal(10,2)")
    assert raised.value.column == "p"


def test_conditions_on_values_of_paths(spark: SparkSession, tmp_path: Path) -> None:
    lake = _lake(tmp_path, ["p=%C3%A4", "p=a%2Fb", "p=%31", f"p={_NULL}", "p=ä"])
    wheres = ["p = 'Ã¤'", "p = 'ä'", "p = 'a/b'", "p = '1'", "p is null", "p <> '1'", "p > 'a'"]
    ours = [scan(spark, lake, where=where) for where in wheres]
    assert _shown(ours) == _shown([spark.read.parquet(lake).filter(where) for where in wheres])
    assert explain_scan(spark, lake, where="p = 'Ã¤'").files == 1


# -- the session's time zone ----------------------------------------------------------------------


def test_times_in_paths_need_the_zone(tmp_path: Path) -> None:
    lake = _lake(tmp_path, ["p=2024-01-01 00:00:00"])
    with pytest.raises(InvalidOptionError, match="time zone") as raised:
        source_calls.source(path=lake).schema()
    assert raised.value.column == "p"
    assert "sessionTimeZone" in (raised.value.hint or "")
    source = source_calls.source(path=lake, sessionTimeZone="America/Los_Angeles")
    (row,) = source_calls.read_table(source, source.schema()).to_pylist()
    assert row["p"].isoformat() == "2024-01-01T08:00:00+00:00"
    ntz = source_calls.source(path=lake, timestampType="TIMESTAMP_NTZ")
    assert ntz.schema().simpleString() == "struct<row:bigint,p:timestamp_ntz>"


# -- indexes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a", "b"), ("2024-05-01", "2024-06-01"), ("b c", "%C3%A4")])
def test_an_index_of_a_lake_with_texts_in_paths(spark: SparkSession, tmp_path: Path, names: tuple[str, str]) -> None:
    for at in range(4):
        folder = tmp_path / f"p={names[at % 2]}"
        folder.mkdir(exist_ok=True)
        ids = pa.array(range(1000 * at, 1000 * at + 1000))
        pq.write_table(pa.table({"id": ids, "v": ids}), folder / f"{at}.parquet")
    build_index(spark, str(tmp_path), [Keys("id"), Bounds("id"), Bounds("p"), Footers()])
    keys = spark.createDataFrame([(5,), (1500,), (3999,), (10**9,)], "id bigint")
    said = explain_lookup_join(keys, str(tmp_path), on="id")
    assert (said.refused, said.index) == (None, "keys(id) of the index")
    task = plan_lookup_join(keys, str(tmp_path), "id").task
    assert task is not None
    assert task.pinned.snapshot > 0  # tasks use it, too
    theirs = spark.read.option("recursiveFileLookup", "false").parquet(str(tmp_path))
    joined = lookup_join(keys, str(tmp_path), on="id")
    asked = scan(spark, str(tmp_path), where=(col("id") == 1500))
    expected = [keys.join(theirs, on="id"), theirs.filter("id = 1500")]
    assert joined.schema == expected[0].schema
    assert _shown([joined, asked]) == _shown(expected)
    value = theirs.filter("id = 1500").select("p").first()
    assert value is not None
    by_path = scan(spark, str(tmp_path), where=(col("p") == value[0]), columns=["id"])
    assert by_path.count() == 2000
