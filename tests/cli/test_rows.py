"""Rows are written in every format as they are read, to files that are whole or absent."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from asyncpq.cli.rows import Output, RowFormat, chosen_format, row_writer
from asyncpq.errors import InvalidOptionError

TABLE = pa.table(
    {"id": [1, 2, 3], "name": ["a", None, 'it\'s, "b"'], "raw": [b"\xff", b"", None], "tags": [["x"], [], None]}
)
LINES = [
    {"id": 1, "name": "a", "raw": "0xff", "tags": ["x"]},
    {"id": 2, "name": None, "raw": "0x", "tags": []},
    {"id": 3, "name": 'it\'s, "b"', "raw": None, "tags": None},
]


def write(format_: RowFormat, path: Path, table: pa.Table = TABLE) -> bytes:
    with row_writer(format_, str(path), "url", table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write(batch)
    assert os.listdir(path.parent) == [path.name]
    return path.read_bytes()


def test_every_format_holds_the_rows(tmp_path: Path) -> None:
    assert [json.loads(line) for line in write(RowFormat.NDJSON, tmp_path / "a").splitlines()] == LINES
    document = json.loads(write(RowFormat.JSON, tmp_path / "a"))
    assert document["rows"] == LINES
    assert document["columns"][3] == {"name": "tags", "arrow_type": "list<item: string>"}
    assert pa.ipc.open_file(write(RowFormat.ARROW, tmp_path / "a")).read_all() == TABLE
    assert pq.read_table(io.BytesIO(write(RowFormat.PARQUET, tmp_path / "a"))) == TABLE
    text = write(RowFormat.CSV, tmp_path / "a")
    assert text.decode() == ('"id","name","raw","tags"\n1,"a","0xff","[""x""]"\n2,,"0x","[]"\n3,"it\'s, ""b""",,\n')
    read = pa.csv.read_csv(io.BytesIO(text), convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    assert read.column("id").to_pylist() == [1, 2, 3]


def test_floats_in_csv_keep_their_sign(tmp_path: Path) -> None:
    """docs/cli.md ("Values") says how they are written."""
    values = pa.table({"x": [0.0, -0.0, 1.0, 0.1, math.nan, -math.inf]})
    assert write(RowFormat.CSV, tmp_path / "a", values).split() == [b'"x"', b"0", b"-0", b"1", b"0.1", b"nan", b"-inf"]


@pytest.mark.parametrize("format_", [one for one in RowFormat if one is not RowFormat.TABLE])
def test_no_rows_are_a_whole_output_too(tmp_path: Path, format_: RowFormat) -> None:
    write(format_, tmp_path / "a", TABLE.slice(0, 0))
    if format_ is RowFormat.JSON:
        assert json.loads((tmp_path / "a").read_bytes())["rows"] == []


@pytest.mark.parametrize("format_", [one for one in RowFormat if one is not RowFormat.TABLE])
def test_a_failure_leaves_nothing_half_written(tmp_path: Path, format_: RowFormat) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    def fail() -> None:
        with row_writer(format_, str(path), "url", TABLE.schema) as writer:
            writer.write(TABLE.to_batches()[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_columns_that_a_format_cannot_hold(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.month_day_nano_interval()})
    with (
        pytest.raises(InvalidOptionError, match="parquet cannot hold these columns"),
        row_writer(RowFormat.PARQUET, str(tmp_path / "a"), "url", schema),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_device_is_written_to_and_never_replaced() -> None:
    with row_writer(RowFormat.NDJSON, os.devnull, "url", TABLE.schema) as writer:
        writer.write(TABLE.to_batches()[0])
    assert not os.path.isfile(os.devnull)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with row_writer(RowFormat.NDJSON, str(tmp_path / "link"), "url", TABLE.schema) as writer:
        writer.write(TABLE.to_batches()[0])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text().startswith('{"id": 1')


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_format_depends_on_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_format(Output(None, "x.PARQUET")) is RowFormat.PARQUET
    assert chosen_format(Output(RowFormat.CSV, "x.parquet")) is RowFormat.CSV
    assert chosen_format(Output(None, None)) is RowFormat.NDJSON
    assert chosen_format(Output(RowFormat.ARROW, None)) is RowFormat.ARROW
    with pytest.raises(InvalidOptionError, match="does not imply a format"):
        chosen_format(Output(None, "x.txt"))
    with pytest.raises(InvalidOptionError, match="cannot be written to a file"):
        chosen_format(Output(RowFormat.TABLE, "x.txt"))
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert chosen_format(Output(None, None)) is RowFormat.TABLE
    assert chosen_format(Output(RowFormat.JSON, None)) is RowFormat.JSON
    with pytest.raises(InvalidOptionError, match="is binary"):
        chosen_format(Output(RowFormat.PARQUET, None))


def test_a_table_shows_the_first_rows_and_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = pa.table({f"column {number}": [f"{row}\x1b[31m" for row in range(5)] for number in range(20)})
    with row_writer(RowFormat.TABLE, None, "url", table.schema, shown=3, total=5) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write(batch)
    printed = capsys.readouterr().out
    assert "3 rows; 2 more rows" in printed
    assert "13 more columns" in printed
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 60


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100_000)}), tmp_path / "a.parquet")
    arguments = ["asyncpq", "query", str(tmp_path / "a.parquet")]
    for command, what in (
        (["bash", "-c", f"{sys.executable} -m {' '.join(arguments)} > /dev/full"], "to stdout"),
        ([sys.executable, "-m", *arguments, "-o", "/dev/full", "--format", "csv"], "/dev/full"),
        (["bash", "-c", f"ulimit -f 100; {sys.executable} -m {' '.join(arguments)} -o {tmp_path}/o.csv"], "o.csv"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("asyncpq: cannot write ")
        assert what in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize(
    "url",
    ["{}/lake/a.parquet", "{}/lake/", "{}/lake", "file://{}/lake", "FILE://{}/lake/", "{}/*/?.parquet", "{}/link"],
)
def test_a_file_that_is_read_is_not_replaced(tmp_path: Path, url: str) -> None:
    (tmp_path / "lake").mkdir()
    path = tmp_path / "lake" / "a.parquet"
    pq.write_table(TABLE, path)
    (tmp_path / "link").symlink_to(path)
    refused = pytest.raises(InvalidOptionError, match="is one of the files that are read")
    with refused, row_writer(RowFormat.CSV, str(path), url.format(tmp_path), TABLE.schema):
        pass
    assert pq.read_table(path) == TABLE
    for other in (tmp_path / "lake" / "a.csv", tmp_path / "b.parquet"):
        with row_writer(RowFormat.CSV, str(other), url.format(tmp_path), TABLE.schema) as writer:
            writer.write(TABLE.to_batches()[0])


def test_what_stands_beside_the_read_files_is_replaced(tmp_path: Path) -> None:
    for url in (f"{tmp_path}/lake", "s3://bucket/lake/", "ducklake:lake.db#trips"):
        pq.write_table(TABLE.slice(1), tmp_path / "a.parquet")
        with row_writer(RowFormat.PARQUET, str(tmp_path / "a.parquet"), url, TABLE.schema) as writer:
            writer.write(TABLE.to_batches()[0])
        assert pq.read_table(tmp_path / "a.parquet") == TABLE
