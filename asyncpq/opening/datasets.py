"""Open datasets of listed files and of tables under one schema, alone or with an index.

The snapshot of an index gives files and columns without a request (``open_snapshot``), or prunes the files of another
dataset (``open_indexed``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from asyncpq.dataset import Dataset, state_of, with_source
from asyncpq.datasets import providers
from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.listing import Commits, FileRules, Listing, Target, list_files
from asyncpq.datasets.model import Catalog, DataFile, View
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile, Opener
from asyncpq.datasets.partitioning import Partitioning, parse_partitioning
from asyncpq.datasets.relisting import Relisting, file_set
from asyncpq.datasets.schemas import SchemaPolicy, SchemaUnifier
from asyncpq.errors import AsyncpqError, Hint, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.options import one_of
from asyncpq.records import dataclass
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext, listing_check
from asyncpq.storage.urls import RENEWAL, options_for, safe_url
from asyncpq.tables import Format
from asyncpq.tables.own_store import OwnStore, VendedCredentials, check_store, with_table_options
from asyncpq.typing import TableVersion

if TYPE_CHECKING:  # loaded where an index is found or passed
    from asyncpq.indexing.query.file_selection import FileIndex
    from asyncpq.indexing.query.index_query import OpenIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The options of :meth:`asyncpq.Session.open_dataset`."""

    format: Format | None = None
    version: TableVersion | None = None
    schema: pa.Schema | None = None
    schema_policy: SchemaPolicy = "strict"
    partitioning: Literal["hive"] | Sequence[str] | None = "hive"
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None = None
    on_bad_file: Literal["raise", "skip"] = "raise"
    listing_max_age_s: float = 0.0

    def check(self) -> None:
        """Raise InvalidOptionError if an option has an invalid value."""
        one_of("schema_policy", self.schema_policy, ("strict", "permissive"))
        one_of("on_bad_file", self.on_bad_file, ("raise", "skip"))
        columns: Any = self.schema
        if columns is not None and not isinstance(columns, pa.Schema):
            raise InvalidOptionError(f"schema: must be a pyarrow.Schema, not {type(columns).__name__}", option="schema")
        age: Any = self.listing_max_age_s
        if not isinstance(age, (int, float)) or not age >= 0:
            raise InvalidOptionError(
                f"listing_max_age_s={age!r}: must be a number of at least 0", option="listing_max_age_s"
            )

    @property
    def skips(self) -> bool:
        """Whether bad files (damaged, unreadable or with other columns) are left out instead of raising an error."""
        return self.on_bad_file == "skip"

    def _is_given(self, name: str) -> bool:
        """Return whether the caller set an option. A rule for the names of folders is a door's, not the caller's."""
        value = getattr(self, name)
        return value != getattr(_DEFAULTS, name) and not isinstance(value, Partitioning)

    def refuse(self, why: str, *names: str) -> None:
        """Raise InvalidOptionError with the message ``why`` if an option of ``names`` differs from its default."""
        given = [name for name in names if self._is_given(name)]
        if given:
            raise InvalidOptionError(why, hint=f"Leave out {', '.join(given)}.")

    def path_layout(self) -> Partitioning | None:
        """Return how the files' paths contain column values; None if paths have no values.

        Raises InvalidOptionError if ``partitioning``, ``partition_types`` and ``schema`` contradict each other.
        """
        return parse_partitioning(self.partitioning, self.partition_types, self.schema)


_DEFAULTS: Final = DatasetOptions()


