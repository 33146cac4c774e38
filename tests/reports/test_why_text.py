"""The story as text fits the terminal, whatever it has to tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.reports.documents import Why
from asyncpq.reports.why_text import why_text
from tests.parquet_bytes import parquet_bytes


def story(tmp_path: Path) -> Why:
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(pa.table({"id": range(1000), "\x1b[31mred": range(1000)})))

    async def told() -> Why:
        async with asyncpq.open_file(tmp_path / "a.parquet") as file:
            return (await file.why(lookup={"id": 7})).to_dict()

    return asyncio.run(told())


def request(**facts: Any) -> Any:
    plain = {"url": "a", "method": "GET", "purpose": "data", "bytes": [0, 1], "round": 1, "received": 1}
    return {**plain, "began_s": 0.0, "seconds": 0.001, **facts}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit(width: int, tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(round=number) for number in range(3)]
    lines = why_text(document, width).splitlines()
    assert max(map(len, lines[2:])) <= max(width, 64)  # bars keep a least length
    assert [line for line in lines if line and not line.startswith(" ")][2:] == [
        "Funnel", "Requests", "Bytes", "Time", "Parts", "What would make it faster",
    ]  # fmt: skip


def test_many_requests_are_rounds(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(round=1 + number % 2) for number in range(100)]
    text = why_text(document)
    assert "1 50 requests: data, 50 B" in text
    assert "2 50 requests: data, 50 B" in text


def test_what_went_wrong_is_told(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(status=503, throttled=True), request(attempt=2), request(hedge=True)]
    text = why_text(document)
    assert "GET data 1 B throttled status 503" in text
    assert "GET data 1 B attempt 2" in text
    assert "GET data 1 B hedge" in text


def test_names_do_not_change_the_terminal(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["where"], document["keys"], document["url"] = "\x1b[31mred == 1", None, "a\x1b]0;title\x07.parquet"
    assert "\x1b" not in why_text(document)
