"""``asyncpq cache show`` and ``clear``: count or remove the entries of a cache on disk or in a server."""

from __future__ import annotations

from typing import Annotated

from asyncpq.cli.output import Format, ReportFormat, write_line, write_report
from asyncpq.cli.parameters import Group, Option
from asyncpq.cli.running import run
from asyncpq.errors import InvalidOptionError, size_text
from asyncpq.options import DiskCacheOptions, SharedCacheOptions
from asyncpq.reports.cache_usage import cache_usage
from asyncpq.reports.documents import CacheUsage

GROUP = Group("cache", "Show or clear the caches on disk and in a server.")

_Disk = Annotated[
    str | None, Option("--disk-cache", metavar="FOLDER", help="Folder of a cache on disk.", show_default=False)
]
_Shared = Annotated[
    str | None, Option("--shared", metavar="URL", help="Url of a Valkey or Redis server.", show_default=False)
]
_Prefix = Annotated[str, Option("--prefix", help="What the keys of the cache in the server begin with.")]
_PREFIX = SharedCacheOptions(url="valkey://").prefix


@GROUP.command
def show(
    disk_cache: _Disk = None, shared: _Shared = None, prefix: _Prefix = _PREFIX, format_: ReportFormat = Format.TABLE
) -> None:
    """Show how many entries a cache has, and their size."""
    write_report(run(_usage(disk_cache, shared, prefix, clear=False)), format_, _show)


@GROUP.command
def clear(
    disk_cache: _Disk = None, shared: _Shared = None, prefix: _Prefix = _PREFIX, format_: ReportFormat = Format.TABLE
) -> None:
    """Remove all entries of a cache, and nothing else. Programs that use it go on, and fetch again."""
    write_report(run(_usage(disk_cache, shared, prefix, clear=True)), format_, _show)


async def _usage(disk: str | None, shared: str | None, prefix: str, *, clear: bool) -> CacheUsage:
    if (disk is None) is (shared is None):
        raise InvalidOptionError(
            "the command needs exactly one cache", hint="Pass either --disk-cache FOLDER or --shared URL."
        )
    if disk is not None:
        return await cache_usage(DiskCacheOptions(path=disk), clear=clear)
    return await cache_usage(SharedCacheOptions(url=shared or "", prefix=prefix), clear=clear)


def _show(usage: CacheUsage) -> None:
    size = "" if usage["bytes"] is None else f", {size_text(usage['bytes'])}"
    shown = (
        f"{_entries(usage['entries'])}{size}" if usage["removed"] is None else f"{_entries(usage['removed'])} removed"
    )
    write_line(f"{usage['place']}: {shown}")


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
