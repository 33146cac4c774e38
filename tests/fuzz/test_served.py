"""A short run of damaged indexes and listings, with fixed seeds; `make fuzz` is the long one.

Holds: the rows are the good ones or the error is a typed one, the process that asks ends each case in time and takes at
most 300 MB, its server included.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random

import pytest

from asyncpq.testing import ObjectServer
from tests.fuzz import served_worker
from tests.fuzz.json_mutations import change
from tests.fuzz.run import Worker
from tests.fuzz.served import KINDS

pytestmark = pytest.mark.faults

#: Seeds that once found something: bit masks of row groups, names that are not UTF-8, large pages, long keys.
FOUND = {"indexes": (20016, 20301, 50039, 50195, 50744), "listings": (41, 44, 65, 88, 30310)}


@pytest.mark.heavy
@pytest.mark.timeout(900)  # each case ends in time, too
@pytest.mark.parametrize("kind", KINDS)
def test_damaged(kind: str) -> None:
    worker = Worker("tests.fuzz.served_worker", kind)
    try:
        for seed in (*FOUND[kind], *range(25)):
            wrong = worker.judge(seed)
            assert wrong is None, f'make fuzz ARGS="--served {kind} --seed {seed}"\n{wrong}'
    finally:
        worker.close()


def test_the_judge_notices_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that expects other rows says so."""
    monkeypatch.setattr(served_worker, "_QUESTIONS", [("none", lambda dataset: dataset.read(), [])])
    with pytest.raises(served_worker.WrongAnswerError):
        asyncio.run(_prepared())


async def _prepared() -> None:
    async with ObjectServer() as server:
        await served_worker.Judge("indexes", server).prepare()


@pytest.mark.heavy
def test_changes_of_json_are_written_again() -> None:
    document = {"a": [1, {"b": "x"}], "c": "eJwDAAAAAAE="}
    rng = random.Random(1)
    seen = set()
    for _ in range(200):
        other = copy.deepcopy(document)
        assert change(rng, other)
        seen.add(json.dumps(other))
    assert len(seen) > 50
