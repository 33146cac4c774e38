"""Draw the picture as SVG and PNG, for reports: texts, the funnel, the bytes to scale, the grid and the requests.

Neighbouring pages with the same fate are one run. ``js/model.js`` groups them so in the page.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from asyncpq.errors import InvalidOptionError, install_hint, plural, size_text
from asyncpq.page_map import palette
from asyncpq.page_map.picture_data import Layout, Picture, Requests, picture, seconds_text

if TYPE_CHECKING:
    from asyncpq.page_map.picture_data import Document


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring pages of one column chunk with the same fate: read, cached, or what ruled them out. If page
    locations are unknown, the run is the whole chunk."""

    fate: str
    start: int  # bytes of the file
    stop: int
    first_row: int  # of the row group
    stop_row: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One column chunk, divided into runs of its pages."""

    group: int
    column: int
    runs: Sequence[Run]


def cells(layout: Layout) -> Iterator[Cell]:
    """Yield all chunks of a file with the fates of their pages."""
    fates = layout["fates"]
    read: dict[tuple[int, int], list[Any]] = {}
    if fates is not None:
        read = {(chunk[0], chunk[1]): chunk for chunk in fates["chunks"]}
    wanted = {column for _, column in read}
    for chunk in layout["chunks"]:
        group, column, start, stop, dictionary = chunk[:5]
        rows = layout["groups"][group][1]
        data = (dictionary[1] if dictionary else start, stop)
        chunk_fates = read.get((group, column))
        if fates is None:
            fate = "plain" if chunk[-1] else "unlocated"
        elif chunk_fates is None:
            fate = _unread(fates["groups"][group], not wanted or column in wanted)
        elif not chunk[-1] or chunk_fates[2]:
            fate = chunk_fates[6]
        else:
            yield Cell(group, column, list(_page_runs(chunk[-1], chunk_fates[4:], rows)))
            continue
        yield Cell(group, column, [Run(fate, *data, 0, rows)])


def _unread(group_fate: str, wanted: bool) -> str:
    if not wanted:
        return "unread"
    return "late" if palette.FATES[group_fate].rank >= palette.FETCHED else group_fate


def _page_runs(pages: list[Any], read: list[Any], rows: int) -> Iterator[Run]:
    """Yield the runs of pages that are read (those in ``read``), and between them the runs that the page index ruled
    out."""
    sizes, lengths, starts = pages
    count = len(sizes)
    if len(starts) < count:
        starts = list(accumulate(sizes[:-1], initial=starts[0])) if starts else []
    firsts = [*accumulate(lengths[:-1], initial=0), rows]
    at = 0
    for first, stop, fate in zip(read[::3], read[1::3], read[2::3], strict=True):
        stop = count if stop < 0 else min(count, stop)
        for begin, end, what in ((at, first, "page index"), (first, stop, fate)):
            if begin < end:
                last = end - 1
                yield Run(what, starts[begin], starts[last] + sizes[last], firsts[begin], firsts[end])
        at = stop
    if at < count:
        yield Run("page index", starts[at], starts[-1] + sizes[-1], firsts[at], rows)


def _dictionary_fate(cell: Cell) -> str:
    """Return the fate of a chunk's dictionary: read if any page of the chunk is, because each page needs it."""
    fate = max((run.fate for run in cell.runs), key=lambda fate: palette.FATES[fate].rank)
    return "fetched dictionary" if fate == "read" else fate


def structures(layout: Layout, file_cells: Sequence[Cell]) -> Iterator[tuple[str, int, int]]:
    """Yield the byte range (start, stop) and the kind of each dictionary, index and Bloom filter, and of the footer.

    ``file_cells``: the cells of the file, as :func:`cells` returns them.
    """
    for chunk, cell in zip(layout["chunks"], file_cells, strict=True):
        dictionary = "dictionary page" if layout["fates"] is None else _dictionary_fate(cell)
        names = (dictionary, "offset index", "column index", "bloom filter")
        for name, span in zip(names, chunk[4:8], strict=True):
            if span:
                yield name, span[0], span[1]
    yield "footer", layout["footer"][0], layout["footer"][1]


