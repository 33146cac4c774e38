"""examples/log_search.py: searches of text equal those of pyarrow, and read a part of the files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from examples.log_search import SEARCHES, index_logs, search, write_logs


async def test_searches(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", 24_000)
    await index_logs(f"{tmp_path}/logs/")
    files = sorted((tmp_path / "logs").glob("*.parquet"))
    lines = [line for path in files for line in pq.read_table(path).to_pylist()]
    for title, where in SEARCHES.items():
        found, cost = await search(f"{tmp_path}/logs/", where)
        expected = [
            line["line"]
            for line in lines
            if {
                "words, in any order": "watchdog" in line["message"] and "panic" in line["message"],
                "a phrase": "kernel panic on host" in line["message"],
                "a part of a word": "watchdo" in line["message"],
                "words and a level": line["level"] == "ERROR"
                and "rejected invoice" in line["message"]
                and "tenant" in line["message"]
                and "17" in line["message"].replace("-", " ").replace(",", " ").split(),
            }[title]
        ]
        assert found["line"].to_pylist() == expected, title
        if title != "words and a level":
            assert (len(expected), cost.files_read) == (1, 1), title
