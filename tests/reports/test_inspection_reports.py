"""Documents of ``lint`` and ``inspect``, which are dicts, texts and pictures."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq


async def test_reports_are_dicts_and_texts(tmp_path: Path) -> None:
    numbers = [row * 7_919 % 100_000 for row in range(100_000)]
    table = pa.table({"id": numbers, "name": [f"n{number}" for number in numbers]})
    pq.write_table(table, tmp_path / "<i>.parquet", row_group_size=50_000)
    async with asyncpq.Session() as session, await session.open_dataset(f"{tmp_path}/") as lake:
        file = await session.open_file(tmp_path / "<i>.parquet")
        for linted in (await file.lint(["id"]), await lake.lint(["id"])):
            assert json.loads(json.dumps(linted.to_dict())) == dict(linted)
            titles = [cause["title"] for cause in linted["findings"]]
            assert titles
            for title in titles:
                assert title in linted.explain()
                assert title in html.unescape(linted._repr_html_())
            assert "<i>" not in linted._repr_html_()
            assert str(linted) == linted.explain()
        for inspected in (await file.inspect(), await lake.inspect()):
            assert json.loads(json.dumps(inspected.to_dict())) == dict(inspected)
            assert "100,000 rows in 2 row groups" in inspected.explain()
            assert "\\n" not in inspected.explain()
            assert "name: BYTE_ARRAY" in str(inspected)
