"""Deleted rows of Iceberg tables: which delete files apply, what they name, what is refused.

pyiceberg applies position deletes and deletion vectors, but writes neither: tests.iceberg_tables does.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFileContent, FileFormat, ManifestContent
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

import asyncpq
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import RuntimeReader
from asyncpq.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from asyncpq.options import LimitOptions
from asyncpq.tables import deleted_rows
from asyncpq.tables.iceberg import deletes as iceberg_deletes
from asyncpq.tables.iceberg.catalog import IcebergCatalog
from asyncpq.tables.iceberg.metadata import decode_table_metadata
from tests.iceberg_tables import (
    LocalReader,
    add_files,
    data_files,
    data_record,
    deletion_vectors,
    edited_metadata,
    equality_deletes,
    make_table,
    path_of,
    position_deletes,
)

_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])


def _rows(start: int, stop: int, part: str = "a") -> pa.Table:
    return pa.table({"id": list(range(start, stop)), "part": [part] * (stop - start)}, _SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files of 100 rows each, in two snapshots."""
    made = make_table(tmp_path, _SCHEMA)
    made.append(_rows(0, 100))
    made.append(_rows(100, 200))
    return made


def _files(table: Table) -> tuple[IcebergFile, IcebergFile]:
    first, second = sorted(data_files(table), key=lambda file: str(file.file_path))
    low = pq.read_table(path_of(first.file_path)).column("id")[0].as_py()
    return (first, second) if low < 100 else (second, first)


async def _planned(table: Table | str) -> list[DataFile]:
    reader = LocalReader()
    snapshot = await IcebergCatalog(table).snapshot(reader)
    return list(await snapshot.files(None, reader))


async def _refused(table: Table | str) -> None:
    """Raise what the first file says that cannot be read."""
    for file in await _planned(table):
        if file.unreadable is not None:
            raise file.unreadable


async def _ids(table: Table | str) -> list[int]:
    """What is left, by each file's deletes."""
    found: list[int] = []
    for file in await _planned(table):
        rows = pq.read_table(path_of(file.url)).column("id").to_pylist()
        deleted = set()
        if file.deletes is not None:
            deleted = set((await file.deletes.rows(LocalReader(), len(rows))).rows())
        found += [value for at, value in enumerate(rows) if at not in deleted]
    return sorted(found)


def _expected(table: Table) -> list[int]:
    found: list[int] = sorted(table.scan().to_arrow().column("id").to_pylist())
    return found


Delete = Callable[[Table, IcebergFile, IcebergFile], Sequence[IcebergFile]]


