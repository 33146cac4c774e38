"""Report what a read cost and why, for :meth:`asyncpq.File.why` and :meth:`asyncpq.Dataset.why`.

The read runs as usual, with a trace. For the first read of a handle, the report includes the requests that opened the
file or dataset, so that it shows the whole cost of a cold read.
"""

from __future__ import annotations

import copy
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncpq.errors import InvalidOptionError, plural, printable, seconds_text, size_text
from asyncpq.expressions import columns as columns_of
from asyncpq.expressions.scalars import as_scalar, as_scalars, is_collection, show
from asyncpq.expressions.tree import Comparison, In, KeyIn, atoms
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.reports.causes import causes_of
from asyncpq.reports.inspection import layout_in_memory
from asyncpq.reports.lookup_cost import MOST_LEAVES, Weakness, weakness
from asyncpq.reports.story import ColumnRead, Facts
from asyncpq.reports.story import Story as Story
from asyncpq.scan.plan import Plan, add_funnels, funnel_step
from asyncpq.storage.base import is_here
from asyncpq.storage.urls import split_url

if TYPE_CHECKING:
    from asyncpq.expressions import Expression
    from asyncpq.objects.prices import Prices
    from asyncpq.reports.documents import (
        FileFates,
        FileSummary,
        FunnelStep,
        Inspection,
        PlanDocument,
        Request,
        TimeSplit,
        Why,
    )


MAX_LAYOUTS = 20  # files of which a story has the layouts
_MAX_CHUNKS = 20_000  # column chunks of a file whose page indexes are fetched for its layout


class WhyReport:
    """The report on one read: its requests, bytes and seconds, the reason for each, and what would make it faster. Made
    by :meth:`asyncpq.File.why` and :meth:`asyncpq.Dataset.why`."""

    def __init__(self, document: Why) -> None:
        self._document = document

    def to_dict(self) -> Why:
        """Return the report as a dict of JSON values with the keys of :class:`asyncpq.reports.documents.Why`."""
        return self._document

    def add_layout(self, layout: Inspection) -> None:
        """Add the layout of a file that was read (:meth:`asyncpq.File.inspect`), for the page map
        (docs/page-map.md)."""
        self._document["layouts"].append(layout)

    def explain(self) -> str:
        """Return the report as text of several lines."""
        return why_text(self._document)

    __str__ = explain

    def _repr_html_(self) -> str | None:
        """Return a frame for notebooks with the page map of the read."""
        from asyncpq.page_map import framed

        return framed(self._document)

    def __repr__(self) -> str:
        document = self._document
        causes = ", ".join([cause["id"] for cause in document["causes"]]) or "no causes"
        return f"WhyReport({document['url']!r}, {plural(len(document['requests']), 'request')}, {causes})"


_DISK_S: Final = 1e-4  # until the first byte of a read of a local file, and its bytes a second
_DISK_BYTES_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRead:
    """The facts about a read of a dataset that a read of a single file does not have."""

    view: str
    files_step: FunnelStep
    prices: Prices  # of files of which nothing is known
    others: Sequence[FileSummary] = ()  # files that were not read
    files_opened: int = 0
    index: Sequence[str] = ()
    unindexed: frozenset[str] = field(default_factory=frozenset)  # urls of files that an index does not know


Verb = Literal["lookup", "scan", "count"]


def verb_of(columns: object, where: object, lookup: object, limit: object, *, counts: bool) -> Verb:
    """Return the verb (such as "scan" or "lookup") that the arguments of ``why()`` ask for.

    Raises InvalidOptionError if they contradict each other.
    """
    if lookup is not None and where is not None:
        raise InvalidOptionError("why() got both where= and lookup=", hint="Pass only one of them.")
    if counts and not columns is limit is lookup is None:
        raise InvalidOptionError(
            "why(count=True) cannot be combined with columns=, lookup= or limit=",
            hint="To count rows, pass count=True alone or with where=.",
        )
    return "count" if counts else "scan" if lookup is None else "lookup"


