"""Documents are written as JSON that people can read; tables, facts and costs fit the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.cli.output import console, cost_text, count_text, print_facts, print_table, share_text, write_document
from asyncpq.metrics import ReadMetrics


def test_a_document_is_indented_json_with_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"document": "count", "rows": 1, "url": "Zürich.parquet", "none": None}
    write_document(document)
    written, errors = capsys.readouterr()
    assert json.loads(written) == document
    assert '\n  "url": "Zürich.parquet",\n' in written
    assert written.endswith("}\n")
    assert errors == ""


def test_counts() -> None:
    assert (count_text(1234567), count_text(None)) == ("1,234,567", "?")
    assert (share_text(1, 3), share_text(1, 0)) == ("33.3%", "")


@given(
    st.lists(st.tuples(st.text(max_size=90), st.text(max_size=90), st.integers(0, 10**9)), max_size=5),
    st.integers(50, 200),
)
def test_tables_fit_and_change_no_terminal(rows: list[tuple[str, str, int]], width: int) -> None:
    sink = io.StringIO()
    cells = [[name, text, str(number)] for name, text, number in rows]
    print_table(
        Console(file=sink, width=width), "Title", [("name", "text"), ("value", "text"), ("size", "right")], cells
    )
    lines = sink.getvalue().split("\n")
    assert all(cell_len(line.rstrip()) <= width and (line.isprintable()) for line in lines)
    assert [line.split()[-1] for line in lines[3 : 3 + len(rows)]] == [row[-1] for row in cells]


def test_facts_without_a_value_are_left_out() -> None:
    sink = io.StringIO()
    print_facts(Console(file=sink, width=40), [("one", "[red]\x1b[31m"), ("two", "")])
    assert sink.getvalue() == "one              [red]\\x1b[31m\n"


def test_facts_are_cut_only_where_asked() -> None:
    for cut in False, True:
        sink = io.StringIO()
        print_facts(Console(file=sink, width=40), [("name", "long " * 20)], cut=cut)
        (line,) = sink.getvalue().splitlines()
        assert line.rstrip().endswith("…") is cut
        assert (line.count("long") == 20) is not cut


def test_costs_have_units_and_no_rows_where_none_was_read() -> None:
    metrics = ReadMetrics()
    metrics.requests, metrics.rounds, metrics.bytes_fetched = 2, 1, 3 << 20
    assert cost_text(metrics) == "2 requests in 1 round, 3 MiB; cache hits 0, misses 0"
    metrics.row_groups_read = metrics.row_groups_total = metrics.rows_scanned = 3
    assert cost_text(metrics) == ("2 requests in 1 round, 3 MiB; row groups 3 of 3, pages 0; cache hits 0, misses 0")
    metrics.pages_read = 1
    assert "pages 1, rows 3 seen and 0 returned;" in cost_text(metrics)


@pytest.mark.parametrize("columns", [None, "", "60"])
def test_a_pipe_gets_whole_lines_unless_its_width_is_given(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    long = "x" * 300
    print_facts(console(), [("fact", long)])
    print_table(console(), "Title", [("name", "text"), ("value", "text")], [[long, long]], caption=long)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.count(long) for line in lines) == (0 if columns else 4)
    assert max(map(len, lines)) < 700


def test_commands_write_whole_lines_into_a_pipe(tmp_path: Path) -> None:
    """``lint`` and ``inspect`` with a name, and ``query`` with a value, that no terminal has room for."""
    name, value = "n" * 200, "v" * 500
    path, long = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    pq.write_table(pa.table({name: ["v"] * 10}), path)
    pq.write_table(pa.table({name: [value] * 10}), long)
    run = CliRunner(env={"COLUMNS": None})
    for command in (["inspect", path], ["inspect", path, "--pages", name], ["lint", path, "--column", name]):
        done = run.invoke(app, command)
        assert (done.exit_code, "…" in done.stdout) == (0, False), done.output
        assert name in done.stdout
        assert max(map(len, done.stdout.splitlines())) < 5000
    done = run.invoke(app, ["query", long, "--format", "table"])
    assert done.stdout.count(value) == 10
