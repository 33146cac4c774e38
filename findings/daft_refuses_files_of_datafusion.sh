#!/usr/bin/env bash
# DataFusion 55.0.0 meets daft 0.6.14: daft refuses every Parquet file that DataFusion wrote with a text in it.
#
# DataFusion reads texts of Parquet as Arrow string views, and so writes them: the Parquet type stays BYTE_ARRAY
# (String), but the Arrow schema in the footer says "view". daft fails at that hint ("Unknown union (tag = 24)"), before
# it looks at the Parquet schema, which it could read. A copy made by DataFusion of a file that daft reads is a file it
# does not read. pyarrow's files of string_view columns are refused as well.
# Expected: a hint that a reader does not know is passed over, as with a file that has none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DO_NOT_TRACK=true
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 datafusion==55.0.0 daft==0.6.14
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import daft
import datafusion
import pyarrow as pa
import pyarrow.parquet as pq

given, copy = f"{sys.argv[1]}/given.parquet", f"{sys.argv[1]}/copy.parquet"
pq.write_table(pa.table({"x": ["a", "b"]}), given)
datafusion.SessionContext().read_parquet(given).write_parquet(copy)
print("given:", daft.read_parquet(given).to_pydict())
print("copy, pyarrow:", pq.read_table(copy).schema.field("x"), pq.read_table(copy).to_pydict())
try:
    rows = daft.read_parquet(copy).to_pydict()
except daft.exceptions.DaftCoreException as error:
    print("copy, daft:", error)
    assert "Unknown union" in str(error)
else:
    raise SystemExit(f"daft reads it now: {rows}")
PYTHON