@dataclass(frozen=True, slots=True)
class Read:
    """A read that has ended: its arguments, its cost and its result."""

    url: str
    verb: Verb
    lookup: Mapping[str, Any] | None
    columns: Sequence[str]  # that were returned
    rows: int
    metrics: ReadMetrics
    opening: ReadMetrics | None  # of the file or dataset, if nothing was read with it since
    plan: PlanDocument
    plans: Sequence[Plan]  # of its files
    lake: LakeRead | None = None


def why_report(read: Read, story: Story) -> WhyReport:
    """Return the report on ``read``. ``story`` recorded the read."""
    modules_loaded = len(sys.modules) - story.modules_before
    metrics, opening, lake = read.metrics, read.opening, read.lake
    fates = story.fates()
    columns = story.columns(fates)
    log = _log(metrics, opening)
    began = metrics.began - _seconds(opening)
    time = time_of(read, story, log)
    matches = sum([stop - start for _, _, ranges in story.trace.matched for start, stop in ranges])
    index = () if lake is None else lake.index
    versions = [file.scan_plan.version for file in story.files.values()]
    causes = []
    if story.files or log:
        facts = Facts(
            log=log,
            prices=prices_of(story, read, log),
            is_priced=_is_priced(story),
            time=time,
            modules_loaded=modules_loaded,
            where=_where(story),
            weakness_of=lambda column: _weakness(story, column),
            columns=columns,
            filters=_filters(story),
            matches=matches,
            footers=[version.size - version.footer_start for version in versions],
            sizes=[version.size for version in versions],
            files_opened=1 if lake is None else lake.files_opened,
            files_total=0 if lake is None else lake.files_step["total"],
            index=index,
            fallbacks=metrics.fallbacks,
            unindexed=frozenset() if lake is None else lake.unindexed,
        )
        causes = causes_of(facts)
    document: Why = {
        "document": "why",
        "url": read.url,
        "view": None if lake is None else lake.view,
        "verb": read.verb,
        "keys": None if read.lookup is None else {name: _texts(values) for name, values in read.lookup.items()},
        "columns": list(read.columns),
        "where": read.plan["where"],
        "rows": read.rows,
        "funnel": _funnel(read, list(fates.values()), matches),
        "requests": [_request(record, began, read.url) for record in log],
        "rounds": max([record.round for record in log], default=0),
        "bytes": {
            "fetched": sum([record.bytes for record in log]),
            "wanted": sum([column.wanted_bytes for column in columns]),
            "chunks": sum([column.bytes for column in columns]),
            "objects": sum([version.size for version in versions]),
        },
        "time": time,
        "tiers": _tiers(metrics, opening),
        "causes": causes,
        "files": list(fates.values())[:100],
        "layouts": [],
        "others": [] if lake is None else list(lake.others),
        "plan": read.plan,
        "metrics": metrics.counts(),
    }
    return WhyReport(document)


def time_of(read: Read, story: Story, log: Sequence[RequestRecord]) -> TimeSplit:
    """Return the seconds of the read by activity, those of the opening included. ``log``: all requests."""
    total_s = read.metrics.ended - read.metrics.began + _seconds(read.opening)
    return story.time_split(total_s, [(record.began, record.began + record.seconds) for record in log])


def prices_of(story: Story, read: Read, log: Sequence[RequestRecord]) -> Prices:
    """Return the prices (latency and bandwidth) with which savings are predicted: those of the plan; for local files
    those of a disk, because sessions do not measure local files."""
    if not story.files:  # no file was planned: a table's metadata, or an index, had the answer
        assert read.lake is not None, "a file that was read was planned"
        prices, here = read.lake.prices, all(split_url(record.url or read.url)[0] == "file" for record in log)
    else:
        file = next(iter(story.files.values()))
        prices, source = file.scan_plan.fetch_plan.prices, file.planner.source
        here = is_here(source.handle) and not _is_priced(story)
    if not here:
        return prices
    return prices._replace(
        latency_s=_DISK_S, bandwidth_bytes_s=_DISK_BYTES_S, connection_bytes_s=_DISK_BYTES_S, crowded_bytes_s=None
    )


