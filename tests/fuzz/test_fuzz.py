"""A short run of the fuzzers, with fixed seeds; `make fuzz` is the long one.

Holds: a damaged file gives what pyarrow reads out of the good one (or out of the damaged one, where that is
right in itself), or ends in a typed error; in bounded memory, without a hang. Files that once did otherwise
are kept in ``seeds/``.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fuzz import bases, decoders, judge, mutations, table_metadata
from tests.fuzz.mutations import Case
from tests.fuzz.parquet_parts import ParquetParts
from tests.fuzz.run import SEEDS, Worker
from tests.fuzz.targets import NAMES
from tests.fuzz.thrift_trees import Struct, parse, write

pytestmark = pytest.mark.faults

KEPT = sorted(SEEDS.glob("*.parquet"))


@pytest.mark.heavy
def test_damaged_files() -> None:
    worker = Worker()
    try:
        for seed in range(100):
            wrong = worker.judge(seed)
            assert wrong is None, f'make fuzz ARGS="--seed {seed}"\n{wrong}'
    finally:
        worker.close()


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_files_that_were_read_wrongly_once(path: Path) -> None:
    base, says, seed = path.stem.rsplit("-", 2)
    case = Case(base, path.read_bytes(), says == "other", path.stem)
    asyncio.run(judge.judge(case, path, int(seed)))


@pytest.mark.parametrize("name", NAMES)
def test_decoders(name: str) -> None:
    """What atheris looks for, on good bytes and on a few damaged ones."""
    rng = random.Random(name)
    examples = list(decoders.examples(name))
    for data in rng.sample(examples, min(len(examples), 30)):
        decoders.DECODERS[name](data)
        for _ in range(10):
            decoders.check(name, mutations.changed_bytes(rng, data))


def test_the_targets_are_the_decoders() -> None:
    assert set(NAMES) == set(decoders.DECODERS)


@pytest.mark.parametrize("name", bases.WRITTEN)
def test_files_are_put_together_as_they_were(name: str) -> None:
    parts = ParquetParts(bases.data(name))
    assert parts.rebuilt() == bases.data(name)
    parts.chunks[0].pages[0].header.set(100, 7)  # a longer header: all that follows moves
    moved = parts.rebuilt()
    assert len(moved) > len(bases.data(name))
    columns = [column for column in bases.table(name).column_names if column != bases.UNREADABLE.get(name)]
    assert pq.read_table(io.BytesIO(moved), columns=columns).equals(bases.table(name).select(columns))


def test_trees_are_written_as_they_were() -> None:
    for data in decoders.examples("thrift"):
        tree, stop = parse(data)
        assert stop == len(data)
        assert write(tree) == data
    assert write(Struct()) == b"\0"


async def test_the_judge_notices(tmp_path: Path) -> None:
    """Another good file, of other rows, is not taken for right."""
    path = tmp_path / "case.parquet"
    path.write_bytes(bases.data("nested"))
    with pytest.raises(judge.WrongAnswerError):
        await judge.judge(Case("plain", b"not Parquet", False, "another file"), path, 1)


@pytest.mark.heavy
def test_a_worker_that_dies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    try:
        assert worker.judge(3) is None
        assert worker._process is not None
        worker._process.kill()
        worker._process.wait()
        assert "died" in (worker.judge(4) or "")
        assert worker.judge(5) is None
        monkeypatch.setattr("tests.fuzz.run.CASE_TIMEOUT_S", 0.0)
        assert "no answer" in (worker.judge(6) or "")
    finally:
        worker.close()


@pytest.mark.heavy
def test_damaged_tables() -> None:
    worker = Worker("tests.fuzz.table_metadata")
    try:
        for seed in range(100):
            wrong = worker.judge(seed)
            assert wrong is None, f"python -m tests.fuzz.table_metadata {seed}\n{wrong}"
    finally:
        worker.close()
    assert worker.peak_kib <= table_metadata.RESIDENT_GROWTH


async def test_the_judge_of_tables_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows, and an error that is not asyncpq's."""
    try:
        delta = table_metadata.bases()["delta"]
        last = f"_delta_log/{2:020}.json"
        case = table_metadata.Case("delta", {last: None}, False, "no last commit")
        with pytest.raises(judge.WrongAnswerError, match="not the good table's"):
            await table_metadata.judge(case)
        assert (delta.folder / last).exists()
        monkeypatch.setattr(json, "loads", lambda text: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await table_metadata.judge(case._replace(files={}))
    finally:
        table_metadata.remove_bases()
