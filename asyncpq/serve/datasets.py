"""The datasets of a service: open them in one session, reopen old ones, and read them with a token's rights.

``asyncpq serve --check`` opens them before they are served, and holds the rights of every token to their columns.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncpq import Dataset, DatasetPlan, DatasetScan, Expression, Session
from asyncpq.engine.foreign_predicates import lookup_condition, num_comparisons, parse_condition
from asyncpq.engine.pinned_datasets import BoundPredicate
from asyncpq.engine.target_facts import url_facts
from asyncpq.engine.work import shared_context
from asyncpq.errors import AsyncpqError, ColumnNotFoundError, ObjectNotFoundError, nearest_column
from asyncpq.serve.access import ANY_DATASET, Grant, Limits, check_columns, visible_rows, visible_schema
from asyncpq.serve.configuration import Configuration, DatasetConfiguration
from asyncpq.serve.problems import Problem, clients_errors
from asyncpq.serve.requests import MAX_COMPARISONS, RowsRequest, parameter_hint
from asyncpq.serve.responses import batch_rows

logger: logging.Logger = logging.getLogger(__name__)

_STORAGE_TABLES: Final = "(Here storage_options are tables of each protocol, such as [storage.s3].)"


class ServedDataset:
    """One configured dataset, opened at the first request."""

    def __init__(self, session: Session, configuration: DatasetConfiguration) -> None:
        self.configuration = configuration
        self._session = session
        self._dataset: Dataset | None = None
        self._opened_at = -math.inf
        self._opening: asyncio.Task[Dataset] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the dataset was opened; if that is long ago, the next request opens it again."""
        return self._dataset is not None

    async def dataset(self) -> Dataset:
        """Return the open dataset. If it is older than ``reopen_s``, start to open it again in the background. Raises
        AsyncpqError if it cannot be opened."""
        if self._opening is not None and self._opening.done():
            self._opening = None
        if self._opening is None and time.monotonic() - self._opened_at >= self.configuration.reopen_s:
            self._opening = asyncio.get_running_loop().create_task(self.open(), context=shared_context())
            self._opening.add_done_callback(self._opened)
        if self._dataset is not None:
            return self._dataset
        if self._opening is None:
            return await self.open()
        return await asyncio.shield(self._opening)

    async def open(self) -> Dataset:
        """Open the configured target as a dataset, and keep it. Raises AsyncpqError if it cannot be opened."""
        target: Any = self.configuration.target
        options = dict(self.configuration.options)
        if isinstance(target, tuple):
            target = list(target)
        elif not (url_facts(target).many or options.get("format")):
            try:  # one file, unless there is none of that name
                dataset = await self._session.open_dataset([target], **options)
            except ObjectNotFoundError:
                dataset = await self._session.open_dataset(target, **options)
            return self._adopt(dataset)
        return self._adopt(await self._session.open_dataset(target, **options))

    def _adopt(self, dataset: Dataset) -> Dataset:
        self._dataset, self._opened_at = dataset, time.monotonic()
        return dataset

    def _opened(self, task: asyncio.Task[Dataset]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = _line(error) if isinstance(error, AsyncpqError) else str(error)
            logger.error("dataset %s cannot be opened: %s", self.configuration.name, text)

    async def close(self) -> None:
        """Cancel a running opening of the dataset."""
        task, self._opening = self._opening, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait((task,))


class RequestedRows(NamedTuple):
    """The rows that a request asks for.

    ``is_stable``: they depend only on the files, not on the current time.
    """

    predicate: BoundPredicate | None
    is_stable: bool


def requested_rows(dataset: Dataset, request: RowsRequest, grant: Grant, limits: Limits) -> RequestedRows:
    """Return the rows that a request asks for, as far as the token may see them. Checks all columns that the request
    names. Runs in any thread, since a condition may take long.

    Raises:
        Problem: status 400: the request does not fit the visible columns, or its condition has too many comparisons.
    """
    with clients_errors():
        where, is_relative = _condition(request, dataset.schema, grant, limits)
        bound = dataset.bind(where)  # the request alone: its errors cannot tell of hidden rows
    if grant.rows is not None:
        bound = dataset.bind(visible_rows(where, grant))
        is_relative = is_relative or parse_condition(grant.rows).is_relative
    return RequestedRows(bound, not is_relative)


def _condition(request: RowsRequest, schema: pa.Schema, grant: Grant, limits: Limits) -> tuple[Expression | None, bool]:
    """Return the condition of a request, and whether it has times relative to now."""
    try:
        check_columns(schema, grant, [*(request.columns or ()), *request.keys])
    except ColumnNotFoundError as error:
        if error.column is not None and error.column in request.keys:
            error.hint = parameter_hint(request.verb, error.column) or error.hint
        raise
    keys, text = request.typed_keys(visible_schema(schema, grant), limits), request.where
    if keys:
        return lookup_condition(keys), False
    if text is None:
        return None, False
    _check_comparisons(num_comparisons(text))  # before it is parsed, which may take 100 ms
    where = parse_condition(text)
    _check_comparisons(where.num_comparisons)
    try:
        check_columns(schema, grant, where.columns)
    except ColumnNotFoundError as error:
        raise where.explained(error) from error.__cause__
    return where.predicate, where.is_relative


def _check_comparisons(count: int) -> None:
    if count > MAX_COMPARISONS:
        raise Problem(
            400,
            f"where has {count} comparisons, but at most {MAX_COMPARISONS} are allowed",
            hint="Write many values of one column as a list: id IN (1, 2, 3).",
        )


class BoundRequest:
    """One request to a dataset with the rights of one token. It reads only ``rows``, those of :func:`requested_rows`.

    Raises:
        Problem: status 400: the request does not fit the visible columns.
    """

    def __init__(
        self, dataset: Dataset, request: RowsRequest, rows: RequestedRows, grant: Grant, limits: Limits
    ) -> None:
        self.dataset = dataset
        self.request = request
        self.visible: Any = visible_schema(dataset.schema, grant)
        self.is_stable: bool = rows.is_stable
        self._predicate = rows.predicate
        with clients_errors():
            restricted = None if grant.columns is None else self.visible.names
            self._columns = restricted if request.columns is None else list(request.columns)
            self.limit: int = self._checked_limit(limits)
            self.scan(dataset)  # for its errors

    def _checked_limit(self, limits: Limits) -> int:
        limit = self.request.limit
        if limit is not None and limit > limits.rows:
            raise Problem(400, f"limit is {limit}, but may be at most {limits.rows}")
        return limits.rows if limit is None else limit

    def scan(self, dataset: Dataset) -> DatasetScan:
        """Return the scan that gives the rows of the answer."""
        num_columns = len(self.visible if self._columns is None else self._columns)
        rows = batch_rows(num_columns)
        if self.request.keys:
            return dataset.lookup_scan(self._columns, self._predicate, limit=self.limit, batch_size=rows)
        return dataset.scan(self._columns, self._predicate, limit=self.limit, batch_size=rows)

    async def count(self, dataset: Dataset) -> int:
        """Return the number of rows that match the request."""
        return await dataset.count(self._predicate)

    async def plan(self, dataset: Dataset) -> DatasetPlan:
        """Return the plan of the scan or lookup."""
        return await dataset.plan(self._columns, self._predicate, limit=self.limit)


def schema_document(name: str, schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of a dataset as a JSON document."""
    described = [{"name": field.name, "arrow_type": str(field.type), "nullable": field.nullable} for field in schema]
    return {"document": "schema", "dataset": name, "columns": described}


def plan_document(name: str, bound: BoundRequest, plan: DatasetPlan, grant: Grant) -> dict[str, Any]:
    """Return a plan as a JSON document.

    Unless the token may see whole plans, the document has no urls, and nothing about hidden columns, rows and indexes.
    """
    if grant.plans:
        return dict(plan.to_dict())
    whole = plan.to_dict()
    document: dict[str, Any] = {
        "document": "plan",
        "dataset": name,
        "columns": list(plan.columns),
        "where": bound.request.where,
        "limit": bound.limit,
    }
    if grant.costs:
        document["funnel"] = [
            {**step, "ruled_out": [{"by": one["by"], "count": one["count"]} for one in step["ruled_out"]]}
            for step in whole["funnel"]
        ]
        for key in ("files_to_read", "num_requests", "num_bytes", "cached_bytes", "rounds"):
            document[key] = whole[key]
    return document


async def configuration_faults(configuration: Configuration) -> list[str]:
    """Open all datasets; return what is wrong with the configuration, a line each: datasets that cannot be opened, and
    rights of tokens to datasets, columns or rows that do not exist or cannot be compared."""
    faults: list[str] = []
    opened: dict[str, Dataset] = {}
    async with Session(**configuration.session) as session:
        for name, one in configuration.datasets.items():
            try:
                opened[name] = await ServedDataset(session, one).open()
            except AsyncpqError as error:
                faults.append(f"dataset {name}: {_line(error)}")
        for token in configuration.tokens:
            for name, grant in token.grants.items():
                known = list(opened) if name == ANY_DATASET else [name]
                if name != ANY_DATASET and name not in configuration.datasets:
                    faults.append(f"token {token.name}: there is no dataset {name}")
                for dataset in known:
                    if dataset in opened:
                        place = f"token {token.name}, dataset {dataset}"
                        faults += [f"{place}: {fault}" for fault in _grant_faults(opened[dataset], grant)]
    return faults


def _grant_faults(dataset: Dataset, grant: Grant) -> Iterator[str]:
    schema: pa.Schema = dataset.schema
    for column in grant.columns or ():
        if column not in schema.names:
            yield f"columns: there is no column {column!r}. {nearest_column(column, schema.names) or ''}".rstrip()
    if grant.rows is not None:
        try:
            dataset.bind(grant.rows)
        except AsyncpqError as error:
            yield f"rows: {_line(error)}"


def _line(error: AsyncpqError) -> str:
    # An index is built on the command line; other hints name arguments, which are settings of the file, too.
    is_command = error.hint is not None and "build_index()" in error.hint
    text = " ".join((error.command_text() if is_command else str(error)).split())
    return f"{text} {_STORAGE_TABLES}" if "storage_options" in text else text