def _is_priced(story: Story) -> bool:
    """Return whether options say what requests cost to files on this machine, which then stand for others."""
    for file in story.files.values():
        requests = file.planner.source.runtime.options.requests
        fixed = requests.latency_s is not None or requests.bandwidth_bytes_s is not None
        return fixed and is_here(file.planner.source.handle)
    return False


def _where(story: Story) -> Expression | None:
    return next((file.planner.request.where for file in story.files.values()), None)


def _filters(story: Story) -> list[str]:
    where = _where(story)
    return [] if where is None else sorted(set(columns_of(where)))


def _weakness(story: Story, column: ColumnRead) -> Weakness:
    """Return why the bounds of a column ruled out little, from what memory has of the file."""
    file = story.files[column.url]
    version, where = file.scan_plan.version, file.planner.request.where
    leaf = version.metadata.schema.leaves[column.leaf]
    leaves = {*range(min(MOST_LEAVES, len(version.metadata.schema.leaves))), column.leaf}
    asked = [] if where is None else [atom for atom in atoms(where) if atom.column == leaf.dotted]
    equality = all(isinstance(atom, In | KeyIn) or (isinstance(atom, Comparison) and atom.op == "==") for atom in asked)
    return weakness(layout_in_memory(file.planner.source, version, leaves), leaf, equality=equality)


def _seconds(opening: ReadMetrics | None) -> float:
    return 0.0 if opening is None else opening.ended - opening.began


def _log(metrics: ReadMetrics, opening: ReadMetrics | None) -> list[RequestRecord]:
    """Return the requests of the opening and of the read in one list, with times as if the read had begun when the
    opening ended."""
    if opening is None:
        return sorted(metrics.log, key=lambda record: record.began)
    records: list[RequestRecord] = []
    for call, later_s, rounds in ((opening, metrics.began - opening.ended, 0), (metrics, 0.0, opening.rounds)):
        for record in sorted(call.log, key=lambda record: record.began):
            moved = copy.copy(record)
            moved.began += later_s
            moved.round += rounds
            records.append(moved)
    return records


def _request(record: RequestRecord, began: float, url: str) -> Request:
    document = record.to_dict(began)
    document["url"] = document["url"] or url
    return document


def _tiers(metrics: ReadMetrics, opening: ReadMetrics | None) -> dict[str, int]:
    calls = [metrics] if opening is None else [opening, metrics]
    return {
        "memory": sum([call.memory_hits for call in calls]),
        "disk": sum([call.disk_hits for call in calls]),
        "shared": sum([call.shared_hits for call in calls]),
        "store": sum([call.cache_misses for call in calls]),
    }


def _texts(values: Any) -> list[str]:
    """Return the values that a lookup has for one key column as text; ``values`` is one value or a collection."""
    scalars = as_scalars(values) if is_collection(values) else [as_scalar(values)]
    return [value if isinstance(value, str) else show(value) for value in scalars]


def _funnel(read: Read, fates: Sequence[FileFates], matches: int) -> list[FunnelStep]:
    """Return the steps from files to rows, each with what ruled out how many: those of the plans, then the pages and
    rows that the read itself ruled out."""
    steps = [] if read.lake is None else [read.lake.files_step]
    scanned = read.metrics.rows_scanned
    for step in add_funnels([plan.funnel for plan in read.plans]):
        counts = Counter({item["by"]: item["count"] for item in step["ruled_out"]})
        details = {item["by"]: item["detail"] for item in step["ruled_out"]}
        if step["level"] == "pages":
            counts.update(_unread(fates))
        elif step["level"] == "rows" and read.verb == "count":
            if read.plan["where"] is not None:
                counts["filter"] += step["kept"] - matches
                counts["statistics"] -= read.rows - matches  # rows that count unread, which the plan leaves out
        elif step["level"] == "rows":
            counts["limit"] += max(step["kept"] - scanned, 0)
            counts["filter"] += max(scanned - matches, 0)
            counts["limit" if read.plan["limit"] is not None else "filter"] += max(matches - read.rows, 0)
        steps.append(funnel_step(step["level"], step["total"], counts, details))
    return steps


