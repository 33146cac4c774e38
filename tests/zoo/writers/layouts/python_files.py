"""Writes the rows with a writer for Python: ``python python_files.py NAME PACKAGE DEFAULT TUNED OUT``.

DEFAULT and TUNED are code or SQL that writes the rows to ``path``, with the names that the writer's function below has.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rows import points, table

Write = Callable[[str, str], None]  # of the code, to the path
WKB = {b"ARROW:extension:name": b"geoarrow.wkb", b"ARROW:extension:metadata": b'{"crs": "OGC:CRS84"}'}


def running(**names: Any) -> Write:
    def write(code: str, path: str) -> None:
        exec(code, {**names, "path": path})  # noqa: S102  # the code is that of the project's own table

    return write


def with_points(rows: pa.Table) -> pa.Table:
    return rows.append_column(pa.field("geometry", pa.binary(), metadata=WKB), points())


def pyarrow(rows: pa.Table) -> Write:
    return running(pq=pq, table=rows)


def carquet(rows: pa.Table) -> Write:
    return running(carquet=import_module("carquet"), table=rows)


def polars(rows: pa.Table) -> Write:
    return running(df=import_module("polars").from_arrow(rows))


def fastparquet(rows: pa.Table) -> Write:
    return running(fastparquet=import_module("fastparquet"), df=rows.to_pandas())


def rugo(rows: pa.Table) -> Write:
    parquet = import_module("rugo.parquet")
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows, f"{folder}/rows.parquet", row_group_size=len(rows))
        (morsel,) = parquet.read_parquet(f"{folder}/rows.parquet")

    def write(code: str, path: str) -> None:
        data = eval(code, {"write_parquet": parquet.write_parquet, "morsel": morsel})  # noqa: S307  # as above
        Path(path).write_bytes(data)

    return write


def duckdb(rows: pa.Table) -> Write:
    connection = import_module("duckdb").connect()
    connection.register("t", with_points(rows))

    def write(code: str, path: str) -> None:
        connection.execute(code.replace("'path'", f"'{path}'"))

    return write


def datafusion(rows: pa.Table) -> Write:
    session = import_module("datafusion").SessionContext()
    session.register_record_batches("t", [rows.to_batches(max_chunksize=65_536)])

    def write(code: str, path: str) -> None:
        session.sql(code.replace("'path'", f"'{path}'")).collect()

    return write


def chdb(rows: pa.Table) -> Write:
    query = import_module("chdb").query

    def write(code: str, path: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(rows, f"{folder}/rows.parquet")
            query(code.replace("FROM t ", f"FROM file('{folder}/rows.parquet') ").replace("'path'", f"'{path}'"))

    return write


def hyper(rows: pa.Table) -> Write:
    api = import_module("tableauhyperapi")

    def write(code: str, path: str) -> None:
        telemetry = api.Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(rows, f"{folder}/rows.parquet")
            source = f"(SELECT * FROM external('{folder}/rows.parquet'))"
            with api.HyperProcess(telemetry=telemetry) as process, api.Connection(process.endpoint) as connection:
                connection.execute_command(code.replace("COPY t ", f"COPY {source} ").replace("'path'", f"'{path}'"))

    return write


def sedonadb(rows: pa.Table) -> Write:
    connection = import_module("sedonadb").connect()
    connection.create_data_frame(with_points(rows)).to_view("rows")
    return running(df=connection.sql("SELECT * FROM rows"))


def geoarrow_rust_io(rows: pa.Table) -> Write:
    return running(write_parquet=import_module("geoarrow.rust.io").write_parquet, table=with_points(rows))


def geoparquet_io(rows: pa.Table) -> Write:
    import_module("duckdb_extensions").import_extension("spatial")
    return running(table=import_module("geoparquet_io").Table(with_points(rows), "geometry"))


def main() -> None:
    name, package, default, tuned, out = sys.argv[1:]
    write = globals()[name.replace("-", "_")](table())
    write(default, f"{out}/default.parquet")
    write(tuned, f"{out}/tuned.parquet")
    print(f"writer {name} {version(package)}")


main()
