#!/usr/bin/env bash
# pyiceberg 0.12.0: scan().use_ref("main") lacks the columns that scan() has, from ALTER TABLE until the next write.
#
# A column is added to a table and another is renamed. The scan of the table has them as they are now. The scan of the
# branch main, which is the same snapshot, has the columns of the last write: the old name, and not the new column. The
# scan of another branch that is made later does, too.
# Expected: the columns of the table, as Iceberg's documentation says of branches ("Schema selection with branches and
# tags": only a tag has the columns of its snapshot), and as Iceberg 1.12.0 on Spark 4.1 gives for VERSION AS OF 'main'.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyiceberg==0.12.0 \
    sqlalchemy==2.0.51 pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import pathlib

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

catalog = SqlCatalog("local", uri="sqlite://", warehouse=str(pathlib.Path.cwd()))
catalog.create_namespace("db")
rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
table = catalog.create_table("db.orders", rows.schema)
table.append(rows)
with table.update_schema() as update:
    update.rename_column("name", "title")
    update.add_column("price", LongType())
with table.manage_snapshots() as manage:
    manage.create_branch(table.current_snapshot().snapshot_id, "work")
columns = {"the table": table.scan().to_arrow().column_names}
for branch in ("main", "work"):
    columns[f"branch {branch}"] = table.scan().use_ref(branch).to_arrow().column_names
for what, names in columns.items():
    print(f"{what}: {names}")
assert table.scan().use_ref("main").snapshot() == table.current_snapshot()
assert columns["the table"] == ["id", "title", "price"]
assert columns["branch main"] == columns["branch work"] == ["id", "name"], columns
PYTHON
cd "$folder"
venv/bin/python use.py
