"""A folder of cache entries that any number of processes on one host read, write and trim at once, by blocking calls.

    <folder>/ab/ab12...                one entry, named by the 64 hex digits of its key
    <folder>/ab/ab12....<random>.tmp   an entry being written
    <folder>/ab.usage                  its length is the number of blocks in ab (4 KiB each)
    <folder>/evictor.lock              held (flock) by the process that trims the folder

A writer renames a complete temporary file. Nothing is synced: an entry that a crash of the machine cut off does not
decode, and its reader removes it. All names are opened relative to the descriptor of their folder, without following
links and without blocking on special files.

The bytes of an entry are those of ``entry_format.EntryCodec`` (cache/ENTRY.md).

Eviction removes the least recently used entries of a sample: the fullest sub-folders, until they have enough entries.
Appending to a ``.usage`` file is atomic and survives the writer. Its count may only be too high: entries that others
replace or remove stay counted until their sub-folder is listed, and each trim lists one at random.

No writer lists the cache: it reads the ``.usage`` files. Eviction goes by modification times, old ones for scans'
entries.

Libraries that were examined and are not used: diskcache (pickles, CVE-2025-69872 without a fixed release; one SQLite
index that all processes lock), cachelib's FileSystemCache (pickles; its budget is a number of files, and eviction reads
all of them), fsspec's ``filecache`` and ``blockcache`` (whole objects, or sparse copies of them, without a budget).
None of them has checksums, and all follow links.
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
from typing import NamedTuple

from asyncpq.caching.entry_format import HEADER_BYTES, EntryCodec
from asyncpq.records import dataclass

BLOCK_BYTES = 4096  # unit of the usage counts, as in file systems
TEMPORARY = ".tmp"
SAMPLE_ENTRIES = 512  # size of a sample; at most a quarter of it is removed
MOST_EVICTED = 2048  # a write stops trimming after so many entries, which take 0.1 s
DEAD_WRITER_S = 900.0  # a temporary file older than this has no writer any more
_SUBFOLDERS = tuple(f"{number:02x}" for number in range(256))
_NAME_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_LOCK = "evictor.lock"
_CREATE = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Trimmed(NamedTuple):
    """Result of :func:`trim`: the bytes left in the folder, and the number of removed entries."""

    usage_bytes: int
    evicted: int


class _Entry(NamedTuple):
    modified: float
    blocks: int
    subfolder: str
    name: str


def blocks(size: int) -> int:
    """Return the number of 4 KiB blocks that a file of ``size`` bytes takes."""
    return -(-size // BLOCK_BYTES)


def trim(folder: int, limit_bytes: int, *, once: bool = False) -> Trimmed:
    """Remove the least recently used entries until the folder has at most ``limit_bytes`` bytes, or about
    :data:`MOST_EVICTED` are removed; with ``once``, remove entries of one sample of sub-folders only. ``folder`` is a
    file descriptor. Removes nothing while another process or thread trims the folder."""
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
            if once or not removed or evicted >= MOST_EVICTED:
                break
        return Trimmed(sum(usage.values()) * BLOCK_BYTES, evicted)


@contextlib.contextmanager
def _evictor(folder: int) -> Iterator[bool]:
    """Try to take the evictor's lock. Yield True and hold the lock for the ``with`` block; yield False if another
    process or thread holds it. The system releases the lock of a process that dies."""
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
            # not only closed: a process forked meanwhile has the descriptor too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _sample(folder: int, usage: dict[str, int]) -> list[_Entry]:
    """Return the entries of the fullest sub-folders, as candidates for eviction. Corrects ``usage`` (blocks by
    sub-folder) for the sub-folders that it lists."""
    sample: list[_Entry] = []
    for subfolder in sorted(usage, key=usage.__getitem__, reverse=True):
        if len(sample) >= SAMPLE_ENTRIES or not usage[subfolder]:
            break
        entries, usage[subfolder] = _list_and_count(folder, subfolder)
        sample += entries
    return sample


def _remove_oldest(folder: int, sample: list[_Entry], excess: int, usage: dict[str, int]) -> int:
    """Remove the oldest entries of ``sample`` until ``excess`` blocks are free, but at most about a quarter of the
    sample. Updates ``usage`` (blocks by sub-folder). Return the number of removed entries."""
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
    """Return the entries of one sub-folder and the number of its blocks, and write that number to its ``.usage`` file.
    Remove temporary files of dead writers."""
    with _usage_file(folder, subfolder) as descriptor:
        before = os.fstat(descriptor).st_size
        entries: list[_Entry] = []
        held = 0
        with contextlib.suppress(FileNotFoundError), entered(folder, subfolder) as inner, os.scandir(inner) as listing:
            now = time.time()
            for file in listing:
                is_entry = _is_entry(file.name)
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
                    # a time in the future, from a wrong clock, must not keep an entry for ever
                    modified = info.st_mtime if info.st_mtime <= now + DEAD_WRITER_S else 0.0
                    entries.append(_Entry(modified, blocks(info.st_size), subfolder, file.name))
        # files added during the listing may be missing in it, and are counted in addition
        held += max(os.fstat(descriptor).st_size - before, 0)
        os.ftruncate(descriptor, held)
        return entries, held


def _is_entry(name: str) -> bool:
    return len(name) == _NAME_LENGTH and _HEX.issuperset(name)


def _present(folder: int) -> list[str]:
    """Return the names of the sub-folders of ``folder`` that exist."""
    names = set(os.listdir(folder))
    return [subfolder for subfolder in _SUBFOLDERS if subfolder in names]


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


def _open_directory(path: str, *, create: bool, parent: int | None = None) -> int:
    """Open a directory and return its file descriptor, which the caller closes. With ``create``, make a missing
    directory. ``path`` is absolute, or relative to the directory whose descriptor is ``parent``."""
    try:
        return os.open(path, DIRECTORY_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    if parent is None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=parent)
    return os.open(path, DIRECTORY_FLAGS, dir_fd=parent)


@contextlib.contextmanager
def entered(folder: int, subfolder: str, *, create: bool = False) -> Iterator[int]:
    """Yield a file descriptor of the sub-folder, which must not be a link. With ``create``, make a missing one."""
    descriptor = _open_directory(subfolder, create=create, parent=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


LARGEST_PART = 8  # an entry that is larger than the budget divided by this is not kept
CHECK_PART = 256  # a process reads the usage again after writing the budget divided by this
TOUCH_INTERVAL_S = 30.0  # reading an entry updates its time at most this often
SCAN_AGE_S = 86_400.0  # age that an entry of a scan begins with

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_ENTRY = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR)
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO)  # a link; a socket
_FULL = (errno.ENOSPC, errno.EDQUOT)


class UnsafeFolderError(OSError):
    """The cache's folder is not safe: another user owns it or can write to it, or it is not a folder."""


