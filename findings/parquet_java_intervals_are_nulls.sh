#!/usr/bin/env bash
# parquet-java 1.18.1: an INTERVAL column is shown as nulls by pyarrow 26.0.1; DataFusion and Polars refuse its file.
#
# No logical type is an interval, only a converted type is. parquet-java writes both: the converted type INTERVAL, and
# the logical type UNKNOWN, which says that all values are null. pyarrow believes this one: it shows nulls for all
# values, and fails where they take more than one page. DataFusion 55.0.0 and Polars 2.1.0 read no column of the file.
# parquet-java itself reads the values.
# Expected: as the format's LogicalTypes.md says, an interval is annotated by its converted type alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 datafusion==55.0.0 polars==2.1.0
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
import org.apache.hadoop.fs.Path;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.hadoop.example.GroupReadSupport;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.MessageTypeParser;

public class Write {
  public static void main(String[] arguments) throws Exception {
    var schema = MessageTypeParser.parseMessageType(
        "message row { required int32 n; optional fixed_len_byte_array(12) span (INTERVAL); }");
    for (int limit : new int[] {300, 100}) {
      var path = new Path(limit == 300 ? "one_page.parquet" : "three_pages.parquet");
      try (var writer = ExampleParquetWriter.builder(path).withType(schema).withPageRowCountLimit(limit).build()) {
        for (int n = 0; n < 300; n++) {
          var row = new SimpleGroup(schema);
          row.append("n", n);
          row.append("span", Binary.fromConstantByteArray(new byte[] {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}));
          writer.write(row);
        }
      }
    }
    try (var reader = ParquetReader.builder(new GroupReadSupport(), new Path("one_page.parquet")).build()) {
      System.out.println("parquet-java: " + reader.read().getBinary("span", 0).length() + " bytes in the first row");
    }
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
venv/bin/python - <<'PYTHON'
import datafusion
import polars
import pyarrow.parquet as pq

column = pq.read_metadata("one_page.parquet").row_group(0).column(1)
print(pq.ParquetFile("one_page.parquet").schema.column(1).logical_type, column.total_uncompressed_size, "bytes")
found = pq.read_table("one_page.parquet")["span"].to_pylist()
print("pyarrow, one page:", found[:3])
assert found == [None] * 300, "pyarrow shows them now, or parquet-java writes no logical type"
reads = {
    "pyarrow, three pages": (lambda: pq.read_table("three_pages.parquet"), "expected length 300"),
    "DataFusion": (lambda: datafusion.SessionContext().read_parquet("one_page.parquet").count(), "incompatible"),
    "Polars": (lambda: polars.read_parquet("one_page.parquet", columns=["n"]), "annotate"),
}
for name, (read, message) in reads.items():
    try:
        rows = read()
    except Exception as error:
        print(f"{name}: {error}")
        assert message in str(error)
    else:
        raise SystemExit(f"{name} reads it now: {rows}")
PYTHON
