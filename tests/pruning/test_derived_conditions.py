"""Boxes of geometries prune by covering columns and by statistics: a superset of the rows, and the filter is exact."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.decoding.wkb import wkb_box
from asyncpq.expressions import IntersectsBox
from tests.example_counts import examples
from tests.geometries import BOXES, GEOMETRIES, box, meets, wkb
from tests.parquet_files import DOUBLE, STRUCT, EditedFile, Struct
from tests.parquet_samples import DATA, requires_corpus
from tests.reads import ask, row_groups_read, rows_left
from tests.variants import MISSING, plain, shredded

CORNERS = ("xmin", "ymin", "xmax", "ymax")
Asked = tuple[float, float, float, float]


def geo(**column: Any) -> dict[bytes, bytes]:
    covering = {"bbox": {corner: ["bbox", corner] for corner in CORNERS}}
    columns = {"geometry": {"encoding": "WKB", "geometry_types": [], "covering": covering, **column}}
    return {b"geo": json.dumps({"version": "1.1.0", "primary_column": "geometry", "columns": columns}).encode()}


def overture(
    geometries: Sequence[Any],
    boxes: Sequence[Asked | None] | None = None,
    *,
    size: int = 3,
    width: int = 64,
    **more: Any,
) -> EditedFile:
    """A file as Overture's: geometries in WKB, and a struct with their boxes; pages of one row."""
    boxes = [None if one is None else box(one) for one in geometries] if boxes is None else boxes
    floats = pa.float32() if width == 32 else pa.float64()
    bbox = pa.struct([pa.field(corner, floats) for corner in CORNERS])
    table = pa.table(
        {
            "id": pa.array(range(len(geometries))),
            "bbox": pa.array([None if one is None else dict(zip(CORNERS, one, strict=True)) for one in boxes], bbox),
            "geometry": pa.array([None if one is None else wkb(one) for one in geometries], pa.binary()),
        }
    ).replace_schema_metadata(geo(**more))
    return EditedFile.of(table, row_group_size=size, rows_per_page=1)


def set_box(file: EditedFile, group: int, corners: Asked, column: int = -1) -> None:
    """Write GeospatialStatistics."""
    xmin, ymin, xmax, ymax = (struct.pack("<d", corner) for corner in corners)
    bbox = Struct({number: (DOUBLE, raw) for number, raw in zip((1, 2, 3, 4), (xmin, xmax, ymin, ymax), strict=True)})
    file.meta(column, group).put(17, Struct({1: (STRUCT, bbox)}))


def annotate(file: EditedFile, kind: int, leaf: int = -1) -> None:
    """Make the last leaf GEOMETRY (17) or GEOGRAPHY (18), without the Arrow schema, which knows neither."""
    file.footer.value(2)[leaf].put(10, Struct({kind: (STRUCT, Struct())}))
    file.footer.put(5, None)


