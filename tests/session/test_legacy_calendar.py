"""Files in the calendar of old Spark versions: rows, bounds, Bloom filters, counts, indexes and tables.

The files are pyarrow's, with Spark's key-value metadata and the numbers that Spark stores. ``tests/decoding`` compares
the conversion itself, and ``tests/spark/types/test_legacy_calendar.py`` whole files with Spark.
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import convert_to_deltalake

import asyncpq
from asyncpq import ReadOptions, Session, col
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.indexing import Bounds, Keys, Pages
from tests.iceberg_tables import make_table

DAY, CLOCK, NAIVE = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
MICROS = 1_000_000
ZONE = "America/Los_Angeles"
#: Days of the Julian calendar, as they are stored, and in the Gregorian calendar.
DAYS = [
    (-719_164, dt.date(1, 1, 1)),
    (-171_605, dt.date(1500, 2, 20)),
    (-171_596, dt.date(1500, 3, 1)),  # 29 February
    (-171_595, dt.date(1500, 3, 1)),
    (-141_428, dt.date(1582, 10, 4)),
    (-141_427, dt.date(1582, 10, 15)),
    (-25_568, dt.date(1899, 12, 31)),
    (19_000, dt.date(2022, 1, 8)),
]
#: Seconds of clocks in Los Angeles, as they are stored, and since 1970 in UTC.
SECONDS = [
    (-62_135_740_800, -62_135_568_422),
    (-12_219_264_001, -12_220_128_423),
    (-12_219_264_000, -12_219_264_422),
    (-2_717_640_001, -2_717_640_423),
    (-2_717_640_000, -2_717_640_000),
    (-2_208_988_800, -2_208_988_800),
    (1_600_000_000, 1_600_000_000),
]
OPERATORS: list[Callable[[Any, Any], Any]] = [operator.eq, operator.ne, operator.lt, operator.ge]


def stored_and_read(rows: int = 1_000, first: int = 0) -> tuple[pa.Table, pa.Table]:
    """Rows as they are stored, and as Spark reads them; nearly sorted, so that pages have narrow bounds."""
    drawn = random.Random(1)
    days = sorted((drawn.choice(DAYS[first:]) for _ in range(rows)), key=lambda pair: pair[0])
    seconds = sorted((drawn.choice(SECONDS[first:]) for _ in range(rows)), key=lambda pair: pair[0])
    epoch = dt.date(1970, 1, 1).toordinal()
    tables: list[pa.Table] = []
    for side in (0, 1):
        numbers = [pair[0] if side == 0 else pair[1].toordinal() - epoch for pair in days]
        day = pa.array(numbers, pa.int32(), mask=[at % 17 == 0 for at in range(rows)]).view(DAY)
        clock = pa.array([pair[side] * MICROS + 7 for pair in seconds], pa.int64())
        nested = pa.StructArray.from_arrays([day, clock.view(CLOCK)], ["d", "t"])
        tables.append(
            pa.table(
                {
                    "id": pa.array(range(rows)),
                    "d": day,
                    "t": clock.view(CLOCK),
                    "i": clock.view(NAIVE),
                    "s": nested,
                    "l": pa.ListArray.from_arrays(range(rows + 1), nested),
                    "naive": pa.array([dt.datetime(1000, 1, 1)] * rows, NAIVE),
                }
            )
        )
    return tables[0], tables[1]


def write(
    path: Path,
    table: pa.Table,
    *,
    zone: str | None = ZONE,
    legacy: bool = True,
    said: dict[str, str] | None = None,
    **more: Any,
) -> Path:
    """Write ``table`` as Spark would, except for INT96, of which ``write_int96`` makes a file; ``said``: instead of
    Spark's key-value metadata."""
    if said is None:
        said = {"org.apache.spark.version": "4.1.0"}
        said |= {"org.apache.spark.legacyDateTime": "", "org.apache.spark.legacyINT96": ""} if legacy else {}
        said |= {} if zone is None else {"org.apache.spark.timeZone": zone}
    options: dict[str, Any] = {
        "row_group_size": 350,
        "max_rows_per_page": 50,
        "write_page_index": True,
        "bloom_filter_options": {name: {"ndv": 50, "fpp": 0.01} for name in ("d", "t") if name in table.column_names},
    }
    rows = options.pop("row_group_size")
    with pq.ParquetWriter(path, table.schema, **{**options, **more}) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata(said)
    return path


