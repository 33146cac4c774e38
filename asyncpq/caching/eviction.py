"""Keeping a folder of entries (entry_folder.py) within its budget, whichever processes write to it. Blocking.

How much a sub-folder holds is the length of a file, in blocks: appending to a file is one step that no other
writer can come between, and survives whoever did it. It only ever says too much for long: what is replaced or
removed by others stays counted until the sub-folder is listed next, and one of them is, each time that a
writer looks whether there is room.

What goes is what was used least recently among a sample: the fullest sub-folders, until they have enough
entries for that to mean something. A small cache is all in the sample.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

BLOCK_BYTES = 4096
"""What files take is counted in these, as file systems do."""

TEMPORARY = ".tmp"

SAMPLE_ENTRIES = 512
"""Sub-folders are listed until they have so many; of a sample at most a quarter goes."""

DEAD_WRITER_S = 900.0
"""A temporary file older than this has no writer any more."""

_SUBFOLDERS = tuple(f"{number:02x}" for number in range(256))
_NAME_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_LOCK = "evictor.lock"
_CREATE = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Trimmed(NamedTuple):
    """The outcome of :func:`trim`: what the folder holds now, and how many entries went."""

    usage_bytes: int
    evicted: int


class _Entry(NamedTuple):
    modified: float
    blocks: int
    subfolder: str
    name: str


def blocks(size: int) -> int:
    """How many blocks a file of ``size`` bytes takes."""
    return -(-size // BLOCK_BYTES)


def add_usage(folder: int, subfolder: str, size: int) -> None:
    """Count a file of ``size`` bytes that is about to be written."""
    with _usage_file(folder, subfolder) as descriptor:
        os.write(descriptor, bytes(blocks(size)))


def trim(folder: int, limit_bytes: int, *, once: bool = False) -> Trimmed:
    """Remove the oldest entries until the folder holds at most ``limit_bytes``.

    Does nothing while another process (or thread) is at it.

    Args:
        folder: descriptor of the cache's folder.
        limit_bytes: what may be left.
        once: take one sample only.
    """
    evicted = 0
    with _evictor(folder) as alone:
        if alone:
            _list_and_count(folder, random.choice(_SUBFOLDERS))
        usage = {subfolder: _usage(folder, subfolder) for subfolder in _SUBFOLDERS}
        limit = limit_bytes // BLOCK_BYTES
        while alone and sum(usage.values()) > limit:
            sample = _sample(folder, usage)
            # a little more than needed, so that not every put has to come here
            excess = sum(usage.values()) - limit
            removed = _remove_oldest(folder, sample, excess + max(limit, 0) // 16 if excess > 0 else 0, usage)
            evicted += removed
            if once or not removed:
                break
        return Trimmed(sum(usage.values()) * BLOCK_BYTES, evicted)


@contextlib.contextmanager
def _evictor(folder: int) -> Iterator[bool]:
    """Whether this thread is the only one that trims the folder; so until it leaves. A dead process holds no lock."""
    descriptor = os.open(_LOCK, os.O_RDWR | _CREATE, 0o600, dir_fd=folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # closing would not do: a process forked meanwhile has the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _sample(folder: int, usage: dict[str, int]) -> list[_Entry]:
    """Entries of the fullest sub-folders. Corrects what ``usage`` says of these."""
    sample: list[_Entry] = []
    for subfolder in sorted(usage, key=usage.__getitem__, reverse=True):
        if len(sample) >= SAMPLE_ENTRIES or not usage[subfolder]:
            break
        entries, usage[subfolder] = _list_and_count(folder, subfolder)
        sample += entries
    return sample


def _remove_oldest(folder: int, sample: list[_Entry], excess: int, usage: dict[str, int]) -> int:
    """Remove up to ``excess`` blocks of the sample, hardly more than a quarter of it; returns how many entries."""
    excess = min(excess, sum(entry.blocks for entry in sample) // 4 + 1)
    removed = freed = 0
    for entry in sorted(sample):
        if freed >= excess:
            break
        with contextlib.suppress(FileNotFoundError), entered(folder, entry.subfolder) as inner:
            os.unlink(entry.name, dir_fd=inner)
        removed += 1
        freed += entry.blocks
        usage[entry.subfolder] -= entry.blocks
        with _usage_file(folder, entry.subfolder) as descriptor:
            os.ftruncate(descriptor, max(os.fstat(descriptor).st_size - entry.blocks, 0))
    return removed


def _list_and_count(folder: int, subfolder: str) -> tuple[list[_Entry], int]:
    """The entries of one sub-folder, and its blocks, which are written down. Removes what dead writers left."""
    with _usage_file(folder, subfolder) as descriptor:
        before = os.fstat(descriptor).st_size
        entries: list[_Entry] = []
        held = 0
        with contextlib.suppress(FileNotFoundError), entered(folder, subfolder) as inner, os.scandir(inner) as listing:
            now = time.time()
            for file in listing:
                is_entry = len(file.name) == _NAME_LENGTH and _HEX.issuperset(file.name)
                if not is_entry and not file.name.endswith(TEMPORARY):
                    continue
                try:
                    info = file.stat(follow_symlinks=False)
                    if not stat.S_ISREG(info.st_mode):
                        continue
                    if not is_entry and now - info.st_mtime > DEAD_WRITER_S:
                        os.unlink(file.name, dir_fd=inner)
                        continue
                except FileNotFoundError:
                    continue
                held += blocks(info.st_size)
                if is_entry:
                    # a time to come, of a clock that was wrong, must not keep an entry for ever
                    modified = info.st_mtime if info.st_mtime <= now + DEAD_WRITER_S else 0.0
                    entries.append(_Entry(modified, blocks(info.st_size), subfolder, file.name))
        # what was added since the beginning may be in the list or not: it is counted
        held += max(os.fstat(descriptor).st_size - before, 0)
        os.ftruncate(descriptor, held)
        return entries, held


def _usage(folder: int, subfolder: str) -> int:
    try:
        return os.stat(f"{subfolder}.usage", dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _usage_file(folder: int, subfolder: str) -> Iterator[int]:
    descriptor = os.open(f"{subfolder}.usage", os.O_WRONLY | os.O_APPEND | _CREATE, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def entered(folder: int, subfolder: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the sub-folder, which must not be a link."""
    try:
        descriptor = os.open(subfolder, DIRECTORY_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(subfolder, 0o700, dir_fd=folder)
        descriptor = os.open(subfolder, DIRECTORY_FLAGS, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
