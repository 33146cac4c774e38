"""The page in a real browser: no errors, keyboard and pointer, and its time to load with 100,000 pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncpq.page_map import render
from tests import report_documents as documents

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.services, pytest.mark.skipif(CHROMIUM is None, reason="the system has no Chromium")]
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a document, or text of HTML, in a window; at the end nothing may have complained or gone to the network."""
    complaints: list[str] = []
    context: list[Any] = []

    def show(document: Any, width: int = 1200, scheme: str = "light") -> Any:
        page_file = tmp_path / "page.html"
        page_file.write_text(document if isinstance(document, str) else render(document), encoding="utf-8")
        window = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.append(window)
        page = window.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.extend({request.url} - {page_file.as_uri()}))
        page.goto(page_file.as_uri())
        if not isinstance(document, str):
            page.wait_for_selector("html[data-ready]")
        return page

    yield show
    for window in context:
        window.close()
    assert complaints == []


def story(**options: Any) -> Any:
    layout = documents.inspection()
    return documents.why(layout, documents.fates(layout, columns=(0, 3, 5), groups=(3,), pages=(7,)), **options)


def details(page: Any) -> str:
    return str(page.locator("#details h3").inner_text())


@pytest.mark.parametrize("width", [375, 1600])
@pytest.mark.parametrize("document", documents.every_document(), ids=lambda document: document["document"])
def test_every_document_is_drawn_and_fits(show: Open, document: Any, width: int) -> None:
    page = show(document, width)
    assert page.locator("h1").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_keys_zoom_from_the_lake_to_a_page_and_back(show: Open) -> None:
    page = show(story(lake=50))
    page.focus("#stage")
    assert details(page) == "part-00000.parquet"
    page.keyboard.press("Enter")
    assert details(page) == "id"  # the first chunk that was read
    page.keyboard.press("ArrowRight")
    assert details(page) == "user"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert details(page) == "id, page 7"
    page.keyboard.press("ArrowDown")
    assert details(page) == "id, page 8"
    assert "ruled out by the page index" in page.locator("#details").inner_text()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    assert details(page) == "id, page 7"
    assert page.locator("#crumbs").inner_text().split("\n")[-1].endswith("id")
    for _ in range(5):  # further than to the lake
        page.keyboard.press("Escape")
    assert page.locator("#map-title").inner_text() == "The lake"
    assert page.evaluate("document.activeElement.id") == "stage"


def test_tab_reaches_everything_and_leaves_the_map(show: Open) -> None:
    page = show(story())
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "stage", "waterfall", "SUMMARY", "BUTTON"} <= set(reached)
    page.focus("#stage")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_pointer_shows_what_is_under_it(show: Open) -> None:
    page = show(story())
    page.locator("#stage").scroll_into_view_if_needed()
    box = page.locator("#stage").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 10)
    assert page.locator("#tip b").inner_text().startswith("id, page ")  # the ribbon begins with the first column
    page.mouse.move(box["x"] + 100, box["y"] + box["height"] - 12)
    assert page.locator("#tip b").inner_text() == "id"
    assert "ruled out by statistics" in page.locator("#tip").inner_text()
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()
    page.mouse.click(box["x"] + 100, box["y"] + box["height"] - 12)
    assert page.locator("#details dd").first.inner_text() == "7"  # the last row group


def test_requests_are_told_one_by_one(show: Open) -> None:
    page = show(story())
    page.focus("#waterfall")
    assert page.locator("#request").inner_text().startswith("1 of 3. Tail request. Range: the last 640 KiB; Round: 1")
    page.keyboard.press("End")
    assert "3 of 3. Data request" in page.locator("#request").inner_text()


def test_the_theme_follows_the_system_until_it_is_chosen(show: Open) -> None:
    page = show(story(), scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 20, 19)"
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "Theme: light"
    assert page.evaluate(ground) == "rgb(250, 249, 247)"
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(20, 20, 19)"


def test_names_of_files_stay_text(show: Open) -> None:
    layout = documents.inspection(url=f"s3://lake/{documents.HOSTILE}")
    layout["columns"][0]["name"] = documents.HOSTILE
    found = documents.why(layout, documents.fates(layout, columns=(0, 3), groups=(0,), pages=(1,)))
    found["keys"] = {documents.HOSTILE: ["<img src=x onerror=alert(1)>"]}
    found["causes"][0]["title"] = "<b>bold</b>"
    page = show(found)
    assert "<script>alert(1)</script>" in page.locator("h1").inner_text()
    assert page.locator("h1 *, img, b:text('bold')").count() == 0
    assert "<script>alert(1)</script>" in details(page)


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ({"columns": 20, "row_groups": 50, "pages": 100}, (0, 3, 19)),
        ({"columns": 10_000, "row_groups": 1, "pages": 4}, (0, 17, 9_999)),
        ({"columns": 1, "row_groups": 1, "pages": 100_000}, (0,)),
        ({"columns": 20, "row_groups": 5_000, "pages": 2}, (0, 17)),
    ],
)
def test_large_files_are_drawn_at_every_level(show: Open, shape: Any, read: tuple[int, ...]) -> None:
    layout = documents.inspection(**shape)
    page = show(documents.why(layout, documents.fates(layout, columns=read, groups=(0,), pages=(0, 1, 3))))
    page.focus("#stage")
    for _ in range(2):
        page.keyboard.press("Enter")
    page.keyboard.press("End")
    assert f"page {min(shape['pages'], 100_000) - 1:,}" in details(page)


def test_5_000_files(show: Open) -> None:
    page = show(story(lake=5_000))
    page.focus("#stage")
    page.keyboard.press("End")
    assert details(page) == "part-04999.parquet"


def test_row_groups_thinner_than_a_pixel_have_the_fate_of_most_and_hide_nothing_that_is_read(show: Open) -> None:
    layout = documents.inspection(columns=4, row_groups=3_000, pages=1)
    page = show(documents.why(layout, documents.fates(layout, columns=(0,), groups=(3,), pages=(0,))))
    assert page.evaluate("thinPixels(map.areas.grid).length") in range(100, 470)
    assert page.evaluate("mostOf(layouts[0].groups.slice(0, 10), 0)") == "read"
    assert page.evaluate("mostOf(layouts[0].groups.slice(10, 30), 0)") == "statistics"
    assert page.evaluate("mostOf(layouts[0].groups.slice(10, 30), 1)") == "unread"
