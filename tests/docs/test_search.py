"""The search of the built site, in a real browser: the page that a word is about comes first."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
mkdocs = pytest.importorskip("mkdocs.commands.build", reason="mkdocs is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.services, pytest.mark.skipif(CHROMIUM is None, reason="the system has no Chromium")]
ROOT = Path(__file__).resolve().parents[2]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of the site, built in a folder of its own."""
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    spec = importlib.util.spec_from_file_location("site_stage", ROOT / ".ci" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    stage = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stage)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stage, "PAGES", folder / "pages")
        patched.setenv("NO_MKDOCS_2_WARNING", "1")
        patched.chdir(ROOT)
        stage.stage()
        mkdocs.build(load_config("mkdocs.yml", docs_dir=str(folder / "pages"), site_dir=str(folder / "site")))
    handler = functools.partial(_Quiet, directory=str(folder / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(600)  # it builds the site
def test_a_word_finds_the_page_about_it(site: str) -> None:
    first = {
        "timeout": "usage/retries/",
        "deadline": "usage/retries/",
        "retry": "usage/retries/",
        "blocking": "usage/blocking/",
        "cache": "usage/caches/",
        "nan": "filter/",
        "glob": "datasets/",
    }
    found = {}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for word in first:
            page = browser.new_page()
            page.goto(f"{site}?q={word}", wait_until="domcontentloaded")
            link = page.wait_for_selector("a.md-search-result__link", state="attached", timeout=60_000)
            found[word] = link.get_attribute("href").removeprefix(site).partition("?")[0]
            page.close()
        browser.close()
    assert found == first