def check(file: EditedFile, geometries: Sequence[Any], asked: Asked, **options: Any) -> None:
    where = col("geometry").intersects_box(*asked)
    results = [meets(one, asked) for one in geometries]

    async def question(reader: asyncpq.File) -> None:
        for expr, expected in (
            (where, [at for at, result in enumerate(results) if result]),
            (~where, [at for at, result in enumerate(results) if result is False]),
            (where & (col("id") > 1), [at for at, result in enumerate(results) if result and at > 1]),
            (where | (col("id") == 0), [at for at, result in enumerate(results) if result or at == 0]),
        ):
            assert (await reader.read(["id"], expr))["id"].to_pylist() == expected, expr
            assert await reader.count(where=expr) == len(expected)

    ask(file.data(), question, **options)


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(st.lists(st.none() | GEOMETRIES, min_size=1, max_size=8), BOXES, st.sampled_from([32, 64]), st.booleans())
def test_covering_columns(geometries: list[Any], asked: Asked, width: int, trust: bool) -> None:
    check(overture(geometries, width=width), geometries, asked, read=asyncpq.ReadOptions(trust_statistics=trust))


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(st.lists(st.none() | GEOMETRIES, min_size=1, max_size=8), BOXES, st.sampled_from([17, 18]), st.integers(0, 7))
def test_statistics_of_row_groups(geometries: list[Any], asked: Asked, kind: int, without: int) -> None:
    file = overture(geometries)
    annotate(file, kind)
    for group in range(-(-len(geometries) // 3)):
        known = [found for one in geometries[3 * group : 3 * group + 3] if one is not None and (found := box(one))]
        if known and group != without:
            low, high = (map(pick, zip(*known, strict=True)) for pick in (min, max))
            (xmin, ymin, *_), (_, _, xmax, ymax) = tuple(low), tuple(high)
            set_box(file, group, (xmin, ymin, xmax, ymax))
    check(file, geometries, asked)


WORLD = [("Point", [float(x), float(y)]) for y in (10, 50) for x in range(-170, 180, 10)]  # 2 rows of 35


def test_row_groups_and_pages_are_left_out() -> None:
    file = overture(WORLD, size=5)
    where = col("geometry").intersects_box(0, 0, 10, 20)
    check(file, WORLD, (0, 0, 10, 20))
    assert row_groups_read(file.data(), where) < 4
    assert rows_left(file.data(), where) == 2
    assert rows_left(file.data(), col("geometry").intersects_box(170, 0, -170, 20)) == 2
    assert rows_left(file.data(), ~where) == 70
    assert rows_left(file.data(), where & (col("bbox.xmin") >= 5)) == 1
    plain = overture(WORLD, size=5)
    plain.footer.put(5, None)
    assert rows_left(plain.data(), where) == 70


@pytest.mark.parametrize("kind", [17, 18])
def test_row_groups_are_left_out_by_their_statistics(kind: int) -> None:
    file = overture(WORLD, size=5)
    annotate(file, kind)
    for group in range(14):
        points = [at for _, at in WORLD[5 * group : 5 * group + 5]]
        set_box(file, group, (points[0][0], points[0][1], points[-1][0], points[-1][1]))
    check(file, WORLD, (0, 0, 10, 20))
    assert row_groups_read(file.data(), col("geometry").intersects_box(0, 0, 10, 20)) == 1
    # over the antimeridian, GEOGRAPHY is compared by y alone
    assert row_groups_read(file.data(), col("geometry").intersects_box(175, 0, -165, 20)) == (1 if kind == 17 else 7)
    set_box(file, 0, (170, 0, -170, 60))  # over the antimeridian
    assert row_groups_read(file.data(), col("geometry").intersects_box(0, 0, 10, 20)) == 2
    for wrong in ((math.nan, 0, 1, 1), (0, 2, 1, 1)):  # statistics that contradict themselves
        set_box(file, 0, wrong)
        assert row_groups_read(file.data(), col("geometry").intersects_box(0, 0, 10, 20)) == 2


def test_boxes_over_the_antimeridian_do_not_prune_by_x() -> None:
    split = ("MultiPoint", [[179.0, 10.0], [-179.0, 10.0]])
    for geometries, boxes, more in (
        ([split], [(179.0, 10.0, -179.0, 10.0)], {}),  # its columns show it
        ([split, ("Point", [5.0, 10.0])], [(179.0, 10.0, -179.0, 10.0), (5.0, 10.0, 5.0, 10.0)], {}),
        ([split], [(179.0, 10.0, -179.0, 10.0)], {"bbox": [179.0, 10.0, -179.0, 10.0]}),
        ([split], [(179.0, 10.0, -179.0, 10.0)], {"edges": "spherical"}),
    ):
        file = overture(geometries, boxes, **more)
        check(file, geometries, (0, 0, 1, 20))
        assert rows_left(file.data(), col("geometry").intersects_box(0, 20, 1, 30)) == 0  # by y


def test_covering_columns_that_are_rounded() -> None:
    point = ("Point", [0.1, 0.3])
    for away in (-math.inf, math.inf):
        near = [struct.unpack("<f", struct.pack("<f", math.nextafter(at, away)))[0] for at in (0.1, 0.3)]
        file = overture([point], [(near[0], near[1], near[0], near[1])], width=32)
        check(file, [point], (0.1, 0.3, 0.1, 0.3))
        check(file, [point], (0.0, 0.0, 0.1, 0.3))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"columns": []}',
        b'{"columns": {"geometry": 1}}',
        b'{"columns": {"geometry": {"encoding": "WKB", "covering": {"bbox": {"xmin": ["id"]}}}}}',
        geo(covering={"bbox": {corner: ["id"] for corner in CORNERS}})[b"geo"],
        geo(encoding="point")[b"geo"],
        geo(bbox="abcd")[b"geo"],
        geo(bbox=[])[b"geo"],
    ],
)
def test_metadata_that_cover_nothing(text: bytes) -> None:
    file = overture(WORLD[:5])
    file.footer.put(5, None)
    edited = EditedFile.of(pa.table({"id": [0], "geometry": [wkb(WORLD[0])]}).replace_schema_metadata({b"geo": text}))
    check(edited, WORLD[:1], (-170, 0, -170, 20))
    check(edited, WORLD[:1], (0, 0, 1, 20))


