"""The docs page in a real browser: it shows every endpoint, sends requests, and loads nothing from elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from asyncpq.serve.openapi import DOCS_PAGE, openapi_document
from tests.serve.services import TOKEN, client_of, configuration, listening, service_of, write_lake

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def test_the_page_names_no_other_host() -> None:
    assert "http://" not in DOCS_PAGE
    assert "https://" not in DOCS_PAGE
    assert "innerHTML" not in DOCS_PAGE


@pytest.mark.services
@pytest.mark.skipif(CHROMIUM is None, reason="the system has no Chromium")
async def test_the_page_sends_requests(tmp_path: Path) -> None:
    write_lake(tmp_path)
    async with (
        client_of(configuration(f"{tmp_path}/")) as client,
        listening(service_of(client).app, lifespan="off") as url,
        playwright.async_playwright() as driver,
    ):
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        complaints: list[str] = []
        elsewhere: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: elsewhere.extend([] if request.url.startswith(url) else [request.url]))
        await page.goto(f"{url}/docs")
        await page.wait_for_selector("details")
        paths = openapi_document()["paths"].values()
        assert await page.locator("details").count() == sum(len({"get", "post"} & set(path)) for path in paths)
        await page.set_viewport_size({"width": 375, "height": 800})
        await page.locator("details", has_text="/v1/{dataset}/scan").first.locator("summary").click()
        field = await page.get_by_label("where").first.bounding_box()
        assert field is not None
        assert field["width"] > 300  # on a phone an example fits
        assert await page.evaluate("document.documentElement.scrollWidth") == 375
        await page.set_viewport_size({"width": 1200, "height": 800})
        await page.fill("#token", TOKEN)
        lookup = page.locator("details", has_text="/v1/{dataset}/lookup").first
        await lookup.locator("summary").click()
        await lookup.get_by_label("dataset").fill("trips")
        await lookup.get_by_label("columns").fill("id,user")
        await lookup.get_by_role("button").click()
        output = lookup.locator("pre").first
        await playwright.expect(output).to_contain_text('"user": "u42"')
        await playwright.expect(output).to_contain_text("200 OK")
        post = page.locator("details", has_text="/v1/{dataset}/lookup").nth(1)
        await post.locator("summary").click()
        await post.get_by_label("dataset").fill("trips")
        await post.get_by_label("body").fill('{"keys": {"id": [1]}, "columns": ["id"]}')
        await post.get_by_role("button").click()
        await playwright.expect(post.locator("pre").first).to_contain_text('{"id": 1}')
        await browser.close()
    assert complaints == []
    assert elsewhere == []
