#!/usr/bin/env bash
# parquet-go 0.32.0 meets parquet-java 1.18.1: of each inner list of its Avro writer, only the first value is read.
#
# By default parquet-java's Avro writer gives lists two levels, as the format's LogicalTypes.md keeps them for readers:
# the list of lists [[1, 2, 3], [4, 5]] is a group LIST with a repeated group, itself a LIST, with repeated numbers.
# parquet-go reads it as [1, 4], without an error, and of a list of maps the first entry of each map. pyarrow 26.0.1
# reads it whole. Lists of three levels, as pyarrow writes them, parquet-go reads whole.
# Expected: all values, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
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
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.io.LocalOutputFile;

public class Write {
  static void write(String name, String items, Object value) throws Exception {
    var list = "{\"type\": \"array\", \"items\": " + items + "}";
    var schema = new Schema.Parser()
        .parse("{\"type\": \"record\", \"name\": \"row\", \"fields\": [{\"name\": \"a\", \"type\": " + list + "}]}");
    var file = new LocalOutputFile(Path.of(name));
    try (var writer = AvroParquetWriter.<GenericRecord>builder(file).withSchema(schema).build()) {
      var row = new GenericData.Record(schema);
      row.put("a", value);
      writer.write(row);
    }
  }

  public static void main(String[] arguments) throws Exception {
    write("lists.parquet", "{\"type\": \"array\", \"items\": \"int\"}", List.of(List.of(1, 2, 3), List.of(4, 5)));
    write("maps.parquet", "{\"type\": \"map\", \"values\": \"int\"}", List.of(Map.of("x", 1, "y", 2), Map.of("z", 3)));
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
venv/bin/python - <<'PYTHON'
import pyarrow.parquet as pq

for name in ("lists", "maps"):
    print(f"pyarrow, {name}.parquet:", pq.read_table(f"{name}.parquet")["a"].to_pylist())
lists = pq.read_table("lists.parquet")
assert lists["a"].to_pylist() == [[[1, 2, 3], [4, 5]]]
pq.write_table(lists, "three_levels.parquet")
PYTHON
mkdir go
cat > go/main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"github.com/parquet-go/parquet-go"
)

func main() {
	for _, name := range os.Args[1:] {
		rows, err := parquet.ReadFile[any](name)
		if err != nil {
			panic(err)
		}
		fmt.Println("parquet-go,", name+":", rows)
	}
}
GO
(
    cd go
    export GOFLAGS=-modcacherw GOPATH="$folder/gopath"
    go mod init finding
    go get github.com/parquet-go/parquet-go@v0.32.0
    go build -o ../read .
) 2>"$folder/log" || { cat "$folder/log"; exit 1; }
./read lists.parquet maps.parquet three_levels.parquet | tee found
grep -qxF 'parquet-go, three_levels.parquet: [map[a:[[1 2 3] [4 5]]]]' found
grep -qxF 'parquet-go, lists.parquet: [map[a:[1 4]]]' found || { echo "all values are read now"; exit 1; }
! grep -q 'maps.parquet.*key:x.*key:y' found || { echo "all entries are read now"; exit 1; }