async def test_datasets(tmp_path: Any) -> None:
    for number in range(3):
        (tmp_path / f"{number}.parquet").write_bytes(overture(WORLD[number * 20 : number * 20 + 20], size=5).data())
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for asked in ((0, 0, 10, 20), (170, 0, -170, 60)):
            where = f"intersects_box(geometry, {', '.join(map(str, asked))})"
            found = await dataset.read(["geometry"], where)
            assert found["geometry"].to_pylist() == [wkb(one) for one in WORLD[:60] if meets(one, asked)]
        plan = await dataset.plan(where=col("geometry").intersects_box(0, 0, 10, 20))
        assert "intersects box" in plan.explain()


@pytest.mark.heavy
@requires_corpus
def test_files_of_the_corpus() -> None:
    """Of several writers, with statistics of row groups, some over the antimeridian."""
    paths = sorted((DATA / "geospatial").glob("*.parquet"))
    pruned = 0
    for path in paths:
        data = path.read_bytes()
        table = pq.read_table(pa.BufferReader(data))
        (name,) = {"geometry", "geography"} & {*table.column_names}
        boxes = [None if value is None else (wkb_box(value),) for value in table[name].to_pylist()]
        for asked in ((0, 0, 25, 25), (1000, 0, 2000, 1), (20, 20, -20, 40), (-180, -90, 180, 90), (15, 15, 15, 15)):
            atom = IntersectsBox(name, *map(float, asked))
            results = [one and (one[0] is not None and atom.meets(*one[0])) for one in boxes]

            async def question(reader: asyncpq.File, atom: Any = atom) -> tuple[int, int]:
                return await reader.count(where=atom), await reader.count(where=~atom)

            assert ask(data, question) == (results.count(True), results.count(False)), (path, asked)
            pruned += row_groups_read(data, atom) < pq.read_metadata(pa.BufferReader(data)).num_row_groups
    assert pruned > len(paths)


SPHERE = [
    ([("LineString", [[-180.0, 40.0], [-180.0, 41.0]])], (180.0, 40.0, 180.0, 41.0), (-180, 39, -180, 42)),
    ([("LineString", [[-180.0, 40.0], [-180.0, 41.0]])], (180.0, 40.0, 180.0, 41.0), (-180, 39, -170, 42)),
    ([("Point", [190.0, 10.0])], (-170.0, 10.0, -170.0, 10.0), (185, 0, 195, 20)),
    ([("Point", [-1.0, 10.0]), ("Point", [190.0, 10.0])], (-1.0, 10.0, -170.0, 10.0), (185, 0, 195, 20)),
    ([("Point", [5.0, 10.0])], (5.0, math.nextafter(10, 11), 5.0, math.nextafter(10, 11)), (0, 0, 10, 10)),
    ([("Point", [5.0, 10.0])], (5.0, math.nextafter(10, 9), 5.0, math.nextafter(10, 9)), (0, 10, 10, 20)),
    ([("Point", [5.0, 10.0])], (math.nextafter(5, 6), 10.0, math.nextafter(5, 6), 10.0), (0, 0, 5, 20)),
]


def sphere_file(geometries: list[Any], corners: Asked) -> EditedFile:
    file = EditedFile.of(pa.table({"id": range(len(geometries)), "geometry": [*map(wkb, geometries)]}))
    annotate(file, 18)
    set_box(file, 0, corners)
    return file


@pytest.mark.parametrize(("geometries", "corners", "asked"), SPHERE)
@pytest.mark.parametrize("trust", [True, False])
def test_boxes_on_the_sphere(geometries: list[Any], corners: Asked, asked: Asked, trust: bool) -> None:
    file = sphere_file(geometries, corners)
    check(file, geometries, asked, read=asyncpq.ReadOptions(trust_statistics=trust))


@pytest.mark.parametrize(("geometries", "corners", "asked"), SPHERE)
async def test_boxes_on_the_sphere_in_datasets(
    geometries: list[Any], corners: Asked, asked: Asked, tmp_path: Any
) -> None:
    for number in range(2):
        (tmp_path / f"{number}.parquet").write_bytes(sphere_file(geometries, corners).data())
    expected = [at for at, one in enumerate(geometries) if meets(one, asked)]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for _ in range(2):  # the second time with the statistics of the footers
            found = await dataset.read(["id"], col("geometry").intersects_box(*asked))
            assert found["id"].to_pylist() == expected * 2
            others = await dataset.read(["id"], ~col("geometry").intersects_box(*asked))
            assert len(others) == 2 * (len(geometries) - len(expected))


