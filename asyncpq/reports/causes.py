"""Find the causes why a read was not faster, each with the saving that its cure is predicted to bring.

A cause is a property of the file, the session or the read, such as a missing page index; its cure removes it. For each
cause the requests of the read without this cause are computed, and the work of decoding, filter and planning that is
left; the saving is the difference that the :class:`ReadModel` gives.

The layout of a cured file follows from the sizes of its pages and from the pages that hold matching rows. What counts
as large, and why bounds rule out little, is decided as for ``lint``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from asyncpq.errors import plural, seconds_text, size_text
from asyncpq.expressions.tree import ColumnComparison, Contains, HasPhrase, HasTokens, Like, atoms
from asyncpq.parquet.column_chunk import Codec
from asyncpq.reports import cures
from asyncpq.reports.lint import FILE_BYTES, MANY_FILES, SMALL_FILE
from asyncpq.reports.lint_rules import LARGE_DICTIONARY, listed
from asyncpq.reports.lookup_cost import has_large_pages, page_count
from asyncpq.reports.story import (
    CODEC_BYTES_S,
    METADATA,
    SLOW_CODECS,
    TAIL_BYTES,
    ColumnRead,
    Facts,
    ReadModel,
    Rounds,
    Without,
    decode_work,
    decompression_work,
    dictionary_work,
    fetched,
    paged,
    pieces_of,
    rounds_of,
    size_of,
    wanted,
)

if TYPE_CHECKING:
    from asyncpq.expressions import Expression
    from asyncpq.metrics import RequestRecord
    from asyncpq.reports.documents import Cause

LEAST_SHARE: Final = 1 / 20  # of the time of a read, that a cause takes
_MANY_REQUESTS: Final = 8  # which cost money, whatever time they take


def causes_of(facts: Facts) -> list[Cause]:
    """Return the causes that cost at least a twentieth of the read's time, or many requests, the largest saving first.

    Of causes that save about the same, the one that explains more comes first: a layout before a cold cache.
    """
    model = ReadModel(facts)
    causes = [cause for find in _CAUSES for cause in find(facts, model)]
    step = max(model.now_s, 1e-9) * LEAST_SHARE
    kept = [
        cause
        for cause in causes
        if (cause["saves_seconds"] or 0) >= step or (cause["saves_requests"] or 0) > _MANY_REQUESTS
    ]
    best = {cause["id"]: cause for cause in sorted(kept, key=lambda cause: cause["saves_seconds"] or 0)}
    return sorted(
        [cause for cause in kept if best[cause["id"]] is cause],
        key=lambda cause: -round((cause["saves_seconds"] or 0) / step),
    )


# Causes in a file's layout: its pages, their bounds, the order of rows, dictionaries.

_LARGE_FOOTER: Final = 512 * 1024


def names_of(columns: Iterable[ColumnRead]) -> str:
    """Return the names of the columns as text, the first three of them."""
    return listed(list(dict.fromkeys(column.name for column in columns)), 3)


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
        Without(data=paged(facts.columns, model, instead), more_s=model.undecoded(instead)),
        column=few[0].name,
        snippets=cures.snippets_for("no-page-index"),
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
        Without(data=paged(facts.columns, model, wanted), more_s=model.undecoded(wanted)),
        column=affected[0].name,
        snippets=cures.snippets_for("no-page-index"),
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
        Without(data=data, more_s=more_s),
        column=name,
        snippets=cures.snippets_for(rule, name),
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
        Without(data=paged(facts.columns, model, wanted), more_s=model.undecoded(wanted)),
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
        Without(data=[pieces], more_s=model.less_work(work, rows)),
        column=key.name,
        snippets=cures.snippets_for("random-order", key.name),
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
        Without(
            data=[[*pieces_of(rest, fetched), *pieces_of(small, fetched, dictionaries=False)]],
            more_s=model.less_work(model.decode_work - sum(map(dictionary_work, large))),
        ),
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
        Without(data=[pieces], more_s=model.less_work(work, rows)),
        column=large[0].name,
        snippets=cures.snippets_for("no-page-index"),
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
        Without(metadata=instead, more_s=model.unplanned(facts.files_opened, small) if tails else 0.0),
        snippets=cures.snippets_for("big-footer"),
    )


# Causes on the way to the bytes: the store, the requests, the caches.

_NEAR_S: Final = 0.030  # to the first byte, of a store in the same region
_FAR_S: Final = 0.050
_FAST_BYTES_S: Final = 100e6  # of a store in the same region, all connections together
_SLOW_BYTES_S: Final = 12.5e6


def throttled(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if requests failed, or the store asked to slow down."""
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
        Without(more_s=sum(by_round.values())),
    )