WIDTH: Final = 1200
_MAX_FRAMED: Final = 8_000_000  # characters
_MARGIN: Final = 40
_ROOM: Final = WIDTH - 2 * _MARGIN
_TEXT, _MUTED, _LINE, _SOFT = "#1d1c1a", "#65625b", "#e4e2dc", "#f1efea"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', Arial, sans-serif"
_SWATCHES: Final = {**palette.FATES, **palette.STRUCTURES, **palette.PARTS}
_TONES: Final = {"good": "#0a6b50", "fair": "#7a5600", "poor": "#9c3400", "plain": _TEXT}
_LINES: Final = {  # strokes of a pattern's tile of 8 by 8
    "rise": "M-2,2L2,-2M0,8L8,0M6,10L10,6",
    "fall": "M-2,6L2,10M0,0L8,8M6,-2L10,2",
    "rows": "M0,2H8M0,6H8",
    "columns": "M2,0V8M6,0V8",
    "cross": "M0,0L8,8M8,0L0,8",
    "dots": "M1.2,2a.8,.8 0 1,0 1.6,0a.8,.8 0 1,0 -1.6,0M5.2,6a.8,.8 0 1,0 1.6,0a.8,.8 0 1,0 -1.6,0",
}


def render_svg(document: Document) -> str:
    """Return an SVG of ``document``, 1,200 pixels wide, with light colours."""
    drawn = picture(document)
    drawing = _Drawing()
    _words(drawing, drawn)
    _facts(drawing, drawn["facts"])
    _causes(drawing, drawn)
    _funnel(drawing, drawn)
    if len(drawn["files"]) + len(drawn["more_files"]) > 1:
        _lake(drawing, drawn)
    if drawn["layouts"]:
        _object(drawing, drawn["layouts"][0], drawn["requests"])
    if drawn["requests"] is not None:
        _waterfall(drawing, drawn["requests"])
    return drawing.finished(drawn["title"])


def framed(document: Document) -> str | None:
    """Return the drawing of :func:`render_svg` as an image for notebooks, which need no script for it and may be
    untrusted; None if it is larger than 8 MB, because the notebook file would contain it."""
    svg = render_svg(document)
    if len(svg) > _MAX_FRAMED:
        return None
    data = base64.b64encode(svg.encode()).decode()
    title = html.escape(picture(document)["title"])
    return f'<img alt="page map of {title}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def render_png(document: Document, *, scale: int = 2) -> bytes:
    """Return the drawing of :func:`render_svg` as a PNG, ``scale`` times as large. Needs resvg-py (extra ``png``).

    Raises:
        InvalidOptionError: resvg-py is not installed.
    """
    try:
        import resvg_py
    except ModuleNotFoundError:
        raise InvalidOptionError("a PNG requires resvg-py", hint=install_hint("resvg-py", "png")) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=render_svg(document), zoom=scale, background="#ffffff"))


