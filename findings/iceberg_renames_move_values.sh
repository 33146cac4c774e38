#!/usr/bin/env bash
# pyiceberg 0.12.0: in a table of added Parquet files, a new column takes over the values of one that was renamed.
#
# add_files() makes files part of a table that have no field ids; a name mapping in the table's properties gives them
# some. name becomes title, which keeps its values. Then somebody adds a column called name, as for a table that Iceberg
# wrote itself: the mapping's "name" goes over to it, and in the old rows title is null and name has the titles. All
# versions read so: the first one, from before the rename, has nulls too. To drop the column again does not bring the
# values back. Iceberg 1.12.0 on Spark writes the same mapping, and Polars and DuckDB read by it.
# Expected: names stay with the field whose files have them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1 polars==2.1.0
export POLARS_ICEBERG_PLANNER=pyiceberg
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import polars
import pyarrow
import pyarrow.parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

folder = sys.argv[1]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("db")
rows = pyarrow.table({"id": [1, 2], "name": ["a", "b"]})
pyarrow.parquet.write_table(rows, f"{folder}/old.parquet")


def titles(kind: str) -> list[str | None]:
    table = catalog.create_table(f"db.{kind}", rows.schema)
    if kind == "added":
        table.add_files([f"file://{folder}/old.parquet"])
    else:
        table.append(rows)
    with table.update_schema() as update:
        update.rename_column("name", "title")
    found = [table.scan().to_arrow()["title"].to_pylist()]
    with table.update_schema() as update:
        update.add_column("name", StringType())
    now = table.scan().to_arrow()
    found += [now["title"].to_pylist(), now["name"].to_pylist()]
    assert polars.scan_iceberg(table).collect()["title"].to_list() == found[1]
    first = table.scan(snapshot_id=table.snapshots()[0].snapshot_id).to_arrow()
    found.append(first["name"].to_pylist())
    with table.update_schema() as update:
        update.delete_column("name")
    found.append(table.scan().to_arrow()["title"].to_pylist())
    return found


written, added = titles("written"), titles("added")
for step, of_written, of_added in zip(
    (
        "title, renamed",
        "title, beside a new name",
        "name, the new one",
        "name, in the first version",
        "title, name dropped",
    ),
    written,
    added,
    strict=True,
):
    print(f"{step}: {of_written} where Iceberg wrote the files, {of_added} where they were added")
assert written == [["a", "b"], ["a", "b"], [None, None], ["a", "b"], ["a", "b"]], written
assert added == [["a", "b"], [None, None], ["a", "b"], [None, None], [None, None]], added
PYTHON
