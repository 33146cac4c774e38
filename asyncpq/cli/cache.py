"""``asyncpq cache show`` and ``clear``: count or remove the entries of a cache on disk or in a server."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from asyncpq.caching.upkeep import clear_disk_cache, disk_cache_usage, shared_cache_entries
from asyncpq.cli.inspect import Format, ReportFormat
from asyncpq.cli.output import write_document
from asyncpq.cli.running import Application, run
from asyncpq.errors import InvalidOptionError
from asyncpq.options import SharedCacheOptions
from asyncpq.reports.documents import CacheUsage
from asyncpq.reports.units import size_text

app: Application = Application(
    name="cache", help="Show or clear the caches on disk and in a server.", no_args_is_help=True
)

_Disk = Annotated[
    str | None, typer.Option("--disk-cache", metavar="FOLDER", help="Folder of a cache on disk.", show_default=False)
]
_Shared = Annotated[
    str | None, typer.Option("--shared", metavar="URL", help="Url of a Valkey or Redis server.", show_default=False)
]
_Prefix = Annotated[str, typer.Option("--prefix", help="What the keys of the cache in the server begin with.")]
_PREFIX = SharedCacheOptions(url="valkey://").prefix


@app.command()
def show(
    context: typer.Context,
    disk_cache: _Disk = None,
    shared: _Shared = None,
    prefix: _Prefix = _PREFIX,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Show how many entries a cache has, and their size."""
    usage = run(context.obj, _usage(disk_cache, shared, prefix, clear=False))
    if format_ is Format.JSON:
        write_document(usage)
    else:
        size = "" if usage["bytes"] is None else f", {size_text(usage['bytes'])}"
        typer.echo(f"{usage['place']}: {_entries(usage['entries'])}{size}")


@app.command()
def clear(
    context: typer.Context,
    disk_cache: _Disk = None,
    shared: _Shared = None,
    prefix: _Prefix = _PREFIX,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Remove all entries of a cache, and nothing else. Programs that use it go on, and fetch again."""
    usage = run(context.obj, _usage(disk_cache, shared, prefix, clear=True))
    if format_ is Format.JSON:
        write_document(usage)
    else:
        typer.echo(f"{usage['place']}: {_entries(usage['removed'] or 0)} removed")


async def _usage(disk: str | None, shared: str | None, prefix: str, *, clear: bool) -> CacheUsage:
    if (disk is None) is (shared is None):
        raise InvalidOptionError(
            "the command needs exactly one cache", hint="Pass either --disk-cache FOLDER or --shared URL."
        )
    if disk is not None:
        removed = await clear_disk_cache(disk) if clear else None
        entries, held = await disk_cache_usage(disk)
        return _document("disk", disk, entries, held, removed)
    options = SharedCacheOptions(url=shared or "", prefix=prefix)
    entries = await shared_cache_entries(options, remove=clear)
    place = f"keys {prefix}*"  # the url may hold a password
    return _document("shared", place, 0 if clear else entries, None, entries if clear else None)


def _document(
    kind: Literal["disk", "shared"], place: str, entries: int, held: int | None, removed: int | None
) -> CacheUsage:
    return {"document": "cache", "kind": kind, "place": place, "entries": entries, "bytes": held, "removed": removed}


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
