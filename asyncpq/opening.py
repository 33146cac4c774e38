"""From what users name to datasets and indexes: files, tables, places, views."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa

from asyncpq.arguments import one_of
from asyncpq.datasets.dataset import Dataset
from asyncpq.datasets.listing import INDEX_FOLDER, Commits, Target, is_file_of, is_one_file, parse_target
from asyncpq.datasets.model import Catalog, View
from asyncpq.datasets.opening import open_files, open_table
from asyncpq.datasets.partitioning import Partitioning, parse_partitioning
from asyncpq.datasets.reader import counted_in
from asyncpq.datasets.schemas import SchemaPolicy
from asyncpq.errors import AsyncpqError, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.commits import Head, latest
from asyncpq.indexing.differences import Lake
from asyncpq.indexing.file_index import FileIndex
from asyncpq.indexing.gathering import LocalGathering, MakeGathering
from asyncpq.indexing.index import Index, build_index, open_index
from asyncpq.indexing.kinds import Kind
from asyncpq.indexing.lakes import (
    as_committed,
    check_columns,
    check_partitioning,
    check_schema,
    committed,
    committing,
    dataset_lake,
    described_files,
    folder_around,
    is_committed,
    listed_lake,
    only,
    own_lake,
    root_of,
)
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.model import Place
from asyncpq.indexing.open_index import OpenIndex
from asyncpq.indexing.opening import open_indexed, open_snapshot
from asyncpq.indexing.places import open_place
from asyncpq.indexing.places.json import is_json
from asyncpq.options import BuildOptions
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import canonical_url, safe_url
from asyncpq.tables.opening import Format, Version, catalog_of

_LISTING_AGE_S: Final = 60.0  # of one that a build made itself when it looked at the columns
_NOT_BUILT: Final = f"Build it: build_index(). By default a folder's index is in {INDEX_FOLDER} below it."


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


# -- datasets -------------------------------------------------------------------------------------


async def open_target(
    resources: Resources, target: object, options: DatasetOptions, index: object, view: View | None
) -> Dataset:
    """See :meth:`asyncpq.Session.open_dataset`."""
    resources.check()
    options.check()
    place, own = _indexes(index)
    catalog = catalog_of(target, options.format, options.version)
    files = parse_target(target) if catalog is None else None
    operation = resources.operation("open", _shown(target, files))
    with operation:
        if catalog is not None:
            if view not in (None, View.TABLE):
                raise InvalidOptionError(f"view={str(view)!r}: the files of a table are those of its snapshot")
            options.refuse(
                "a table has a schema, partitions and a list of files of its own", *_OF_FILES, "listing_max_age_s"
            )
            shown = safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else None
            dataset = await open_table(resources, catalog, shown, operation, skips=options.skips)
        elif files is not None and view is View.TABLE:
            raise InvalidOptionError("view='table': this is no table")
        elif files is not None and place is not None and view in (None, View.SNAPSHOT):
            found = await _open_index(resources, files, place, options, operation)
            return _snapshot(resources, found, own, options, operation)
        else:
            assert files is not None
            beside = f"{files.folder}{INDEX_FOLDER}" if files.folder and files.pattern is None else None
            beside = None if index is not None or view is View.LISTED else beside
            seen: OpenIndex | None = None

            async def commits(folder: str) -> bool:
                nonlocal seen
                if beside != f"{folder}{INDEX_FOLDER}":
                    return await own_lake(resources, folder, True) is not None
                try:
                    seen = await _open_index(resources, files, beside, options, operation)
                except ObjectNotFoundError:  # since the listing
                    return False
                return is_committed(seen.manifest)

            try:
                dataset = await _open_files(resources, files, options, operation, commits)
            except ObjectNotFoundError as error:
                if beside is None:
                    raise
                try:  # there may be an index that lists no files
                    found = seen or await _open_index(resources, files, beside, options, operation)
                except ObjectNotFoundError:
                    raise error from None
                if view is None and not _counts(found.manifest):
                    raise
                return _snapshot(resources, found, own, options, operation)
            if beside is not None and dataset._state.has_index:
                found = seen or await _open_index(resources, files, beside, options, operation)
                if view is View.SNAPSHOT or _counts(found.manifest):
                    return _snapshot(resources, found, own, options, operation)
            elif await own_lake(resources, files.folder, dataset._state.has_index and dataset._state.is_written):
                if own and place is None and view is None:
                    at = f"{files.folder}{INDEX_FOLDER}"
                    found = await _open_index(resources, files, at, options, operation)
                    return _snapshot(resources, found, own, options, operation)
                raise InvalidOptionError(
                    "which files of this folder count, its index says: others may be replaced, or never committed",
                    url=operation.url,
                    hint='Leave out view= and index=; or pass format="parquet", too, to read every file that is there.',
                )
        if view is View.SNAPSHOT:
            raise InvalidOptionError("view='snapshot' is that of an index", hint="Name the index: index=...")
        if place is not None or own:
            opened = None
            if place is not None:
                around = folder_around(place.url if isinstance(place, Index) else place)
                root = around if files is not None and files.folder == around else None
                opened = await _open(resources, place, operation, options.listing_max_age_s, root)
                check_columns(opened.manifest, dataset._state)
                if files is not None:
                    check_partitioning(opened.manifest, options.described())
            dataset = open_indexed(resources, dataset, opened, own, folder="" if files is None else files.folder)
    dataset.metrics = operation.metrics
    return dataset


def _shown(target: object, files: Target | None) -> str:
    if files is not None:
        return safe_url(files.url)
    return safe_url(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else type(target).__name__


async def _open_files(
    resources: Resources, files: Target, options: DatasetOptions, operation: Operation, commits: Commits
) -> Dataset:
    return await open_files(
        resources,
        files,
        operation,
        commits,
        schema=options.schema,
        policy=options.schema_policy,
        partitioning=options.described(),
        skips=options.skips,
        plain=options.format == "parquet",
        listing_max_age_s=options.listing_max_age_s,
    )


async def _open_index(
    resources: Resources, files: Target, place: object, options: DatasetOptions, operation: Operation
) -> OpenIndex:
    """The index of files whose snapshot is to be read."""
    root = root_of(files) if files.pattern is None else None
    return await _open(resources, place, operation, options.listing_max_age_s, root or None)


def _counts(manifest: Manifest) -> bool:
    """Whether an index that nobody named says which files there are: a first build that has not ended does not, but
    where files are there once they are committed."""
    return manifest.is_built or is_committed(manifest)


def _snapshot(
    resources: Resources, index: OpenIndex, own: Sequence[FileIndex], options: DatasetOptions, operation: Operation
) -> Dataset:
    options.refuse("the files of an index's snapshot have the columns that they had when it was built", *_OF_FILES)
    if index.manifest.dataset.get("kind") == "table":  # which rows are deleted, the table alone knows
        raise InvalidOptionError(
            "the index is of a table, whose files are not all rows", url=operation.url, hint="Open the table with it."
        )
    dataset = open_snapshot(resources, index, own, skips=options.skips)
    dataset.metrics = operation.metrics
    return dataset


def _indexes(index: object) -> tuple[object | None, list[FileIndex]]:
    """The place, url or handle of an index, and indexes of the caller's own."""
    some = list(index) if isinstance(index, (list, tuple)) else [] if index is None or index is False else [index]
    own = [one for one in some if not isinstance(one, Index) and isinstance(one, FileIndex)]
    places = [one for one in some if one not in own]
    if len(places) > 1:
        raise InvalidOptionError("index: one index of asyncpq's, and any number of your own")
    return (places[0] if places else None), own


