"""The files below a folder, and what tells their versions."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator

from asyncpq.storage.base import ListedObject, Validator, Wants
from asyncpq.storage.clock_grain import may_change_unseen


def local_stamp(info: os.stat_result) -> tuple[int, ...]:
    """What tells versions of a file apart."""
    # the change time, too: who writes a file in place can set its modification time back, but not that one
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def local_validator(info: os.stat_result) -> Validator:
    """Of the version of a file."""
    return Validator(size=info.st_size, version="-".join(map(str, local_stamp(info))))


def list_folder(prefix: str, root: str, wants: Wants | None) -> list[ListedObject]:
    """The regular files whose paths begin with ``prefix``, an absolute path, in bytewise order. Blocks.

    Links are followed, but not into a folder that they are in. What vanishes meanwhile is left out.

    Args:
        root: url of the folder that ``prefix`` ends in, with its slash.
        wants: see :class:`asyncpq.storage.base.Store`.

    Raises:
        OSError: a folder may not be read.
    """
    folder, _, start = prefix.rpartition("/")
    return list(_walk(folder + "/", start, root, wants, frozenset()))


def _walk(
    folder: str, start: str, root: str, wants: Wants | None, above: frozenset[tuple[int, int]]
) -> Iterator[ListedObject]:
    try:
        info = os.stat(folder)
        entries = _entries(folder, start)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with NUL
        return
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    for name in sorted(entries, key=os.fsencode):  # folders with their slash: the order of whole paths
        path, url = folder + name, root + name
        if name.endswith("/"):
            if wants is None or wants(url):
                yield from _walk(path, "", url, wants, above | {here})
            continue
        try:
            info = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # gone, or a link that leads nowhere
                continue
            raise
        if stat.S_ISREG(info.st_mode):
            young = may_change_unseen(info.st_mtime_ns / 1e9, time.time())
            yield ListedObject(url, info.st_size, None if young else local_validator(info), info.st_mtime)


def _entries(folder: str, start: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name + "/" * _is_folder(entry) for entry in entries if entry.name.startswith(start)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
