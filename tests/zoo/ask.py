"""Ask about the files of a folder: ``python -m tests.zoo.ask FOLDER QUESTIONS [VARIANT...]``.

Prints one JSON object a line: the name of each file when it begins, and its verdict when it ends, so that the caller
knows of which file the process died.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import pyarrow as pa

import asyncpq
from tests.zoo.questions import Asker, FullRead, Question, ask, difference

Outcome = Literal["right", "wrong", "refused", "crashed", "unreadable"]
MOST_FAILURES = 5  # told of one file


@dataclass(kw_only=True)
class Verdict:
    """What came of one file."""

    variant: str
    outcome: Outcome = "right"
    questions: int = 0
    unreadable: list[str] = field(default_factory=list)  # columns that pyarrow cannot read, and no question is about
    failures: list[str] = field(default_factory=list)

    def fail(self, outcome: Outcome, text: str) -> None:
        """The worst outcome counts."""
        order: list[Outcome] = ["right", "refused", "wrong", "crashed", "unreadable"]
        self.outcome = max(self.outcome, outcome, key=order.index)
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(f"{outcome}: {text}")


async def judge(path: Path, count: int) -> Verdict:
    """Ask for the whole content of a file, for counts by each column, and ``count`` random questions."""
    verdict = Verdict(variant=path.stem)
    try:
        full = FullRead(path)
    except (pa.ArrowException, OSError) as error:
        verdict.fail("unreadable", f"{type(error).__name__}: {error}")
        return verdict
    verdict.unreadable = full.unreadable
    columns = full.table.column_names if full.unreadable else None
    whole = Question(verb="read", columns=columns, rows=list(range(full.table.num_rows)))
    try:
        async with asyncpq.open_file(path) as file:
            asker = Asker(full, f"{path.parent.name}/{path.stem}")
            for question in chain([whole], asker.sweep(), asker.questions(count)):
                await _judge(file, full, question, verdict)
    except asyncpq.AsyncpqError as error:
        verdict.fail("refused", f"open: {type(error).__name__}: {error}".replace(str(path), path.name))
    return verdict


async def _judge(file: asyncpq.File, full: FullRead, question: Question, verdict: Verdict) -> None:
    verdict.questions += 1
    try:
        found = await ask(file, question)
    except asyncpq.AsyncpqError as error:
        verdict.fail("refused", f"{question}: {type(error).__name__}: {error}".replace(str(full.path), full.path.name))
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict.fail(
            "crashed", f"{question}: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        )
        return
    wanted = len(question.rows) if question.verb == "count" else full.answer(question)
    differs = difference(found, wanted)
    if differs is not None:
        verdict.fail("wrong", f"{question}: {differs}")


def main() -> None:
    """Judge the files of a folder, or those named."""
    folder, count, only = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for path in sorted(folder.glob("*.parquet")):
        if not only or path.stem in only:
            sys.stdout.write(json.dumps({"begin": path.stem}) + "\n")
            sys.stdout.flush()
            sys.stdout.write(json.dumps(asdict(asyncio.run(judge(path, count)))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
