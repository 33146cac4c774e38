#!/usr/bin/env bash
# Delta 4.4.0 on Spark 4.1: two moments of the hour that autumn repeats become one, in a partition column.
#
# Spark's session is in New York, where 01:30 comes twice on 2024-11-03: at 05:30Z and at 06:30Z. A table partitioned by
# the timestamp logs 05:30Z for both rows, so Spark itself reads another moment than the one written. A column that
# is no partition keeps both.
# Expected: the moments as written: a TIMESTAMP has no doubt, and the log's values are in UTC.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyspark==4.1.4 delta-spark==4.4.0
cat > "$folder/use.py" <<'PYTHON'
import json
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
session.sql(f"CREATE TABLE {table} (id BIGINT, t TIMESTAMP, kept TIMESTAMP) USING delta PARTITIONED BY (t)")
session.sql(
    f"INSERT INTO {table} SELECT id, t, t AS kept FROM VALUES "
    "(1, TIMESTAMP'2024-11-03 05:30:00Z'), (2, TIMESTAMP'2024-11-03 06:30:00Z') AS rows(id, t)"
)
rows = session.sql(f"SELECT id, unix_seconds(t) AS t, unix_seconds(kept) AS kept FROM {table} ORDER BY id").collect()
for commit in sorted(pathlib.Path("table/_delta_log").glob("*.json")):
    for line in commit.read_text().splitlines():
        if add := json.loads(line).get("add"):
            print("log:", add["partitionValues"])
print("kept, then t:", [(row.kept, row.t) for row in rows])
assert rows[1].kept - rows[0].kept == 3600, rows
assert rows[1].t == rows[0].t == rows[0].kept, rows
session.stop()
PYTHON
cd "$folder"
venv/bin/python use.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
