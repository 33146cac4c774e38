"""Delta tables read through a session: equal to deltalake's reader, and to live rows where it does not read them.

Tables are histories that are drawn: appends, deletes, columns added, partitions, checkpoints, deletion vectors; random
predicates on each. Snapshots by themselves are in test_delta_catalog.py and its neighbours.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import View, col
from asyncpq.errors import CorruptFileError, InvalidOptionError, ObjectNotFoundError, UnsupportedFeatureError
from asyncpq.expressions import Expression
from asyncpq.testing import ObjectServer
from tests.delta_tables import DeltaWriter, column, ids, inline_vector, metadata, protocol, remove
from tests.example_counts import examples
from tests.predicates import COLUMNS, array, expressions, model, oracle

KINDS = {
    "i8": "int8",
    "i": "int32",
    "l": "int64",
    "f": "float32",
    "x": "float64",
    "flag": "bool",
    "s": "string",
    "bytes": "binary",
    "d": "date32",
    "t": "timestamp_us",
    "u": "timestamp_utc",
    "c": "decimal",
}
PARTITIONS = {"p": "string", "q": "int32", "r": "date32"}


def predicates(kinds: Mapping[str, str]) -> st.SearchStrategy[list[Expression]]:
    return st.lists(expressions({"id": "int64", **kinds}, foreign=False), min_size=1, max_size=4)


def rows(data: st.DataObject, kinds: Mapping[str, str], start: int, *, max_rows: int = 6) -> pa.Table:
    """A few rows of drawn values, numbered."""
    count = data.draw(st.integers(1, max_rows))
    drawn = {
        name: data.draw(st.lists(st.none() | COLUMNS[kind][1], min_size=count, max_size=count))
        for name, kind in kinds.items()
    }
    return pa.table({"id": range(start, start + count), **{name: array(kinds[name], drawn[name]) for name in kinds}})


def sorted_rows(table: pa.Table) -> list[str]:
    return list(map(repr, table.sort_by("id").to_pylist()))


def filtered(table: pa.Table, where: Expression) -> pa.Table:
    try:
        return table.filter(oracle(where))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return table.filter(pa.array([model(where, row) for row in table.to_pylist()], pa.bool_()))


async def assert_answers(target: Any, whole: pa.Table, *predicates: Expression, **options: Any) -> None:
    """A table's rows, all of them and those of each predicate, and how many they are."""
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(target, **options)
        assert dataset.view is View.TABLE
        assert dataset.schema.equals(whole.schema)
        assert sorted_rows(await dataset.read()) == sorted_rows(whole)
        assert await dataset.count() == whole.num_rows
        for where in predicates:
            expected = filtered(whole, where)
            assert sorted_rows(await dataset.read(where=where)) == sorted_rows(expected), str(where)
            assert await dataset.count(where) == expected.num_rows, str(where)