def session(mode: Literal["rebase", "refuse", "ignore"] = "rebase") -> Session:
    return Session(read=ReadOptions(legacy_calendar=mode, int96_unit="us"))


@pytest.mark.parametrize("more", [{}, {"use_dictionary": False}, {"store_schema": False}, {"write_page_index": False}])
async def test_rows_are_those_that_spark_reads(tmp_path: Path, more: dict[str, Any]) -> None:
    stored, expected = stored_and_read()
    stored, expected = stored.drop("i"), expected.drop("i")
    path = str(write(tmp_path / "f.parquet", stored, **more))
    async with session() as rebasing, session("ignore") as ignoring:
        file = await rebasing.open_file(path)
        assert (await file.read()).to_pydict() == expected.to_pydict()
        rows = [3, 500, 999]
        assert (await file.take(rows)).to_pydict() == expected.take(rows).to_pydict()
        assert (await file.read(["s.d", "l"], "id > 990"))["l"].to_pylist() == expected["l"].to_pylist()[991:]
        assert (await (await ignoring.open_file(path)).read())["t"].equals(stored["t"])


async def test_int96(tmp_path: Path) -> None:
    """Spark before 3.1 wrote INT96 in the old calendar without a word on it."""
    stored, expected = stored_and_read()
    clocks = stored.select(["i"])
    for name, version, table in (("old", "3.0.3", expected), ("new", "3.1.0", stored)):
        path = tmp_path / f"{name}.parquet"
        said = {"org.apache.spark.version": version, "org.apache.spark.timeZone": ZONE}
        pq.write_table(clocks.replace_schema_metadata(said), path, use_deprecated_int96_timestamps=True)
        async with session() as reading:
            file = await reading.open_file(str(path))
            assert (await file.read())["i"].equals(table["i"])
            for moment in (dt.datetime(1582, 10, 4, 23, 52, 57, 7), dt.datetime(1883, 11, 18, 19, 52, 57, 7)):
                assert await file.count(col("i") == moment) == pc.sum(pc.equal(table["i"], moment)).as_py()


def matching(table: pa.Table, name: str, compare: Callable[[Any, Any], Any], value: Any) -> pa.Table:
    return table.filter(compare(pc.field(name), pa.scalar(value, table.schema.field(name).type)))


def literals() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for stored, day in DAYS:
        raw = dt.date(1970, 1, 1) + dt.timedelta(days=max(stored, -719_162))
        found += [("d", raw), ("d", day), ("d", day + dt.timedelta(days=1))]
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for stored, second in SECONDS:
        for number in {max(stored, -62_135_596_800), second, second + 1}:
            found.append(("t", start + dt.timedelta(seconds=number, microseconds=7)))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("bloom_filters", ["always", "never"])
@pytest.mark.parametrize("zone", [ZONE, None])
async def test_predicates(tmp_path: Path, bloom_filters: Literal["always", "never"], zone: str | None) -> None:
    """By bounds of files, row groups and pages, and by Bloom filters. Without a zone, dates are read all the same."""
    stored, expected = stored_and_read()
    write(tmp_path / "old.parquet", stored, zone=zone)
    write(tmp_path / "new.parquet", expected.set_column(0, "id", pc.add(expected["id"], 10_000)), legacy=False)
    both = pa.concat_tables([expected, expected.set_column(0, "id", pc.add(expected["id"], 10_000))])
    requests = asyncpq.RequestOptions(bloom_filters=bloom_filters, late_materialization="always")
    async with Session(requests=requests) as reading:
        file, dataset = (
            await reading.open_file(str(tmp_path / "old.parquet")),
            await reading.open_dataset(str(tmp_path)),
        )
        for name, value in literals():
            if zone is None and name == "t":
                continue
            for compare in OPERATORS:
                where, wanted = compare(col(name), value), matching(both, name, compare, value)
                assert await dataset.count(where) == wanted.num_rows, str(where)
                rows = sorted((await file.read(["id"], where))["id"].to_pylist())
                assert rows == [row for row in wanted["id"].to_pylist() if row < 10_000], str(where)
        assert await file.count("d = DATE '1500-03-01'") == matching(expected, "d", operator.eq, DAYS[2][1]).num_rows


