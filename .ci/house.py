"""Count the shape of asyncpq and print each figure beside its goal: python .ci/house.py [--all], or `make house`.

--all prints every name behind a figure, not only the first ones. A missed goal is not an error. Needs an environment
with the developer's tools (`make venv`). The script stands here, not in tests/: it judges the sources, as
check_wheel.py judges the wheel, and no test depends on it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "asyncpq"
MAX_COMPLEXITY = 12
MAX_PARAMETERS = 7
DOORS = {"spark", "cli", "serve", "polars", "duckdb", "fsspec"}
#: What doors may take names from, beside `asyncpq` and `asyncpq.indexing`.
SEAMS = {"engine", "distributed", "typing", "reports", "page_map", "errors", "options", "metrics", "events", "blocking"}
#: The modules whose public functions say the types of their arguments.
INTERFACE = ("session.py", "file.py", "dataset.py", "blocking.py", "polars.py", "duckdb.py")


class Figure(NamedTuple):
    """``goal``: the most that the figure should be, or None where there is no goal."""

    name: str
    value: int
    goal: int | None = None
    examples: tuple[str, ...] = ()


def main(names_shown: int | None) -> None:
    """Print the figures, each with up to ``names_shown`` of the names behind it; None prints all of them."""
    figures = [*_sources(), *_lints(), *_imports(), *_lookups()]
    for figure in figures:
        goal = "" if figure.goal is None else f"at most {figure.goal:,}"
        verdict = "" if figure.goal is None else "ok" if figure.value <= figure.goal else "OVER"
        sys.stdout.write(f"{figure.name:<60} {figure.value:>7,}   {goal:<16} {verdict}\n")
        if figure.value > (figure.goal or 0) and figure.examples:
            shown = figure.examples[:names_shown]
            rest = f" and {len(figure.examples) - len(shown)} more" if len(shown) < len(figure.examples) else ""
            sys.stdout.write(f"    {', '.join(shown)}{rest}\n")
    goals = [figure for figure in figures if figure.goal is not None]
    reached = sum(figure.value <= (figure.goal or 0) for figure in goals)
    sys.stdout.write(f"{reached} of {len(goals)} goals are reached\n")


def _sources() -> Iterator[Figure]:
    """What the text of the modules says."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    longest = sorted(lines, key=lambda path: -lines[path])
    yield Figure("modules", len(texts), 290)
    yield Figure("lines", sum(lines.values()), 82_000)
    yield Figure("lines of the longest module", lines[longest[0]], 900, (_in_package(longest[0]),))
    importers = _importers(trees)
    lonely = [_in_package(path) for path in trees if path.name != "__init__.py" and len(importers[path]) == 1]
    yield Figure("modules with one importer", len(lonely))
    most = max(importers, key=lambda path: len(importers[path]))
    yield Figure("importers of the most imported module", len(importers[most]), None, (_in_package(most),))
    classes = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    yield _repeated("public class names that occur twice", (name for name in classes if not name.startswith("_")), 0)
    # Python gives these two their names; a `__main__` is run as a process by the tests of its room.
    files = [path for path in texts if path.name not in ("__init__.py", "__main__.py")]
    yield _repeated("file names that occur twice", (path.name for path in files), 8)
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    untested = [path for path in files if not {f"test_{path.name}", f"test_{path.parent.name}_{path.name}"} & tests]
    yield Figure(
        "modules without a test of their name", len(untested), 0, tuple(_in_package(path) for path in untested)
    )

    spark = sum(count for path, count in lines.items() if _in_package(path).startswith("spark/"))
    yield Figure("lines of spark/", spark, 9_500)
    yield from _signatures(trees)


