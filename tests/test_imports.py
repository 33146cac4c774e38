"""What importing asyncpq loads, and who may import what import-linter cannot see (submodules of others)."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.distributed
from asyncpq import indexing
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

PACKAGE = Path(asyncpq.__file__).parent

# Submodule of another package: the modules of asyncpq that may import it, as paths in the package.
DOORS = {
    "pyarrow.parquet": {
        "reports/row_writers.py",
        "serve/__main__.py",
        "decoding/arrow.py",
        "decoding/encrypted.py",
        "indexing/build/embedding.py",
        "indexing/backends/sorted_rows.py",
        "spark/optimize_lake.py",
        "writing.py",
        "testing/traces.py",
    },
    "pyarrow.acero": {"decoding/expression_engine.py"},
    "pyarrow.dataset": {"duckdb.py"},  # DuckDB pushes filters into its class; it loads pandas
    "pyarrow.fs": set[str](),
    "pyarrow.flight": set[str](),
    # between the tasks and the driver of one job
    "pickle": {
        "distributed/worker_sessions.py",
        "distributed/build_steps.py",
        "distributed/join_planning.py",
        "spark/reads/lake_scan.py",
    },
}


@functools.cache
def imported_names(path: Path) -> frozenset[str]:
    """Every module or ``module.name`` that a file imports, at whatever depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def importers(module: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name == module or name.startswith(module + ".") for name in imported_names(path))
    }


@pytest.mark.parametrize("module", sorted(DOORS))
def test_each_has_its_door(module: str) -> None:
    assert importers(module) <= DOORS[module]


def test_the_search_sees_imports() -> None:
    assert "decoding/arrow.py" in importers("pyarrow.parquet")


# Written with the public interface and the seam alone: what another package could be written with, too.
ON_THE_SEAM = ["polars", "duckdb", "fsspec", "cli", "serve"]
SEAM = {"engine"}
PUBLIC = {"blocking", "errors", "events", "indexing", "metrics", "options", "page_map", "reports", "typing"}
MOST_NAMES = 60


def _modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]