async def _open(
    resources: Resources, index: object, operation: Operation, max_age_s: float, root: str | None = None
) -> OpenIndex:
    """
    Raises:
        ObjectNotFoundError: there is no index.
        InvalidOptionError: it is of another folder.
    """
    if isinstance(index, Index):
        _check_root(root, index.manifest, index.url)
        return OpenIndex(index.place, Head(index.place, index.manifest, root=root, pinned=index.head.pinned), max_age_s)
    with counted_in(operation):
        place = await open_place(resources, _place(index, "index"), create=False)
        manifest = await latest(place)
    if manifest is None:
        raise ObjectNotFoundError(
            "there is no index",
            url=place.description,
            hint=_NOT_BUILT,
        )
    _check_root(root, manifest, index)
    return OpenIndex(place, Head(place, manifest, root=root), max_age_s)


def _check_root(root: str | None, manifest: Manifest, at: object) -> None:
    """
    Raises:
        InvalidOptionError: the dataset is a folder inside the one that was indexed, or around it: no other url of it.
    """
    known = manifest.root
    if root is None or not known or root == known or folder_around(at) == root:
        return
    if root.startswith(known) or known.startswith(root):
        raise InvalidOptionError(
            "the index is of another folder",
            url=safe_url(known),
            hint="Open that folder with it, or this one with view='listed'.",
        )


