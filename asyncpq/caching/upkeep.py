"""Count and remove the entries of the caches outside this process: on disk, and in a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from asyncpq.caching.disk_files import EntryFolder, UnsafeFolderError
from asyncpq.caching.entry_format import EntryCodec
from asyncpq.errors import InvalidOptionError, install_hint
from asyncpq.options import DiskCacheOptions, SharedCacheOptions

T = TypeVar("T")


async def disk_cache_usage(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the number of entries of the disk cache in the folder ``path``, and their bytes on disk.

    Raises:
        InvalidOptionError: the folder does not exist, or other users own it or can write to it.
    """
    return await _in_folder(path, EntryFolder.usage)


async def clear_disk_cache(path: str | os.PathLike[str]) -> int:
    """Remove all entries of the disk cache in the folder ``path``, and nothing else; return their number.

    Processes that use the cache go on, and fetch again. Raises the errors of :func:`disk_cache_usage`.
    """
    return await _in_folder(path, EntryFolder.clear)


async def shared_cache_entries(options: SharedCacheOptions, *, remove: bool = False) -> int:
    """Count the keys of the shared cache in its Valkey or Redis server, and with ``remove`` remove them; return their
    number.

    Raises:
        InvalidOptionError: valkey-py is not installed.
        StoreError: the server cannot be reached, or does not allow this user to list keys.
    """
    try:
        from asyncpq.caching.valkey_connections import count_keys
    except ImportError as error:
        raise InvalidOptionError(
            "a shared cache needs the package valkey, which is not installed", hint=install_hint("valkey", "valkey")
        ) from error
    timeout_s = max(options.connect_timeout_s, 10 * options.timeout_s)
    return await count_keys(options.url, options.prefix, remove=remove, timeout_s=timeout_s)


async def _in_folder(path: str | os.PathLike[str], work: Callable[[EntryFolder], T]) -> T:
    options = DiskCacheOptions(path=os.fspath(path))

    def working() -> T:
        place = os.path.abspath(os.path.expanduser(options.path))
        return work(EntryFolder(place, options.max_bytes, EntryCodec(None)))

    try:
        return await asyncio.to_thread(working)
    except FileNotFoundError:
        message = f"there is no disk cache at {options.path}"
        raise InvalidOptionError(
            message, hint="Pass the folder that sessions, or other commands, use as disk cache."
        ) from None
    except UnsafeFolderError as error:
        raise InvalidOptionError(
            f"the folder {options.path} {error}, so it is not a disk cache of this user",
            hint="Pass the folder that sessions of this user use as disk cache.",
        ) from error
