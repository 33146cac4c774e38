"""The causes in a dataset's files why a read was not faster: how many there are, and what its index knows of them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from asyncpq.reports import cures
from asyncpq.reports.lake_lint import FILE_BYTES, MANY_FILES, SMALL_FILE
from asyncpq.reports.read_model import (
    METADATA,
    TAIL_BYTES,
    Facts,
    ReadModel,
    Rounds,
    fetched,
    pieces_of,
    rounds_of,
    wanted,
)
from asyncpq.reports.units import plural, size_text

if TYPE_CHECKING:
    from asyncpq.reports.documents import Cause

_KNOWS: Final = re.compile(r"knows (\d+) of (\d+) files as they are")


def tiny_files(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if many small files were opened."""
    if facts.files_opened < MANY_FILES or not facts.sizes or statistics.median(facts.sizes) > SMALL_FILE:
        return
    size = statistics.fmean(facts.sizes)
    files = math.ceil(facts.files_opened * size / FILE_BYTES)
    needed: dict[str, list[int]] = {}
    for column in facts.columns:
        if column.wanted:
            needed.setdefault(column.name, []).append(column.wanted_bytes)
    instead = {
        number: [max(sizes)] * min(len(sizes), files if len(sizes) >= facts.files_opened // 2 else len(sizes))
        for number, sizes in model.metadata.items()
    }
    yield from model.cause(
        "tiny-files",
        f"Files are tiny: {size_text(size)} on average",
        f"{plural(facts.files_opened, 'file')} were opened, each with requests of its own for footer and pages; "
        f"{plural(files, 'file')} of {size_text(FILE_BYTES)} would hold the same rows.",
        cures.advice("tiny-files"),
        metadata=instead,
        data=[[sum(parts) for parts in needed.values()]],
        more_s=model.unplanned(files, sum(facts.footers) * files // facts.files_opened),
        snippets=cures.compaction(),
    )


def no_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if files were opened to find that they have no matching row, and there is no index."""
    matched = {column.url for column in facts.columns if column.matches}
    needless = facts.files_opened - len(matched)
    if not facts.files_total or facts.index or not facts.filters or needless < 3 or needless < len(matched):
        return
    # a slice of the index, then the footers of the files that have matching rows
    metadata: Rounds = {1: [TAIL_BYTES], 2: [TAIL_BYTES] * len(matched)}
    name = facts.filters[0]
    yield from model.cause(
        "no-index",
        f"No index of {name}: files are opened to find that they have no matching row",
        f"{facts.files_opened:,} of {plural(facts.files_total, 'file')} were opened. Matching rows are in "
        f"{plural(len(matched), 'file')}.",
        cures.advice("no-index", name),
        metadata=metadata,
        data=[pieces_of(facts.columns, wanted)],
        more_s=model.unplanned(len(matched) + 1, sum(facts.footers) * (len(matched) + 1) // facts.files_opened)
        + model.undecoded(wanted),
        column=name,
        snippets=cures.index(name),
    )


def stale_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if files were read without the index because it does not know them yet."""
    known = next((match for line in facts.index if (match := _KNOWS.search(line))), None)
    other_versions = [reason for reason in facts.fallbacks if "built for another version" in reason]
    if not facts.index or (known is None and not other_versions):
        return
    behind = len(facts.unindexed) if known is None else int(known[2]) - int(known[1])
    matched = {column.url for column in facts.columns if column.matches}
    needless = facts.unindexed - matched
    kept = [record for record in facts.log if record.url not in needless]
    yield from model.cause(
        "stale-index",
        f"The index is behind: it lacks {plural(behind, 'file')}",
        f"{plural(behind, 'file')} are newer than the index, and are opened and read without it.",
        "Refresh the index after files were written.",
        metadata=rounds_of(record for record in kept if record.purpose in METADATA),
        data=[pieces_of([column for column in facts.columns if column.url not in needless], fetched)],
        more_s=model.unplanned(facts.files_opened - len(needless), sum(facts.footers) // 2)
        + model.undecoded(lambda column: () if column.url in needless else column.fetched),
        snippets={"asyncpq": "await index.refresh()"},
    )
