"""The causes in a file's layout why a read was not faster: its pages, their bounds, the order of rows, dictionaries.

The layout of a cured file follows from the sizes of its pages and from the pages that hold matching rows. What counts
as large, and why bounds rule out little, is decided as for ``lint``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from asyncpq.expressions.tree import ColumnComparison, Contains, HasPhrase, HasTokens, Like, atoms
from asyncpq.reports import cures
from asyncpq.reports.cpu_work import decode_work, dictionary_work
from asyncpq.reports.encoding_rules import LARGE_DICTIONARY
from asyncpq.reports.file_shapes import has_large_pages, page_count
from asyncpq.reports.read_model import (
    METADATA,
    TAIL_BYTES,
    Facts,
    ReadModel,
    fetched,
    paged,
    pieces_of,
    rounds_of,
    wanted,
)
from asyncpq.reports.story import ColumnRead
from asyncpq.reports.units import plural, size_text

if TYPE_CHECKING:
    from asyncpq.expressions import Expression
    from asyncpq.reports.documents import Cause

_LARGE_FOOTER: Final = 512 * 1024


def names_of(columns: Iterable[ColumnRead]) -> str:
    """Return the names of the columns as text, the first three of them."""
    names = list(dict.fromkeys(column.name for column in columns))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_clustered(columns: Sequence[ColumnRead]) -> bool:
    """Return whether at least half of the row groups that were read have matching rows."""
    groups = {(column.url, column.row_group): column.matches for column in columns}
    return sum(map(bool, groups.values())) * 2 >= len(groups)


def no_page_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if whole column chunks were read for few pages, because there is no OffsetIndex."""
    affected = [column for column in facts.columns if column.whole and not column.has_index and column.fetched]
    few = [column for column in affected if len(column.wanted) * 2 < len(column.sizes)]
    if not few:
        return
    clustered = _is_clustered(facts.columns)
    places = {(column.url, column.row_group, column.leaf) for column in affected}

    def instead(column: ColumnRead) -> Sequence[int]:
        if (column.url, column.row_group, column.leaf) not in places:
            return column.fetched
        return column.fetched if column.predicate and not clustered else column.wanted

    num_bytes = sum([column.bytes for column in few])
    yield from model.cause(
        "no-page-index",
        "No page index: whole column chunks are read",
        f"{plural(len(few), 'column chunk')} of {names_of(few)} ({size_text(num_bytes)}) came whole, since nothing "
        f"says where their pages are. Matching rows are in {plural(sum([len(item.wanted) for item in few]), 'page')}.",
        cures.advice("no-page-index"),
        data=paged(facts.columns, model, instead),
        more_s=model.undecoded(instead),
        column=few[0].name,
        snippets=cures.pages(),
    )


def unused_page_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if whole column chunks were read because page indexes are damaged or not believed."""
    reasons = [reason for reason in facts.fallbacks if "index is not used" in reason or "split rows" in reason]
    affected = [column for column in facts.columns if column.whole and column.fetched]
    if not reasons or not affected:
        return
    yield from model.cause(
        "page-index-not-used",
        "Page indexes are damaged or not believed",
        f"{reasons[0]}. {plural(len(affected), 'column chunk')} came whole "
        f"({size_text(sum([column.bytes for column in affected]))}).",
        "Write the file again with a newer writer.",
        data=paged(facts.columns, model, wanted),
        more_s=model.undecoded(wanted),
        column=affected[0].name,
        snippets=cures.pages(),
    )


# -- pages that were read in vain -----------------------------------------------------------------


def pages_in_vain(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if far more pages of the filter's columns were read than hold matching rows: its bounds, the order
    of the rows, or the condition itself."""
    filters = [
        column for column in facts.columns if column.predicate and column.fetched and column.url not in facts.unindexed
    ]
    groups = len({(column.url, column.row_group) for column in filters})
    matching = len({(column.url, column.row_group) for column in filters if column.matches})
    pages = sum([len(column.fetched) for column in filters])
    needed = sum([len(column.wanted) for column in filters])
    paged_filters = groups > 1 or any(column.has_index or column.has_bounds for column in filters)
    if not paged_filters or (groups < 4 * max(matching, 1) and pages < 4 * max(needed, 1)):
        return
    read = (
        f"{plural(pages, 'page')} of {names_of(filters)} in {plural(groups, 'row group')} were read for "
        f"{plural(needed, 'page')} with matching rows"
    )
    if facts.where is not None and not _bounds_answer(facts.where):
        yield from _condition(facts, model, filters, read)
        return
    key = max(filters, key=lambda column: len(column.fetched) - len(column.wanted))
    rule = facts.weakness_of(key)
    if rule == "random-order":
        yield from _random_order(facts, model, key, read)
        return
    if rule == "no-bloom-filter":
        left = [column for column in facts.columns if column.matches or not column.predicate]
        kept = {(column.url, column.row_group) for column in left if column.matches}
        data = [pieces_of([column for column in left if (column.url, column.row_group) in kept], fetched)]
        more_s = model.undecoded(lambda column: column.fetched if (column.url, column.row_group) in kept else ())
    else:
        data, more_s = paged(facts.columns, model, wanted), model.undecoded(wanted)
        if rule == "no-statistics" and not key.has_index:
            return  # without pages, statistics help where there are several row groups
        if rule == "missing-bounds" and not key.has_bounds:
            rule_id, title = "no-column-index", "No ColumnIndex: pages have no bounds"
            yield from _bounds(model, rule_id, title, read, key.name, data, more_s)
            return
    yield from _bounds(model, rule, _TITLES[rule].format(column=key.name), read, key.name, data, more_s)


