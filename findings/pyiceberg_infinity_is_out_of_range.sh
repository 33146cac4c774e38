#!/usr/bin/env bash
# pyiceberg 0.12.0: x = -infinity finds no row of a FLOAT column, and x >= -infinity gives nulls and NaN as well.
#
# A literal beyond the largest finite float is out of range for pyiceberg, and infinity is treated as one, though a
# float column holds it. An equation is then false for all rows; and "at least" and "at most" are true for all, also
# where the value is null or NaN, without a look at the rows. A DOUBLE column with the same values gives the row.
# Expected: the same rows of both columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import pathlib

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThanOrEqual

folder = pathlib.Path.cwd()
catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("db")
infinity = float("inf")
values = [0.5, infinity, -infinity, None, float("nan")]
rows = pa.table({"id": range(1, 6), "x": pa.array(values, pa.float32()), "y": pa.array(values, pa.float64())})
table = catalog.create_table("db.t", rows.schema)
table.append(rows)
found = {}
for name in ("x", "y"):
    for predicate, value in ((EqualTo, infinity), (EqualTo, -infinity), (GreaterThanOrEqual, -infinity),
                             (LessThanOrEqual, infinity)):
        ids = sorted(table.scan(predicate(name, value)).to_arrow()["id"].to_pylist())
        print(name, predicate.__name__, value, ids)
        found[name, predicate.__name__, value] = ids
assert found == {
    ("x", "EqualTo", infinity): [],
    ("x", "EqualTo", -infinity): [],
    ("x", "GreaterThanOrEqual", -infinity): [1, 2, 3, 4, 5],
    ("x", "LessThanOrEqual", infinity): [1, 2, 3, 4, 5],
    ("y", "EqualTo", infinity): [2],
    ("y", "EqualTo", -infinity): [3],
    ("y", "GreaterThanOrEqual", -infinity): [1, 2, 3],
    ("y", "LessThanOrEqual", infinity): [1, 2, 3],
}, found
PYTHON
cd "$folder"
venv/bin/python use.py