def _one_file(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    return [position_deletes(table, {first.file_path: [0, 7, 8, 99]}, like=first)]


def _both_files(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    rows = {first.file_path: [1, 2], second.file_path: range(50)}
    return [position_deletes(table, rows, like=first, row_group_size=7)]


def _by_bounds(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    path = str(first.file_path)
    return [position_deletes(table, {path: [5]}, like=first, bounds=(path, path))]


def _overlapping(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    low, high = sorted([str(first.file_path), str(second.file_path)])
    return [
        position_deletes(table, {first.file_path: [3, 4]}, like=first),
        position_deletes(table, {first.file_path: [4, 5], second.file_path: [0]}, like=first, bounds=(low, high)),
    ]


def _vectors(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    return deletion_vectors(table, {first.file_path: [0, 50, 99], second.file_path: range(10, 90)}, like=first)


def _every_row(table: Table, first: IcebergFile, second: IcebergFile) -> Sequence[IcebergFile]:
    return deletion_vectors(table, {first.file_path: range(100)}, like=first)


@pytest.mark.parametrize("delete", [_one_file, _both_files, _by_bounds, _overlapping, _vectors, _every_row])
async def test_rows_left_are_pyiceberg_s(table: Table, delete: Delete) -> None:
    add_files(table, delete(table, *_files(table)))
    expected = _expected(table)
    assert len(expected) < 200
    assert await _ids(table) == expected


async def test_deletes_are_for_files_that_were_there(table: Table) -> None:
    """A file of a later snapshot is left alone, even under the same path (table spec, sequence numbers)."""
    first, _ = _files(table)
    old = [position_deletes(table, {first.file_path: [0]}, like=first)]
    add_files(table, old)
    table.append(_rows(200, 210))
    assert await _ids(table) == _expected(table) == [*range(1, 100), *range(100, 210)]

    again = data_record(table, first.file_path, first.partition, record_count=100)
    table.delete()
    add_files(table, [again], ManifestContent.DATA)
    assert await _ids(table) == list(range(100))


async def test_deletes_without_a_path_are_for_their_partition(tmp_path: Path) -> None:
    table = make_table(tmp_path, _SCHEMA)
    with table.update_spec() as update:
        update.add_field("part", IdentityTransform(), "part")
    table.append(pa.concat_tables([_rows(0, 10, "a"), _rows(10, 20, "b")]))
    a, b = sorted(data_files(table), key=lambda file: str(file.partition[0]))
    add_files(table, [position_deletes(table, {a.file_path: [0], b.file_path: [0]}, like=a)])
    by_part = {file.partition["part"]: file for file in await _planned(table)}
    assert by_part["a"].deletes is not None
    assert by_part["b"].deletes is None  # what the delete file says of another partition's file does not count
    assert await _ids(table) == [*range(1, 20)]


@pytest.mark.parametrize(("most", "reads"), [(100_000, 1), (2, 2)])
async def test_a_small_file_of_deletes_for_several_files_is_read_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, most: int, reads: int
) -> None:
    monkeypatch.setattr(iceberg_deletes, "_MOST_SHARED", most)
    first, second = _files(table)
    rows = {str(first.file_path): [5, 1, 99], str(second.file_path): [0, 7], "file:///another": [3]}
    deletes = position_deletes(table, rows, like=first)
    add_files(table, [deletes], ManifestContent.DELETES)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(table.metadata_location, format="iceberg")
        opened = list[str]()
        read_table = RuntimeReader.read_table

        async def counted(reader: RuntimeReader, url: str, *args: Any) -> pa.Table:
            opened.append(url)
            return await read_table(reader, url, *args)

        monkeypatch.setattr(RuntimeReader, "read_table", counted)
        found = (await dataset.read()).column("id").to_pylist()
    assert sorted(found) == sorted({*range(200)} - {5, 1, 99, 100, 107})
    assert opened.count(deletes.file_path) == reads


async def test_a_vector_replaces_position_deletes(table: Table) -> None:
    first, _ = _files(table)
    add_files(table, [position_deletes(table, {first.file_path: [1, 2]}, like=first)])
    add_files(table, deletion_vectors(table, {first.file_path: [1, 2, 3]}, like=first))
    file = next(file for file in await _planned(table) if file.url == first.file_path)
    reader = LocalReader()
    assert file.deletes is not None
    assert list((await file.deletes.rows(reader, 100)).rows()) == [1, 2, 3]
    assert [url.rpartition(".")[2] for url in reader.read] == ["puffin"]
    assert await _ids(table) == _expected(table)


async def test_format_version_3(table: Table) -> None:
    add_files(table, _vectors(table, *_files(table)))
    url = edited_metadata(table, lambda document: document.update({"format-version": 3, "next-row-id": 0}))
    assert await _ids(url) == _expected(table)


async def test_identities_tell_deletes_apart(table: Table) -> None:
    first, second = _files(table)
    add_files(table, _vectors(table, first, second))
    before = {file.url: file.deletes for file in await _planned(table)}
    again = {file.url: file.deletes for file in await _planned(table)}
    assert before == again
    assert len({deletes.identity for deletes in before.values() if deletes is not None}) == 2


# -- what is refused ------------------------------------------------------------------------------


async def test_secrets_of_urls_are_not_shown(table: Table) -> None:
    location = "https://user:hunter2@host/deletes.orc?sig=hunter2"
    record = data_record(
        table,
        location,
        Record(),
        content=DataFileContent.EQUALITY_DELETES,
        file_format=FileFormat.ORC,
        equality_ids=[1],
    )
    add_files(table, [record])
    with pytest.raises(UnsupportedFeatureError, match=r"https://host/deletes\.orc") as caught:
        await _refused(table)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(CorruptFileError) as caught_too:
        decode_table_metadata(b"", "https://user:hunter2@host/x.metadata.json", LimitOptions())
    assert "hunter2" not in str(caught_too.value)


async def test_equality_deletes_of_another_partition_do_not_matter(tmp_path: Path) -> None:
    table = make_table(tmp_path, _SCHEMA)
    with table.update_spec() as update:
        update.add_field("part", IdentityTransform(), "part")
    table.append(pa.concat_tables([_rows(0, 10, "a"), _rows(10, 20, "b")]))
    a, _ = sorted(data_files(table), key=lambda file: str(file.partition[0]))
    add_files(table, [equality_deletes(table, pa.table({"id": [3]}), like=a, field_ids=[1])])
    table.overwrite(_rows(30, 40, "a"), "part == 'a'")  # later than the delete, and the file it was for is gone
    assert await _ids(table) == [*range(10, 20), *range(30, 40)]


async def test_deletes_in_another_format_are_refused(table: Table) -> None:
    first, _ = _files(table)
    file = position_deletes(table, {first.file_path: [1]}, like=first)
    file._data[2] = FileFormat.ORC
    add_files(table, [file])
    with pytest.raises(UnsupportedFeatureError, match="position deletes in ORC"):
        await _refused(table)


async def test_two_vectors_for_one_file_are_refused(table: Table) -> None:
    first, _ = _files(table)
    for row in (1, 2):
        add_files(table, deletion_vectors(table, {first.file_path: [row]}, like=first))
    with pytest.raises(CorruptFileError, match="2 deletion vectors"):
        await _refused(table)


@pytest.mark.parametrize("delete", [position_deletes, deletion_vectors])
async def test_a_row_past_the_end_is_refused(table: Table, delete: Callable[..., object]) -> None:
    first, _ = _files(table)
    made = delete(table, {first.file_path: [100]}, like=first)
    add_files(table, made if isinstance(made, list) else [made])  # type: ignore[list-item]  # one record
    with pytest.raises(CorruptFileError, match=r"row 100 .* 100 rows"):
        await _ids(table)


def _edit_blob(location: str, edit: Callable[[bytearray], None]) -> None:
    """Change the first blob of a Puffin file, which stands behind its magic bytes."""
    path = Path(path_of(location))
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[4:8], "big") + 8
    blob = content[4 : 4 + size]
    edit(blob)
    content[4 : 4 + size] = blob
    path.write_bytes(content)


def _other_length(blob: bytearray) -> None:
    blob[3] += 1


def _other_magic(blob: bytearray) -> None:
    blob[4] ^= 1
    blob[-4:] = zlib.crc32(blob[4:-4]).to_bytes(4, "big")


def _other_bit(blob: bytearray) -> None:
    blob[-6] ^= 1


@pytest.mark.parametrize(
    ("edit", "message"), [(_other_length, "in its header differs"), (_other_magic, "magic"), (_other_bit, "checksum")]
)
async def test_vectors_that_lie_are_refused(table: Table, edit: Callable[[bytearray], None], message: str) -> None:
    first, _ = _files(table)
    (record,) = deletion_vectors(table, {first.file_path: [3, 9]}, like=first)
    _edit_blob(record.file_path, edit)
    add_files(table, [record])
    with pytest.raises(FormatError, match=message) as caught:
        await _ids(table)
    assert caught.value.url == record.file_path
    assert caught.value.byte_range is not None


async def test_a_vector_of_another_cardinality_is_refused(table: Table) -> None:
    first, _ = _files(table)
    (record,) = deletion_vectors(table, {first.file_path: [3, 9]}, like=first)
    record._data[4] = 3
    add_files(table, [record])
    with pytest.raises(CorruptFileError, match="2 rows, but the table's metadata say 3"):
        await _ids(table)


@pytest.mark.parametrize(
    ("delete", "module", "name"),
    [(position_deletes, iceberg_deletes, "decode_positions"), (deletion_vectors, deleted_rows, "decode_vector")],
)
async def test_deletes_are_decoded_off_the_loop(
    table: Table, delete: Callable[..., Any], module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    call = getattr(module, name)

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return call(*given)

    monkeypatch.setattr(module, name, noted)
    first, _ = _files(table)
    made = delete(table, {first.file_path: [3]}, like=first)
    add_files(table, made if isinstance(made, list) else [made])
    assert 3 not in await _ids(table)
    assert threads
    assert threading.main_thread() not in threads


async def test_null_positions_are_refused(table: Table) -> None:
    first, _ = _files(table)
    record = position_deletes(table, {first.file_path: [3, 9]}, like=first)
    content = pa.table({"file_path": [first.file_path], "pos": pa.array([None], pa.int64())})
    pq.write_table(content, path_of(record.file_path))
    add_files(table, [record])
    with pytest.raises(CorruptFileError, match="null"):
        await _ids(table)


@pytest.mark.parametrize("name", ["content_offset", "content_size_in_bytes"])
async def test_a_vector_before_its_file_is_refused(table: Table, name: str) -> None:
    first, _ = _files(table)
    (record,) = deletion_vectors(table, {first.file_path: [3]}, like=first)
    record._data[[field.name for field in DATA_FILE_TYPE[3].fields].index(name)] = -5
    add_files(table, [record])
    with pytest.raises(CorruptFileError, match=r"deletion vector at .*-5"):
        await _refused(table)


async def test_a_negative_number_of_rows_is_unknown(table: Table) -> None:
    first, _ = _files(table)
    add_files(table, [data_record(table, first.file_path, Record(), record_count=-1)], ManifestContent.DATA)
    assert sorted(file.num_rows or 0 for file in await _planned(table)) == [0, 100, 100]


async def test_negative_positions_are_refused(table: Table) -> None:
    first, _ = _files(table)
    add_files(table, [position_deletes(table, {first.file_path: [-1, 3]}, like=first)])
    with pytest.raises(CorruptFileError, match="negative"):
        await _ids(table)


async def test_positions_of_text_are_refused(table: Table) -> None:
    first, _ = _files(table)
    record = position_deletes(table, {first.file_path: [3, 9]}, like=first)
    pq.write_table(pa.table({"file_path": [first.file_path], "pos": ["3"]}), path_of(record.file_path))
    add_files(table, [record])
    with pytest.raises(CorruptFileError, match="not an int64"):
        await _ids(table)