def _signatures(trees: Mapping[Path, ast.Module]) -> Iterator[Figure]:
    """What doors take from inside, and what functions take."""
    inside: set[str] = set()
    wide: list[str] = []
    untyped: list[str] = []
    for path, tree in trees.items():
        room = _in_package(path).split("/")[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and room in DOORS and (node.module or "").startswith("asyncpq."):
                module = node.module or ""
                if module.split(".")[1] not in {room} | DOORS | SEAMS and module != "asyncpq.indexing":
                    inside |= {f"{module}.{alias.name}" for alias in node.names}
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments = [argument for argument in arguments if argument.arg not in ("self", "cls")]
            if len(arguments) > MAX_PARAMETERS:
                wide.append(f"{_in_package(path)}: {node.name}")
            if _in_package(path) in INTERFACE and not node.name.startswith("_"):
                types = [ast.unparse(argument.annotation) for argument in arguments if argument.annotation is not None]
                untyped += [f"{_in_package(path)}: {node.name}" for text in types if re.search(r"\bobject\b", text)]
    yield Figure("names that doors take from inside", len(inside), 0, tuple(sorted(inside)))
    yield Figure(f"functions of more than {MAX_PARAMETERS} parameters", len(wide), 8, tuple(wide))
    yield Figure("public parameters of type object", len(untyped), 0, tuple(untyped))


def _repeated(name: str, values: Iterable[str], goal: int) -> Figure:
    counts = Counter(values)
    repeated = tuple(f"{value} x {count}" for value, count in counts.most_common() if count > 1)
    return Figure(name, len(repeated), goal, repeated)


def _importers(trees: Mapping[Path, ast.Module]) -> dict[Path, set[Path]]:
    """The modules that import each module, be it inside a function or for type checkers only."""
    modules = {_dotted(path): path for path in trees}
    importers: dict[Path, set[Path]] = {path: set() for path in trees}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                # `from folder import module` imports the module, `from module import name` its module
                names = [name if name in modules else node.module for name in inside]
            else:
                continue
            for name in names:
                if name in modules:
                    importers[modules[name]].add(path)
    return importers


def _lints() -> Iterator[Figure]:
    """Findings of the two rules of ruff that the layout is held to."""
    settings = ["--isolated", "--select", "SLF001,C901", "--config", f"lint.mccabe.max-complexity={MAX_COMPLEXITY}"]
    command = [sys.executable, "-m", "ruff", "check", "--exit-zero", "--no-cache", *settings]
    done = subprocess.run(
        [*command, "--output-format", "json", str(PACKAGE)], stdout=subprocess.PIPE, text=True, check=True
    )
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    for code, name in (
        ("SLF001", "uses of another module's private attributes"),
        ("C901", f"functions more complex than {MAX_COMPLEXITY}"),
    ):
        files = [_in_package(Path(finding["filename"])) for finding in findings if finding["code"] == code]
        examples = tuple(f"{file} x {count}" for file, count in Counter(files).most_common())
        yield Figure(f"{name} (ruff {code})", len(files), 0, examples)


def _imports() -> Iterator[Figure]:
    """What `import asyncpq` loads in a new process."""
    loaded: list[str] = json.loads(_run("-c", "import json, sys, asyncpq; print(json.dumps(list(sys.modules)))"))
    own = [name for name in loaded if name.split(".")[0] == "asyncpq"]
    yield Figure("own modules that `import asyncpq` loads", len(own), 110)
    heavy = tuple(name for name in ("pandas", "pyarrow.dataset", "pyarrow.acero", "pyarrow.compute") if name in loaded)
    yield Figure("pandas or parts of pyarrow that it loads", len(heavy), 0, heavy)


def _lookups() -> Iterator[Figure]:
    """What a warm lookup that fetches pages runs: `File.lookup`, and `Dataset.lookup` through an index."""
    goals = {"File.lookup": (30, 300, 80), "Dataset.lookup through an index": (60, 700, 200)}
    counted: dict[str, list[int]] = json.loads(_run(__file__, "--lookups"))
    for lookup, values in counted.items():
        for what, value, goal in zip(("modules", "calls", "folder changes"), values, goals[lookup], strict=True):
            yield Figure(f"{lookup}: {what}", value, goal)


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _in_package(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _dotted(path: Path) -> str:
    return re.sub(r"(/__init__)?\.py$", "", path.relative_to(ROOT).as_posix()).replace("/", ".")


class _Profile:
    """Counts the Python calls into the package. A call from one top-level folder or module into another is a change."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._modules: set[str] = set()
        self._calls = self._changes = 0
        self._folder: str | None = None

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(self._package):
            return
        folder = path[len(self._package) :].split("/", 1)[0]
        self._modules.add(path)
        self._calls += 1
        self._changes += folder != self._folder
        self._folder = folder

    @property
    def counts(self) -> list[int]:
        """Modules, calls, changes of folder."""
        return [len(self._modules), self._calls, self._changes]


async def _profile_lookups(folder: str) -> dict[str, list[int]]:
    """Make four small files, index them, and profile one lookup of each sort after some of other keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import asyncpq
    from asyncpq.indexing import Bounds, Footers

    rows = 1_000_000
    for number in range(4):
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table({"id": ids, "user": [f"u{row % 977}" for row in range(rows)]})
        pq.write_table(table, f"{folder}/{number}.parquet", write_page_index=True, data_page_size=8192)
    counts = {}
    async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
        file = await session.open_file(f"{folder}/0.parquet")
        await session.build_index(folder, [Bounds("id"), Footers()])
        dataset = await session.open_dataset(folder, listing_max_age_s=60)
        for name, lookup in (("File.lookup", file.lookup), ("Dataset.lookup through an index", dataset.lookup)):
            for key in range(5, 100_000, 9_999):
                await lookup({"id": key}, columns=["user"])
            profile = _Profile(f"{Path(asyncpq.__file__).parent}/")
            with asyncpq.measure() as cost:
                sys.setprofile(profile)
                await lookup({"id": 345_003 if name == "File.lookup" else 765_003}, columns=["user"])
                sys.setprofile(None)
            if not cost.requests:
                raise SystemExit(f"{name}: all pages were in memory")
            counts[name] = profile.counts
    return counts


if __name__ == "__main__":
    if sys.argv[1:] == ["--lookups"]:
        with tempfile.TemporaryDirectory() as scratch:
            json.dump(asyncio.run(_profile_lookups(scratch)), sys.stdout)
    else:
        main(names_shown=None if sys.argv[1:] == ["--all"] else 12)
