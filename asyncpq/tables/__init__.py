"""Tables: Delta, Iceberg and DuckLake. A table's metadata comes in; data files with bounds and deleted rows go out.

:func:`catalog_of` picks the catalog of a target. A catalog's ``snapshot()`` pins one version of the table; the
snapshot's ``files()`` lists the data files that a predicate leaves. `delta`, `iceberg` and `ducklake` each decode
their own metadata through the session's stores and caches. `deleted_rows` is what they share;
`own_store` says in which store a table's files are.

All of them raise CorruptFileError where metadata or deleted rows are malformed, and UnsupportedFeatureError for a
feature that asyncpq does not support; both name the file.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any, Literal, cast

from asyncpq.datasets.model import Catalog
from asyncpq.errors import Hint, InvalidOptionError, UsageError, install_hint
from asyncpq.typing import TableVersion

Format = Literal["parquet", "delta", "iceberg"]


def catalog_of(target: Any, format_: Format | None, version: TableVersion | None) -> Catalog | None:
    """Return the catalog of a table; None if ``target`` names plain files.

    Args:
        target: a url, a deltalake or pyiceberg table, or a :class:`Catalog`.
        format_: the format of the table at a url, "delta" or "iceberg"; "parquet" for plain files; None to let the type
            of ``target`` decide.
        version: for Delta a number or a time; for Iceberg a snapshot id, the name of a branch or tag, or a time; None
            for the current version.

    Raises:
        InvalidOptionError: ``version`` or ``format_`` does not fit ``target``.
        UsageError: pyiceberg is not installed.
    """
    home = type(target).__module__.partition(".")[0]
    if format_ == "delta" or (home == "deltalake" and format_ is None):
        from asyncpq.tables.delta.catalog import DeltaCatalog

        if isinstance(version, str):
            raise InvalidOptionError(
                f"{version!r} is no version of a Delta table: it must be a number or a time",
                hint=Hint(
                    "Pass an int, or a datetime, such as datetime(2026, 5, 1, tzinfo=UTC).", "Pass a time as --at."
                ),
            )
        return DeltaCatalog.of(target, version=version)
    if format_ == "iceberg" or (home == "pyiceberg" and format_ is None):
        try:
            from asyncpq.tables.iceberg.catalog import IcebergCatalog
        except ModuleNotFoundError as error:
            raise UsageError(
                "Iceberg tables need pyiceberg, which is not installed", hint=install_hint("pyiceberg", "iceberg")
            ) from error

        table = os.fspath(target) if isinstance(target, os.PathLike) else target
        if isinstance(version, dt.datetime):
            return IcebergCatalog(table, as_of=version)
        if isinstance(version, str):
            return IcebergCatalog(table, ref=version)
        return IcebergCatalog(table, snapshot_id=version)
    if version is not None:
        raise InvalidOptionError(
            f"version={version!r}: only Delta and Iceberg tables have versions",
            option="version",
            hint=Hint(
                'Leave the version out; of a table, pass format="delta" or format="iceberg" with it.',
                "Leave the version out.",
            ),
        )
    if hasattr(target, "snapshot"):
        if format_ is not None:
            raise InvalidOptionError(
                f"format={format_!r} is not allowed: a catalog defines the format of its table",
                option="format",
                hint="Leave out format=.",
            )
        return cast("Catalog", target)
    if format_ not in (None, "parquet"):
        raise InvalidOptionError(f'format={format_!r}: must be "parquet", "delta" or "iceberg"', option="format")
    return None
