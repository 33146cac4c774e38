"""Iceberg's metadata files: encrypted, gzipped, of unknown formats, damaged."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.typedef import Record

from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from tests.iceberg_tables import add_files, data_record, edited_metadata, make_table, path_of
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows, planned_files, read_rows


async def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    add_files(table, [data_record(table, "file:///x", Record(), key_metadata=b"key")], ManifestContent.DATA)
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        await planned_files(table)


def _version_4(document: dict[str, Any]) -> None:
    document["format-version"] = 4


def _variant(document: dict[str, Any]) -> None:
    element = {"type": "list", "element-id": 9, "element": "variant", "element-required": False}
    document["schemas"][0]["fields"][1]["type"] = element


def _geometry(document: dict[str, Any]) -> None:
    document["schemas"][0]["fields"][1]["type"] = "geometry"
    document["format-version"] = 3
    document["next-row-id"] = 0


def _unknown(document: dict[str, Any]) -> None:
    document["schemas"][0]["fields"][1]["type"] = "unknown"
    document["format-version"] = 3
    document["next-row-id"] = 0


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
        (_variant, UnsupportedFeatureError, r"variant.*'name\.element'"),
        (_geometry, UnsupportedFeatureError, r"geometry.*'name'"),
        (_unknown, UnsupportedFeatureError, r"unknown.*'name'"),
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


async def test_gzipped_metadata(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    path = tmp_path / "v1.gz.metadata.json"
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
