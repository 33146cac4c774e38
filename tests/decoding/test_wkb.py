"""Boxes of geometries equal brute force and shapely's; bytes that are no geometry are typed errors."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.decoding.wkb import wkb_box
from asyncpq.errors import AsyncpqError, CorruptFileError, PredicateTypeError, UnsupportedFeatureError
from asyncpq.expressions import IntersectsBox, Not, col
from tests.geometries import BOXES, GEOMETRIES, POSITIONS, SINGLE, box, meets, wkb

TYPES = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])
FORMS = st.fixed_dictionaries(
    {"order": st.sampled_from("<>"), "dims": st.sampled_from(["XY", "XYZ", "XYM", "XYZM"]), "postgis": st.booleans()}
)


def results(expr: Any, array: Any) -> list[bool | None]:
    found: list[bool | None] = compile_filter(expr, {"g": array.type}).mask({"g": array}, len(array)).to_pylist()
    return found


@given(GEOMETRIES, FORMS)
def test_boxes(geometry: Any, form: dict[str, Any]) -> None:
    assert wkb_box(wkb(geometry, **form)) == box(geometry)


@given(st.lists(st.none() | GEOMETRIES, max_size=8), BOXES, TYPES)
def test_the_filter_is_brute_force(geometries: list[Any], asked: tuple[float, ...], type_: pa.DataType) -> None:
    array = pa.array([None if geometry is None else wkb(geometry) for geometry in geometries], type_)
    expr = col("g").intersects_box(*asked)
    expected = [meets(geometry, asked) for geometry in geometries]  # type: ignore[arg-type]  # four numbers
    assert results(expr, array) == expected
    assert results(Not(expr), array) == [None if one is None else not one for one in expected]
    if type_ != pa.binary_view():
        assert results(expr, pa.chunked_array([array, array.slice(1)])) == expected + expected[1:]
        assert results(expr, array.dictionary_encode()) == expected


@given(st.lists(st.none() | POSITIONS, max_size=8), BOXES, TYPES)
def test_points_by_kernels(points: list[Any], asked: tuple[float, ...], type_: pa.DataType) -> None:
    geometries = [None if at is None else ("Point", at) for at in points]
    array = pa.array([None if geometry is None else wkb(geometry) for geometry in geometries], type_)
    expected = [meets(geometry, asked) for geometry in geometries]  # type: ignore[arg-type]  # four numbers
    assert results(col("g").intersects_box(*asked), array) == expected


@given(SINGLE)
def test_shapely_agrees(geometry: Any) -> None:
    shapely = pytest.importorskip("shapely")
    expected = box(geometry)
    if "nan" in str(geometry):
        return  # shapely propagates NaN; Parquet skips it
    try:
        made = shapely.from_wkb(wkb(geometry))
    except shapely.GEOSException:  # rings must be closed
        return
    bounds = shapely.bounds(made).tolist()
    assert (None if bounds[0] != bounds[0] else tuple(bounds)) == expected


@given(GEOMETRIES, st.data())
def test_damaged_bytes_give_a_typed_error_or_a_box(geometry: Any, data: st.DataObject) -> None:
    raw = bytearray(wkb(geometry))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        wkb_box(cut)
    except AsyncpqError:
        pass


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptFileError),
        (b"\x02\x01\0\0\0" + bytes(16), CorruptFileError),
        (struct.pack("<BII", 1, 2, 2**32 - 1), CorruptFileError),
        (struct.pack("<BII", 1, 7, 2**32 - 1), CorruptFileError),
        (struct.pack("<BI", 1, 4001) + bytes(16), CorruptFileError),
        (struct.pack("<BII", 1, 8, 0), UnsupportedFeatureError),
    ],
)
def test_what_is_no_geometry(data: bytes, error: type[AsyncpqError]) -> None:
    with pytest.raises(error):
        wkb_box(data)


def test_columns_that_are_no_geometries() -> None:
    with pytest.raises(PredicateTypeError, match="expected geometries in well-known binary"):
        compile_filter(IntersectsBox("g", 0, 0, 1, 1), {"g": pa.string()})
