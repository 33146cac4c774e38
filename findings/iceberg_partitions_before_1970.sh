#!/usr/bin/env bash
# pyiceberg 0.12.0 meets DuckDB 1.5.5 and chdb (ClickHouse) 26.9.0: WHERE ts = ... has no row before 1970 in partitions.
#
# The table is partitioned by year, month, day or hour of ts. The last microsecond of 1969 is in partition -1, as the
# Iceberg spec says. ClickHouse looks for it elsewhere with all four, DuckDB with month and day, and both find no row,
# though they show it without the condition. Without partitions they find it.
# Expected: one row, as of pyiceberg's own scan and Polars 2.1.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir 'pyiceberg[sql-sqlite]==0.12.0' \
    pyiceberg-core==0.10.1 duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5 \
    chdb-core==26.9.0 polars==2.1.0 pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import datetime
import importlib.util
import pathlib

import chdb
import duckdb
import polars
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.types import LongType, NestedField, TimestampType

duck = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in ("avro", "iceberg"):
    package = pathlib.Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
    duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
catalog = SqlCatalog("c", uri="sqlite:///c.db", warehouse=pathlib.Path.cwd().as_uri())
catalog.create_namespace("n")
last = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
times = [last, datetime.datetime(2024, 2, 29, 12)]
found = {}
for transform in (None, YearTransform(), MonthTransform(), DayTransform(), HourTransform()):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()))
    fields = () if transform is None else (PartitionField(2, 1000, transform, "p"),)
    table = catalog.create_table(f"n.t_{transform}", schema, partition_spec=PartitionSpec(*fields))
    for number, time in enumerate(times):
        table.append(pa.table({"id": [number], "ts": pa.array([time], pa.timestamp("us"))}))
    if transform is not None:
        partitions = [file["p"] for file in table.inspect.files()["partition"].to_pylist()]
        assert -1 in partitions or datetime.date(1969, 12, 31) in partitions, partitions
    assert table.scan(row_filter=f"ts = '{last.isoformat()}'").to_arrow()["id"].to_pylist() == [0]
    assert polars.scan_iceberg(table).filter(polars.col("ts") == last).collect()["id"].to_list() == [0]
    metadata, path = (text.removeprefix("file://") for text in (table.metadata_location, table.location()))
    iceberg_scan, iceberg_local = f"SELECT id FROM iceberg_scan('{metadata}')", f"SELECT id FROM icebergLocal('{path}')"
    engines = (
        lambda where: [row for (row,) in duck.execute(f"{iceberg_scan} {where[0]}").fetchall()],
        lambda where: [int(row) for row in str(chdb.query(f"{iceberg_local} {where[1]}", "TSV")).split()],
    )
    same = (f"WHERE ts = TIMESTAMP '{last}'", f"WHERE ts = toDateTime64('{last}', 6, 'UTC')")
    assert [sorted(rows(("", ""))) for rows in engines] == [[0, 1], [0, 1]]
    found[str(transform)] = [rows(same) for rows in engines]
    print(f"partitions {transform}: DuckDB, ClickHouse {found[str(transform)]}")
everywhere, nowhere = [0], []
assert found == {
    "None": [everywhere, everywhere],
    "year": [everywhere, nowhere],
    "month": [nowhere, nowhere],
    "day": [nowhere, nowhere],
    "hour": [everywhere, nowhere],
}, found
PYTHON
cd "$folder"
POLARS_ICEBERG_PLANNER=pyiceberg venv/bin/python use.py
