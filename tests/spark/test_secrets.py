"""A secret that executors use is nowhere to be seen: not in plans, logs, the UI, pickles, files and errors."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import time
import traceback
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StructField, StructType

import asyncpq.spark
from asyncpq.distributed import build_steps as index_steps
from asyncpq.distributed import build_tasks, packing
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark.data_source import AsyncpqDataSource
from tests.spark import credentials
from tests.spark.cluster import Cluster
from tests.spark.credentials import CANARY, PROVIDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.lake_store import LakeStore

_ROWS: Final = 3000
_FILES: Final = 3
_IDS: Final = StructType([StructField("id", LongType())])


def _forms(text: str) -> list[bytes]:
    """As it is, and as base64 has it, wherever it begins."""
    coded = [base64.b64encode(b"\0" * skipped + text.encode())[4 if skipped else 0 : -4] for skipped in range(3)]
    return [text.encode(), text[::-1].encode(), text.encode().hex().encode(), *coded]


def _holds(data: bytes, text: str) -> bool:
    return any(form in data for form in _forms(text))


class Shown:
    """All that somebody could look at, by where it was seen. Files are read from where they ended when it was made."""

    def __init__(self, cluster: Cluster) -> None:
        self.seen: dict[str, bytes] = {}
        self._cluster = cluster
        self._before = {path: path.stat().st_size for path in self._files()}

    def add(self, where: str, data: str | bytes) -> None:
        self.seen[f"{where} {len(self.seen)}"] = data.encode() if isinstance(data, str) else data

    def explained(self, where: str, frame: DataFrame) -> None:
        for mode in ("extended", "formatted", "codegen", "cost"):
            with contextlib.redirect_stdout(io.StringIO()) as text:
                frame.explain(mode=mode)
            self.add(f"{where}: explain {mode}", text.getvalue())
        self.add(f"{where}: schema", repr(frame) + frame.schema.json())

    def _files(self) -> list[Path]:
        return [*self._cluster.logs(), *(path for path in self._cluster.events.rglob("*") if path.is_file())]

    def add_files(self) -> None:
        for path in self._files():
            with path.open("rb") as file:
                file.seek(self._before.get(path, 0))
                self.add(f"file {path.parent.name}/{path.name}", file.read())

    def where(self, text: str) -> list[str]:
        return [where for where, data in self.seen.items() if _holds(data, text)]

    def kinds(self, text: str) -> set[str]:
        """First words of places."""
        return {where.split()[0].rstrip(":") for where in self.where(text)}


@pytest.fixture
def shown(cluster: Cluster, spark: SparkSession) -> Shown:
    return Shown(cluster)


@pytest.fixture
def pickles(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the driver pickles for executors, from now on."""
    real, made = CloudPickleSerializer.dumps, list[bytes]()

    def dumps(self: CloudPickleSerializer, obj: object) -> bytes:
        data: bytes = real(self, obj)  # type: ignore[no-untyped-call]
        made.append(data)
        return data

    monkeypatch.setattr(CloudPickleSerializer, "dumps", dumps)
    return made


def _lake(store: LakeStore) -> str:
    for number in range(_FILES):
        ids = range(number * _ROWS, (number + 1) * _ROWS)
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"x{n}" for n in ids]})
        store.put_table(f"t/{number}.parquet", table, row_group_size=500)
    return f"{store.url}/t/"


def _options(store: LakeStore, **more: str) -> dict[str, str]:
    return {"storageOptions": json.dumps(store.settings["storage_options"]), "credentialsProvider": PROVIDER, **more}


def _reads(spark: SparkSession, lake: str, store: LakeStore) -> Iterator[tuple[str, DataFrame]]:
    settings = store.settings
    yield "scan", asyncpq.spark.scan(spark, lake, where="id < 4000", index=False, reader="asyncpq", **settings)
    yield "source", spark.read.format("asyncpq").options(**_options(store)).load(lake).filter("id < 4000")
    asked = spark.createDataFrame([(5,), (_ROWS + 1,)], "id bigint").coalesce(1)
    yield "lookup_join", asyncpq.spark.lookup_join(asked, lake, on="id", columns=["text"], **settings)


