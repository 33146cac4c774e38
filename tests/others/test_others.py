"""The cases of ``make others``: asyncpq's answers do not depend on statistics; and the page says where others' do."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.others.cases import CASES
from tests.others.readers import answers
from tests.others.run import page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    for key, case in CASES.items():
        for kind in ("without", "with"):
            case.write(folder / f"{key}-{kind}.parquet", statistics=kind == "with")
    return folder


def test_only_the_statistics_differ(files: Path) -> None:
    for key, case in CASES.items():
        bounded = []
        for kind in ("without", "with"):
            metadata = pq.ParquetFile(files / f"{key}-{kind}.parquet").metadata
            assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [
                len(values) for values in case.groups
            ]
            statistics = [metadata.row_group(at).column(1).statistics for at in range(metadata.num_row_groups)]
            bounded.append([found is not None and found.has_min_max for found in statistics])
        assert not any(bounded[0])
        assert all(bounded[1]) or key in ("int96", "lists", "zeros")  # which have none, or not of all


def test_asyncpq_answers_as_without_statistics(files: Path) -> None:
    found = answers("asyncpq", files)
    assert len(found) == 1 + sum(len(case.conditions) for case in CASES.values())
    for question, pair in found.items():
        if question != "version":
            assert pair[0] == pair[1], question
            assert isinstance(pair[0], list), question


def test_a_reader_that_believes_too_much_is_seen(files: Path) -> None:
    """pyarrow takes equal bounds for a proof that there is no other value."""
    pair = answers("pyarrow", files)["equal-bounds x != 1.0"]
    assert pair == [[1], []]


def test_the_page() -> None:
    pair = {f"{key} {condition}": [[1], [1]] for key, case in CASES.items() for condition in case.conditions}
    other = {**pair, "nan x > 100.0": [[2, 3], []], "zeros x < 0.0": ["ValueError: no", "ValueError: no"]}
    text = page({"asyncpq": {"version": "1", **pair}, "duckdb": {"version": "2.0.1", **other}}, "2026-01-01")
    assert "| `x > 100.0` | 1 | **2, 3; none** |" in text
    assert "| `x < 0.0` | 1 | error |" in text
    assert "- DuckDB: `ValueError: no`" in text
    assert "| rows where | asyncpq | DuckDB 2.0.1 |" in text
