"""Find the files that an index is to cover: list them as the manifest says, or take those of an open dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.file_statistics import type_of
from asyncpq.datasets.listing import (
    INDEX_FOLDER,
    Commits,
    Target,
    folders_of,
    is_file_of,
    list_files,
    may_be_uncommitted,
    parse_target,
)
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import DatasetRequest
from asyncpq.datasets.partitioning import Partitioning, read_partitions
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, SchemaMismatchError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.build.differences import IndexSource, field_ids
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.indexing.manifest.commits import files_of, load
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url


def described_files(
    target: Target, partitioning: Partitioning | None, *, inside: bool, plain: bool = False
) -> dict[str, Any]:
    """Return ``Manifest.dataset`` of a prefix, a pattern or a list of urls.

    Args:
        inside: the index is in ``_asyncpq/`` below the prefix, and moves with the folder.
        plain: all files count, even those that asyncpq wrote and no index lists.
    """
    named = target.url if target.urls is None else list(target.urls)
    found = {"kind": "files", "target": named, "partitioning": _described(partitioning), "inside": inside}
    return {**found, "plain": True} if plain else found


def _described(partitioning: Partitioning | None) -> str | list[str] | None:
    if partitioning is None:
        return None
    return "hive" if partitioning.names is None else list(partitioning.names)


def folder_around(at: object) -> str | None:
    """Return the prefix, with a slash, if ``at`` is ``_asyncpq/`` below one."""
    if not isinstance(at, (str, os.PathLike)):
        return None
    url: Any = os.fspath(at)
    found: str = url if url.endswith("/") else f"{url}/"
    return found[: -len(INDEX_FOLDER)] if found.endswith(f"/{INDEX_FOLDER}") else None


def target_of(manifest: Manifest, given: Target | None, at: object) -> Target:
    """Return where to list the files of an index: the manifest's target, or the folder around the index.

    Args:
        given: target that the caller named; None for none.
        at: place of the index, as the caller named it.

    Raises:
        InvalidOptionError: the index is of another target than ``given``.
    """
    known = parse_target(manifest.dataset["target"])
    folder = folder_around(at)
    if folder is not None and manifest.dataset.get("inside"):
        known = parse_target(folder)
    if given is not None and (given.folder, given.pattern, given.urls) != (known.folder, known.pattern, known.urls):
        raise InvalidOptionError(
            "the index there is of other files",
            url=safe_url(known.url),
            hint="Build this index in another place, or drop the other one first.",
        )
    return known


def root_of(target: Target) -> str:
    """Return the url that paths of the target's files are relative to."""
    return "" if target.urls is not None else target.folder


async def dataset_lake(state: DatasetState, root: str, dataset: Mapping[str, Any], operation: Operation) -> IndexSource:
    """Return the current files of an open dataset.

    Args:
        root, dataset: see :class:`IndexSource`.
    """
    began = datetime.now(UTC)
    files = (await state.source.files(DatasetRequest(), operation)).files
    partitions = dict.fromkeys(name for file in files for name in file.partition)
    schema, fields, _ = state.columns
    return IndexSource(
        url=state.url,
        root=root,
        dataset=dataset,
        schema=schema,
        fields=fields,
        partitions=tuple(name for name in partitions if name in schema.names),
        files=files,
        as_of=began,
    )


async def listed_lake(
    runtime: Runtime,
    manifest: Manifest,
    operation: Operation,
    urls: Sequence[str] | None = None,
    *,
    given: Target | None = None,
    at: object = None,
) -> IndexSource:
    """List the current files of the prefix, pattern or list of an index.

    Args:
        urls: look only at these, which are new, were replaced or are gone.
        given, at: see :func:`target_of`.

    Raises:
        InvalidOptionError: the index is of other files than ``given``, or a url is not among them.
        UsageError: the index is of a table.
        StoreError: the store failed.
    """
    dataset, began = manifest.dataset, datetime.now(UTC)
    if dataset.get("kind") != "files":
        raise UsageError(
            "the index is of a table; only the table's metadata names its files",
            hint="Open the index with the table: session.open_index(at, table=table).",
        )
    target = target_of(manifest, given, at)
    partitioning = partitioning_of(manifest)
    source = IndexSource(
        url=safe_url(target.url),
        root=root_of(target),
        dataset=dataset,
        schema=manifest.schema,
        fields=None,
        partitions=manifest.partitions,
        files=(),
        as_of=began,
    )
    if urls is not None:
        named = _named(list(dict.fromkeys(urls)), target, partitioning)
        if counts_all(manifest) or not any(may_be_uncommitted(file.url) for file in named):
            return only(replace(source, files=named), urls)
    files, is_lake = await _list(runtime, manifest, target, partitioning, operation)
    source = await as_committed(runtime, target, replace(source, files=files), is_lake, operation)
    return source if urls is None else only(source, urls)


