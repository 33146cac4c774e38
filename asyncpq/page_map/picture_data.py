"""Convert every kind of document to a :class:`Picture`, the data that the HTML page and the SVG draw.

Layouts, fates (what became of each page) and requests take a compact form in it: rows of numbers instead of objects.
100,000 pages take about a megabyte: sizes and numbers of rows are listed, and the starts of pages only where they do
not follow each other. Texts that repeat are kept once, in a list of words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from asyncpq.errors import NAMES_SHOWN, plural, printable, size_text

if TYPE_CHECKING:
    from asyncpq.reports.documents import (
        Cause,
        DatasetInspection,
        FileFates,
        FileSummary,
        FunnelStep,
        Inspection,
        MetricsDocument,
        PlanDocument,
        TimeSplit,
        Why,
    )

    Document = Why | PlanDocument | Inspection | DatasetInspection | MetricsDocument
    from asyncpq.reports.documents import Chunk, ChunkFates, Inspection, PageLists, Request


class Layout(TypedDict):
    """The layout of one file: its row groups, columns, chunks and pages. ``fates`` is present if the file was read,
    or would be by a plan."""

    url: str
    size: int
    facts: list[list[str]]  # label and text
    words: list[str]
    footer: list[int]  # [start, stop]
    columns: list[list[Any]]  # name, type, how it is sorted
    groups: list[list[int]]  # first row, rows, start, stop
    chunks: list[list[Any]]  # see _chunk
    fates: Fates | None


class Fates(TypedDict):
    """The fate (read, cached, or what ruled it out) of each row group and page of one file, in compact form."""

    groups: list[str]
    chunks: list[list[Any]]  # row group, column, whole, predicate, then runs of pages: [start, stop, fate, ...]


class Words:
    """A list of distinct texts, which other parts of the picture refer to by position."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the position of ``text`` in the list; append the text if it is new."""
        return self.found.setdefault(printable(text), len(self.found))

    def texts(self) -> list[str]:
        """Return all texts, in the order of their positions."""
        return list(self.found)


def layout(document: Inspection, fates: FileFates | None) -> Layout:
    """Return the layout of one file in compact form. ``document``: its inspection; ``fates``: what became of its row
    groups and pages in a read, None if it was only inspected."""
    words = Words()
    facts = [
        ["Version", printable(document["version"])],
        ["Writer", printable(document["writer"] or "not stated")],
        ["Sorted by", ", ".join(map(printable, document["sorted_by"])) or "no column, as far as statistics show"],
    ]
    if document["embedded_indexes"]:
        facts.append(["Embedded indexes", ", ".join(map(printable, document["embedded_indexes"]))])
    return Layout(
        url=printable(document["url"]),
        size=document["size"],
        facts=facts,
        footer=document["footer"],
        columns=[
            [printable(column["name"]), printable(column["arrow_type"]), column["sorted"] or 0]
            for column in document["columns"]
        ],
        groups=[[group["first_row"], group["rows"], *group["bytes"]] for group in document["row_groups"]],
        chunks=[
            _chunk(group["ordinal"], chunk, group["rows"], words)
            for group in document["row_groups"]
            for chunk in group["chunks"]
        ],
        words=words.texts(),
        fates=None if fates is None else compact_fates(fates),
    )


def _chunk(group: int, chunk: Chunk, rows: int, words: Words) -> list[Any]:
    """Return a column chunk as a list: row group, column, start, stop, dictionary, OffsetIndex, ColumnIndex, Bloom
    filter, codec and encodings (a position in ``words``), uncompressed bytes, values, nulls, distinct values, min, max
    and pages.

    0 stands for a missing range or text.
    """
    return [
        group,
        chunk["column"],
        *chunk["bytes"],
        chunk["dictionary"] or 0,
        chunk["offset_index"] or 0,
        chunk["column_index"] or 0,
        chunk["bloom_filter"] or 0,
        words.number(f"{chunk['codec']}, {', '.join(chunk['encodings'])}"),
        chunk["uncompressed_bytes"],
        chunk["values"],
        chunk["nulls"],
        chunk["distinct"],
        _short(chunk["min"]),
        _short(chunk["max"]),
        0 if chunk["pages"] is None else _pages(chunk["pages"], rows),
    ]


