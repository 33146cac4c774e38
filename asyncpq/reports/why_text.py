"""The story of a read as text, for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from asyncpq.errors import printable

if TYPE_CHECKING:
    from asyncpq.reports.documents import FunnelStep, Request, Why

_WIDTH = 40  # characters of a bar
_SHOWN = 40  # requests that are shown; of more, the rounds


def why_text(document: Why) -> str:
    """Return the story as text of several lines."""
    sections = [
        ("", _head(document)),
        ("Funnel", [_funnel_line(step) for step in document["funnel"]]),
        ("Requests", list(_waterfall(document["requests"], document["time"]["total_s"]))),
        ("Bytes", list(_bytes(document))),
        ("Time", list(_time(document))),
        ("Parts", [_tiers(document)]),
        ("What would make it faster", list(_causes(document))),
    ]
    lines: list[str] = []
    for title, body in sections:
        if title:
            lines += ["", title]
        lines += [f"  {line}" if title else line for line in body]
    return "\n".join(lines)


def _head(document: Why) -> list[str]:
    asked = document["where"] or "all rows"
    if document["keys"] is not None:
        keys = document["keys"].items()
        asked = ", ".join(f"{name}={values[0] if len(values) == 1 else f'{len(values)} keys'}" for name, values in keys)
    cost = [
        _count(document["rows"], "row"),
        f"{_count(len(document['requests']), 'request')} in {_count(document['rounds'], 'round')}",
        size(document["bytes"]["fetched"] or 0),
        milliseconds(document["time"]["total_s"]),
    ]
    return [f"{document['verb']} of {printable(asked)} in {printable(document['url'])}", ", ".join(cost)]


def _funnel_line(step: FunnelStep) -> str:
    by = ", ".join(
        f"{item['count']:,} by {item['by']}" + (f" ({printable(item['detail'])})" if item["detail"] else "")
        for item in step["ruled_out"]
    )
    line = f"{step['level']:<11}{step['kept']:>12,} of {step['total']:<12,}" + (f" ruled out: {by}" if by else "")
    return line.rstrip()


def _waterfall(requests: Sequence[Request], total_s: float) -> Iterator[str]:
    if not requests:
        yield "none: caches had everything"
        return
    if len(requests) > _SHOWN:
        for number in sorted({request["round"] for request in requests}):
            some = [request for request in requests if request["round"] == number]
            began = min([request.get("began_s", 0.0) for request in some])
            ended = max([request.get("began_s", 0.0) + request.get("seconds", 0.0) for request in some])
            purposes = ", ".join(dict.fromkeys([request["purpose"] for request in some]))
            received = sum([request.get("received", 0) for request in some])
            what = f"{number}  {_count(len(some), 'request')}: {purposes}, {size(received)}"
            yield f"{what:<44} {_bar(began, ended, total_s)} {milliseconds(ended - began)}"
        return
    for request in requests:
        began, seconds = request.get("began_s", 0.0), request.get("seconds", 0.0)
        flags = "".join(
            [
                f" attempt {request['attempt']}" if request.get("attempt", 1) > 1 else "",
                " hedge" if request.get("hedge") else "",
                " throttled" if request.get("throttled") else "",
                f" status {request['status']}" if request.get("status", 200) not in (200, 206) else "",
            ]
        )
        what = f"{request['round']}  {request['method']} {request['purpose']} {size(request.get('received', 0))}{flags}"
        yield f"{what:<44} {_bar(began, began + seconds, total_s)} {milliseconds(seconds)}"


def _bar(began: float, ended: float, total_s: float) -> str:
    scale = _WIDTH / max(total_s, 1e-9)
    start = min(int(began * scale), _WIDTH - 1)
    length = max(1, min(round((ended - began) * scale), _WIDTH - start))
    return f"{' ' * start}{'█' * length}{' ' * (_WIDTH - start - length)}"


def _bytes(document: Why) -> Iterator[str]:
    found = document["bytes"]
    fetched, wanted = found["fetched"] or 0, found["wanted"] or 0
    most = max(fetched, wanted, 1)
    for name, value in (("fetched", fetched), ("least", wanted)):
        yield f"{name:<9}{size(value):>12} {'█' * round(value / most * _WIDTH)}"
    for name, key in (("chunks", "chunks"), ("objects", "objects")):
        yield f"{name:<9}{size(found[key] or 0):>12}"
    if 0 < wanted <= fetched:
        yield f"{fetched / wanted:.1f} times the pages of the asked columns that hold matching rows"


def _time(document: Why) -> Iterator[str]:
    split = document["time"]
    total_s = max(split["total_s"], 1e-9)
    parts = {
        "network": split["network_s"], "caches": split["caches_s"], "decoding": split["decode_s"],
        "other": split["other_s"],
    }  # fmt: skip
    for name, seconds in parts.items():
        if seconds > 0:
            yield f"{name:<9}{milliseconds(seconds):>12} {'█' * round(seconds / total_s * _WIDTH)}"


def _tiers(document: Why) -> str:
    found = [f"{count:,} from {tier}" for tier, count in document["tiers"].items() if count]
    return ", ".join(found) or "none"


def _causes(document: Why) -> Iterator[str]:
    if not document["causes"]:
        yield "nothing that costs a twentieth of its requests"
    for number, cause in enumerate(document["causes"], 1):
        saves = [
            _count(cause["saves_requests"], "request") if cause["saves_requests"] else "",
            size(cause["saves_bytes"]) if cause["saves_bytes"] else "",
            f"about {milliseconds(cause['saves_seconds'])}" if cause["saves_seconds"] else "",
        ]
        yield f"{number}. {printable(cause['title'])} ({cause['id']}, {cause['severity']})"
        yield f"   {printable(cause['detail'])}"
        yield f"   {printable(cause['cure'])} Saves {', '.join(filter(None, saves))}."


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """Return a number of bytes as text."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes:.0f} B"


def milliseconds(seconds: float) -> str:
    """Return a duration as text."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
