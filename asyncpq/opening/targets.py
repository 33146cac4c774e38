"""From what users name to datasets and indexes: files, tables, places, views."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from asyncpq.dataset import Dataset
from asyncpq.datasets.listing import INDEX_FOLDER, Commits, Listing, Target, parse_target
from asyncpq.datasets.model import View
from asyncpq.datasets.partitioning import Partitioning, parse_partitioning
from asyncpq.datasets.schemas import SchemaPolicy
from asyncpq.errors import (
    CorruptIndexError,
    InvalidOptionError,
    ObjectNotFoundError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.build.index_source import (
    check_columns,
    check_partitioning,
    commit_check,
    committing_index,
    folder_around,
    is_committed,
    root_of,
)
from asyncpq.indexing.index import Index
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.indexing.manifest.commits import Head, latest
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.query.file_selection import FileIndex
from asyncpq.indexing.query.indexed_files import IndexedFiles
from asyncpq.indexing.query.open_index import OpenIndex
from asyncpq.objects.runtime import Runtime
from asyncpq.opening.datasets import open_files, open_indexed, open_snapshot, open_table
from asyncpq.scan.request import one_of
from asyncpq.storage.urls import safe_url
from asyncpq.tables import Format, Version, catalog_of

logger = logging.getLogger(__name__)

NOT_BUILT: Final = f"Build it: build_index(). By default a folder's index is in {INDEX_FOLDER} below it."


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """What :meth:`asyncpq.Session.open_dataset` takes."""

    format: Format | None = None
    version: Version | None = None
    schema: pa.Schema | None = None
    schema_policy: SchemaPolicy = "strict"
    partitioning: Literal["hive"] | Sequence[str] | None = "hive"
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None = None
    on_bad_file: Literal["raise", "skip"] = "raise"
    listing_max_age_s: float = 0.0

    def check(self) -> None:
        """
        Raises:
            InvalidOptionError: an option that cannot work.
        """
        one_of("schema_policy", self.schema_policy, ("strict", "permissive"))
        one_of("on_bad_file", self.on_bad_file, ("raise", "skip"))
        columns: Any = self.schema
        if columns is not None and not isinstance(columns, pa.Schema):
            raise InvalidOptionError(f"schema: must be a pyarrow.Schema, not a {type(columns).__name__}")
        age: Any = self.listing_max_age_s
        if not isinstance(age, (int, float)) or not age >= 0:
            raise InvalidOptionError(f"listing_max_age_s={age!r}: must be a number of at least 0")

    @property
    def skips(self) -> bool:
        return self.on_bad_file == "skip"

    def refuse(self, why: str, *names: str) -> None:
        """
        Raises:
            InvalidOptionError: one of these options was given, which is said to be wrong.
        """
        given = [name for name in names if getattr(self, name) != getattr(_DEFAULTS, name)]
        if given:
            raise InvalidOptionError(why, hint=f"Leave out {', '.join(given)}.")

    def described(self) -> Partitioning | None:
        return parse_partitioning(self.partitioning, self.partition_types, self.schema)


_DEFAULTS: Final = DatasetOptions()
_OF_FILES: Final = ("schema", "schema_policy", "partitioning", "partition_types")


async def open_target(
    runtime: Runtime, target: object, options: DatasetOptions, index: object, view: View | None
) -> Dataset:
    """See :meth:`asyncpq.Session.open_dataset`."""
    runtime.check()
    options.check()
    backend, own = _indexes(index)
    catalog = catalog_of(target, options.format, options.version)
    files = parse_target(target) if catalog is None else None
    operation = runtime.operation("open", shown_url(target, files))
    with operation:
        if files is None:
            if view not in (None, View.TABLE):
                raise InvalidOptionError(f"view={str(view)!r}: the files of a table are those of its snapshot")
            dataset = await _open_table(runtime, target, catalog, backend, own, options, operation)
        else:
            opening = _FilesOpening(runtime, files, backend, own, index is None, view, options, operation)
            dataset = await opening.open()
    dataset.metrics = operation.metrics
    _log_view(dataset)
    return dataset


def _log_view(dataset: Dataset) -> None:
    """Which files reads see, what the listing cost, and what would save it."""
    source = dataset.state.source
    cost = None if source.known is None else source.known.cost
    listing = "" if cost is None else f"; the listing took {cost}"
    if cost is not None and isinstance(source, IndexedFiles) and source.index is not None:
        listing += ", which view='snapshot' would save"
    logger.info("%s: view %s, %s%s", dataset.url, dataset.view, dataset.description, listing)


async def _open_table(
    runtime: Runtime,
    target: object,
    catalog: Any,
    backend: object | None,
    own: Sequence[FileIndex],
    options: DatasetOptions,
    operation: Operation,
) -> Dataset:
    options.refuse("a table has a schema, partitions and a list of files of its own", *_OF_FILES, "listing_max_age_s")
    shown = safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else None
    dataset = await open_table(runtime, catalog, shown, operation, skips=options.skips)
    if backend is None and not own:
        return dataset
    opened = None
    if backend is not None:
        opened = await _open(runtime, backend, operation, options.listing_max_age_s)
        check_columns(opened.manifest, dataset.state)
    return open_indexed(runtime, dataset, opened, own)


@dataclass(frozen=True, slots=True)
class _FilesOpening:
    """One call of :meth:`asyncpq.Session.open_dataset` for the files of a prefix, a pattern or a list."""

    runtime: Runtime
    files: Target
    place: object | None  # the index that the caller named; None for none
    own: Sequence[FileIndex]  # indexes of the caller's own
    finds: bool  # the index below the prefix is used, if there is one
    # that the caller asks for; None: "snapshot" where the index is the table, since asyncpq wrote the files and commits
    # them there; else "listed"
    view: View | None
    options: DatasetOptions
    operation: Operation

    async def open(self) -> Dataset:
        if self.view is View.TABLE:
            raise InvalidOptionError("view='table': the target is no table")
        if self.place is None and self.view is View.SNAPSHOT:
            return await self._snapshot_below()
        if self.place is None:
            return await self._with_index_below()
        is_prefix = bool(self.files.folder) and self.files.pattern is None
        index = await self._index(self.place, strict=self.view is View.SNAPSHOT)
        if self.view is View.SNAPSHOT or (is_prefix and self._is_list_of_files(index.manifest)):
            at = self.place.url if isinstance(self.place, Index) else self.place
            _check_root(root_of(self.files) if is_prefix else None, index.manifest, at)
            return self._snapshot(index)
        dataset = await self._listed(commit_check(self.runtime))
        own_index = await self._committing_index(dataset)
        if own_index is not None:
            dataset = self._snapshot(own_index)
        if own_index is None:
            check_partitioning(index.manifest, self.options.described())
        check_columns(index.manifest, dataset.state)
        return self._indexed(dataset, index)

    async def _snapshot_below(self) -> Dataset:
        """The files that the index in its place below the prefix lists; nothing is listed."""
        index = await self._index_if_any(f"{self._folder}{INDEX_FOLDER}") if self._folder else None
        if index is None:
            raise InvalidOptionError(
                "view='snapshot' needs an index, and there is none",
                url=self.operation.url,
                hint="Build one: build_index(). Or name the one that is kept elsewhere: index=...",
            )
        return self._snapshot(index)

    @property
    def _folder(self) -> str:
        """The prefix below which an index is looked for; "" where none is."""
        return self.files.folder if self.finds and self.files.pattern is None else ""

    async def _with_index_below(self) -> Dataset:
        """By the index in its place below the prefix; it is opened while the columns are looked for."""
        folder = self._folder
        below = f"{folder}{INDEX_FOLDER}"
        finding: asyncio.Task[OpenIndex | None] | None = None

        def find() -> asyncio.Task[OpenIndex | None]:
            nonlocal finding
            if finding is None:
                finding = asyncio.get_running_loop().create_task(self._index_if_any(below))
            return finding

        async def commits(other: str) -> bool:
            if other != folder:
                return await committing_index(self.runtime, other) is not None
            index = await find()
            return index is not None and is_committed(index.manifest)

        def on_listing(listing: Listing) -> None:
            if listing.has_index and folder:
                find()

        try:
            dataset = await self._listed(commits, on_listing)
            index = None if finding is None else await self._usable(finding)
        except ObjectNotFoundError:
            index = await find() if folder else None  # there may be an index that lists no files
            if index is None or not self._is_list_of_files(index.manifest):
                raise
            return self._snapshot(index)
        finally:
            if finding is not None:
                finding.cancel()
                await asyncio.wait((finding,))
        return await self._without_index(dataset) if index is None else self._by_index_below(dataset, index)

    def _by_index_below(self, dataset: Dataset, index: OpenIndex) -> Dataset:
        """The files that were listed, or those that the index lists where it is the table."""
        if self._is_list_of_files(index.manifest):
            return self._snapshot(index)
        if is_committed(index.manifest) and dataset.state.is_written:
            raise self._not_all_count()
        if not index.manifest.is_built:
            return dataset
        try:
            check_partitioning(index.manifest, self.options.described())
            check_columns(index.manifest, dataset.state)
        except (InvalidOptionError, SchemaMismatchError) as error:
            logger.warning("%s: the index below it is not used: %s", dataset.url, error)
            return dataset
        return self._indexed(dataset, index)

    def _is_list_of_files(self, manifest: Manifest) -> bool:
        """Whether the files are those that the index lists."""
        return self.view is View.SNAPSHOT or (self.view is None and is_committed(manifest))

    async def _without_index(self, dataset: Dataset) -> Dataset:
        own_index = await self._committing_index(dataset)
        if own_index is not None:
            return self._snapshot(own_index)
        return self._indexed(dataset, None) if self.own else dataset

    async def _committing_index(self, dataset: Dataset) -> OpenIndex | None:
        """The index that says which files of the prefix count, since asyncpq wrote them; None: all of them do.

        Raises:
            InvalidOptionError: the caller asks for others.
        """
        state = dataset.state
        may_be = state.has_index and state.is_written
        if not may_be or await committing_index(self.runtime, self.files.folder) is None:
            return None
        if self.view is not None or (self.place is None and not self.own):
            raise self._not_all_count()
        return await self._index(f"{self.files.folder}{INDEX_FOLDER}", strict=True)

    def _not_all_count(self) -> InvalidOptionError:
        return InvalidOptionError(
            "only the folder's index knows which files are live: others may be replaced, or were never committed",
            url=self.operation.url,
            hint='Leave out view= and index=; or pass format="parquet", too, to read every file that is there.',
        )

    async def _listed(self, commits: Commits, on_listing: Callable[[Listing], None] = lambda listing: None) -> Dataset:
        return await list_dataset(self.runtime, self.files, self.options, self.operation, commits, on_listing)

    def _indexed(self, dataset: Dataset, index: OpenIndex | None) -> Dataset:
        return open_indexed(self.runtime, dataset, index, self.own, folder=self.files.folder)

    def _snapshot(self, index: OpenIndex) -> Dataset:
        self.options.refuse(
            "the files of an index's snapshot have the columns that they had when it was built", *_OF_FILES
        )
        if index.manifest.dataset.get("kind") == "table":  # which rows are deleted, the table alone knows
            raise InvalidOptionError(
                "the index is of a table, whose files are not all rows",
                url=self.operation.url,
                hint="Open the table with it.",
            )
        return open_snapshot(self.runtime, index, self.own, skips=self.options.skips)

    async def _index(self, backend: object, *, strict: bool) -> OpenIndex:
        root = root_of(self.files) if self.files.pattern is None else ""
        return await _open(
            self.runtime, backend, self.operation, self.options.listing_max_age_s, root or None, strict=strict
        )

    async def _index_if_any(self, backend: object) -> OpenIndex | None:
        try:
            return await self._index(backend, strict=True)
        except ObjectNotFoundError:  # dropped since the listing
            return None

    async def _usable(self, finding: asyncio.Task[OpenIndex | None]) -> OpenIndex | None:
        """The index, unless it is damaged or of a newer asyncpq."""
        try:
            return await finding
        except (CorruptIndexError, UnsupportedFeatureError) as error:
            logger.warning("%s: the index below it is not used: %s", self.operation.url, error)
            return None


def shown_url(target: object, files: Target | None) -> str:
    """What names a target in messages: without secrets."""
    if files is not None:
        return safe_url(files.url)
    return safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else type(target).__name__


async def list_dataset(
    runtime: Runtime,
    files: Target,
    options: DatasetOptions,
    operation: Operation,
    commits: Commits,
    on_listing: Callable[[Listing], None] = lambda listing: None,
) -> Dataset:
    """The files of a prefix, a pattern or a list: see :func:`asyncpq.opening.datasets.open_files`."""
    return await open_files(
        runtime,
        files,
        operation,
        commits,
        schema=options.schema,
        policy=options.schema_policy,
        partitioning=options.described(),
        skips=options.skips,
        plain=options.format == "parquet",
        listing_max_age_s=options.listing_max_age_s,
        on_listing=on_listing,
    )


def _indexes(index: object) -> tuple[object | None, list[FileIndex]]:
    """The place, url or handle of an index, and indexes of the caller's own."""
    some = list(index) if isinstance(index, (list, tuple)) else [] if index is None or index is False else [index]
    own = [one for one in some if not isinstance(one, Index) and isinstance(one, FileIndex)]
    backends = [one for one in some if one not in own]
    if len(backends) > 1:
        raise InvalidOptionError("index: one index of asyncpq's, and any number of your own")
    return (backends[0] if backends else None), own


