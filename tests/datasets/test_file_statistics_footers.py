"""Footers rule whole files out by parts of variants and boxes of geometries; the rows stay those of the filter."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import Expression, col
from tests.delta_tables import DeltaWriter, column, metadata, protocol
from tests.geometries import BOXES, GEOMETRIES, meets
from tests.parquet_files import EditedFile
from tests.pruning.test_derived_conditions import VALUES, annotate, file_of, overture, set_box, whole
from tests.variants import plain, shredded

A = col("v").variant_get("$.a", "int64")
COVERED: dict[str, Any] = {}
UNCOVERED: dict[str, Any] = {"covering": {}}


def write(folder: Path, files: Sequence[bytes]) -> None:
    for number, data in enumerate(files):
        (folder / f"{number}.parquet").write_bytes(data)


async def rows_and_files(dataset: asyncpq.Dataset, where: Expression | str) -> tuple[int, int, int]:
    """The number of rows, of files that were ruled out unopened, and of requests."""
    with asyncpq.measure() as cost:
        found = await dataset.count(where)
    return found, cost.files_ruled_out, cost.requests


async def test_parts_of_variants_rule_files_out(tmp_path: Path) -> None:
    ranges = [range(10 * number, 10 * number + 10) for number in range(4)]
    write(tmp_path, [file_of([{"a": one, "b": one} for one in some]) for some in ranges])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert (await rows_and_files(dataset, A == 12))[:2] == (1, 0)
        for where in (A == 12, "try_variant_get(v, '$.a', 'bigint') = 12", (A == 12) & (col("id") >= 0)):
            assert (await rows_and_files(dataset, where))[:2] == (1, 3)
        assert (await rows_and_files(dataset, A.is_in([5, 35])))[:2] == (2, 2)
        assert (await rows_and_files(dataset, A > 100)) == (0, 4, 1)  # the listing
        assert (await rows_and_files(dataset, A.is_null()))[:2] == (0, 0)
        assert (await rows_and_files(dataset, ~(A == 12)))[:2] == (39, 0)
        assert (await rows_and_files(dataset, (A == 12) | (A == 25)))[:2] == (2, 2)
        assert (await rows_and_files(dataset, col("v").variant_get("$.b", "int64") == 12))[:2] == (1, 0)
        assert (await rows_and_files(dataset, col("v").variant_get("$.b", "int64") == 12))[:2] == (1, 0)
        write(tmp_path, [file_of([{"a": 12}] * 3)])  # a replaced file is opened again
        assert (await rows_and_files(dataset, A == 12))[:2] == (4, 2)
        plan = await dataset.plan(where=A == 12)
        assert (plan.files_total, plan.files_ruled_out) == (4, 2)


async def test_footers_rule_files_out_before_they_are_planned(tmp_path: Path) -> None:
    write(tmp_path, [file_of([{"a": one} for one in range(at, at + 5)]) for at in (0, 5, 10)])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        await dataset.read(["id"], A == 7)
        assert (dataset.metrics.files_opened, dataset.metrics.files_read) == (3, 1)
        assert dataset.metrics.row_groups_total == 2  # of the only file that was planned


async def test_a_column_with_the_name_of_a_part_is_that_column(tmp_path: Path) -> None:
    names = ["variant_get(v, '$.a', 'int64')", "box(geometry).xmin"]
    table = pa.table({"v": shredded([{"a": 1}]), **{name: pa.array([7]) for name in names}})
    write(tmp_path, [EditedFile.of(table).data()] * 2)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for _ in range(2):
            assert await dataset.count((A == 1) & (col(names[0]) == 7)) == 2
            assert (await rows_and_files(dataset, (A == 2) & (col(names[0]) == 7)))[0] == 0


async def test_a_struct_that_is_no_variant_is_an_error(tmp_path: Path) -> None:
    storage = shredded([{"a": 1}])
    fields = [field for field in storage.type if field.name != "metadata"]
    table = pa.table({"v": pa.StructArray.from_arrays([storage.field(field.name) for field in fields], fields=fields)})
    write(tmp_path, [EditedFile.of(table).data()] * 2)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for _ in range(2):
            with pytest.raises(asyncpq.PredicateTypeError, match="expected a variant"):
                await dataset.count(A == 2)


async def test_statistics_that_are_not_trusted_rule_nothing_out(tmp_path: Path) -> None:
    write(tmp_path, [file_of([{"a": 1}]), file_of([{"a": 2}])])
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=False)) as session:
        dataset = await session.open_dataset(str(tmp_path))
        for _ in range(2):
            assert (await rows_and_files(dataset, A == 2))[:2] == (1, 0)


@pytest.mark.heavy
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.lists(VALUES, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=4),
    st.lists(st.integers(-3, 9), min_size=2, max_size=3),
)
def test_the_rows_of_variants_are_the_filters(files: list[tuple[list[Any], bool]], asked: list[int]) -> None:
    parts = [whole(value) for values, _ in files for value in values]

    async def question(folder: Path) -> None:
        write(folder, [file_of(values, plain if is_plain else shredded) for values, is_plain in files])
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(folder), schema_policy="permissive")
            for one in asked * 2:
                expr: Any
                for expr, test in (
                    (one == A, lambda part, one=one: part is not None and part == one),
                    (one < A, lambda part, one=one: part is not None and part > one),
                    (~(one < A), lambda part, one=one: part is not None and part <= one),
                    (~A.is_in([one]), lambda part, one=one: part != one),
                    (A.is_null(), lambda part: part is None),
                    (A.is_valid(), lambda part: part is not None),
                    (A.between(one, one + 2), lambda part, one=one: part is not None and one <= part <= one + 2),
                ):
                    assert await dataset.count(expr) == sum(map(test, parts)), expr

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(question(Path(folder)))


POINTS = [("Point", [float(x), float(y)]) for x, y in ((0, 0), (10, 10), (20, 20), (30, 30))]


def box_of(number: float) -> Expression:
    return col("geometry").intersects_box(number - 1, number - 1, number + 1, number + 1)


@pytest.mark.parametrize("width", [64, 32])
async def test_covering_columns_rule_files_out(tmp_path: Path, width: int) -> None:
    write(tmp_path, [overture([point, None], width=width).data() for point in POINTS])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert (await rows_and_files(dataset, box_of(10)))[:2] == (1, 0)
        assert (await rows_and_files(dataset, box_of(10)))[:2] == (1, 3)
        assert (await rows_and_files(dataset, box_of(10) | box_of(20)))[:2] == (2, 2)
        assert (await rows_and_files(dataset, box_of(70))) == (0, 4, 1)  # the listing
        assert (await rows_and_files(dataset, "intersects_box(geometry, 9, 9, 11, 11)"))[:2] == (1, 3)
        assert (await rows_and_files(dataset, ~box_of(10)))[:2] == (3, 0)
        across = col("geometry").intersects_box(25, -90, 5, 90)
        assert (await rows_and_files(dataset, across))[:2] == (2, 0)  # of such boxes nothing is known yet
        assert (await rows_and_files(dataset, across))[:2] == (2, 2)


async def test_files_without_planar_boxes_are_ruled_out_by_y_alone(tmp_path: Path) -> None:
    write(tmp_path, [overture([point], edges="spherical").data() for point in POINTS])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        east = col("geometry").intersects_box(50, 9, 60, 21)
        for ruled_out in (0, 2):
            assert (await rows_and_files(dataset, east))[:2] == (0, ruled_out)


@pytest.mark.parametrize("kind", [17, 18])
async def test_boxes_of_geometry_types_rule_files_out(tmp_path: Path, kind: int) -> None:
    files = []
    for point in POINTS:
        file = overture([point, point], size=1, covering={})
        annotate(file, kind)
        for group in (0, 1):
            x, y = point[1]
            set_box(file, group, (x, y, x, y))
        files.append(file)
    write(tmp_path, [file.data() for file in files])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for ruled_out in (0, 3):
            assert (await rows_and_files(dataset, box_of(10)))[:2] == (2, ruled_out)
        set_box(files[0], 0, (170.0, 0.0, -170.0, 0.0))  # across the antimeridian
        (tmp_path / "0.parquet").write_bytes(files[0].data())
        east = col("geometry").intersects_box(50, -1, 60, 11)
        for _ in range(2):
            assert (await rows_and_files(dataset, east))[:2] == (0, 3)


@pytest.mark.heavy
@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.none() | GEOMETRIES, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=4
    ),
    st.lists(BOXES, min_size=2, max_size=3),
    st.sampled_from([32, 64]),
)
def test_the_rows_of_boxes_are_the_filters(
    files: list[tuple[list[Any], bool]], boxes: list[tuple[float, float, float, float]], width: int
) -> None:
    geometries = [geometry for some, _ in files for geometry in some]

    async def question(folder: Path) -> None:
        data = [
            overture(some, width=width, **(COVERED if is_covered else UNCOVERED)).data() for some, is_covered in files
        ]
        write(folder, data)
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(folder))
            for asked in boxes * 2:
                results = [meets(geometry, asked) for geometry in geometries]
                where = col("geometry").intersects_box(*asked)
                assert await dataset.count(where) == results.count(True)
                assert await dataset.count(~where) == results.count(False)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(question(Path(folder)))


async def test_footers_in_an_index_rule_files_out_at_once(tmp_path: Path) -> None:
    """A session that has read nothing yet asks the store for the rows of one file alone."""
    lake, index = tmp_path / "lake", str(tmp_path / "index")
    lake.mkdir()
    write(lake, [file_of([{"a": one} for one in range(at, at + 5)]) for at in (0, 5, 10)])
    async with asyncpq.Session() as session:
        await session.build_index(str(lake), [asyncpq.indexing.Footers()], at=index)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(lake), index=index)
        assert (await dataset.read(["id"], A == 7))["id"].to_pylist() == [2]
        metrics = dataset.metrics
        assert (metrics.files_read, metrics.row_groups_total) == (1, 2)
        assert (await rows_and_files(dataset, A == 7))[:2] == (1, 2)


async def test_files_of_tables_are_ruled_out_too(tmp_path: Path) -> None:
    """By the names that the columns have in each file: here the physical ones of a Delta table."""
    writer = DeltaWriter(tmp_path / "table")
    mapped = [
        column("id", "long", physical="col-1", id_=1),
        column("v", "variant", physical="col-2", id_=2),
        column("geometry", "binary", physical="geometry", id_=3),
    ]
    files = []
    for number, point in enumerate(POINTS):
        boxed = pq.read_table(pa.BufferReader(overture([point, None]).data()))
        values = shredded([{"a": number, "b": 1}, {"a": number + 10}])
        stored = boxed.rename_columns({"id": "col-1"}).append_column("col-2", values)
        files.append(writer.file(f"{number}.parquet", stored.replace_schema_metadata(boxed.schema.metadata)))
    said = protocol("variantType", "variantShredding", "columnMapping")
    writer.commit(said, metadata(*mapped, configuration={"delta.columnMapping.mode": "name"}), *files)
    async with asyncpq.Session() as session:
        table = await session.open_dataset(str(writer.folder), format="delta")
        for ruled_out in (0, 3):
            assert (await rows_and_files(table, A == 0))[:2] == (1, ruled_out)
        for ruled_out in (0, 3):
            assert (await rows_and_files(table, box_of(10)))[:2] == (1, ruled_out)
        assert (await rows_and_files(table, box_of(10) & (A == 0)))[:2] == (0, 4)
        assert (await rows_and_files(table, ~box_of(10)))[:2] == (3, 0)
