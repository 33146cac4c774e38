"""The newest metadata file of an Iceberg table's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import asyncpq
from asyncpq.errors import InvalidOptionError, NotParquetError, ObjectNotFoundError
from asyncpq.tables.iceberg.catalog import IcebergCatalog
from asyncpq.tables.iceberg.metadata import newest_metadata
from tests.iceberg_tables import make_table
from tests.lakes import PlainReader
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows

FOLDER = "s3://bucket/table"


class Names(PlainReader):
    """Names of the files in ``metadata/``, and the content of ``version-hint.text``."""

    def __init__(self, *names: str, hint: str | None = None) -> None:
        self.names = [*names, *(["version-hint.text"] if hint is not None else [])]
        self.hint = hint

    async def list_names(self, url: str) -> list[str]:
        assert url == f"{FOLDER}/metadata/"
        return sorted(self.names)

    async def read_table(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        assert url == f"{FOLDER}/metadata/version-hint.text"
        assert self.hint is not None
        return self.hint.encode()


@pytest.mark.parametrize(
    ("reader", "newest"),
    [
        (Names("v1.metadata.json", "v2.metadata.json", "v10.metadata.json"), "v10.metadata.json"),
        (Names("00009-b.metadata.json", "00010-a.metadata.json", "x.avro"), "00010-a.metadata.json"),
        (Names("00009-b.metadata.json", "00010-a.gz.metadata.json"), "00010-a.gz.metadata.json"),
        (Names("v1.metadata.json", "v2.metadata.json", hint="1\n"), "v2.metadata.json"),  # the hint lags behind
        (Names("v1.metadata.json", "v2.gz.metadata.json", hint="2"), "v2.gz.metadata.json"),
        (Names("v1.metadata.json", "v2.metadata.json.gz"), "v2.metadata.json.gz"),
        (Names("v1.metadata.json", "v2.metadata.json.gz", hint="2"), "v2.metadata.json.gz"),
        (Names("v1.metadata.json", hint="7"), "v1.metadata.json"),
        (Names("v1.metadata.json", hint=""), "v1.metadata.json"),
        (Names("1-a.metadata.json", "1-b.metadata.json", hint="1-b"), "1-b.metadata.json"),
        (Names("1-a.metadata.json", "1-b.metadata.json", hint="1-a.metadata.json"), "1-a.metadata.json"),
        (Names("named.metadata.json", "1-b.metadata.json", hint="named"), "named.metadata.json"),
    ],
)
async def test_the_newest_file(reader: Names, newest: str) -> None:
    for folder in (FOLDER, f"{FOLDER}/"):
        assert await newest_metadata(folder, reader) == f"{FOLDER}/metadata/{newest}"


async def test_two_commits_of_one_number() -> None:
    names = Names("1-a.metadata.json", "2-b.metadata.json", "2-c.metadata.json")
    with pytest.raises(InvalidOptionError, match="only the table's catalog knows") as caught:
        await newest_metadata(FOLDER, names)
    assert caught.value.url == FOLDER


@pytest.mark.parametrize("reader", [Names(), Names("x.avro"), Names("named.metadata.json"), Names(hint="3")])
async def test_a_folder_that_is_no_table(reader: Names) -> None:
    with pytest.raises(ObjectNotFoundError, match="no Iceberg table"):
        await newest_metadata(FOLDER, reader)


async def test_a_folder_is_read_as_its_table(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = urlparse(table.location()).path
    async with asyncpq.Session() as session:
        first = await session.open_dataset(folder, format="iceberg")
        assert (await first.read()).num_rows == 5
        table.append(id_name_rows(5, 8))
        assert (await first.read()).num_rows == 5  # pinned until it is opened again
        assert (await (await session.open_dataset(folder, format="iceberg")).read()).num_rows == 8
        assert (await (await session.open_dataset(folder + "/", format="iceberg", version="main")).read()).num_rows == 8


async def test_a_version_hint_that_is_no_hint_is_ignored(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = urlparse(table.location()).path
    hint = Path(folder) / "metadata/version-hint.text"
    async with asyncpq.Session() as session:
        for content in (b"1".ljust((64 << 10) + 1), b"\0" * (1 << 20), b"\xff", b"no number", b"-1", b""):
            hint.write_bytes(content)
            assert (await (await session.open_dataset(folder, format="iceberg")).read()).num_rows == 5


async def test_a_version_hint_has_at_most_64_kib(tmp_path: Path) -> None:
    """Only the hint says which of two files of one number is the newest."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = urlparse(table.location()).path
    metadata = Path(urlparse(table.metadata_location).path)
    shutil.copy(metadata, metadata.with_name(f"{metadata.name.partition('-')[0]}-other.metadata.json"))
    hint = metadata.with_name("version-hint.text")
    async with asyncpq.Session() as session:
        hint.write_bytes(metadata.name.encode().ljust(64 << 10))
        assert (await (await session.open_dataset(folder, format="iceberg")).read()).num_rows == 5
        hint.write_bytes(metadata.name.encode().ljust((64 << 10) + 1))
        with pytest.raises(InvalidOptionError, match="only the table's catalog knows"):
            await session.open_dataset(folder, format="iceberg")


