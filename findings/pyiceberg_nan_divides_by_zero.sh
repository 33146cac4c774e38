#!/usr/bin/env bash
# pyiceberg 0.12.0: append of a NaN to a table that is partitioned by the column is a ZeroDivisionError.
#
# pyiceberg takes the rows of each partition by comparing the column with the partition's value. NaN equals nothing, so
# that its partition has no rows, and their average size is a division by 0. Iceberg's Java library and DuckDB's keep
# a partition of NaN.
# Expected: a partition with the row.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite,pyiceberg-core]==0.12.0' pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import pathlib

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

folder = pathlib.Path.cwd()
catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("db")
for name, values in (("numbers", [0.5, 1.5]), ("nan", [0.5, float("nan")])):
    rows = pa.table({"id": [1, 2], "x": values})
    table = catalog.create_table(f"db.{name}", rows.schema)
    with table.update_spec() as update:
        update.add_field("x", IdentityTransform(), "x_part")
    try:
        table.append(rows)
        told = str(table.scan().to_arrow().num_rows)
    except ZeroDivisionError as error:
        told = f"{type(error).__name__}: {error}"
    print(values, "->", told)
    assert told == {"numbers": "2", "nan": "ZeroDivisionError: division by zero"}[name], "changed"
PYTHON
cd "$folder" && venv/bin/python use.py
