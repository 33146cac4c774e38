"""Find the causes why a read was not faster, each with the saving that its cure is predicted to bring.

A cause is a property of the file, the session or the read, such as a missing page index; its cure removes it. For each
cause the requests of the read without this cause are computed; the saving is the difference that the :class:`ReadModel`
gives. The layout of a cured file follows from the sizes of its pages and from the pages that hold matching rows.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from asyncpq.reports import cures
from asyncpq.reports.read_model import (
    METADATA,
    Facts,
    ReadModel,
    Rounds,
    fetched,
    paged,
    pieces_of,
    rounds_of,
    size_of,
    wanted,
)
from asyncpq.reports.story import ColumnRead
from asyncpq.reports.units import plural, size_text

if TYPE_CHECKING:
    from asyncpq.metrics import RequestRecord
    from asyncpq.reports.documents import Cause

_SMALL_PAGE: Final = 64 * 1024  # bytes of a page that serves lookups well
_LARGE_PAGE: Final = 256 * 1024  # larger ones are a cause
_LARGE_DICTIONARY: Final = 64 * 1024
_TAIL: Final = 64 * 1024  # bytes that find the footer of a file with few columns
_LARGE_FOOTER: Final = 512 * 1024
_TINY_FILE: Final = 4 << 20
_GOOD_FILE: Final = 128 << 20
_NEAR_S: Final = 0.030  # to the first byte, of a store in the same region
_FAR_S: Final = 0.050
_KNOWS = re.compile(r"knows (\d+) of (\d+) files as they are")


def causes_of(facts: Facts) -> list[Cause]:
    """Return the causes that cost at least a twentieth of the read's requests, the largest saving first.

    Of causes that save about the same, the one that explains more comes first: a layout before a cold cache.
    """
    model = ReadModel(facts)
    causes = [cause for find in _CAUSES for cause in find(facts, model)]
    step = max(model.now_s, 1e-9) / 20
    kept = [cause for cause in causes if (cause["saves_seconds"] or 0) >= step or (cause["saves_requests"] or 0) > 8]
    return sorted(kept, key=lambda cause: -round((cause["saves_seconds"] or 0) / step))


def _names(columns: Iterable[ColumnRead]) -> str:
    names = list(dict.fromkeys(column.name for column in columns))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# -- layouts --------------------------------------------------------------------------------------


def _is_clustered(columns: Sequence[ColumnRead]) -> bool:
    """Return whether at least half of the row groups that were read have matching rows."""
    groups = {(column.url, column.row_group): column.matches for column in columns}
    return sum(map(bool, groups.values())) * 2 >= len(groups)


def _no_page_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    affected = [column for column in facts.columns if column.whole and not column.has_index and column.fetched]
    few = [column for column in affected if len(column.wanted) * 2 < len(column.sizes)]
    if not few:
        return
    clustered = _is_clustered(facts.columns)

    def instead(column: ColumnRead) -> Sequence[int]:
        if column not in affected:
            return column.fetched
        return column.fetched if column.predicate and not clustered else column.wanted

    num_bytes = sum([column.bytes for column in few])
    yield from model.cause(
        "no-page-index",
        "No page index: whole column chunks are read",
        f"{plural(len(few), 'column chunk')} of {_names(few)} ({size_text(num_bytes)}) came whole, since nothing says "
        f"where their pages are. Matching rows are in {plural(sum([len(column.wanted) for column in few]), 'page')}.",
        "Write files with page indexes, or keep Pages() in an index.",
        data=paged(facts.columns, model, instead),
        column=few[0].name,
        snippets=cures.pages(),
    )


def _no_bounds(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    filters = [column for column in facts.columns if column.predicate and column.has_index and not column.has_bounds]
    if not filters or sum([len(column.wanted) * 2 < len(column.fetched) for column in filters]) == 0:
        return
    yield from model.cause(
        "no-column-index",
        "No ColumnIndex: pages have no bounds",
        f"The pages of {_names(filters)} can be found, but nothing says which values they hold: all of "
        f"{plural(sum([len(column.fetched) for column in filters]), 'page')} are read.",
        "Write files with complete page indexes.",
        data=paged(facts.columns, model, wanted),
        column=filters[0].name,
        snippets=cures.pages(),
    )


def _unused_page_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
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
        column=affected[0].name,
        snippets=cures.pages(),
    )


def _random_order(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    filters = [
        column for column in facts.columns if column.predicate and column.fetched and column.url not in facts.unindexed
    ]
    groups = len({(column.url, column.row_group) for column in filters})
    matching = len({(column.url, column.row_group) for column in filters if column.matches})
    pages = sum([len(column.fetched) for column in filters])
    needed_pages = sum([len(column.wanted) for column in filters])
    bounded = groups > 1 or any(column.has_bounds for column in filters)
    if not bounded or (groups < 4 * max(matching, 1) and pages < 4 * max(needed_pages, 1)):
        return
    by_leaf: dict[str, list[ColumnRead]] = {}
    for column in facts.columns:
        by_leaf.setdefault(column.name, []).append(column)
    pieces: list[int] = []
    for chunks in by_leaf.values():
        rows_a_page = sum([chunk.num_rows for chunk in chunks]) / sum([len(chunk.sizes) for chunk in chunks])
        page_bytes = statistics.fmean([size for chunk in chunks for size in chunk.sizes])
        if all(chunk.whole and not chunk.has_index for chunk in chunks):
            pieces.append(max([chunk.bytes for chunk in chunks]))  # without page indexes, order leaves one row group
            continue
        needed = max(1, math.ceil(facts.matches / max(rows_a_page, 1)))
        pieces.append(round(needed * page_bytes))
        if dictionary := max([chunk.dictionary for chunk in chunks]):
            pieces.append(dictionary)
    name = filters[0].name
    yield from model.cause(
        "random-order",
        f"Rows are not in the order of {name}: bounds rule out little",
        f"{plural(pages, 'page')} of {_names(filters)} in {plural(groups, 'row group')} were read for "
        f"{plural(needed_pages, 'page')} with matching rows: the values of each page range over nearly all values.",
        f"Sort the rows by {name}, or index it; Bloom filters rule out row groups.",
        data=[pieces],
        column=name,
        snippets=cures.sort(name),
    )


def _huge_dictionary(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    large = [column for column in facts.columns if column.fetched and column.dictionary >= _LARGE_DICTIONARY]
    if not large:
        return
    worst = max(large, key=lambda column: column.dictionary)
    names = {column.name for column in large}
    rest = [column for column in facts.columns if column.name not in names]
    small = [column for column in facts.columns if column.name in names]
    yield from model.cause(
        "huge-dictionary",
        f"The dictionary of {worst.name} is large",
        f"{size_text(sum([column.dictionary for column in large]))} of dictionaries of {_names(large)} were needed for "
        f"{size_text(sum([sum([column.sizes[page] for page in column.fetched]) for column in large]))} of pages.",
        f"Write {worst.name} without a dictionary, or with smaller row groups.",
        data=[[*pieces_of(rest, fetched), *pieces_of(small, fetched, dictionaries=False)]],
        column=worst.name,
        snippets=cures.without_dictionary([worst.name]),
    )


def _huge_pages(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    # Without page indexes all pages of a chunk come, however small they are.
    paged = [column for column in facts.columns if column.has_index or not column.whole]
    pages = [(column, page, column.sizes[page]) for column in paged for page in column.fetched]
    large = [(column, page, size) for column, page, size in pages if size >= _LARGE_PAGE]
    known = [column for column, _, _ in large if not column.is_estimated]
    if not known or not facts.matches:
        return
    pieces = pieces_of([column for column in facts.columns if column not in paged], fetched)
    pieces += [column.dictionary for column in paged if column.fetched and column.dictionary]
    for column, page, size in pages:
        rows = column.matches / max(len(column.wanted), 1) if page in column.wanted else 1
        pieces.append(min(size, _SMALL_PAGE * math.ceil(rows)))
    average = statistics.fmean([size for _, _, size in large])
    yield from model.cause(
        "huge-pages",
        f"Pages are large: {size_text(average)} on average",
        f"{plural(len(large), 'page')} of {_names(known)} of {size_text(average)} each were read for "
        f"{plural(facts.matches, 'row')}.",
        "Write pages of 64 KiB.",
        data=[pieces],
        column=known[0].name,
        snippets=cures.pages(),
    )


def _big_footer(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    if not any(size >= _LARGE_FOOTER for size in facts.footers):
        return
    instead = rounds_of(record for record in facts.log if record.purpose in METADATA and record.purpose != "footer")
    tails = {record.round for record in facts.log if record.purpose == "tail"}
    for number in tails:
        instead[number] = [min(size, _TAIL) for size in instead[number]]
    yield from model.cause(
        "big-footer",
        f"Footers are large: {size_text(max(facts.footers))}",
        "The footer describes each column of each row group, and is needed before anything else is read.",
        "Write fewer columns or row groups, or keep Footers() in an index.",
        metadata=instead,
        snippets=cures.footers(),
    )


# -- lakes ----------------------------------------------------------------------------------------


def _tiny_files(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    if facts.files_opened < 8 or not facts.sizes or statistics.median(facts.sizes) > _TINY_FILE:
        return
    size = statistics.fmean(facts.sizes)
    files = math.ceil(facts.files_opened * size / _GOOD_FILE)
    wanted: dict[str, list[int]] = {}
    for column in facts.columns:
        if column.wanted:
            wanted.setdefault(column.name, []).append(column.wanted_bytes)
    instead = {
        number: [max(sizes)] * min(len(sizes), files if len(sizes) >= facts.files_opened // 2 else len(sizes))
        for number, sizes in model.metadata.items()
    }
    yield from model.cause(
        "tiny-files",
        f"Files are tiny: {size_text(size)} on average",
        f"{plural(facts.files_opened, 'file')} were opened, each with requests of its own for footer and pages; "
        f"{plural(files, 'file')} of {size_text(_GOOD_FILE)} would hold the same rows.",
        "Merge the files.",
        metadata=instead,
        data=[[sum(parts) for parts in wanted.values()]],
        snippets=cures.compaction(),
    )


def _no_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    matched = {column.url for column in facts.columns if column.matches}
    needless = facts.files_opened - len(matched)
    if not facts.files_total or facts.index or not facts.filters or needless < 3 or needless < len(matched):
        return
    metadata: Rounds = {1: [_TAIL]}  # a slice of the index
    metadata[2] = [_TAIL] * len(matched)
    name = facts.filters[0]
    yield from model.cause(
        "no-index",
        f"No index of {name}: files are opened to find that they have no matching row",
        f"{facts.files_opened:,} of {plural(facts.files_total, 'file')} were opened. Matching rows are in "
        f"{plural(len(matched), 'file')}.",
        f"Build an index of {name}.",
        metadata=metadata,
        data=[pieces_of(facts.columns, wanted)],
        column=name,
        snippets=cures.index(name),
    )


def _stale_index(facts: Facts, model: ReadModel) -> Iterator[Cause]:
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
        snippets={"asyncpq": "await index.refresh()"},
    )


# -- the way to the store -------------------------------------------------------------------------


def _throttled(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    # Redirects are answers; so is 404, to the search for a newer snapshot, since the read did not fail.
    failed = [
        record for record in facts.log if record.throttled or not (200 <= record.status < 400 or record.status == 404)
    ]
    again = sorted([record for record in facts.log if record.attempt > 1], key=lambda record: record.began)
    if not failed:
        return
    lost: list[tuple[float, float]] = []
    for record in failed:
        following = next(
            (
                other.began
                for other in again
                if other.url == record.url and other.attempt == record.attempt + 1 and other.began > record.began
            ),
            record.began + record.seconds,
        )
        lost.append((record.began, following))
    throttles = sum([record.throttled for record in failed])
    by_round: dict[int, float] = {}
    for record, (began, ended) in zip(failed, lost, strict=True):
        by_round[record.round] = max(by_round.get(record.round, 0.0), ended - began)
    yield from model.cause(
        "throttled" if throttles else "retries",
        "The store asked to slow down" if throttles else "Requests failed and were sent again",
        f"{plural(len(failed), 'request')} of {len(facts.log):,} failed, {throttles:,} of them throttled; they and the "
        "waits after them took time.",
        "Send fewer requests at once (LimitOptions.max_connections), or spread keys over prefixes."
        if throttles
        else "See the statuses of the requests.",
        saves=(sum(by_round.values()), 0, 0),
    )


def _far_store(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    latency_s = facts.prices.latency_s
    if latency_s < _FAR_S or not model.now:
        return
    near_s = model.seconds(model.now, facts.prices._replace(latency_s=_NEAR_S))
    rounds = len(model.now)
    yield from model.cause(
        "far-store",
        f"The store is far: {latency_s * 1000:.0f} ms to the first byte",
        f"{plural(rounds, 'round')} of requests wait {latency_s * 1000:.0f} ms each, "
        f"{rounds * latency_s * 1000:.0f} ms of {model.now_s * 1000:.0f} ms; within a region, {_NEAR_S * 1000:.0f} ms "
        "are usual.",
        "Run in the store's region, or share a cache close by.",
        saves=(model.now_s - near_s, 0, 0),
    )


def _is_check(record: RequestRecord) -> bool:
    """Whether a request only checks whether there is a newer version of the object, or a newer snapshot of the
    index."""
    return record.purpose in ("list", "validate", "stat") or record.status == 404


def _freshness(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    checks = [record for record in facts.log if _is_check(record)]
    other_rounds = {record.round for record in facts.log if not _is_check(record)}
    alone = rounds_of(record for record in checks if record.round not in other_rounds)
    if not alone or any(record.purpose in METADATA and not _is_check(record) for record in facts.log):
        return
    yield from model.cause(
        "freshness",
        "The read asked for newer versions before it used what the session has",
        f"{plural(len(checks), 'request')} in {plural(len(alone), 'round')} asked the store whether files or the index "
        "have changed.",
        "Let reads use what is some seconds old: listing_max_age_s of open_dataset, max_age_s of the cache policy.",
        saves=(model.seconds(alone), sum(map(len, alone.values())), size_of(alone)),
        snippets={"asyncpq": "await session.open_dataset(url, listing_max_age_s=60)"},
    )


def _cold_cache(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    if all(_is_check(record) for record in facts.log if record.purpose in METADATA):
        return
    # A lake of tiny files, or a footer of megabytes, is not the fault of the cache: what their cures save is not told
    # again.
    left = {number: sizes for number, sizes in model.residual.items() if sizes}
    requests, num_bytes = sum(map(len, left.values())), size_of(left)
    yield from model.cause(
        "cold-cache",
        "Nothing was cached: footers and indexes came first",
        f"{plural(requests, 'request')} ({size_text(num_bytes)}) in {plural(len(left), 'round')} fetched metadata, "
        "which later reads of a session, or of a cache on disk, have already.",
        "Keep the session open, or give it a cache on disk or a shared one.",
        saves=(model.seconds(left), requests, num_bytes),
        snippets=cures.disk_cache(),
    )


#: Those that explain more come first.
_CAUSES: Final[tuple[Callable[[Facts, ReadModel], Iterator[Cause]], ...]] = (
    _throttled,
    _stale_index,
    _tiny_files,
    _no_index,
    _no_page_index,
    _unused_page_index,
    _no_bounds,
    _random_order,
    _huge_dictionary,
    _huge_pages,
    _big_footer,
    _far_store,
    _freshness,
    _cold_cache,
)
