"""A quarter of a minute of `make soak`: no wrong row, no error but the store's, nothing left behind."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from asyncpq.testing import ObjectServer
from tests.soak.objects import FILES, VERSIONS, SoakObject, SoakQuestion
from tests.soak.run import Report, counted_warnings, verdict

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_quarter_of_a_minute() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.run", "--minutes", "0.25", "--seed", "1"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
    assert "Task exception was never retrieved" not in done.stderr, done.stderr


def test_warnings_are_counted_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    report, logger = Report(), logging.getLogger("asyncpq.reads")
    with counted_warnings(report.warnings):
        for name in ("a", "b", "c"):
            logger.warning("%s starts again", name)
        logger.info("nothing")
    assert report.warnings == {"asyncpq.reads: %s starts again": 3}
    assert not caplog.records
    logger.warning("%s is shown", "this")
    assert [record.getMessage() for record in caplog.records] == ["this is shown"]


def test_what_a_run_is_judged_by() -> None:
    good = Report()
    good.reads["lookup"] = good.faults["500"] = good.replaced = 1
    good.resident = [(float(at), 100 << 20) for at in range(30)]
    assert verdict(good) == []
    good.resident += [(30.0 + at, 200 << 20) for at in range(15)]
    assert "memory grew" in verdict(good)[0]
    good.resident.clear()
    good.most_tasks = 5000
    assert "piles up" in verdict(good)[0]
    good.most_tasks = 600
    good.wrong.append("rows of version 3")
    assert verdict(good) == ["wrong: rows of version 3"]
    assert verdict(Report()) == ["too little happened to say anything"]


def test_a_replacement_that_took_effect_late_is_noted() -> None:
    server = ObjectServer()
    one = SoakObject("lake/x")
    one.replace(server, 1)
    server.put(one.path, FILES[2])
    assert one.current == 1
    one.observe(server)
    assert one.current == 2


def test_versions_of_a_time() -> None:
    one = SoakObject("lake/x", [(10.0, 1), (20.0, 2), (30.0, 3)])
    assert one.versions_between(12, 15) == {1}
    assert one.versions_between(15, 25) == {1, 2}
    assert one.versions_between(31, 32) == {3}
    question = SoakQuestion("lookup", 5, 9, ("value",))
    answers = [question.answer(version) for version in range(VERSIONS)]
    assert len({str(answer) for answer in answers}) == VERSIONS
    assert all(isinstance(answer, pa.Table) for answer in answers)
