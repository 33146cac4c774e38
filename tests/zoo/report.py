"""docs/writers.md and docs/files-read-right.md: how writers lay files out, and how many files are read right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUTCOMES = ("right", "wrong", "refused", "crashed", "unreadable")
ROOT = Path(__file__).resolve().parents[2]
_DOCS = ROOT / "docs"
_HEAD = """\
`make zoo` writes the same tables with every Parquet writer that a package registry has, in every page version, codec
and encoding that the writer offers. It asks asyncpq random questions about each file: reads and scans with columns,
predicates and limits, lookups, takes and counts. A file is **right** if every answer is that of pyarrow's full read,
**wrong** if one differs, **refused** if one is an error of asyncpq, **crashed** if one is another error. A file that
pyarrow cannot read is *unreadable*: there is nothing to compare with. How it works:
[tests/zoo](../tests/zoo/README.md).
"""
#: The pages, with their titles and the commands that make them.
_PAGES = {"writers.md": ("Writers", "make writers"), "files-read-right.md": ("Files that are read right", "make zoo")}


# Why files of a writer are not right; shown where some are not.
REASONS = {
    "fastparquet": "pyarrow refuses the `plain-fixed_text` of fastparquet, strings of a fixed length.",
    "chdb": "The ClickHouse of chdb 4.4 writes a struct whose leaves disagree about where it is null.",
    "parquet-java": "parquet-mr up to 1.10 writes V2 pages of maps whose rows do not add up to those of the row group; "
    "pyarrow reads such a map one row short.",
    "pyarrow": "pyarrow 2.0 died while it wrote `large_nested-v1-pages`.",
}


def write_page(name: str, text: str) -> None:
    """Write a page of ``_PAGES`` anew."""
    title, command = _PAGES[name]
    (_DOCS / name).write_text(f"# {title}\n\n<!-- made by `{command}` -->\n\n{text.strip()}\n")


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """The page that ``make zoo`` makes, without its title."""
    total: Counter[str] = Counter()
    lines = ["| writer | version | files | right | wrong | refused | crashed | unreadable |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for result in results:
        counts = Counter(verdict["outcome"] for verdict in result["verdicts"])
        total.update(counts)
        if not result["not_installed"]:
            lines.append(_row(result["name"], result["version"], counts))
    lines.append(_row("**all**", "", total))
    questions = sum(verdict["questions"] for result in results for verdict in result["verdicts"])
    files = sum(total.values())
    figure = (
        f"**{total['right']:,} of {files - total['unreadable']:,} files are right**, after {questions:,} questions."
    )
    return "\n".join([_HEAD, figure, "", *lines, "", *_notes(results)])


def _row(name: str, version: str, counts: Mapping[str, int]) -> str:
    cells = [name, version, str(sum(counts.values())), *(str(counts.get(outcome, 0)) for outcome in OUTCOMES)]
    return f"| {' | '.join(cells)} |"


def _notes(results: Sequence[Mapping[str, Any]]) -> list[str]:
    writers = {r["name"] for r in results if any(verdict["outcome"] != "right" for verdict in r["verdicts"])}
    reasons = " ".join(reason for name, reason in REASONS.items() if name in writers)
    lines = _list("What is not right", "Every file is right.", _failures(results))
    lines[2:2] = [reasons, ""] if reasons else []
    left_out = [
        f"{result['name']} {result['version']}, `{verdict['variant']}`: {', '.join(verdict['unreadable'])}"
        for result in results
        for verdict in result["verdicts"]
        if verdict["unreadable"]
    ]
    lines += _list("Columns that pyarrow cannot read, so that no question is about them", "None.", left_out)
    absent = [
        f"{result['name']} {result['version']}: {_cell(result['not_installed'] or result['failed'])}"
        for result in results
        if result["not_installed"] or result["failed"]
    ]
    return lines + _list("Writers that could not be installed, or failed", "None.", absent)


def _failures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{result['name']} {result['version']}, `{verdict['variant']}`, {verdict['outcome']}: "
        + _cell(verdict["failures"][0].removeprefix(f"{verdict['outcome']}: "))
        for result in results
        for verdict in result["verdicts"]
        if verdict["outcome"] != "right"
    ]


def _list(title: str, otherwise: str, items: list[str]) -> list[str]:
    return [f"## {title}", "", *([f"* {item}" for item in items] or [otherwise]), ""]


def _cell(text: str) -> str:
    short = re.sub(r"/\S*/(?=[^/\s]+\.(?:parquet|py)\b)", "", " ".join(text.split()))  # files without their folders
    return f"`{short[:300].replace('`', chr(39))}`"
