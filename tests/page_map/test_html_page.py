"""The page is one file that needs nothing else, and nothing from a file is ever markup or code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from asyncpq.page_map import framed, render
from tests import report_documents as documents


class _Parts(HTMLParser):
    """The elements of a page, and the content of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, str] = {}
        self.inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.content[self.inside] = self.content.get(self.inside, "") + data


@pytest.mark.parametrize("document", documents.every_document(), ids=lambda document: document["document"])
def test_the_page_needs_no_network(document: Any) -> None:
    parts = _Parts(render(document))
    for tag, attributes in parts.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href", "style"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(
        r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML|eval\(", parts.content["style"] + parts.content["script"]
    )


def test_the_policy_allows_the_page_and_nothing_else() -> None:
    parts = _Parts(render(documents.every_document()[0]))
    (policy,) = [found["content"] or "" for tag, found in parts.elements if found.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parts.content[name].encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert rules == {"base-uri": "'none'", "form-action": "'none'"}


def test_names_of_files_are_text() -> None:
    layout = documents.inspection(url=f"s3://lake/{documents.HOSTILE}")
    layout["columns"][0]["name"] = documents.HOSTILE
    layout["writer"] = documents.HOSTILE
    layout["row_groups"][0]["chunks"][0]["min"] = documents.HOSTILE
    found = documents.fates(layout, columns=(0, 3), groups=(0,), pages=(1,))
    story = documents.why(layout, found)
    story["keys"] = {documents.HOSTILE: [documents.HOSTILE]}
    story["causes"][0]["title"] = story["causes"][0]["snippets"]["pyarrow"] = documents.HOSTILE
    plain, page = render(documents.why(documents.inspection(), found)), render(story)
    assert [tag for tag, _ in _Parts(page).elements] == [tag for tag, _ in _Parts(plain).elements]
    parts = _Parts(page)
    assert parts.content["script"] == _Parts(plain).content["script"]
    picture = json.loads(parts.content["picture"])
    assert picture["causes"][0]["title"] == documents.HOSTILE
    assert picture["layouts"][0]["columns"][0][0] == documents.HOSTILE.replace("\u2028", "\\u2028").replace(
        "\u202e", "\\u202e"
    ).replace("\x00", "\\x00")
    assert parts.content["title"].startswith("Lookup of </script>")


@pytest.mark.slow
def test_a_page_too_large_for_a_notebook_is_not_framed() -> None:
    assert framed(documents.inspection(columns=10_000, row_groups=12, pages=4)) is None


def test_the_same_document_gives_the_same_page() -> None:
    assert render(documents.every_document()[0]) == render(documents.every_document()[0])


def test_100_000_pages_take_two_megabytes() -> None:
    layout = documents.inspection(columns=20, row_groups=50, pages=100)
    assert len(render(layout)) < 2_000_000


@pytest.mark.heavy
def test_100_000_chunks_take_six_megabytes() -> None:
    layout = documents.inspection(columns=20, row_groups=5_000, pages=1)
    assert len(render(layout)) < 6_000_000
