#!/usr/bin/env bash
# chdb (ClickHouse) 26.9.0 meets pyiceberg 0.12.0: WHERE id = 2 finds no row with id 2, in tables in buckets of id.
#
# ClickHouse makes an Iceberg table, partitioned by buckets of id or by days of d, and inserts three rows. pyiceberg
# shows all three, and none for a condition on the column that the partitions are made of. A manifest list holds the
# lowest and the highest partition of each manifest, and for partitions by bucket, day, month, year and hour ClickHouse
# writes neither, beside "no nulls": readers take that for no values at all, and skip the manifest. Where the table is
# partitioned by the column itself, the bounds are there, and so is the row.
# Expected: the row, as ClickHouse itself finds it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    chdb==4.4.0 pyiceberg==0.12.0 pyarrow==26.0.1
cat > "$folder/write.py" <<'PYTHON'
import json
import pathlib

from chdb import session

run = session.Session("clickhouse").query
assert str(run("SELECT version()")).strip().strip('"').startswith("26.9."), run("SELECT version()")
run("SET allow_insert_into_iceberg = 1")
partitions = {"identity": "id", "bucket": "icebergBucket(4, id)", "days": "toRelativeDayNum(d)"}
for name, partition in partitions.items():
    folder = pathlib.Path("lake", name).resolve()
    columns = "id Int64, d Nullable(Date32)"
    run(f"CREATE TABLE {name} ({columns}) ENGINE = IcebergLocal('{folder}/', 'Parquet') PARTITION BY ({partition})")
    run(f"INSERT INTO {name} VALUES (1, '2024-05-01'), (2, '2024-05-02'), (3, '2024-05-03')")
    own = [json.loads(str(run(f"SELECT count() FROM {name} WHERE {where}", "JSONCompactEachRow")))[0]
           for where in ("id = 2", "d = '2024-05-02'")]
    print(f"{partition}: ClickHouse finds {own[0]} row where id = 2, {own[1]} where d = '2024-05-02'")
    assert [int(count) for count in own] == [1, 1], own
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import pathlib

from pyiceberg.table import StaticTable

found = {}
for name in ("identity", "bucket", "days"):
    metadata = max(pathlib.Path("lake", name, "metadata").resolve().glob("v*.metadata.json"),
                   key=lambda path: int(path.name[1:].split(".")[0]))
    table = StaticTable.from_metadata(str(metadata))
    counts = [table.scan(where).to_arrow().num_rows for where in ("true", "id = 2", "d = '2024-05-02'")]
    summaries = [part for manifest in table.current_snapshot().manifests(table.io) for part in manifest.partitions]
    bounds = {(part.lower_bound is None, part.contains_null) for part in summaries}
    print(f"{name}: pyiceberg has {counts[0]} rows, {counts[1]} where id = 2, {counts[2]} where d = '2024-05-02';"
          f" (no lower bound, with nulls): {bounds}")
    found[name] = counts
assert found == {"identity": [3, 1, 1], "bucket": [3, 0, 1], "days": [3, 1, 0]}, found
PYTHON
cd "$folder"
venv/bin/python write.py
venv/bin/python use.py
