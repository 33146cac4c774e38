"""Files that the page's code for pyarrow, DuckDB, Polars and delta-rs writes have no findings."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reports.lookups import linted, rules

PAGE = Path(__file__).parents[2] / "docs/how-to/write-files.md"
ROWS = 150_000


def tab(writer: str) -> str:
    """Return the code of a writer's tab."""
    match = re.search(rf'=== "{writer}"\n\n    ```\w+\n(.*?)    ```', PAGE.read_text(), re.DOTALL)
    assert match is not None
    return "\n".join(line[4:] for line in match[1].splitlines())


def orders(customers: int) -> pa.Table:
    """Rows in random order, with about ``customers`` customers."""
    random = np.random.default_rng(3)
    return pa.table(
        {
            "customer": random.integers(0, customers, ROWS),
            "amount": random.random(ROWS),
            "country": random.choice(["DE", "FR", "US"], ROWS),
            "status": random.choice(["open", "paid"], ROWS),
            "note": [f"{number:018}" for number in random.integers(0, 10**18, ROWS)],
        }
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("customers", [10_000, 10**9], ids=["repeated", "unique"])
@pytest.mark.parametrize("writer", ["pyarrow", "DuckDB", "Polars", "delta-rs"])
def test_files_have_no_findings(writer: str, customers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, code = orders(customers), tab(writer)
    if writer == "DuckDB":
        duckdb.connect().register("orders", table).execute(code)
    else:
        exec(code, {"pq": pq, "pl": pl, "table": table, "df": pl.DataFrame(table)})
    (path,) = tmp_path.rglob("*.parquet")
    assert pq.read_metadata(path).num_rows == ROWS
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert rules(asyncio.run(linted(path.read_bytes(), ["customer"]))) == []