_TITLES: Final = {
    "statistics-not-believed": "The statistics of {column} are not believed",
    "no-statistics": "{column} has no statistics: nothing says which values pages hold",
    "missing-bounds": "Bounds of pages of {column} are missing",
    "truncated-bounds": "Bounds of {column} are truncated until they overlap",
    "chunk-bounds": "Each page of {column} has the bounds of its whole chunk",
    "no-bloom-filter": "No Bloom filter of {column}: row groups are read to find that they have no matching row",
}


def _bounds(
    model: ReadModel, rule: str, title: str, read: str, name: str, data: Sequence[Sequence[int]], more_s: float
) -> Iterator[Cause]:
    yield from model.cause(
        rule,
        title,
        f"{read}.",
        cures.advice(rule, name),
        data=data,
        more_s=more_s,
        column=name,
        snippets=cures.CURES[rule](name),
    )


def _bounds_answer(where: Expression) -> bool:
    """Return whether bounds of pages may rule out rows for any part of the condition."""
    return any(not isinstance(atom, _UNBOUNDED) and not _begins_freely(atom) for atom in atoms(where))


_UNBOUNDED: Final = (Contains, ColumnComparison, HasTokens, HasPhrase)


def _begins_freely(atom: object) -> bool:
    return isinstance(atom, Like) and atom.pattern[:1] in ("%", "_", b"%", b"_")


def _condition(facts: Facts, model: ReadModel, filters: Sequence[ColumnRead], read: str) -> Iterator[Cause]:
    name = filters[0].name
    is_slow = model.filter_s >= max(model.network_s, model.decode_s)
    what = "The filter takes longest, and bounds" if is_slow else "Bounds"
    yield from model.cause(
        "filter-bound" if is_slow else "condition-without-bounds",
        f"{what} cannot answer the condition on {name}",
        f"{read}: no order of the rows would rule out the others.",
        f"Build an index of the words or the parts of {name}, or add a condition on a column that is in order.",
        data=paged(facts.columns, model, wanted),
        more_s=model.undecoded(wanted),
        column=name,
        snippets=cures.text_index(name),
    )


def _random_order(facts: Facts, model: ReadModel, key: ColumnRead, read: str) -> Iterator[Cause]:
    by_leaf: dict[str, list[ColumnRead]] = {}
    for column in facts.columns:
        by_leaf.setdefault(column.name, []).append(column)
    pieces: list[int] = []
    work = rows = 0.0
    for chunks in by_leaf.values():
        first = chunks[0]
        rows_a_page = sum([chunk.num_rows for chunk in chunks]) / sum([len(chunk.sizes) for chunk in chunks])
        page_bytes = statistics.fmean([size for chunk in chunks for size in chunk.sizes])
        if all(chunk.whole and not chunk.has_index for chunk in chunks):
            largest = max(chunks, key=lambda chunk: chunk.bytes)
            pieces.append(largest.bytes)  # without page indexes, order leaves one row group
            work += decode_work(largest, range(len(largest.sizes)))
            rows += largest.num_rows if first.predicate else 0
            continue
        needed = max(1, math.ceil(facts.matches / max(rows_a_page, 1)))
        pieces.append(round(needed * page_bytes))
        work += decode_work(first, range(len(first.sizes))) * needed / len(first.sizes)
        rows += needed * rows_a_page if first.predicate else 0
        if dictionary := max([chunk.dictionary for chunk in chunks]):
            pieces.append(dictionary)
    yield from model.cause(
        "random-order",
        f"Rows are not in the order of {key.name}: bounds rule out little",
        f"{read}: the values of each page range over nearly all values.",
        cures.advice("random-order", key.name, has_filters=key.has_filter),
        data=[pieces],
        more_s=model.less_work(work, rows),
        column=key.name,
        snippets=cures.sort(key.name),
    )