async def test_old_rows_are_ruled_out_by_bounds(tmp_path: Path) -> None:
    """A lookup of an old day reads no more pages than in a file of today's calendar."""
    stored, expected = stored_and_read()
    counts: list[tuple[int | None, int | None]] = []
    for name, table, legacy in (("old", stored, True), ("new", expected, False)):
        path = write(tmp_path / f"{name}.parquet", table, legacy=legacy)
        async with Session() as reading:
            plan = await (await reading.open_file(str(path))).plan(["id"], "d = DATE '1500-02-20'")
            counts.append((plan.pruning.pages_kept, plan.pruning.rows_kept))
    assert counts[0] == counts[1]
    assert (counts[0][1] or 1_000) < 300


async def test_modes(tmp_path: Path) -> None:
    stored, expected = stored_and_read()
    path = str(write(tmp_path / "f.parquet", stored, zone=None))
    async with session("refuse") as refusing, session() as rebasing:
        file = await refusing.open_file(path)
        with pytest.raises(UnsupportedFeatureError, match="dates before 1582-10-15") as raised:
            await file.read(["d"])
        assert 'legacy_calendar="rebase"' in (raised.value.hint or "")
        assert (await file.read(["id", "naive"])).equals(expected.select(["id", "naive"]))
        new = await file.read(["d"], "d >= DATE '1583-01-01'")
        assert new.equals(expected.select(["d"]).filter(pc.field("d") >= dt.date(1583, 1, 1)))
        file = await rebasing.open_file(path)
        assert (await file.read(["d"])).equals(expected.select(["d"]))
        with pytest.raises(UnsupportedFeatureError, match="does not name the time zone") as raised:
            await file.read(["t"])
        assert raised.value.column == "t"
        assert raised.value.url == path
        since = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        assert (await file.read(["t"], col("t") > since)).num_rows == expected.filter(pc.field("t") > since).num_rows
    with pytest.raises(asyncpq.InvalidOptionError, match="legacy_calendar"):
        ReadOptions(legacy_calendar="julian")  # type: ignore[arg-type]


async def test_sessions_with_other_forms_of_values_share_a_memory_cache(tmp_path: Path) -> None:
    stored, _ = stored_and_read()
    clocks = pa.array([dt.datetime(2020, 1, 1)] * len(stored), NAIVE)
    table = pa.table({"d": stored["d"], "int96": clocks})
    path = str(write(tmp_path / "f.parquet", table, use_deprecated_int96_timestamps=True))

    async def answer(cache: asyncpq.MemoryCache, read: ReadOptions) -> tuple[Any, ...]:
        answers: list[Any] = []
        async with Session(memory_cache=cache, read=read) as reader:
            file, dataset = await reader.open_file(path), await reader.open_dataset([path])
            for where in (None, col("d") < dt.date(1500, 2, 25), col("d") == dt.date(1500, 2, 20)):
                try:
                    answers += [await file.read(where=where), await dataset.count(where=where)]
                except UnsupportedFeatureError as error:
                    answers.append(str(error))
            assert reader.memory_cache is cache
        return tuple(answers)

    modes: list[Literal["rebase", "refuse", "ignore"]] = ["rebase", "refuse", "ignore"]
    forms = [*[ReadOptions(legacy_calendar=mode) for mode in modes], ReadOptions(int96_unit="us")]
    alone = [await answer(asyncpq.MemoryCache(1 << 24), read) for read in forms]
    assert all(first != second for first, second in itertools.combinations(alone, 2))
    for first in forms:
        cache = asyncpq.MemoryCache(1 << 24)
        await answer(cache, first)
        for read, expected in zip(forms, alone, strict=True):
            assert await answer(cache, read) == expected


async def test_rows_that_are_written_again_are_not_rebased_twice(tmp_path: Path) -> None:
    stored, expected = (table.drop("i") for table in stored_and_read())
    path, copy = write(tmp_path / "f.parquet", stored), tmp_path / "copy.parquet"
    async with session() as reading, session("ignore") as ignoring:
        table = await (await reading.open_file(str(path))).read()
        assert not table.schema.metadata
        pq.write_table(table, copy)
        assert (await (await reading.open_file(str(copy))).read()).equals(expected)
        kept = await (await ignoring.open_file(str(path))).read()
        assert b"org.apache.spark.legacyDateTime" in kept.schema.metadata
        await reading.optimize(str(path), str(tmp_path / "out"), sort_by=["t"])
        rewritten = await (await reading.open_dataset(str(tmp_path / "out"))).read()
        assert rewritten.sort_by("id").equals(expected)


