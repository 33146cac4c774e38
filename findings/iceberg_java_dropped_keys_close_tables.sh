#!/usr/bin/env bash
# Iceberg's Java library 1.12.0: a table with equality deletes by a column that was dropped later cannot be read.
#
# Deletes by key, as Flink's upserts write them, stay in force when ALTER TABLE drops the key's column. The library drops
# such a column without a word, and then looks the deletes' field up in the present schema alone. Snapshots with the
# column stay readable.
# Expected: as the table spec says, the column of an earlier schema: the two rows, without the column.
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
      <artifactId>iceberg-data</artifactId>
      <version>1.12.0</version>
    </dependency>
    <dependency>
      <groupId>org.apache.iceberg</groupId>
      <artifactId>iceberg-core</artifactId>
      <version>1.12.0</version>
    </dependency>
    <dependency>
      <groupId>org.apache.iceberg</groupId>
      <artifactId>iceberg-parquet</artifactId>
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
cat > Drop.java <<'JAVA'
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.types.Types;

public class Drop {
  public static void main(String[] arguments) throws Exception {
    var schema = new Schema(
        Types.NestedField.required(1, "id", Types.LongType.get()),
        Types.NestedField.optional(2, "code", Types.StringType.get()));
    var table = new HadoopTables(new Configuration()).create(
        schema, PartitionSpec.unpartitioned(), Map.of("format-version", "2"), System.getProperty("user.dir") + "/table");
    var none = (org.apache.iceberg.StructLike) null;
    var spec = table.spec();
    var keys = schema.select("code");
    var files = new GenericFileWriterFactory.Builder(table)
        .equalityFieldIds(new int[] {2}).equalityDeleteRowSchema(keys).build();
    var row = GenericRecord.create(schema);
    var rows = files.newDataWriter(
        EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(table.location() + "/rows.parquet")), spec, none);
    rows.write(List.of(row.copy("id", 1L, "code", "a"), row.copy("id", 2L, "code", "b"), row.copy("id", 3L)));
    rows.close();
    table.newAppend().appendFile(rows.toDataFile()).commit();
    var deletes = files.newEqualityDeleteWriter(
        EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(table.location() + "/keys.parquet")), spec, none);
    deletes.write(List.of(GenericRecord.create(keys).copy("code", "a")));
    deletes.close();
    table.newRowDelta().addDeletes(deletes.toDeleteFile()).commit();
    read(table, "with the column");
    table.updateSchema().deleteColumn("code").commit();
    read(table, "without it");
  }

  static void read(org.apache.iceberg.Table table, String what) throws Exception {
    table.refresh();
    try (var found = IcebergGenerics.read(table).build()) {
      for (var record : found) System.out.println(what + ": " + record);
    } catch (RuntimeException error) {
      System.out.println(what + ": " + error);
    }
  }
}
JAVA
java -cp 'lib/*' Drop.java 2>/dev/null > told
cat told
diff told - <<'TOLD'
with the column: Record(2, b)
with the column: Record(3, null)
without it: java.lang.IllegalArgumentException: Cannot find required field for ID 2
TOLD
