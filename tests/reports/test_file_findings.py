"""Findings about whole files: columns that cannot be read, and Bloom filters larger than their columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.reports.documents import Cause, Inspection
from tests.alp_pages import alp_file
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import I32, I64, STRUCT, EditedFile, Struct, encode
from tests.reads import ask

Reports = tuple[list[Cause], Inspection]


async def _reports(file: asyncpq.File) -> Reports:
    return (await file.lint())["findings"], (await file.inspect()).to_dict()


def _table() -> pa.Table:
    return pa.table({"id": pa.array(range(1500)), "x": [at / 4 for at in range(1500)]})


def _with_codec(file: EditedFile, code: int) -> None:
    file.meta(1).put(4, code, I32)


def _with_encoding(file: EditedFile, code: int) -> None:
    file.meta(1).value(2).append(code)
    (page, *_) = file.pages(1)
    page.header.value(5).put(2, code, I32)
    file.meta(1).put(13, None)
    file.set_pages([page], 1)


@pytest.mark.parametrize(
    ("edit", "words"),
    [(lambda file: _with_encoding(file, 11), "encoding 11"), (lambda file: _with_codec(file, 3), "codec LZO")],
    ids=["encoding", "codec"],
)
def test_columns_that_a_read_refuses_are_named_with_the_reason(edit: Any, words: str) -> None:
    file = EditedFile.of(_table(), rows_per_page=1500, use_dictionary=False, compression="none")
    edit(file)
    data = file.data()
    findings, inspection = ask(data, _reports)
    assert list(inspection["unreadable"]) == ["x"]
    assert words in inspection["unreadable"]["x"]
    (finding,) = [each for each in findings if each["id"] == "unreadable-column"]
    assert (finding["column"], finding["severity"]) == ("x", "high")

    async def one(opened: asyncpq.File) -> pa.Table:
        return await opened.read(columns=["x"])

    async def other(opened: asyncpq.File) -> pa.Table:
        return await opened.read(columns=["id"])

    with pytest.raises(UnsupportedFeatureError):
        ask(data, one)
    assert ask(data, other)["id"].to_pylist() == list(range(1500))


@pytest.mark.parametrize("reason", ["pyarrow refuses it", "pyarrow refuses it."])
def test_a_reason_ends_with_one_period(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncpq.reports.lint.unreadable_columns", lambda *given: {"x": reason})
    findings, _ = ask(parquet_bytes(_table()), _reports)
    (finding,) = [each for each in findings if each["id"] == "unreadable-column"]
    assert finding["detail"] == "x: pyarrow refuses it. The other columns can be read."


def test_alp_is_named_and_readable() -> None:
    findings, inspection = ask(alp_file(_table(), [1], rows_per_page=500), _reports)
    assert inspection["unreadable"] == {}
    assert "ALP" in inspection["columns"][1]["encodings"]
    assert "unreadable-column" not in [each["id"] for each in findings]
    (finding,) = [each for each in findings if each["id"] == "few-readers"]
    assert finding["detail"].startswith("x: pages have the encoding ALP")


def _with_filters(num_bytes: int) -> bytes:
    """A file of two columns in three row groups, whose chunks have Bloom filters of so many bytes that rule out
    nothing."""
    file = EditedFile.of(_table(), rows_per_page=500, row_group_size=500)
    kind = Struct({1: (STRUCT, Struct())})
    head = encode(Struct({1: (I32, num_bytes), 2: (STRUCT, kind), 3: (STRUCT, kind), 4: (STRUCT, kind)}))
    for group in range(3):
        for column in range(2):
            file.meta(column, group).put(14, file.append(head + b"\xff" * num_bytes), I64)
            file.meta(column, group).put(15, len(head) + num_bytes, I32)
    return file.data()


@pytest.mark.parametrize(("num_bytes", "expected"), [(1 << 20, True), (1024, False)])
def test_filters_larger_than_their_columns_are_found(num_bytes: int, expected: bool) -> None:
    data = _with_filters(num_bytes)
    findings, inspection = ask(data, _reports)
    found = [each for each in findings if each["id"] == "large-bloom-filters"]
    assert bool(found) is expected
    spans = [chunk["bloom_filter"] for group in inspection["row_groups"] for chunk in group["chunks"]]
    assert sum(span[1] - span[0] for span in spans if span is not None) >= 6 * num_bytes
    if expected:
        assert found[0]["column"] is None
        assert "6 column chunks" in found[0]["detail"]
