"""Each document becomes a picture that says in a line what there is to know."""

from __future__ import annotations

from typing import Any, cast

import pytest

from asyncpq.page_map.picture_data import bytes_text, counted, picture, seconds_text
from asyncpq.reports.documents import Why
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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (1024, "1 KiB"), (1_023_000, "999 KiB"), (1 << 41, "2 TiB")],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_seconds_and_counts() -> None:
    assert [seconds_text(one) for one in (0, 0.0893, 1.5, 1234.5)] == ["0 ms", "89.3 ms", "1.5 s", "1,234 s"]
    assert [counted(one, "file") for one in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