class _Drawing:
    """The SVG elements drawn so far, from the top down. The next element is drawn at the height ``y``."""

    def __init__(self) -> None:
        self.y = float(_MARGIN)
        self._elements: list[str] = []
        self._used: set[str] = set()

    def text(self, x: float, y: float, text: str, *, size: float = 13, fill: str = _TEXT, more: str = "") -> None:
        self._elements.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{size}" fill="{fill}"{more}>{html.escape(text)}</text>'
        )

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._elements.append(f'<rect {place} fill="{fill}"/>')

    def box(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Draw a box in the colour of the meaning ``name`` (see :mod:`asyncpq.page_map.palette`), and with its
        pattern if the box is large enough."""
        swatch = _SWATCHES[name]
        if swatch.pattern in _LINES and min(width, height) >= 6:
            self._used.add(name)
            self.rectangle(x, y, width, height, f"url(#{palette.variable(name)[2:]})")
        else:
            self.rectangle(x, y, width, height, swatch.light[0])

    def path(self, path: str, colour: str) -> None:
        self._elements.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.25"/>')

    def heading(self, text: str) -> None:
        self.y += 34
        self.text(_MARGIN, self.y, text, size=17, more=' font-weight="600"')
        self.y += 12

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Draw the legend: each meaning's label beside a sample of its colour and pattern."""
        x = float(_MARGIN)
        self.y += 10
        for name, text in entries:
            width = 30 + len(text) * 6.9 + 14
            if x + width > WIDTH - _MARGIN:
                x, self.y = _MARGIN, self.y + 20
            self.box(name, x, self.y - 10, 18, 13)
            self.text(x + 25, self.y, text, size=12.5)
            x += width
        self.y += 14

    def finished(self, title: str) -> str:
        """Return the complete SVG document with the title ``title``."""
        height = _number(self.y + _MARGIN)
        patterns = "".join([_pattern(name) for name in sorted(self._used)])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="{_FONT}" role="img"><title>{html.escape(title)}</title><defs>{patterns}</defs>'
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>{"".join(self._elements)}</svg>\n'
        )