def _taken(path: Path) -> set[tuple[str, str]]:
    """What a module imports from asyncpq: module and name; no name for a module that is imported whole."""
    taken = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            taken |= {(alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "asyncpq"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            if node.module is not None and node.module.partition(".")[0] == "asyncpq":
                taken |= {(node.module, alias.name) for alias in node.names}
    return taken


def _from_inside(path: Path, own: str) -> set[tuple[str, str]]:
    inside = set()
    for module, name in _taken(path):
        _, _, room = f"{module}.".partition(".")
        first = room.partition(".")[0] or name
        public = first in {*PUBLIC, *SEAM, *ON_THE_SEAM, own} or (module == "asyncpq" and name in _PUBLIC_NAMES)
        if module == "asyncpq.indexing":
            public = name in indexing.__all__
        if not public:
            inside.add((module, name))
    return inside


_PUBLIC_NAMES = {*asyncpq.__all__, "__version__", ""}


@pytest.mark.parametrize("room", ON_THE_SEAM)
def test_doors_take_nothing_from_inside(room: str) -> None:
    """A gap of the seam is closed there, by an operation that an author of another door could use."""
    modules = _modules(room)
    assert {path.name: found for path in modules if (found := _from_inside(path, room))} == {}


@pytest.mark.parametrize("room", [*ON_THE_SEAM, "spark"])
def test_doors_use_no_inner_attribute(room: str) -> None:
    attributes = {
        (path.name, node.attr)
        for path in _modules(room)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("runtime", "_runtime", "_state")
    }
    assert attributes == set()


def test_spark_takes_the_seam_and_tasks_of_any_engine() -> None:
    taken = {(path.name, *name) for path in _modules("spark") for name in _from_inside(path, "spark")}
    assert {name for name in taken if name[1] != "asyncpq.distributed"} == set()
    assert {name for _, _, name in taken} <= set(asyncpq.distributed.__all__)


def test_the_search_sees_what_a_door_takes(tmp_path: Path) -> None:
    door = tmp_path / "door.py"
    door.write_text(
        "import asyncpq.objects.object_read\n"
        "from asyncpq import File, objects\n"
        "from asyncpq.engine.foreign_predicates import translate\n"
        "from asyncpq.indexing import Keys, index\n"
        "def late():\n"
        "    from asyncpq.scan.plan import Plan\n"
    )
    assert _from_inside(door, "door") == {
        ("asyncpq.objects.object_read", ""),
        ("asyncpq", "objects"),
        ("asyncpq.indexing", "index"),
        ("asyncpq.scan.plan", "Plan"),
    }


@pytest.mark.heavy
def test_the_seam_is_small_and_explained() -> None:
    names: list[str] = []
    for path in _modules("engine"):
        module = import_module(f"asyncpq.engine.{path.stem}".removesuffix(".__init__"))
        public = getattr(module, "__all__", [])
        names += public
        taken = {
            name
            for door in ON_THE_SEAM
            for path in _modules(door)
            for at, name in _taken(path)
            if at == module.__name__
        }
        assert taken <= set(public)
        comments = path.read_text(encoding="utf-8")
        for name in public:
            explained = getattr(module, name).__doc__ if callable(getattr(module, name)) else ""
            assert explained or re.search(rf"^#:.*\n{name}\b", comments, re.MULTILINE), name
    assert 0 < len(names) == len(set(names)) <= MOST_NAMES


# pyarrow.fs imports fsspec by itself where it can; no module of asyncpq may load pyarrow.fs.
CLIENTS = {
    "aiobotocore",
    "aiohttp",
    "botocore",
    "fsspec",
    "opentelemetry",
    "pyiceberg",
    "pyspark",
    "s3fs",
    "sqlalchemy",
    "valkey",
}


def test_import_is_silent_and_loads_no_reader_and_no_client() -> None:
    code = "import sys, asyncpq; print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, *loaded = done.stdout.split()
    assert first == "loaded"
    assert CLIENTS.isdisjoint(loaded)
    assert 0 < len([name for name in loaded if name.partition(".")[0] == "asyncpq"]) <= 60
    assert set(loaded).isdisjoint({"pandas", "pyarrow", "asyncpq.dataset", "asyncpq.indexing", "asyncpq.tables"})


def test_a_filtered_read_loads_no_dataset_engine(tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"
    texts = ["ab", "a", None, *[""] * 1997]
    kinds = pa.array(texts).dictionary_encode()
    pq.write_table(pa.table({"number": range(2000), "text": texts, "kind": kinds}), path)
    code = (
        "import asyncio, sys, asyncpq\n"
        "async def read():\n"
        f"    async with asyncpq.open_file({str(path)!r}) as file:\n"
        "        assert (await file.lookup({'number': 2})).num_rows == 1\n"
        "        assert (await file.lookup({'number': [1, 3, *range(4, 9)]})).num_rows == 7\n"
        "        texts = asyncpq.col('text')\n"
        "        where = texts.starts_with('a') & texts.contains('b') & ~texts.is_null()\n"
        "        assert (await file.read(where=where)).num_rows == 1\n"
        "asyncio.run(read())\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert len([name for name in loaded if name.partition(".")[0] == "asyncpq"]) <= 105
    arrow = {"pyarrow.acero", "pyarrow.compute", "pyarrow.dataset"}
    assert loaded.isdisjoint({"pandas", *arrow, "asyncpq.dataset", "asyncpq.indexing"})


def test_a_lookup_in_a_folder_without_an_index_loads_no_pandas_and_no_index(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"number": [number, 10 + number]}), tmp_path / f"{number}.parquet")
    code = (
        "import asyncio, sys, asyncpq\n"
        "async def read():\n"
        f"    async with asyncpq.open_dataset({str(tmp_path)!r}) as dataset:\n"
        "        assert (await dataset.lookup({'number': 11})).num_rows == 1\n"
        "asyncio.run(read())\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = (
        "asyncpq.indexing",
        "asyncpq.writing",
        "asyncpq.page_map",
        "asyncpq.tables.delta",
        "asyncpq.tables.iceberg",
    )
    assert [name for name in done.stdout.split() if name.startswith(rooms)] == []
    assert {"pandas", "pyarrow.acero", "pyarrow.compute", "pyarrow.dataset"}.isdisjoint(done.stdout.split())


# Modules that few reads need; each takes some milliseconds or a part of one.
RARE = {
    *("aiohttp", "botocore", "fsspec", "s3fs"),
    *("configparser", "difflib", "email.utils", "encodings.idna", "fractions", "pyarrow.fs", "pyarrow.parquet"),
    *("asyncpq.decoding.field_source", "asyncpq.decoding.nested", "asyncpq.decoding.shredded_variant"),
    "asyncpq.decoding.alp",
    *("asyncpq.objects.embedded_indexes", "asyncpq.objects.loop_threads", "asyncpq.parquet.embedded_index"),
    *("asyncpq.pruning.derived_conditions", "asyncpq.scan.arrow_stream", "asyncpq.scan.prefetch"),
    *("asyncpq.storage.s3.key_listing", "asyncpq.storage.s3.writer"),
}


def test_a_first_lookup_in_s3_loads_and_compiles_nothing_that_few_reads_need() -> None:
    """A process would wait longer for it than for the store. Long patterns are compiled once they are worth it."""
    data = parquet_bytes(pa.table({"number": [1, 2], "text": ["a", "b"]}), write_page_index=True)
    with ObjectServer.in_thread() as server:
        server.put("bucket/a.parquet", data)
        code = (
            "import asyncio, re, sys, asyncpq\n"
            "compile_, compiled = re._compiler.compile, []\n"
            "def compile(pattern, *flags):\n"
            "    compiled.append(len(pattern))\n"
            "    return compile_(pattern, *flags)\n"
            "re._compiler.compile = compile\n"
            "async def read():\n"
            f"    async with asyncpq.Session(storage_options={{'s3': {server.storage_options!r}}}) as session:\n"
            "        file = await session.open_file('s3://bucket/a.parquet')\n"
            "        assert (await file.lookup({'number': 2})).num_rows == 1\n"
            "asyncio.run(read())\n"
            "assert compiled and max(compiled) < 1000, compiled\n"
            "print(*sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert RARE & loaded == set()
    assert 0 < len([name for name in loaded if name.partition(".")[0] == "asyncpq"]) <= 112


READS = """
import asyncio, sys, asyncpq
from asyncpq import col
async def read(folder):
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(folder)
        assert (await dataset.lookup({"number": 2})).to_pylist() == [
            {"number": 2, "price": 2.5, "text": "2", "numbers": [2], "year": 2024}
        ]
        file = await session.open_file(folder + "/year=2024/numbers.parquet")
        wheres = (
            col("number").is_in([2, 3]), col("price") > 1, col("text") == "2", col("text").starts_with("2"),
            col("number").between(1, 5), col("numbers").has(2), col("price").is_null(), ~(col("number") == 5),
        )
        for where in wheres:
            await file.read(where=where)
        await file.lookup({"number": [2, 3], "text": ["2", "3"]})
        await file.take([1, 5])
        await dataset.count(col("year") == 2024)
asyncio.run(read(sys.argv[1]))
print(*sys.modules)
"""


def test_reads_load_no_pandas(tmp_path: Path) -> None:
    """``pa.array`` and ``pa.scalar`` of a Python value do, and so does such a value passed to a kernel."""
    numbers = range(1000)
    columns = {"number": numbers, "price": [n + 0.5 for n in numbers], "text": map(str, numbers)}
    (tmp_path / "year=2024").mkdir()
    path = tmp_path / "year=2024" / "numbers.parquet"
    pq.write_table(pa.table({**columns, "numbers": [[n] for n in numbers]}), path, row_group_size=300)
    done = subprocess.run([sys.executable, "-c", READS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pandas" not in done.stdout.split()


INDEXED = """
import asyncio, sys, asyncpq
async def read(folder):
    async with asyncpq.Session() as session:
        for view in (None, "snapshot"):
            dataset = await session.open_dataset(folder + "/lake/", index=folder + "/index", view=view)
            assert (await dataset.lookup({"id": 5})).num_rows == 1
            assert (await dataset.lookup({"id": [5, 6, 77]})).num_rows == 2
            assert await dataset.count() == 30
            assert await dataset.count(asyncpq.col("id") < 7) == 7
asyncio.run(read(sys.argv[1]))
print("pandas" in sys.modules)
"""


def test_reads_through_an_index_load_no_pandas(tmp_path: Path) -> None:
    """pyarrow imports it for an array that is made of Python values: on the event loop, for some tenths of a second."""
    (tmp_path / "lake").mkdir()
    for file in range(3):
        pq.write_table(pa.table({"id": range(10 * file, 10 * file + 10)}), tmp_path / "lake" / f"{file}.parquet")

    async def build() -> None:
        async with asyncpq.Session() as session:
            kinds = [indexing.Bounds("id"), indexing.Keys("id")]
            await session.build_index(str(tmp_path / "lake"), kinds, at=str(tmp_path / "index"))

    asyncio.run(build())
    done = subprocess.run([sys.executable, "-c", INDEXED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_every_public_name_can_be_imported() -> None:
    for package in (asyncpq, indexing):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            _ = getattr(package, "Nothing")  # noqa: B009 -- mypy knows that it is not there


def test_the_names_that_load_late_are_the_public_ones() -> None:
    late = [name for names in asyncpq._NAMES.values() for name in names]
    assert sorted([*late, "blocking"]) == sorted(asyncpq.__all__)
    assert len(asyncpq._MODULES) == len(late)


@pytest.mark.parametrize("package", ["distributed", "indexing", "spark"])
def test_the_reference_finds_the_public_names(package: str) -> None:
    """The tool that writes the reference reads the sources without running them."""
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    values = {
        ast.unparse(target): node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    shown = ast.literal_eval(values["__all__"])
    late = ast.literal_eval(values["_MODULES" if "_MODULES" in values else "_NAMES"])
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(shown) == sorted(name for names in late.values() for name in names)
    assert set(shown) <= imported


def test_the_methods_of_distributed_are_explained() -> None:
    for name in asyncpq.distributed.__all__:
        public = getattr(asyncpq.distributed, name)
        assert public.__doc__, name
        for method in vars(public) if isinstance(public, type) else ():
            member = getattr(public, method)
            is_method = inspect.isroutine(member) or isinstance(member, (property, functools.cached_property))
            if is_method and not method.startswith("_"):
                assert inspect.getdoc(member), f"{name}.{method}"


def test_submodules_need_no_import_of_their_own() -> None:
    """Scripts use them after ``import asyncpq``, as version 0.1 loaded all but the doors."""
    rooms = {"caching", "errors", "events", "expressions", "metrics", "objects", "opening", "options", "parquet"}
    rooms |= {"pruning", "records", "session", "storage", "tracing"}
    rooms |= {"distributed", "engine", "page_map", "reports", "typing"}  # which the documents name
    doors = {"blocking", "duckdb", "fsspec", "indexing", "polars"}
    assert rooms | doors == asyncpq._SUBMODULES <= set(dir(asyncpq))
    code = f"import sys, asyncpq; print(*[getattr(asyncpq, name).__name__ for name in {sorted(rooms)}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"asyncpq.{name}" for name in sorted(rooms)]


_PUBLIC = {"distributed", "engine", "errors", "events", "metrics", "options", "reports", "spark"}


def test_spark_takes_nothing_from_inside() -> None:
    """Whatever is not Spark's own belongs where every engine can use it."""
    inside: set[tuple[str, str]] = set()
    private: set[tuple[str, str]] = set()
    for path in (PACKAGE / "spark").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("asyncpq."):
                continue
            names = {(str(node.module), alias.name) for alias in node.names}
            if node.module == "asyncpq.distributed":
                private |= {name for name in names if name[1] not in asyncpq.distributed.__all__}
            elif str(node.module).split(".")[1] == "distributed":
                private |= names
            elif str(node.module).split(".")[1] not in _PUBLIC and node.module != "asyncpq.indexing":
                inside |= names
    assert private == set()
    assert inside == set(), "give asyncpq.distributed what Spark lacks there"
    assert len(asyncpq.distributed.__all__) <= 40