async def _list(
    runtime: Runtime, manifest: Manifest, target: Target, partitioning: Partitioning | None, operation: Operation
) -> tuple[Sequence[DataFile], bool]:
    """Return the listed files, and whether another index may decide which of them are live."""
    store, _ = await runtime.store(target.url)
    context = RequestContext(operation.metrics, purpose="list")
    plain = counts_all(manifest)
    try:
        async with runtime.deadline(safe_url(target.url)):
            found = await list_files(
                store,
                target,
                context,
                committing(runtime, operation),
                partitioning=partitioning,
                allow_empty=not manifest.num_files or is_committed(manifest),
                plain=plain,
            )
    except ObjectNotFoundError:
        # the folder's own index may list no files
        if plain or target.urls is not None or target.pattern is not None:
            raise
        own = await own_lake(runtime, target.folder, True, operation)
        if own is None or own[1].num_files:
            raise
        return (), False
    for error in found.errors:
        raise error
    return found.files, found.has_index and found.is_written


def counts_all(manifest: Manifest) -> bool:
    """Whether all files count, whatever other indexes list."""
    return is_committed(manifest) or manifest.dataset.get("plain") is True


def is_committed(manifest: Manifest) -> bool:
    """Whether asyncpq wrote the files: a file is live once the index lists it."""
    return manifest.dataset.get("committed") is True


async def committed(
    runtime: Runtime,
    backend: IndexBackend,
    manifest: Manifest,
    source: IndexSource,
    operation: Operation | None = None,
) -> IndexSource:
    """Return only the files that the index lists; the others were never committed, or were removed."""
    listed = {file.path for file in await files_of(runtime, backend, manifest, manifest.live, operation)}
    return replace(source, files=[file for file in source.files if source.path(file.url) in listed])


async def own_lake(
    runtime: Runtime, folder: str, may_be: bool, operation: Operation | None = None
) -> tuple[IndexBackend, Manifest] | None:
    """Return the index below a folder that decides which of its files are live; None if there is none.

    Args:
        may_be: the listing has an index, and files that asyncpq wrote.
    """
    if not may_be:
        return None
    backend = await open_backend(runtime, folder + INDEX_FOLDER, create=False)
    manifest = await load(backend, operation)
    return None if manifest is None or not is_committed(manifest) else (backend, manifest)


def committing(runtime: Runtime, operation: Operation | None = None) -> Commits:
    """Return the check that :func:`asyncpq.datasets.listing.list_files` takes (see :func:`own_lake`)."""

    async def commits(folder: str) -> bool:
        return await own_lake(runtime, folder, True, operation) is not None

    return commits


async def as_committed(
    runtime: Runtime,
    target: Target,
    source: IndexSource,
    may_be: bool,
    operation: Operation | None = None,
    *,
    own_columns: bool = False,
) -> IndexSource:
    """Return only the live files of a folder, for an index kept elsewhere (see :func:`own_lake`).

    Live files that are not in ``source.files`` are added: they were committed since the listing, or they are gone and
    reading them is an error.

    Args:
        own_columns: take the columns of the live files; those of ``source`` may come from other files.
    """
    found = await own_lake(runtime, target.folder, may_be, operation)
    if found is None:
        return source
    own, manifest = found
    there = {source.path(file.url): file for file in source.files}
    files = await files_of(runtime, own, manifest, manifest.live, operation)
    missing = {f"{target.folder}{file.path}": file for file in files if file.path not in there}
    for named in _named(list(missing), target, _with_types(source.dataset, source.schema, source.partitions)):
        version = missing[named.url].validator
        size = None if version is None else version.size
        there[source.path(named.url)] = replace(named, validator=version, size=size)
    listed = [there[file.path] for file in files if file.path in there]
    schema = source.schema
    if own_columns:
        fields = [schema.field(name) for name in source.partitions if name not in manifest.schema.names]
        schema = pa.schema([*manifest.schema, *fields])
    return replace(source, files=sorted(listed, key=lambda file: file.url), schema=schema)


