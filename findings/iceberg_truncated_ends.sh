#!/usr/bin/env bash
# pyiceberg 0.12.0 and DuckDB 1.5.5 lose the row of the smallest integer in an Iceberg table partitioned by truncate.
#
# truncate(10, -2147483648) is -2147483650, which an int does not hold: the partition is that of 2147483646, in
# pyiceberg as in Iceberg's Java library. The writer goes by it, and so do readers that leave partitions out: i < 0 has
# no row of a partition that begins at 2147483646. -2147483648 is what many programs write for "unknown". truncate of a
# bigint wraps at its end too.
# Expected: the row, as of Polars 2.1.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  'pyiceberg[pyiceberg-core,sql-sqlite]==0.12.0' \
    pyarrow==26.0.1 polars==2.1.0 duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5
export POLARS_ICEBERG_PLANNER=pyiceberg
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.util
import pathlib
import sys

import duckdb
import polars
import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import TruncateTransform

folder = sys.argv[1]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("db")
table = catalog.create_table("db.t", pyarrow.schema([("i", pyarrow.int32())]))
with table.update_spec() as update:
    update.add_field("i", TruncateTransform(10), "tens")
table.append(pyarrow.table({"i": pyarrow.array([-(2**31), -1, 5], pyarrow.int32())}))
print("partitions:", sorted(task.file.partition[0] for task in table.scan().plan_files()))

duck = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in ("avro", "iceberg"):
    package = pathlib.Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
    duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
metadata = table.metadata_location.removeprefix("file://")
counts = {}
for condition in ("i < 0", "i < -100"):
    counts[condition] = (
        table.scan(row_filter=condition).to_arrow().num_rows,
        duck.execute(f"SELECT count(*) FROM iceberg_scan('{metadata}') WHERE {condition}").fetchall()[0][0],
        polars.scan_iceberg(table).filter(polars.sql_expr(condition)).collect().height,
    )
    found = counts[condition]
    print(f"{condition}: pyiceberg {found[0]}, DuckDB {found[1]}, Polars {found[2]}")
assert table.scan().to_arrow().num_rows == 3
assert counts == {"i < 0": (1, 1, 2), "i < -100": (0, 0, 1)}, counts
PYTHON
