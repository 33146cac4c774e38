"""``asyncpq query``, ``lookup``, ``take`` and ``count`` of files, lakes, tables and object stores."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli import arguments, reads
from asyncpq.cli.commands import app
from asyncpq.reports import progress
from asyncpq.reports.documents import Count, Rows
from localstack.seed import seed
from tests.cli.snapshots import check_snapshot
from tests.iceberg_tables import make_table
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import DATA, requires_corpus

pytestmark = pytest.mark.sampled(2)

TRIPS = pa.table(
    {
        "id": pa.array(range(3000), pa.int64()),
        "user": pa.array([f"user-{row * 7919 % 900:04}" for row in range(3000)]),
        "price": pa.array([Decimal(row) for row in range(3000)], pa.decimal128(12, 2)),
        "at": pa.array(range(3000), pa.int64()).cast(pa.timestamp("s", "UTC")),
        "place": [{"lat": row / 4, "name": None if row % 3 else f"p{row}"} for row in range(3000)],
    }
)


def data(table: pa.Table = TRIPS) -> bytes:
    return parquet_bytes(table, row_group_size=1000, max_rows_per_page=100, write_page_index=True)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trips.parquet").write_bytes(data())
    Path("lake").mkdir()
    for part in range(3):
        Path(f"lake/{part}.parquet").write_bytes(data(TRIPS.slice(part * 1000, 1000)))


def invoke(*arguments: object, code: int = 0) -> Any:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done


def rows(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in invoke(*arguments).stdout.splitlines()]


@pytest.mark.parametrize("url", ["trips.parquet", "lake", "lake/", "lake/*.parquet"])
def test_the_verbs_give_the_rows(url: str) -> None:
    where = "user = 'user-0007' AND price < 2000.5"
    matching = TRIPS.filter((pc.field("user") == "user-0007") & (pc.field("id") <= 2000))
    ids = matching.column("id").to_pylist()
    assert ids
    assert [row["id"] for row in rows("query", url, "--where", where)] == ids
    assert rows("query", url, "--columns", "id, user", "--limit", "2", "--where", where) == [
        {"id": row, "user": "user-0007"} for row in ids[:2]
    ]
    assert invoke("count", url, "--where", where).stdout == f"{len(ids)}\n"
    assert invoke("count", url).stdout == "3000\n"
    found = rows("lookup", url, "--key", "id=17", "--key", "id=2999", "--key", "id=-1")
    assert [row["id"] for row in found] == [17, 2999]
    assert found[0]["place"] == {"lat": 4.25, "name": None}
    assert rows("lookup", url, "--key", "price=17.00", "--key", "user=user-0523", "--columns", "id") == [{"id": 17}]


def test_a_key_of_a_field_beside_a_struct_of_the_beginning_of_its_path() -> None:
    structs = {"st.a": [{"x": row} for row in range(6)], "st": [{"a.b": row} for row in range(6)]}
    Path("beside").mkdir()
    pq.write_table(pa.table({"id": range(6), **structs}), "beside/a.parquet")
    for url in ("beside/a.parquet", "beside"):
        assert rows("lookup", url, "--key", "st.a.b=4", "--columns", "id") == [{"id": 4}]


def test_take_gives_rows_by_number() -> None:
    assert rows("take", "trips.parquet", "2999", "17", "17", "--columns", "id") == [
        {"id": 2999},
        {"id": 17},
        {"id": 17},
    ]


def test_snapshots_of_the_outputs() -> None:
    options = ["--where", "id IN (3, 4) OR id = 2998"]
    for name in ("table", "json", "ndjson", "csv"):
        check_snapshot(f"query-{name}.txt", invoke("query", "trips.parquet", *options, "--format", name).stdout)
    check_snapshot(
        "query-more.txt", invoke("query", "trips.parquet", "--columns", "id,user", "--format", "table").stdout
    )
    check_snapshot("lookup-table.txt", invoke("lookup", "lake", "--key", "id=5", "--format", "table").stdout)
    check_snapshot("take-table.txt", invoke("take", "trips.parquet", 1, 0, "--format", "table").stdout)
    check_snapshot("count.json", invoke("count", "lake", "--where", "id > 5", "--format", "json").stdout)


def test_documents_have_their_shape() -> None:
    msgspec.convert(json.loads(invoke("query", "lake", "--format", "json", "--limit", "3").stdout), Rows, strict=True)
    msgspec.convert(json.loads(invoke("count", "lake", "--format", "json").stdout), Count, strict=True)


def test_a_table_reads_no_more_rows_than_it_shows() -> None:
    done = invoke("query", "lake", "--format", "table", "--stats")
    assert "40 rows; more follow" in done.stdout
    assert "files 1 read" in done.stderr
    assert "3,000" not in done.stdout
    assert "40 rows; 2,960 more rows" in invoke("query", "trips.parquet", "--format", "table").stdout
    few = invoke("query", "trips.parquet", "--format", "table", "--limit", "3").stdout
    assert "3 rows" in few
    assert "more" not in few


@pytest.mark.parametrize("ending", ["csv", "json", "ndjson", "arrow", "parquet"])
def test_files_are_written(ending: str) -> None:
    out = f"out.{ending}"
    done = invoke("query", "lake", "--where", "id < 1500", "-o", out)
    assert done.stdout == ""
    assert os.path.getsize(out) > 1000
    if ending == "parquet":
        assert pq.read_table(out, columns=["id", "user"]) == TRIPS.slice(0, 1500).select(["id", "user"])


@pytest.mark.parametrize("ending", ["arrow", "feather"])
def test_dictionaries_that_differ_from_row_group_to_row_group(ending: str) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    table = pa.table({"id": range(300), "word": pa.array([f"w{at // 50}" for at in range(300)]).cast(kind)})
    pq.write_table(table, "words.parquet", row_group_size=100)
    invoke("query", "words.parquet", "--where", "id <> 5", "-o", f"out.{ending}")
    found = pa.ipc.open_file(f"out.{ending}").read_all()
    assert found.schema == table.schema
    assert found.to_pylist() == [row for row in table.to_pylist() if row["id"] != 5]


def test_tables(tmp_path: Path) -> None:
    deltalake.write_deltalake("delta", TRIPS.select(["id", "user"]))
    table = make_table(tmp_path, TRIPS.select(["id", "user"]).schema)
    table.append(TRIPS.select(["id", "user"]))
    for url in ("delta", table.metadata_location):
        assert rows("lookup", url, "--key", "id=17") == [{"id": 17, "user": "user-0523"}]
        assert invoke("count", url, "--where", "id >= 2000").stdout == "1000\n"


async def test_an_object_store(localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"lake/a.parquet": data(), "lake/b.parquet": data()})
    runner = CliRunner(env={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    shared = ["--endpoint-url", localstack, "--region", "us-east-1"]

    def run(*arguments: str) -> Any:
        return runner.invoke(app, [*arguments, *shared])

    def all_commands() -> None:
        for url, copies in ((f"s3://{bucket}/lake/", 2), (f"s3://{bucket}/lake/a.parquet", 1)):
            assert run("count", url).stdout == f"{3000 * copies}\n"
            found = run("lookup", url, "--key", "id=17", "--columns", "user").stdout
            assert found == '{"user": "user-0523"}\n' * copies
            assert run("query", url, "--where", "id = 5", "--columns", "id").stdout == '{"id": 5}\n' * copies
        assert run("count", f"s3://{bucket}/nothing.parquet").exit_code == 3
        assert run("count", f"s3://{bucket}-none/x.parquet").exit_code == 3

    await asyncio.to_thread(all_commands)


BAD: list[tuple[list[str], int, str]] = [
    (["query", "missing.parquet"], 3, "missing.parquet"),
    (["query", "missing/"], 3, "missing"),
    (["query", "text.txt"], 1, "not a Parquet file"),
    (["query", "trips.parquet", "--where", "id ="], 2, "syntax error"),
    (["query", "trips.parquet", "--where", "length(user) = 1"], 2, "neither a column nor a literal"),
    (["query", "trips.parquet", "--where", "idd = 1"], 2, "Did you mean 'id'?"),
    (["query", "trips.parquet", "--where", "user = 5"], 2, "in SQL text in quotes"),
    (["query", "trips.parquet", "--where", 'user = "u7"'], 2, "text stands in single quotes: 'u7'"),
    (["count", "trips.parquet", "--where", "at > 5"], 2, "in SQL TIMESTAMP WITH TIME ZONE '...'"),
    (["count", "trips.parquet", "--where", "at > TIMESTAMP '2024-01-01'"], 2, "in SQL an offset"),
    (["query", "trips.parquet", "--columns", "nope"], 2, "nope"),
    (["query", "trips.parquet", "--limit", "-1"], 2, "--limit"),
    (["query", "trips.parquet", "--limit", "x"], 2, "--limit"),
    (["query", "trips.parquet", "--format", "xml"], 2, "xml"),
    (["query", "trips.parquet", "-o", "out.xml"], 2, "does not imply a format"),
    (["query", "trips.parquet", "-o", "no/such/folder/out.csv"], 1, "no/such/folder"),
    (["query", "trips.parquet", "-o", "lake", "--format", "csv"], 1, "lake"),
    (["lookup", "trips.parquet"], 2, "--key"),
    (["lookup", "trips.parquet", "--key", "id"], 2, "NAME=VALUE"),
    (["lookup", "trips.parquet", "--key", "id=x"], 2, "'x' is not a value of type int64"),
    (["lookup", "trips.parquet", "--key", "id==5"], 2, "Write --key id=5."),
    (["lookup", "trips.parquet", "--key", "id=5,6,7"], 2, "Repeat the option for each value: --key id=5 --key id=6"),
    (["lookup", "trips.parquet", "--key", "nope=1"], 2, "nope"),
    (["take", "trips.parquet", "3000"], 2, "row 3,000"),
    (["take", "lake", "0"], 2, "but the url names 3"),
    (["count", "trips.parquet", "--where", "TRUE FALSE"], 2, "SQL"),
    (["count", "nosuch://bucket/key"], 1, "nosuch"),
    (["count"], 2, "URL"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), BAD, ids=[" ".join(one) for one, _, _ in BAD])
def test_bad_input_is_one_clear_line(arguments: list[str], code: int, says: str) -> None:
    Path("text.txt").write_text("no Parquet " * 100)
    before = sorted(map(str, Path(".").rglob("*")))
    done = invoke(*arguments, code=code)
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if "Usage:" not in done.stderr:  # typer's own errors have a frame
        assert done.stderr.startswith("asyncpq: ")
        assert done.stderr.count("\n") == 1
    assert sorted(map(str, Path(".").rglob("*"))) == before


def process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "asyncpq", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.heavy
@pytest.mark.parametrize("format_", ["ndjson", "json", "csv", "arrow", "parquet"])
def test_a_reader_that_leaves_is_no_error(format_: str) -> None:
    big = pa.concat_tables([TRIPS] * 40)
    Path("big.parquet").write_bytes(data(big))
    with process("query", "big.parquet", "--format", format_) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 0


@requires_corpus
def test_rows_of_a_pipe_and_of_sample_files() -> None:
    running = process("query", str(DATA / "alltypes_plain.parquet"), "--limit", "1")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")
    assert len(out.splitlines()) == 1
    json.loads(out)


def test_ctrl_c_ends_with_130_and_leaves_no_file() -> None:
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.parquet"
        with process("query", url, "-o", "out.csv") as running:
            connection, _ = silent.accept()
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
            connection.close()
    assert (running.returncode, out, err) == (130, b"", b"asyncpq: interrupted\n")
    assert sorted(os.listdir()) == ["lake", "trips.parquet"]


def test_long_reads_show_their_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(progress, "_WAIT_S", 0)
    bars = progress.ProgressBars()
    bars._console = Console(file=drawn, force_terminal=True, width=100)
    monkeypatch.setattr(reads, "ProgressBars", lambda: bars)
    small = partial(asyncpq.Session, limits=asyncpq.LimitOptions(unit_bytes=1 << 12, round_bytes=1 << 12))
    monkeypatch.setattr(arguments, "Session", small)
    pq.write_table(pa.table({"id": range(30_000)}), "long.parquet", row_group_size=5_000)  # several units
    assert len(rows("query", "long.parquet")) == 30_000
    assert "30000/30000" in drawn.getvalue()
    bars(asyncpq.Progress("scan", "url", "later", 1, 2, "rows"))
    assert "later" not in drawn.getvalue()


def test_bars_end_before_the_result_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = progress.ProgressBars()
    monkeypatch.setattr(reads, "ProgressBars", lambda: bars)
    closed: list[bool] = []
    monkeypatch.setattr(reads, "write_line", lambda text: closed.append(bars._closed))
    invoke("count", "lake")
    assert closed == [True]