@pytest.mark.heavy
@settings(max_examples=examples(6, thorough=60))
@given(data=st.data(), predicates=predicates(KINDS | PARTITIONS))
async def test_histories_equal_deltalake(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, predicates: list[Expression]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    by = data.draw(st.lists(st.sampled_from(sorted(PARTITIONS)), unique=True))
    late = data.draw(st.sets(st.sampled_from(sorted(KINDS))))  # columns that the last commit adds
    early = {name: kind for name, kind in (KINDS | PARTITIONS).items() if name not in late}
    steps = ["append", *data.draw(st.lists(st.sampled_from(["append", "delete", "checkpoint"]), max_size=4)), "all"]
    start = 0
    for step, action in enumerate(steps):
        if action in ("append", "all"):
            more = rows(data, early if action == "append" else KINDS | PARTITIONS, start)
            start += more.num_rows
            mode: Any = "merge" if step else None
            write_deltalake(folder, more, mode="append", partition_by=by, schema_mode=mode)
        elif action == "delete":
            DeltaTable(folder).delete(f"id % 3 = {data.draw(st.integers(0, 2))}")
        else:
            DeltaTable(folder).create_checkpoint()
    table = DeltaTable(folder)
    whole = table.to_pyarrow_table().cast(pa.schema(table.schema().to_arrow()))
    await assert_answers(table, whole, *predicates)


def _delta_type(kind: str) -> str:
    return {
        "int8": "byte",
        "int32": "integer",
        "int64": "long",
        "float32": "float",
        "float64": "double",
        "bool": "boolean",
        "string": "string",
        "binary": "binary",
        "date32": "date",
        "timestamp_us": "timestamp_ntz",
        "timestamp_utc": "timestamp",
        "decimal": f"decimal({COLUMNS['decimal'][0].precision},{COLUMNS['decimal'][0].scale})",
    }[kind]


@pytest.mark.heavy
@settings(max_examples=examples(8, thorough=80))
@given(data=st.data(), predicates=predicates(KINDS), mode=st.sampled_from(["none", "name"]))
async def test_vectors_and_mapped_columns(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, predicates: list[Expression], mode: str
) -> None:
    """Against the live rows; the statistics are those that deltalake finds for the very files."""
    writer = DeltaWriter(tmp_path_factory.mktemp("vectors") / "t")
    physical = {name: name if mode == "none" else f"phys-{name}" for name in ("id", *KINDS)}
    columns = [
        column(name, _delta_type(kind), physical=None if mode == "none" else physical[name], id_=number)
        for number, (name, kind) in enumerate({"id": "int64", **KINDS}.items())
    ]
    features = ("deletionVectors", "columnMapping", "timestampNtz")
    writer.commit(protocol(*features), metadata(*columns, configuration={"delta.columnMapping.mode": mode}))
    live, start = [], 0
    for number in range(data.draw(st.integers(1, 3))):
        more = rows(data, KINDS, start)
        start += more.num_rows
        deleted = data.draw(st.lists(st.integers(0, more.num_rows - 1), unique=True))
        stored = more.rename_columns([physical[name] for name in more.column_names])
        vector = inline_vector(deleted) if data.draw(st.booleans()) else writer.vector_file(deleted)[0]
        stats = _stats(writer.folder / f"stats{number}", stored)
        writer.commit(writer.file(f"{number}.parquet", stored, stats=stats, vector=vector if deleted else None))
        live.append(more.filter(pa.array([row not in deleted for row in range(more.num_rows)])))
    await assert_answers(str(writer.folder), pa.concat_tables(live), *predicates, format="delta")


def _stats(folder: Path, table: pa.Table) -> dict[str, Any]:
    write_deltalake(folder, table)
    lines = (folder / f"_delta_log/{0:020}.json").read_text().splitlines()
    (action,) = (json.loads(line)["add"] for line in lines if "add" in json.loads(line))
    found: dict[str, Any] = json.loads(action["stats"])
    return found


# -- traps --------------------------------------------------------------------------------------


async def test_a_deletion_vector(tmp_path: Path) -> None:
    """Its rows come by no verb, and are in no count."""
    writer = DeltaWriter(tmp_path / "t")
    action = writer.file("f.parquet", ids(*range(10)), vector=inline_vector([0, 3, 9]))
    writer.commit(protocol("deletionVectors"), metadata(column("id", "long")), action)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        live = [1, 2, 4, 5, 6, 7, 8]
        assert (await dataset.read())["id"].to_pylist() == live
        assert (await dataset.read(where=col("id") >= 8))["id"].to_pylist() == [8]
        assert (await dataset.lookup({"id": [0, 1, 9]}))["id"].to_pylist() == [1]
        assert (await dataset.count(), await dataset.count(col("id") < 5)) == (7, 3)
        assert (await dataset.read(limit=2))["id"].to_pylist() == [1, 2]


async def test_a_timestamp_cut_to_milliseconds(tmp_path: Path) -> None:
    """A row at .123456 is found, though the log says that the latest is at .123."""
    moment = dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC)
    table = pa.table({"id": [1], "at": pa.array([moment], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "t", table)
    assert "00:00:00.123Z" in (tmp_path / f"t/_delta_log/{0:020}.json").read_text()
    for where in (col("at") == moment, col("at") >= moment, col("at") > moment - dt.timedelta(microseconds=1)):
        await assert_answers(DeltaTable(tmp_path / "t"), table, where)


async def test_int96(tmp_path: Path) -> None:
    """Timestamps as Spark writes them unless told otherwise: Parquet keeps no zone with them, the table does."""
    writer = DeltaWriter(tmp_path / "t")
    times = [dt.datetime(2024, 1, 1, 0, 0, 0, 123456), dt.datetime(1960, 1, 1), None]
    table = pa.table({"id": [1, 2, 3], "at": pa.array(times, pa.timestamp("us", "UTC"))})
    action = writer.file("f.parquet", table)
    pq.write_table(table, writer.folder / "f.parquet", use_deprecated_int96_timestamps=True)
    action["add"]["size"] = len((writer.folder / "f.parquet").read_bytes())
    writer.commit(protocol(), metadata(column("id", "long"), column("at", "timestamp")), action)
    predicates = [col("at") == table["at"][0].as_py(), col("at").is_null()]
    await assert_answers(str(writer.folder), table, *predicates, format="delta")


async def test_an_encoded_path(tmp_path: Path) -> None:
    names = ["a b", "50%", "x=y", "ü/é", "100%25", "a+b", None]
    write_deltalake(
        tmp_path / "a table ü", pa.table({"id": range(len(names)), "p": pa.array(names)}), partition_by=["p"]
    )
    table = pa.table({"id": range(len(names)), "p": pa.array(names)})
    predicates = [col("p") == name for name in names if name] + [col("p").is_null()]
    await assert_answers(str(tmp_path / "a table ü"), table, *predicates, format="delta")


async def test_a_nan_column(tmp_path: Path) -> None:
    nan = float("nan")
    table = pa.table({"id": [1, 2, 3], "x": [1.0, nan, 2.0], "y": [nan] * 3})
    write_deltalake(tmp_path / "t", table)
    predicates = [col(name) != 5.0 for name in "xy"] + [~(col(name) < 5.0) for name in "xy"]
    predicates += [col(name).is_in([nan]) for name in "xy"]
    await assert_answers(DeltaTable(tmp_path / "t"), table, *predicates)


async def test_a_checkpoint_and_later_commits_with_a_removed_file(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for number in range(4):
        write_deltalake(folder, pa.table({"id": [number]}), mode="append")
    DeltaTable(folder).create_checkpoint()
    for version in range(3):
        (folder / f"_delta_log/{version:020}.json").unlink()
    DeltaTable(folder).delete("id = 1")
    write_deltalake(folder, pa.table({"id": [9]}), mode="append")
    await assert_answers(str(folder), pa.table({"id": [0, 2, 3, 9]}), col("id") >= 1, format="delta")
    await assert_answers(str(folder), pa.table({"id": [0, 1, 2, 3]}), col("id") >= 1, format="delta", version=3)


async def test_an_unknown_feature_is_refused(tmp_path: Path) -> None:
    writer = DeltaWriter(tmp_path / "t")
    writer.commit(protocol("catalogManaged"), metadata(column("id", "long")), writer.file("f.parquet", ids(1)))
    async with asyncpq.Session() as session:
        with pytest.raises(UnsupportedFeatureError, match="catalogManaged") as caught:
            await session.open_dataset(str(writer.folder), format="delta")
        assert str(writer.folder) in str(caught.value)
        with pytest.raises(InvalidOptionError, match="Delta"):  # not as plain files, either
            await session.open_dataset(str(writer.folder))


# -- in an object store -------------------------------------------------------------------------


def _upload(folder: Path, server: ObjectServer, key: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.put(f"{key}/{path.relative_to(folder)}", path.read_bytes())


async def test_in_s3(server: ObjectServer, tmp_path: Path) -> None:
    """Keys with spaces, % and more, and a DeltaTable that was opened there."""
    names = ["a b", "50%", "x=y", "ü/é", "a+b", "?q#f"]
    table = pa.table({"id": range(len(names)), "p": pa.array(names)})
    write_deltalake(tmp_path, table.slice(0, 3), partition_by=["p"])
    write_deltalake(tmp_path, table.slice(3), mode="append")
    DeltaTable(tmp_path).create_checkpoint()
    _upload(tmp_path, server, "bucket/my tables/t%20é")
    url = "s3://bucket/my tables/t%20é/"
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(url, format="delta")
        assert sorted_rows(await dataset.read()) == sorted_rows(table)
        for name in names:
            assert (await dataset.lookup({"p": [name]})).num_rows == 1
        old = await session.open_dataset(url, format="delta", version=0)
        assert await old.count() == 3
        options = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": str(server.storage_options["key"]),
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        _upload(tmp_path, server, "bucket/other é")  # deltalake takes %20 for a space
        opened = await asyncio.to_thread(DeltaTable, "s3://bucket/other é", 0, options)
        assert await (await session.open_dataset(opened)).count() == 3
        with pytest.raises(ObjectNotFoundError, match="no Delta table"):
            await session.open_dataset("s3://bucket/my tables", format="delta")


async def test_requests(server: ObjectServer, tmp_path: Path) -> None:
    """Opening a table costs one LIST, its checkpoint's tail, and one GET for each commit since."""
    for number in range(4):
        write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
        if number == 1:
            DeltaTable(tmp_path).create_checkpoint()
    _upload(tmp_path, server, "bucket/t")
    async with asyncpq.Session(server.storage_options) as session:
        server.log.clear()
        await session.open_dataset("s3://bucket/t", format="delta")
        assert len(server.log) == 4


# -- a version, pinned --------------------------------------------------------------------------


async def test_a_dataset_stays_at_its_version(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"id": [1]}))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder), format="delta")
        write_deltalake(folder, pa.table({"id": [2]}), mode="append")
        assert (await dataset.read())["id"].to_pylist() == [1]
        assert f"Delta table {folder}, version 0" in (await dataset.plan()).explain()
        again = await session.open_dataset(str(folder), format="delta")
        assert sorted((await again.read())["id"].to_pylist()) == [1, 2]


