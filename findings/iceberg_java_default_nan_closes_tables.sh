#!/usr/bin/env bash
# Iceberg's Java library 1.12.0: a column added with the default NaN, or an infinity, closes the table.
#
# The library commits the column and writes the default into the metadata as the text "NaN". When it loads the table, it
# takes numbers alone for defaults of floats and doubles: the table cannot be opened again, nor altered.
# Expected: an error before the commit, or a table that opens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.iceberg</groupId>
      <artifactId>iceberg-core</artifactId>
      <version>1.12.0</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-api</artifactId>
      <version>3.4.1</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-runtime</artifactId>
      <version>3.4.1</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > Default.java <<'JAVA'
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.types.Types;

public class Default {
  public static void main(String[] arguments) throws Exception {
    for (double value : new double[] {0.5, Double.NaN, Double.POSITIVE_INFINITY}) {
      var tables = new HadoopTables(new Configuration());
      var place = System.getProperty("user.dir") + "/table" + value;
      var schema = new Schema(Types.NestedField.required(1, "id", Types.LongType.get()));
      var table = tables.create(schema, PartitionSpec.unpartitioned(), Map.of("format-version", "3"), place);
      table.updateSchema().addColumn("x", Types.DoubleType.get(), "", Literal.of(value)).commit();
      try {
        System.out.println(value + ": " + tables.load(place).schema().findField("x"));
      } catch (RuntimeException error) {
        System.out.println(value + ": " + error);
      }
    }
  }
}
JAVA
java -cp 'lib/*' Default.java 2>/dev/null > told
cat told
diff told - <<'TOLD'
0.5: 2: x: optional double ()
NaN: java.lang.IllegalArgumentException: Cannot parse default as a double value: "NaN"
Infinity: java.lang.IllegalArgumentException: Cannot parse default as a double value: "Infinity"
TOLD
