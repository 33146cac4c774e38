"""Geometries in well-known binary, made and read one coordinate at a time; their boxes by brute force."""

from __future__ import annotations

import math
import struct
from typing import Any

from hypothesis import strategies as st

Coordinates = list[Any]  # of a kind: numbers, or lists of them
KINDS = {"Point": 1, "LineString": 2, "Polygon": 3, "MultiPoint": 4, "MultiLineString": 5, "MultiPolygon": 6}
COLLECTION = 7


def wkb(geometry: tuple[str, Coordinates], *, order: str = "<", dims: str = "XY", postgis: bool = False) -> bytes:
    """A geometry (kind, coordinates of x, y and perhaps z and m) in well-known binary."""
    kind, content = geometry
    code = COLLECTION if kind == "GeometryCollection" else KINDS[kind]
    extra = b""
    if postgis:
        code |= ("Z" in dims) << 31 | ("M" in dims) << 30 | 1 << 29
        extra = struct.pack(f"{order}I", 4326)
    else:
        code += {"XY": 0, "XYZ": 1000, "XYM": 2000, "XYZM": 3000}[dims]
    head = struct.pack("B", order == "<") + struct.pack(f"{order}I", code) + extra

    def parts(geometries: list[tuple[str, Coordinates]]) -> bytes:
        return b"".join([wkb(part, order=order, dims=dims) for part in geometries])

    def line(points: Coordinates) -> bytes:
        return struct.pack(f"{order}I", len(points)) + b"".join(map(position, points))

    def position(numbers: Coordinates) -> bytes:
        return struct.pack(f"{order}{len(dims)}d", *[*numbers, 7.0, -7.0][: len(dims)])

    if kind == "Point":
        return head + position(content or [math.nan, math.nan])
    if kind == "LineString":
        return head + line(content)
    if kind == "Polygon":
        return head + struct.pack(f"{order}I", len(content)) + b"".join(map(line, content))
    single = kind.removeprefix("Multi")
    inner = content if kind == "GeometryCollection" else [(single, part) for part in content]
    return head + struct.pack(f"{order}I", len(inner)) + parts(inner)


def positions(geometry: tuple[str, Coordinates]) -> list[Coordinates]:
    """All coordinates of a geometry."""
    kind, content = geometry
    if kind == "GeometryCollection":
        return [position for part in content for position in positions(part)]
    depth = {"Point": 0, "LineString": 1, "MultiPoint": 1, "Polygon": 2, "MultiLineString": 2, "MultiPolygon": 3}[kind]
    found = [content] if content else []
    for _ in range(depth):
        found = [part for parts in found for part in parts]
    return found


def box(geometry: tuple[str, Coordinates]) -> tuple[float, float, float, float] | None:
    """Its box; None without coordinates."""
    x, y = ([at[number] for at in positions(geometry) if at and not math.isnan(at[number])] for number in (0, 1))
    return (min(x), min(y), max(x), max(y)) if x and y else None


def meets(geometry: tuple[str, Coordinates] | None, asked: tuple[float, float, float, float]) -> bool | None:
    """Whether its box meets ``asked``, which may cross the antimeridian."""
    if geometry is None:
        return None
    found = box(geometry)
    if found is None:
        return False
    left, bottom, right, top = found
    xmin, ymin, xmax, ymax = asked
    spans = [(xmin, xmax)] if xmin <= xmax else [(xmin, math.inf), (-math.inf, xmax)]
    return bottom <= ymax and top >= ymin and any(left <= high and right >= low for low, high in spans)


NUMBERS = st.sampled_from([-180.0, -179.5, -60.0, -1.0, 0.0, 0.1, 1.0, 45.0, 90.0, 179.5, 180.0])
POSITIONS = st.lists(NUMBERS, min_size=2, max_size=2)
_ODD = st.lists(NUMBERS | st.just(math.nan), min_size=2, max_size=2)
LINES = st.lists(POSITIONS, max_size=4)
RINGS = st.lists(LINES, max_size=2)
SINGLE: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("Point"), POSITIONS | st.just([]) | _ODD),
    st.tuples(st.just("LineString"), LINES),
    st.tuples(st.just("Polygon"), RINGS),
    st.tuples(st.just("MultiPoint"), st.lists(POSITIONS, max_size=3)),
    st.tuples(st.just("MultiLineString"), st.lists(LINES, max_size=2)),
    st.tuples(st.just("MultiPolygon"), st.lists(RINGS, max_size=2)),
)
GEOMETRIES: st.SearchStrategy[Any] = st.recursive(
    SINGLE, lambda inner: st.tuples(st.just("GeometryCollection"), st.lists(inner, max_size=3)), max_leaves=4
)
BOXES = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS).map(lambda b: (b[0], min(b[1], b[3]), b[2], max(b[1], b[3])))
