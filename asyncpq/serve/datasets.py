"""The datasets of a service: open them in one session, reopen old ones, and read them with a token's rights."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from asyncpq.dataset import Dataset
from asyncpq.datasets.dataset_files import DatasetScan
from asyncpq.datasets.dataset_plan import DatasetPlan
from asyncpq.errors import ObjectNotFoundError
from asyncpq.expressions import And, Expression, atoms, columns, parse_where
from asyncpq.expressions.scalars import RelativeTime
from asyncpq.opening.targets import names_many
from asyncpq.scan.request import LookupKeys
from asyncpq.serve.access import check_columns, visible_schema
from asyncpq.serve.configuration import DatasetConfiguration, Grant, Limits
from asyncpq.serve.pinning import PinnedFiles, pinned_dataset, unpinned_dataset
from asyncpq.serve.problems import Problem, clients_errors
from asyncpq.serve.requests import Question
from asyncpq.session import Session

BATCH_ROWS = 8192

logger: logging.Logger = logging.getLogger(__name__)


class ServedDataset:
    """One configured dataset, opened at the first request."""

    def __init__(self, session: Session, configuration: DatasetConfiguration) -> None:
        self.configuration = configuration
        self._session = session
        self._dataset: Dataset | None = None
        self._opened_at = -math.inf
        self._opening: asyncio.Task[Dataset] | None = None

    async def dataset(self) -> Dataset:
        """Return the open dataset. If it is older than ``reopen_s``, start to open it again in the background. Raises
        AsyncpqError if it cannot be opened."""
        if self._opening is not None and self._opening.done():
            self._opening = None
        if self._opening is None and time.monotonic() - self._opened_at >= self.configuration.reopen_s:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        if self._dataset is not None:
            return self._dataset
        if self._opening is None:
            return await self._open()
        return await asyncio.shield(self._opening)

    async def _open(self) -> Dataset:
        """Open the configured target as a dataset."""
        target: Any = self.configuration.target
        options = dict(self.configuration.options)
        if isinstance(target, tuple):
            target = list(target)
        elif not (names_many(target) or options.get("format")):
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
            logger.error("dataset %s cannot be opened: %s", self.configuration.name, error)

    async def close(self) -> None:
        """Cancel a running opening of the dataset."""
        task, self._opening = self._opening, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait((task,))


class Inquiry:
    """One request to a dataset with the rights of one token. The request is checked against the columns that the token
    may see, and reads only the rows that it may see.

    Raises:
        Problem: status 400: the request does not fit the visible columns.
    """

    def __init__(self, dataset: Dataset, question: Question, grant: Grant, limits: Limits) -> None:
        self.dataset = dataset
        self.question = question
        self._rows = grant.rows
        schema = dataset.schema
        self.visible: Any = visible_schema(schema, grant)
        with clients_errors():
            named = question.columns or ()
            check_columns(schema, grant, [*named, *question.keys])
            self._where = self._asked(limits)
            check_columns(schema, grant, () if self._where is None else columns(self._where))
            restricted = None if grant.columns is None else self.visible.names
            self._columns = restricted if question.columns is None else list(question.columns)
            self.limit: int = self._checked_limit(limits)
            self._scan(dataset, self._where)  # the question alone: its errors cannot tell of hidden rows
        conditions = [part for part in (self._where, grant.rows) if part is not None]
        self._predicate = conditions[0] if len(conditions) == 1 else And(tuple(conditions)) if conditions else None

    def _asked(self, limits: Limits) -> Expression | None:
        keys, where = self.question.typed_keys(self.visible, limits), self.question.where
        if keys:
            return LookupKeys(keys).predicate
        return None if where is None else parse_where(where)

    def _checked_limit(self, limits: Limits) -> int:
        limit = self.question.limit
        if limit is not None and limit > limits.rows:
            raise Problem(400, f"limit is {limit}, but may be at most {limits.rows}")
        return limits.rows if limit is None else limit

    @property
    def is_stable(self) -> bool:
        """Whether the answer depends only on the files, not on the current time."""
        if self._predicate is None:
            return True
        return not any(isinstance(value, RelativeTime) for atom in atoms(self._predicate) for value in atom.literals)

    def _scan(self, dataset: Dataset, where: Expression | None) -> DatasetScan:
        if self.question.keys:
            return dataset.lookup_scan(self._columns, where, limit=self.limit, batch_size=BATCH_ROWS)
        return dataset.scan(self._columns, where, limit=self.limit, batch_size=BATCH_ROWS)

    def pinned(self, is_known: Callable[[str], bool]) -> tuple[Dataset, PinnedFiles]:
        """Return a copy of the dataset that reads fixed versions of its files, and the provider of these; see
        :func:`pinned_dataset`."""
        return pinned_dataset(self.dataset, is_known)

    def unpinned(self) -> Dataset:
        """Return a copy of the dataset for one request, which reads the current versions of its files."""
        return unpinned_dataset(self.dataset)

    def scan(self, dataset: Dataset) -> DatasetScan:
        """Return the scan that gives the rows of the answer."""
        return self._scan(dataset, self._predicate)

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


def plan_document(name: str, inquiry: Inquiry, plan: DatasetPlan, grant: Grant) -> dict[str, Any]:
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
        "where": inquiry.question.where,
        "limit": inquiry.limit,
    }
    if grant.costs:
        document["funnel"] = [
            {**step, "ruled_out": [{"by": one["by"], "count": one["count"]} for one in step["ruled_out"]]}
            for step in whole["funnel"]
        ]
        for key in ("files_to_read", "num_requests", "num_bytes", "cached_bytes", "rounds"):
            document[key] = whole[key]
    return document
