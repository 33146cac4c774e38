#!/usr/bin/env bash
# chdb (ClickHouse) 26.9.0: in an Iceberg table, a condition on a column whose name another one had loses rows.
#
# a became b, then a new column a came: SELECT shows nulls for a in the old rows, as Iceberg says, and WHERE a IS NULL
# has none of them. The Parquet reader leaves row groups out by the statistics of the file's column a, which is now b;
# input_format_parquet_filter_push_down = 0 gives the rows. Where two columns exchanged their names, a = 100 has no row
# with that setting either.
# Expected: the rows that SELECT shows. pyiceberg 0.12.0, Polars and DuckDB go by the ids of columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1 chdb-core==26.9.0
cd "$folder" # below which ClickHouse reads files
venv/bin/python - "$folder" <<'PYTHON'
import sys

import chdb
import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

folder = sys.argv[1]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("db")


def table(name: str, **columns: list[int]) -> object:
    rows = pyarrow.table(columns)
    made = catalog.create_table(f"db.{name}", rows.schema)
    made.append(rows)
    return made


def rename(table: object, old: str, new: str) -> None:
    with table.update_schema() as update:
        update.rename_column(old, new)


again = table("again", id=[1, 2], a=[10, 20])
rename(again, "a", "b")
with again.update_schema() as update:
    update.add_column("a", LongType())
again.append(pyarrow.table({"id": [3], "b": [30], "a": [300]}))

swapped = table("swapped", id=[1, 2], a=[10, 20], b=[100, 200])
rename(swapped, "a", "c")
rename(swapped, "b", "a")
rename(swapped, "c", "b")


def select(table: object, what: str) -> list[str]:
    place = table.location().removeprefix("file://")
    return chdb.query(what.replace("TABLE", f"icebergLocal('{place}')"), "CSV").data().split()


found = {}
for name, rows, condition in (("again", again, "a IS NULL"), ("swapped", swapped, "a = 100")):
    shown = select(rows, "SELECT * FROM TABLE ORDER BY id")
    query = f"SELECT id FROM TABLE WHERE {condition} ORDER BY id"
    found[name] = (
        rows.scan(row_filter=condition).to_arrow()["id"].to_pylist(),
        select(rows, query),
        select(rows, f"{query} SETTINGS input_format_parquet_filter_push_down = 0"),
    )
    print(f"{name}: SELECT * shows {shown}")
    print(f"  {condition}: pyiceberg {found[name][0]}, ClickHouse {found[name][1]}, not pushed down {found[name][2]}")
assert select(again, "SELECT id, a FROM TABLE ORDER BY id") == ["1,\\N", "2,\\N", "3,300"]
assert found == {"again": ([1, 2], [], ["1", "2"]), "swapped": ([1], [], [])}, found
PYTHON
