#!/usr/bin/env bash
# DuckDB 2.0.1 and hyparquet 1.33.0 meet parquet-java 1.18.1: records of one field in lists of its Avro writer lose it.
#
# By default parquet-java's Avro writer gives lists two levels: a group LIST with a repeated group "array", which is the
# record. LogicalTypes.md says that a repeated group of one field that is named "array", or as the list with "_tuple",
# is the element. DuckDB and hyparquet read its field as the element: [{name: Ada}, {name: null}] is [Ada, null], so
# that a query for a.name fails. With a second field it is a record to DuckDB. pyarrow, Polars and DataFusion see the
# records. A repeated group without annotation, as parquet-protobuf writes by default, loses its one field in DuckDB,
# too.
# Expected: the records.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 datafusion==55.0.0 polars==2.1.0 duckdb==2.0.1
cd "$folder"
npm install --silent --no-audit --no-fund hyparquet@1.33.0
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
import org.apache.avro.SchemaBuilder;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.io.LocalOutputFile;
import org.apache.parquet.schema.MessageTypeParser;

public class Write {
  static void avro(String name, boolean hasAge) throws Exception {
    var fields = SchemaBuilder.record("person").fields().optionalString("name");
    var person = (hasAge ? fields.optionalInt("age") : fields).endRecord();
    var schema = SchemaBuilder.record("row").fields().name("a").type().array().items(person).noDefault().endRecord();
    var ada = new GenericData.Record(person);
    ada.put("name", "Ada");
    var file = new LocalOutputFile(Path.of(name));
    try (var writer = AvroParquetWriter.<GenericRecord>builder(file).withSchema(schema).build()) {
      var row = new GenericData.Record(schema);
      row.put("a", List.of(ada, new GenericData.Record(person)));
      writer.write(row);
    }
  }

  public static void main(String[] arguments) throws Exception {
    avro("one.parquet", false);
    avro("two.parquet", true);
    var schema = MessageTypeParser.parseMessageType(
        "message row { repeated group a { optional binary name (UTF8); } }");
    var path = new LocalOutputFile(Path.of("bare.parquet"));
    try (var writer = ExampleParquetWriter.builder(path).withType(schema).build()) {
      var row = new SimpleGroup(schema);
      row.addGroup("a").append("name", "Ada");
      row.addGroup("a");
      writer.write(row);
    }
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
cat > read.mjs <<'JAVASCRIPT'
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet'

const rows = await parquetReadObjects({ file: await asyncBufferFromFile('one.parquet') })
console.log(JSON.stringify(rows[0].a))
JAVASCRIPT
venv/bin/python - <<'PYTHON'
import subprocess

import datafusion
import duckdb
import polars
import pyarrow.parquet as pq

people = [{"name": "Ada"}, {"name": None}]
for name in ("one", "bare"):
    path = f"{name}.parquet"
    records = {
        "pyarrow": pq.read_table(path)["a"].to_pylist()[0],
        "Polars": polars.read_parquet(path)["a"].to_list()[0],
        "DataFusion": datafusion.SessionContext().read_parquet(path).to_pydict()["a"][0],
        "DuckDB": duckdb.sql(f"SELECT a FROM '{path}'").fetchall()[0][0],
    }
    print(path, records)
    assert records.pop("DuckDB") == ["Ada", None], "DuckDB shows the records now"
    assert all(found == people for found in records.values())
found = duckdb.sql("SELECT a FROM 'two.parquet'").fetchall()[0][0]
print("two.parquet, DuckDB:", found)
assert found[0] == {"name": "Ada", "age": None}
found = subprocess.check_output(["node", "read.mjs"], text=True).strip()
print("one.parquet, hyparquet:", found)
assert found == '["Ada",null]', "hyparquet shows the records now"
PYTHON
