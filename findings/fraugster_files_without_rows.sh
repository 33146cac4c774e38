#!/usr/bin/env bash
# fraugster/parquet-go 0.12.0 meets DuckDB 2.0.1: a writer that got no rows leaves a file at which DuckDB's glob fails.
#
# With its first row group the writer puts the magic PAR1 at the start. Without rows there is no row group, Close()
# gives no error, and the file begins with its footer. pyarrow 26.0.1, Polars 2.1.0 and DataFusion 55.0.0 read it as a
# table of no rows. DuckDB says "Footer length error", also for '*.parquet' of a folder in which other files have rows.
# Expected: the magic at both ends, as in its files with rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 datafusion==55.0.0
cd "$folder"
cat > go.mod <<'GO'
module finding

go 1.24

require github.com/fraugster/parquet-go v0.12.0
GO
cat > main.go <<'GO'
package main

import (
	"log"
	"os"

	goparquet "github.com/fraugster/parquet-go"
	"github.com/fraugster/parquet-go/parquetschema"
)

func write(path string, rows int64) {
	schema, err := parquetschema.ParseSchemaDefinition("message m { required int64 n; }")
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	writer := goparquet.NewFileWriter(file, goparquet.WithSchemaDefinition(schema))
	for n := int64(0); n < rows; n++ {
		if err := writer.AddData(map[string]interface{}{"n": n}); err != nil {
			log.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		log.Fatal(err)
	}
	file.Close()
}

func main() {
	write("rows.parquet", 3)
	write("none.parquet", 0)
}
GO
export GOPATH="$folder/go" GOFLAGS=-mod=mod GOTOOLCHAIN=local
go mod tidy >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
go run .
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import datafusion
import duckdb
import polars as pl
import pyarrow.parquet as pq

folder = sys.argv[1]
none = f"{folder}/none.parquet"
print("begins with", open(none, "rb").read(4), "; the other file:", open(f"{folder}/rows.parquet", "rb").read(4))
context = datafusion.SessionContext()
context.register_parquet("t", none)
assert pq.read_table(none).num_rows == pl.read_parquet(none).height == 0
assert context.sql("SELECT n FROM t").to_arrow_table().num_rows == 0
assert duckdb.sql(f"SELECT sum(n) FROM '{folder}/rows.parquet'").fetchall() == [(3,)]
try:
    said = str(duckdb.sql(f"SELECT sum(n) FROM '{folder}/*.parquet'").fetchall())
except duckdb.Error as error:
    said = str(error)
print("DuckDB:", said.replace(folder, ""))
assert "Footer length error" in said, "it reads them now"
PYTHON