async def test_files_that_bounds_rule_out_are_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for number in range(4):
        write_deltalake(folder, pa.table({"id": [number], "p": ["ab"[number % 2]]}), mode="append", partition_by=["p"])
    for path in folder.glob("p=b/*"):
        path.write_bytes(b"not Parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(DeltaTable(folder))
        assert len(await dataset.files(col("id") == 2)) == 1
        assert sorted((await dataset.read(where=col("p") == "a"))["id"].to_pylist()) == [0, 2]
        assert (await dataset.read(where=col("id") > 5)).num_rows == 0


async def test_a_vector_that_cannot_be_trusted_fails_the_read(tmp_path: Path) -> None:
    writer = DeltaWriter(tmp_path / "t")
    (vector,) = writer.vector_file([1])
    plain = writer.file("f.parquet", ids(1, 2, 3))
    deleted = {"add": plain["add"] | {"deletionVector": vector}}
    writer.commit(protocol("deletionVectors"), metadata(column("id", "long")), deleted)
    (path,) = writer.folder.glob("deletion_vector_*")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        with pytest.raises(CorruptFileError, match="checksum"):
            await dataset.read()
        with pytest.raises(CorruptFileError, match="checksum"):
            await dataset.count()
        writer.commit(remove(deleted), plain)
        again = await session.open_dataset(str(writer.folder), format="delta")
        assert await again.count() == 3
