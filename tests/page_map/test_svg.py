"""The SVG is well-formed, holds the words of the picture, and becomes a PNG."""

from __future__ import annotations

import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.page_map import render_png, render_svg
from asyncpq.page_map.picture_data import layout
from asyncpq.page_map.svg import cells, structures
from tests import report_documents as documents


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("document", documents.every_document(), ids=lambda document: document["document"])
def test_every_document_is_drawn(document: Any) -> None:
    svg = render_svg(document)
    assert render_svg(document) == svg
    assert len(texts(svg)) > 10
    assert "NaN" not in svg


def test_names_are_text() -> None:
    layout = documents.inspection()
    layout["columns"][0]["name"] = documents.HOSTILE
    story = documents.why(layout, documents.fates(layout, columns=(0, 3), groups=(0,), pages=(1,)))
    story["keys"] = {documents.HOSTILE: ["1"]}
    svg = render_svg(story)
    assert "<script" not in svg
    assert texts(svg)[0].startswith("Lookup of </script>")


def test_10_000_columns_stay_small() -> None:
    layout = documents.inspection(columns=10_000, row_groups=1, pages=2)
    found = documents.fates(layout, columns=(0, 17), groups=(0,), pages=(1,))
    assert len(render_svg(documents.why(layout, found))) < 100_000


def test_a_png() -> None:
    assert render_png(documents.every_document()[0], scale=1)[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_png_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(InvalidOptionError, match=r"\[png\]"):
        render_png(documents.every_document()[0])


@pytest.mark.parametrize("pages", [1, 2, 7, None])
@pytest.mark.parametrize("read", [(), (0,), (1,), (0, 1, 5, 6), (6,)])
def test_runs_cover_each_chunk(pages: int | None, read: tuple[int, ...]) -> None:
    document = documents.inspection(columns=4, row_groups=3, pages=pages)
    packed = layout(document, documents.fates(document, columns=(0, 2), groups=(1,), pages=read))
    found = {(cell.group, cell.column): cell.runs for cell in cells(packed)}
    assert len(found) == 12
    for group in document["row_groups"]:
        for chunk in group["chunks"]:
            runs = found[group["ordinal"], chunk["column"]]
            start = chunk["dictionary"][1] if chunk["dictionary"] else chunk["bytes"][0]
            assert [run.start for run in runs] == [start, *[run.stop for run in runs[:-1]]]
            assert runs[-1].stop == chunk["bytes"][1]
            assert [run.first_row for run in runs] == [0, *[run.stop_row for run in runs[:-1]]]
            assert runs[-1].stop_row == group["rows"]


def test_each_page_has_the_fate_of_its_document() -> None:
    document = documents.inspection(columns=6, row_groups=5, pages=7)
    packed = layout(document, documents.fates(document, columns=(0, 2, 5), groups=(1,), pages=(2, 3)))
    found = {(cell.group, cell.column): [run.fate for run in cell.runs] for cell in cells(packed)}
    assert found[1, 0] == ["page index", "read", "page index"]
    assert found[1, 5] == ["page index", "memory", "page index"]
    assert found[1, 1] == found[0, 1] == ["unread"]
    assert found[0, 0] == ["statistics"]
    assert found[4, 2] == ["bloom"]


def test_a_file_that_was_not_read_shows_which_pages_are_located() -> None:
    document = documents.inspection(columns=2, row_groups=1, pages=3)
    document["row_groups"][0]["chunks"][1]["pages"] = None
    assert [cell.runs[0].fate for cell in cells(layout(document, None))] == ["plain", "unlocated"]


def test_structures_are_where_the_document_says() -> None:
    document = documents.inspection(columns=2, row_groups=1, pages=3)
    chunk = document["row_groups"][0]["chunks"][0]
    packed = layout(document, None)
    found = list(structures(packed, list(cells(packed))))
    assert ("bloom filter", *(chunk["bloom_filter"] or ())) in found
    assert ("offset index", *(chunk["offset_index"] or ())) in found
    assert found[-1] == ("footer", *document["footer"])


def test_a_dictionary_shares_the_fate_of_its_chunk() -> None:
    document = documents.inspection(columns=5, row_groups=2, pages=3)
    packed = layout(document, documents.fates(document, columns=(0, 1, 2), groups=(1,), pages=(2,)))
    found = {span: name for name, *span_ in structures(packed, list(cells(packed))) for span in [tuple(span_)]}
    spans = [[tuple(chunk["dictionary"] or ()) for chunk in group["chunks"]] for group in document["row_groups"]]
    assert [found[spans[group][column]] for group, column in ((0, 1), (1, 1), (1, 4))] == [
        "statistics", "fetched dictionary", "unread",
    ]  # fmt: skip
    bare = layout(document, None)
    assert "dictionary page" in {name for name, _, _ in structures(bare, list(cells(bare)))}
