"""Files that were added to a DuckLake as they are: their columns are found by name, as a mapping says.

Spec: ``ducklake_column_mapping``, ``ducklake_name_mapping``. Field ids in such files are not the table's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.storage.urls import safe_url
from asyncpq.tables.ducklake_catalog import Row
from asyncpq.tables.ducklake_schema import typed
from asyncpq.tables.ducklake_types import RESOLUTIONS

_NO_NAME = ("\ud800",)  # not UTF-8, so no field of a file has it
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def mapped_fields(
    fields: Sequence[TableField], names: Sequence[Row], types: Mapping[int, str], url: str
) -> tuple[tuple[TableField, ...], dict[str, Any]]:
    """How an added file has the table's columns: its fields, and the values that its path names.

    Args:
        names: rows of ``ducklake_name_mapping`` of the file's mapping.
        types: DuckLake's type names by column id.
        url: of the file; directories ``key=value`` are partition columns, percent-encoded.

    Raises:
        UnsupportedFeatureError: the path does not say what the mapping takes from it.
    """
    by_target = {row["target_field_id"]: row for row in names}
    partition: dict[str, Any] = {}
    for field in fields:
        row = by_target.get(field.field_id)
        if row is not None and row.get("is_partition"):
            text = _of_path(url, str(row["source_name"]))
            try:
                partition[field.name] = None if text is None else typed(text, types[row["target_field_id"]], field.type)
            except (ValueError, pa.ArrowException):
                raise UnsupportedFeatureError(
                    f"the file's path has {text!r}, which is no {field.type}", url=safe_url(url), column=field.name
                ) from None
    return tuple(_mapped(field, by_target, types) for field in fields), partition


def _mapped(field: TableField, by_target: Mapping[int, Row], types: Mapping[int, str]) -> TableField:
    row = None if field.field_id is None else by_target.get(field.field_id)
    return dataclasses.replace(
        field,
        field_id=None,
        names=_NO_NAME if row is None else (str(row["source_name"]),),
        children=tuple(_mapped(child, by_target, types) for child in field.children),
        resolution=None if field.field_id is None else RESOLUTIONS.get(types[field.field_id]),
    )


def _of_path(url: str, key: str) -> str | None:
    found = {part.partition("=")[2] for part in url.split("/")[:-1] if part.partition("=")[:2] == (key, "=")}
    if len(found) != 1:
        raise UnsupportedFeatureError(f"no telling the partition value {key!r} from the file's path", url=safe_url(url))
    (text,) = found
    return None if text == _HIVE_NULL else unquote(text)
