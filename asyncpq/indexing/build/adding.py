"""Commit files that asyncpq wrote to their index, and remove files that were never committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa

from asyncpq.datasets.listing import INDEX_FOLDER, parse_target
from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.datasets.partitioning import parse_partitioning
from asyncpq.errors import AsyncpqError, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.build.index_builder import IndexBuilder, Refreshed
from asyncpq.indexing.build.index_source import IndexSource, described_files, is_committed
from asyncpq.indexing.build.maintenance import compact_if_due
from asyncpq.indexing.commits import files_of, load, manifest_ages, numbered
from asyncpq.indexing.index_model import IndexBackend, IndexTable
from asyncpq.indexing.kinds import Bounds, Footers, IndexKind
from asyncpq.indexing.manifest import Manifest
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import KnownVersion
from asyncpq.options import BuildOptions
from asyncpq.parquet.metadata import TRAILER_BYTES, decode_file_metadata
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.base import RequestContext, Validator, writable
from asyncpq.storage.local import remove_empty_folders
from asyncpq.storage.urls import safe_url

#: Folder of the data files, below the dataset's url.
DATA_FOLDER: Final = "data/"
#: At most so many columns have bounds in an index without explicit kinds: each adds a segment to every commit.
MOST_BOUNDS: Final = 32
#: Files younger than so many seconds may belong to a write that is not finished.
ORPHANS_S: Final = 86_400.0


logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A data file that was written to the dataset's folder and that no snapshot lists yet. Can be pickled.

    Attributes:
        path: path relative to the dataset's folder.
        validator: identifies the written version, as the response to a GET would.
        footer_start: offset of the footer in the file.
        tail: last bytes of the file: page indexes and footer; if empty, these are fetched.
    """

    path: str
    validator: Validator
    num_rows: int
    footer_start: int = 0
    tail: bytes = b""


async def lake_backend(runtime: Runtime, folder: str, *, create: bool) -> IndexBackend:
    """Return the backend of the index in ``_asyncpq/`` below ``folder``, a url that ends in a slash."""
    return await open_backend(runtime, folder + INDEX_FOLDER, create=create)


async def add_files(
    runtime: Runtime,
    folder: str,
    files: Sequence[AddedFile],
    schema: pa.Schema,
    *,
    kinds: Sequence[IndexKind] | None = None,
    overwrite: bool = False,
    options: BuildOptions,
) -> Refreshed:
    """Add ``files`` to the index of a folder that asyncpq writes, in one commit; create the index if there is none.

    Args:
        folder: url of the dataset, with a final slash.
        schema: schema of the files.
        kinds: kinds of the index; None: the existing index's kinds, or footers and bounds for a new index.
        overwrite: readers then see only ``files``, even if another process added other files meanwhile.

    Raises:
        SchemaMismatchError: the files have other columns than the existing ones.
        InvalidOptionError: the index has other kinds, or covers files that asyncpq did not write.
        ObjectNotFoundError, ObjectChangedError: one of the files was deleted or replaced.
        StaleSnapshotError: the dataset was overwritten with other columns meanwhile.
    """
    operation = runtime.operation("build", safe_url(folder))
    with operation:
        backend = await lake_backend(runtime, folder, create=True)
        base = await load(backend, operation)
        if base is not None:
            check_lake(base, backend)
        kept = base is not None and kinds is None and (not overwrite or base.schema.equals(schema))
        # only the index's files are live
        described = described_files(parse_target(folder), parse_partitioning("hive"), inside=True)
        source = IndexSource(
            url=safe_url(folder),
            root=folder,
            dataset={**described, "committed": True},
            schema=schema,
            fields=None,
            partitions=(),
            files=[_data_file(folder, file) for file in files],
            complete=False,
            required=True,
            alone=overwrite,
            as_of=datetime.now(UTC),
        )
        index_tables = None if kept else lake_tables(schema, kinds)  # None: those that the index has
        done = await IndexBuilder(runtime, backend, source, index_tables, operation, options, base).run()
        try:
            done = done.after(await compact_if_due(runtime, backend, options, done.manifest, operation))
        except AsyncpqError as error:  # the files are committed
            logger.warning("%s is not compacted: %s", backend.description, error)
    return done


def check_lake(manifest: Manifest, backend: IndexBackend) -> None:
    """Raise InvalidOptionError if the index covers files that asyncpq did not write. Readers of such a folder see
    all files in it, whether the index lists them or not, so a commit to the index cannot add or hide files."""
    if not is_committed(manifest):
        raise InvalidOptionError(
            "the folder's index covers files that asyncpq did not write, so readers see all files there:"
            " a commit cannot add or hide any",
            url=backend.description,
            hint="Write to another folder; or drop the index, and optimize the folder's files into a new folder.",
        )


def lake_tables(schema: pa.Schema, kinds: Sequence[IndexKind] | None) -> list[IndexTable]:
    """Return the index tables of a new index of ``kinds`` (None: footers and bounds) over files with ``schema``.
    Raises ColumnNotFoundError or InvalidOptionError if a kind does not fit the columns."""
    if kinds is not None:
        return [index_table for kind in kinds for index_table in kind.tables(schema)]
    return [*Footers().tables(schema), *Bounds().tables(schema)[:MOST_BOUNDS]]