def _short(text: str | None) -> str | int:
    if text is None:
        return 0
    return printable(text if len(text) <= 40 else f"{text[:39]}\u2026")


def _pages(pages: PageLists, rows: int) -> list[Any]:
    """Return the pages of a chunk as lists of their sizes, rows and starts. ``rows``: rows of the row group.

    If the pages are contiguous, only the first start is listed.
    """
    starts, sizes = pages["starts"], pages["sizes"]
    lengths = [stop - start for start, stop in pairwise([*pages["first_rows"], rows])]
    if starts and starts == list(accumulate(sizes[:-1], initial=starts[0])):
        starts = starts[:1]
    return [sizes, lengths, starts]


def transposed(chunks: Sequence[Sequence[Any]], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Convert the chunks of a layout from one list for each chunk to one list for each field. The JSON is a third as
    long, and a browser creates a tenth of the objects.

    A range becomes two numbers: its distance from the end of the chunk before (for a dictionary, from the start of its
    chunk), and its length, which is 0 for a missing range. The pages of a chunk with a single page become 1. A list of
    equal values becomes one value.

    Args:
        chunks, groups: as :func:`layout` returns them.
    """
    lists: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    stops = dict.fromkeys(_RANGES, 0)
    for chunk in chunks:
        group, column, start, stop, dictionary, *indexes = chunk[:8]
        spans = ([start, stop], dictionary, *indexes)
        for name, span in zip(_RANGES, spans, strict=True):
            before = start if name == "dictionary" else stops[name]
            lists[f"{name}_at"].append(span[0] - before if span else 0)
            lists[f"{name}_length"].append(span[1] - span[0] if span else 0)
            stops[name] = span[1] if span else stops[name]
        data = dictionary[1] if dictionary else start
        pages = 1 if chunk[15] == [[stop - data], [groups[group][1]], [data]] else chunk[15]
        for name, value in zip(_VALUES, (group, column, *chunk[8:15], pages), strict=True):
            lists[name].append(value)
    return {name: _one_value(values) for name, values in lists.items()}


_RANGES: Final = ("bytes", "dictionary", "offset_index", "column_index", "bloom")
_VALUES: Final = (*("group", "column", "coding", "uncompressed", "values", "nulls", "distinct", "min", "max", "pages"),)
_FIELDS: Final = (*_VALUES, *[f"{name}_{part}" for name in _RANGES for part in ("at", "length")])


def _one_value(values: list[Any]) -> Any:
    first = values[0] if values else 0
    return first if not isinstance(first, list) and all(value == first for value in values) else values


def compact_fates(fates: FileFates) -> Fates:
    """Return the fates of one file's row groups and pages in compact form."""
    return Fates(groups=list(fates["row_groups"]), chunks=[_chunk_fates(chunk) for chunk in fates["chunks"]])


def _chunk_fates(chunk: ChunkFates) -> list[Any]:
    each = chunk.get("fates") or [chunk["fate"]] * len(chunk["pages"])
    head = [chunk["row_group"], chunk["column"], int(chunk["whole"]), int(chunk["predicate"])]
    runs: list[Any] = []
    for page, fate in zip(chunk["pages"], each, strict=True):
        if runs and runs[-2] == page and runs[-1] == fate:
            runs[-2] = page + 1
        else:
            runs += [page, page + 1, fate]
    return [*head, *runs] if runs else [*head, 0, -1, chunk["fate"]]  # -1: to the last page


class Requests(TypedDict):
    """The requests of a read or plan in compact form: each is a list of numbers."""

    words: list[str]
    urls: list[str]
    timed: bool
    #: url, purpose, start, stop, round, columns (a word, or -1), useful bytes (-1: not known), and of sent requests the
    #: beginning, seconds to the first byte (-1: not known) and to the end in microseconds, status, received bytes,
    #: marks (a word, or -1)
    rows: list[list[int]]


def requests(sent: Sequence[Request]) -> Requests | None:
    """Return the requests ``sent`` in compact form, ordered by the time when they began; None if there are none."""
    if not sent:
        return None
    words, urls = Words(), Words()
    timed = any("began_s" in one for one in sent)
    ordered = sorted(sent, key=lambda one: one.get("began_s") or 0.0) if timed else sent
    rows = [[urls.number(one["url"]), words.number(one["purpose"]), *_request(one, words, timed)] for one in ordered]
    return Requests(words=words.texts(), urls=urls.texts(), timed=timed, rows=rows)


def _request(one: Request, words: Words, timed: bool) -> Iterable[int]:
    columns = one.get("columns") or []
    shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
    yield from one["bytes"]
    yield one["round"]
    yield words.number(shown) if shown else -1
    yield one.get("useful_bytes", -1)
    if timed:
        first = one.get("first_byte_s")
        yield _microseconds(one.get("began_s", 0.0))
        yield -1 if first is None else _microseconds(first)
        yield _microseconds(one.get("seconds", 0.0))
        yield one.get("status", 0)
        yield one.get("received", 0)
        marks = _marks(one)
        yield words.number(marks) if marks else -1


def _marks(one: Request) -> str:
    marks = []
    if one.get("attempt", 1) > 1:
        marks.append(f"attempt {one.get('attempt')}")
    if one.get("hedge"):
        marks.append("hedge")
    if one.get("throttled"):
        marks.append("throttled")
    return ", ".join(marks)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


#: A read within this ratio of the least possible bytes is called close to it.
CLOSE: Final = 1.5
_SECONDS_SHOWN: Final = 0.001

Tone = Literal["good", "fair", "poor", "plain"]


class Picture(TypedDict):
    """The data from which the page and the SVG are drawn, as JSON values."""

    kind: str  # of the document
    title: str
    url: str
    headline: str
    tone: Tone
    verdict: str  # one line: why it was fast or slow
    facts: list[list[str]]  # label, value, note
    funnel: list[FunnelStep]
    time: list[list[Any]]  # name of the part, seconds
    bytes: list[list[Any]]  # label, bytes, and a note or ""
    tiers: list[list[Any]]  # fate, parts found
    causes: list[Cause]
    requests: Requests | None
    files: list[list[Any]]  # url, size (-1: not known), rows (-1), fate or 0, position in layouts or -1
    more_files: list[list[Any]]  # fate and number of files that are not named
    layouts: list[Layout]
    text: str | None
    notes: list[str]


def picture(document: Document) -> Picture:
    """Convert a document of :mod:`asyncpq.reports.documents` (a why report, a plan, an inspection or metrics) to the
    data from which it is drawn."""
    if document["document"] == "why":
        return _why(document)
    if document["document"] == "plan":
        return _plan(document)
    if document["document"] == "inspection":
        return _inspection(document)
    if document["document"] == "dataset inspection":
        return _dataset(document)
    return _metrics(document)


# -- one for each document ------------------------------------------------------------------------


def _why(document: Why) -> Picture:
    drawn = _empty("why", _asked(document), document["url"])
    total = document["time"]["total_s"]
    sent = len(document["requests"])
    drawn["headline"] = (
        f"{plural(document['rows'], 'row')} in {seconds_text(total)}: {plural(sent, 'request')} in "
        f"{plural(document['rounds'], 'round')}, {size_text(document['bytes'].get('fetched') or 0)}"
    )
    drawn["tone"], drawn["verdict"] = _verdict(document)
    drawn["facts"] = _why_facts(document)
    drawn["funnel"] = document["funnel"]
    drawn["time"] = _time(document["time"])
    drawn["bytes"] = _compared(document)
    drawn["tiers"] = [["read" if tier == "store" else tier, count] for tier, count in document["tiers"].items()]
    drawn["causes"] = document["causes"]
    drawn["requests"] = requests(document["requests"])
    drawn["layouts"] = _layouts(document["layouts"], document["files"])
    if document["view"] is not None or document["others"]:
        _lake(drawn, document["others"], document["files"], document["funnel"])
    drawn["text"] = document["plan"]["explain"]
    drawn["notes"] = [printable(reason) for reason in document["metrics"].get("fallbacks", ())]
    return drawn


def _plan(document: PlanDocument) -> Picture:
    title = f"Plan: rows where {printable(document['where'])}" if document["where"] is not None else "Plan: all rows"
    drawn = _empty("plan", title, document["url"])
    count, size = document["num_requests"], document["num_bytes"]
    cached = f", {size_text(document['cached_bytes'])} in memory already" if document["cached_bytes"] else ""
    drawn["headline"] = (
        f"{plural(count, 'request')}, {size_text(size)} in {plural(document['rounds'], 'round')}{cached}"
        if count
        else f"no request{cached}"
    )
    estimates = document["estimates"]
    if estimates and count:
        chosen, *others = estimates
        drawn["verdict"] = f"Estimate: {_estimate(chosen)}" + "".join([f"; {_estimate(other)}" for other in others])
    drawn["facts"] = [
        ["Requests", f"{count:,}", f"in {plural(document['rounds'], 'round')}"],
        ["To fetch", size_text(size), ""],
        ["In memory", size_text(document["cached_bytes"]), "fetched before"],
        ["Planning took", plural(document["metadata_requests"], "request"), ""],
    ]
    if document["guarantee"]:
        drawn["facts"].append(["One version", document["guarantee"], ""])
    drawn["funnel"] = document["funnel"]
    drawn["requests"] = requests(document["requests"])
    drawn["layouts"] = _layouts(document.get("layouts", []), document["files"])
    if document["view"] is not None:
        _lake(drawn, [], document["files"], document["funnel"])
    drawn["text"] = document["explain"]
    drawn["notes"] = [printable(reason) for reason in document["fallbacks"]]
    drawn["notes"] += [f"Skipped: {printable(url)}" for url in document["skipped"]]
    return drawn


def _inspection(document: Inspection) -> Picture:
    drawn = _empty("inspection", printable(document["url"].rpartition("/")[2] or document["url"]), document["url"])
    groups, columns = document["row_groups"], document["columns"]
    drawn["headline"] = (
        f"{plural(document['rows'], 'row')}, {plural(len(columns), 'column')}, "
        f"{plural(len(groups), 'row group')}, {size_text(document['size'])}"
    )
    located = sum(column["pages"] is not None for column in columns)
    pages = sum(column["pages"] or 0 for column in columns)
    drawn["tone"], drawn["verdict"] = _indexes_verdict(located, len(columns))
    bloom = sum(column["bloom_filters"] > 0 for column in columns)
    drawn["facts"] = [
        ["Size", size_text(document["size"]), f"footer {size_text(document['footer'][1] - document['footer'][0])}"],
        ["Row groups", f"{len(groups):,}", _each(document["rows"], len(groups))],
        ["Pages", f"{pages:,}" if located else "not known", "that page indexes locate" if located else "no page index"],
        ["Bloom filters", plural(bloom, "column") if bloom else "none", ""],
        ["Sorted by", ", ".join(map(printable, document["sorted_by"])) or "nothing", "as statistics show"],
        ["Writer", _writer(document["writer"]), f"format {document['format_version']}"],
    ]
    drawn["layouts"] = [layout(document, None)]
    drawn["notes"] = [printable(reason) for reason in document["fallbacks"]]
    return drawn


def _dataset(document: DatasetInspection) -> Picture:
    name = document["url"].rstrip("/").rpartition("/")[2] or document["url"]
    drawn = _empty("dataset inspection", printable(name), document["url"])
    files = document["files"]
    size = "" if document["total_bytes"] is None else f", {size_text(document['total_bytes'])}"
    drawn["headline"] = f"{plural(len(files), 'file')}, {plural(len(document['schema']), 'column')}{size}"
    indexes = [_index_text(index) for index in document["indexes"]]
    drawn["verdict"] = f"Index: {'; '.join(indexes)}" if indexes else "No index: lookups open files by their statistics"
    drawn["facts"] = [
        ["Files", f"{len(files):,}", printable(document["description"])],
        ["Size", "not known" if document["total_bytes"] is None else size_text(document["total_bytes"]), ""],
        ["Columns", f"{len(document['schema']):,}", ""],
        ["Partitions", ", ".join(map(printable, document["partitions"])) or "none", ""],
        ["Indexes", f"{len(indexes):,}", "; ".join(printable(str(index["at"])) for index in document["indexes"])],
    ]
    drawn["layouts"] = [layout(document["sample"], None)] if document["sample"] is not None else []
    _lake(drawn, files, [], [])
    drawn["notes"] = [printable(reason) for reason in document["fallbacks"]]
    return drawn


def _index_text(index: Mapping[str, Any]) -> str:
    """Return what an index has tables of, such as ``footers, bounds(day), keys(user)``; else its description."""
    tables = [printable(str(table)) for table in index["tables"] if table != "files"]  # each index lists its files
    rest = f", ... {len(tables)} in all" if len(tables) > NAMES_SHOWN else ""
    return ", ".join(tables[:NAMES_SHOWN]) + rest or printable(str(index["description"]))


def _metrics(document: MetricsDocument) -> Picture:
    metrics = document["metrics"]
    drawn = _empty("metrics", "A read and its cost", document["requests"][0]["url"] if document["requests"] else "")
    drawn["headline"] = (
        f"{plural(metrics.get('rows_returned', 0), 'row')}: {plural(metrics.get('requests', 0), 'request')} in "
        f"{plural(metrics.get('rounds', 0), 'round')}, {size_text(metrics.get('bytes_fetched', 0))}"
    )
    waited, decoded = metrics.get("wait_s", 0.0), metrics.get("decode_s", 0.0)
    if waited or decoded:
        drawn["verdict"] = f"{seconds_text(waited)} of waiting, {seconds_text(decoded)} of decoding"
    scanned, returned = metrics.get("rows_scanned", 0), metrics.get("rows_returned", 0)
    drawn["facts"] = [
        ["Rows", f"{returned:,}", f"of {scanned:,} that were filtered"],
        ["Requests", f"{metrics.get('requests', 0):,}", f"in {plural(metrics.get('rounds', 0), 'round')}"],
        ["Fetched", size_text(metrics.get("bytes_fetched", 0)), ""],
        ["Row groups", f"{metrics.get('row_groups_read', 0):,}", f"of {metrics.get('row_groups_total', 0):,}"],
        ["Pages", f"{metrics.get('pages_read', 0):,}", f"of {metrics.get('pages_total', 0):,}"],
        ["Caches", f"{metrics.get('cache_hits', 0):,}", "parts found"],
    ]
    if metrics.get("files_total"):
        drawn["facts"].insert(3, ["Files", f"{metrics.get('files_read', 0):,}", f"of {metrics['files_total']:,}"])
    drawn["tiers"] = [[tier, metrics.get(f"{tier}_hits", 0)] for tier in ("memory", "disk", "shared")]
    drawn["tiers"].append(["read", metrics.get("cache_misses", 0)])
    drawn["requests"] = requests(document["requests"])
    drawn["notes"] = [printable(reason) for reason in metrics.get("fallbacks", ())]
    return drawn


# -- their parts ----------------------------------------------------------------------------------


def _empty(kind: str, title: str, url: str) -> Picture:
    return Picture(
        kind=kind, title=title, url=printable(url), headline="", tone="plain", verdict="", facts=[], funnel=[], time=[],
        bytes=[], tiers=[], causes=[], requests=None, files=[], more_files=[], layouts=[], text=None, notes=[],
    )  # fmt: skip


def _asked(document: Why) -> str:
    if document["keys"]:
        keys = [f"{printable(name)} = {_values(values)}" for name, values in document["keys"].items()]
        return f"{document['verb'].capitalize()} of {', '.join(keys)}"
    where = document["where"]
    verb = document["verb"].capitalize()
    return f"{verb} of rows where {printable(where)}" if where is not None else f"{verb} of all rows"


def _values(values: Sequence[str]) -> str:
    shown = ", ".join(map(printable, values[:3]))
    return shown if len(values) <= 3 else f"{shown} and {len(values) - 3:,} more"


def _verdict(document: Why) -> tuple[Tone, str]:
    for severity, tone in (("high", "poor"), ("medium", "fair")):
        for cause in document["causes"]:
            if cause["severity"] == severity:
                return ("poor" if tone == "poor" else "fair"), _costs_most(cause, document["time"])
    ratio = _ratio(document["bytes"])
    if ratio is not None and ratio <= CLOSE:
        return "good", f"Close to the least possible: {ratio:.2f} times the bytes of the pages that hold the rows"
    if document["requests"]:
        return "good", "Nothing was found that would make it much faster"
    return "good", "Served from caches, without a request"


def _costs_most(cause: Cause, time: TimeSplit) -> str:
    title, saved = printable(cause["title"]), cause["saves_seconds"]
    total = time["total_s"]
    share = f" ({seconds_text(saved)} of {seconds_text(total)})" if saved and saved < total else ""
    return f"What costs most: {title}{share}"


def _ratio(sizes: dict[str, int | None]) -> float | None:
    fetched, wanted = sizes.get("fetched"), sizes.get("wanted")
    return fetched / wanted if fetched is not None and wanted else None


def _why_facts(document: Why) -> list[list[str]]:
    sizes, time = document["bytes"], document["time"]
    fetched, ratio, whole = sizes.get("fetched") or 0, _ratio(sizes), sizes.get("chunks")
    rows = next((step for step in document["funnel"] if step["level"] == "rows"), None)
    facts = [
        ["Rows", f"{document['rows']:,}", f"of {rows['total']:,}" if rows is not None else ""],
        ["Time", seconds_text(time["total_s"]), _dominant(time)],
        ["Requests", f"{len(document['requests']):,}", f"in {plural(document['rounds'], 'round')}"],
        ["Fetched", size_text(fetched), _beside_least(ratio)],
    ]
    if whole:
        data = _data_bytes(document)
        saved = 100 * (1 - data / whole)
        less = f"{min(saved, 99.9):.3g} % less data fetched" if saved >= 1 else "no less data fetched"
        less = less if data else "none of it fetched"
        facts.append(["Whole chunks", size_text(whole), less])
    hits = sum(count for tier, count in document["tiers"].items() if tier != "store")
    asked = hits + document["tiers"].get("store", 0)
    facts.append(["From caches", f"{hits:,}", f"of {plural(asked, 'part')}"])
    return facts


def _beside_least(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3g} \u00d7 the least possible" if ratio >= 1 else "caches had the rest"


def _dominant(time: TimeSplit) -> str:
    parts = _time(time)
    if not parts or time["total_s"] <= 0:
        return ""
    name, most = max(parts, key=lambda part: part[1])
    labels = {"network": "network", "caches": "caches", "decode": "decoding", "filter": "filter"}
    labels["other"] = "planning and the rest"
    return f"{100 * most / time['total_s']:.0f} % {labels[name]}"


def _time(time: TimeSplit) -> list[list[Any]]:
    parts = [["network", time["network_s"]], ["caches", time["caches_s"]]]
    return [*parts, ["decode", time["decode_s"]], ["filter", time["filter_s"]], ["other", time["other_s"]]]


def _data_bytes(document: Why) -> int:
    """Return how many of the bytes that a read fetched are data pages; the others are footers, indexes and listings."""
    return sum(one.get("received", 0) for one in document["requests"] if one["purpose"] == "data")


def _compared(document: Why) -> list[list[Any]]:
    labels = {
        "wanted": "The least possible",
        "fetched": "This read",
        "chunks": "Whole column chunks",
        "objects": "Whole files",
    }
    sizes, data = document["bytes"], _data_bytes(document)
    beside = f"{size_text(data)} of it data" if data else "footers, indexes and listings alone"
    notes = {"fetched": beside if data < (sizes.get("fetched") or 0) else ""}
    return [[label, sizes[name], notes.get(name, "")] for name, label in labels.items() if sizes.get(name) is not None]


def _layouts(layouts: Sequence[Inspection], files: Sequence[FileFates]) -> list[Layout]:
    by_url = {fates["url"]: fates for fates in files}
    if len(layouts) == len(files) == 1:  # a url may be spelled in two ways
        return [layout(layouts[0], files[0])]
    return [layout(document, by_url.get(document["url"])) for document in layouts]


def _lake(
    drawn: Picture, summaries: Sequence[FileSummary], files: Sequence[FileFates], funnel: Sequence[FunnelStep]
) -> None:
    """Add the files of a dataset to ``drawn``: by name those with a summary, fates or layout; of the others, the
    number of files with each fate."""
    by_url = {found["url"]: at for at, found in enumerate(drawn["layouts"])}
    named: dict[str, list[Any]] = {}
    for summary in summaries:
        url = printable(summary["url"])
        size, rows = (-1 if known is None else known for known in (summary["size"], summary["rows"]))
        named[url] = [url, size, rows, summary.get("fate", 0), by_url.get(url, -1)]
    for fates in files:
        url = printable(fates["url"])
        named.setdefault(url, [url, -1, -1, _file_fate(fates), by_url.get(url, -1)])
    for url, at in by_url.items():
        found = drawn["layouts"][at]
        rows = sum(group[1] for group in found["groups"])
        fate = named[url][3] if url in named else ("read" if found["fates"] is not None else 0)
        named[url] = [url, found["size"], rows, fate, at]
    drawn["files"] = [named[url] for url in sorted(named)]
    step = next((step for step in funnel if step["level"] == "files"), None)
    if step is not None:
        drawn["more_files"] = _unnamed(step, drawn["files"])


def _file_fate(fates: FileFates) -> str:
    seen = {run for chunk in compact_fates(fates)["chunks"] for run in chunk[6::3]}
    kept = [fate for fate in ("read", "shared", "disk", "memory") if fate in seen]
    return kept[0] if kept else (fates["row_groups"][0] if fates["row_groups"] and not fates["chunks"] else "read")


def _unnamed(step: FunnelStep, files: Sequence[list[Any]]) -> list[list[Any]]:
    """Return pairs of a fate and a number of files: those that ``step`` counts as ruled out, without those in
    ``files``, which are drawn by name."""
    named: dict[str, int] = {}
    for _, _, _, fate, _ in files:
        if fate:
            named[fate] = named.get(fate, 0) + 1
    left = step["total"] - len(files)
    rest = []
    for ruled_out in step["ruled_out"]:
        count = min(left, ruled_out["count"] - named.get(ruled_out["by"], 0))
        if count > 0:
            rest.append([ruled_out["by"], count])
            left -= count
    if left > 0:
        rest.append(["read" if step["kept"] > len(files) else "unread", left])
    return rest


def _indexes_verdict(located: int, columns: int) -> tuple[Tone, str]:
    if not columns:
        return "plain", "A file without columns"
    if located == columns:
        return "good", "All columns have page indexes: a lookup fetches single pages"
    if not located:
        return "fair", "No page index: a lookup fetches whole column chunks"
    return (
        "fair",
        f"{located:,} of {plural(columns, 'column')} have page indexes; of the others, chunks are fetched whole",
    )


def _writer(writer: str | None) -> str:
    text = printable(writer or "not stated").partition(" (build")[0]
    return text if len(text) <= 40 else f"{text[:39]}\u2026"


def _each(rows: int, groups: int) -> str:
    return f"of {rows // groups:,} rows on average" if groups else ""


def _estimate(estimate: dict[str, Any]) -> str:
    return f"{estimate['strategy']} {seconds_text(estimate['seconds'])}"


# -- texts ----------------------------------------------------------------------------------------


def seconds_text(seconds: float) -> str:
    """Return seconds, or milliseconds below one."""
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= _SECONDS_SHOWN / 100 else "0 ms"
