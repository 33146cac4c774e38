"""docs/filter.md and the pages beside it are true: each line of its tables is run by asyncpq and by pyarrow."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import KeyIn, col
from asyncpq.parquet.writer_faults import ANY_WRITER, FAULTS, Claim, WriterFault
from tests.geometries import wkb

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOC = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("filter.md", "filter-words.md"))
NAMES: dict[str, Any] = {"pa": pa, "pc": pc, "nan": nan, "date": date, "datetime": datetime, "Decimal": Decimal}
NAMES["point"] = lambda x, y: wkb(("Point", [x, y]))


def table_lines(cells: int) -> list[list[str]]:
    """The lines of the tables that have ``cells`` columns, as the code between their backquotes."""
    lines = []
    for line in DOC.splitlines():
        found = re.findall(r"(?<=\| )`((?:[^`])*)`(?= \|)", line)
        if line.startswith("|") and len(found) == cells:
            lines.append([cell.replace("\\|", "|") for cell in found])
    return lines


KEPT = table_lines(5)
WORDS = table_lines(3)
LISTS = [line for line in table_lines(4) if ".has(" in line[2] or ".intersects_box(" in line[2]]
REFUSED = [line for line in table_lines(4) if line not in LISTS]


def evaluate(code: str, x: Any = None) -> Any:
    return eval(code, NAMES | {"x": x})


@pytest.mark.parametrize("line", KEPT, ids=lambda line: f"{line[0]} {line[2]}")
def test_rows_kept(line: list[str]) -> None:
    column_type, values, ours, theirs, kept = line
    array = pa.array(evaluate(values), evaluate(column_type))
    table = pa.table({"x": array, "row": pa.array(range(len(array)))})
    expected = evaluate(kept)

    predicate = evaluate(theirs, pc.field("x"))
    assert ds.InMemoryDataset(table).to_table(filter=predicate)["row"].to_pylist() == expected
    assert table.filter(predicate)["row"].to_pylist() == expected

    mask = compile_filter(evaluate(ours, col("x")), {"x": array.type}).mask({"x": array}, len(array))
    assert table.filter(mask)["row"].to_pylist() == expected


@pytest.mark.parametrize("line", [["pa.string()", *line] for line in WORDS] + LISTS, ids=lambda line: line[2])
def test_rows_kept_by_what_pyarrow_has_not(line: list[str]) -> None:
    column_type, values, ours, kept = line
    array = pa.array(evaluate(values), evaluate(column_type))
    mask = compile_filter(evaluate(ours, col("x")), {"x": array.type}).mask({"x": array}, len(array))
    assert pa.array(range(len(array))).filter(mask).to_pylist() == evaluate(kept)


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: f"{line[0]} {line[2]}")
def test_refused(line: list[str]) -> None:
    column_type, values, ours, theirs = line
    array = pa.array(evaluate(values), evaluate(column_type))
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)):
        pa.table({"x": array}).filter(evaluate(theirs, pc.field("x")))
    with pytest.raises(PredicateTypeError) as caught:
        compile_filter(evaluate(ours, col("x")), {"x": array.type})
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("values", "keys", "expected"), [([1.0, nan, None], [1.0, nan, None], [0]), ([0.0, -0.0, 1.0], [0.0], [0, 1])]
)
def test_keys(values: list[float | None], keys: list[float | None], expected: list[int]) -> None:
    array = pa.array(values, pa.float64())
    mask = compile_filter(KeyIn("x", tuple(keys)), {"x": array.type}).mask({"x": array}, len(array))
    assert [row for row, matches in enumerate(mask.to_pylist()) if matches] == expected


def test_the_tables_are_found() -> None:
    assert len(KEPT) >= 47
    assert len(WORDS) >= 6
    assert len(LISTS) >= 4
    assert len(REFUSED) >= 5


def fault_line(fault: WriterFault) -> str:
    """The line of a fault in the table of statistics that are not used."""

    def written(release: tuple[int, int, int]) -> str:
        return ".".join(map(str, release))

    writer = fault.writer + (", or none named" if fault.unnamed else "")
    releases = "all" if fault.before is None else f"before {written(fault.before)}"
    if fault.writer == ANY_WRITER:
        writer = "any writer"
        good = ", ".join(f"{name} from {written(release)} on" for name, release in fault.fixed_in.items())
        releases = f"all but {good}" if good else "all"
    elif fault.since != (0, 0, 0):
        releases = f"{written(fault.since)} to {releases}"
    wrong = ", ".join(claim.value for claim in Claim if claim in fault.wrong)
    return f"| {writer} | {releases} | {fault.columns.value} | {wrong} | {fault.source} |"


def test_statistics_that_are_not_used() -> None:
    page = (DOCS / "distrusted-statistics.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert lines[2:] == [fault_line(fault) for fault in FAULTS]
