"""Credentials that expire, files that change, and files that are none: a job ends right, or names the file."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
import pytest

from tests.parquet_bytes import parquet_bytes

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.errors import PySparkException

import asyncpq.blocking
import asyncpq.spark
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import AsyncpqError, CredentialsError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark import index_builds
from asyncpq.testing import ObjectServer
from tests.spark.served_keys import ServedKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.lake_store import LakeStore

pytestmark = pytest.mark.faults

_FILES: Final = 6
_ROWS: Final = 50
_KINDS: Final = (Bounds("id"), Keys("id"), Footers())
_ERRORS: Final = (AsyncpqError, PySparkException)
_View: TypeAlias = Literal["listed", "snapshot"]


def _table(number: int, text: str = "x") -> pa.Table:
    ids = range(number * _ROWS, (number + 1) * _ROWS)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text}{n}" for n in ids]})


def _file(number: int, text: str = "x") -> bytes:
    return parquet_bytes(_table(number, text))


def _options(settings: dict[str, Any]) -> dict[str, str]:
    """Settings as the source takes them."""
    return {
        "storageOptions": json.dumps(settings["storage_options"]),
        "credentialsProvider": settings["credentials_provider"],
    }


def _load(spark: SparkSession, lake: str, settings: dict[str, Any], **more: str) -> DataFrame:
    return spark.read.format("asyncpq").options(**_options(settings), **more).load(lake)


def _save(frame: DataFrame, target: str, settings: dict[str, Any], mode: str = "append") -> None:
    frame.write.format("asyncpq").mode(mode).options(**_options(settings)).save(target)


def _ids(target: str, storage: Any, **how: Any) -> list[int]:
    """What other readers see now."""
    with asyncpq.blocking.Session(storage_options=storage) as session:
        found: list[int] = session.open_dataset(target, **how).read(columns=["id"]).column("id").to_pylist()
        return sorted(found)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    asyncpq.spark.register(spark)


# -- credentials that expire ----------------------------------------------------------------------


@pytest.fixture
def keys() -> Iterator[ServedKeys]:
    """A lake of a few files in ``s3://lake/t/``, on a server that takes all keys for now."""
    with ObjectServer.in_thread() as server:
        server.buckets.update(("lake", "target"))
        for number in range(_FILES):
            server.put(f"lake/t/{number}.parquet", _file(number))
        yield ServedKeys(server)
        sessions.close_workers()


_LAKE: Final = "s3://lake/t/"
_ALL: Final = list(range(_FILES * _ROWS))
_SOME: Final = [3, 77, 290]


def _scanned(spark: SparkSession, keys: ServedKeys) -> None:
    frame = asyncpq.spark.scan(spark, _LAKE, index=False, reader="asyncpq", split_bytes=65_536, **keys.settings)
    keys.expire()  # also those that planned it
    assert sorted(row.id for row in frame.collect()) == _ALL


def _loaded(spark: SparkSession, keys: ServedKeys) -> None:
    frame = _load(spark, _LAKE, keys.settings, index="false", splitBytes="65536")
    keys.expire()
    assert sorted(row.id for row in frame.collect()) == _ALL


def _joined(spark: SparkSession, keys: ServedKeys) -> None:
    asked = spark.createDataFrame([(one,) for one in _SOME], "id bigint").repartition(2)
    frame = asyncpq.spark.lookup_join(asked, _LAKE, on="id", **keys.settings)
    keys.expire()
    assert sorted(row.id for row in frame.collect()) == _SOME


def _built(spark: SparkSession, keys: ServedKeys) -> None:
    keys.expire()
    at = "s3://target/index/"
    assert asyncpq.spark.build_index(spark, _LAKE, _KINDS, at=at, **keys.settings).problems == ()
    keys.good()
    assert _ids(_LAKE, keys.server.storage_options, index=at, view="snapshot") == _ALL


def _optimized(spark: SparkSession, keys: ServedKeys) -> None:
    keys.expire()
    done = asyncpq.spark.optimize(spark, _LAKE, "s3://target/optimized/", "id", partitions=2, **keys.settings)
    assert done.rows == len(_ALL)
    keys.good()
    assert _ids("s3://target/optimized/", keys.server.storage_options) == _ALL


_VERBS: Final = (_scanned, _loaded, _joined, _built, _optimized)


@pytest.mark.parametrize("verb", _VERBS)
def test_credentials_that_expire_are_asked_for_again(
    spark: SparkSession, keys: ServedKeys, verb: Callable[[SparkSession, ServedKeys], None]
) -> None:
    keys.server.put("lake/t/_hidden", b"")
    if verb is _joined:
        with asyncpq.blocking.Session(storage_options=keys.server.storage_options) as session:
            session.build_index(_LAKE, list(_KINDS))
    refused = keys.refused
    verb(spark, keys)
    assert keys.seen
    assert refused is keys.refused


