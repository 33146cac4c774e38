"""Every Python block of the README and of the pages for users runs, as it is printed, against an S3 server here."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    *(f"docs/usage/{path.name}" for path in sorted((ROOT / "docs" / "usage").glob("*.md"))),
    "docs/datasets.md",
    "docs/tables.md",
    "docs/indexes.md",
    "docs/stores.md",
    "docs/stores-s3.md",
    "docs/testing.md",
    "docs/contracts.md",
    "docs/tools.md",
)
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
SHOWN_ENDPOINT = "http://127.0.0.1:9000"  # in the pages; the tests' server has a free port
ROWS = 20_000


def python_blocks(*pages: str) -> list[Any]:
    """The blocks' sources, moved down to the line where they stand."""
    blocks = []
    for page in pages:
        for match in re.finditer(r"^```python\n(.*?)^```$", TEXT[page], re.MULTILINE | re.DOTALL):
            line = TEXT[page].count("\n", 0, match.start(1))
            blocks.append(pytest.param("\n" * line + match[1], page, id=f"{page}-line-{line + 1}"))
    return blocks


def compiled(source: str, page: str) -> CodeType:
    """Blocks are written as in a notebook: ``await`` may stand at the top level."""
    code: CodeType = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


@pytest.fixture(scope="session", autouse=True)
def protocol() -> None:
    """As the entry point does where the package is installed."""
    fsspec.register_implementation("asyncpq", "asyncpq.fsspec.AsyncpqFileSystem", clobber=True)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """``s3://bucket/trips.parquet`` for clients that find their endpoint in the environment."""
    ids = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "user": [f"u-{number % 500}" for number in ids],
            "price": [number % 1000 / 10 for number in ids],
        }
    )
    data = parquet_bytes(table, row_group_size=5_000, write_page_index=True, data_page_size=4_096, compression="zstd")
    with ObjectServer.in_thread() as server:
        server.put("bucket/trips.parquet", data)
        for day in range(1, 5):
            part = parquet_bytes(table.slice((day - 1) * 5_000, 5_000), write_page_index=True)
            server.put(f"bucket/lake/day={day}/part-0.parquet", part)
        for name, value in {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield server


@pytest.mark.parametrize(("source", "page"), python_blocks(*PAGES))
def test_block_runs(
    source: str,
    page: str,
    trips: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compiled(source.replace(SHOWN_ENDPOINT, trips.endpoint), page)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(_run_in_session(code, page, trips.objects["bucket/trips.parquet"].data))
    else:
        exec(code, {"__name__": "__readme__", "asyncpq": asyncpq})
    printed = capsys.readouterr().out
    if "print(" in source:
        assert printed.strip(), "the block prints, and printed nothing"
    for shown in re.findall(r"^ *print\(.*\)  # -> (.*)$", source, re.MULTILINE):
        assert shown in printed.splitlines()


async def _run_in_session(code: CodeType, page: str, data: bytes) -> None:
    async with asyncpq.Session() as session:
        names: dict[str, Any] = {"asyncpq": asyncpq, "col": asyncpq.col, "session": session, "data": data}
        if page == "docs/datasets.md":
            names["trips"] = await session.open_dataset("s3://bucket/lake/")
        elif page == "docs/indexes.md":
            kinds = [asyncpq.indexing.Bounds("day"), asyncpq.indexing.Keys("user"), asyncpq.indexing.Footers()]
            names["index"] = await session.build_index("s3://bucket/lake/", kinds)
            names["trips"] = await session.open_dataset("s3://bucket/lake/", index=names["index"])
        else:
            names["file"] = await session.open_file("s3://bucket/trips.parquet")
        await eval(code, names)


def test_there_are_blocks() -> None:
    assert len(python_blocks("README.md")) >= 3
    assert len(python_blocks(*(page for page in PAGES if page.startswith("docs/usage/")))) >= 20
    assert len(python_blocks("docs/datasets.md")) >= 5
    assert len(python_blocks("docs/indexes.md")) >= 5
    assert len(python_blocks("docs/testing.md", "docs/contracts.md")) >= 10


@pytest.mark.parametrize(
    "page",
    ["README.md", "cache/README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))],
)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_no_block_takes_the_readers_session(page: Path) -> None:
    """A reader who pastes blocks one after another keeps ``session``: a new one under that name is entered, too."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [block for block in blocks if re.search(r"^(session|file) = asyncpq\.", block, re.MULTILINE)] == []


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^    make ([a-z-]+)", TEXT["README.md"], re.MULTILINE)
    assert "test" in commands
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), f"make {command}"
