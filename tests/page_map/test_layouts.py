"""Layouts, fates and requests become rows of numbers."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest

from asyncpq.page_map.layouts import Words, compact_fates, layout, requests, transposed
from asyncpq.reports.documents import ChunkFates, FileFates
from tests import report_documents as documents


def test_pages_keep_their_places() -> None:
    document = documents.inspection(columns=3, row_groups=2, pages=5)
    packed = layout(document, None)
    for row, chunk in zip(packed["chunks"], [c for g in document["row_groups"] for c in g["chunks"]], strict=True):
        pages = chunk["pages"]
        assert pages is not None
        sizes, lengths, starts = row[-1]
        assert starts == pages["starts"][:1]  # they follow each other
        assert list(accumulate(sizes[:-1], initial=starts[0])) == pages["starts"]
        assert list(accumulate(lengths[:-1], initial=0)) == pages["first_rows"]
        assert sum(lengths) == 100_000


def test_pages_with_gaps_keep_all_starts() -> None:
    document = documents.inspection(columns=1, row_groups=1, pages=3)
    pages = document["row_groups"][0]["chunks"][0]["pages"]
    assert pages is not None
    pages["starts"][2] += 7
    assert layout(document, None)["chunks"][0][-1][2] == pages["starts"]


def test_neighbouring_pages_of_one_fate_are_one_run() -> None:
    chunk = ChunkFates(row_group=1, column=2, whole=False, predicate=True, pages=[3, 4, 5, 9], fate="read")
    assert compact_fates(FileFates(url="", row_groups=[], chunks=[chunk]))["chunks"] == [
        [1, 2, 0, 1, 3, 6, "read", 9, 10, "read"]
    ]
    chunk["fates"] = ["read", "memory", "memory", "disk"]
    assert compact_fates(FileFates(url="", row_groups=[], chunks=[chunk]))["chunks"][0][4:] == [
        *(3, 4, "read"), *(4, 6, "memory"), *(9, 10, "disk"),
    ]  # fmt: skip


def test_a_chunk_without_located_pages_has_one_run_to_its_end() -> None:
    chunk = ChunkFates(row_group=0, column=0, whole=True, predicate=False, pages=[], fate="shared")
    assert compact_fates(FileFates(url="", row_groups=[], chunks=[chunk]))["chunks"] == [[0, 0, 1, 0, 0, -1, "shared"]]


def test_requests_are_in_the_order_of_their_beginnings() -> None:
    document = documents.inspection()
    sent = documents.requests(document, documents.fates(document, columns=(0, 3), groups=(1,), pages=(2,)))
    sent[0]["attempt"] = 2
    sent[0]["throttled"] = True
    packed = requests(sent[::-1])
    assert packed is not None
    assert packed["timed"]
    assert [row[7] for row in packed["rows"]] == [round(one["began_s"] * 1e6) for one in sent]
    assert packed["words"][packed["rows"][0][-1]] == "attempt 2, throttled"
    assert packed["rows"][1][-1] == -1


def test_planned_requests_have_no_times() -> None:
    document = documents.inspection()
    found = documents.fates(document, columns=(0,), groups=(1,), pages=(2,))
    sent = documents.requests(document, found, timed=False)
    sent[1]["columns"] = [f"c{at}" for at in range(10)]
    sent[1]["useful_bytes"] = 5
    packed = requests(sent)
    assert packed is not None
    assert not packed["timed"]
    assert len(packed["rows"][0]) == 7
    assert packed["words"][packed["rows"][1][5]] == "c0, c1, c2, c3, c4, c5, c6, c7 and 2 more"
    assert packed["rows"][1][6] == 5
    assert requests([]) is None


def test_words_are_kept_once_and_printable() -> None:
    words = Words()
    assert [words.number(text) for text in ("a", "b\n", "a")] == [0, 1, 0]
    assert words.texts() == ["a", "b\\n"]


@pytest.mark.parametrize("shape", [{}, {"pages": None}, {"pages": 1}, {"columns": 1, "row_groups": 1, "pages": 1}])
def test_lists_of_fields_have_every_chunk(shape: dict[str, Any]) -> None:
    """What the page puts together from them, in Python."""
    document = documents.inspection(**{"columns": 5, "row_groups": 4, "pages": 3, **shape})
    packed = layout(document, None)
    rows = [group["rows"] for group in document["row_groups"]]
    fields = transposed(packed["chunks"], packed["groups"])

    def get(name: str, at: int) -> Any:
        return fields[name][at] if isinstance(fields[name], list) else fields[name]

    ends = dict.fromkeys(("bytes", "offset_index", "column_index", "bloom"), 0)
    for at, chunk in enumerate(packed["chunks"]):
        spans = []
        for name in ("bytes", "dictionary", "offset_index", "column_index", "bloom"):
            length = get(f"{name}_length", at)
            start = (chunk[2] if name == "dictionary" else ends[name]) + get(f"{name}_at", at)
            spans.append([start, start + length] if length else 0)
            if length and name != "dictionary":
                ends[name] = start + length
        assert [spans[0], *spans[1:]] == [chunk[2:4], *chunk[4:8]]
        pages = get("pages", at)
        data = chunk[4][1] if chunk[4] else chunk[2]
        assert (([[chunk[3] - data], [rows[chunk[0]]], [data]]) if pages == 1 else pages) == chunk[15]
        values = [get(name, at) for name in ("coding", "uncompressed", "values", "nulls", "distinct", "min", "max")]
        assert [get("group", at), get("column", at), *values] == [*chunk[:2], *chunk[8:15]]
    if shape.get("columns") != 1:
        assert len(json.dumps(fields)) < len(json.dumps(packed["chunks"]))


def test_no_chunks() -> None:
    assert set(transposed([], []).values()) == {0}
