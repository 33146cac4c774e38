"""The keyword arguments that functions of this package share, for type checkers, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from asyncpq.spark.settings import SETTING_NAMES, SettingKeywords, check_arguments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TableKeywords(SettingKeywords, total=False):
    """The settings, and the format and version of a table, as in :meth:`asyncpq.Session.open_dataset`."""

    format: Literal["parquet", "delta", "iceberg"] | None
    version: int | str | datetime | None


class FilesKeywords(TableKeywords, total=False):
    """The settings, and how a dataset's paths and types are read, as in :meth:`asyncpq.Session.open_dataset`."""

    schema_policy: Literal["strict", "permissive"]
    partitioning: Literal["hive"] | Sequence[str] | None
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None


class LakeBuildKeywords(FilesKeywords, total=False):
    """Those of an index build."""

    schema: pa.Schema | None


class ScanKeywords(FilesKeywords, total=False):
    """Those of a scan."""

    schema: StructType | str | None
    on_bad_file: Literal["raise", "skip"]


def split_settings(options: Mapping[str, Any], known: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into those of the dataset and the settings. ``known``: the TypedDict of all of them.
    Raises InvalidOptionError, with the nearest name, for others."""
    check_arguments(options, known.__annotations__)
    settings = {name: value for name, value in options.items() if name in SETTING_NAMES}
    return {name: value for name, value in options.items() if name not in settings}, settings
