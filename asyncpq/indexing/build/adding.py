"""Files that were written for an index: it lists them from one commit on, and what it never listed is removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from asyncpq.datasets.listing import INDEX_FOLDER, parse_target
from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.datasets.partitioning import parse_partitioning
from asyncpq.errors import AsyncpqError, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.build.builder import Refreshed, build
from asyncpq.indexing.build.differences import IndexSource
from asyncpq.indexing.build.lakes import described_files, is_committed
from asyncpq.indexing.build.maintenance import compact_if_due
from asyncpq.indexing.kinds import Bounds, Footers, IndexKind
from asyncpq.indexing.manifest.commits import files_of, load, numbered
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.model import IndexBackend, IndexTable
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import KnownVersion
from asyncpq.options import BuildOptions
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import ListedObject, RequestContext, Validator, writable
from asyncpq.storage.urls import safe_url

#: Of a lake, files are below this folder.
DATA_FOLDER: Final = "data/"
#: Columns of which an index that nobody described knows bounds: each of them is a segment more in every commit.
MOST_BOUNDS: Final = 32
#: Files of a lake that are younger may belong to a write that has not ended.
ORPHANS_S: Final = 86_400.0

_TRAILER_BYTES: Final = 8  # a footer's length, and PAR1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file that is there, and that nobody sees yet. Can be pickled.

    Attributes:
        path: relative to the lake's folder.
        validator: of its version, as a GET has it.
        num_rows: of the file.
        footer_start: where its footer begins.
        tail: its last bytes: page indexes and footer. Empty: they are fetched.
    """

    path: str
    validator: Validator
    num_rows: int
    footer_start: int = 0
    tail: bytes = b""


async def lake_backend(runtime: Runtime, folder: str, *, create: bool) -> IndexBackend:
    """Where the index of a lake is kept: below its ``folder``, which ends in a slash."""
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
    """List ``files`` in the index of a lake, all in one commit; the index is made if there is none.

    Args:
        folder: url of the lake, with its slash.
        schema: of the files.
        kinds: what the index is to know; None: what it knows, of a new one footers and bounds.
        overwrite: no other file is listed after that commit, whoever has added some meanwhile.

    Raises:
        SchemaMismatchError: the columns are not those of the files that are listed.
        InvalidOptionError: the index there knows other things, or is of something else than these files.
        ObjectNotFoundError, ObjectChangedError: one of the files is not there any more.
        StaleSnapshotError: the lake was overwritten with other columns meanwhile.
        StoreError: the store failed.
    """
    operation = runtime.operation("build", safe_url(folder))
    with operation:
        backend = await lake_backend(runtime, folder, create=True)
        base = await load(backend, operation)
        if base is not None:
            check_lake(base, backend)
        kept = base is not None and kinds is None and (not overwrite or base.schema.equals(schema))
        source = IndexSource(
            url=safe_url(folder),
            root=folder,
            dataset=described_lake(folder),
            schema=schema,
            fields=None,
            partitions=(),
            files=[_data_file(folder, file) for file in files],
            complete=False,
            required=True,
            alone=overwrite,
            as_of=datetime.now(UTC),
        )
        index_tables = None if kept else lake_tables(schema, kinds)
        done = await build(runtime, backend, source, index_tables, operation, options, base)
        try:
            done = done.after(await compact_if_due(runtime, backend, options, done.manifest, operation))
        except AsyncpqError as error:  # the files are there
            logger.warning("%s is not compacted: %s", backend.description, error)
    return done


def described_lake(folder: str) -> dict[str, object]:
    """``Manifest.dataset`` of a lake: what it does not list was never committed."""
    described = described_files(parse_target(folder), parse_partitioning("hive"), inside=True)
    return {**described, "committed": True}


def check_lake(manifest: Manifest, backend: IndexBackend) -> None:
    """
    Raises:
        InvalidOptionError: the index was built over files that others write.
    """
    if not is_committed(manifest):
        raise InvalidOptionError(
            "there is an index of files that were not written by asyncpq, and it does not decide which of them count",
            url=backend.description,
            hint="Write to another folder; or drop that index and optimize its files into a new one.",
        )


def lake_tables(schema: pa.Schema, kinds: Sequence[IndexKind] | None) -> list[IndexTable]:
    """The parts of a new index.

    Raises:
        ColumnNotFoundError, InvalidOptionError: of a kind.
    """
    if kinds is not None:
        return [index_table for kind in kinds for index_table in kind.tables(schema)]
    return [*Footers().tables(schema), *Bounds().tables(schema)[:MOST_BOUNDS]]


