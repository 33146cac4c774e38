#!/usr/bin/env bash
# deltalake 1.6.6 meets Delta 4.4.0 on Spark: a mapped table with a timestamp that has no zone is closed to Spark.
#
# write_deltalake(..., configuration={"delta.columnMapping.mode": "name"}) makes a table that Spark reads. If a column
# is a timestamp without time zone, the protocol lists timestampNtz and not columnMapping; the schema has physical names
# and the files do not: the columns have their own names there. deltalake reads it, and Spark refuses it.
# Output: Spark's rows of the first table, and DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH for the second.
# Expected: both features in the protocol, as Spark itself writes, or an error from the writer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    deltalake==1.6.6 pyarrow==26.0.1 pyspark==4.1.4 delta-spark==4.4.0
cat > "$folder/use.py" <<'PYTHON'
import datetime
import pathlib

import pyarrow as pa
from delta import configure_spark_with_delta_pip
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

moment = datetime.datetime(2024, 5, 1, 12)
rows = {
    "with_zone": pa.table({"id": [1], "t": pa.array([moment], pa.timestamp("us", "UTC"))}),
    "without_zone": pa.table({"id": [1], "t": pa.array([moment], pa.timestamp("us"))}),
}
for name, table in rows.items():
    write_deltalake(name, table, configuration={"delta.columnMapping.mode": "name"})
    written = DeltaTable(name)
    query = QueryBuilder().register("t", written).execute("SELECT id FROM t")
    assert pa.table(query.read_all()).to_pylist() == [{"id": 1}]
    print(name, written.protocol())

builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.jars.ivy": str(pathlib.Path("ivy").resolve()),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(key, value)
session = configure_spark_with_delta_pip(builder).getOrCreate()
session.sparkContext.setLogLevel("OFF")
found = [row.id for row in session.sql(f"SELECT id FROM delta.`{pathlib.Path('with_zone').resolve()}`").collect()]
print("with_zone, Spark:", found)
assert found == [1]
try:
    session.sql(f"SELECT id FROM delta.`{pathlib.Path('without_zone').resolve()}`").collect()
except Exception as error:
    message = str(error)
else:
    message = "no error"
print("without_zone, Spark:", *[line for line in message.splitlines() if "DELTA_" in line or line == message][:1])
assert "DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH" in message and "columnMapping" in message, message
session.stop()
PYTHON
cd "$folder"
venv/bin/python use.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
