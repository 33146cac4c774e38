"""The zoo's judge sees what it is to see: wrong rows, refusals, and files that pyarrow cannot read."""

from __future__ import annotations

import datetime as dt
import math
import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.parquet_files import EditedFile
from tests.zoo.ask import Verdict, judge
from tests.zoo.environments import NotInstalledError, interpreter
from tests.zoo.questions import Asker, FullRead, _beside, difference
from tests.zoo.registry import PROGRAMS, WRITERS
from tests.zoo.report import markdown

TABLE = pa.table({"n": range(100), "word": ["a", None, "b", "c"] * 25})


async def verdict_of(data: bytes, folder: Path) -> Verdict:
    path = folder / "file.parquet"
    path.write_bytes(data)
    return await judge(path, 20)


async def test_a_good_file_is_right(tmp_path: Path) -> None:
    verdict = await verdict_of(EditedFile.of(TABLE).data(), tmp_path)
    assert (verdict.outcome, verdict.failures) == ("right", [])
    assert verdict.questions == 1 + 2 * 4 + 20


async def test_bounds_that_lie_make_wrong_rows(tmp_path: Path) -> None:
    file = EditedFile.of(TABLE, write_page_index=False)
    statistics = file.statistics(0)
    statistics.put(5, (7).to_bytes(8, "little"))  # max_value
    verdict = await verdict_of(file.data(), tmp_path)
    assert verdict.outcome == "wrong"
    assert any("count" in failure for failure in verdict.failures)


async def test_a_checksum_that_fails_is_a_refusal(tmp_path: Path) -> None:
    file = EditedFile.of(TABLE, write_page_checksum=True, compression="none", use_dictionary=False)
    data = file.data()
    at = data.index((55).to_bytes(8, "little") + (56).to_bytes(8, "little"))
    verdict = await verdict_of(data[:at] + b"\x38" + data[at + 1 :], tmp_path)
    assert verdict.outcome == "refused"


async def test_what_pyarrow_cannot_read_is_unreadable(tmp_path: Path) -> None:
    assert (await verdict_of(b"PAR1 is no file PAR1", tmp_path)).outcome == "unreadable"


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(dt.date(9999, 12, 31)),
        pa.scalar(dt.date(1, 1, 1)),
        pa.scalar((1 << 63) - 1, pa.timestamp("us")),
        pa.scalar(-(1 << 63), pa.timestamp("us")),
    ],
)
def test_there_is_a_value_beside_the_last_one(value: pa.Scalar) -> None:
    for seed in range(8):
        assert _beside(value, random.Random(seed)) is not None


def test_questions_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(EditedFile.of(TABLE).data())
    asked = [[str(question) for question in Asker(FullRead(path), seed).questions(30)] for seed in ("a", "a", "b")]
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (3, 4),
        (pa.table({"x": [0.0]}), pa.table({"x": [-0.0]})),
        (pa.table({"x": [1]}), pa.table({"x": [1.0]})),
        (pa.table({"x": [1, None]}), pa.table({"x": [1]})),
        (pa.table({"x": ["a"]}), pa.table({"x": ["b"]})),
        (pa.table({"x": [[math.nan]]}), pa.table({"x": [[None]]}, schema=pa.schema([("x", pa.list_(pa.float64()))]))),
    ],
)
def test_answers_that_differ(found: pa.Table | int, wanted: pa.Table | int) -> None:
    assert difference(found, wanted)
    assert difference(found, found) is None
    assert difference(wanted, wanted) is None


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(NotInstalledError, match=r"no Python 2\.9"):
        interpreter("2.9")


def test_every_writer_has_a_program_and_a_folder_of_its_own() -> None:
    assert all((PROGRAMS / writer.program).exists() for writer in WRITERS)
    assert len({writer.folder for writer in WRITERS}) == len(WRITERS)


def test_the_report_names_what_is_not_right_and_who_is_missing() -> None:
    wrong = {
        "variant": "flat",
        "outcome": "wrong",
        "questions": 9,
        "unreadable": ["c"],
        "failures": ["wrong: count: 1"],
    }
    right = {"variant": "empty", "outcome": "right", "questions": 9, "unreadable": [], "failures": []}
    page = markdown(
        [
            {"name": "one", "version": "1", "not_installed": "", "failed": "", "verdicts": [wrong, right]},
            {"name": "two", "version": "2", "not_installed": "no wheel", "failed": "", "verdicts": []},
        ]
    )
    assert "**1 of 2 files are right**, after 18 questions." in page
    assert "| one | 1 | 2 | 1 | 1 | 0 | 0 | 0 |" in page
    assert "* one 1, `flat`, wrong: `count: 1`" in page
    assert "* two 2: `no wheel`" in page