async def _open(
    runtime: Runtime,
    index: object,
    operation: Operation,
    max_age_s: float,
    root: str | None = None,
    *,
    strict: bool = False,
) -> OpenIndex:
    """
    Args:
        root: url of the folder whose files are read with the index; None where they are of several.
        strict: the index must be of that folder, else it may be of one inside or around it.

    Raises:
        ObjectNotFoundError: there is no index.
        InvalidOptionError: it is of another folder.
    """
    if isinstance(index, Index):
        backend, manifest, pinned = index.backend, index.manifest, index.head.pinned
        at: object = index.url
    else:
        backend = await open_backend(runtime, place_of(index, "index"), create=False)
        found = await latest(backend, operation)
        if found is None:
            raise ObjectNotFoundError("there is no index", url=backend.description, hint=NOT_BUILT)
        manifest, pinned, at = found, False, index
    if not strict and _is_of_another_folder(root, manifest, at):
        root = None
    _check_root(root, manifest, at)
    return OpenIndex(backend, Head(backend, manifest, root=root, pinned=pinned), max_age_s)


def _is_of_another_folder(root: str | None, manifest: Manifest, at: object) -> bool:
    """Whether an index is of a folder inside of another, or around it: no other url of it."""
    known = manifest.root
    if root is None or not known or root == known or folder_around(at) == root:
        return False
    return root.startswith(known) or known.startswith(root)


def _check_root(root: str | None, manifest: Manifest, at: object) -> None:
    """
    Raises:
        InvalidOptionError: the index is of a folder inside of ``root``, or around it.
    """
    if _is_of_another_folder(root, manifest, at):
        raise InvalidOptionError(
            "the index is of another folder",
            url=safe_url(manifest.root),
            hint="Open that folder with it, or this one with view='listed'.",
        )


def place_of(at: object, argument: str) -> str | IndexBackend:
    """The url or place of an index.

    Raises:
        InvalidOptionError: ``at`` is neither; names ``argument``.
    """
    if isinstance(at, (str, os.PathLike)):
        return os.fspath(at) if isinstance(at, os.PathLike) else at
    if hasattr(at, "read_segment") and not isinstance(at, type):
        return at  # type: ignore[return-value]  # it is one by what it can do
    wanted = "a url or a backend" if argument == "at" else "a url, a backend, an Index or a FileIndex"
    shown = f"the class {at.__name__}" if isinstance(at, type) else f"an object of type {type(at).__name__}"
    hint = "Leave it out to use the index below the prefix; False reads without one." if argument == "index" else None
    raise InvalidOptionError(f"{argument}: must be {wanted}, not {shown}", hint=hint)
