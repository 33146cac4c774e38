"""Datasets as an engine reads them that has rules of its own: for files, for values in paths, and for types."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import FileProvider, FileSet, ListedFiles, WrappedFiles
from asyncpq.distributed.engine_scans import EngineRules
from asyncpq.distributed.footers import ReadFooter, read_footers
from asyncpq.events import Operation
from asyncpq.expressions import Expression, columns, implied, simplify
from asyncpq.objects.runtime import runtime_of
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session

#: Files in one set of an index's.
SET_FILES = 16_384


@runtime_checkable
class _InSets(Protocol):
    """A provider that can give its files in sets."""

    def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]: ...


async def file_sets(
    source: FileProvider, request: ScanRequest, operation: Operation, most_files: int | None = None
) -> AsyncGenerator[FileSet]:
    """Yield the files of ``source`` that may have rows for ``request``, in order: all in one set, unless an index lists
    very many (``most_files`` in a set, or ``SET_FILES``)."""
    if not isinstance(source, _InSets):
        yield await source.files(request, operation)
        return
    async with aclosing(source.sets(request, operation, most_files=most_files or SET_FILES)) as sets:
        async for found in sets:
            yield found


class EngineFiles(WrappedFiles):
    """The files of another provider, ``source``, as an engine has them: a
    :class:`asyncpq.datasets.providers.FileProvider`, whose methods it has.

    Attributes:
        source: the other provider.
        reads: returns whether the engine reads a file; None if it reads all.
        values: returns the engine's values of the columns ``retyped`` for a file; None: the file has them already.
        retyped: columns in paths for which the engine has other values than ``source``, which gets no conditions on
            them.
        schemas: the columns of the dataset and those of the index, which are from when it was built: the index gets
            only conditions that these columns can evaluate. None: it gets all.
    """

    def __init__(
        self,
        source: FileProvider,
        rules: EngineRules,
        *,
        reads: Callable[[DataFile], bool] | None = None,
        values: Callable[[DataFile], Mapping[str, Any]] | None = None,
        retyped: Collection[str] = (),
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        super().__init__(source)
        self._rules = rules
        self._reads = reads
        self._values = values
        self._retyped = frozenset(retyped)
        self._schemas = schemas

    @property
    def index(self) -> Any:
        """The index that prunes files before they are opened. None if there is no index, or if its columns have other
        types than the dataset's."""
        return self.source.index if self._schemas is None else None

    @property
    def known(self) -> FileSet | None:
        """The files of the last listing, without a request; None if there was none, or if columns are ``retyped``."""
        known = None if self._retyped else self.source.known
        return None if known is None else self._as_read(known)

    async def files(
        self, request: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        """Return the files that may have rows for ``request``, without those that the engine does not read."""
        may_be_stale = allow_stale and not self._retyped and self._reads is None  # the renewal would be unchanged
        found = await self.source.files(self._request(request), operation, scan=scan, allow_stale=may_be_stale)
        return self._as_read(found)

    async def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]:
        """Yield the files of :meth:`files` as :func:`file_sets` does."""
        async with aclosing(file_sets(self.source, self._request(request), operation, most_files)) as sets:
            async for found in sets:
                yield self._as_read(found)

    def _as_read(self, found: FileSet) -> FileSet:
        reads, values = self._reads, self._values
        if reads is not None:
            found = found._replace(files=[file for file in found.files if reads(file)])
        if values is None:
            return found
        return found._replace(
            files=[replace(file, partition={**file.partition, **values(file)}) for file in found.files]
        )

    def _request(self, request: ScanRequest) -> ScanRequest:
        if not self._retyped and self._schemas is None:
            return request
        where, prune = self._asked(request.where), self._asked(request.prune)
        return request._replace(where=where, prune=None if where is None or prune is None else simplify(prune))

    def _asked(self, where: Expression | None) -> Expression | None:
        """Return the part of the condition ``where`` that ``source`` can evaluate with its own values and columns."""
        if where is not None and self._retyped:
            where = implied(where, lambda atom: atom if self._retyped.isdisjoint(columns(atom)) else None)
        return where if self._schemas is None else self._rules.condition_on(where, *self._schemas)


class EngineDataset(DatasetState):
    """The state of a dataset for an engine's rules: files may lack columns and store other types."""

    __slots__ = ()

    @classmethod
    def of(cls, dataset: Dataset, *, skips_missing: bool = False) -> Self:
        """Return the state of an open dataset, of the listing that opening has made.

        Args:
            skips_missing: leave out files that do not exist.
        """
        state = state_of(dataset)
        skips_missing = skips_missing or state.skips_missing
        source = state.source
        if isinstance(source, ListedFiles):
            source = replace(source, check=None)  # also of local files that are replaced meanwhile
        values = {item.name: getattr(state, item.name) for item in fields(state) if item.init}
        return cls(**values | {"source": source, "unifier": None, "skips_missing": skips_missing})

    def opening(self) -> Operation:
        """Return a new, not yet begun operation, which counts the cost of what an engine reads to open the dataset."""
        return self.runtime.operation("open", self.url)

    def own_storage(self, session: Session) -> Mapping[str, Any] | None:
        """Return the storage options with which a loaded table was opened; None if they are the session's.

        They are flat, or by protocol, as the session's are.
        """
        own, known = self.runtime.storage_options, runtime_of(session).storage_options
        if own == known:
            return None
        merged: Mapping[str, Any] = next(iter(own.values()), {})
        return merged if known and known.keys() <= merged.keys() else own

    @staticmethod
    def folder_of(target: object) -> str | None:
        """Return the url of the folder that a target of :meth:`asyncpq.Session.open_dataset` names, with a slash at its
        end; None for a pattern or a list."""
        named = parse_target(target)
        return named.folder if named.urls is None and named.pattern is None else None

    async def files(self, operation: Operation) -> AsyncGenerator[Sequence[DataFile]]:
        """Yield all files, those of the last listing or of a new one if there was none; those of an index that lists
        very many in several sets."""
        known = self.source.known
        if known is not None and known.files:
            yield known.files
            return
        async with aclosing(file_sets(self.source, ScanRequest(), operation)) as sets:
            async for found in sets:
                yield found.files

    def footers(
        self, files: Sequence[DataFile], operation: Operation, *, first: bool = False
    ) -> AsyncGenerator[ReadFooter]:
        """Yield the footers of files, see :func:`asyncpq.distributed.footers.read_footers`."""
        return read_footers(self, files, operation, first=first)
