#!/usr/bin/env bash
# delta2ducklake 0.2.1: rows of a Delta table are in the DuckLake that it makes, but WHERE ts = ... finds none of them.
#
# Delta's log has the bounds of timestamps in milliseconds (Spark and deltalake cut them; readers of Delta widen the
# maximum), and deltalake 1.6.6 makes doubles of the bounds of decimals. delta2ducklake copies both as the bounds of the
# files in the DuckLake, where they are exact. So the newest timestamp of a file, and decimals of more than 15 digits,
# lie beyond them, and DuckDB skips the file. Without WHERE each row is there, and deltalake finds them.
# Expected: the rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    delta2ducklake==0.2.1 deltalake==1.6.6 pyarrow==26.0.1 \
    duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 duckdb-extension-sqlite-scanner==1.5.5
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import datetime as dt
import importlib.util
import pathlib
import sys
from decimal import Decimal

import deltalake
import duckdb
import pyarrow as pa
from delta2ducklake.convert import sync_table
from delta2ducklake.ducklake.catalog import SQLiteCatalogConfig

folder = sys.argv[1]
duck = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in ("ducklake", "sqlite_scanner"):
    package = pathlib.Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
    duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
catalog = f"{folder}/catalog.sqlite"
attach = f"ATTACH 'ducklake:sqlite:{catalog}' AS lake"
duck.execute(f"{attach} (DATA_PATH '{folder}/data/')")  # makes the catalog
duck.execute("DETACH lake")
times = [dt.datetime(2020, 1, day, 12, 0, 0, 123456) for day in (1, 2)]
amounts = [Decimal("12345678901234567890.123"), Decimal("12345678901234567891.456")]
rows = pa.table({"ts": pa.array(times, pa.timestamp("us")), "amount": pa.array(amounts, pa.decimal128(38, 3))})
deltalake.write_deltalake(f"{folder}/t", rows)
sync_table(f"{folder}/t", SQLiteCatalogConfig(catalog), "t")
duck.execute(attach)
shown = duck.execute("SELECT ts, amount FROM lake.t ORDER BY ts").fetchall()
assert shown == list(zip(times, amounts, strict=True)), shown
for column, type_name, values, expected in (
    ("ts", "TIMESTAMP", times, [1, 0]),
    ("amount", "DECIMAL(38, 3)", amounts, [0, 0]),
):
    query = f"SELECT count(*) FROM lake.t WHERE {column} = CAST(? AS {type_name})"
    found = [duck.execute(query, [str(value)]).fetchall()[0][0] for value in values]
    query = f"SELECT count(*) FROM t WHERE {column} = CAST('%s' AS {type_name})"
    table = deltalake.DeltaTable(f"{folder}/t")
    right = [deltalake.QueryBuilder().register("t", table).execute(query % value).read_all() for value in values]
    right = [pa.table(result)[0][0].as_py() for result in right]
    print(f"{column} of {', '.join(map(str, values))}: DuckLake finds {found} rows, deltalake {right}")
    assert (found, right) == (expected, [1, 1]), "changed"
PYTHON
