"""The pages for newcomers do what they say: code and commands run, one block after another, as a reader runs them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
import asyncpq.blocking
import asyncpq.errors
from asyncpq.testing import ObjectServer

pytest.importorskip("typer")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import httpx
import pyarrow as pa
from aiohttp import ClientError, ClientTimeout, web
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from asyncpq.cli.commands import app as command_line
from asyncpq.serve import Service
from asyncpq.serve.configuration import parse_configuration
from tests.docs.test_readme import compiled, trips

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ["index.md", "start.md", *sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))]
__all__ = ["trips"]  # the fixture


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, outside of tabs: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Reader:
    """Runs a page's blocks, as a reader who pastes them into a notebook and a terminal."""

    def __init__(self, page: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.page = page
        self.capsys = capsys
        self.printed: list[str] = []
        self.names: dict[str, Any] = {"__name__": "__page__", "asyncpq": asyncpq}

    @contextlib.contextmanager
    def notebook(self) -> Iterator[None]:
        """Blocks with ``await`` share an event loop, a session and a file."""
        with asyncio.Runner() as runner:
            self.run = runner.run
            session = runner.run(_entered())
            self.names["session"] = session
            self.names["file"] = runner.run(session.open_file("s3://bucket/trips.parquet"))
            yield
            runner.run(session.close())
            if (closing := self.names["session"].close()) is not None:  # the page's own
                runner.run(closing)

    def python(self, source: str) -> None:
        code = compiled(source, self.page)
        if code.co_flags & inspect.CO_COROUTINE:
            self.run(eval(code, self.names))
        else:
            exec(code, self.names)
        printed = self.capsys.readouterr().out.splitlines()
        self.printed = printed
        for shown in re.findall(r"^ *print\(.*\)  # -> (.*)$", source, re.MULTILINE):
            assert shown in printed


def _run_commands(commands: str) -> str:
    """Run commands of ``asyncpq``; return what they print."""
    printed = []
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "asyncpq"
        done = CliRunner().invoke(command_line, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
        printed.append(done.output)
    return "".join(printed)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_top_to_bottom(
    page: str, trips: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # of caches on disk
    sessions: list[asyncpq.blocking.Session] = []  # some outlive the page's code
    blocking = asyncpq.blocking.Session

    def recorded(*arguments: Any, **options: Any) -> asyncpq.blocking.Session:
        sessions.append(blocking(*arguments, **options))
        return sessions[-1]

    monkeypatch.setattr(asyncpq.blocking, "BlockingSession", recorded)
    if page == "how-to/own-door.md":  # whose first block is a module
        (tmp_path / "pandas_door.py").write_text(next(text for language, text in blocks(page) if language == "python"))
        monkeypatch.syspath_prepend(tmp_path)
    reader = Reader(page, capsys)
    with reader.notebook():
        for language, text in blocks(page):
            if language == "python":
                reader.python(text)
            elif language == "sh":
                _run_commands(text)
    for session in sessions:
        session.close()
    if page == "how-to/fastapi.md":
        asyncio.run(_ask(reader.names["app"]))
    if page == "how-to/aiohttp.md":
        asyncio.run(_ask_aiohttp(reader.names["app"]))


async def _throttled(*arguments: Any, **options: Any) -> None:
    raise asyncpq.ThrottledError("the store asks to slow down")


async def _wrong_column(*arguments: Any, **options: Any) -> None:
    raise asyncpq.ColumnNotFoundError("no column 'user'")


async def _damaged(*arguments: Any, **options: Any) -> None:
    raise asyncpq.CorruptFileError("a page is damaged")


async def _ask(app: Any) -> None:
    """Hold the application of the page to its endpoints."""
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        assert (await client.get("/trips/42")).json() == {"id": 42, "user": "u-42", "price": 4.2}
        assert (await client.get("/trips/99999999")).status_code == 404
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncpq.File, "lookup", _throttled)
            assert (await client.get("/trips/42")).status_code == 503
        assert len((await client.get("/trips", params={"user": "u-42"})).text.splitlines()) == 40


async def _hang(*arguments: Any, **options: Any) -> None:
    await asyncio.Event().wait()


async def _batch_and_error(scan: Any) -> Any:
    yield pa.record_batch({"id": [17], "price": [1.7]})
    raise asyncpq.TransportError("the connection failed")


async def _ask_aiohttp(app: web.Application) -> None:
    """Hold the application of the page to its endpoints, statuses, deadline, cancellation and stream."""
    server = TestServer(app, handler_cancellation=True)
    async with TestClient(server) as client:
        assert await (await client.get("/trips/42")).json() == {"id": 42, "user": "u-42", "price": 4.2}
        assert (await client.get("/trips/99999999")).status == 404
        assert (await client.get(f"/trips/{10**30}")).status == 404
        lines = await (await client.get("/users/u-42/trips")).text()
        assert len(lines.splitlines()) == 40
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncpq.File, "lookup", _throttled)
            assert (await client.get("/trips/42")).status == 503
            patched.setattr(asyncpq.File, "lookup", _damaged)
            assert (await client.get("/trips/42")).status == 502
            patched.setattr(asyncpq.File, "lookup", _wrong_column)
            assert (await client.get("/trips/42")).status == 400
            patched.setattr(asyncpq.File, "lookup", _hang)
            assert (await client.get("/trips/42")).status == 503  # at the timeout
            ended = asyncio.Event()

            async def watched(*arguments: Any, **options: Any) -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ended.set()
                    raise

            patched.setattr(asyncpq.File, "lookup", watched)
            with pytest.raises(TimeoutError):
                await client.get("/trips/42", timeout=ClientTimeout(total=0.1))
            await asyncio.wait_for(ended.wait(), 10)
            patched.setattr(asyncpq.Scan, "__aiter__", _batch_and_error)
            answer = await client.get("/users/u-42/trips")
            assert answer.status == 200
            with pytest.raises(ClientError):
                await answer.text()


@pytest.mark.heavy
def test_the_start_shows_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    shown = re.findall(r"^    (\[.*\]|[\d,]+ bytes of [\d,]+)$", page, re.MULTILINE)
    written, lookup = [text for language, text in blocks("start.md") if language == "python"][:2]
    exec(compiled(written, "start.md"), {})
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compiled(lookup, "start.md"), {"__name__": "__page__"})
    row, cost = output.getvalue().splitlines()
    assert row == shown[0]
    measured, told = (
        [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", text)] for text in (cost, shown[1])
    )
    assert measured == pytest.approx(told, rel=0.2)  # other versions of pyarrow write other bytes
    answers = re.findall(r"^    (\{.*\})$", page, re.MULTILINE)
    queries = next(text for language, text in blocks("start.md") if language == "sh")
    assert _run_commands(queries).splitlines() == answers


@pytest.mark.heavy
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    reader = Reader("tutorial.md", capsys)
    found = blocks("tutorial.md")
    python = [text for language, text in found if language == "python"]
    shell = [text for language, text in found if language == "sh" and text.startswith("asyncpq")]
    reader.python(python[0])
    with ObjectServer.in_thread() as server:
        for path in Path("orders").glob("*.parquet"):
            server.put(f"shop/orders/{path.name}", path.read_bytes())
        _environment(monkeypatch, server)
        why, lint, index, optimize = [_run_commands(text) for text in shell]
        assert "12 of        12" in why
        assert [line in why for line in re.findall(r"^      (files|row groups|rows) .*$", page, re.MULTILINE)[:3]] == [
            True
        ] * 3
        assert "18 of 1,200,000  ruled out: 1,199,982 by filter" in why
        assert "18 of 1,200,000  ruled out: 1,199,982 by filter" in page
        assert all(rule in lint for rule in ("no-index", "no-page-index"))
        assert "tiny-files" not in lint  # a few large files would take a lookup longer
        assert "1 row, 1 request in 1 round" in index
        assert "1 of      12" in index
        assert "1 of         1" in optimize
        assert "0 findings for lookups by customer" in optimize
        Path("shop.py").write_text(python[1])
        monkeypatch.syspath_prepend(tmp_path)
        reader.python(python[2])
        watched = re.findall(r"^    (\d+ \d+ \d+ )\d+ \d+$", page, re.MULTILINE)
        assert [line.rsplit(" ", 2)[0] + " " for line in reader.printed] == watched
        monkeypatch.delitem(sys.modules, "shop")
        monkeypatch.setenv("OPS_TOKEN", "thirty-two-characters-that-nobody-guesses")
        service = "".join(text for language, text in found if language == "toml")
        (curl,) = [text for language, text in found if text.startswith("curl")]
        served, headers = asyncio.run(_served(service.replace("http://127.0.0.1:9321", server.endpoint), curl))
        assert len(served["rows"]) == 18
        for name in re.findall(r"^    (asyncpq-\w+): ", page, re.MULTILINE):
            assert name in headers


def _environment(monkeypatch: pytest.MonkeyPatch, server: ObjectServer) -> None:
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


async def _entered() -> asyncpq.Session:
    return await asyncpq.Session()


async def _served(configuration: str, curl: str) -> tuple[Any, httpx.Headers]:
    """The service's answer to the page's request, and to that for its metrics."""
    url = shlex.split(curl)[-1]
    async with Service(parse_configuration(tomllib.loads(configuration))) as service:
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport) as client:
            answer = await client.get(url)
            token = {"Authorization": "Bearer thirty-two-characters-that-nobody-guesses"}
            metrics = await client.get("http://127.0.0.1:8080/metrics", headers=token)
    assert answer.status_code == metrics.status_code == 200
    return answer.json(), answer.headers


