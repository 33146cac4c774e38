"""A folder of entries that any number of processes on one host read, write and trim at once. Blocking.

    <folder>/ab/ab12...                one entry, named by the 64 hex digits of its key
    <folder>/ab/ab12....<random>.tmp   one that is being written
    <folder>/ab.usage                  how much is in ab: its length, in blocks of 4 KiB
    <folder>/evictor.lock              held (flock) by the one process that is trimming the folder

A writer renames a whole temporary file to its name. Nothing is synced: what a crash of the machine tears
does not decode, and is dropped by whoever reads it. All names are opened relative to the descriptor of the
folder that holds them, without following links and without blocking on what is no file.

Keeping a folder of entries (entry_folder.py) within its budget, whichever processes write to it. Blocking.

How much a sub-folder holds is the length of a file, in blocks: appending to a file is one step that no other
writer can come between, and survives whoever did it. It only ever says too much for long: what is replaced or
removed by others stays counted until the sub-folder is listed next, and one of them is, each time that a
writer looks whether there is room.

What goes is what was used least recently among a sample: the fullest sub-folders, until they have enough
entries for that to mean something. A small cache is all in the sample.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asyncpq.caching.entry import HEADER_BYTES, EntryCodec

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


#: An entry is not kept if it is larger than the budget divided by this.
LARGEST_PART = 8
#: What a process may write before it looks again how full the folder is: the budget divided by this.
CHECK_PART = 256
#: Reading an entry makes it young again at most this often.
TOUCH_INTERVAL_S = 30.0
#: An entry that a scan brought begins as old as one that was not used for so long.
SCAN_AGE_S = 86_400.0

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_ENTRY = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR)
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO)  # a link; a socket
_FULL = (errno.ENOSPC, errno.EDQUOT)


class UnsafeFolderError(OSError):
    """The folder is not this user's alone."""


@dataclass(slots=True)
class Outcome:
    """What became of a batch.

    Attributes:
        values: one for each key that was read, or None.
        error: what ended the batch early; the keys after it are misses, or were not written.
        evicted: entries of other keys that were removed.
        abandoned: nobody waits any more.
    """

    values: list[bytes | None]
    error: OSError | None = None
    evicted: int = 0
    abandoned: bool = False


