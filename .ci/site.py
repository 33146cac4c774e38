"""The documents as a site: `make docs`. Copies docs/, and the pages beside it, to build/pages; MkDocs makes the rest.

`python .ci/site.py stage` copies. Links from docs/ to files elsewhere in the repository lead to copies: Markdown as it
is, all other files as a page that shows them. It also writes llms.txt, which lists every page for language models.
`python .ci/site.py check` follows each link of the built site, anchors included.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANDING = "README.md"  # the site's index.md says what it says
PLACES = {LANDING: "index.md", "benchmarks/README.md": "benchmarks-method.md"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"  # a file that a page links to would come before the page
FENCES = {".py": "python", ".ipynb": "json", ".toml": "toml", ".json": "json"}


def staged(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    if path in PLACES:
        return PLACES[path]
    place = path.removeprefix("docs/")
    return place if place.endswith((".md", ".png", ".svg", ".css")) else f"{place}.md"


class Staging:
    """Copies the pages, and what they link to."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def copy(self, path: str) -> None:
        """Copy a file of the repository, once, and all that it links to."""
        if path in self.done:
            return
        self.done.add(path)
        target = PAGES / staged(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not path.endswith(".md"):
            if target.suffix == ".md":
                self.show(path, target)
            else:
                shutil.copyfile(ROOT / path, target)
            return
        text = (ROOT / path).read_text(encoding="utf-8")
        target.write_text(self.relinked(path, text), encoding="utf-8")

    def show(self, path: str, target: Path) -> None:
        """Write a page that shows a file which is not Markdown."""
        source, fence = ROOT / path, FENCES.get(Path(path).suffix, "text")
        is_folder = source.is_dir()
        text = "\n".join(sorted(os.listdir(source))) if is_folder else source.read_text(encoding="utf-8")
        target.write_text(f"{UNSEARCHED}# {path}\n\n```{fence}\n{text.rstrip()}\n```\n", encoding="utf-8")

    def relinked(self, path: str, text: str) -> str:
        """Return the text with its links as they are in the site; code stays as it is."""
        pieces = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(
            piece if piece.startswith("```") else LINK.sub(lambda match: self.link(path, match), piece)
            for piece in pieces
        )

    def link(self, path: str, match: re.Match[str]) -> str:
        """Return one link as it is in the site."""
        href = match[2]
        if urllib.parse.urlsplit(href).scheme:
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(path), href))
        if (ROOT / target / "README.md").is_file():
            target = os.path.join(target, "README.md")
        if not (ROOT / target).exists():
            sys.exit(f"{path}: a link leads to {href}, which does not exist")
        if target != LANDING:
            self.copy(target)
        place = os.path.relpath(staged(target), os.path.dirname(staged(path)) or ".")
        return f"{match[1]}{place}{match[3]}"


def stage() -> None:
    """Copy all pages to build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    staging = Staging()
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.is_file():
            staging.copy(source.relative_to(ROOT).as_posix())
    for name in ("CHANGELOG.md", "cache/README.md", "benchmarks/README.md"):
        staging.copy(name)
    (PAGES / "llms.txt").write_text(llms(), encoding="utf-8")


def llms() -> str:
    """Return llms.txt: the title, and each page with its first sentence (https://llmstxt.org)."""
    lines = [
        "# asyncpq",
        "",
        "> Async Parquet reader for object stores, in pure Python: reads the few pages a query needs, in one",
        "> round trip where one is possible.",
        "",
        "## Pages",
        "",
    ]
    for page in sorted(PAGES.rglob("*.md")):
        paragraphs = page.read_text(encoding="utf-8").split("\n\n")
        heading = next((at for at, text in enumerate(paragraphs) if text.startswith("# ")), None)
        if heading is None or page.suffixes[:-1]:  # no page, or one that shows a file
            continue
        prose = (text for text in paragraphs[heading + 1 :] if text[0].isalpha() or text.startswith("**"))
        about = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(next(prose, "").split()))
        sentence = re.split(r"(?<=[.:]) (?=[A-Z`])", about)[0].rstrip(":").replace("**", "")
        title = paragraphs[heading].splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.relative_to(PAGES).as_posix()})" + (f": {sentence}" if sentence else ""))
    return "\n".join(lines) + "\n"


class Page(html.parser.HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.roles: list[str] = re.findall(r":\w+:<code>[^<]*", text)  # of Sphinx, which the hook makes links
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        self.links += [value for name in ("href", "src") if (value := values.get(name))]


def check() -> None:
    """End with an error if a link of the built site leads nowhere, or the site loads something from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        wrong += [f"{path.relative_to(SITE)}: {role}: a role as it is in the docstring" for role in page.roles]
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                wrong.append(f"{path.relative_to(SITE)}: {link}: no such page")
            elif (
                parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors
            ):
                wrong.append(f"{path.relative_to(SITE)}: {link}: no such anchor")
    if wrong:
        sys.exit("\n".join(wrong))
    sys.stdout.write(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links\n")


if __name__ == "__main__":
    {"stage": stage, "check": check}[sys.argv[1]]()
