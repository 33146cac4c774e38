#!/usr/bin/env bash
# pyiceberg 0.12.0: a filter does not find the smallest int of a column with a partition truncate[10].
#
# truncate[10] of -2147483648 is -2147483650, which an int does not hold: the partition value that is written wraps to
# 2147483646, in pyiceberg (by pyiceberg-core) as in Iceberg's Java library. pyiceberg projects `i < 0` onto the
# partition as `p <= -10`, and `i = -2147483648` as `p = -2147483650`: the file is ruled out. Spark 4.1 with Iceberg
# 1.12.0 loses the row for `i < 0` likewise, and finds it for `=`.
# Expected: the rows of the table without a filter for which the condition is true, as Polars 2.1.0 gives them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    'pyiceberg[sql-sqlite]==0.12.0' pyiceberg-core==0.10.1 pyarrow==26.0.1
cat > "$folder/filter.py" <<'PYTHON'
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import TruncateTransform

folder = sys.argv[1]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
catalog.create_namespace("db")
table = catalog.create_table("db.numbers", pa.schema([("i", pa.int32())]))
with table.update_spec() as update:
    update.add_field("i", TruncateTransform(10), "p")
table.append(pa.table({"i": pa.array([-2147483648, -1, 5], pa.int32())}))
lost = 0
for condition, expected in (("i < 0", 2), ("i = -2147483648", 1), ("i < 10", 3)):
    found = table.scan(row_filter=condition).to_arrow().num_rows
    print(f"{condition}: {found} rows of {expected}")
    lost += found < expected
assert sorted(table.scan().to_arrow()["i"].to_pylist()) == [-2147483648, -1, 5]
sys.exit(0 if lost else "pyiceberg finds all rows now")
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/filter.py" "$folder"
