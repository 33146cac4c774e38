"""Logs of Delta tables that are written here: checkpoints of every kind, torn and damaged files, absolute paths."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import CorruptFileError, FormatError, ResourceLimitError
from asyncpq.tables.delta import catalog
from asyncpq.tables.delta.files import DeltaRoot
from asyncpq.tables.delta.log import DeltaListing, DeltaLog, _adds, _checkpoint_actions
from tests.delta_tables import (
    ID,
    DeltaWriter,
    FolderReader,
    add,
    assert_same_as_duckdb,
    column,
    ids,
    inline_vector,
    metadata,
    protocol,
    remove,
    rows_of,
    snapshot_of,
)

CONFIGURATION = pa.map_(pa.string(), pa.string())
ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", CONFIGURATION),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats_parsed", pa.struct([("numRecords", pa.int64()), ("maxValues", pa.struct([("id", pa.int64())]))])),
    ]
)


def _write_adds(path: Path, *actions: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [
        {
            "path": action["add"]["path"],
            "partitionValues": [],
            "size": action["add"]["size"],
            "modificationTime": 0,
            "dataChange": False,
            "stats_parsed": {
                "numRecords": json.loads(action["add"]["stats"])["numRecords"],
                "maxValues": {"id": number},
            },
        }
        for number, action in enumerate(actions)
    ]
    pq.write_table(pa.table({"add": pa.array(rows, ADD)}), path)


def _sidecar(path: str, size: int = 1) -> dict[str, Any]:
    return {"sidecar": {"path": path, "sizeInBytes": size, "modificationTime": 0}}


def _write_checkpoint(writer: DeltaWriter, *actions: dict[str, Any]) -> None:
    """Write a V2 checkpoint of version 0 in JSON."""
    meta: dict[str, Any] = {"checkpointMetadata": {"version": 0}}
    name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (writer.log / name).write_text("".join(json.dumps(line) + "\n" for line in (meta, *actions)))


async def test_a_v2_checkpoint_with_sidecars(writer: DeltaWriter) -> None:
    said, columns = protocol("v2Checkpoint"), metadata(ID)
    files = [writer.file(f"{number}.parquet", ids(number)) for number in range(4)]
    writer.commit(said, columns, *files)
    (writer.log / f"{0:020}.json").unlink()
    _write_adds(writer.log / "_sidecars/one.parquet", *files[:2])
    _write_adds(writer.log / "_sidecars/two.parquet", *files[2:])
    sidecars = [
        _sidecar(name, (writer.log / "_sidecars" / name).stat().st_size) for name in ("one.parquet", "two.parquet")
    ]
    _write_checkpoint(writer, said, columns, *sidecars)
    writer.commit(remove(files[1]), writer.file("4.parquet", ids(4)))
    assert sorted(row["id"] for row in await assert_same_as_duckdb(writer.folder)) == [0, 2, 3, 4]
    files_left = (await snapshot_of(writer.folder)).data_files
    assert [(file.num_rows, file.bounds["id"].max) for file in files_left[:3]] == [(1, 0), (1, 0), (1, 1)]
    (writer.log / "_sidecars/two.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        await snapshot_of(writer.folder)


@pytest.mark.parametrize("again", ["one.parquet", "o%6Ee.parquet", "_delta_log/_sidecars/one.parquet"])
async def test_a_sidecar_that_a_checkpoint_names_twice_is_refused(writer: DeltaWriter, again: str) -> None:
    """A few bytes would stand for any number of reads."""
    said, columns = protocol("v2Checkpoint"), metadata(ID)
    add = writer.file("0.parquet", ids(0))
    writer.commit(said, columns, add)
    _write_adds(writer.log / "_sidecars/one.parquet", add)
    _write_checkpoint(writer, said, columns, _sidecar("one.parquet"), _sidecar(again))
    with pytest.raises(CorruptFileError, match=r"names the file '_sidecars/one\.parquet' twice") as caught:
        await snapshot_of(writer.folder)
    assert caught.value.url is not None
    assert caught.value.url.endswith(".json")


async def test_a_checkpoint_in_parts(writer: DeltaWriter) -> None:
    said, columns = protocol(), metadata(ID)
    files = [writer.file(f"{number}.parquet", ids(number)) for number in range(3)]
    writer.commit(said, columns, *files[:2])
    writer.commit(files[2])
    schema = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    meta = pa.struct(
        [
            ("id", pa.string()),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", CONFIGURATION),
        ]
    )
    heads = {
        "protocol": pa.array([said["protocol"], None], schema),
        "metaData": pa.array([None, columns["metaData"] | {"configuration": []}], meta),
    }
    pq.write_table(pa.table(heads), writer.log / f"{1:020}.checkpoint.{1:010}.{2:010}.parquet")
    (writer.log / f"{0:020}.json").rename(writer.log / "kept")
    with pytest.raises(CorruptFileError, match=r"incomplete: .* missing: 0"):  # a part is missing: no checkpoint
        await snapshot_of(writer.folder)
    _write_adds(writer.log / f"{1:020}.checkpoint.{2:010}.{2:010}.parquet", *files)
    assert (await rows_of(await snapshot_of(writer.folder)))["id"].to_pylist() == [0, 1, 2]


def _objects(actions: list[dict[str, Any]], joint: str, indent: int | None = None) -> str:
    return joint.join(json.dumps(action, indent=indent) for action in actions)


@pytest.mark.parametrize(
    ("content", "by_duckdb"),
    [
        (lambda actions: _objects(actions, "\n", indent=2), True),
        (lambda actions: "\n" + _objects(actions, "\n\n", indent=0) + "\n \n", True),
        (lambda actions: _objects(actions, "\n") + "\n", True),
        (lambda actions: _objects(actions, "\r\n"), True),
        (lambda actions: _objects(actions, " "), True),
        (lambda actions: _objects(actions[:2], "\n") + "\n" + _objects(actions[2:], "\n", indent=4), True),
        (lambda actions: json.dumps({**actions[0], **actions[1], **actions[2]}), True),
        (lambda actions: "\ufeff" + _objects(actions, "\n", indent=1), False),
        (lambda actions: "\ufeff" + _objects(actions, "\n"), False),
    ],
)
async def test_actions_need_not_stand_in_lines(
    writer: DeltaWriter, content: Callable[[list[dict[str, Any]]], str], by_duckdb: bool
) -> None:
    """The protocol wants a line for each; kernels read JSON objects, and tools indent them."""
    fields = metadata(ID, column("protocol", "string"), partition_columns=["protocol"])
    actions = [protocol(), fields, writer.file("f.parquet", ids(1, 2), partition={"protocol": '"protocol"'})]
    (writer.log / f"{0:020}.json").write_text(content(actions))
    expected = [{"id": number, "protocol": '"protocol"'} for number in (1, 2)]
    if by_duckdb:
        assert await assert_same_as_duckdb(writer.folder) == expected
    assert (await rows_of(await snapshot_of(writer.folder))).to_pylist() == expected
    meta = protocol(), metadata(ID), {"checkpointMetadata": {"version": 0}}, *actions[2:]  # as a checkpoint, too
    name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (writer.log / name).write_text(_objects(list(meta), "\n", indent=2))
    assert (await rows_of(await snapshot_of(writer.folder)))["id"].to_pylist() == [1, 2]


async def test_what_says_nothing_of_rows_may_be_anything(writer: DeltaWriter) -> None:
    """Sizes and statistics that are not understood are none; so are partition values of no partition column."""
    added = writer.file("f.parquet", ids(1, 2))
    for more in ({"size": "5"}, {"size": -1}, {"stats": {"numRecords": 7}}, {"stats": "{"}, {"partitionValues": None}):
        writer.commit(protocol(), metadata(ID), {"add": added["add"] | more})
        snapshot = await snapshot_of(writer.folder)
        assert (await rows_of(snapshot))["id"].to_pylist() == [1, 2]
        assert snapshot.data_files[0].num_rows in (None, 2)


async def test_an_empty_commit_has_no_actions(writer: DeltaWriter) -> None:
    """Of a writer that failed: others go on behind it, and Spark, deltalake and DuckDB read the table."""
    writer.commit(protocol(), metadata(ID), writer.file("f.parquet", ids(1)))
    (writer.log / f"{1:020}.json").touch()
    writer.version = 1
    writer.commit(writer.file("g.parquet", ids(2)))
    assert sorted(row["id"] for row in await assert_same_as_duckdb(writer.folder)) == [1, 2]
    async with asyncpq.Session() as session:
        for version, rows in ((1, [1]), (2, [1, 2])):
            dataset = await session.open_dataset(str(writer.folder), format="delta", version=version)
            assert (await dataset.read())["id"].to_pylist() == rows


# -- damage -----


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"add": ', "\x00", '{"protocol": 1}', "null", '{"txn": {}} 7', '{"txn":\n{}}\n}']
)
async def test_a_torn_commit_is_an_error(writer: DeltaWriter, content: str) -> None:
    writer.commit(protocol(), metadata(ID), writer.file("f.parquet", ids(1)))
    writer.commit()
    (writer.log / f"{1:020}.json").write_text(content)
    with pytest.raises(CorruptFileError):
        await snapshot_of(writer.folder)


async def test_a_log_without_protocol_or_metadata(writer: DeltaWriter) -> None:
    writer.commit(protocol())
    with pytest.raises(CorruptFileError, match="no protocol or no metadata"):
        await snapshot_of(writer.folder)


MUTATIONS: list[Callable[[Any], Any]] = [lambda _: None, lambda _: 7, lambda _: "x", lambda _: [], lambda _: {}]


@given(data=st.data())
async def test_any_damage_to_an_action_is_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One value of the log is another one: the rows are those of before, or the error is typed."""
    writer = DeltaWriter(tmp_path_factory.mktemp("damaged") / "t")
    struct = {"type": "struct", "fields": [column("x", {"type": "array", "elementType": "long", "containsNull": True})]}
    actions = [
        protocol("deletionVectors"),
        metadata(ID, column("s", struct), column("p", "string"), partition_columns=["p"]),
        writer.file("f.parquet", ids(1, 2, 3), partition={"p": "x"}, vector=inline_vector([1])),
    ]
    schema = json.loads(actions[1]["metaData"]["schemaString"])
    chosen: Any = data.draw(st.sampled_from([*actions, schema]))
    while True:
        keys = list(chosen) if isinstance(chosen, dict) else list(range(len(chosen)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(chosen[key], (dict, list)) or not chosen[key] or data.draw(st.booleans()):
            break
        chosen = chosen[key]
    if key == "size":
        return  # what it is worth, whoever reads the file finds out
    chosen[key] = data.draw(st.sampled_from(MUTATIONS))(chosen[key])
    said = actions[1]["metaData"]
    if isinstance(said, dict) and isinstance(said.get("schemaString"), str):
        said["schemaString"] = json.dumps(schema)
    writer.commit(*actions)
    try:
        table = await rows_of(await snapshot_of(writer.folder))
    except (FormatError, FileNotFoundError):
        return
    if "id" in table.column_names and table.num_rows:
        assert table["id"].to_pylist() in ([1, 3], [1, 2, 3], [None] * 2, [None] * 3)


# -- paths --------------------------------------------------------------------------------------


# -- numbers in names and files that are bounded by what is there ------------------------------------


@pytest.mark.parametrize("version", [1 << 31, 1 << 60, 10**20 - 1])
async def test_a_commit_of_a_version_far_away_does_not_make_a_range(writer: DeltaWriter, version: int) -> None:
    writer.commit(protocol(), metadata(ID), writer.file("f.parquet", ids(1)))
    (writer.log / f"{version:020}.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="commits that are missing: 1, 2, 3;"):
        await snapshot_of(writer.folder)
    assert (await rows_of(await snapshot_of(writer.folder, 0))).num_rows == 1


@pytest.mark.parametrize(
    "name",
    [
        f"{0:020}.checkpoint.0000000001.9999999999.parquet",
        f"{0:020}.checkpoint.0000000000.0000000000.parquet",
        f"{0:020}.checkpoint.0000000000.0000000001.parquet",
        f"{1 << 60:020}.checkpoint.0000000002.0000000001.parquet",
        f"{0:020}.{1 << 60:020}.compacted.json",
        f"{1 << 60:025}.json",
        "٠" * 19 + "9.json",  # noqa: RUF001 - Arabic digits
    ],
)
async def test_names_that_make_no_checkpoint_or_commit_change_nothing(writer: DeltaWriter, name: str) -> None:
    writer.commit(protocol(), metadata(ID), writer.file("f.parquet", ids(1)))
    (writer.log / name).write_text("{}")
    (writer.log / "_last_checkpoint").write_text('{"version": 9223372036854775808, "size": -1, "parts": 1e999}')
    assert (await rows_of(await snapshot_of(writer.folder))).num_rows == 1


async def test_rows_of_a_checkpoint_without_a_file_take_no_time(writer: DeltaWriter) -> None:
    """A few bytes stand for any number of them: a million is looked at in one call."""
    commit = [protocol(), metadata(ID), writer.file("f.parquet", ids(1))]
    writer.commit(*commit)
    path = writer.log / f"{0:020}.checkpoint.parquet"
    _write_adds(path, commit[2])
    adds = pq.read_table(path)["add"]
    nulls = pa.nulls(1_000_000, adds.type)
    table = pa.table({"add": pa.chunked_array([nulls, *adds.chunks])})
    actions = list(_checkpoint_actions(table, *_adds(table, None)))
    assert [action["add"]["path"] for action in actions] == ["f.parquet"]


def test_statistics_of_a_checkpoint_may_have_more_bytes_than_one_array() -> None:
    """2 GiB, which 33 chunks of one value in memory stand for."""
    chunk = pa.array([{"path": "f.parquet", "stats": "x" * (1 << 26)}])
    adds, _ = _adds(pa.table({"add": pa.chunked_array([chunk] * 33)}), None)
    assert len(adds) == 33


async def test_errors_do_not_repeat_a_huge_action(writer: DeltaWriter) -> None:
    writer.commit(protocol(), metadata(ID), {"add": {"path": "f", "partitionValues": "x" * 100_000}})
    with pytest.raises(CorruptFileError, match="malformed action") as caught:
        await snapshot_of(writer.folder)
    assert len(str(caught.value)) < 5000


class _Commits(FolderReader):
    """Commits of given lengths; ``most`` are the bytes that were read at once."""

    def __init__(self, lengths: list[int], limit: int) -> None:
        super().__init__()
        of_length = {length: b" " * length for length in lengths}
        self.contents = {f"{version:020}.json": of_length[length] for version, length in enumerate(lengths)}
        self.limits = asyncpq.LimitOptions(max_decoded_bytes=limit, unit_bytes=1)
        self.reading = self.most = 0

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        assert at_most is not None
        data = self.contents[url.rpartition("/")[2]]
        self.reading += min(len(data), at_most)
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0.01)
        self.reading -= min(len(data), at_most)
        if len(data) > at_most:
            raise ResourceLimitError("too long")
        return data


@pytest.mark.parametrize(
    ("lengths", "fits"),
    [
        ([1 << 20] * 4, True),
        ([(4 << 20) - 64, *[1] * 63], True),
        ([(1 << 20) + 1] * 4, False),
        ([1 << 17] * 33, False),
        ([(4 << 20) + 1], False),
        pytest.param([64 << 20] * 64, False, marks=pytest.mark.heavy),
    ],
)
async def test_commits_are_bounded_together(lengths: list[int], fits: bool) -> None:
    reader = _Commits(lengths, 4 << 20)
    read = DeltaLog(DeltaRoot("/lake"), reader)._contents([*reader.contents])
    if fits:
        assert [len(content) for _, content in await read] == lengths
    else:
        with pytest.raises(ResourceLimitError, match="max_decoded_bytes=4194304 bytes together"):
            await read
    assert reader.most <= 9 << 20


async def test_a_long_log_is_looked_through_off_the_loop(writer: DeltaWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.commit({"commitInfo": {"timestamp": 1}}, protocol(), metadata(ID))
    writer.commit({"commitInfo": {"timestamp": 2}}, add("x.parquet", num_rows=1))
    threads: dict[str, threading.Thread] = {}

    def noting(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def noted(*arguments: Any) -> Any:
            threads[name] = threading.current_thread()
            return inner(*arguments)

        monkeypatch.setattr(owner, name, staticmethod(noted) if name == "of" else noted)

    noting(DeltaListing, "of")
    noting(DeltaListing, "segment")
    noting(DeltaLog, "_newest_protocol")
    noting(DeltaLog, "_time")
    noting(catalog, "_newest_at")
    assert len((await snapshot_of(writer.folder, dt.datetime.now(dt.UTC))).data_files) == 1
    assert len(threads) == 5
    assert threading.main_thread() not in threads.values()
