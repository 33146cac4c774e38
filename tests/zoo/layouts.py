"""``make writers``: let each writer write a million rows with its defaults and with the setting of
``asyncpq.reports.cures``, look rows up in both files, and write docs/writers.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncpq.reports.cures import WRITER_SETTINGS
from tests.zoo.environments import (
    CargoEnvironment,
    Environment,
    GoEnvironment,
    MavenEnvironment,
    NotInstalledError,
    NpmEnvironment,
    PythonEnvironment,
)
from tests.zoo.look import look
from tests.zoo.registry import Writer
from tests.zoo.report import ROOT, write_page
from tests.zoo.run import Result, Zoo

SETTINGS = {each.name: each.setting for each in WRITER_SETTINGS}


def _python(name: str, package: str, version: str, default: str, *beside: str) -> Writer:
    environment = PythonEnvironment(
        python="3.12",
        requirements=(f"{package}=={version}", "pyarrow==26.0.1", "numpy", *beside),
        arguments=(name, package, default, SETTINGS[name]),
    )
    return Writer(name=name, version=version, environment=environment, program="layouts/python_files.py")


def _native(name: str, version: str, environment: Environment, program: str) -> Writer:
    return Writer(name=name, version=version, environment=environment, program=f"layouts/{program}")


WASM = ("parquet-wasm@0.8.0", "apache-arrow@21")
LAYOUT_WRITERS = (
    _python("pyarrow", "pyarrow", "26.0.1", "pq.write_table(table, path)"),
    _python("polars", "polars", "2.1.0", "df.write_parquet(path)"),
    _python("duckdb", "duckdb", "2.0.1", "COPY t TO 'path'"),
    _python("datafusion", "datafusion", "55.0.0", "COPY t TO 'path' STORED AS PARQUET"),
    _python("fastparquet", "fastparquet", "2026.9.0", "fastparquet.write(path, df)", "pandas<3"),
    _python("chdb", "chdb-core", "26.9.0", "SELECT * FROM t INTO OUTFILE 'path' FORMAT Parquet", "chdb"),
    _python("hyper", "tableauhyperapi", "0.0.26963", "COPY t TO 'path' WITH (FORMAT => 'parquet')"),
    _python("carquet", "carquet", "0.7.2", "carquet.write_table(table, path)"),
    _python("rugo", "rugo", "0.5.6", "write_parquet(morsel)"),
    _python("sedonadb", "sedonadb", "0.5.0", "df.to_parquet(path)"),
    _python("geoarrow-rust-io", "geoarrow-rust-io", "0.6.1", "write_parquet(table, path)"),
    _python(
        "geoparquet-io",
        "geoparquet-io",
        "1.6.0",
        "table.write(path)",
        "duckdb==1.5.5",
        "duckdb-extensions==1.5.5",
        "duckdb-extension-spatial==1.5.5",
    ),
    _native("parquet-rs", "60.1.0", CargoEnvironment(version="60.1.0"), "rust"),
    _native("parquet-go", "0.32.0", GoEnvironment(version="0.32.0"), "go-parquet"),
    _native("xitongsys-parquet-go", "1.6.2", GoEnvironment(version="1.6.2"), "go-xitongsys"),
    _native(
        "hyparquet-writer", "0.17.0", NpmEnvironment(packages=("hyparquet-writer@0.17.0",)), "javascript/hyparquet.mjs"
    ),
    _native("parquet-wasm", "0.8.0", NpmEnvironment(packages=WASM, reads_tables=True), "javascript/wasm.mjs"),
    _native("carpet", "0.5.0", MavenEnvironment(version="0.5.0", main="Carpet"), "java"),
)
NAMES = {
    "polars": "Polars",
    "duckdb": "DuckDB",
    "datafusion": "DataFusion",
    "chdb": "chdb (ClickHouse)",
    "hyper": "Hyper",
    "carquet": "Carquet",
    "sedonadb": "SedonaDB",
    "parquet-rs": "Rust crate parquet",
    "parquet-go": "parquet-go/parquet-go",
    "xitongsys-parquet-go": "xitongsys/parquet-go",
    "carpet": "Carpet",
}
_INTRO = """## How each writer lays a file out

`make writers` lets each writer write the same million rows, in the order of `id`, with its defaults. Columns: `id`;
`key`, unique texts in no order; `text`, 72 bytes; `category`, 50 texts; `x`, doubles with NaN; `zero`, zeros of both
signs; `n`, integers with nulls; `at`, timestamps in microseconds. DuckDB and writers of geometries also get points.
chdb, Hyper and rugo read the rows from a Parquet file first: what becomes of a value may be their reader's doing.
JavaScript's dates have milliseconds.
"""
_SETTINGS = """### The one setting that makes lookups cheap

