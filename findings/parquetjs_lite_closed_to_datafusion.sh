#!/usr/bin/env bash
# parquetjs-lite 0.8.7 (npm) meets DataFusion 55.0.0: DataFusion refuses all its files, with every column of them.
#
# Each file has a page index, unasked, whose ColumnIndex lacks two required fields, null_pages and boundary_order.
# DataFusion reads the page index of every file that it opens, also for a query without a condition, and fails:
# "Required field null_pages is missing". pyarrow 26.0.1, DuckDB 2.0.1 and Polars 2.1.0 read the file. The option
# enable_page_index = false is of no help.
# Expected: a file without the optional index, as from pyarrow, or a reader that does without one that it cannot read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 datafusion==55.0.0
cd "$folder"
echo '{}' > package.json
npm install --silent --no-audit --no-fund --ignore-scripts --cache "$folder/cache" parquetjs-lite@0.8.7 \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > write.js <<'JAVASCRIPT'
const { ParquetSchema, ParquetWriter } = require('parquetjs-lite');
(async () => {
  const schema = new ParquetSchema({ n: { type: 'INT64' } });
  const writer = await ParquetWriter.openFile(schema, 'a.parquet');
  for (let n = 0; n < 10; n++) await writer.appendRow({ n });
  await writer.close();
})();
JAVASCRIPT
node write.js
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import datafusion
import duckdb
import polars as pl
import pyarrow.parquet as pq

path = sys.argv[1]
assert pq.read_table(path)["n"].to_pylist() == pl.read_parquet(path)["n"].to_list() == list(range(10))
assert duckdb.sql(f"SELECT sum(n) FROM '{path}'").fetchall() == [(45,)]
for page_index in ("true", "false"):
    settings = datafusion.SessionConfig().set("datafusion.execution.parquet.enable_page_index", page_index)
    context = datafusion.SessionContext(settings)
    try:
        context.register_parquet("t", path)
        said = str(context.sql("SELECT sum(n) AS s FROM t").to_arrow_table().to_pylist())
    except Exception as error:
        said = str(error)
    print(f"DataFusion, enable_page_index = {page_index}:", said)
    assert "Required field null_pages is missing" in said, "it reads them now"
PYTHON
