#!/usr/bin/env bash
# pyiceberg 0.12.0 meets chdb (ClickHouse) 26.9.0: WHERE d = ... has no row after 2149-06-06, in partitions of days.
#
# 9999-12-31, which many tables have for "no end", is one of the days that are lost. SELECT shows its row, a table
# without partitions or with those of years finds it, and so does the same table with use_iceberg_partition_pruning =
# 0. Timestamps are lost alike. In partitions of months it is 9999-12-31 alone, and 2150-01-01 is found.
# Expected: the row.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite]==0.12.0' pyiceberg-core==0.11.0 pyarrow==26.0.1 chdb==4.4.0 chdb-core==26.9.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import datetime as dt
import pathlib

import chdb.session
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import DayTransform, MonthTransform, YearTransform

click = chdb.session.Session()
catalog = SqlCatalog("c", uri="sqlite:///c.db", warehouse=pathlib.Path.cwd().as_uri())
catalog.create_namespace("db")
days = [dt.date(2024, 5, 1), dt.date(2149, 6, 6), dt.date(2149, 6, 7), dt.date(2150, 1, 1), dt.date(9999, 12, 31)]
times = [dt.datetime(day.year, day.month, day.day, 1) for day in days]
rows = pa.table({"id": range(5), "d": pa.array(days), "t": pa.array(times, pa.timestamp("us"))})
specs = {"none": None, "days of d": ("d", DayTransform()), "days of t": ("t", DayTransform())}
specs |= {"months of d": ("d", MonthTransform()), "years of d": ("d", YearTransform())}
lost = {"days of d": [2, 3, 4], "days of t": [2, 3, 4], "months of d": [4]}
for name, part in specs.items():
    table = catalog.create_table(f"db.{name.replace(' ', '_')}", rows.schema)
    if part is not None:
        with table.update_spec() as update:
            update.add_field(*part, "part")
    table.append(rows)
    source = f"icebergLocal('{table.location().removeprefix('file://')}')"

    def ids(condition, settings=""):
        query = f"SELECT groupArray(id) FROM (SELECT id FROM {source} WHERE {condition}) {settings}"
        return str(click.query(query, "TSV")).strip()

    column = "t" if name == "days of t" else "d"
    literals = [f"toDateTime64('{time}', 6, 'UTC')" for time in times]
    if column == "d":
        literals = [f"toDate32('{day}')" for day in days]
    missing = [row for row, literal in enumerate(literals) if ids(f"{column} = {literal}") != f"[{row}]"]
    print(f"partitions: {name}: rows that are not found: {[str(days[row]) for row in missing]}")
    assert missing == lost.get(name, []), "changed"
    for row, literal in enumerate(literals):
        assert ids(f"{column} = {literal}", "SETTINGS use_iceberg_partition_pruning = 0") == f"[{row}]"
PYTHON