async def open_table(
    runtime: Runtime, catalog: Catalog, url: str | None, operation: Operation, *, skips: bool
) -> Dataset:
    """Open the files of a table's snapshot. Raises UnsupportedFeatureError if asyncpq does not support the table,
    InvalidOptionError if the table was loaded from another store than the session reads.

    Args:
        url: the table's url, without secrets; None for a table without a url, which its description then names.
        skips: leave out bad files (damaged or unreadable) instead of raising an error.
    """
    store = getattr(catalog, "store", None)
    if isinstance(store, OwnStore):
        runtime = _with_own_options(runtime, store)
    async with runtime.deadline(operation.url):
        snapshot = await catalog.snapshot(providers.RuntimeReader(runtime, operation))
    url = url or snapshot.description.partition(", ")[0]
    source = providers.TableFiles(runtime, snapshot)
    fields = snapshot.fields
    state = DatasetState(runtime, url, source, DatasetColumns(pa.schema([]), fields, object()), skips)
    if fields is not None:
        schema = pa.schema([pa.field(field.name, field.type, field.nullable) for field in fields])
    else:
        files = (await source.files(ScanRequest(), operation)).files
        schema = await _schema_of(state, files, operation, "strict", pa.schema([]))
    state.columns = DatasetColumns(schema, fields, object())
    return Dataset(state)


def _with_own_options(runtime: Runtime, store: OwnStore) -> Runtime:
    """Return the runtime that reads a loaded table of ``store``: with the table's options, where the session names no
    others. Raises InvalidOptionError if the session's options contradict the table's."""
    options = None
    if runtime.takes_table_options:
        options = with_table_options(store.protocol, store.options, runtime.storage_options)
    check_store(store, runtime.storage_options if options is None else options)
    if options is None:
        return runtime
    scoped = runtime.scoped(store.scope(options), options)
    newer = store.options.get(RENEWAL)
    older = options_for(store.protocol, scoped.storage_options).get(RENEWAL)
    if isinstance(newer, VendedCredentials) and isinstance(older, VendedCredentials) and newer is not older:
        older.update(newer)
    return scoped


async def open_files(
    runtime: Runtime,
    target: Target,
    operation: Operation,
    commits: Commits,
    options: DatasetOptions,
    on_listing: Callable[[Listing], None] = lambda listing: None,
) -> Dataset:
    """Open the files of a prefix, a pattern or a list.

    Args:
        commits: see :data:`asyncpq.datasets.listing.Commits`.
        on_listing: called with the first listing, before files are opened for their columns.

    Raises:
        InvalidOptionError: the files belong to a table.
        ObjectNotFoundError: the target has no files.
        SchemaMismatchError: the columns of two files conflict.
    """
    store, _ = await runtime.store(target.url)
    shown, began = safe_url(target.url), time.monotonic()
    before = operation.metrics.requests_by_purpose.get("list", 0)
    partitioning, plain, skips = options.path_layout(), options.format == "parquet", options.skips
    async with runtime.deadline(shown):
        context = RequestContext(operation.metrics, purpose="list")
        listing = await list_files(runtime, target, context, FileRules(commits, partitioning, plain))
    cost = None if target.urls is not None else providers.listing_cost(operation.metrics, before, began)
    on_listing(listing)
    if listing.table is not None and not plain:
        raise listing.table.error(shown)
    if partitioning is not None:  # partition values of files that appear later must have the same types
        types = dict(zip(listing.partitions.names, listing.partitions.types, strict=True))
        partitioning = replace(partitioning, types={**partitioning.types, **types})

    first = file_set(listing, listing.errors, began, skips=skips)._replace(cost=cost)
    source: providers.FileProvider
    if target.urls is None:
        check = listing_check(store) if runtime.options.policy(target.url, shown).kind == "etag" else None
        rules = FileRules(commits, partitioning, plain)
        lister = Relisting(runtime, target, rules, listing, lambda: state.columns.schema, skips=skips)
        source = providers.ListedFiles(runtime, shown, lister, first, options.listing_max_age_s, check)
    else:
        policy = runtime.options.policy
        files = [
            replace(file, immutable=True) if policy(file.url, safe_url(file.url)).kind == "immutable" else file
            for file in first.files
        ]
        source = providers.GivenFiles(files, first.bad)
    state = DatasetState(runtime, shown, source, DatasetColumns(pa.schema([]), None, object()), skips)
    if target.urls is None and target.pattern is None and listing.table is None:
        state.prefix = f"{shown.rstrip('/')}/"
    schema = options.schema
    if schema is None:
        schema = await _schema_of(state, first.files, operation, options.schema_policy, listing.partitions)
    state.columns = DatasetColumns(schema, None, object())
    state.has_index = listing.has_index and target.pattern is None
    state.is_written = listing.is_written
    state.partitions = tuple(listing.partitions.names)
    return Dataset(state)