async def test_days_of_hive(tmp_path: Path) -> None:
    """Hive 4 says so of days, and writes timestamps without a zone, which stay as they are."""
    stored, expected = (table.select(["id", "d", "naive"]) for table in stored_and_read())
    for proleptic, table in (("false", expected), ("true", stored)):
        path = write(tmp_path / f"{proleptic}.parquet", stored, said={"writer.date.proleptic": proleptic})
        async with session() as reading, session("refuse") as refusing:
            file = await reading.open_file(str(path))
            assert (await file.read()).equals(table)
            for compare, (name, value) in itertools.product(OPERATORS, literals()):
                if name == "d":
                    wanted = matching(table, name, compare, value).num_rows
                    assert await file.count(compare(col(name), value)) == wanted, (proleptic, value)
            assert (await file.inspect())["legacy_calendar"] == (["d"] if proleptic == "false" else [])
            if proleptic == "false":
                with pytest.raises(UnsupportedFeatureError, match="old Spark versions, and of Hive"):
                    await (await refusing.open_file(str(path))).read(["d"])
                await reading.optimize(str(path), str(tmp_path / "out"), sort_by=["id"])
                rewritten = await (await reading.open_dataset(str(tmp_path / "out"))).read()
                assert rewritten.sort_by("id").equals(expected)


@pytest.mark.heavy
@pytest.mark.parametrize("built", ["rebase", "ignore"])
async def test_indexes(tmp_path: Path, built: Literal["rebase", "ignore"]) -> None:
    """An index may have been built when the values were read as they are stored."""
    stored, expected = stored_and_read(400)
    lake = tmp_path / "lake"
    lake.mkdir()
    write(lake / "a.parquet", stored.slice(0, 200), write_page_index=False)
    write(lake / "b.parquet", stored.slice(200), write_page_index=False)
    async with session(built) as building:
        kinds = [Keys("d"), Keys("t"), Keys("d", "id"), Bounds("d"), Bounds("t"), Pages()]
        await building.build_index(str(lake), kinds, at=str(tmp_path / "index"))
    async with session() as reading:
        dataset = await reading.open_dataset(str(lake), index=str(tmp_path / "index"))
        for name, value in literals():
            for compare in OPERATORS:
                wanted = matching(expected, name, compare, value).num_rows
                assert await dataset.count(compare(col(name), value)) == wanted, (name, compare, value)


@pytest.mark.heavy
async def test_tables(tmp_path: Path) -> None:
    """Their bounds are in either calendar: Spark's of Delta in today's, those of files that were added as stored."""
    stored, expected = (table.select(["id", "d", "t"]) for table in stored_and_read(400, first=1))
    delta = tmp_path / "delta"
    delta.mkdir()
    write(delta / "a.parquet", stored.slice(0, 200))
    write(delta / "b.parquet", stored.slice(200))
    convert_to_deltalake(str(delta))
    iceberg = make_table(tmp_path / "iceberg", stored.schema)
    iceberg.add_files([str(delta / "a.parquet"), str(delta / "b.parquet")])
    async with session() as reading:
        for table, options in ((str(delta), {"format": "delta"}), (iceberg, {})):
            dataset = await reading.open_dataset(table, **options)  # type: ignore[arg-type]
            assert (await dataset.read()).sort_by("id").to_pydict() == expected.to_pydict()
            for name, value in literals():
                for compare in OPERATORS:
                    wanted = matching(expected, name, compare, value).num_rows
                    assert await dataset.count(compare(col(name), value)) == wanted, (name, compare, value)


async def test_reports_name_such_files(tmp_path: Path) -> None:
    stored, _ = stored_and_read()
    path = str(write(tmp_path / "f.parquet", stored))
    new = str(write(tmp_path / "new.parquet", stored, legacy=False))
    for mode in ("rebase", "ignore"):
        async with session(mode) as reading:
            file = await reading.open_file(path)
            document = await file.inspect()
            assert document["legacy_calendar"] == ["d", "t", "s.d", "s.t", "l.list.element.d", "l.list.element.t"]
            bounds = document["row_groups"][0]["chunks"][1]["min"]
            assert bounds == ("0001-01-01" if mode == "rebase" else "-719164")  # before the year 1
            (cause,) = [cause for cause in (await file.lint(["id"]))["findings"] if cause["id"] == "legacy-calendar"]
            assert "d, t" in cause["detail"]
            other = await reading.open_file(new)
            assert (await other.inspect())["legacy_calendar"] == []
            assert "legacy-calendar" not in [cause["id"] for cause in (await other.lint(["id"]))["findings"]]