class EntryFolder:
    """See the module. Several threads may read, one writes. Has no lock and no descriptor that a fork could carry over.

    Args:
        path: absolute; made with its parents when it is first written to.
        max_bytes: budget, in whole blocks of the entries' files.
        codec: of the entries.
    """

    def __init__(self, path: str, max_bytes: int, codec: EntryCodec) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._largest_bytes = max_bytes // LARGEST_PART
        self._codec = codec
        self._room = 0  # bytes that may be written before usage is looked up again

    def prepare(self) -> None:
        """Make the folder, or look whether the one that is there is safe.

        Raises:
            UnsafeFolderError: it is a link or no folder, of another user, or writable by others.
            OSError: it cannot be made or opened.
        """
        with self._opened(create=True):
            pass

    def read_many(self, keys: Sequence[bytes], outcome: Outcome) -> Outcome:
        """The value of each key; entries that do not decode are dropped. Never raises OSError.

        Args:
            keys: which to read.
            outcome: is filled and returned. Its values are one None for each key; whoever has stopped
                waiting takes those that have come, and says so.
        """
        try:
            with self._opened(create=False) as folder:
                for place, key in enumerate(keys):
                    if outcome.abandoned:
                        break
                    outcome.values[place] = self._read(folder, key)
        except FileNotFoundError:
            pass  # nothing has been written yet, or the folder was removed
        except OSError as error:
            outcome.error = error
        return outcome

    def write_many(self, values: Mapping[bytes, bytes], scan: bool = False) -> Outcome:
        """Keep the values, each under its key, within the budget. Never raises OSError.

        Args:
            values: by key.
            scan: they go before whatever was used within ``SCAN_AGE_S``, unless they are used themselves; what
                is there already stays as it is.
        """
        outcome = Outcome([])
        try:
            with self._opened(create=True) as folder:
                for key, value in values.items():
                    if scan and self._holds(folder, key):
                        continue
                    size = HEADER_BYTES + len(value)
                    if size <= self._largest_bytes and self._make_room(folder, size, outcome):
                        self._write(folder, key, self._codec.encode(key, value), scan)
        except OSError as error:
            outcome.error = error
            if error.errno in _FULL:
                # the disk is smaller than the budget: without this the oldest would stay for ever
                with contextlib.suppress(OSError), self._opened(create=False) as folder:
                    outcome.evicted += trim(folder, 0, once=True).evicted
        return outcome

    def drop(self, key: bytes) -> Outcome:
        """Remove the entry, if it is there. Never raises OSError."""
        outcome = Outcome([])
        try:
            with self._opened(create=False) as folder, entered(folder, key.hex()[:2]) as inner:
                os.unlink(key.hex(), dir_fd=inner)
        except FileNotFoundError:
            pass
        except OSError as error:
            outcome.error = error
        return outcome

    # -- one entry ------------------------------------------------------------------------------

    def _holds(self, folder: int, key: bytes) -> bool:
        """Whether something is there under ``key``; it is not read."""
        name = key.hex()
        try:
            with entered(folder, name[:2]) as inner:
                os.stat(name, dir_fd=inner, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _read(self, folder: int, key: bytes) -> bytes | None:
        name = key.hex()
        try:
            with entered(folder, name[:2]) as inner:
                try:
                    descriptor = os.open(name, _READ, dir_fd=inner)
                except OSError as error:
                    if error.errno not in _NOT_A_FILE:
                        raise
                    value = None
                else:
                    try:
                        value = self._read_open(descriptor, key)
                    finally:
                        os.close(descriptor)
                if value is None:
                    with contextlib.suppress(OSError):  # a folder that cannot be written to
                        os.unlink(name, dir_fd=inner)
                return value
        except FileNotFoundError:
            return None

    def _read_open(self, descriptor: int, key: bytes) -> bytes | None:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or not HEADER_BYTES <= info.st_size <= self._largest_bytes:
            return None
        head = os.read(descriptor, HEADER_BYTES)
        if self._codec.entry_bytes(head) != info.st_size:
            return None
        parts = [head]
        left = info.st_size - len(head)
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                return None
            parts.append(part)
            left -= len(part)
        value = self._codec.decode(key, b"".join(parts))
        if value is not None and abs(time.time() - info.st_mtime) > TOUCH_INTERVAL_S:
            with contextlib.suppress(OSError):  # a folder that cannot be written to
                os.utime(descriptor)
        return value

    def _write(self, folder: int, key: bytes, entry: bytes, scan: bool) -> None:
        name = key.hex()
        with entered(folder, name[:2], create=True) as inner:
            # counted first: the file of a writer that dies half-way is in the sum
            add_usage(folder, name[:2], len(entry))
            temporary = f"{name}.{secrets.token_hex(8)}{TEMPORARY}"
            descriptor = os.open(temporary, _CREATE_ENTRY, 0o600, dir_fd=inner)
            try:
                try:
                    unwritten = memoryview(entry)
                    while unwritten:
                        unwritten = unwritten[os.write(descriptor, unwritten) :]
                finally:
                    os.close(descriptor)
                os.rename(temporary, name, src_dir_fd=inner, dst_dir_fd=inner)
                if scan:  # only now: a temporary file that is old has no writer any more
                    old = time.time() - SCAN_AGE_S
                    with contextlib.suppress(OSError):  # it was removed already
                        os.utime(name, (old, old), dir_fd=inner, follow_symlinks=False)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=inner)
                raise

    def _make_room(self, folder: int, size: int, outcome: Outcome) -> bool:
        """Whether ``size`` bytes may be written; what is old is removed for it."""
        size = blocks(size) * BLOCK_BYTES
        if size > self._room:
            trimmed = trim(folder, self._max_bytes - size)
            outcome.evicted += trimmed.evicted
            # No room: another process is making it, and this one is faster than that, or nothing can go.
            if trimmed.usage_bytes + size > self._max_bytes:
                return False
            self._room = max(size, min(self._max_bytes // CHECK_PART, self._max_bytes - trimmed.usage_bytes))
        self._room -= size
        return True

    # -- the folder -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, *, create: bool) -> Iterator[int]:
        """A descriptor of the folder, for one batch: so it may be removed, replaced or forked meanwhile."""
        try:
            descriptor = os.open(self._path, DIRECTORY_FLAGS)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._path, 0o700)
            descriptor = os.open(self._path, DIRECTORY_FLAGS)
        except OSError as error:
            if error.errno in _NOT_A_FOLDER:
                raise UnsafeFolderError("is a link or no folder") from error
            raise
        try:
            info = os.fstat(descriptor)
            if info.st_uid != os.geteuid():
                raise UnsafeFolderError("belongs to another user")
            if info.st_mode & 0o022:
                raise UnsafeFolderError("may be written to by other users")
            yield descriptor
        finally:
            os.close(descriptor)
