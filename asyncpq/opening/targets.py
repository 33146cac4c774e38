"""Open a target: decide whether it is files or a table, and which index and view its reads use."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.listing import INDEX_FOLDER, NOT_BUILT, Commits, Listing, Target, parse_target
from asyncpq.datasets.model import Catalog, View
from asyncpq.errors import (
    CorruptIndexError,
    Hint,
    InvalidOptionError,
    ObjectNotFoundError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.opening.datasets import DatasetOptions, open_files, open_indexed, open_snapshot, open_table
from asyncpq.records import dataclass
from asyncpq.storage.threads import end_tasks
from asyncpq.storage.urls import safe_url
from asyncpq.tables import catalog_of

if TYPE_CHECKING:
    from asyncpq.indexing.index import Index
    from asyncpq.indexing.index_model import IndexBackend
    from asyncpq.indexing.manifest import Manifest
    from asyncpq.indexing.query.file_selection import FileIndex
    from asyncpq.indexing.query.index_query import OpenIndex

logger: logging.Logger = logging.getLogger(__name__)


_OF_FILES: Final = ("schema", "schema_policy", "partitioning", "partition_types")


async def open_target(
    runtime: Runtime, target: object, options: DatasetOptions, index: object, view: View | None
) -> Dataset:
    """Open the dataset that ``target`` names; :meth:`asyncpq.Session.open_dataset` describes the arguments."""
    runtime.check()
    options.check()
    backend, own = _indexes(index)
    catalog = catalog_of(target, options.format, options.version)
    files = parse_target(target) if catalog is None else None
    operation = runtime.operation("open", shown_url(target, files))
    with operation:
        async with runtime.deadline(operation.url):
            if own:
                await _load_indexing(runtime)
            if catalog is not None:
                if view not in (None, View.TABLE):
                    raise InvalidOptionError(
                        f"view={str(view)!r} is not possible for a table, whose only view is 'table'",
                        option="view",
                        hint="Leave out view=.",
                    )
                dataset = await _open_table(runtime, target, catalog, backend, own, options, operation)
            else:
                assert files is not None
                opening = _FilesOpening(runtime, files, backend, own, index is None, view, options, operation)
                dataset = await opening.open()
    dataset.opening = operation.metrics
    # log which files reads see, the cost of the listing, and an option that would save it
    source = state_of(dataset).source
    cost = None if source.known is None else source.known.cost
    listing = "" if cost is None else f"; the listing took {cost}"
    # only a source with an index has the attribute; its class would load the code of indexes
    if cost is not None and getattr(source, "index", None) is not None:
        listing += ", which view='snapshot' would save"
    logger.info("%s: view %s, %s%s", dataset.url, dataset.view, dataset.description, listing)
    return dataset


async def _open_table(
    runtime: Runtime,
    target: object,
    catalog: Catalog,
    backend: object | None,
    own: Sequence[FileIndex],
    options: DatasetOptions,
    operation: Operation,
) -> Dataset:
    options.refuse("a table's metadata has its schema, partitions and files", *_OF_FILES, "listing_max_age_s")
    shown = safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else None
    dataset = await open_table(runtime, catalog, shown, operation, skips=options.skips)
    if backend is None:
        return open_indexed(runtime, dataset, None, own) if own else dataset
    index = await _open(runtime, backend, operation, options.listing_max_age_s)
    from asyncpq.indexing.build import index_source

    index_source.check_columns(index.manifest, state_of(dataset))
    return open_indexed(runtime, dataset, index, own)


@dataclass(frozen=True, slots=True)
class _FilesOpening:
    """One call of :meth:`asyncpq.Session.open_dataset` for the files of a prefix, a pattern or a list."""

    runtime: Runtime
    files: Target
    place: object | None  # the place or handle of an index that the caller passed; None if there is none
    own: Sequence[FileIndex]  # the caller's own indexes
    finds: bool  # whether an index below the prefix is used, if one exists
    view: View | None  # None: "snapshot" if an index decides which files are live that asyncpq wrote; else "listed"
    options: DatasetOptions
    operation: Operation

    async def open(self) -> Dataset:
        if self.view is View.TABLE:
            raise InvalidOptionError(
                "view='table': the target is not a table",
                option="view",
                hint='For the url of a table, pass format="delta" or format="iceberg".',
            )
        if self.place is None and self.view is not View.SNAPSHOT:
            return await self._with_index_below()
        if self.place is None:  # the index below the prefix lists the files
            folder = f"{self._folder}{INDEX_FOLDER}"
            below = await self._index_if_any(folder, self.operation) if self._folder else None
            if below is not None:
                return self._snapshot(below)
            raise InvalidOptionError(
                "view='snapshot' needs an index, and there is none below this url",
                option="view",
                url=self.operation.url,
                hint=Hint(
                    "Build an index with build_index(), or pass the place of an existing one: index=...",
                    "`asyncpq index build` builds one; or name the place of an existing one as index.",
                ),
            )
        is_prefix = bool(self.files.folder) and self.files.pattern is None
        index = await self._index(self.place, self.operation, strict=self.view is View.SNAPSHOT)
        from asyncpq.indexing.build import index_source

        if self.view is View.SNAPSHOT or (is_prefix and self._is_list_of_files(index.manifest)):
            handle = _handle(self.place)
            at = self.place if handle is None else handle.url
            _check_root(index_source.root_of(self.files) if is_prefix else None, index.manifest, at)
            return self._snapshot(index)
        dataset = await self._listed(index_source.commit_check(self.runtime))
        own_index = await self._committing_index(dataset)
        if own_index is not None:
            dataset = self._snapshot(own_index)
        else:
            index_source.check_partitioning(index.manifest, self.options.path_layout())
        index_source.check_columns(index.manifest, state_of(dataset))
        return self._indexed(dataset, index)

    @property
    def _folder(self) -> str:
        """The url of the folder in which an index is looked for; "" if none is looked for."""
        return self.files.folder if self.finds and self.files.pattern is None else ""

    async def _with_index_below(self) -> Dataset:
        """Open the listed files with the index below the prefix, if there is one. The index is opened concurrently."""
        folder = self._folder
        finding: asyncio.Task[OpenIndex | None] | None = None

        def find() -> asyncio.Task[OpenIndex | None]:
            nonlocal finding
            if finding is None:
                opening = self._index_beside(f"{folder}{INDEX_FOLDER}", self.operation.metrics.rounds)
                finding = asyncio.get_running_loop().create_task(opening)
            return finding

        async def commits(other: str) -> bool:
            if other != folder:
                return await _is_committing(self.runtime, other)
            index = await find()
            from asyncpq.indexing.build import index_source

            return index is not None and index_source.is_committed(index.manifest)

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
                await end_tasks((finding,))
        if index is not None:
            return self._by_index_below(dataset, index)
        own_index = await self._committing_index(dataset)
        if own_index is not None:
            return self._snapshot(own_index)
        return self._indexed(dataset, None) if self.own else dataset

    def _by_index_below(self, dataset: Dataset, index: OpenIndex) -> Dataset:
        """Return the dataset of the listed files, pruned by the index if it fits. If asyncpq wrote the files, so
        that only the index knows which are committed, return the dataset of the files that the index lists."""
        from asyncpq.indexing.build import index_source

        if self._is_list_of_files(index.manifest):
            return self._snapshot(index)
        if index_source.is_committed(index.manifest) and state_of(dataset).is_written:
            raise self._not_all_count()
        if not index.manifest.is_built:
            return dataset
        try:
            index_source.check_partitioning(index.manifest, self.options.path_layout())
            index_source.check_columns(index.manifest, state_of(dataset))
        except (InvalidOptionError, SchemaMismatchError) as error:
            logger.warning("%s: the index below it is not used: %s", dataset.url, error)
            return dataset
        return self._indexed(dataset, index)

    def _is_list_of_files(self, manifest: Manifest) -> bool:
        """Whether reads see the files that the index lists, and not those of a listing."""
        from asyncpq.indexing.build import index_source

        return self.view is View.SNAPSHOT or (self.view is None and index_source.is_committed(manifest))

    async def _committing_index(self, dataset: Dataset) -> OpenIndex | None:
        """Return the index below the prefix if asyncpq wrote the files there, so that readers see only those that
        this index lists; None if readers see all files. Raises InvalidOptionError if the caller's ``view`` or
        ``index`` option would ignore that index."""
        state = state_of(dataset)
        may_be = state.has_index and state.is_written
        if not may_be or not await _is_committing(self.runtime, self.files.folder):
            return None
        if self.view is not None or (self.place is None and not self.own):
            raise self._not_all_count()
        return await self._index(f"{self.files.folder}{INDEX_FOLDER}", self.operation, strict=True)

    def _not_all_count(self) -> InvalidOptionError:
        return InvalidOptionError(
            "asyncpq wrote this folder, and only its index knows which files are committed and not replaced",
            url=self.operation.url,
            hint=Hint(
                'Leave out view= and index=; or add format="parquet" to read every file, committed or not.',
                "Leave out --index.",
            ),
        )

    async def _listed(self, commits: Commits, on_listing: Callable[[Listing], None] = lambda listing: None) -> Dataset:
        return await open_files(self.runtime, self.files, self.operation, commits, self.options, on_listing)

    def _indexed(self, dataset: Dataset, index: OpenIndex | None) -> Dataset:
        return open_indexed(self.runtime, dataset, index, self.own, folder=self.files.folder)

    def _snapshot(self, index: OpenIndex) -> Dataset:
        self.options.refuse(
            "an option is not possible here: the index's snapshot already has the schema and partitions", *_OF_FILES
        )
        if index.manifest.dataset.get("kind") == "table":  # only the table knows which rows are deleted
            raise InvalidOptionError(
                "the index was built for a table, and does not know which rows the table has deleted",
                url=self.operation.url,
                hint="Open the table, and name this index as the one to use.",
            )
        return open_snapshot(self.runtime, index, self.own, skips=self.options.skips)

    async def _index(self, backend: object, operation: Operation, *, strict: bool) -> OpenIndex:
        await _load_indexing(self.runtime)
        from asyncpq.indexing.build import index_source

        root = index_source.root_of(self.files) if self.files.pattern is None else ""
        return await _open(
            self.runtime, backend, operation, self.options.listing_max_age_s, root or None, strict=strict
        )

    async def _index_if_any(self, backend: object, operation: Operation) -> OpenIndex | None:
        try:
            return await self._index(backend, operation, strict=True)
        except ObjectNotFoundError:  # dropped since the listing
            return None

    async def _index_beside(self, backend: object, rounds: int) -> OpenIndex | None:
        """Open the index, if there is one, concurrently with the files. ``rounds``: of requests before it, which do not
        include those of the files."""
        part = self.operation.part(self.operation.url, rounds)
        try:
            return await self._index_if_any(backend, part)
        finally:
            self.operation.metrics.add_part(part.metrics)

    async def _usable(self, finding: asyncio.Task[OpenIndex | None]) -> OpenIndex | None:
        """Wait for ``finding``, and return the index that it opened; None if it is damaged or was written by a newer
        asyncpq."""
        try:
            return await finding
        except (CorruptIndexError, UnsupportedFeatureError) as error:
            logger.warning("%s: the index below it is not used: %s", self.operation.url, error)
            return None


def shown_url(target: object, files: Target | None) -> str:
    """Return a text that names the target in messages, such as its url without secrets."""
    if files is not None:
        return safe_url(files.url)
    return safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else type(target).__name__


def _indexes(index: object) -> tuple[object | None, list[FileIndex]]:
    """Split an ``index`` option into the place or handle of an asyncpq index (None if there is none) and the caller's
    own indexes."""
    given = list(index) if isinstance(index, (list, tuple)) else [] if index is None or index is False else [index]
    # by its method, as the class FileIndex would load the code of indexes
    own = [item for item in given if _handle(item) is None and hasattr(item, "prune")]
    backends = [item for item in given if item not in own]
    if len(backends) > 1:
        raise InvalidOptionError(
            f"index: the list has {len(backends)} asyncpq indexes, and at most one is possible",
            option="index",
            hint="Build one index with all kinds.",
        )
    return (backends[0] if backends else None), own


def _handle(index: object) -> Index | None:
    """Return ``index`` if it is an Index, else None. Does not import the module of that class, which loads the code
    that builds indexes: if it is not loaded, ``index`` cannot be an Index."""
    if "asyncpq.indexing.index" not in sys.modules:
        return None
    from asyncpq.indexing.index import Index

    return index if isinstance(index, Index) else None


#: What reads through an index need. They are loaded, in a thread, when there is one: most folders have none.
_INDEXING: Final = (
    "asyncpq.indexing.build.index_source",
    "asyncpq.indexing.query.indexed_files",
    "asyncpq.indexing.query.indexed_files",
)


async def _load_indexing(runtime: Runtime) -> None:
    for module in _INDEXING:
        await runtime.load(module)


async def _is_committing(runtime: Runtime, folder: str) -> bool:
    """Return whether only the index of a folder knows which of its files are committed."""
    await _load_indexing(runtime)
    from asyncpq.indexing.build import index_source

    return await index_source.committing_index(runtime, folder) is not None


async def _open(
    runtime: Runtime,
    index: object,
    operation: Operation,
    max_age_s: float,
    root: str | None = None,
    *,
    strict: bool = False,
) -> OpenIndex:
    """Open an index. Raises ObjectNotFoundError if it does not exist, InvalidOptionError if it covers another folder.

    Args:
        index: the url or backend of the index, or an open Index.
        max_age_s: seconds for which its snapshot is used before a read looks for a newer one.
        root: url of the folder whose files are read with the index; None for files of several folders.
        strict: the index must cover exactly that folder; else it may cover a folder inside ``root`` or around it.
    """
    await _load_indexing(runtime)
    from asyncpq.indexing.backends import open_backend
    from asyncpq.indexing.commits import Head, latest
    from asyncpq.indexing.query.index_query import OpenIndex

    handle = _handle(index)
    if handle is not None:
        backend, manifest, pinned, at = handle.backend, handle.manifest, handle.head.pinned, cast("object", handle.url)
    else:
        backend = await open_backend(runtime, place_of(index, "index"), create=False)
        newest = await latest(backend, operation)
        if newest is None:
            raise ObjectNotFoundError("there is no index", url=backend.description, hint=NOT_BUILT)
        manifest, pinned, at = newest, False, index
    if not strict and _is_of_another_folder(root, manifest, at):
        root = None
    _check_root(root, manifest, at)
    return OpenIndex(backend, Head(backend, manifest, root=root, pinned=pinned), max_age_s)


def _is_of_another_folder(root: str | None, manifest: Manifest, at: object) -> bool:
    """Whether an index covers a folder inside or around ``root``, which is not the same folder under another url."""
    from asyncpq.indexing.build import index_source

    known = manifest.root
    if root is None or not known or root == known or index_source.folder_around(at) == root:
        return False
    return root.startswith(known) or known.startswith(root)


def _check_root(root: str | None, manifest: Manifest, at: object) -> None:
    """Raise InvalidOptionError if the index covers a folder inside or around ``root``, instead of ``root`` itself."""
    if _is_of_another_folder(root, manifest, at):
        raise InvalidOptionError(
            f"the index covers {safe_url(manifest.root)}, not the opened folder {safe_url(root or '')}",
            hint="Open the folder that the index covers" + Hint(", or pass view='listed'.", "."),
        )


def place_of(at: object, argument: str) -> str | IndexBackend:
    """Return ``at`` if it is a url or a backend. Raises InvalidOptionError, which names ``argument``, for any other
    type."""
    if isinstance(at, (str, os.PathLike)):
        return str(os.fspath(at))
    if hasattr(at, "read_segment") and not isinstance(at, type):
        return at  # type: ignore[return-value]  # an object with this method is a backend
    wanted = "a url or a backend" if argument == "at" else "a url, a backend, an Index or a FileIndex"
    shown = f"the class {at.__name__}" if isinstance(at, type) else f"an object of type {type(at).__name__}"
    hint = "Leave it out to use the index below the prefix; False reads without one." if argument == "index" else None
    raise InvalidOptionError(f"{argument}: must be {wanted}, not {shown}", option=argument, hint=hint)