def _place(at: object, argument: str) -> str | Place:
    if isinstance(at, (str, os.PathLike)):
        return os.fspath(at) if isinstance(at, os.PathLike) else at
    if hasattr(at, "read_segment") and not isinstance(at, type):
        return at  # type: ignore[return-value]  # it is one by what it can do
    wanted = "a url or a place" if argument == "at" else "a url, a place, an Index or a FileIndex"
    shown = f"the class {at.__name__}" if isinstance(at, type) else f"an object of type {type(at).__name__}"
    raise InvalidOptionError(f"{argument}: must be {wanted}, not {shown}")


# -- indexes --------------------------------------------------------------------------------------


async def build(
    resources: Resources,
    target: object,
    kinds: Sequence[Kind],
    at: object,
    options: DatasetOptions,
    building: BuildOptions,
    gathering: MakeGathering = LocalGathering,
) -> Index:
    """See :meth:`asyncpq.Session.build_index`."""
    resources.check()
    options.check()
    some: Any = kinds
    if not isinstance(some, (list, tuple)) or not all(isinstance(kind, Kind) for kind in some):
        raise InvalidOptionError("kinds: must be a list of what is to be known, such as [Bounds(), Keys('id')]")
    catalog = catalog_of(target, options.format, options.version)
    files = parse_target(target) if catalog is None else None
    if at is None:
        at = place_below(files)
    else:
        _refuse_among_files(files, at)
    operation = resources.operation("build", _shown(target, files))
    with operation, counted_in(operation):
        await _refuse_one_file(resources, files, at, operation)
        place = await open_place(resources, _place(at, "at"), create=True)
        look = _look_of(resources, place, files, catalog, options, at)
        return await build_index(resources, place, kinds, look, operation, building, gathering)


def _refuse_among_files(files: Target | None, at: object) -> None:
    """
    Raises:
        InvalidOptionError: the index would be read as files of the dataset.
    """
    if files is None or files.urls is not None or not isinstance(at, (str, os.PathLike)):
        return
    url = canonical_url(at)
    made = url if is_json(url) else f"{url.rstrip('/')}/segments/0.parquet"
    folder = f"{canonical_url(files.folder).rstrip('/')}/"
    if made.startswith(folder):
        path = files.folder + made.removeprefix(folder)
        if is_file_of(files, path):
            raise InvalidOptionError(
                "at: readers of the folder would take what is there for its files",
                url=safe_url(os.fspath(at)),
                hint=f"Leave it out, for {INDEX_FOLDER} below the folder; or name a place outside of it.",
            )


def place_below(files: Target | None) -> str:
    """The place of the index of a prefix; None: of a table.

    Raises:
        InvalidOptionError: this is no prefix.
    """
    if files is None or files.urls is not None or files.pattern is not None:
        raise _no_place_below(None if files is None else files.url)
    return f"{files.folder}{INDEX_FOLDER}"