With the setting, which [`asyncpq lint`](cli-lint.md#lint) gives for files of the writer, and without it: the requests
and bytes with which a new session looks one whole row up in object storage, by `id`, which the rows are sorted by, and
by `key`, and with which it finds the points in a small box. The first GET has 640 KiB of the file's end. Where a
setting makes small row groups, a key without an order costs requests: sort by it, or build an [index](indexes.md).
"""
_TABLES: tuple[tuple[str, dict[str, str]], ...] = (
    (
        _INTRO,
        {
            "size": "size",
            "row groups": "row_groups",
            "rows a page of `id`; of `text`": "pages",
            "page index": "page_index",
            "Bloom filters": "bloom",
            "where they lie": "places",
        },
    ),
    (
        "### Codecs and encodings\n",
        {"codec": "codec", "encodings": "encodings", "unit of `at`": "times", "geometry": "boxes"},
    ),
    (
        "### Statistics\n\nOf row groups: the longest bound of `text`, whether bounds say that they are exact, what "
        "becomes of NaN and of\nzeros of both signs, and whose nulls are counted.\n",
        {
            "bytes of a bound": "bounds",
            "exact": "exact",
            "NaN": "nan",
            "bounds of `zero`": "zeros",
            "null counts": "nulls",
        },
    ),
)


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The tables, of the results by name."""
    lines: list[str] = []
    for intro, columns in _TABLES:
        rows = [
            [*_writer(name, found), *(found["default"][field] for field in columns.values())]
            for name, found in results.items()
        ]
        lines += [intro, *_table(["writer", *columns], [[cells[0], *cells[1:]] for cells in rows]), ""]
    settings = [
        [
            *_writer(name, found),
            f"`{SETTINGS[name]}`",
            *(
                f"{_cost(found['default']['lookups'][key])} → {_cost(found['tuned']['lookups'][key])}"
                if key in found["default"]["lookups"]
                else ""
                for key in ("id", "key", "box")
            ),
        ]
        for name, found in results.items()
    ]
    lines += [_SETTINGS, *_table(["writer", "setting", "by `id`", "by `key`", "by a box"], settings), ""]
    return "\n".join(lines)


def _writer(name: str, found: Mapping[str, Any]) -> list[str]:
    return [f"{NAMES.get(name, name)} {found['version']}"]


def _cost(cost: Sequence[int]) -> str:
    return f"{cost[0]}, {cost[1] / 1e6:.1f} MB"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --- |" * (len(heads) - 1)]
    return lines + [f"| {' | '.join(cells)} |" for cells in rows]


def examine(zoo: Zoo, writer: Writer, *, rewrite: bool) -> dict[str, Any] | None:
    """Let one writer write, unless its files are there, and look at them; None if it cannot be installed or fails."""
    files = zoo.folder / "files" / f"layout-{writer.folder}"
    wanted = [files / "default.parquet", files / "tuned.parquet"]
    if rewrite or not all(path.is_file() for path in wanted):
        result = Result(name=writer.name, version=writer.version)
        try:
            zoo.write(writer, files, result)
        except NotInstalledError as error:
            result.failed = str(error)
        if result.failed:
            zoo.tell(f"{writer.folder}: {result.failed}")
            return None
    layouts = {path.stem: asdict(asyncio.run(look(path, path.read_bytes()))) for path in wanted}
    zoo.tell(f"{writer.folder}: {layouts['default']['lookups']} -> {layouts['tuned']['lookups']}")
    return {"version": writer.version, **layouts}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".zoo", help="where all is kept (.zoo)")
    parser.add_argument("--only", action="append", default=[], help="writers whose name begins so")
    parser.add_argument("--rewrite", action="store_true", help="write files again that are there")
    arguments = parser.parse_args()
    zoo = Zoo(arguments.folder.resolve(), 0)
    (zoo.folder / "results").mkdir(parents=True, exist_ok=True)
    stored = zoo.folder / "results" / "layouts.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if stored.is_file() else {}
    for writer in LAYOUT_WRITERS:
        if not arguments.only or writer.name.startswith(tuple(arguments.only)):
            found = examine(zoo, writer, rewrite=arguments.rewrite)
            results.pop(writer.name, None)
            if found is not None:
                results[writer.name] = found
            stored.write_text(json.dumps(results, indent=1))
    lacking = [writer.name for writer in LAYOUT_WRITERS if writer.name not in results]
    if lacking:
        sys.exit(f"docs/writers.md stays as it is: no files of {', '.join(lacking)}")
    write_page("writers.md", page({writer.name: results[writer.name] for writer in LAYOUT_WRITERS}))


if __name__ == "__main__":
    main()
