"""``asyncpq serve --check``: open every dataset, and hold the rights of every token to its columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from asyncpq import Dataset, Session
from asyncpq.errors import AsyncpqError, nearest_column
from asyncpq.serve.configuration import ANY_DATASET, Configuration, Grant
from asyncpq.serve.datasets import ServedDataset


async def faults_of(configuration: Configuration) -> list[str]:
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
                        faults += [f"{place}: {fault}" for fault in _faults_of(opened[dataset], grant)]
    return faults


def _faults_of(dataset: Dataset, grant: Grant) -> Iterator[str]:
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
    return " ".join(str(error).split())