def _no_place_below(url: str | None) -> InvalidOptionError:
    return InvalidOptionError(
        "at: only the index of a prefix has a place of its own, below it",
        url=None if url is None else safe_url(url),
        hint="Say where to keep the index: at='s3://bucket/indexes/trips/'.",
    )


async def _refuse_one_file(resources: Resources, files: Target | None, at: object, operation: Operation) -> None:
    """Refuse to keep the index of one file below the file's own key: the file would be taken for a folder then.

    Args:
        at: where the index is to be kept.

    Raises:
        InvalidOptionError: ``at`` is below the file.
    """
    if files is None or not files.may_be_file or not isinstance(at, (str, os.PathLike)):
        return
    if canonical_url(at).startswith(canonical_url(files.folder).rstrip("/") + "/"):
        store, _ = await resources.store(files.url)
        if await is_one_file(store, files, RequestContext(operation.metrics, purpose="list")):
            raise _no_place_below(files.url)


async def open_existing(
    resources: Resources,
    at: object,
    target: object,
    options: DatasetOptions,
    building: BuildOptions,
    snapshot: int | None,
    gathering: MakeGathering = LocalGathering,
) -> Index:
    """See :meth:`asyncpq.Session.open_index`."""
    resources.check()
    options.check()
    catalog = None if target is None else catalog_of(target, options.format, options.version)
    if target is not None and catalog is None:
        raise InvalidOptionError(
            "table: this is none", hint='With the url of one, say what it is: format="delta" or format="iceberg".'
        )
    operation = resources.operation("open", safe_url(at) if isinstance(at, str) else type(at).__name__)
    with operation, counted_in(operation):
        place = await open_place(resources, _place(at, "at"), create=False)
        look = _look_of(resources, place, None, catalog, options, at)
        try:
            return await open_index(resources, place, look, operation, building, snapshot, gathering)
        except ObjectNotFoundError as error:
            if isinstance(at, (str, os.PathLike)) and await _is_around_index(resources, os.fspath(at)):
                error.hint = f"The index of this folder is in its {INDEX_FOLDER}: name that."
            raise


async def _is_around_index(resources: Resources, at: str) -> bool:
    try:
        return await latest(await open_place(resources, f"{at.rstrip('/')}/{INDEX_FOLDER}", create=False)) is not None
    except AsyncpqError:  # that there is none where one was named is said in any case
        return False


def _look_of(
    resources: Resources,
    place: Place,
    target: Target | None,
    catalog: Catalog | None,
    options: DatasetOptions,
    at: object,
) -> Any:
    """Looks for the files of an index: those of a table in its newest version, others by what the manifest says."""

    async def look(operation: Operation, manifest: Manifest | None, urls: Sequence[str] | None) -> Lake:
        if catalog is not None:
            if manifest is not None and manifest.dataset.get("kind") != "table":
                raise InvalidOptionError("the index there is of no table", url=safe_url(manifest.root))
            dataset = await open_table(resources, catalog, None, operation, skips=False)
            described = {"kind": "table", "table": dataset.url}
            lake = await dataset_lake(dataset._state, "", described, operation)
            return lake if urls is None else only(lake, urls)
        if manifest is not None or target is None:
            if manifest is None:
                raise ObjectNotFoundError(
                    "there is no index",
                    hint=_NOT_BUILT,
                )
            if target is not None:
                check_partitioning(manifest, options.described())
                check_schema(manifest, options.schema)
            lake = await listed_lake(resources, manifest, operation, urls, given=target, at=at)
            return await committed(resources, place, manifest, lake) if is_committed(manifest) else lake
        first = replace(options, on_bad_file="raise", listing_max_age_s=_LISTING_AGE_S)
        dataset = await _open_files(resources, target, first, operation, committing(resources))
        described = described_files(
            target, options.described(), inside=folder_around(at) == target.folder, plain=options.format == "parquet"
        )
        state = dataset._state
        lake = await dataset_lake(state, root_of(target), described, operation)
        is_lake = state.has_index and state.is_written
        return await as_committed(resources, target, lake, is_lake, own_columns=options.schema is None)

    return look