def _fails_by_name(work: Callable[[], Any], name: str, kind: type[Exception] | tuple[type[Exception], ...]) -> str:
    with pytest.raises(kind) as caught:
        work()
    assert name in str(caught.value), str(caught.value)[:3000]
    return str(caught.value)


def test_credentials_that_stay_bad_end_a_scan(spark: SparkSession, keys: ServedKeys) -> None:
    frame = asyncpq.spark.scan(spark, _LAKE + "3.parquet", index=False, reader="asyncpq", **keys.settings)
    keys.bad = True
    said = _fails_by_name(frame.collect, "s3://lake/t/3.parquet", PySparkException)
    assert "CredentialsError" in said
    _fails_by_name(
        lambda: asyncpq.spark.scan(spark, _LAKE + "4.parquet", **keys.settings), "s3://lake/t/", CredentialsError
    )


# -- nothing half committed -----------------------------------------------------------------------


def _writes(spark: SparkSession, keys: ServedKeys) -> Iterator[tuple[str, Callable[[], Any], list[int], list[int]]]:
    """What is read, what is done, and which ids are there before and after it."""
    first, more = list(range(20)), spark.range(100, 120, 1, 2)
    for mode in ("append", "overwrite"):
        target = f"s3://target/{mode}/"
        _save(spark.range(0, 20, 1, 1), target, keys.settings)
        after = [*(first if mode == "append" else ()), *range(100, 120)]
        yield target, lambda: _save(more, target, keys.settings, mode), first, after  # noqa: B023
    target = "s3://target/optimized/"
    settings = {**keys.settings, "partitions": 2, "publish": "index"}
    yield target, lambda: asyncpq.spark.optimize(spark, _LAKE, target, "id", **settings), [], _ALL


def _seen(target: str, keys: ServedKeys) -> list[int]:
    try:
        return _ids(target, keys.server.storage_options, index=f"{target}_asyncpq", view="snapshot")
    except AsyncpqError:
        return []  # there is no lake


@pytest.mark.parametrize("requests", [0, *[pytest.param(count, marks=pytest.mark.slow) for count in range(1, 7)]])
def test_a_commit_that_fails_is_not_seen(spark: SparkSession, keys: ServedKeys, requests: int) -> None:
    failed = 0
    for target, work, before, after in _writes(spark, keys):
        keys.end_after(requests, "/_asyncpq/")
        said = _error_of(work)
        seen = _seen(target, keys)
        if not said:
            assert seen == after
        else:
            failed += 1
            assert "s3://target/" in said
            assert seen in ((before, after) if requests else (before,))  # the last answer may be the commit's
        keys.good()
    assert failed or requests > 2


def _error_of(work: Callable[[], Any]) -> str:
    """What it fails with; "" if it does not."""
    try:
        work()
    except _ERRORS as error:
        return str(error)
    return ""


@pytest.mark.parametrize("requests", [1, *[pytest.param(count, marks=pytest.mark.slow) for count in (0, 2, 3, 5)]])
def test_a_build_that_fails_is_no_index(spark: SparkSession, keys: ServedKeys, requests: int) -> None:
    keys.end_after(requests, "/_asyncpq/")
    said = _error_of(lambda: asyncpq.spark.build_index(spark, _LAKE, _KINDS, **keys.settings))
    assert "s3://lake/t/_asyncpq" in said or requests > 3
    storage = keys.server.storage_options
    assert _ids(_LAKE, storage) == _ALL
    assert _ids(_LAKE, storage, index=False) == _ALL
    keys.good()
    assert asyncpq.spark.build_index(spark, _LAKE, _KINDS, **keys.settings).files == _FILES
    with asyncpq.blocking.Session(storage_options=storage) as session:
        dataset = session.open_dataset(_LAKE, index=f"{_LAKE}_asyncpq", view="snapshot")
        assert sorted(dataset.lookup({"id": _SOME}).column("id").to_pylist()) == _SOME


# -- files that change ----------------------------------------------------------------------------


def _lake_in(store: LakeStore, files: int = _FILES) -> str:
    for number in range(files):
        store.put_table(f"t/{number}.parquet", _table(number))
    return f"{store.url}/t/"


def _change(store: LakeStore, key: str, change: str, number: int = 3) -> None:
    if change == "deleted":
        store.delete(key)
    else:
        store.put(key, _file(number, "other"))