async def test_footers_rule_out_files_on_the_sphere(tmp_path: Any) -> None:
    for number in range(2):
        x = 10.0 + 100 * number
        data = sphere_file([("Point", [x, 10.0])], (x, 10.0, x, 10.0)).data()
        (tmp_path / f"{number}.parquet").write_bytes(data)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        await dataset.read(["id"], col("geometry").intersects_box(0, 0, 180, 20))
        assert await dataset.count(where=col("geometry").intersects_box(0, 0, 20, 20)) == 1
        assert await dataset.count(where=col("geometry").intersects_box(-180, 0, 20, 20)) == 1
        assert await dataset.count(where=col("geometry").intersects_box(-180, 11, 20, 20)) == 0


# -- shredded VARIANT columns ----------------------------------------------------------------------


A = col("v").variant_get("$.a", "int64")
PARTS = st.fixed_dictionaries(
    {}, optional={"a": st.integers(-3, 9) | st.sampled_from(["x", 2.5, None, "7"]), "b": st.integers(0, 3)}
)
VALUES = PARTS | st.sampled_from([MISSING, None, 5, [1], "text"])


def file_of(values: list[Any], make: Any = shredded, size: int = 3) -> bytes:
    table = pa.table({"id": pa.array(range(len(values))), "v": make(values)})
    return EditedFile.of(table, row_group_size=size, rows_per_page=1).data()


def whole(value: Any) -> int | None:
    part = value.get("a") if isinstance(value, dict) else None
    return (int(part) if part == "7" else None) if isinstance(part, str) else None if part is None else int(part)


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(st.lists(VALUES, min_size=1, max_size=9), st.integers(-3, 9), st.booleans())
def test_the_rows_are_the_filters(values: list[Any], asked: int, unshredded: bool) -> None:
    parts = [whole(value) for value in values]

    async def question(reader: asyncpq.File) -> None:
        expr: Any
        for expr, test in (
            (asked == A, lambda part: part is not None and part == asked),
            (asked < A, lambda part: part is not None and part > asked),
            (~(asked < A), lambda part: part is not None and part <= asked),
            (A.is_in([asked, asked + 1]), lambda part: part in (asked, asked + 1)),
            (~A.is_in([asked]), lambda part: part != asked),
            (A.is_null(), lambda part: part is None),
            (A.is_valid(), lambda part: part is not None),
            (A.between(asked, asked + 2), lambda part: part is not None and asked <= part <= asked + 2),
        ):
            expected = [at for at, part in enumerate(parts) if test(part)]
            assert (await reader.read(["id"], expr))["id"].to_pylist() == expected, expr
            assert await reader.count(where=expr & (col("id") >= 0)) == len(expected), expr

    ask(file_of(values, plain if unshredded else shredded), question)


SORTED = [{"a": number, "b": number % 3} for number in range(40)]


@pytest.mark.parametrize(("kind", "left"), [("int64", 1), ("bigint", 1), ("int32", 40), ("double", 40)])
def test_pages_are_left_out_by_the_parts_own_column(kind: str, left: int) -> None:
    data = file_of(SORTED, size=10)
    assert rows_left(data, col("v").variant_get("$.a", kind) == 7) == left
    assert rows_left(data, ~(col("v").variant_get("$.a", kind) == 7)) == 40
    assert rows_left(data, col("v").variant_get("$.b", kind) == 7) == 40
    assert rows_left(file_of(SORTED, plain, 10), col("v").variant_get("$.a", kind) == 7) == 40


def test_parts_of_another_type_keep_all_rows() -> None:
    data = file_of([*SORTED, {"a": "7"}], size=10)
    assert rows_left(data, A == 7) == 41

    async def question(reader: asyncpq.File) -> None:
        assert (await reader.read(["id"], A == 7))["id"].to_pylist() == [7, 40]

    ask(data, question)


async def test_datasets_of_files_that_shred_and_files_that_do_not(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(file_of(SORTED[:20], size=10))
    (tmp_path / "1.parquet").write_bytes(file_of(SORTED[20:], size=10))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for expr, expected in ((A == 27, [7]), (A < 2, [0, 1]), (A.is_null(), [])):
            assert (await dataset.read(["id"], expr))["id"].to_pylist() == expected
        plan = await dataset.plan(where=A == 27)
        assert "variant_get(v, '$.a', 'int64') == 27" in plan.explain()
