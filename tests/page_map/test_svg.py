"""The SVG is well-formed, holds the words of the picture, and becomes a PNG."""

from __future__ import annotations

import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.page_map import render_png, render_svg
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