def _unread(fates: Sequence[FileFates]) -> Counter[str]:
    """Return the numbers of planned pages that the read skipped after all, by the reason."""
    unread: Counter[str] = Counter()
    for chunk in (chunk for file in fates for chunk in file["chunks"] if not chunk["whole"]):
        each = chunk.get("fates") or [chunk["fate"]] * len(chunk["pages"])
        unread.update([fate for fate in each if fate in ("late", "limit")])
    return unread


def wants_pages(row_groups: int, columns: int) -> bool:
    """Return whether a file has few enough column chunks to fetch all page indexes for its layout."""
    return row_groups * columns <= _MAX_CHUNKS


WIDTH: Final = 100  # characters of a line
_SHOWN: Final = 40  # requests that are shown; of more, the rounds
_LABEL: Final = 40  # characters before a bar of the waterfall


def why_text(document: Why, width: int = WIDTH) -> str:
    """Return the report as lines of at most ``width`` characters. Only titles are not indented."""
    sections = {
        "": _head(document),
        "Funnel": _funnel_lines(document["funnel"]),
        "Requests": _waterfall(document, width),
        "Bytes": _bytes(document, width),
        "Time": _time(document, width),
        "Parts": iter([_tiers_line(document)]),
        "What would make it faster": _causes(document),
    }
    lines: list[str] = []
    for title, body in sections.items():
        lines += ["", title] if title else []
        for line in body:
            lines += _wrapped(line, width) if title else [line]
    return "\n".join(lines)


def _wrapped(line: str, width: int) -> list[str]:
    """Indent ``line`` and wrap it into lines of at most ``width`` characters. Continuation lines align with the text of
    the first line."""
    if len(line.rstrip()) <= width - 2:
        return [f"  {line}".rstrip()]
    inner = len(line) - len(line.lstrip()) or 3  # behind the number of a cause
    return textwrap.wrap(line, width, initial_indent="  ", subsequent_indent=" " * (2 + inner))


def _head(document: Why) -> Iterator[str]:
    asked = document["where"] or "all rows"
    if document["keys"] is not None:
        keys = document["keys"].items()
        asked = ", ".join(f"{name}={values[0] if len(values) == 1 else f'{len(values)} keys'}" for name, values in keys)
    cost = [
        plural(document["rows"], "row"),
        f"{plural(len(document['requests']), 'request')} in {plural(document['rounds'], 'round')}",
        size_text(document["bytes"]["fetched"]),
        seconds_text(document["time"]["total_s"]),
    ]
    yield f"{document['verb']} of {printable(asked)} in {printable(document['url'])}"
    yield ", ".join(cost)


def _funnel_lines(steps: Sequence[FunnelStep]) -> Iterator[str]:
    wide = max([len(f"{step['total']:,}") for step in steps], default=1)
    for step in steps:
        by = [f"{item['count']:,} by {item['by']}" for item in step["ruled_out"]]
        kept = f"{step['level']:<11}{step['kept']:>{wide},} of {step['total']:>{wide},}"
        yield kept + (f"  ruled out: {', '.join(by)}" if by else "")
        for item in step["ruled_out"]:
            if item["detail"]:
                yield f"{' ' * 11}{item['by']}: {printable(item['detail'])}"


def _waterfall(document: Why, width: int) -> Iterator[str]:
    requests, total_s = document["requests"], document["time"]["total_s"]
    if not requests:
        yield "none: caches had everything" if any(document["tiers"].values()) else "none"
        return
    longest = max(width - _LABEL - 13, 10)
    for label, began, ended in _rounds(requests) if len(requests) > _SHOWN else _requests(requests):
        bar = _bar(began / total_s, ended / total_s, longest) if total_s else ""
        yield f"{label:<{_LABEL}} {bar:<{longest}} {seconds_text(ended - began):>8}"


