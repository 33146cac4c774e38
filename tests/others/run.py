"""``make others``: write the files, ask every reader, and write docs/others.md."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.others.cases import CASES
from tests.others.readers import READERS

ROOT = Path(__file__).resolve().parents[2]
READER_TIMEOUT_S = 600

NAMES = {
    "asyncpq": "asyncpq",
    "pyarrow": "pyarrow",
    "duckdb": "DuckDB",
    "datafusion": "DataFusion",
    "polars": "Polars",
    "fastparquet": "fastparquet",
    "pyspark": "Spark",
}
_HEAD = """# What others answer

The same rows are written with statistics of their row groups and without. A reader that gives other rows for the file
with statistics has believed bounds that say less than it takes them to say. `make others` asks the newest releases and
writes this page ([how](../tests/others/README.md)); it fails if an answer of asyncpq depends on statistics.

A cell has the ids of the rows that come back, which count from 0 over the row groups; `none` for no row. **Bold**: the
answer without statistics, then that with them. Where readers differ also without statistics, they compare otherwise:
the text above the table says which values do that. pyarrow is asked through `pyarrow.dataset`.
"""


def ask_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Write the files into ``folder``, and return the answers of each reader."""
    for key, case in CASES.items():
        for kind in ("without", "with"):
            case.write(folder / f"{key}-{kind}.parquet", statistics=kind == "with")
    found = {}
    for name in READERS:
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        done = subprocess.run(
            [sys.executable, "-m", "tests.others.readers", name, str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=READER_TIMEOUT_S,
            check=True,
        )
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(found: Mapping[str, Mapping[str, Any]], day: str) -> str:
    """The page."""
    versions = ", ".join(f"{NAMES[name]} {answers['version']}" for name, answers in found.items() if name != "asyncpq")
    lines = [_HEAD, f"Asked on {day}: {versions}.", ""]
    for key, case in CASES.items():
        lines += [f"## {case.title}", "", case.what, ""]
        lines += [f"| rows where | {' | '.join(_heading(name, answers) for name, answers in found.items())} |"]
        lines += ["| --- |" + " --- |" * len(found)]
        notes: list[str] = []
        for condition in case.conditions:
            cells = [_cell(answers[f"{key} {condition}"], NAMES[name], notes) for name, answers in found.items()]
            lines.append(f"| `{condition}` | {' | '.join(cells)} |")
        lines += ["", *notes, ""] if notes else [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _heading(name: str, answers: Mapping[str, Any]) -> str:
    return NAMES[name] if name == "asyncpq" else f"{NAMES[name]} {answers['version']}"


def _cell(pair: list[Any], name: str, notes: list[str]) -> str:
    texts = []
    for answer in pair:
        if isinstance(answer, str):
            note = f"- {name}: `{answer}`"
            if note not in notes:
                notes.append(note)
            texts.append("error")
        else:
            texts.append(", ".join(map(str, answer)) or "none")
    return texts[0] if texts[0] == texts[1] else f"**{texts[0]}; {texts[1]}**"


def main() -> None:
    """Ask, write the page, and fail if asyncpq's answers depend on statistics."""
    with tempfile.TemporaryDirectory() as folder:
        found = ask_all(Path(folder))
    (ROOT / "docs" / "others.md").write_text(page(found, datetime.now(UTC).date().isoformat()))
    wrong = [
        question
        for question, pair in found["asyncpq"].items()
        if question != "version" and (pair[0] != pair[1] or isinstance(pair[0], str))
    ]
    sys.exit(f"asyncpq's answers depend on statistics: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
