"""Opening datasets with what is known of their files beside them."""

from __future__ import annotations

from collections.abc import Sequence

from asyncpq.datasets.dataset import Dataset, with_source
from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.model import View
from asyncpq.datasets.opened_file import Columns
from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.file_index import FileIndex
from asyncpq.indexing.indexed_files import IndexedFiles
from asyncpq.indexing.lakes import is_committed
from asyncpq.indexing.open_index import OpenIndex
from asyncpq.indexing.snapshot_files import SnapshotFiles
from asyncpq.resources import Resources
from asyncpq.storage.urls import safe_url


def open_snapshot(resources: Resources, index: OpenIndex, own: Sequence[FileIndex] = (), *, skips: bool) -> Dataset:
    """The files that an index lists; nothing is asked for yet.

    Args:
        own: further indexes, of the caller's own.
        skips: bad files are left out.

    Raises:
        InvalidOptionError: no build of the index has ended.
    """
    manifest = index.manifest
    if not manifest.is_built:
        raise InvalidOptionError(
            "the index knows no files yet: its first build has not ended",
            hint="Write to the folder again: nothing was committed yet."
            if is_committed(manifest)
            else "Build it again, or open the dataset without it.",
        )
    source = SnapshotFiles(resources, index, own)
    columns = Columns(manifest.schema, None, object())
    url = safe_url(manifest.root) or index.place.description
    return Dataset(DatasetState(resources, url, source, columns, skips, partitions=manifest.partitions))


def open_indexed(
    resources: Resources, base: Dataset, index: OpenIndex | None, own: Sequence[FileIndex] = (), *, folder: str = ""
) -> Dataset:
    """The files of another dataset; those that an index knows are pruned by it.

    Args:
        base: of any view; of view "snapshot", by another index.
        index: None where only indexes of the caller's own are asked.
        folder: url that their paths are relative to.
    """
    partitions = base._state.partitions if base.view is View.LISTED else None
    return with_source(base, lambda source: IndexedFiles(resources, source, index, own, folder, partitions))
