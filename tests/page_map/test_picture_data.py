"""Each document becomes a picture that says in a line what there is to know."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.page_map.picture_data import Words, compact_fates, layout, picture, requests, seconds_text, transposed
from asyncpq.reports.documents import ChunkFates, FileFates, Why
from tests import report_documents as documents


def story(**changes: Any) -> Why:
    layout = documents.inspection()
    found = documents.why(layout, documents.fates(layout, columns=(0, 3), groups=(3,), pages=(7,)), reasons=[])
    return cast("Why", dict(found) | changes)


def test_a_story_says_what_was_asked_and_what_it_took() -> None:
    drawn = picture(story())
    assert drawn["title"] == "Lookup of id = 42"
    assert drawn["headline"].startswith("1 row in ")
    assert drawn["headline"].endswith(": 3 requests in 2 rounds, 3.35 MiB")
    assert [label for label, _, _ in drawn["facts"]] == [
        "Rows", "Time", "Requests", "Fetched", "Whole chunks", "From caches",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"keys": {"id": list("abcde")}}, "Lookup of id = a, b, c and 2 more"),
        ({"keys": None, "verb": "scan", "where": "x > 1"}, "Scan of rows where x > 1"),
        ({"keys": None, "verb": "count", "where": None}, "Count of all rows"),
    ],
)
def test_titles(changes: Any, title: str) -> None:
    assert picture(story(**changes))["title"] == title


@pytest.mark.parametrize(
    ("changes", "tone", "verdict"),
    [
        (
            {"causes": documents.causes()},
            "poor",
            "What costs most: The store is far away: 31 ms to the first byte (50 ms",
        ),
        ({"causes": documents.causes()[1:]}, "fair", "What costs most: Rows are in random order of id"),
        ({"bytes": {"fetched": 12, "wanted": 10}}, "good", "Close to the least possible: 1.20 times the bytes"),
        ({"bytes": {"fetched": 90, "wanted": 10}}, "good", "Nothing was found that would make it much faster"),
        ({"bytes": {}, "requests": []}, "good", "Served from caches, without a request"),
    ],
)
def test_verdicts(changes: Any, tone: str, verdict: str) -> None:
    drawn = picture(story(**changes))
    assert (drawn["tone"], drawn["verdict"][: len(verdict)]) == (tone, verdict)


def test_a_lake_has_all_its_files() -> None:
    layout = documents.inspection()
    found = documents.fates(layout, columns=(0, 3), groups=(3,), pages=(7,))
    drawn = picture(documents.why(layout, found, lake=10))
    assert len(drawn["files"]) == 10
    assert [file[4] for file in drawn["files"]] == [0, *[-1] * 9]
    assert drawn["files"][0][3] == "read"
    assert drawn["more_files"] == []


def test_files_that_are_not_named_are_counted_by_the_funnel() -> None:
    layout = documents.inspection()
    found = documents.fates(layout, columns=(0, 3), groups=(3,), pages=(7,))
    plan = documents.plan_document(layout, found)
    plan["view"], plan["funnel"] = "listed", documents.funnel(500, 1, 8, 1, 60, 3)
    drawn = picture(plan)
    assert [file[0] for file in drawn["files"]] == [layout["url"]]
    assert drawn["more_files"] == [["index", 499]]


def test_an_inspection_says_what_its_indexes_are_worth() -> None:
    indexed, bare = documents.inspection(), documents.inspection(pages=None)
    assert picture(indexed)["verdict"].startswith("All columns have page indexes")
    assert picture(bare)["verdict"].startswith("No page index")
    indexed["columns"][0]["pages"] = None
    assert picture(indexed)["verdict"].startswith("9 of 10 columns have page indexes")


def test_metrics_and_datasets() -> None:
    assert picture(documents.dataset_inspection(7))["headline"] == "7 files, 10 columns, 534 MiB"
    assert picture(documents.metrics_document([]))["requests"] is None


def test_seconds() -> None:
    assert [seconds_text(one) for one in (0, 0.0893, 1.5, 1234.5)] == ["0 ms", "89.3 ms", "1.5 s", "1,234 s"]


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


async def test_a_lake_names_its_index(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"id": range(100), "user": range(100)}), tmp_path / f"{name}.parquet")
    async with asyncpq.Session() as session:
        without = picture((await (await session.open_dataset(f"{tmp_path}/")).inspect()).to_dict())
        index = await session.build_index(f"{tmp_path}/", [Bounds("id"), Keys("user"), Footers()])
        lake = await session.open_dataset(f"{tmp_path}/", index=index)
        drawn = picture((await lake.inspect()).to_dict())
    assert without["verdict"].startswith("No index")
    assert without["facts"][-1] == ["Indexes", "0", ""]
    assert drawn["verdict"].startswith("Index: ")
    assert set(drawn["verdict"].removeprefix("Index: ").split(", ")) == {"bounds(id)", "keys(user)", "footers"}
    name, number, place = drawn["facts"][-1]
    assert (name, number) == ("Indexes", "1")
    assert place.endswith("/_asyncpq/")


def test_an_index_of_many_tables_is_cut_and_one_of_none_described() -> None:
    document = documents.dataset_inspection(2)
    own = {"at": "", "description": "an index of your own", "tables": []}
    many = {"at": "x", "description": "an index", "tables": ["files", *(f"bounds(c{n})" for n in range(20))]}
    verdict = picture(cast("Any", {**document, "indexes": [many, own]}))["verdict"]
    assert verdict.startswith("Index: bounds(c0), bounds(c1), ")
    assert verdict.endswith(", bounds(c7), ... 20 in all; an index of your own")