# -- large parts ----------------------------------------------------------------------------------


def huge_dictionary(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if large dictionaries were read, for values that could do without."""
    large = [column for column in facts.columns if column.fetched and column.dictionary >= LARGE_DICTIONARY]
    if not large:
        return
    worst = max(large, key=lambda column: column.dictionary)
    names = {column.name for column in large}
    rest = [column for column in facts.columns if column.name not in names]
    small = [column for column in facts.columns if column.name in names]
    rule, what = ("dictionary-fallback", "was given up half-way") if worst.gave_up else ("huge-dictionary", "is large")
    yield from model.cause(
        rule,
        f"The dictionary of {worst.name} {what}",
        f"{size_text(sum([column.dictionary for column in large]))} of dictionaries of {names_of(large)} were needed "
        f"for {size_text(sum([sum([column.sizes[page] for page in column.fetched]) for column in large]))} of pages.",
        cures.advice(rule, worst.name),
        data=[[*pieces_of(rest, fetched), *pieces_of(small, fetched, dictionaries=False)]],
        more_s=model.less_work(model.decode_work - sum(map(dictionary_work, large))),
        column=worst.name,
        snippets=cures.without_dictionary([worst.name]),
    )


def huge_pages(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if pages are large for the rows that match."""
    # Without page indexes all pages of a chunk come, however small they are.
    located = [column for column in facts.columns if column.has_index or not column.whole]
    large = [
        column
        for column in located
        if column.fetched
        and not column.is_estimated
        and has_large_pages(column.num_rows, column.plain, len(column.sizes))
    ]
    if not large or not facts.matches:
        return
    names = {column.name for column in large}
    pieces = pieces_of([column for column in facts.columns if column not in located], fetched)
    pieces += [column.dictionary for column in located if column.fetched and column.dictionary]
    work, rows = model.decode_work, 0.0
    for column in located:
        is_large, pages = column in large, page_count(column.num_rows, column.plain)
        for page in column.fetched:
            size = column.sizes[page]
            parts = max(1.0, pages / len(column.sizes)) if is_large else 1.0  # into which the page is divided
            matches = column.matches / max(len(column.wanted), 1) if page in column.wanted else 1
            left = min(1.0, math.ceil(matches) / parts)
            pieces.append(round(size * left))
            work -= decode_work(column, [page]) * (1 - left) if is_large else 0.0
            rows += column.num_rows * left / len(column.sizes) if column.predicate else 0.0
    average = statistics.fmean([column.sizes[page] for column in large for page in column.fetched])
    each = statistics.fmean([column.num_rows / len(column.sizes) for column in large])
    yield from model.cause(
        "huge-pages",
        f"Pages are large: {size_text(average)} and {each:,.0f} rows on average",
        f"{plural(sum([len(column.fetched) for column in large]), 'page')} of {', '.join(sorted(names)[:3])} of "
        f"{size_text(average)} each were read for {plural(facts.matches, 'row')}.",
        cures.advice("huge-pages"),
        data=[pieces],
        more_s=model.less_work(work, rows),
        column=large[0].name,
        snippets=cures.pages(),
    )


def big_footer(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the footer is so large that it costs requests, bytes, or time to decode."""
    if not any(size >= _LARGE_FOOTER for size in facts.footers):
        return
    instead = rounds_of(record for record in facts.log if record.purpose in METADATA and record.purpose != "footer")
    tails = {record.round for record in facts.log if record.purpose == "tail"}
    for number in tails:
        instead[number] = [min(size, TAIL_BYTES) for size in instead[number]]
    small = sum([min(size, TAIL_BYTES) for size in facts.footers])
    yield from model.cause(
        "big-footer",
        f"Footers are large: {size_text(max(facts.footers))}",
        "The footer describes each column of each row group, and is needed before anything else is read.",
        cures.advice("big-footer"),
        metadata=instead,
        more_s=model.unplanned(facts.files_opened, small) if tails else 0.0,
        snippets=cures.footers(),
    )
