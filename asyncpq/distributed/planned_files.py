"""Plan the read of one file: which of its rows may match, with the metadata that tasks need to read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.distributed.scan_tasks import PlannedFile, PlanRequests
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_made, encode_shared
from asyncpq.indexing.index_model import file_key
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.options import KIB
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import encode_offset_index
from asyncpq.pruning.row_ranges import RowRanges

_MOST_FOOTER_BYTES: Final = 16 * KIB  # footer payload of one file in a task
_MOST_SHARED_BYTES: Final = 256 * KIB  # larger footers are not compressed to fit
_PAYLOAD_FILE: Final = 0  # id of the file in the keys of its payloads


def plan_unopened(file: DataFile, most_bytes: int, share: float) -> PlannedFile | None:
    """Return the plan to read a whole file without opening it; None if the file must be opened for planning, such as
    a file of more than ``most_bytes`` bytes. ``share`` is the estimated fraction of its bytes that is read."""
    validator, entry = file.validator, file.entry
    if validator is None or not validator.is_strong or file.content is not None or file.deletes is not None:
        return None
    if validator.size > most_bytes or file.fields is not None or (entry is not None and not entry.access.is_all):
        return None
    return PlannedFile(
        url=file.url,
        validator=validator,
        num_rows=file.num_rows or 0,
        num_bytes=int(validator.size * share),
        filtered=False,
        immutable=file.immutable,
        partition=file.partition,
    )


class FieldVariants:
    """The different ways in which files of a table have its columns, numbered from 1."""

    def __init__(self, known: Sequence[tuple[TableField, ...]] = ()) -> None:
        self.known: list[tuple[TableField, ...]] = list(known)

    def number(self, fields: tuple[TableField, ...] | None) -> int:
        """Return the number of ``fields``; add them if they are new. 0 for None: the table's own fields apply."""
        if fields is None:
            return 0
        if fields not in self.known:
            self.known.append(fields)
        return self.known.index(fields) + 1


async def plan_opened(
    requests: PlanRequests, variants: FieldVariants | None, task_bytes: int, opened: OpenedFile
) -> list[PlannedFile]:
    """Return the plans of a file that was opened and pruned: one for each run of row groups that one task may read.
    Empty if pruning excluded the whole file. ``variants``: None if tasks match the columns themselves, by name."""
    if opened.plan is None:
        return []
    version, file = opened.version, opened.file
    requests.planned(opened)
    fields = 0 if variants is None else variants.number(file.fields)
    footers: dict[tuple[int, ...], dict[int, bytes]] = {}
    planned: list[PlannedFile] = []
    for groups in _runs(opened.plan.fetch_plan.row_groups, task_bytes):
        leaves = tuple(sorted(column.chunk.leaf for column in groups[0].columns))
        if leaves not in footers:
            footers[leaves] = _footers(version, leaves)
        rows = _rows(version, groups)
        planned.append(
            PlannedFile(
                url=file.url,
                validator=None if file.content is not None else version.validator,
                rows=None if rows.num_rows == version.metadata.num_rows else rows,
                num_rows=rows.num_rows,
                num_bytes=sum(map(_num_bytes, groups)),
                filtered=groups[0].filtered,
                immutable=file.immutable,
                partition=file.partition,
                fields=fields,
                content=file.content,
                footers=footers[leaves],
                pages=_pages(groups) if footers[leaves] else {},
            )
        )
    return planned


def _runs(groups: Sequence[RowGroupPlan], task_bytes: int) -> Iterator[list[RowGroupPlan]]:
    """Divide row groups into runs of consecutive ones, of at most ``task_bytes`` bytes, whose rows either all need
    the filter or all match. A larger row group forms a run of its own."""
    run: list[RowGroupPlan] = []
    size = 0
    for group in groups:
        num_bytes = _num_bytes(group)
        if run and (group.filtered is not run[0].filtered or size + num_bytes > task_bytes):
            yield run
            run, size = [], 0
        run.append(group)
        size += num_bytes
    if run:
        yield run


def _num_bytes(group: RowGroupPlan) -> int:
    return sum(column.num_bytes for column in group.columns)


def _rows(version: FileVersion, groups: Sequence[RowGroupPlan]) -> RowRanges:
    known = version.metadata.row_groups
    return RowRanges.from_sorted(
        (start + known[group.ordinal].first_row, stop + known[group.ordinal].first_row)
        for group in groups
        for start, stop in group.rows
    )


def _footers(version: FileVersion, leaves: Sequence[int]) -> dict[int, bytes]:
    """Return the encoded entries of the footer that reading these leaves requires, keyed by leaf. Empty if they
    exceed the size limits: then the task reads the footer itself."""
    metadata = version.metadata
    chunks = {leaf: leaf_pieces(metadata, leaf) for leaf in leaves}
    if sum(len(chunk) for pieces in chunks.values() for chunk in pieces) > _MOST_FOOTER_BYTES:
        return {}
    shared = shared_pieces(metadata)
    if sum(map(len, shared)) > _MOST_SHARED_BYTES:
        return {}
    entry = SharedEntry(version.footer_start, version.size, len(metadata.schema.leaves), shared)
    footers = {SHARED: encode_shared(file_key(_PAYLOAD_FILE, SHARED), entry)}
    for leaf, pieces in chunks.items():
        footers[leaf] = encode_leaf(file_key(_PAYLOAD_FILE, leaf), LeafEntry(pieces, []))
    return footers if sum(map(len, footers.values())) <= _MOST_FOOTER_BYTES else {}


def _pages(groups: Sequence[RowGroupPlan]) -> dict[int, bytes]:
    """Return the encoded page locations of the planned row groups, keyed by leaf."""
    made: dict[int, dict[int, MadeIndex]] = {}
    for group in groups:
        for column in group.columns:
            if column.offsets is not None:
                index = MadeIndex(encode_offset_index(column.offsets), None)
                made.setdefault(column.chunk.leaf, {})[group.ordinal] = index
    return {leaf: encode_made(file_key(_PAYLOAD_FILE, leaf), indexes) for leaf, indexes in made.items()}
