"""The benchmark's files as its workers see them: where they are, the keys and reads, and what each must give.

This module imports neither pyarrow nor numpy: a worker measures what its peer imports. :mod:`benchmarks.data` makes
the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

BUCKET = "bench"
KEY_STEP = 3  # ids are multiples of it
WANTED = ("user", "event", "price")
LAKE_FILES = 500
WIDE_COLUMNS = 2_000

Kind = Literal["events", "events-bloom", "lake", "lake-refs", "wide"]


class Condition(NamedTuple):
    """A filter: ``column`` equals ``operand``, is between its two values, or is one of its values."""

    column: str
    operator: Literal["equal", "between", "in"]
    operand: Any


class Question(NamedTuple):
    """A read of many rows: all ``columns`` (None: those of the file) of the rows that meet ``where``.

    With ``summed`` the one column is counted and summed up, not returned. ``num_rows`` must come out.
    """

    columns: tuple[str, ...] | None
    where: Condition | None
    num_rows: int
    summed: bool = False


@dataclass(frozen=True)
class Dataset:
    """Where the file is, or the folder of files, and what each read of it must give.

    ``keys[i]`` is looked up in ``column``, has the user ``users[i]`` and is in the row ``places[i]``; ``warm_up``
    are other keys. ``questions`` are by workload.
    """

    root: Path
    name: str
    rows: int
    keys: list[int]
    users: list[str]
    warm_up: list[int]
    places: list[int]
    questions: dict[str, Question]
    column: str = "id"

    @property
    def file(self) -> Path:
        return self.root / BUCKET / self.name

    @property
    def folder_key(self) -> str:
        """Key of the folder that holds nothing but the file, or the files."""
        return self.name.rpartition("/")[0]

    @property
    def num_bytes(self) -> int:
        """Of the file, or of all files."""
        return sum(file.stat().st_size for file in (self.file.iterdir() if self.file.is_dir() else [self.file]))


def load(folder: Path, rows: int, kind: Kind = "events") -> Dataset:
    """The dataset that :func:`benchmarks.data.ensure` made."""
    stored = json.loads((folder / f"keys-{rows}.json").read_text())
    if kind != "events-bloom":
        places = [key // KEY_STEP for key in stored["keys"]]
    else:
        places = json.loads((folder / f"places-{rows}.json").read_text())
    column = "id"
    if kind == "lake-refs":
        column = "ref"
        stored |= json.loads((folder / f"refs-{rows}.json").read_text())
    questions = _questions(json.loads((folder / f"reads-{rows}.json").read_text()), rows)
    return Dataset(
        folder / "objects", file_name(rows, kind), rows, places=places, column=column, questions=questions, **stored
    )


def file_name(rows: int, kind: Kind) -> str:
    """Key of a file, or of a folder, which ends in a slash."""
    if kind in ("lake", "lake-refs"):
        return f"lake-{rows}/"
    return "wide/wide.parquet" if kind == "wide" else f"{kind}-{rows}/events.parquet"


def lake_files() -> list[str]:
    """Names of the lake's files, in order."""
    return [f"part-{number:05d}.parquet" for number in range(LAKE_FILES)]


def _questions(stored: dict[str, Any], rows: int) -> dict[str, Question]:
    """The reads of each workload that is no lookup."""
    low, high = rows * 43 // 100, rows * 43 // 100 + rows // 1000
    five = ("user", "event", "price", "score", "ref")
    return {
        "W4": Question(five, Condition("id", "between", [low * KEY_STEP, (high - 1) * KEY_STEP]), high - low),
        "W5": Question(("id", "event", "price"), Condition("user", "equal", stored["user"]), stored["user_rows"]),
        "W6": Question(tuple(f"c{number:04d}" for number in (3, 401, 888, 1250, 1999)), None, 10_000),
        "W8": Question(("price",), None, rows, summed=True),
        "W9": Question(("id", *WANTED), Condition("id", "in", stored["batch"]), len(stored["batch"])),
        "W10": Question(None, None, rows),
    }