def another_place(manifest: Manifest) -> str:
    """Return the hint for a place that holds another index."""
    if is_committed(manifest):
        return (
            "Keep that index: it decides which files of the folder are live. Build this one outside of the folder"
            " (at=...), and name both in reads (index=...)."
        )
    return "Refresh that index, drop it first, or build this one in another place."


def check_columns(manifest: Manifest, state: DatasetState) -> None:
    """Check that the indexed columns are the dataset's.

    Raises:
        SchemaMismatchError: an indexed column is another one in the dataset, or of another type.
    """
    schema, fields, _ = state.columns
    known = dict(manifest.field_ids)
    in_paths = manifest.partitions if state.partitions is None else state.partitions
    for name in dict.fromkeys(name for index_table in manifest.tables for name in index_table.columns):
        found, indexed = type_of(schema, name), type_of(manifest.schema, name)
        if found is None:
            continue
        ids = field_ids(fields or (), [name])
        how = None
        if found != indexed:
            how = f"of type {found}, not {indexed}"
        elif {path: number for path, number in known.items() if f"{name}.".startswith(f"{path}.")} != ids:
            how = "of the same name"
        elif (name in in_paths) != (name in manifest.partitions):
            how = f"its values are in the {'paths' if name in in_paths else 'files'} and were not when it was indexed"
        if how is not None:
            raise SchemaMismatchError(
                f"the dataset has another column than the one that was indexed: {how}",
                url=state.url,
                column=name,
                hint="Drop the index and build it again, or open the dataset without it.",
            )


def check_partitioning(manifest: Manifest, partitioning: Partitioning | None) -> None:
    """Check that paths hold the same columns for an index and a dataset of files.

    Raises:
        InvalidOptionError: they do not.
    """
    known = manifest.dataset.get("partitioning")
    if manifest.dataset.get("kind") == "files" and known != _described(partitioning):
        raise InvalidOptionError(
            f"partitioning: the index was built with {known!r}",
            hint="Give the same, or open the dataset without the index.",
        )


def check_schema(manifest: Manifest, schema: pa.Schema | None) -> None:
    """Check that an index has the columns of the caller's ``schema``; None: any columns.

    Raises:
        InvalidOptionError: the index has another column.
    """
    for field in schema or ():
        if type_of(manifest.schema, field.name) != field.type:
            raise InvalidOptionError(
                f"schema: the index there was built with another column {field.name!r}",
                hint=another_place(manifest),
            )


def partitioning_of(manifest: Manifest) -> Partitioning | None:
    """Return how paths hold partition values; None if they hold none."""
    return _with_types(manifest.dataset, manifest.schema, manifest.partitions)


def _with_types(dataset: Mapping[str, Any], schema: pa.Schema, partitions: Sequence[str]) -> Partitioning | None:
    names = dataset.get("partitioning")
    if names is None:
        return None
    types = {name: schema.field(name).type for name in partitions}
    return Partitioning(None if names == "hive" else tuple(names), types)


def _named(urls: Sequence[str], target: Target, partitioning: Partitioning | None) -> list[DataFile]:
    """Return the files of ``urls`` that a listing of the target would give.

    Raises:
        InvalidOptionError: a url is outside of the target.
        PartitionError: a value in a path does not fit its column's type.
    """
    for url in urls:
        if url not in target.urls if target.urls is not None else not f"{url}/".startswith(target.folder):
            raise InvalidOptionError(
                "files: the dataset has no such file",
                url=safe_url(url),
                hint=f"Name files by urls below {safe_url(target.url)}.",
            )
    urls = [url for url in urls if is_file_of(target, url)]
    root = "" if target.pattern is not None else target.folder
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    for error in partitions.errors.values():
        raise error
    return [DataFile(url=url, partition=values) for url, values in zip(urls, partitions.values, strict=True)]


def only(source: IndexSource, urls: Sequence[str]) -> IndexSource:
    """Return ``source`` with these files alone; a url that it lacks is a file that is gone."""
    wanted = dict.fromkeys(urls)
    asked = {source.path(url) for url in wanted}
    return replace(source, files=[file for file in source.files if file.url in wanted], complete=False, asked=asked)