def _data_file(folder: str, file: AddedFile) -> DataFile:
    async def known(operation: Operation) -> KnownVersion:
        start = file.validator.size - len(file.tail)
        footer_offset = file.footer_start - start
        return KnownVersion(
            validator=file.validator,
            metadata=decode_file_metadata(file.tail[footer_offset:-TRAILER_BYTES]),
            leaves=None,
            footer_start=file.footer_start,
            spans=[(start, file.tail[:footer_offset])],
        )

    return DataFile(
        url=folder + file.path,
        validator=file.validator,
        size=file.validator.size,
        num_rows=file.num_rows,
        pinned=True,
        entry=IndexEntry(validator=file.validator, known=known) if file.tail else None,
    )


async def live_paths(runtime: Runtime, folder: str) -> tuple[set[str], int]:
    """Return the paths of the files that readers of a folder see, and the number of the newest snapshot. Without an
    index: no paths, and 0."""
    operation = runtime.operation("open", safe_url(folder))
    with operation:
        backend = await lake_backend(runtime, folder, create=True)
        manifest = await load(backend, operation)
        if manifest is None:
            return set(), 0
        files = await files_of(runtime, backend, manifest, manifest.live, operation)
        return {file.path for file in files}, manifest.snapshot


async def discard_files(runtime: Runtime, folder: str, prefix: str) -> list[str]:
    """Delete the files below ``folder`` whose relative paths begin with ``prefix``, the folder of one write, except
    those that the index's newest snapshot lists. Return the relative paths of the deleted files.

    After a StoreError, some of the files may not be deleted.
    """
    operation = runtime.operation("vacuum", safe_url(folder))
    with operation:
        files = await _list(runtime, folder, prefix, operation)
        deleted = list[str]()
        if files:
            backend = await lake_backend(runtime, folder, create=False)
            manifest = await load(backend, operation)
            kept = set[str]()
            if manifest is not None:
                kept = {file.path for file in await files_of(runtime, backend, manifest, manifest.live, operation)}
            deleted = await _delete(runtime, folder, files.keys() - kept, operation)
        await runtime.in_thread(partial(remove_empty_folders, folder + prefix))
        return deleted


async def vacuum_files(runtime: Runtime, folder: str, *, older_than_s: float) -> list[str]:
    """Delete the data files that no snapshot lists and that are older than ``older_than_s`` seconds by the store's
    clock (see :data:`ORPHANS_S`); return their paths. :meth:`Index.vacuum` removes snapshots.

    Raises ObjectNotFoundError if the folder has no index, InvalidOptionError if its index covers files that asyncpq did
    not write. After a StoreError, some of the files may not be deleted.
    """
    operation = runtime.operation("vacuum", safe_url(folder))
    with operation:
        backend = await lake_backend(runtime, folder, create=False)
        files = await _list(runtime, folder, DATA_FOLDER, operation)
        store = writable((await runtime.store(folder))[0], safe_url(folder))
        now = await store.clock(folder, context=RequestContext(operation.metrics, purpose="list"))
        kept = await _kept(runtime, backend, operation)  # after the listing, so that files committed meanwhile are kept
        old = {path for path, modified in files.items() if modified is not None and now - modified > older_than_s}
        return await _delete(runtime, folder, old - kept, operation)


async def _kept(runtime: Runtime, backend: IndexBackend, operation: Operation) -> set[str]:
    """Return the paths of the data files to keep: those that a snapshot lists, and those that a running build may
    commit. Raises ObjectNotFoundError if there is no index, InvalidOptionError as :func:`check_lake` does."""
    newest = await load(backend, operation)
    if newest is None:
        raise ObjectNotFoundError(
            "there is no index of this folder, because no write to it was committed yet",
            url=backend.description,
            hint="Write to the folder first, or check its url.",
        )
    check_lake(newest, backend)
    seen, paths = RowRanges(), set[str]()
    for number in sorted({*await manifest_ages(backend, operation), newest.snapshot}, reverse=True):
        manifest = newest if number == newest.snapshot else await numbered(backend, number, operation)
        if manifest is None:
            continue
        ids = (manifest.live | manifest.reserved) - seen
        if ids:
            paths.update(file.path for file in await files_of(runtime, backend, manifest, ids, operation))
            seen = seen | ids
    return paths


async def _list(runtime: Runtime, folder: str, prefix: str, operation: Operation) -> dict[str, float | None]:
    """List the files whose urls begin with ``folder + prefix``: modification times (None if unknown) by relative
    path."""
    store = (await runtime.store(folder))[0]
    context = RequestContext(operation.metrics, purpose="list")
    listed = await store.list_objects(folder + prefix, context=context)
    return {item.url[len(folder) :]: item.modified for item in listed}


async def _delete(runtime: Runtime, folder: str, paths: Set[str], operation: Operation) -> list[str]:
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    context = RequestContext(operation.metrics, purpose="write", round=operation.metrics.rounds + 1)
    ordered = sorted(paths)
    await store.delete_objects([folder + path for path in ordered], context=context)
    return ordered