def _pattern(name: str) -> str:
    swatch = _SWATCHES[name]
    fill, ink = swatch.light
    style = f'fill="{ink}"' if swatch.pattern == "dots" else f'fill="none" stroke="{ink}" stroke-width="1.2"'
    return (
        f'<pattern id="{palette.variable(name)[2:]}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{fill}"/><path d="{_LINES[swatch.pattern]}" {style}/></pattern>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}\u2026{text[-(length - 1 - head) :]}"


# -- words ----------------------------------------------------------------------------------------


def _words(drawing: _Drawing, drawn: Picture) -> None:
    drawing.y += 18
    drawing.text(_MARGIN, drawing.y, _cut(drawn["title"], 70), size=27, more=' font-weight="600"')
    drawing.text(_MARGIN, drawing.y + 22, _cut(drawn["url"], 130), size=12.5, fill=_MUTED)
    drawing.text(_MARGIN, drawing.y + 54, drawn["headline"], size=17)
    drawing.y += 54
    if drawn["verdict"]:
        drawing.y += 26
        more = ' font-weight="600"'
        drawing.text(_MARGIN, drawing.y, _cut(drawn["verdict"], 130), size=15, fill=_TONES[drawn["tone"]], more=more)


def _facts(drawing: _Drawing, facts: Sequence[Sequence[str]]) -> None:
    if not facts:
        return
    width = _ROOM / len(facts)
    drawing.y += 20
    drawing.rectangle(_MARGIN, drawing.y, _ROOM, 1, _LINE)
    for at, (name, value, note) in enumerate(facts):
        x = _MARGIN + at * width
        size = 21.0 if len(value) <= 14 else 13.0
        drawing.text(x, drawing.y + 22, name, size=12, fill=_MUTED)
        drawing.text(x, drawing.y + 46, _cut(value, int(width / size * 1.9)), size=size, more=' font-weight="600"')
        drawing.text(x, drawing.y + 65, _cut(note, int(width / 6.4)), size=12, fill=_MUTED)
    drawing.y += 78
    drawing.rectangle(_MARGIN, drawing.y, _ROOM, 1, _LINE)


def _causes(drawing: _Drawing, drawn: Picture) -> None:
    if not drawn["causes"]:
        return
    drawing.heading("What would make it faster")
    for cause in drawn["causes"][:5]:
        saved = [] if not cause["saves_seconds"] else [seconds_text(cause["saves_seconds"])]
        saved += [] if not cause["saves_requests"] else [plural(cause["saves_requests"], "request")]
        saved += [] if not cause["saves_bytes"] else [size_text(cause["saves_bytes"])]
        drawing.y += 18
        drawing.text(_MARGIN, drawing.y, _cut(cause["title"], 110), size=14, more=' font-weight="600"')
        line = cause["cure"] + (f" Would save {', '.join(saved)}." if saved else "")
        drawing.text(_MARGIN, drawing.y + 18, _cut(line, 160), fill=_MUTED)
        drawing.y += 24


def _funnel(drawing: _Drawing, drawn: Picture) -> None:
    steps = [step for step in drawn["funnel"] if step["total"] > 0]
    if not steps:
        return
    drawing.heading("From files to rows")
    for step in steps:
        drawing.y += 8
        x = _MARGIN + 250.0
        width = _ROOM - 250.0
        drawing.text(_MARGIN, drawing.y + 12, step["level"].capitalize(), more=' font-weight="600"')
        drawing.text(_MARGIN + 96, drawing.y + 12, f"{step['kept']:,} of {step['total']:,}", fill=_MUTED)
        parts = [("read", step["kept"]), *[(_fate(part["by"]), part["count"]) for part in step["ruled_out"]]]
        for name, count in parts:
            if count > 0:
                room = max(3.0, count / step["total"] * width)
                drawing.box(name, x, drawing.y, min(room, _MARGIN + _ROOM - x), 14)
                x = min(x + room, WIDTH - _MARGIN - 3)
        drawing.y += 16
    reasons = {_fate(part["by"]): part["by"] for step in steps for part in step["ruled_out"] if part["count"] > 0}
    drawing.y += 8
    kept = [("read", "kept")]
    ruled_out = [(name, "rows that do not match" if by == "filter" else _label(name)) for name, by in reasons.items()]
    drawing.legend(kept + ruled_out)


def _fate(by: str) -> str:
    return "late" if by == "filter" else by


def _label(name: str) -> str:
    return _SWATCHES[name].label


# -- the object -----------------------------------------------------------------------------------


def _object(drawing: _Drawing, layout: Layout, sent: Requests | None) -> None:
    found = list(cells(layout))
    drawing.heading("The object, to scale")
    seen = {run.fate for cell in found for run in cell.runs} | {name for name, _, _ in structures(layout, found)}
    drawing.legend([(name, _label(name)) for name in _SWATCHES if name in seen])
    _ribbon(drawing, layout, found)
    _lane(drawing, layout, sent)
    _grid(drawing, layout, found)


def _ribbon(drawing: _Drawing, layout: Layout, file_cells: Sequence[Cell]) -> None:
    """Draw the file's bytes as a ribbon, from its first byte to its last. Each pixel shows the meaning of most of
    its bytes; pages that are read are drawn on top."""
    scale = _ROOM / max(1, layout["size"])
    shares: dict[str, list[float]] = {}
    on_top: list[tuple[str, float, float]] = []
    spans = [(run.fate, run.start, run.stop) for cell in file_cells for run in cell.runs]
    for name, start, stop in [*spans, *structures(layout, file_cells)]:
        begin, end = start * scale, min(stop * scale, _ROOM)
        if _SWATCHES[name].rank >= palette.FETCHED:
            on_top.append((name, begin, end))
            continue
        pixels = shares.setdefault(name, [0.0] * (_ROOM + 1))
        for pixel in range(int(begin), min(_ROOM, int(end) + 1)):
            pixels[pixel] += max(0.0, min(end, pixel + 1) - max(begin, pixel))
    drawing.box("unread", _MARGIN, drawing.y, _ROOM, 38)
    at = 0
    names = [_largest(shares, pixel) for pixel in range(_ROOM)]
    while at < _ROOM:
        stop_pixel = at + 1
        while stop_pixel < _ROOM and names[stop_pixel] == names[at]:
            stop_pixel += 1
        name_there = names[at]
        if name_there is not None:
            drawing.box(name_there, _MARGIN + at, drawing.y, stop_pixel - at, 38)
        at = stop_pixel
    for name, begin, end in on_top:
        drawing.box(name, _MARGIN + min(begin, _ROOM - 2.5), drawing.y, max(2.5, end - begin), 38)
    drawing.y += 38


def _largest(shares: dict[str, list[float]], pixel: int) -> str | None:
    name = max(shares, key=lambda one: shares[one][pixel], default=None)
    return name if name is not None and shares[name][pixel] > 0.02 else None


def _lane(drawing: _Drawing, layout: Layout, sent: Requests | None) -> None:
    """Draw a bracket below the ribbon for each request's byte range, and the scale in bytes."""
    scale = _ROOM / max(1, layout["size"])
    for row in sent["rows"] if sent is not None else ():
        url, _, start, stop = row[:4]
        if sent is None or (len(sent["urls"]) > 1 and sent["urls"][url] != layout["url"]):
            continue
        if start < 0:
            start, stop = max(0, layout["size"] + start), layout["size"]
        if stop > start:
            x, end = _MARGIN + start * scale, _MARGIN + max(start * scale + 2, stop * scale)
            drawing.path(f"M{_number(x)},{_number(drawing.y + 3)}v5H{_number(end)}v-5", _TEXT)
    drawing.y += 26
    drawing.text(_MARGIN, drawing.y, "byte 0", size=12, fill=_MUTED)
    end_text = ' text-anchor="end"'
    drawing.text(WIDTH - _MARGIN, drawing.y, size_text(layout["size"]), size=12, fill=_MUTED, more=end_text)


def _grid(drawing: _Drawing, layout: Layout, file_cells: Sequence[Cell]) -> None:
    """Draw a grid of row groups by columns, in which row groups and columns that are read are larger."""
    read = layout["fates"] is not None
    columns = {cell.column for cell in file_cells if read and cell.runs[0].fate != "unread"}
    fates = [] if layout["fates"] is None else layout["fates"]["groups"]
    groups = {group for group, fate in enumerate(fates) if _SWATCHES[fate].rank >= palette.FETCHED}
    tall = max(150, min(420, 28 * len(layout["groups"])))
    across = _edges([1] * len(layout["columns"]), columns, _ROOM - 64, 92)
    down = _edges([group[1] for group in layout["groups"]], groups, tall, 100)
    drawing.y += 40
    left = _MARGIN + 64.0
    for column, (name, *_) in enumerate(layout["columns"]):
        width = across[column + 1] - across[column]
        if width >= 40:
            drawing.text(left + across[column] + 2, drawing.y - 6, _cut(name, int(width / 7.4)), size=12)
    for group in range(len(layout["groups"])):
        height = down[group + 1] - down[group]
        if height >= 11:
            y = drawing.y + down[group] + min(height / 2, 40) + 4
            label = f"group {group}" if group < 1000 else f"{group:,}"
            drawing.text(left - 7, y, label, size=12, fill=_MUTED, more=' text-anchor="end"')
    drawing.box("unread", left, drawing.y, _ROOM - 64, tall)
    drawn: set[tuple[float, int, str]] = set()
    for cell in file_cells:
        place = (across[cell.column], int(down[cell.group]), cell.runs[0].fate)
        if down[cell.group + 1] - down[cell.group] < 0.5 and len(cell.runs) == 1:
            if place in drawn:
                continue  # its pixel has that colour already
            drawn.add(place)
        _cell(drawing, cell, left, across, down, layout["groups"][cell.group][1])
    drawing.y += tall + 6


def _cell(
    drawing: _Drawing, cell: Cell, left: float, across: Sequence[float], down: Sequence[float], rows: int
) -> None:
    x, width = left + across[cell.column], across[cell.column + 1] - across[cell.column]
    y, height = drawing.y + down[cell.group], down[cell.group + 1] - down[cell.group]
    width, height = (width - 1.5 if width > 4 else max(width, 0.5)), (height - 1.5 if height > 6 else height)
    for run in sorted(cell.runs, key=lambda run: _SWATCHES[run.fate].rank):
        if run.fate == "unread" and width < 4:
            continue  # the ground has that colour
        scale = height / max(1, rows)
        least = min(3.0, height) if _SWATCHES[run.fate].rank >= palette.FETCHED else 0.5
        part = max((run.stop_row - run.first_row) * scale, least)
        drawing.box(run.fate, x, y + min(run.first_row * scale, height - part), width, part)


def _edges(weights: Sequence[int], large: set[int], room: float, wish: float) -> list[float]:
    """Divide ``room`` pixels among items in proportion to ``weights``, and return the edges of the items. Those
    whose positions are in ``large`` get up to ``wish`` pixels each, but together at most 0.7 of the room."""
    if len(large) == len(weights):
        large = set()
    total = sum(weights) or 1
    extra = min(0.7 * room, wish * len(large))
    edges = [0.0]
    for at, weight in enumerate(weights):
        edges.append(edges[-1] + weight / total * (room - extra) + (extra / len(large) if at in large else 0))
    return edges


def _lake(drawing: _Drawing, drawn: Picture) -> None:
    fates = [file[3] or "file" for file in drawn["files"]]
    fates += [fate for fate, count in drawn["more_files"] for _ in range(count)]
    drawing.heading("The lake")
    counts: dict[str, int] = {}
    for fate in fates:
        counts[fate] = counts.get(fate, 0) + 1
    drawing.legend([(name, f"{_label(name)}: {count:,}") for name, count in counts.items()])
    side = max(3, min(24, int((_ROOM * 300 / max(1, len(fates))) ** 0.5)))
    across = _ROOM // side
    for at, fate in enumerate(fates):
        drawing.box(fate, _MARGIN + at % across * side, drawing.y + at // across * side, side - 1, side - 1)
    drawing.y += -(-len(fates) // across) * side


# -- requests -------------------------------------------------------------------------------------


def _waterfall(drawing: _Drawing, sent: Requests) -> None:
    drawing.heading("Requests, by time" if sent["timed"] else "Requests, by bytes")
    step = max(0.5, min(20.0, 360 / len(sent["rows"])))
    spans = [_extent(row, sent["timed"]) for row in sent["rows"]]
    most = max([stop for _, _, stop in spans] + [1])
    left, room = _MARGIN + 180.0, _ROOM - 180.0
    for at, (row, (start, first, stop)) in enumerate(zip(sent["rows"], spans, strict=True)):
        y, tall = drawing.y + at * step, step - 4 if step > 8 else step * 0.8
        purpose = sent["words"][row[1]]
        name = "read" if purpose == "data" else "bloom" if purpose == "bloom" else "metadata"
        if first > start:
            colour = _SWATCHES[name].light[0]
            drawing.rectangle(left + start / most * room, y + tall / 2 - 1, (first - start) / most * room, 2, colour)
        drawing.box(name, left + first / most * room, y, max(1.5, (stop - first) / most * room), tall)
        if step >= 12:
            size = size_text(row[11] if sent["timed"] else abs(row[3] - row[2]))
            drawing.text(_MARGIN, y + 12, f"{purpose}, round {row[4]}", size=12)
            drawing.text(left - 12, y + 12, size, size=12, fill=_MUTED, more=' text-anchor="end"')
    drawing.y += len(sent["rows"]) * step + 18
    drawing.text(left, drawing.y, "0", size=12, fill=_MUTED)
    text = seconds_text(most / 1e6) if sent["timed"] else size_text(int(most))
    drawing.text(WIDTH - _MARGIN, drawing.y, text, size=12, fill=_MUTED, more=' text-anchor="end"')


def _extent(row: Sequence[Any], timed: bool) -> tuple[float, float, float]:
    """Return when a request began, got its first byte and ended, in microseconds, from ``row``, its numbers. Without
    ``timed`` the times are unknown: it then begins at 0 and ends at the number of its bytes."""
    if not timed:
        return 0.0, 0.0, float(abs(row[3] - row[2]))
    began, first, seconds = row[7], row[8], row[9]
    return float(began), float(began + max(0, min(first, seconds))), float(began + seconds)
