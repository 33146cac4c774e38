#!/usr/bin/env bash
# pypaimon 2.1.0: rows written to a table with deletion vectors, or with merge engine first-row, are in no read of it.
#
# Each commit succeeds, and its snapshot counts the rows. Reads leave out files of level 0, since the Java engines
# compact as they write and leave no new rows there; pypaimon writes level 0 and does not compact. So what it wrote it
# reads as an empty table, without an error or a warning, until another engine compacts it. With the merge engines
# deduplicate (the default) and partial-update, and without a primary key, the rows are read at once.
# Expected: the rows, or an error where they are written.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pypaimon==2.1.0
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
catalog = CatalogFactory.create({"warehouse": f"{sys.argv[1]}/lake"})
catalog.create_database("db", True)
tables = {
    "deletion_vectors": ({"deletion-vectors.enabled": "true"}, 0),
    "first_row": ({"merge-engine": "first-row"}, 0),
    "deduplicate": ({}, 2),
    "partial_update": ({"merge-engine": "partial-update"}, 2),
}
for name, (options, expected) in tables.items():
    schema = Schema.from_pyarrow_schema(columns, primary_keys=["id"], options={"bucket": "1", **options})
    catalog.create_table(f"db.{name}", schema, True)
    table = catalog.get_table(f"db.{name}")
    for row in ({"id": [1], "name": ["a"]}, {"id": [2], "name": ["b"]}):
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.table(row, schema=columns))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
    counted = table.snapshot_manager().get_latest_snapshot().total_record_count
    builder = table.new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    shown = 0 if rows is None else rows.num_rows
    print(f"{name}: the snapshot counts {counted} rows, a read gives {shown}")
    assert (counted, shown) == (2, expected), "changed"
PYTHON
