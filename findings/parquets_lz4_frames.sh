#!/usr/bin/env bash
# parquets 0.10.10 (npm): of its files with codec LZ4, DataFusion 55.0.0 reads each value, and pyarrow and DuckDB none.
#
# With lz4js 0.2.0, which it asks for, it writes pages as LZ4 frames, which have a header of their own. The format's LZ4
# means the blocks of Hadoop (Compression.md calls it deprecated for its confusion), and LZ4_RAW bare blocks. pyarrow
# 26.0.1 says "Corrupt Lz4 compressed data", DuckDB 2.0.1 and Polars 2.1.0 fail to decompress. Only the Rust crate below
# DataFusion tries frames.
# Expected: that a file which its writer can read back is read by either all of them or none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 datafusion==55.0.0
cd "$folder"
echo '{}' > package.json
npm install --silent --no-audit --no-fund --ignore-scripts --cache "$folder/cache" parquets@0.10.10 lz4js@0.2.0 \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > write.js <<'JAVASCRIPT'
const { ParquetSchema, ParquetWriter, ParquetReader } = require('parquets');
(async () => {
  const schema = new ParquetSchema({ n: { type: 'INT64', compression: 'LZ4' } });
  const writer = await ParquetWriter.openFile(schema, 'a.parquet');
  for (let n = 0; n < 1000; n++) await writer.appendRow({ n });
  await writer.close();
  const reader = await ParquetReader.openFile('a.parquet');
  const cursor = reader.getCursor();
  let sum = 0;
  for (let row = await cursor.next(); row; row = await cursor.next()) sum += Number(row.n);
  console.log('parquets itself:', sum);
  if (sum !== 499500) throw new Error('it does not read its own file');
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


def said(call):
    try:
        return str(call())
    except Exception as error:
        return str(error)


context = datafusion.SessionContext()
context.register_parquet("t", path)
answers = {
    "DataFusion": said(lambda: sum(context.sql("SELECT n FROM t").to_arrow_table()["n"].to_pylist())),
    "pyarrow": said(lambda: pq.read_table(path)),
    "DuckDB": said(lambda: duckdb.sql(f"SELECT sum(n) FROM '{path}'").fetchall()),
    "Polars": said(lambda: pl.read_parquet(path)["n"].sum()),
}
for name, answer in answers.items():
    print(f"{name}:", answer.replace(path, "a.parquet")[:110])
assert answers["DataFusion"] == "499500"
assert "Corrupt Lz4" in answers["pyarrow"]
assert "LZ4 decompression failure" in answers["DuckDB"]
assert "Decompression failed" in answers["Polars"]
PYTHON
