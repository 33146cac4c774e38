#!/usr/bin/env bash
# chdb (ClickHouse) 26.9.0: 4294967295 in a UInt32 column of an Iceberg table is -1 when it is read, and noon is NULL.
#
# CREATE TABLE ... ENGINE = IcebergLocal takes the columns UInt32, UInt64 and Time, and makes Iceberg's int, long and
# time of them. INSERT takes any value without an error. Half of the unsigned numbers become negative, and every time
# of day becomes NULL, in the files as well. Int128, UInt8 and UInt16 are refused with an error when the table is made.
# Expected: long and decimal(20, 0), which hold all these numbers, and the time; or errors, as for the other types.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir chdb==4.4.0 pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import json
import pathlib

import pyarrow.parquet as pq
from chdb import session

run = session.Session("clickhouse").query
assert str(run("SELECT version()")).strip().strip('"').startswith("26.9."), run("SELECT version()")
run("SET allow_insert_into_iceberg = 1")
folder = pathlib.Path("t").resolve()
columns = "id Int64, small Nullable(UInt32), large Nullable(UInt64), noon Nullable(Time)"
run(f"CREATE TABLE t ({columns}) ENGINE = IcebergLocal('{folder}/', 'Parquet')")
run("INSERT INTO t VALUES (1, 4294967295, 18446744073709551615, '12:00:00'), (2, 7, 7, NULL)")
rows = [json.loads(line) for line in str(run("SELECT * FROM t ORDER BY id", "JSONCompactEachRow")).splitlines()]
fields = json.loads((folder / "metadata" / "v1.metadata.json").read_text())["schemas"][0]["fields"]
files = [row for file in (folder / "data").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
print("types in Iceberg:", {field["name"]: field["type"] for field in fields})
print("ClickHouse:", rows)
print("files:", files)
assert [field["type"] for field in fields] == ["long", "int", "long", "time"], fields
assert [[row[0], *(None if value is None else int(value) for value in row[1:])] for row in rows] == [
    [1, -1, -1, None], [2, 7, 7, None]], rows
assert files[0] == {"id": 1, "small": -1, "large": -1, "noon": None}, files
for other in ("UInt8", "UInt16", "Int128"):
    try:
        run(f"CREATE TABLE o (x {other}) ENGINE = IcebergLocal('{folder.parent}/o{other}/', 'Parquet')")
    except RuntimeError as error:
        print(other, "is refused:", "Unsupported type for iceberg" in str(error))
    else:
        raise AssertionError(f"{other} is accepted")
PYTHON
cd "$folder"
venv/bin/python use.py
