"""Open and build indexes for the targets and places that users name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from asyncpq.dataset import state_of
from asyncpq.datasets.listing import INDEX_FOLDER, NOT_BUILT, Target, is_file_of, is_one_file, parse_target
from asyncpq.datasets.model import Catalog
from asyncpq.decoding.paths import type_of
from asyncpq.errors import AsyncpqError, Hint, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.backends.folder import is_json
from asyncpq.indexing.build import index_source
from asyncpq.indexing.build.build_executor import ExecutorFactory, LocalExecutor
from asyncpq.indexing.commits import files_of, latest
from asyncpq.indexing.index import Index, ListFiles, build_index, open_index
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.indexing.kinds import IndexKind, check_kinds
from asyncpq.indexing.manifest import Manifest
from asyncpq.objects.runtime import Runtime
from asyncpq.opening.datasets import DatasetOptions, open_files, open_table
from asyncpq.opening.targets import place_of, shown_url
from asyncpq.options import BuildOptions, require_class
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import canonical_url, safe_url
from asyncpq.tables import catalog_of

_SAY_WHERE: Final = "Say where to keep the index: " + Hint(
    "at='s3://bucket/indexes/trips/'.", "--at s3://bucket/indexes/trips/."
)
_LISTING_AGE_S: Final = 60.0  # a build uses the listing from which it read the columns, if that is younger


async def build(
    runtime: Runtime,
    target: object,
    kinds: Sequence[IndexKind],
    at: object,
    options: DatasetOptions,
    building: BuildOptions,
    executor: ExecutorFactory = LocalExecutor,
) -> Index:
    """Build an index of the dataset ``target``; :meth:`asyncpq.Session.build_index` describes the arguments."""
    runtime.check()
    options.check()
    require_class("building", building, BuildOptions)
    check_kinds(kinds, "kinds")
    catalog = catalog_of(target, options.format, options.version)
    files = parse_target(target) if catalog is None else None
    if at is None:
        at = place_below(files)
    else:
        _refuse_among_files(files, at)
    operation = runtime.operation("build", shown_url(target, files))
    with operation:
        await _refuse_one_file(runtime, files, at, operation)
        backend = await open_backend(runtime, place_of(at, "at"), create=True)
        look = _look_of(runtime, backend, files, catalog, options, at)
        return await build_index(runtime, backend, kinds, look, operation, building, executor)


def _refuse_among_files(files: Target | None, at: object) -> None:
    """Raise InvalidOptionError if ``at``, the place of an index, is such that a listing of ``files`` would contain
    the index's own files."""
    if files is None or files.urls is not None or not isinstance(at, (str, os.PathLike)):
        return
    url = canonical_url(at)
    made = url if is_json(url) else f"{url.rstrip('/')}/segments/0.parquet"
    folder = f"{canonical_url(files.folder).rstrip('/')}/"
    if made.startswith(folder):
        path = files.folder + made.removeprefix(folder)
        if is_file_of(files, path):
            raise InvalidOptionError(
                "at: is inside the dataset, so readers would read the index's files as data files",
                option="at",
                url=safe_url(os.fspath(at)),
                hint=f"Leave the option out to use {INDEX_FOLDER} below the folder, or pass a place outside of it.",
            )


def place_below(files: Target | None) -> str:
    """Return the default url of an index, which exists only if ``files`` is a prefix. Raises InvalidOptionError for
    patterns, lists and tables (None)."""
    if files is None or files.urls is not None or files.pattern is not None:
        raise InvalidOptionError(
            "at must be given, since only the index of a prefix has a default place, which is below the prefix",
            option="at",
            url=None if files is None else safe_url(files.url),
            hint=_SAY_WHERE,
        )
    return f"{files.folder}{INDEX_FOLDER}"


async def _refuse_one_file(runtime: Runtime, files: Target | None, at: object, operation: Operation) -> None:
    """Raise InvalidOptionError if ``files`` is a single file and ``at`` is below its url, which would then have to
    be a folder."""
    if files is None or not files.may_be_file or not isinstance(at, (str, os.PathLike)):
        return
    if canonical_url(at).startswith(canonical_url(files.folder).rstrip("/") + "/"):
        store, _ = await runtime.store(files.url)
        if await is_one_file(store, files, RequestContext(operation.metrics, purpose="list")):
            raise InvalidOptionError(
                "at: the index of one file cannot be below the file's url, since that url would become a folder",
                option="at",
                url=safe_url(files.url),
                hint=_SAY_WHERE,
            )


