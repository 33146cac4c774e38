#!/usr/bin/env bash
# Delta 4.4.0 on Spark 4.1 meets Polars 2.1.0: the times of a partition column are off by the time zone of the writer.
#
# Spark's session is in New York. The table's log has the partition value 2024-07-01T16:00:00.000000Z; the folder's name
# has New York's time, t=2024-07-01 12:00:00, which is for show. Polars shows 12:00 UTC, so WHERE t = 16:00 UTC has no
# row.
# Expected: the log's value, as of deltalake 1.6.6 and DuckDB 1.5.5.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyspark==4.1.4 delta-spark==4.4.0 \
    deltalake==1.6.6 duckdb==1.5.5 duckdb-extension-delta==1.5.5 polars==2.1.0 pyarrow==26.0.1 pytz==2025.2
cat > "$folder/write.py" <<'PYTHON'
import pathlib

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.jars.ivy": str(pathlib.Path("ivy").resolve()),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "America/New_York",
}.items():
    builder = builder.config(key, value)
session = configure_spark_with_delta_pip(builder).getOrCreate()
session.sparkContext.setLogLevel("OFF")
table = f"delta.`{pathlib.Path('table').resolve()}`"
session.sql(f"CREATE TABLE {table} (id BIGINT, t TIMESTAMP) USING delta PARTITIONED BY (t)")
session.sql(f"INSERT INTO {table} VALUES (1, TIMESTAMP'2024-07-01 12:00:00'), (2, TIMESTAMP'2024-01-01 12:00:00')")
session.stop()
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import datetime
import importlib.util
import json
import pathlib

import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder

written = [
    datetime.datetime(2024, 7, 1, 16, tzinfo=datetime.UTC),
    datetime.datetime(2024, 1, 1, 17, tzinfo=datetime.UTC),
]
for commit in sorted(pathlib.Path("table/_delta_log").glob("*.json")):
    for line in commit.read_text().splitlines():
        if add := json.loads(line).get("add"):
            print("log:", add["partitionValues"], "folder:", add["path"].split("/")[0])
duck = duckdb.connect(config={"autoinstall_known_extensions": False})
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_delta").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
shown = duck.execute("SELECT t FROM delta_scan('table') ORDER BY id").fetchall()
assert [time for (time,) in shown] == written, shown
rows = QueryBuilder().register("t", DeltaTable("table")).execute("SELECT t FROM t ORDER BY id").read_all()
assert rows["t"].to_pylist() == written, rows
table = polars.scan_delta("table")
times = table.sort("id").collect()["t"].to_list()
found = table.filter(polars.col("t") == written[0]).collect().height
print(f"written {[str(time) for time in written]}; Polars {[str(time) for time in times]}, rows at the first: {found}")
hours = [(before - shown).total_seconds() / 3600 for before, shown in zip(written, times, strict=True)]
assert (hours, found) == ([4, 5], 0), (hours, found)
PYTHON
cd "$folder"
venv/bin/python write.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
venv/bin/python use.py
