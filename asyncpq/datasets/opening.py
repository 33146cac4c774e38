"""Opening datasets: which files, under which columns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from asyncpq.datasets.dataset import Dataset
from asyncpq.datasets.file_sets import FileSet, FileSource, GivenFiles, ListedFiles, TableFiles
from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.listing import Target, list_files
from asyncpq.datasets.model import Catalog, DataFile, TableField
from asyncpq.datasets.opened_file import Columns, OpenedFile
from asyncpq.datasets.partitioning import Partitioning
from asyncpq.datasets.reader import SessionReader
from asyncpq.datasets.schemas import SchemaUnifier
from asyncpq.decoding.types import file_schema
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext


async def open_table(resources: Resources, catalog: Catalog, url: str, operation: Operation, *, skips: bool) -> Dataset:
    """The files of a table, as its catalog has them now.

    Raises:
        UnsupportedFeatureError: the table has a feature that is not read.
    """
    snapshot = await catalog.snapshot(SessionReader(resources, operation))
    fields = snapshot.fields
    source = TableFiles(snapshot)
    if fields is not None:
        schema = pa.schema([pa.field(field.name, field.type, field.nullable) for field in fields])
    else:
        context = RequestContext(operation.metrics, purpose="list")
        schema = await _schema(resources, await source.files(None, context), url, operation, pa.schema([]), "strict")
    return Dataset(DatasetState(resources, url, source, Columns(schema, fields, object()), skips))