def names_of(requirements: list[str]) -> set[str]:
    """The packages of a list of requirements."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/tutorial.md"])
def test_a_page_installs_what_its_code_imports(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, others = re.findall(r"^    pip install 'asyncpq-parquet\[([\w,]+)\]'([^#\n]*)", text, re.MULTILINE)[0]
    installed = names_of(project["dependencies"]) | {"asyncpq", *others.split()}
    for extra in extras.split(","):
        installed |= names_of(project["optional-dependencies"][extra])
    saved = set(re.findall(r"[Ss]ave this as\s+`(\w+)\.py`", text))
    code = "".join(re.findall(r"^```py(?:thon)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    imported = {name.split(".")[0] for name in re.findall(r"^(?:import|from) ([\w.]+)", code, re.MULTILINE)}
    assert imported - sys.stdlib_module_names <= installed | saved


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[\w -]+: )?([\w/.-]+\.md)$", settings, re.MULTILINE)
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) == there | {"CHANGELOG.md", "cache/README.md"}
    assert len(listed) == len(set(listed))


def test_pictures_follow_the_theme() -> None:
    """Each picture is shown in a light and in a dark form, and a chart's dark form is that of its light one."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / ".ci" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    shown = 0
    for page in DOCS.rglob("*.md"):
        images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        light = [image.removesuffix("#gh-light-mode-only") for image in images[::2]]
        assert [f"{image}#gh-light-mode-only" for image in light] == images[::2]
        assert images[1::2] == [f"{pictures.dark(Path(image)).as_posix()}#gh-dark-mode-only" for image in light]
        assert all((page.parent / image).is_file() for image in light)
        shown += len(light)
    assert shown >= 7
    charts = list(pictures.charts())
    assert len(charts) >= 2
    for chart in charts:
        assert pictures.dark(chart).read_text(encoding="utf-8") == pictures.darkened(chart.read_text(encoding="utf-8"))


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: asyncpq\.([\w.]+)$", pages, re.MULTILINE)
    errors = {
        name for name in asyncpq.__all__ if inspect.isclass(getattr(asyncpq, name)) and name in vars(asyncpq.errors)
    }
    assert set(asyncpq.__all__) - errors <= set(shown)
    assert "errors" in shown
    assert len(shown) == len(set(shown))