def far_store(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the first byte of an answer takes long."""
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
        Without(saves=(model.seconds(model.now) - near_s, 0, 0)),
    )


def slow_store(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if bytes arrive slowly."""
    bandwidth = facts.prices.bandwidth_bytes_s
    if bandwidth > _SLOW_BYTES_S or not model.now:
        return
    fast = facts.prices._replace(
        bandwidth_bytes_s=_FAST_BYTES_S, connection_bytes_s=_FAST_BYTES_S, crowded_bytes_s=None
    )
    num_bytes = size_of(model.now)
    yield from model.cause(
        "slow-store",
        f"The way to the store is slow: {bandwidth / 1e6:.3g} MB/s",
        f"{size_text(num_bytes)} take {seconds_text(num_bytes / bandwidth)}; within a region, "
        f"{_FAST_BYTES_S / 1e6:.0f} MB/s and more are usual.",
        "Run in the store's region, or share a cache close by.",
        Without(saves=(model.seconds(model.now) - model.seconds(model.now, fast), 0, 0)),
    )


def wide_gaps(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if requests read through wide gaps between the pages, because an option says so."""
    gap_bytes = facts.prices.fixed_gap_bytes
    if not gap_bytes:
        return
    pieces = pieces_of(facts.columns, fetched)
    wasted = size_of(model.data) - sum(pieces)
    if wasted <= 0:
        return
    yield from model.cause(
        "wide-gaps",
        f"Requests read through gaps: {size_text(wasted)} between the pages",
        f"RequestOptions(gap_bytes={gap_bytes:,}) joins pages to one request, whatever the bytes between them cost.",
        "Leave gap_bytes out: the session then sets it by what requests and bytes cost at the store.",
        Without(data=[pieces]),
        snippets={"asyncpq": "asyncpq.Session()  # without gap_bytes"},
    )


def slow_tier(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the read waited for the disk cache or the shared cache."""
    yield from model.cause(
        "slow-tier",
        "Parts came from the disk or the shared cache, not from memory",
        f"The read waited {seconds_text(model.caches_s)} for them, and sent no request meanwhile.",
        "Give the session more memory for its cache, or the cache on disk a faster disk.",
        Without(saves=(0.0, 0, 0), more_s=model.caches_s),
        snippets={"asyncpq": "asyncpq.Session(cache=asyncpq.CacheOptions(memory_bytes=1 << 30))"},
    )


def _is_check(record: RequestRecord) -> bool:
    """Return whether a request only asks for a newer version of the object, or a newer snapshot of the index."""
    return record.purpose in ("list", "validate", "stat") or record.status == 404


def freshness(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the read waited until the store had confirmed the versions that the session knows."""
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
        Without(saves=(model.seconds(alone), sum(map(len, alone.values())), size_of(alone))),
        snippets={"asyncpq": "await session.open_dataset(url, listing_max_age_s=60)"},
    )


def cold_cache(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if footers, indexes and listings were fetched, which later reads have already."""
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
        Without(
            saves=(model.seconds(left), requests, num_bytes),
            more_s=model.unplanned(facts.files_opened, 0) if model.residual is model.metadata else 0.0,
        ),
        snippets={"asyncpq": 'Session(disk_cache="/var/cache/asyncpq")'},
    )


# Causes in a dataset's files: how many there are, and what its index knows of them.

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
        Without(
            metadata=instead,
            data=[[sum(parts) for parts in needed.values()]],
            more_s=model.unplanned(files, sum(facts.footers) * files // facts.files_opened),
        ),
        snippets=cures.snippets_for("tiny-files"),
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
        Without(
            metadata=metadata,
            data=[pieces_of(facts.columns, wanted)],
            more_s=model.unplanned(len(matched) + 1, sum(facts.footers) * (len(matched) + 1) // facts.files_opened)
            + model.undecoded(wanted),
        ),
        column=name,
        snippets=cures.snippets_for("no-index", name),
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
        Without(
            metadata=rounds_of(record for record in kept if record.purpose in METADATA),
            data=[pieces_of([column for column in facts.columns if column.url not in needless], fetched)],
            more_s=model.unplanned(facts.files_opened - len(needless), sum(facts.footers) // 2)
            + model.undecoded(lambda column: () if column.url in needless else column.fetched),
        ),
        snippets={"asyncpq": "await index.refresh()"},
    )


# Causes in the processor's time: decoding, the filter, loading modules.

_LARGE_SHARE: Final = 0.4  # of a read's time


def slow_codec(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if pages are compressed with a codec that takes long to decompress."""
    slow = [column for column in facts.columns if column.codec in SLOW_CODECS and column.fetched]
    if not slow:
        return
    less = sum(
        [
            decompression_work(column, column.fetched) * (1 - CODEC_BYTES_S[column.codec] / CODEC_BYTES_S[Codec.ZSTD])
            for column in slow
        ]
    )
    names = sorted({Codec(column.codec).name.lower() for column in slow})
    yield from model.cause(
        "slow-codec",
        f"Pages are compressed with {' and '.join(names)}, which is slow to decompress",
        f"Decoding took {seconds_text(model.decode_s)}; zstd takes a third of the time at a similar size.",
        cures.advice("slow-codec"),
        Without(saves=(0.0, 0, 0), more_s=model.less_work(model.decode_work - less)),
        column=slow[0].name,
        snippets=cures.snippets_for("slow-codec"),
    )


def decode_bound(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if decoding takes longest, of pages that have matching rows."""
    work: dict[str, float] = {}
    for column in facts.columns:
        work[column.name] = work.get(column.name, 0.0) + decode_work(column, column.fetched)
    needed = sum([decode_work(column, column.wanted) for column in facts.columns])
    if not work or model.decode_s < _LARGE_SHARE * model.now_s or needed * 2 < model.decode_work:
        return
    name, most = max(work.items(), key=lambda item: item[1])
    if any(column.name == name and column.codec in SLOW_CODECS for column in facts.columns):
        return  # that says more
    yield from model.cause(
        "decode-bound",
        f"Decoding takes longest, that of {name} most of it",
        f"{plural(sum([len(column.fetched) for column in facts.columns]), 'page')} of {names_of(facts.columns)} took "
        f"{seconds_text(model.decode_s)} to decode, {name} about {most / max(model.decode_work, 1e-9):.0%} of that.",
        f"Leave {name} out of columns= where it is not needed, or ask for fewer rows.",
        Without(saves=(0.0, 0, 0), more_s=model.less_work(model.decode_work - most)),
        column=name,
        snippets={"asyncpq": "await file.read(columns=[...])  # or: LimitOptions(decode_threads=...)"},
    )


def filter_bound(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the filter takes longest."""
    if model.filter_s < _LARGE_SHARE * model.now_s or not facts.filters:
        return
    name = facts.filters[0]
    yield from model.cause(
        "filter-bound",
        f"The filter takes longest: its condition on {name} is expensive",
        f"Comparing rows took {seconds_text(model.filter_s)} of {seconds_text(model.now_s)}.",
        f"Add a condition on a column that is in order, or build an index of {name}, so that fewer rows are compared.",
        Without(saves=(0.0, 0, 0), more_s=model.filter_s),
        column=name,
        snippets=cures.text_index(name),
    )


def python(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if Python took far longer than the work of the read explains, as in a process's first read."""
    loads = facts.modules_loaded > 0
    modules = (
        f"Modules of Python loaded after the opening: {facts.modules_loaded:,}; a process's first read loads many. "
    )
    yield from model.cause(
        "busy-python",
        f"Python was busy with other things{', such as loading modules' if loads else ''}",
        f"{seconds_text(model.unexplained_s)} of {seconds_text(model.now_s)} are not explained by the read's pages and "
        f"files. {modules if loads else ''}Which other tasks, threads and programs took the processor is not measured.",
        "Keep the process and its session for the next reads (asyncpq why --warm shows the second one), and the "
        "event loop free.",
        Without(saves=(0.0, 0, 0), more_s=model.unexplained_s),
    )


#: Those that explain more come first.
_CAUSES: Final[tuple[Callable[[Facts, ReadModel], Iterator[Cause]], ...]] = (
    throttled,
    stale_index,
    tiny_files,
    no_index,
    no_page_index,
    unused_page_index,
    pages_in_vain,
    huge_dictionary,
    huge_pages,
    big_footer,
    wide_gaps,
    slow_codec,
    filter_bound,
    decode_bound,
    slow_tier,
    far_store,
    slow_store,
    freshness,
    cold_cache,
    python,
)