@dataclass(slots=True)
class Outcome:
    """Result of reading, writing or dropping a batch of entries; a read fills it while it runs."""

    values: list[bytes | None]  # the value of each key to read, in order; None for a miss. Empty for writes
    error: OSError | None = None  # ended the batch early; later keys are misses, or were not written
    evicted: int = 0  # removed entries of other keys
    abandoned: bool = False  # the caller has stopped waiting


class EntryFolder:
    """Cache entries in a folder. Several threads may read, one may write. Between calls there is no lock and no open
    descriptor that a fork would copy.

    ``path`` is absolute; the first write makes the folder and its parents. ``max_bytes`` is the budget in bytes, where
    each file counts in whole blocks.
    """

    def __init__(self, path: str, max_bytes: int, codec: EntryCodec) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._largest_bytes = max_bytes // LARGEST_PART
        self._codec = codec
        self._room = 0  # bytes that may be written before usage is looked up again

    def prepare(self) -> None:
        """Make the folder, or check that the existing one is safe. Raises UnsafeFolderError if the path is a link or
        not a folder, or another user owns it or can write to it; OSError if it cannot be made or opened."""
        with self._opened(create=True):
            pass

    def read_many(self, keys: Sequence[bytes], outcome: Outcome) -> Outcome:
        """Read the value of each key, store it in ``outcome.values`` at the key's position, and return ``outcome``. The
        caller passes ``outcome.values`` as a list of None, one for each key. Entries that do not decode are removed. A
        caller that stops waiting sets ``outcome.abandoned``, and has the values that were read so far. An OSError is
        stored in ``outcome.error``, not raised."""
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
        """Write the values by key, as far as the budget allows. With ``scan``, the values come from a scan: they count
        as unused for ``SCAN_AGE_S`` seconds, so they are evicted early, and evict no other entries. An OSError is
        stored in ``Outcome.error``, not raised."""
        outcome = Outcome([])
        try:
            with self._opened(create=True) as folder:
                for key, value in values.items():
                    if scan and self._holds(folder, key):
                        continue
                    size = HEADER_BYTES + len(value)
                    if size > self._largest_bytes:
                        continue
                    if not self._make_room(folder, size, outcome):
                        break  # the next write goes on trimming a folder that has far too much
                    self._write(folder, key, self._codec.encode(key, value), scan)
        except OSError as error:
            outcome.error = error
            if error.errno in _FULL:
                # the disk is smaller than the budget, so old entries would never be removed
                with contextlib.suppress(OSError), self._opened(create=False) as folder:
                    outcome.evicted += trim(folder, 0, once=True).evicted
        return outcome

    def drop(self, key: bytes) -> Outcome:
        """Remove the entry, if it exists. An OSError is stored in ``Outcome.error``, not raised."""
        outcome = Outcome([])
        try:
            with self._opened(create=False) as folder, entered(folder, key.hex()[:2]) as inner:
                os.unlink(key.hex(), dir_fd=inner)
        except FileNotFoundError:
            pass
        except OSError as error:
            outcome.error = error
        return outcome

    def usage(self) -> tuple[int, int]:
        """Return the number of entries and the bytes that their blocks take, without changing anything. Raises OSError
        if the folder cannot be read, UnsafeFolderError (an OSError) if it is not safe."""
        entries = held = 0
        with self._opened(create=False) as folder:
            for subfolder in _present(folder):
                with entered(folder, subfolder) as inner, os.scandir(inner) as listing:
                    for file in listing:
                        if _is_entry(file.name) and file.is_file(follow_symlinks=False):
                            entries += 1
                            held += blocks(file.stat(follow_symlinks=False).st_size)
        return entries, held * BLOCK_BYTES

    def clear(self) -> int:
        """Remove all entries, and nothing else; return their number. Other processes may use the folder meanwhile.
        Raises the errors of :meth:`usage`."""
        removed = 0
        with self._opened(create=False) as folder:
            for subfolder in _present(folder):
                entries, _ = _list_and_count(folder, subfolder)
                with entered(folder, subfolder) as inner:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(entry.name, dir_fd=inner)
                            removed += 1
                _list_and_count(folder, subfolder)  # corrects the usage
        return removed

    def _holds(self, folder: int, key: bytes) -> bool:
        """Return whether the folder has a file for ``key``, without reading the file."""
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
        remaining = info.st_size - len(head)
        while remaining > 0:
            part = os.read(descriptor, remaining)
            if not part:
                return None
            parts.append(part)
            remaining -= len(part)
        value = self._codec.decode(key, b"".join(parts))
        if value is not None and abs(time.time() - info.st_mtime) > TOUCH_INTERVAL_S:
            with contextlib.suppress(OSError):  # a folder that cannot be written to
                os.utime(descriptor)
        return value

    def _write(self, folder: int, key: bytes, entry: bytes, scan: bool) -> None:
        name = key.hex()
        with entered(folder, name[:2], create=True) as inner:
            # counted first, so that the count includes the file of a writer that dies
            with _usage_file(folder, name[:2]) as usage:
                os.write(usage, bytes(blocks(len(entry))))
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
                if scan:  # after the rename: old temporary files are removed
                    old = time.time() - SCAN_AGE_S
                    with contextlib.suppress(OSError):  # it was removed already
                        os.utime(name, (old, old), dir_fd=inner, follow_symlinks=False)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=inner)
                raise

    def _make_room(self, folder: int, size: int, outcome: Outcome) -> bool:
        """Return whether ``size`` bytes may be written within the budget; remove old entries first if needed."""
        size = blocks(size) * BLOCK_BYTES
        if size > self._room:
            trimmed = trim(folder, self._max_bytes - size)
            outcome.evicted += trimmed.evicted
            # No room: another process is still trimming, or nothing can be removed.
            if trimmed.usage_bytes + size > self._max_bytes:
                return False
            self._room = max(size, min(self._max_bytes // CHECK_PART, self._max_bytes - trimmed.usage_bytes))
        self._room -= size
        return True

    @contextlib.contextmanager
    def _opened(self, *, create: bool) -> Iterator[int]:
        """Yield a descriptor of the folder for one batch. Between batches the folder may be removed or replaced."""
        try:
            descriptor = _open_directory(self._path, create=create)
        except OSError as error:
            if error.errno in _NOT_A_FOLDER:
                raise UnsafeFolderError("is a link or not a folder") from error
            raise
        try:
            info = os.fstat(descriptor)
            if info.st_uid != os.geteuid():
                raise UnsafeFolderError(f"belongs to another user (uid {info.st_uid})")
            if info.st_mode & 0o022:
                raise UnsafeFolderError(f"can be written to by other users (mode {info.st_mode & 0o777:o})")
            yield descriptor
        finally:
            os.close(descriptor)
