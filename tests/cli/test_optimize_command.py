"""``asyncpq optimize``: rows sorted into new files, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from asyncpq.cli.commands import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        ids = [identity * 7919 % 1009 for identity in range(number * 100, number * 100 + 100)]
        pq.write_table(pa.table({"id": ids, "x": ids}), folder / f"{number}.parquet")
    return folder


def test_files_are_rewritten_in_order(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "fast"
    done = run("optimize", f"{lake}/", target, "--sort-by", "id", "--where", "id < 500", "--columns", "id",
               "--bloom", "id", "--page-rows", "10", "--compression", "snappy", "--format", "json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    (path,) = document["files"]
    table = pq.read_table(target / path)
    expected = sorted(value for value in pq.read_table(lake)["id"].to_pylist() if value < 500)
    assert table.column_names == ["id"]
    assert table["id"].to_pylist() == expected
    assert document["rows"] == len(expected)
    chunk = pq.read_metadata(target / path).row_group(0).column(0)
    assert (chunk.compression, chunk.bloom_filter_offset is not None) == ("SNAPPY", True)


def test_a_wrong_column_is_told_by_its_option(lake: Path, tmp_path: Path) -> None:
    done = run("optimize", f"{lake}/", tmp_path / "fast", "--sort-by", "id", "--bloom", "idd")
    assert done.exit_code == 2
    assert "--bloom: there is no such leaf column in the files; column 'idd'. Did you mean 'id'?" in done.stderr


@pytest.mark.heavy
def test_processes_rewrite_as_one_does(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "fast"
    done = run("optimize", f"{lake}/", target, "--sort-by", "id", "--workers", "2", "--format", "json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    tables = [pq.read_table(target / path) for path in document["files"]]
    assert pa.concat_tables(tables).equals(pq.read_table(lake).sort_by("id"))
    assert "read and sort" in document["seconds"]  # a step of several processes


def test_what_it_prints(lake: Path, tmp_path: Path) -> None:
    done = run("optimize", f"{lake}/", tmp_path / "fast", "--sort-by", "id")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["300", "rows", "at", *f"{tmp_path / 'fast'}/".split()]
    assert [line[0] for line in lines[1:]] == ["files", "bytes", "verified", "seconds"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Add --sort-by COLUMNS or --zorder-by COLUMNS."),
        (["--sort-by", "ic"], 2, "--sort-by names a column that is not among the written columns; column 'ic'. Its"),
        (["--sort-by", "id", "--compression", "zip"], 2, "compression='zip'"),
        (["--sort-by", "id", "--page-rows", "0"], 2, "--page-rows"),
        (["--sort-by", "id", "--publish", "later"], 2, "publish"),
        (["--sort-by", "id", "--workers", "0"], 2, "--workers"),
        (["--sort-by", "id", "--where", "id <"], 2, "id <"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_writes_nothing(lake: Path, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = run("optimize", f"{lake}/", tmp_path / "fast", *arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert not (tmp_path / "fast").exists()
