"""``asyncpq index``: its life from build to drop, what it prints, and bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from asyncpq.cli.commands import app
from asyncpq.cli.index_commands import parse_kind
from asyncpq.distributed import build_tasks
from asyncpq.errors import InvalidOptionError
from asyncpq.indexing import Bloom, Bounds, Footers, Keys


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def document(*arguments: object) -> Any:
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        add(folder, number)
    return folder


def add(folder: Path, number: int) -> None:
    ids = range(number * 100, number * 100 + 100)
    users = [f"u-{identity * 7919 % 97}" for identity in ids]
    pq.write_table(pa.table({"id": list(ids), "user": users}), folder / f"{number}.parquet")


def test_an_index_from_build_to_drop(lake: Path) -> None:
    built = document("index", "build", f"{lake}/", "-k", "keys:user", "-k", "footers")
    assert (built["document"], built["added"], built["removed"], built["problems"]) == ("index build", 3, 0, [])
    add(lake, 3)
    (lake / "0.parquet").unlink()
    stale = document("index", "show", f"{lake}/", "--stale")["stale"]
    assert stale == {"new": 1, "changed": 0, "gone": 1}
    refreshed = document("index", "refresh", f"{lake}/")
    assert (refreshed["added"], refreshed["removed"]) == (1, 1)
    shown = document("index", "show", f"{lake}/")
    assert (shown["files"], shown["rows"], shown["stale"]) == (3, 300, None)
    assert [table["kind"] for table in shown["tables"]] == ["files", "keys", "footers"]
    verified = document("index", "verify", f"{lake}/")
    assert (verified["files"], verified["problems"]) == (3, [])
    compacted = document("index", "compact", f"{lake}/")
    assert compacted["segments_replaced"] > compacted["segments_written"] > 0
    cleaned = document("index", "vacuum", f"{lake}/", "--keep", "1", "--older-than", "0s")
    assert cleaned["segments_removed"] > 0
    assert run("index", "drop", f"{lake}/", "--yes").exit_code == 0
    assert run("index", "show", f"{lake}/").exit_code == 3


@pytest.mark.heavy
def test_processes_build_as_one_does(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, processes = list[int](), build_tasks.worker_processes

    def counted(count: int) -> Any:
        counts.append(count)
        return processes(count)

    monkeypatch.setattr(build_tasks, "worker_processes", counted)
    options = ["-k", "keys:user", "-k", "footers", "--at"]
    document("index", "build", f"{lake}/", *options, tmp_path / "one")
    assert not counts
    built = document("index", "build", f"{lake}/", *options, tmp_path / "two", "--workers", 2)
    assert (built["added"], built["problems"], counts) == (3, [], [2])
    one, two = (document("index", "show", f"{lake}/", "--at", tmp_path / at)["tables"] for at in ("one", "two"))
    assert [(table["kind"], table["rows"]) for table in one] == [(table["kind"], table["rows"]) for table in two]


def test_the_text_of_show(lake: Path) -> None:
    run("index", "build", f"{lake}/")
    text = run("index", "show", f"{lake}/", "--stale").stdout
    text = text.replace(str(lake), "LAKE")
    text = re.sub(r"\d{4}-\S+", "TIME", text)
    text = re.sub(r"[\d.]+ (B|KiB)", "SIZE", text)
    assert [line.split() for line in text.splitlines() if line.strip()] == [
        ["index", "at", "LAKE/_asyncpq/,", "snapshot", "2"],
        ["files", "3"],
        ["rows", "300"],
        ["size", "SIZE"],
        ["listed", "at", "TIME"],
        ["since", "then", "0", "new,", "0", "changed,", "0", "gone"],
        ["Kinds"],
        ["kind", "columns", "files", "rows", "size", "segments"],
        ["─" * len(next(line for line in text.splitlines() if line.startswith("─")).strip())],
        ["files", "3", "3", "SIZE", "1"],
        ["footers", "3", "3", "SIZE", "1"],
        ["bounds", "id", "3", "6", "SIZE", "1"],
        ["bounds", "user", "3", "6", "SIZE", "1"],
    ]


def test_an_index_elsewhere(lake: Path, tmp_path: Path) -> None:
    place = tmp_path / "places" / "index"
    run("index", "build", lake / "*.parquet", "--at", place)
    shown = document("index", "show", lake / "*.parquet", "--at", place)
    assert shown["files"] == 3
    assert document("index", "refresh", lake / "*.parquet", "--at", place)["added"] == 0


def test_a_wrong_index_ends_with_an_error(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("index", "build", f"{lake}/", "-k", "keys:user")
    from asyncpq.indexing.build.maintenance import Verified
    from asyncpq.indexing.index import Index

    async def verify(self: Index, **_: object) -> Verified:
        return Verified(files=1, rows=5, problems=["a row is missing"])

    monkeypatch.setattr(Index, "verify", verify)
    done = run("index", "verify", f"{lake}/")
    assert done.exit_code == 1
    assert "a row is missing" in done.stdout


def test_nothing_is_dropped_without_a_yes(lake: Path) -> None:
    run("index", "build", f"{lake}/")
    done = CliRunner().invoke(app, ["index", "drop", f"{lake}/"], input="n\n")
    assert done.exit_code == 1
    assert run("index", "show", f"{lake}/").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "LAKE/", "-k", "kees:id"], 2, "Did you mean 'keys'?"),
        (["build", "LAKE/", "-k", "keys:nothing"], 2, "nothing"),
        (["build", "LAKE/", "-k", "bloom:id,size=3"], 2, "bloom:user,false_positives"),
        (["build", "LAKE/*.parquet"], 2, "--at must be given"),
        (["build", "NOTHING/"], 3, "NOTHING"),
        (["show", "LAKE/"], 3, "there is no index"),
        (["vacuum", "LAKE/", "--older-than", "soon"], 2, "90m, 12h or 7d"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_gets_one_line(lake: Path, arguments: list[str], code: int, message: str) -> None:
    before = sorted(lake.rglob("*"))
    done = run("index", *[argument.replace("LAKE", str(lake)) for argument in arguments])
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert sorted(lake.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("footers", Footers()),
        ("bounds", Bounds()),
        ("bounds:a,b.c", Bounds("a", "b.c")),
        ("keys:a,b,max_postings=7", Keys("a", "b", max_postings=7)),
        ("bloom:a,false_positives=0.25", Bloom("a", false_positives=0.25)),
    ],
)
def test_kinds(text: str, kind: object) -> None:
    assert parse_kind(text) == kind


def test_kinds_that_cannot_be() -> None:
    with pytest.raises(InvalidOptionError, match="no kind of index ''"):
        parse_kind("")
    with pytest.raises(InvalidOptionError, match="no option 'fpp' of 'bloom', whose options are: false_positives"):
        parse_kind("bloom:user,fpp=0.1")
    with pytest.raises(InvalidOptionError, match="no option 'n' of 'keys', whose options are: max_postings"):
        parse_kind("keys:user,n=1")
    with pytest.raises(InvalidOptionError, match="this kind has no columns, such as 'user'"):
        parse_kind("footers:user")
