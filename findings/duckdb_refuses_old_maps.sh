#!/usr/bin/env bash
# DuckDB 2.0.1 refuses the old map of the format's own example, group (MAP_KEY_VALUE), with all columns of the file.
#
# LogicalTypes.md of the format: old writers annotate maps with MAP_KEY_VALUE instead of MAP, and a group with it that
# lies in no MAP should be read as a map. DuckDB says that it "requires two children", also if only another column is
# asked for. pyarrow 26.0.1, DataFusion 55.0.0 and Polars 2.1.0 read the map. parquet-java 1.10.1 writes the file here:
# it has converted types alone, as the old files.
# Expected: the map, or at least the other columns.
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
      <artifactId>parquet-hadoop</artifactId>
      <version>1.10.1</version>
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
import org.apache.hadoop.fs.Path;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.schema.MessageTypeParser;

public class Write {
  public static void main(String[] arguments) throws Exception {
    var schema = MessageTypeParser.parseMessageType(
        "message row { required int32 n; optional group my_map (MAP_KEY_VALUE)"
        + " { repeated group map { required binary key (UTF8); optional int32 value; } } }");
    try (var writer = ExampleParquetWriter.builder(new Path("map.parquet")).withType(schema).build()) {
      var row = new SimpleGroup(schema);
      row.append("n", 7);
      row.addGroup("my_map").addGroup("map").append("key", "x").append("value", 1);
      writer.write(row);
    }
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
venv/bin/python - <<'PYTHON'
import datafusion
import duckdb
import polars
import pyarrow.parquet as pq

found = pq.read_table("map.parquet")["my_map"].to_pylist()
print("pyarrow:", found)
assert found == [[("x", 1)]]
print("DataFusion:", datafusion.SessionContext().read_parquet("map.parquet").to_pydict()["my_map"])
print("Polars:", polars.read_parquet("map.parquet")["my_map"].to_list())
for columns in ("*", "n"):
    try:
        rows = duckdb.sql(f"SELECT {columns} FROM 'map.parquet'").fetchall()
    except duckdb.Error as error:
        print(f"DuckDB, SELECT {columns}: {error}")
        assert "MAP_KEY_VALUE requires two children" in str(error)
    else:
        raise SystemExit(f"DuckDB reads it now: {rows}")
PYTHON
