"""Format the report of ``why`` as text for terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from asyncpq.errors import plural, printable
from asyncpq.reports.units import seconds_text, size_text

if TYPE_CHECKING:
    from asyncpq.reports.documents import FunnelStep, Request, Why

WIDTH: Final = 100  # characters of a line
_SHOWN: Final = 40  # requests that are shown; of more, the rounds
_LABEL: Final = 40  # characters before a bar of the waterfall


def why_text(document: Why, width: int = WIDTH) -> str:
    """Return the report as lines of at most ``width`` characters. Only titles are not indented."""
    sections = {
        "": _head(document),
        "Funnel": _funnel(document["funnel"]),
        "Requests": _waterfall(document, width),
        "Bytes": _bytes(document, width),
        "Time": _time(document, width),
        "Parts": iter([_tiers(document)]),
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


def _funnel(steps: Sequence[FunnelStep]) -> Iterator[str]:
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


def _tiers(document: Why) -> str:
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