def _scanned_plan(spark: SparkSession, lake: str, settings: dict[str, Any], view: _View) -> DataFrame:
    return asyncpq.spark.scan(spark, lake, view=view, reader="asyncpq", **settings)


def _loaded_plan(spark: SparkSession, lake: str, settings: dict[str, Any], view: _View) -> DataFrame:
    frame = _load(spark, lake, settings, view=view)
    with contextlib.redirect_stdout(io.StringIO()):
        frame.explain()
    return frame


def _joined_plan(spark: SparkSession, lake: str, settings: dict[str, Any], view: _View) -> DataFrame:
    asked = spark.createDataFrame([(3 * _ROWS + 1,), (5,)], "id bigint").coalesce(1)
    return asyncpq.spark.lookup_join(asked, lake, on="id", view=view, strategy="lookups", **settings)


@pytest.mark.parametrize("change", ["replaced", pytest.param("deleted", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("plan", "view"),
    [
        (_scanned_plan, "listed"),
        (_scanned_plan, "snapshot"),
        (_loaded_plan, "snapshot"),  # Spark asks the source for its splits when it runs: "listed" lists only then
        (_joined_plan, "listed"),
        (_joined_plan, "snapshot"),
    ],
)
def test_a_file_that_changes_after_the_plan_ends_the_query(
    spark: SparkSession,
    lake_store: LakeStore,
    change: str,
    plan: Callable[[SparkSession, str, dict[str, Any], _View], DataFrame],
    view: _View,
) -> None:
    lake, settings = _lake_in(lake_store), lake_store.settings
    asyncpq.spark.build_index(spark, lake, _KINDS, **settings)
    settings = {**settings, "disk_cache": "off"}  # sessions that have read nothing: caches hold the planned versions
    planned = plan(spark, lake, settings, view)
    _change(lake_store, "t/3.parquet", change)
    said = _fails_by_name(planned.collect, f"{lake}3.parquet", PySparkException)
    assert "Plan again" in said
    ids = sorted(row.id for row in asyncpq.spark.scan(spark, lake, view="listed", **settings).collect())
    assert ids == (_ALL if change == "replaced" else [*range(150), *range(200, 300)])


def test_a_loaded_lake_lists_its_files_when_the_query_runs(spark: SparkSession, lake_store: LakeStore) -> None:
    lake, settings = _lake_in(lake_store), lake_store.settings
    asyncpq.spark.build_index(spark, lake, _KINDS, **settings)
    loaded = _loaded_plan(spark, lake, settings, "listed")
    _change(lake_store, "t/3.parquet", "replaced")
    texts = {row.id: row.text for row in loaded.collect()}
    assert sorted(texts) == _ALL
    assert all(text == ("other" if id_ // _ROWS == 3 else "x") + str(id_) for id_, text in texts.items())


def test_a_file_that_changes_during_a_build(
    spark: SparkSession, lake_store: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, real = _lake_in(lake_store), index_builds.SparkSteps._pieces

    def pieces(self: Any, *given: Any) -> pa.Table:
        _change(lake_store, "t/3.parquet", "replaced", 9)
        _change(lake_store, "t/4.parquet", "deleted")
        return real(self, *given)

    monkeypatch.setattr(index_builds.SparkSteps, "_pieces", pieces)
    built = asyncpq.spark.build_index(spark, lake, _KINDS, **lake_store.settings)
    assert (built.files, built.problems) == (5, ())
    wanted = sorted([*range(150), *range(250, 300), *range(450, 500)])
    storage = lake_store.session_options
    assert _ids(lake, storage, index=f"{lake}_asyncpq", view="snapshot") == wanted
    assert asyncpq.spark.verify_index(spark, built.at, sample=100, **lake_store.settings).problems == []


# -- a file that is none --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_corrupt_file_among_thousands(spark: SparkSession, lake_store: LakeStore) -> None:
    files = 2000
    lake, settings = _lake_in(lake_store, files), lake_store.settings
    good, bad = _file(123), f"{lake}123.parquet"
    lake_store.put("t/123.parquet", good[: len(good) // 2])
    others = [one for one in range(files * _ROWS) if one // _ROWS != 123]

    _fails_by_name(lambda: asyncpq.spark.scan(spark, lake, index=False, **settings).collect(), bad, _ERRORS)
    frame = asyncpq.spark.scan(spark, lake, index=False, on_bad_file="skip", columns=["id"], **settings)
    assert sorted(row.id for row in frame.collect()) == others

    built = asyncpq.spark.build_index(spark, lake, _KINDS, **settings)
    assert [(problem.path, problem.error) for problem in built.problems] == [("123.parquet", "NotParquetError")]