async def _schema_of(
    state: DatasetState, files: Sequence[DataFile], operation: Operation, policy: SchemaPolicy, partitions: pa.Schema
) -> pa.Schema:
    """Return the columns of the files: with "strict" those of the first, since other files are checked when they are
    opened; else the unified columns of all. Raises ObjectNotFoundError if no file can be read, SchemaMismatchError if
    two files conflict.
    """
    wanted: Iterable[DataFile] = files
    if policy == "strict" and any(file.size != 0 for file in files):
        wanted = (file for file in files if file.size != 0)  # an empty one, of which a read raises the error, has none
    unifier = SchemaUnifier(policy, partitions)
    if policy != "strict":  # one file is opened, and the read that follows counts all of them
        operation.metrics.files_total = len(files)
    # events count files only if all are opened here: a build reads the files later, and "strict" opens one
    tells = operation.name == "open" and policy != "strict"

    def skip(number: int, part: Operation, error: AsyncpqError) -> None:
        operation.part_ended(part, error, number + 1 if tells else None)

    async def schema_of(opened: OpenedFile) -> pa.Schema:
        return await state.runtime.off_loop(lambda: opened.schema, len(opened.version.metadata.schema.leaves))

    opener = Opener(
        runtime=state.runtime,
        operation=operation,
        rounds=operation.metrics.rounds,
        tail_hint=state.url,
        prefix=state.prefix,
        few=policy == "strict",
        restarts=state.runtime.options.limits.max_restarts,
        skip=skip if state.skips else None,
    )
    async with aclosing(opener.files(enumerate(wanted), schema_of)) as opened_files:
        async for opened, schema in opened_files:
            await opened.close()
            operation.part_ended(opened.operation, None, opened.number + 1 if tells else None)
            await state.runtime.off_loop(partial(unifier.add, opened.version.url, schema), len(schema))
            if policy == "strict":
                state.unifier = unifier
                return unifier.schema
    if unifier.is_empty:
        raise ObjectNotFoundError(
            "the dataset has no readable file: all files were skipped as bad",
            url=state.url,
            hint='Pass on_bad_file="raise" to see the first error.',
        )
    return unifier.schema


def open_snapshot(runtime: Runtime, index: OpenIndex, own: Sequence[FileIndex] = (), *, skips: bool) -> Dataset:
    """Open the files that an index lists, without a request. Raises InvalidOptionError if the first build of the
    index is not finished. ``own`` are indexes that the caller implements; with ``skips``, bad files are left out."""
    from asyncpq.indexing.build.index_source import is_committed
    from asyncpq.indexing.query.indexed_files import SnapshotFiles

    manifest = index.manifest
    if not manifest.is_built:
        raise InvalidOptionError(
            "the index lists no files yet: its first build is not finished",
            hint="Write to the folder again: no write to it was committed yet."
            if is_committed(manifest)
            else "Build the index again" + Hint(", or open the dataset without it (index=False).", "."),
        )
    source = SnapshotFiles(runtime, index, own)
    columns = DatasetColumns(manifest.schema, None, object())
    url = safe_url(manifest.root) or index.backend.description
    return Dataset(DatasetState(runtime, url, source, columns, skips, partitions=manifest.partitions))


def open_indexed(
    runtime: Runtime, base: Dataset, index: OpenIndex | None, own: Sequence[FileIndex] = (), *, folder: str = ""
) -> Dataset:
    """Return a dataset with the files of ``base``, pruned by ``index`` (if not None) and by ``own``, indexes that the
    caller implements.

    ``base`` may have any view; if "snapshot", another index lists its files. Paths in the indexes are relative to the
    url ``folder``.
    """
    from asyncpq.indexing.query.indexed_files import IndexedFiles

    partitions = state_of(base).partitions if base.view is View.LISTED else None
    return with_source(base, lambda source: IndexedFiles(runtime, source, index, own, folder, partitions))