def _data_file(folder: str, file: AddedFile) -> DataFile:
    entry = None
    if file.tail:

        async def known(operation: Operation) -> KnownVersion:
            return _known_version(file)

        entry = IndexEntry(validator=file.validator, known=known)
    return DataFile(
        url=folder + file.path,
        validator=file.validator,
        size=file.validator.size,
        num_rows=file.num_rows,
        pinned=True,
        entry=entry,
    )


def _known_version(file: AddedFile) -> KnownVersion:
    start = file.validator.size - len(file.tail)
    footer = file.tail[file.footer_start - start : -_TRAILER_BYTES]
    return KnownVersion(
        validator=file.validator,
        metadata=decode_file_metadata(footer),
        leaves=None,
        footer_start=file.footer_start,
        spans=[(start, file.tail[: file.footer_start - start])],
    )


# -- what is not listed ---------------------------------------------------------------------------


async def discard_files(runtime: Runtime, folder: str, prefix: str) -> list[str]:
    """Delete the files of a lake whose paths begin with ``prefix``, but for those that the index lists now.

    Returns:
        their paths.

    Raises:
        StoreError: the store failed; some may be left.
    """
    operation = runtime.operation("vacuum", safe_url(folder))
    with operation:
        found = await _list(runtime, folder, prefix, operation)
        if not found:
            return []
        backend = await lake_backend(runtime, folder, create=False)
        manifest = await load(backend, operation)
        kept = set[str]()
        if manifest is not None:
            kept = {file.path for file in await files_of(runtime, backend, manifest, manifest.live, operation)}
        return await _delete(runtime, folder, [item for item in found if _path(folder, item) not in kept], operation)


async def vacuum_files(runtime: Runtime, folder: str, *, older_than_s: float) -> list[str]:
    """Delete the files of a lake that no snapshot lists which is still kept; what :meth:`Index.vacuum` keeps, is kept.

    Args:
        older_than_s: by the store's clock; see :data:`ORPHANS_S`.

    Returns:
        their paths.

    Raises:
        ObjectNotFoundError: there is no index.
        InvalidOptionError: it is that of files which others write.
        StoreError: the store failed; some may be left.
    """
    operation = runtime.operation("vacuum", safe_url(folder))
    with operation:
        backend = await lake_backend(runtime, folder, create=False)
        found = await _list(runtime, folder, DATA_FOLDER, operation)
        store = writable((await runtime.store(folder))[0], safe_url(folder))
        now = await store.clock(folder, context=RequestContext(operation.metrics, purpose="list"))
        kept = await _kept(runtime, backend, operation)  # after the listing: what is committed meanwhile is in it
        old = [item for item in found if item.modified is not None and now - item.modified > older_than_s]
        return await _delete(runtime, folder, [item for item in old if _path(folder, item) not in kept], operation)


async def _kept(runtime: Runtime, backend: IndexBackend, operation: Operation) -> set[str]:
    """Paths of the files that a snapshot lists, or that a build which has begun may bring."""
    newest = await load(backend, operation)
    if newest is None:
        raise ObjectNotFoundError(
            "there is no index", url=backend.description, hint="Nothing was ever committed there."
        )
    check_lake(newest, backend)
    seen, paths = RowRanges(), set[str]()
    for number in sorted({*await backend.list_manifests(operation=operation), newest.snapshot}, reverse=True):
        manifest = newest if number == newest.snapshot else await numbered(backend, number, operation)
        if manifest is None:
            continue
        ids = (manifest.live | manifest.reserved) - seen
        if ids:
            paths.update(file.path for file in await files_of(runtime, backend, manifest, ids, operation))
            seen = seen | ids
    return paths


async def _list(runtime: Runtime, folder: str, prefix: str, operation: Operation) -> list[ListedObject]:
    store = (await runtime.store(folder))[0]
    context = RequestContext(operation.metrics, purpose="list")
    return await store.list_objects(folder + prefix, context=context)


async def _delete(runtime: Runtime, folder: str, items: Sequence[ListedObject], operation: Operation) -> list[str]:
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    context = RequestContext(operation.metrics, purpose="write", round=operation.metrics.rounds + 1)
    await store.delete_objects([item.url for item in items], context=context)
    return [_path(folder, item) for item in items]


def _path(folder: str, item: ListedObject) -> str:
    return item.url[len(folder) :]
