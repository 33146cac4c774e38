"""Which catalog knows a table: other libraries' table objects, urls, and what is a catalog itself."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any, Literal, cast

from asyncpq.datasets.model import Catalog
from asyncpq.errors import InvalidOptionError, UsageError

Format = Literal["parquet", "delta", "iceberg"]
Version = int | str | dt.datetime


def catalog_of(target: Any, format_: Format | None, version: Version | None) -> Catalog | None:
    """The catalog of ``target``; None where it is no table, but files.

    Args:
        target: a url, a ``deltalake.DeltaTable``, a ``pyiceberg.table.Table``, a :class:`Catalog`, or what names files.
        format_: of the table at a url; None or "parquet" for files.
        version: of a Delta table a version or a time; of an Iceberg table a snapshot id, the name of a branch or
            tag, or a time. None: the present one.

    Raises:
        InvalidOptionError: a version of what has none, or of another kind.
        UsageError: pyiceberg is not installed.
    """
    home = type(target).__module__.partition(".")[0]
    if format_ == "delta" or (home == "deltalake" and format_ is None):
        from asyncpq.tables.delta import catalog as delta

        if isinstance(version, str):
            raise InvalidOptionError(f"version={version!r}: of a Delta table it is a number or a time")
        return delta.catalog_of(_text(target), version=version)
    if format_ == "iceberg" or (home == "pyiceberg" and format_ is None):
        try:
            from asyncpq.tables.iceberg import catalog as iceberg
        except ModuleNotFoundError as error:
            raise UsageError(
                "Iceberg tables need pyiceberg", hint="Install it: pip install 'asyncpq[iceberg]'."
            ) from error

        if isinstance(version, dt.datetime):
            return iceberg.catalog_of(_text(target), as_of=version)
        if isinstance(version, str):
            return iceberg.catalog_of(_text(target), ref=version)
        return iceberg.catalog_of(_text(target), snapshot_id=version)
    if version is not None:
        raise InvalidOptionError("version: only Delta and Iceberg tables have one here")
    if hasattr(target, "snapshot"):
        if format_ is not None:
            raise InvalidOptionError(f"format={format_!r}: a catalog says itself what its table is")
        return cast("Catalog", target)
    if format_ not in (None, "parquet"):
        raise InvalidOptionError(f'format={format_!r}: must be "parquet", "delta" or "iceberg"')
    return None


def _text(target: Any) -> Any:
    return os.fspath(target) if isinstance(target, os.PathLike) else target