def _stream(spark: SparkSession, lake: str, store: LakeStore, folder: Path, shown: Shown) -> None:
    stream = spark.readStream.format("asyncpq").options(**_options(store)).schema("id bigint").load(lake)
    assert stream.isStreaming
    query = (
        stream.writeStream.format("memory")
        .queryName("canary_stream")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(90)
    assert spark.table("canary_stream").count() == _ROWS * _FILES
    shown.add("stream: progress", json.dumps([json.loads(one.json) for one in query.recentProgress]))
    for path in sorted((folder / "checkpoint").rglob("*")):
        if path.is_file():
            shown.add(f"stream: checkpoint {path.name}", path.read_bytes())


def _errors(spark: SparkSession, store: LakeStore, shown: Shown) -> None:
    """What is said of lakes that are not there."""
    missing = f"{store.url}/nothing/"
    wrong: list[tuple[str, Any]] = [
        ("no lake", lambda: asyncpq.spark.scan(spark, missing, **store.settings)),
        ("no source", lambda: spark.read.format("asyncpq").options(**_options(store)).load(missing).count()),
        ("no index", lambda: asyncpq.spark.verify_index(spark, missing, **store.settings)),
    ]
    for name, work in wrong:
        with pytest.raises(Exception) as caught:  # whatever it is, it is looked at
            work()
        shown.add(f"error of {name}", "".join(traceback.format_exception(caught.value)))


def _pages(spark: SparkSession, first_query: int) -> Iterator[tuple[str, bytes]]:
    """The UI as a browser sees it, of the queries since then."""
    root = str(spark.sparkContext.uiWebUrl)
    rest = f"{root}/api/v1/applications/{spark.sparkContext.applicationId}"
    queries = json.loads(_get(f"{rest}/sql?details=false&length=100000"))
    numbers = [query["id"] for query in queries if query["id"] >= first_query]
    assert numbers
    pages = ["environment/", "SQL/", "jobs/", "stages/", "executors/", "storage/", "StreamingQuery/"]
    for page in [*pages, *[f"SQL/execution/?id={number}" for number in numbers]]:
        yield f"ui {page}", _get(f"{root}/{page}")
    for page in ["environment", *[f"sql/{number}?details=true&planDescription=true" for number in numbers]]:
        yield f"ui api/{page}", _get(f"{rest}/{page}")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # our own
        data: bytes = answer.read()
        return data


def _last_query(spark: SparkSession) -> int:
    rest = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    queries = json.loads(_get(f"{rest}/sql?details=false&length=100000"))
    return max((query["id"] for query in queries), default=-1)


def _source_pickles(lake: str, store: LakeStore) -> Iterable[tuple[str, object]]:
    """What PySpark sends between the source's processes, made as it makes them."""
    source = AsyncpqDataSource(_options(store, path=lake))
    reader = source.reader(_IDS)
    stream = AsyncpqDataSource(_options(store, path=lake, maxFilesPerTrigger="2")).streamReader(_IDS)
    start = stream.initialOffset()
    writer = AsyncpqDataSource(_options(store, path=f"{store.url}/elsewhere/")).writer(_IDS, False)
    message = writer.write(iter([pa.record_batch({"id": pa.array([1, 2], pa.int64())})]))
    return [
        ("source", source),
        ("reader", reader),
        ("partitions", reader.partitions()),
        ("stream", (stream, start)),
        ("writer", writer),
        ("message", message),
    ]


@pytest.mark.slow
def test_the_secret_is_used_and_nowhere_to_be_seen(
    spark: SparkSession,
    lake_store: LakeStore,
    shown: Shown,
    pickles: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncpq.spark.register(spark)
    lake, settings, first_query = _lake(lake_store), lake_store.settings, _last_query(spark) + 1
    work_folder = f"{lake_store.url}/work"

    # executors write segments, also of so little
    monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 0)
    monkeypatch.setattr(index_steps, "_LEAST_RANGE_BYTES", 40_000)
    built = asyncpq.spark.build_index(spark, lake, [Bounds("id"), Keys("id"), Footers()], **settings)
    shown.add("built", repr(built))
    for name, frame in _reads(spark, lake, lake_store):
        shown.explained(name, frame)
        assert frame.count() == (2 if name == "lookup_join" else 4000), name
    shown.add("scan: plan", str(asyncpq.spark.explain_scan(spark, lake, where="id = 5", **settings)))
    asked = spark.createDataFrame([(5,)], "id bigint")
    shown.add("lookup_join: plan", str(asyncpq.spark.explain_lookup_join(asked, lake, on="id", **settings)))
    _stream(spark, lake, lake_store, tmp_path, shown)
    target = f"{lake_store.url}/written/"
    spark.range(10).write.format("asyncpq").mode("append").options(**_options(lake_store)).save(target)
    done = asyncpq.spark.optimize(spark, lake, f"{lake_store.url}/optimized/", "id", partitions=2, **settings)
    shown.add("optimized", repr(done))
    with monkeypatch.context() as patched:
        patched.setattr(packing, "MOST_SENT_BYTES", 100)
        large = asyncpq.spark.scan(spark, lake, index=False, work_folder=work_folder, **settings)
        shown.explained("scan", large)
        assert large.count() == _ROWS * _FILES
    for name, made in _source_pickles(lake, lake_store):
        shown.add(f"pickle of {name}", cloudpickle.dumps(made))  # type: ignore[no-untyped-call]
    _errors(spark, lake_store, shown)

    objects = lake_store.keys()
    assert any(key.startswith("work/plans/") for key in objects)
    for key in objects:
        shown.add(f"object {key}", lake_store.get(key))
    for data in pickles:
        shown.add("pickle sent", data)
    for name, data in _pages(spark, first_query):
        shown.add(name, data)
    time.sleep(0.5)  # logs are written by other processes
    shown.add_files()

    assert shown.where(CANARY) == []
    assert shown.where(credentials.localstack()["secret"]) == []
    # who looks for what may be seen finds it in all of these places, so that the secret would have been found
    assert "pickle" in shown.kinds(PROVIDER)
    assert "error" in shown.kinds(lake_store.bucket)
    assert "ui" in shown.kinds("asyncpq-tests")
    started = shown.where("SparkListenerSQLExecutionStart")
    assert any(where.startswith("file events/") for where in started)
    assert any(re.match(r"ui SQL/execution", where) for where in shown.seen)


def test_the_search_finds_what_is_hidden() -> None:
    for skipped in range(4):
        assert _holds(base64.b64encode(b"a" * skipped + CANARY.encode() + b"zz"), CANARY)
    assert _holds(CANARY.encode().hex().encode(), CANARY)
    assert not _holds(CANARY[:-1].encode(), CANARY)


def test_a_secret_that_is_given_is_refused_without_showing_it(spark: SparkSession, lake_store: LakeStore) -> None:
    from pyspark.errors import PySparkException

    from asyncpq.errors import InvalidOptionError

    url = f"{lake_store.url}/t/"
    given: list[dict[str, Any]] = [
        {"storage_options": {"secret": CANARY}},
        {"storage_options": {"client_kwargs": {"aws_secret_access_key": CANARY}}},
        {"work_folder": f"s3://user:{CANARY}@bucket/work"},
    ]
    verbs: list[Any] = [
        lambda **more: asyncpq.spark.scan(spark, url, **more),
        lambda **more: asyncpq.spark.lookup_join(spark.range(1), url, on="id", **more),
        lambda **more: asyncpq.spark.build_index(spark, url, [Bounds()], **more),
        lambda **more: asyncpq.spark.optimize(spark, url, f"{lake_store.url}/u/", "id", **more),
        lambda **more: asyncpq.spark.vacuum(spark, url, **more),
    ]
    for verb in verbs:
        for more in given:
            with pytest.raises(InvalidOptionError) as caught:
                verb(**more)
            text = "".join(traceback.format_exception(caught.value))
            assert "module:function" in text or "work_folder: must be a url without user" in text
            assert CANARY not in text
    signed, index = f"{url}?X-Amz-Signature={CANARY}", f"postgresql+psycopg://reader:{CANARY}@db/index"
    asked = spark.range(1)
    in_urls: list[Any] = [
        lambda: asyncpq.spark.scan(spark, [url, signed]),
        lambda: asyncpq.spark.lookup_join(asked, signed, on="id"),
        lambda: asyncpq.spark.lookup_join(asked, [url, signed], on="id"),
        lambda: asyncpq.spark.lookup_join(asked, url, on="id", index=index),
        lambda: asyncpq.spark.explain_lookup_join(asked, url, on="id", index=index),
        lambda: asyncpq.spark.build_index(spark, url, [Bounds()], at=index),
        lambda: asyncpq.spark.optimize(spark, signed, f"{lake_store.url}/u/", "id"),
        lambda: asyncpq.spark.optimize(spark, url, f"{lake_store.url}/u/?sig={CANARY}", "id"),
    ]
    for verb in in_urls:
        with pytest.raises(InvalidOptionError, match="looks like a credential") as caught:
            verb()
        assert CANARY not in "".join(traceback.format_exception(caught.value))
    asyncpq.spark.register(spark)
    given_options: list[tuple[dict[str, str], str | list[str]]] = [
        ({"secret": CANARY}, url),
        ({"X-Api-Key": CANARY}, url),
        ({"index": index}, url),
        ({}, [url, signed]),
    ]
    for options, urls in given_options:
        with pytest.raises(PySparkException, match="credentialsProvider") as failed:
            spark.read.format("asyncpq").options(**options).load(urls).count()
        assert CANARY not in str(failed.value)
