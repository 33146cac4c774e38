"""Iceberg's metadata files: encrypted, gzipped, of unknown formats, damaged."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent, write_manifest_list
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

import asyncpq
from asyncpq import col
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.options import LimitOptions
from tests.iceberg_tables import add_files, data_record, edited_metadata, make_table, path_of
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows, planned_files, read_rows


async def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    add_files(table, [data_record(table, "file:///x", Record(), key_metadata=b"key")], ManifestContent.DATA)
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        await planned_files(table)


def _version_4(document: dict[str, Any]) -> None:
    document["format-version"] = 4


def _no_schema(document: dict[str, Any]) -> None:
    document["current-schema-id"] = 7


def _no_fields(document: dict[str, Any]) -> None:
    del document["schemas"][0]["fields"]


def _no_manifest_list(document: dict[str, Any]) -> None:
    for snapshot in document["snapshots"]:
        del snapshot["manifest-list"]


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (_version_4, UnsupportedFeatureError, "format version 4"),
        (_no_schema, CorruptFileError, "schema"),
        (_no_fields, CorruptFileError, "fields"),
        (_no_manifest_list, CorruptFileError, "manifest-list"),
    ],
)
async def test_metadata_that_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], error: type[AsyncpqError], message: str
) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 1))
    with pytest.raises(error, match=message):
        await read_rows(edited_metadata(table, edit))


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b"{", b'{"format-version": 2, "schemas": [3]}'])
async def test_what_is_no_metadata(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.metadata.json"
    path.write_bytes(content)  # a test's file
    with pytest.raises(CorruptFileError, match="metadata") as caught:
        await read_rows(str(path))
    assert caught.value.url == str(path)


@pytest.mark.parametrize("name", ["v1.gz.metadata.json", "v1.metadata.json.gz"])
async def test_gzipped_metadata(tmp_path: Path, name: str) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    path = tmp_path / name
    with open(path_of(table.metadata_location), "rb") as plain:  # noqa: ASYNC230  # a test's file
        path.write_bytes(gzip.compress(plain.read()))
    assert (await read_rows(f"file://{path}")).num_rows == 3
    path.write_bytes(b"no gzip")
    with pytest.raises(CorruptFileError, match="metadata"):
        await read_rows(f"file://{path}")


@pytest.mark.parametrize("which", ["list", "manifest"])
@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"no Avro at all"])
async def test_manifests_that_are_none(tmp_path: Path, which: str, content: bytes) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = snapshot.manifest_list if which == "list" else snapshot.manifests(table.io)[0].manifest_path
    with open(path_of(path), "wb") as file:  # noqa: ASYNC230  # a test's file
        file.write(content)
    with pytest.raises(CorruptFileError, match="manifest") as caught:
        await planned_files(table)
    assert caught.value.url == path


async def test_a_manifest_that_its_list_names_twice_is_refused(tmp_path: Path) -> None:
    """A few bytes would stand for any number of files."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    output = table.io.new_output(snapshot.manifest_list)
    with write_manifest_list(2, output, snapshot.snapshot_id, None, snapshot.sequence_number, "null") as writer:
        writer.add_manifests([manifest, manifest])
    with pytest.raises(
        CorruptFileError, match=f"names the manifest {re.escape(manifest.manifest_path)} twice"
    ) as caught:
        await planned_files(table)
    assert caught.value.url == snapshot.manifest_list


async def test_a_data_file_may_occur_twice(tmp_path: Path) -> None:
    """Writers add it again on request, or after a commit whose outcome they do not know. Its rows then count twice."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    path = f"{tmp_path}/rows.parquet"
    pq.write_table(id_name_rows(0, 3), path)
    for _ in range(2):
        table.add_files([path], check_duplicate_files=False)
    assert (await read_rows(table)).equals(table.scan().to_arrow().cast(ID_NAME_SCHEMA).sort_by("id"))
    assert len(await planned_files(table)) == 2


async def test_gzipped_metadata_that_become_huge(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    path = tmp_path / "v1.gz.metadata.json"
    with open(path_of(table.metadata_location), "rb") as plain:  # noqa: ASYNC230  # a test's file
        text = plain.read()

    async def refused(content: bytes, limits: LimitOptions, message: str) -> None:
        path.write_bytes(gzip.compress(content))
        assert (await read_rows(f"file://{path}")).num_rows == 3
        with pytest.raises(ResourceLimitError, match=message) as caught:
            async with asyncpq.Session(limits=limits) as session:
                await session.open_dataset(f"file://{path}", format="iceberg")
        assert caught.value.url == f"file://{path}"

    limits = LimitOptions(max_decoded_bytes=1 << 20)
    await refused(text + b" " * 3_000_000, limits, "decodes to more than max_decoded_bytes=1048576 bytes")
    more = text.rstrip()[:-1] + b',"x":[' + b"{}," * 100_000 + b"0]}"  # 64 bytes of memory for each value
    await refused(more, limits, "decodes to more than max_decoded_bytes=1048576 bytes")


async def _with_transform(tmp_path: Path, transform: str) -> str:
    """A table partitioned by name, whose metadata say that it is partitioned by ``transform``."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform(), "name")
    table.append(id_name_rows(0, 3))

    def edit(document: dict[str, Any]) -> None:
        for spec in document["partition-specs"]:
            for part in spec["fields"]:
                part["transform"] = transform

    return edited_metadata(table, edit)


@pytest.mark.parametrize("transform", ["bucket[0]", "bucket[2147483648]", "truncate[0]", "truncate[999999999999]"])
async def test_impossible_partitions_are_refused(tmp_path: Path, transform: str) -> None:
    with pytest.raises(CorruptFileError, match=f"partitioned by {re.escape(transform)}"):
        await read_rows(await _with_transform(tmp_path, transform))


@pytest.mark.parametrize("transform", ["year", "bucket[8]"])
async def test_partitions_that_cannot_be_applied_rule_out_nothing(
    tmp_path: Path, transform: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A year of text, and summaries that are no numbers."""
    async with asyncpq.open_dataset(await _with_transform(tmp_path, transform), format="iceberg") as dataset:
        assert (await dataset.read(where=col("id") >= 0)).num_rows == 3
        caplog.clear()
        await dataset.read(where=col("name") == "n1")
    told = [record for record in caplog.records if record.name == "asyncpq.tables.iceberg.manifests"]
    reasons = [record.getMessage().partition(": ")[2] for record in told]
    assert all(record.getMessage().startswith("asyncpq ignores ") for record in told)
    assert len(set(reasons)) == len(reasons) > 0, "each is told once, not for each manifest and file"


async def test_values_of_a_huge_fixed_width_are_refused(tmp_path: Path) -> None:
    """A null of the type takes as much."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))

    def edit(document: dict[str, Any]) -> None:
        for schema in document["schemas"]:
            schema["fields"].append({"id": 9, "name": "x", "type": f"fixed[{(16 << 20) + 1}]", "required": False})

    with pytest.raises(UnsupportedFeatureError, match=r"16777217 bytes in each row; column 'x'"):
        await read_rows(edited_metadata(table, edit))


async def test_deeply_nested_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.metadata.json"
    path.write_bytes(b'{"a":' * 100_000)  # a test's file
    with pytest.raises(CorruptFileError, match="not the metadata of an Iceberg table"):
        await read_rows(str(path))
