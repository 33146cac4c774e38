"""``asyncpq lint`` of files, lakes and tables."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import asyncpq
from asyncpq.cli import arguments
from asyncpq.cli.commands import app
from asyncpq.reports.cures import CURES
from asyncpq.reports.documents import Lint
from localstack.seed import seed
from tests.alp_pages import alp_file
from tests.cli.snapshots import check_snapshot
from tests.iceberg_tables import make_table
from tests.reports.lookups import REQUESTS, encoded, trips

pytestmark = pytest.mark.sampled(2)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that outputs do not depend on the length of its name
    monkeypatch.setattr(arguments, "REQUESTS", REQUESTS)


def run(*arguments: object, width: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["lint", *map(str, arguments)])


@pytest.fixture
def bad() -> Path:
    path = Path("bad.parquet")
    path.write_bytes(encoded(trips(), write_page_index=False, compression="none"))
    return path


def test_a_file(bad: Path) -> None:
    done = run(bad, "--column", "user", "--writer", "pyarrow", "--writer", "asyncpq")
    assert (done.exit_code, done.stderr) == (0, "")
    check_snapshot("lint-file.txt", done.stdout)


@pytest.mark.heavy
@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_terminal(bad: Path, width: int) -> None:
    printed = run(bad, "--column", "user", "--writer", "spark", width=width).stdout.splitlines()
    lines = [line for line in printed if not line.startswith("     spark")]  # code stays in one line, to be copied
    assert len(lines) > 8
    assert max(map(len, lines[1:])) <= width  # so does the url


@pytest.mark.heavy
def test_the_document(bad: Path) -> None:
    document = json.loads(run(bad, "--column", "user", "--format", "json").stdout)
    msgspec.convert(document, Lint, strict=True)
    check_snapshot("lint-file.json", json.dumps(document, indent=1))


def test_strict_has_an_exit_code_of_its_own(bad: Path) -> None:
    assert run(bad, "--column", "user", "--strict").exit_code == 5
    good = Path("good.parquet")
    good.write_bytes(encoded(trips()))
    done = run(good, "--column", "id", "--strict")
    assert (done.exit_code, done.stdout.splitlines()[1]) == (0, "0 findings for lookups by id")


def test_a_note_is_shown_and_is_no_reason_to_fail() -> None:
    """A healthy file of ALP is slower in nothing."""
    Path("alp.parquet").write_bytes(alp_file(pa.table({"id": range(1500), "x": [at / 4 for at in range(1500)]}), [1]))
    done = run("alp.parquet", "--column", "id", "--strict")
    assert done.exit_code == 0
    assert "[few-readers]" in done.stdout


def test_a_lake_of_500_files() -> None:
    Path("lake").mkdir()
    for number in range(500):
        pq.write_table(trips().slice(number * 100, 100), f"lake/{number:03}.parquet")
    done = run("lake", "--column", "user", "--writer", "asyncpq")
    assert done.exit_code == 0
    check_snapshot("lint-lake.txt", done.stdout)


def test_tables(tmp_path: Path) -> None:
    rows = trips().slice(0, 100)
    deltalake.write_deltalake(tmp_path / "delta", rows)
    table = make_table(tmp_path, rows.schema)
    table.append(rows)
    for url in ("delta", table.metadata_location.removeprefix("file://")):
        done = run(url)
        assert done.exit_code == 0, done.output
        assert "0 findings for lookups by id" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["missing.parquet"], 3, "no such file"),
        (["bad.parquet", "--column", "nothing"], 2, "no such column"),
        (["."], 2, ""),
        ([], 2, "missing argument"),
    ],
)
def test_errors_are_one_line(bad: Path, arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments, *(["--column", "nothing"] if arguments == ["."] else []))
    assert done.exit_code == code
    assert says in done.stderr
    assert done.stdout == ""


def test_the_page_describes_each_rule() -> None:
    page = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("cli-*.md"))
    cells = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    described = {rule for cell in cells for rule in re.findall(r"`([\w-]+)`", cell)}
    assert set(CURES) | {"big-footer", "huge-dictionary", "dictionary-fallback", "no-dictionary"} <= described


def test_the_blocking_form_says_the_same(bad: Path) -> None:
    with asyncpq.blocking.open_file(bad, requests=REQUESTS) as file:
        document = file.lint(["user"])
    assert json.loads(run(bad, "--column", "user", "--format", "json").stdout) == document


async def test_an_object_store(localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {f"lake/{name}.parquet": encoded(trips(), write_page_index=False) for name in "ab"})
    runner = CliRunner(env={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    for url, rule in [("s3://bucket/lake/a.parquet", "no-page-index"), ("s3://bucket/lake/", "no-page-index")]:
        arguments = ["lint", url.replace("bucket", bucket), "--column", "id", "--endpoint-url", localstack, "--strict"]
        done = await asyncio.to_thread(runner.invoke, app, arguments)
        assert done.exit_code == 5, done.output
        assert f"[{rule}]" in done.stdout
