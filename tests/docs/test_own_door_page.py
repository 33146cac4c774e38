"""The door of docs/how-to/own-door.md is short, and gives what pandas gives of the whole file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq import blocking

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "own-door.md").read_text(encoding="utf-8")
DOOR = next(text for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "class" in text)
MOST_LINES = 80
TABLE = pa.table(
    {
        "id": pa.array(range(2000), pa.int64()),
        "n": pa.array([None if at % 7 == 0 else at % 50 for at in range(2000)], pa.int32()),
        "f": pa.array([[1.5, None, math.nan, -0.0, 7.25][at % 5] for at in range(2000)], pa.float64()),
        "s": [None if at % 11 == 0 else f"u-{at // 100}" for at in range(2000)],
    }
)
CONDITIONS = [
    *("id == 1234", "s == 'u-4' and n > 10", "not (n > 10)", "f > 1.0", "not (f > 1.0)", "f != 1.5", "n != 3"),
    *("s in ['u-1', 'u-3']", "not s in ['u-1', 'u-3']", "n in [1, 2] or id < 5", "not (n == 1 and f < 2.0)"),
    *("id * 3 > 99 and id < 50", "id < 50 or id + f > 1990", "not (id < 1990 or id + n > 2020)"),
    *("n == 1.0 and id > 7", "s.str.startswith('u-19') and n > 3", "10 < id < 14 and n > 0", "id < n", "id == 999999"),
    *("id == id.max()", "index < 3", "n > 3 and f == f.min()", "abs(n) > 40 and id < 900"),
]


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("door") / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=500, write_page_index=True, data_page_size=512)
    names: dict[str, Any] = {"__name__": "pandas_door"}
    exec(compile(DOOR, "own-door.md", "exec"), names)
    with blocking.Session() as session:
        yield names["open_frame"](session.open_file(path))


def test_the_door_is_short() -> None:
    assert len(DOOR.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("columns", [None, ["id"], ["f", "n"]])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_door_gives_what_pandas_gives(frame: Any, condition: str, columns: list[str] | None) -> None:
    whole = TABLE.to_pandas(types_mapper=pd.ArrowDtype).query(condition, engine="python")
    expected = whole[TABLE.schema.names if columns is None else columns].reset_index(drop=True)
    pd.testing.assert_frame_equal(frame.query(condition, columns), expected)


def test_the_door_reads_little(frame: Any) -> None:
    kept = [frame.plan(text).pruning.row_groups_kept for text in ("id == 1234 and n + 1 > 7", "n + 1 > 7")]
    assert kept == [1, 4]