async def open_existing(
    runtime: Runtime,
    at: object,
    target: object,
    options: DatasetOptions,
    building: BuildOptions,
    snapshot: int | None,
    executor: ExecutorFactory = LocalExecutor,
) -> Index:
    """Open an index that was built before; :meth:`asyncpq.Session.open_index` describes the arguments."""
    runtime.check()
    options.check()
    require_class("building", building, BuildOptions)
    catalog = None if target is None else catalog_of(target, options.format, options.version)
    if target is not None and catalog is None:
        raise InvalidOptionError(
            "the argument table is not a table",
            hint='For a url, pass its format, too: format="delta" or format="iceberg".',
        )
    operation = runtime.operation("open", safe_url(at) if isinstance(at, str) else type(at).__name__)
    with operation:
        async with runtime.deadline(operation.url):
            backend = await open_backend(runtime, place_of(at, "at"), create=False)
            look = _look_of(runtime, backend, None, catalog, options, at)
            try:
                return await open_index(runtime, backend, look, operation, building, snapshot, executor)
            except ObjectNotFoundError as error:
                if isinstance(at, (str, os.PathLike)):
                    with suppress(AsyncpqError):  # the original error is raised in any case
                        below = f"{str(os.fspath(at)).rstrip('/')}/{INDEX_FOLDER}"
                        if await latest(await open_backend(runtime, below, create=False), operation) is not None:
                            error.hint = f"The index of this folder is in {INDEX_FOLDER} below it: pass that url."
                raise


def _look_of(
    runtime: Runtime,
    backend: IndexBackend,
    target: Target | None,
    catalog: Catalog | None,
    options: DatasetOptions,
    at: object,
) -> ListFiles:
    """Return the function that lists the files that the index covers: those of a table's newest version, or of the
    target that the index's manifest names."""

    async def look(
        operation: Operation, manifest: Manifest | None, urls: Sequence[str] | None
    ) -> index_source.IndexSource:
        if catalog is not None:
            if manifest is not None and manifest.dataset.get("kind") != "table":
                raise InvalidOptionError(
                    "the index was not built for a table",
                    url=safe_url(manifest.root),
                    hint=Hint("Open it without table=.", "Name the folder that the index covers."),
                )
            dataset = await open_table(runtime, catalog, None, operation, skips=False)
            described = {"kind": "table", "table": dataset.url}
            source = await index_source.dataset_source(state_of(dataset), "", described, operation)
            return source if urls is None else source.only(urls)
        if manifest is not None:
            if target is not None:
                index_source.check_partitioning(manifest, options.path_layout())
                for field in options.schema or ():
                    if type_of(manifest.schema, field.name) != field.type:
                        raise InvalidOptionError(
                            f"schema: the existing index was built with another column {field.name!r}",
                            option="schema",
                            hint=index_source.another_place(manifest),
                        )
            source = await index_source.listed_source(runtime, manifest, operation, urls, given=target, at=at)
            if index_source.is_committed(manifest):
                # the other files were never committed, or were removed
                listed = {file.path for file in await files_of(runtime, backend, manifest, manifest.live, operation)}
                return replace(source, files=[file for file in source.files if source.path(file.url) in listed])
            return source
        if target is None:
            raise ObjectNotFoundError("there is no index", hint=NOT_BUILT)
        first = replace(options, on_bad_file="raise", listing_max_age_s=_LISTING_AGE_S)
        commits = index_source.commit_check(runtime, operation)
        state = state_of(await open_files(runtime, target, operation, commits, first))
        inside, plain = index_source.folder_around(at) == target.folder, options.format == "parquet"
        described = index_source.described_files(target, options.path_layout(), inside=inside, plain=plain)
        source = await index_source.dataset_source(state, index_source.root_of(target), described, operation)
        if not (state.has_index and state.is_written):
            return source
        return await index_source.as_committed(runtime, target, source, operation, own_columns=options.schema is None)

    return look
