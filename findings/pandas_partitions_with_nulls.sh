#!/usr/bin/env bash
# pandas 3.1.1 with pyarrow 26.0.1: read_parquet() refuses the folder that to_parquet(partition_cols=) wrote of a null.
#
# The partition column has texts and a None. "Cannot yet unify dictionaries with nulls" is raised as pyarrow's table
# becomes a data frame; pyarrow.parquet.read_table() gives all rows. Without the None the folder is read.
# Expected: the rows that were written.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pandas==3.1.1 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

cases = {"texts": ["a", "b", "c"], "texts and a null": ["a", None, "b"]}
for number, (name, keys) in enumerate(cases.items()):
    path = f"{sys.argv[1]}/{number}"
    pd.DataFrame({"id": [1, 2, 3], "key": keys}).to_parquet(path, partition_cols=["key"])
    try:
        shown = f"{len(pd.read_parquet(path))} rows"
    except pa.ArrowInvalid as error:
        shown = str(error)
    print(f"{name}: pandas: {shown}; pyarrow: {pq.read_table(path).num_rows} rows")
    assert pq.read_table(path).num_rows == 3
    assert shown == ("Cannot yet unify dictionaries with nulls" if None in keys else "3 rows"), "changed"
PYTHON