async def test_a_catalog_of_a_folder_sees_later_commits(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    catalog = IcebergCatalog(urlparse(table.location()).path)
    for stop in (1, 2):
        table.append(id_name_rows(stop - 1, stop))
        async with asyncpq.open_dataset(catalog) as dataset:
            assert (await dataset.read()).num_rows == stop


# -- a writer at work -----------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _content(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_newest_file_that_is_still_empty_is_not_committed(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = Path(urlparse(table.location()).path)
    (folder / "metadata/00007-next.metadata.json").write_bytes(b"")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder), format="iceberg")
        assert (await dataset.read()).num_rows == 5


async def test_the_warning_about_an_empty_file_shows_no_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = _content(Path(urlparse(make_table(tmp_path, ID_NAME_SCHEMA).metadata_location).path))

    class Remote(PlainReader):
        async def list_names(self, url: str) -> list[str]:
            return ["v1.metadata.json", "v2.metadata.json"]

        async def read_bytes(
            self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
        ) -> bytes:
            if url.endswith("v2.metadata.json"):
                raise NotParquetError("the object is empty")
            return metadata

        async def read_table(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    await IcebergCatalog("ftp://me:secret@host/table").snapshot(Remote())
    assert "ftp://host/table/metadata/v1.metadata.json is read" in caplog.text
    assert "secret" not in caplog.text


async def test_a_writer_ends_its_file_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = Path(urlparse(table.location()).path)
    newest = Path(urlparse(table.metadata_location).path)
    whole = _content(newest)
    for begun in (b"", whole[:100]):
        _write(newest, begun)
        looks: list[Any] = []

        async def look(*args: Any, looks: list[Any] = looks) -> str:
            if looks:
                _write(newest, whole)
            looks.append(args)
            return await newest_metadata(*args)

        monkeypatch.setattr("asyncpq.tables.iceberg.catalog.newest_metadata", look)
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(folder), format="iceberg")
            assert (await dataset.read()).num_rows == 5
        assert len(looks) == 2


async def test_an_empty_file_that_the_hint_names_or_that_is_alone_is_an_error(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    folder = Path(urlparse(table.location()).path)
    (folder / "metadata/v7.metadata.json").write_bytes(b"")
    (folder / "metadata/version-hint.text").write_bytes(b"7")
    async with asyncpq.Session() as session:
        with pytest.raises(NotParquetError, match="empty") as caught:
            await session.open_dataset(str(folder), format="iceberg")
        assert str(caught.value.url).endswith("v7.metadata.json")
        for path in (folder / "metadata").iterdir():
            if path.name != "v7.metadata.json":
                path.unlink()
        with pytest.raises(NotParquetError, match="empty"):
            await session.open_dataset(str(folder), format="iceberg")


async def test_a_table_that_was_moved_is_told_so(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    folder = urlparse(table.location()).path
    shutil.move(folder, tmp_path / "elsewhere")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path / "elsewhere"), format="iceberg")
        with pytest.raises(ObjectNotFoundError, match="The table was moved or copied") as caught:
            await dataset.read()
        assert f"names files in file://{folder}" in str(caught.value)
        assert f"is in {tmp_path}/elsewhere" in str(caught.value)
