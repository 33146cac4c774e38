#!/usr/bin/env bash
# Polars 2.1.0 meets parquet-java 1.18.1: it refuses every file whose Avro writer was given a list of maps.
#
# By default parquet-java's Avro writer gives lists two levels: a list of maps is a group LIST with a repeated group
# MAP. Polars says that a MAP must not be repeated, also if only another column is asked for. It reads a list of lists,
# which is written the same way. LogicalTypes.md has the rules for such lists: their repeated field is the element.
# pyarrow 26.0.1, DuckDB 2.0.1 and DataFusion 55.0.0 read the maps.
# Expected: the maps, or at least the other columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 datafusion==55.0.0 polars==2.1.0 duckdb==2.0.1
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.parquet</groupId>
      <artifactId>parquet-avro</artifactId>
      <version>1.18.1</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-api</artifactId>
      <version>3.4.2</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-runtime</artifactId>
      <version>3.4.2</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > Write.java <<'JAVA'
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.io.LocalOutputFile;

public class Write {
  static void write(String name, Schema items, Object value) throws Exception {
    var schema = SchemaBuilder.record("row").fields().requiredInt("n")
        .name("a").type().array().items(items).noDefault().endRecord();
    var file = new LocalOutputFile(Path.of(name));
    try (var writer = AvroParquetWriter.<GenericRecord>builder(file).withSchema(schema).build()) {
      var row = new GenericData.Record(schema);
      row.put("n", 7);
      row.put("a", value);
      writer.write(row);
    }
  }

  public static void main(String[] arguments) throws Exception {
    write("maps.parquet", SchemaBuilder.map().values().intType(), List.of(Map.of("x", 1)));
    write("lists.parquet", SchemaBuilder.array().items().intType(), List.of(List.of(1, 2)));
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
venv/bin/python - <<'PYTHON'
import datafusion
import duckdb
import polars
import pyarrow.parquet as pq

print("pyarrow:", pq.read_table("maps.parquet")["a"].to_pylist())
print("DuckDB:", duckdb.sql("SELECT a FROM 'maps.parquet'").fetchall())
print("DataFusion:", datafusion.SessionContext().read_parquet("maps.parquet").to_pydict()["a"])
print("Polars, lists of lists:", polars.read_parquet("lists.parquet").to_dicts())
for columns in (None, ["n"]):
    try:
        rows = polars.read_parquet("maps.parquet", columns=columns)
    except polars.exceptions.ComputeError as error:
        print(f"Polars, columns={columns}: {error}")
        assert "repeated instead of optional or required" in str(error)
    else:
        raise SystemExit(f"Polars reads it now: {rows}")
PYTHON
