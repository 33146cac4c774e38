"""Numbers and tables for people."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from asyncpq.cli.figures import count_text, print_facts, print_table, share_text


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