def _requests(requests: Sequence[Request]) -> Iterator[tuple[str, float, float]]:
    """Yield (label, begin, end) for each request; times are in seconds since the call began."""
    for request in requests:
        began, seconds = request.get("began_s", 0.0), request.get("seconds", 0.0)
        notes = [
            f"attempt {request['attempt']}" if request.get("attempt", 1) > 1 else "",
            "hedge" if request.get("hedge") else "",
            "throttled" if request.get("throttled") else "",
            f"status {request['status']}" if request.get("status", 200) not in (200, 206) else "",
        ]
        what = [str(request["round"]), request["method"], request["purpose"], size_text(request.get("received", 0))]
        yield " ".join([*what, *filter(None, notes)]), began, began + seconds


def _rounds(requests: Sequence[Request]) -> Iterator[tuple[str, float, float]]:
    """Yield (label, begin, end) for each round of requests; times are in seconds since the call began."""
    for number in sorted({request["round"] for request in requests}):
        some = [request for request in requests if request["round"] == number]
        began = min([request.get("began_s", 0.0) for request in some])
        ended = max([request.get("began_s", 0.0) + request.get("seconds", 0.0) for request in some])
        purposes = "/".join(dict.fromkeys([request["purpose"] for request in some]))
        received = size_text(sum([request.get("received", 0) for request in some]))
        yield f"{number} {plural(len(some), 'request')}: {purposes}, {received}", began, ended


def _bar(start: float, stop: float, longest: int) -> str:
    """Return a bar that covers the fractions ``start`` to ``stop`` of a line of ``longest`` characters."""
    before = min(int(start * longest), longest - 1)
    return " " * before + "█" * max(1, min(round((stop - start) * longest), longest - before))


def _bytes(document: Why, width: int) -> Iterator[str]:
    sizes = document["bytes"]
    fetched, least = sizes["fetched"] or 0, sizes["wanted"] or 0
    longest = max(width - 26, 10)
    for name, value in (("fetched", fetched), ("least", least)):
        yield f"{name:<11}{size_text(value):>9}  {'█' * round(value / max(fetched, least, 1) * longest)}"
    yield f"{'chunks':<11}{size_text(sizes['chunks']):>9}"
    yield f"{'objects':<11}{size_text(sizes['objects']):>9}"
    if 0 < least <= fetched:
        yield f"{fetched / least:.1f} times the least: the pages of the asked columns that hold matching rows"


def _time(document: Why, width: int) -> Iterator[str]:
    split = document["time"]
    parts = {
        "network": split["network_s"],
        "caches": split["caches_s"],
        "decoding": split["decode_s"],
        "filter": split["filter_s"],
        "other": split["other_s"],
    }
    longest = max(width - 26, 10)
    for name, seconds in parts.items():
        if seconds > 0:
            yield f"{name:<11}{seconds_text(seconds):>9}  {'█' * round(seconds / split['total_s'] * longest)}"


def _tiers_line(document: Why) -> str:
    found = [f"{count:,} from {tier}" for tier, count in document["tiers"].items() if count]
    return ", ".join(found) or "none"


def _causes(document: Why) -> Iterator[str]:
    if not document["causes"]:
        yield "Nothing that is known: no cause takes a twentieth of the time."
    for number, cause in enumerate(document["causes"], 1):
        saves = [
            plural(cause["saves_requests"], "request") if cause["saves_requests"] else "",
            size_text(cause["saves_bytes"]) if cause["saves_bytes"] else "",
            f"about {seconds_text(cause['saves_seconds'])}" if cause["saves_seconds"] else "",
        ]
        yield f"{number}. {printable(cause['title'])} ({cause['id']}, {cause['severity']})"
        yield f"   {printable(cause['detail'])}"
        yield f"   {printable(cause['cure'])} Saves {', '.join(filter(None, saves))}."
