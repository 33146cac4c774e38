#!/usr/bin/env bash
# Presto 0.294: its Parquet writer marks no VARCHAR as text: pyarrow, Polars and DuckDB give bytes for every text.
#
# The columns are plain BYTE_ARRAY: neither the logical type STRING nor the converted type UTF8. Presto knows from its
# metastore what they are. pyarrow 26.0.1, Polars 2.1.0 and DuckDB 2.0.1 read bytes. Dates, timestamps and decimals are
# marked; Trino 483, which has the same origin, marks texts too.
# Expected: STRING, as the format's LogicalTypes.md asks for UTF-8 texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>com.facebook.presto</groupId>
      <artifactId>presto-parquet</artifactId>
      <version>0.294</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory=lib >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > Write.java <<'JAVA'
import com.facebook.presto.common.Page;
import com.facebook.presto.common.block.Block;
import com.facebook.presto.common.block.BlockBuilder;
import com.facebook.presto.common.type.DateType;
import com.facebook.presto.common.type.Type;
import com.facebook.presto.common.type.VarcharType;
import com.facebook.presto.parquet.writer.ParquetSchemaConverter;
import com.facebook.presto.parquet.writer.ParquetWriter;
import com.facebook.presto.parquet.writer.ParquetWriterOptions;
import io.airlift.slice.Slices;
import java.io.FileOutputStream;
import java.util.List;

public class Write {
    public static void main(String[] arguments) throws Exception {
        List<Type> types = List.of(VarcharType.VARCHAR, DateType.DATE);
        List<String> names = List.of("key", "day");
        ParquetSchemaConverter schema = new ParquetSchemaConverter(types, names);
        try (FileOutputStream out = new FileOutputStream(arguments[0]);
                ParquetWriter writer = new ParquetWriter(
                    out, schema.getMessageType(), schema.getPrimitiveTypes(), names, types,
                    ParquetWriterOptions.builder().build(), "org.apache.hadoop.io.compress.GzipCodec")) {
            BlockBuilder keys = types.get(0).createBlockBuilder(null, 2);
            BlockBuilder days = types.get(1).createBlockBuilder(null, 2);
            for (String key : List.of("a", "b")) {
                types.get(0).writeSlice(keys, Slices.utf8Slice(key));
                types.get(1).writeLong(days, 20000);
            }
            writer.write(new Page(new Block[] {keys.build(), days.build()}));
        }
    }
}
JAVA
javac -nowarn -cp 'lib/*' Write.java
java -cp 'lib/*:.' Write "$folder/a.parquet" >"$folder/log" 2>&1 || { tail -5 "$folder/log"; exit 1; }
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow.parquet as pq

path = sys.argv[1]
schema = pq.ParquetFile(path).schema
print(schema)
assert (schema.column(0).logical_type.type, schema.column(0).converted_type) == ("NONE", "NONE"), "it marks texts now"
assert schema.column(1).logical_type.type == "DATE"
assert pq.read_table(path)["key"].to_pylist() == [b"a", b"b"]
assert pl.read_parquet(path)["key"].dtype == pl.Binary
duck = duckdb.sql(f"SELECT key, typeof(key) FROM '{path}'").fetchall()
print("DuckDB:", duck)
assert duck[0] == (b"a", "BLOB")
PYTHON
