"""The files that an index is to know: looked for anew, by what its manifest says, or as an open dataset has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.known_files import type_of
from asyncpq.datasets.listing import Target, list_files, parse_target
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import Ask
from asyncpq.datasets.partitioning import Partitioning, read_partitions
from asyncpq.errors import SchemaMismatchError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.differences import Lake
from asyncpq.indexing.manifest import Manifest
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url


def described_files(target: Target, partitioning: Partitioning | None) -> dict[str, Any]:
    """``Manifest.dataset`` of a prefix, a pattern or a list of urls."""
    if partitioning is None:
        names: Any = None
    else:
        names = "hive" if partitioning.names is None else list(partitioning.names)
    return {"kind": "files", "target": target.url if target.urls is None else list(target.urls), "partitioning": names}


def root_of(target: Target) -> str:
    """What the paths of its files are relative to."""
    return "" if target.urls is not None else target.folder


async def dataset_lake(state: DatasetState, root: str, dataset: Mapping[str, Any], operation: Operation) -> Lake:
    """The files of an open dataset, as they are now.

    Args:
        root, dataset: see :class:`Lake`.
    """
    began = datetime.now(UTC)
    files = (await state.source.files(Ask(), operation)).files
    partitions = dict.fromkeys(name for file in files for name in file.partition)
    schema, fields, _ = state.columns
    return Lake(
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
    resources: Resources, manifest: Manifest, operation: Operation, urls: Sequence[str] | None = None
) -> Lake:
    """The files of the prefix, pattern or list that an index was built over, as they are now.

    Args:
        urls: only these are looked at: they are new, were replaced, or are not there any more.

    Raises:
        UsageError: it was built over a table.
        StoreError: any of the store's errors.
    """
    dataset, began = manifest.dataset, datetime.now(UTC)
    if dataset.get("kind") != "files":
        raise UsageError(
            "the index is of a table, whose files its own metadata names", hint="Give the table: refresh(dataset=...)."
        )
    target = parse_target(dataset["target"])
    partitioning = partitioning_of(manifest)
    files: Sequence[DataFile]
    if urls is None:
        store, _ = await resources.store(target.url)
        context = RequestContext(operation.metrics, purpose="list")
        async with resources.deadline(safe_url(target.url)):
            found = await list_files(store, target, context, partitioning=partitioning, allow_empty=True)
        files = found.files
    else:
        files = _named(list(dict.fromkeys(urls)), root_of(target), partitioning)
    return Lake(
        url=safe_url(target.url),
        root=manifest.root,
        dataset=dataset,
        schema=manifest.schema,
        fields=None,
        partitions=manifest.partitions,
        files=files,
        complete=urls is None,
        as_of=began,
    )


def check_columns(manifest: Manifest, state: DatasetState) -> None:
    """Whether an index speaks of the columns that a dataset has.

    Raises:
        SchemaMismatchError: a column that is indexed is another one there, or of another type.
    """
    schema, fields, _ = state.columns
    ids = {field.name: field.field_id for field in fields or ()}
    known = dict(manifest.field_ids)
    for name in dict.fromkeys(name for part in manifest.parts for name in part.columns):
        found, indexed = type_of(schema, name), type_of(manifest.schema, name)
        top = name.partition(".")[0]
        other = fields is not None and (known.get(name, ids.get(name)), known.get(top, ids.get(top))) != (
            ids.get(name),
            ids.get(top),
        )
        if found is not None and (found != indexed or other):
            raise SchemaMismatchError(
                f"the column is another one than the one that was indexed: of type {found}, not {indexed}",
                url=state.url,
                column=name,
                hint="Drop the index and build it again, or open the dataset without it.",
            )


def partitioning_of(manifest: Manifest) -> Partitioning | None:
    """How the paths of its files hold values; None where they do not."""
    names = manifest.dataset.get("partitioning")
    if names is None:
        return None
    types = {name: manifest.schema.field(name).type for name in manifest.partitions}
    return Partitioning(None if names == "hive" else tuple(names), types)


def _named(urls: Sequence[str], root: str, partitioning: Partitioning | None) -> list[DataFile]:
    """
    Raises:
        PartitionError: a path has a value that is none of its column's type.
    """
    paths = [url[len(root) :] if url.startswith(root) else url.partition("://")[2] or url for url in urls]
    partitions = read_partitions([path[: path.rfind("/") + 1] for path in paths], urls, partitioning)
    for error in partitions.errors.values():
        raise error
    return [DataFile(url=url, partition=values) for url, values in zip(urls, partitions.values, strict=True)]


def only(lake: Lake, urls: Sequence[str]) -> Lake:
    """Of ``lake`` these files alone; those that it does not have are gone."""
    wanted = dict.fromkeys(urls)
    return replace(lake, files=[file for file in lake.files if file.url in wanted], complete=False)
