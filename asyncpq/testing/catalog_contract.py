"""The contract of a catalog (:class:`asyncpq.Catalog`), as a check for any test runner.

Use a small table, since the check reads all of it::

    async def test_my_catalog():
        async with asyncpq.Session() as session:
            await check_catalog(session, MyCatalog(...))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.dataset import Dataset
from asyncpq.datasets.model import Catalog, CatalogReader, ColumnBounds, DataFile, Snapshot
from asyncpq.decoding.filter import compile_filter
from asyncpq.decoding.paths import struct_path, top_level, type_of
from asyncpq.expressions import Expression, IsNull, Or, col
from asyncpq.expressions.scalars import as_scalar
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.session import Session

_TRIED_VALUES = 3  # values looked up in each column of each file


async def check_catalog(session: Session, catalog: Catalog) -> None:
    """Check a catalog's bounds, counts and partition values against all rows, and that it leaves out no file.

    A read prunes files by these values alone, so a wrong value means wrong rows.

    Raises:
        AssertionError: a value is wrong; the message names the file and the column.
        AsyncpqError: the table cannot be read.
    """
    pinning = _PinningCatalog(catalog)
    dataset = await session.open_dataset(pinning)
    snapshot, reader = pinning.pinned
    assert snapshot.description, "the snapshot has no description"
    files = await snapshot.files(None, reader)
    urls = [file.url for file in files]
    assert len(set(urls)) == len(urls), "a file is listed twice"
    assert [file.url for file in await snapshot.files(None, reader)] == urls, "the order of the files changes"
    names = [name for name in _leaves(dataset.schema) if _is_plain(type_of(dataset.schema, name))]
    everything = Or(tuple(IsNull(name) for name in names))  # names all columns, so the snapshot loads their bounds
    bounded = {file.url: file for file in await snapshot.files(everything if names else None, reader)}
    for file in files:
        await _check_file(dataset, snapshot, reader, bounded.get(file.url, file), names)


class _PinningCatalog:
    """A catalog that returns the snapshots of another one, and keeps the last snapshot and its reader in ``pinned``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.pinned: tuple[Snapshot, CatalogReader]

    async def snapshot(self, reader: CatalogReader) -> Snapshot:
        self.pinned = (await self._catalog.snapshot(reader), reader)
        return self.pinned[0]


async def _check_file(
    dataset: Dataset, snapshot: Snapshot, reader: CatalogReader, file: DataFile, names: Sequence[str]
) -> None:
    deleted = 0
    if file.num_rows is not None and file.deletes is not None:
        deleted_rows = await file.deletes.rows(reader, file.num_rows)
        assert deleted_rows.stop <= file.num_rows, (
            f"{file.url}: row {deleted_rows.stop - 1} (counted from 0) is deleted, but the file has only "
            f"{file.num_rows} rows"
        )
        deleted = deleted_rows.num_rows
    rows = await dataset.read(access={file.url: AccessPlan.all()})
    if file.num_rows is not None:
        assert rows.num_rows + deleted == file.num_rows, (
            f"{file.url} has {rows.num_rows + deleted} rows, not {file.num_rows}"
        )
    for name in file.partition:
        assert rows.schema.get_field_index(name) >= 0, f"{file.url}: partition column {name} is not in the table"
    for name in names:
        values = _values(rows, name)
        if name in file.bounds:
            _check_bounds(file, name, file.bounds[name], rows, values, file.deletes is not None)
        for value in pc.drop_null(values.unique())[:_TRIED_VALUES]:
            where = col(name) == as_scalar(value)
            if not _any(where, rows):  # NaN
                continue
            selected = {other.url for other in await snapshot.files(where, reader)}
            assert file.url in selected, f"{file.url}: left out for {where}, which is true for a row"


def _check_bounds(
    file: DataFile, name: str, bounds: ColumnBounds, rows: pa.Table, values: pa.ChunkedArray, has_deletes: bool
) -> None:
    here = f"{file.url}, column {name}"
    if bounds.min is not None:
        assert not _any(col(name) < bounds.min, rows), f"{here}: a value is below the minimum {bounds.min!r}"
    if bounds.max is not None:
        assert not _any(col(name) > bounds.max, rows), f"{here}: a value is above the maximum {bounds.max!r}"
    if bounds.null_count is not None:
        assert values.null_count <= bounds.null_count, f"{here}: more nulls than its null_count of {bounds.null_count}"
        assert has_deletes or values.null_count == bounds.null_count, (
            f"{here}: fewer nulls than its null_count of {bounds.null_count}"
        )
    if bounds.all_null:
        assert values.null_count == len(values), f"{here} has a value that is not null, but all_null is set"
    if not bounds.may_be_nan and pa.types.is_floating(values.type):
        assert not pc.any(pc.is_nan(values)).as_py(), f"{here} has a NaN, but may_be_nan is not set"
    if bounds.exact and len(values) and not has_deletes:
        for bound in (bounds.min, bounds.max):
            assert bound is None or _any(col(name) == bound, rows), (
                f"{here}: no row has the bound {bound!r}, but exact is set"
            )


def _any(where: Expression, rows: pa.Table) -> bool:
    filter_ = compile_filter(where, rows.schema)
    columns = {name: _values(rows, name) for name in filter_.columns}
    return bool(pc.any(filter_.mask(columns, rows.num_rows)).as_py())


def _values(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, or a part of a struct that is named by its dotted path."""
    top = top_level(rows.schema, name) or name
    values = rows[top]
    for child in struct_path(values.type, name[len(top) + 1 :]) if top != name else ():
        values = pc.struct_field(values, child)
    return values


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    for field in fields:
        if isinstance(field.type, pa.StructType):
            yield from _leaves(field.type, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def _is_plain(arrow_type: pa.DataType | None) -> bool:
    """Return whether predicates can compare values of the type with literals."""
    if arrow_type is None or isinstance(arrow_type, pa.BaseExtensionType):
        return False
    return not pa.types.is_nested(arrow_type)
