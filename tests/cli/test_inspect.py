"""``asyncpq inspect`` of files, lakes and tables."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.commands import app
from asyncpq.reports.documents import DatasetInspection, Inspection
from localstack.seed import seed
from tests.cli.snapshots import check_snapshot
from tests.iceberg_tables import make_table
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import DATA

pytestmark = pytest.mark.sampled(2)

WRITERS = [
    "alltypes_plain.parquet",
    "data_index_bloom_encoding_stats.parquet",
    "delta_byte_array.parquet",
    "nested_maps.snappy.parquet",
    "fixed_length_byte_array.parquet",
    "encrypt_columns_plaintext_footer.parquet.encrypted",
    "byte_stream_split.zstd.parquet",
]


def run(*arguments: object, width: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["inspect", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def trips() -> pa.Table:
    chosen = random.Random(3)
    return pa.table(
        {
            "id": pa.array(range(6000), pa.int64()),
            "user": [f"user-{chosen.randrange(900):04}" for _ in range(6000)],
            "tags": [["a", "b"][: row % 3] for row in range(6000)],
            "place": [{"lat": row / 100, "name": f"place number {row}"} for row in range(6000)],
        },
        schema=pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("user", pa.string()),
                pa.field("tags", pa.list_(pa.string())),
                pa.field("place", pa.struct({"lat": pa.float64(), "name": pa.string()})),
            ]
        ),
    )


@functools.cache
def data() -> bytes:
    return parquet_bytes(
        trips(),
        row_group_size=2000,
        max_rows_per_page=500,
        write_page_index=True,
        bloom_filter_options={"user": {"ndv": 900, "fpp": 0.01}},
        compression="zstd",
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that outputs do not depend on the length of its name


@pytest.fixture
def file() -> Path:
    path = Path("trips.parquet")
    path.write_bytes(data())
    return path


def lake(folder: Path, files: int) -> Path:
    rows = trips()
    for number in range(files):
        part = folder / f"day={number % 7}"
        part.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.slice(number % 500 * 10, 10), part / f"{number:03}.parquet")
    return folder


@pytest.mark.parametrize("width", [80, 160])
def test_a_file(file: Path, width: int) -> None:
    output = run(file, width=width)
    assert max(map(len, output.splitlines()[1:])) <= width  # the url stays in one line, to be copied
    check_snapshot(f"inspect-file-{width}.txt", output)


def test_the_pages_of_a_column(file: Path) -> None:
    check_snapshot("inspect-pages.txt", run(file, "--pages", "user"))


def test_the_document_of_a_file(file: Path) -> None:
    output = run(file, "--format", "json", "--pages", "id")
    document = json.loads(output)
    msgspec.convert(document, Inspection, strict=True)
    with asyncpq.blocking.open_file(file) as opened:
        assert document == opened.inspect(page_bounds=["id"])
    document["row_groups"] = document["row_groups"][:1]
    text = json.dumps(document, indent=1).replace("\n     ", " ")
    check_snapshot("inspect-file.json", text)


def test_the_largest_column_first(file: Path) -> None:
    table = run(file, "--sort", "size").partition("Columns, the largest first")[2].splitlines()
    assert table[3].startswith("place.lat")


def test_without_pages(file: Path) -> None:
    assert "page indexes     all columns" in run(file, "--no-pages")
    columns = json.loads(run(file, "--no-pages", "--format", "json"))["columns"]
    assert {column["pages"] for column in columns} == {None}


@pytest.mark.skipif(not DATA.is_dir(), reason="the corpus is not there")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("width", [80, 160])
def test_files_of_many_writers(name: str, width: int) -> None:
    output = run(DATA / name, width=width)
    assert max(map(len, output.splitlines()[1:])) <= width  # the url stays in one line, to be copied
    assert "written by" in output


def test_a_lake_of_500_files() -> None:
    output = run(lake(Path("lake"), 500), width=160)
    check_snapshot("inspect-lake.txt", output)
    assert len(run("lake", "--all").splitlines()) > 500
    document = json.loads(run("lake", "--format", "json"))
    assert len(msgspec.convert(document, DatasetInspection, strict=True)["files"]) == 500


def test_a_pattern(tmp_path: Path) -> None:
    lake(tmp_path, 14)
    assert "2 files" in run(f"{tmp_path}/day=3/*.parquet")


def test_a_delta_table(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, trips().select(["id", "user"]))
    output = run(tmp_path)
    assert "table: Delta table" in output
    assert "1 file, " in output
    assert "6,000 rows" in output


def test_an_iceberg_table(tmp_path: Path) -> None:
    rows = pa.table({"id": range(100)})
    table = make_table(tmp_path, rows.schema)
    table.append(rows)
    output = run(table.metadata_location.removeprefix("file://"))
    assert "table: Iceberg table" in output
    assert "100 rows" in output


async def test_an_object_store(localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"lake/a.parquet": data(), "lake/b.parquet": data()})
    shared = ["--endpoint-url", localstack]
    runner = CliRunner(env={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    for url, text in [(f"s3://{bucket}/lake/a.parquet", "6,000 rows"), (f"s3://{bucket}/lake/", "2 files")]:
        done = await asyncio.to_thread(runner.invoke, app, ["inspect", url, *shared])
        assert done.exit_code == 0, done.output
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["FOLDER/missing.parquet"], 3, "no such file"),
        (["FOLDER/trips.parquet", "--pages", "nothing"], 2, "no such column"),
        (["FOLDER", "--pages", "id"], 2, "--pages lists the pages of one file"),
        (["FOLDER/text.parquet"], 1, "not a Parquet file"),
        ([], 2, "missing argument"),
    ],
)
def test_errors_are_one_line(file: Path, arguments: list[str], code: int, says: str) -> None:
    named = [argument.replace("FOLDER", str(file.parent)) for argument in arguments]
    if "text.parquet" in " ".join(named):
        (file.parent / "text.parquet").write_text("not parquet, but long enough for a footer")
    done = CliRunner().invoke(app, ["inspect", *named])
    assert done.exit_code == code
    assert says in done.stderr
    assert done.stdout == ""
