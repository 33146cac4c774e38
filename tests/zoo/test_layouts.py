"""The page of layouts: its parts, and that it has the writers and settings that are tried today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.zoo import report
from tests.zoo.layouts import LAYOUT_WRITERS, NAMES, SETTINGS, page
from tests.zoo.look import expected, look

PAGE = report.ROOT / "docs" / "writers.md"


def test_each_command_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_DOCS", tmp_path)
    report.write_page("writers.md", "## New\n")
    assert (tmp_path / "writers.md").read_text() == "# Writers\n\n<!-- made by `make writers` -->\n\n## New\n"
    report.write_page("files-read-right.md", "Other\n\n")
    other = (tmp_path / "files-read-right.md").read_text()
    assert other == "# Files that are read right\n\n<!-- made by `make zoo` -->\n\nOther\n"


@pytest.mark.parametrize("writer", LAYOUT_WRITERS, ids=lambda writer: writer.name)
def test_the_page_has_what_make_writers_tries(writer: Any) -> None:
    name = f"| {NAMES.get(writer.name, writer.name)} {writer.version} |"
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(name)]
    assert len(rows) == 4
    assert f"| `{SETTINGS[writer.name]}` |" in rows[-1]


async def test_what_is_said_of_a_file(tmp_path: Path) -> None:
    """Rows of the rule, around the one that is looked up."""
    rows = [{**expected(row), "at": row} for row in range(654_000, 655_000)]
    for at, row in enumerate(rows):
        row["x"] = float("nan") if at % 100 == 7 else row["x"]
        row["zero"] = -0.0 if at % 2 else 0.0
    table = pa.Table.from_pylist(rows)
    table = table.set_column(table.num_columns - 1, "at", table["at"].cast(pa.timestamp("us")))
    path = tmp_path / "file.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=500,
        max_rows_per_page=100,
        write_page_index=True,
        bloom_filter_options={"key": True},
    )
    found = await look(path, path.read_bytes())
    assert (found.row_groups, found.pages, found.page_index) == ("2 of 500", "100; 100", "yes")
    assert (found.bounds, found.nan, found.zeros) == ("72", "left out of bounds", "-0.0 to 0.0")
    assert (found.nulls, found.times, found.codec, found.boxes) == ("all", "us", "SNAPPY", "")
    assert found.bloom.startswith("key: ")
    assert found.lookups == {"id": (1, len(path.read_bytes())), "key": (1, len(path.read_bytes()))}
    cell = {"version": "26", "default": vars(found), "tuned": vars(found)}
    assert page({"pyarrow": cell}).count("| pyarrow 26 |") == 4
