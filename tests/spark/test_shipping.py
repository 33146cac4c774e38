"""asyncpq as a zip: what is in it, and that it runs where there is no other."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from py4j.protocol import Py4JJavaError

import asyncpq
from asyncpq.spark import requirements
from asyncpq.spark.shipping import add_to, register, write_zip
from tests.spark.bare_python import bare_environment, bare_python
from tests.spark.shipping_tasks import ANSWER, ReadFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceRegistration

    from tests.spark.lake_store import LakeStore

_READ = """
import sys, asyncpq
with asyncpq.blocking.Session() as session:
    print(asyncpq.__file__, session.open_file(sys.argv[1]).num_rows)
"""
_SHIP_AGAIN = """
import sys
from pathlib import Path
from asyncpq.spark.shipping import write_zip
write_zip(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zip(tmp_path_factory.mktemp("shipped"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "file.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path)
    return path


def _run(python: Path, shipped: Path, script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", script, *map(str, arguments)]
    environment = bare_environment(PYTHONPATH=str(shipped))
    return subprocess.run(command, env=environment, cwd=python.parent, capture_output=True, text=True, timeout=60)


def test_the_whole_package_and_nothing_else(shipped: Path) -> None:
    package = Path(asyncpq.__file__).parent
    files = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}
    names = zipfile.ZipFile(shipped).namelist()
    compiled = {f"{name}c" for name in files}
    check = "asyncpq/_requirements.py"
    assert {*names} == {
        *files,
        *compiled,
        "asyncpq/py.typed",
        "asyncpq/expressions/word_characters.txt",
        "asyncpq/parquet/legacy_zones.txt",
        check,
        f"{check}c",
    }
    assert len(names) == len({*names})
    assert re.fullmatch(r"asyncpq-[\d.]+-[0-9a-f]{16}\.zip", shipped.name)


@pytest.mark.heavy
def test_made_twice_it_is_the_same(shipped: Path, tmp_path: Path) -> None:
    again = write_zip(tmp_path)
    assert again.name == shipped.name
    assert again.read_bytes() == shipped.read_bytes()


def test_it_runs_where_there_is_no_other(python: Path, shipped: Path, file: Path, tmp_path: Path) -> None:
    missing = _run(python, tmp_path, _READ, file)
    assert "No module named 'asyncpq'" in missing.stderr
    done = _run(python, shipped, _READ, file)
    assert done.stdout.split() == [f"{shipped}/asyncpq/__init__.pyc", "1000"], done.stderr


@pytest.mark.heavy
def test_byte_code_of_another_python_is_passed_over(python: Path, shipped: Path, file: Path, tmp_path: Path) -> None:
    other = tmp_path / shipped.name
    with zipfile.ZipFile(shipped) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".pyc"):
                assert data.startswith(importlib.util.MAGIC_NUMBER)
                data = b"\0\0\r\n" + data[4:]
            new.writestr(name, data)
    done = _run(python, other, _READ, file)
    assert done.stdout.split() == [f"{other}/asyncpq/__init__.py", "1000"], done.stderr


@pytest.mark.heavy
def test_a_driver_that_has_the_zip_ships_the_same(python: Path, shipped: Path, tmp_path: Path) -> None:
    done = _run(python, shipped, _SHIP_AGAIN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / shipped.name).read_bytes() == shipped.read_bytes()


def test_what_is_missing_is_named(shipped: Path, file: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path, without="cachetools")
    done = _run(python, shipped, _READ, file)
    assert done.returncode == 1
    assert re.search(
        r"ImportError: asyncpq was shipped to .* lacks cachetools>=[\d.]+ \(is missing\)\. Inst", done.stderr
    )


def test_what_is_too_old_is_named() -> None:
    requirements.check({"pyarrow": "26.0", "cachetools": "5", "pytest": "0.99.99"})
    with pytest.raises(ImportError, match=rf"lacks pyarrow>=999 \(is {pa.__version__}\), nowhere>=1 \(is missing\)\."):
        requirements.check({"pyarrow": "999", "pytest": "1", "nowhere": "1"})


@pytest.mark.slow  # a driver of its own
def test_executors_get_it(cluster: object, python: Path, file: Path) -> None:
    script = Path(__file__).with_name("shipping_driver.py")
    command = [sys.executable, str(script), str(python), str(file)]
    environment = bare_environment()
    done = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert re.search(r"/asyncpq-[\d.]+-[0-9a-f]{16}\.zip/asyncpq/__init__\.pyc$", answer["place"])
    assert answer["rows"] == 1000


@pytest.mark.slow  # imports much
def test_spark_connect_ships_it(connect: SparkSession, file: Path) -> None:
    add_to(connect)
    add_to(connect)
    row = connect.range(1).mapInArrow(ReadFile(str(file)), ANSWER).collect()[0]
    assert re.search(r"/asyncpq-[\d.]+-[0-9a-f]{16}\.zip/asyncpq/__init__\.pyc$", row.place)
    assert row.rows == 1000


def test_registered_once_for_each_session(
    spark: SparkSession, lake_store: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = lake_store.put_table("a.parquet", pa.table({"id": range(7)}))
    session = spark.newSession()
    reader = session.read.format("asyncpq").option("credentialsProvider", lake_store.settings["credentials_provider"])
    reader = reader.option("storageOptions", json.dumps(lake_store.settings["storage_options"]))
    with pytest.raises(Py4JJavaError, match="Failed to find the data source: asyncpq"):
        reader.load(url)
    registered = []
    register_source = type(session.dataSource).register

    def count(self: DataSourceRegistration, source: type[DataSource]) -> None:
        registered.append(source.__name__)
        register_source(self, source)

    monkeypatch.setattr(type(session.dataSource), "register", count)
    register(session)
    register(session)
    assert registered == ["AsyncpqDataSource"]
    assert sorted(row.id for row in reader.load(url).collect()) == list(range(7))
