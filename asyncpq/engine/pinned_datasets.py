"""Handles for requests that share a dataset: with costs of their own, or with fixed versions of the files.

:func:`pinned` fixes the version of each file, if the store can tell versions apart. A digest of these versions
identifies the rows, such as in an ETag of an HTTP response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from asyncpq.checkpoints import paused
from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import FileProvider, FileSet, WrappedFiles
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import load_version, open_source
from asyncpq.scan.request import BoundPredicate, ScanRequest
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.threads import results_of

__all__ = ["BoundPredicate", "NotModifiedError", "PinnedDataset", "own_handle", "pinned"]

_FILES_A_STEP: Final = 4  # are looked through: see Runtime.off_loop
_MAX_ASKED: Final = 64  # files without a version in the listing; with more of them, there is no digest


class NotModifiedError(Exception):
    """Raised by a read of a :class:`PinnedDataset` before any data is fetched: ``is_known`` of :func:`pinned` returned
    True for the files' versions."""


class PinnedDataset:
    """A dataset for one read, whose files have fixed versions. Made by :func:`pinned`.

    Attributes:
        dataset: the :class:`asyncpq.Dataset` to read with, once.
    """

    def __init__(self, dataset: Dataset, files: _PinnedFiles) -> None:
        self.dataset: Dataset = dataset
        self._files = files

    @property
    def digest(self) -> str | None:
        """A digest (text) of the files' versions and of the rows that a table has deleted from them. None until the
        read has its list of files, if the store cannot tell versions apart, or if the versions of more than 64 files
        would have to be requested.
        """
        return self._files.digest

    @property
    def metrics(self) -> ReadMetrics:
        """The cost of the read so far (:class:`asyncpq.ReadMetrics`), also after NotModifiedError."""
        return self._files.metrics


def pinned(dataset: Dataset, is_known: Callable[[str], bool]) -> PinnedDataset:
    """Return a handle of ``dataset`` for one read, which reads one version of each file: the one that exists when the
    read begins. Makes no request; the read raises ObjectChangedError if a file is replaced meanwhile.

    Args:
        is_known: is called with the digest of the versions before any data is fetched; if it returns True, the read
            raises NotModifiedError.
    """
    state = state_of(dataset)
    files = _PinnedFiles(state.runtime, state.source, is_known)
    copy = replace(state, source=files)
    copy.known = state.known
    return PinnedDataset(Dataset(copy), files)


def own_handle(dataset: Dataset) -> Dataset:
    """Return another handle of ``dataset``, whose ``metrics`` count only its own reads. Makes no request."""
    state = state_of(dataset)
    copy = replace(state)
    copy.known = state.known
    return Dataset(copy)


class _Pinned(NamedTuple):
    files: Sequence[DataFile]
    digest: str  # of all versions


class _PinnedFiles(WrappedFiles):
    """A :class:`FileProvider` for one read. It gives the files of another provider, each fixed to one version."""

    known: FileSet | None = None

    def __init__(self, runtime: Runtime, source: FileProvider, is_known: Callable[[str], bool]) -> None:
        super().__init__(source)
        self.digest: str | None = None
        self.metrics: ReadMetrics = ReadMetrics()
        self._runtime = runtime
        self._is_known = is_known

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        """Return the files with their versions fixed. Raises NotModifiedError if the caller knows these versions."""
        self.metrics = operation.metrics
        found = await self.source.files(ask, operation, scan=scan)
        unknown = await self._runtime.off_loop(partial(_unknown, found.files), len(found.files) // _FILES_A_STEP)
        if len(unknown) > _MAX_ASKED:
            return found
        context = RequestContext(operation.metrics, scan=scan, round=operation.metrics.rounds + 1)
        pinned = await self._pinned(found, unknown, context, validate=False)
        if pinned is not None and self._is_known(pinned.digest) and unknown:
            # cached versions are validated with the store, as a read does
            pinned = await self._pinned(found, unknown, context, validate=True)
        if pinned is None:
            return found
        if self._is_known(pinned.digest):
            raise NotModifiedError
        self.digest = pinned.digest
        return found._replace(files=pinned.files, rounds=operation.metrics.rounds)

    async def _pinned(
        self, found: FileSet, unknown: Sequence[int], context: RequestContext, *, validate: bool
    ) -> _Pinned | None:
        """Return the files fixed to their versions; None if the version of a file stays unknown.

        Args:
            unknown: positions of the files whose versions are not known yet.
            validate: ask the store for these versions, if the cache policy requires it.
        """
        files = found.files
        versions = await results_of([self._version(files[at], context, validate=validate) for at in unknown])
        if None in versions:
            return None
        fix = partial(pin, files, dict(zip(unknown, versions, strict=True)), num_rows=found.num_rows)
        return await self._runtime.off_loop(fix, len(files))

    async def _version(self, file: DataFile, context: RequestContext, *, validate: bool) -> Validator | None:
        source = await open_source(self._runtime, file.url)
        try:
            version = await load_version(source, context)
            if validate and not source.freshness.is_fresh(version):
                version = await source.present(version, context)
            return version.validator if version.validator.is_strong else None
        finally:
            await source.handle.close()


def pin(files: Sequence[DataFile], versions: Mapping[int, Validator | None], *, num_rows: int = 0) -> _Pinned:
    """Return ``files``, each fixed to its version, and a digest of all versions. ``versions`` has, by position,
    those that the files themselves do not state. ``num_rows``: rows of other files, which are only counted."""
    digest = hashlib.sha256(str(num_rows).encode() if num_rows else b"")
    pinned = []
    for at, file in enumerate(paused(files)):
        validator = versions.get(at, file.validator)
        deletes = None if file.deletes is None else repr(file.deletes.identity)
        version = b"" if validator is None else validator.digest()
        for part in (file.url, str(file.size if validator is None else validator.size), version.hex(), deletes or ""):
            digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        fixed = file if file.immutable or file.pinned else replace(file, validator=validator, pinned=True)
        pinned.append(fixed)
    return _Pinned(pinned, digest.hexdigest())


def _unknown(files: Sequence[DataFile]) -> list[int]:
    """Return the positions of the files that have no validator which identifies the version to read."""
    return [
        at
        for at, file in enumerate(paused(files))
        if not (file.immutable or file.content is not None or file.unreadable is not None)
        and (file.validator is None or not file.validator.is_strong)
    ]
