#!/usr/bin/env bash
# Hardwood 1.0.1.Final: x = 1 finds no row of an unsigned column, if 1 shares its row group with a hash above 2^31.
#
# As the format says, pyarrow 26.0.1 writes bounds of UINT_32 and UINT_64 in unsigned order: 1 to 4000000000. Hardwood
# reads them as signed, 1 to -294967296, so no number lies between them, and the row group is left out. Without
# statistics, the same rows in another file are found. DuckDB 2.0.1 finds them in both.
# Expected: bounds compared in the order of the column's type, or not used.
set -euo pipefail
jdk=${JAVA_HOME:-$(ls -d /usr/lib/jvm/*-2[1-9]-* 2>/dev/null | tail -n 1)}  # Hardwood needs Java 21 or newer
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>dev.hardwood</groupId>
      <artifactId>hardwood-core</artifactId>
      <version>1.0.1.Final</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
venv/bin/python - <<'PYTHON'
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

for name, kind, large in (("u32", pa.uint32(), 4_000_000_000), ("u64", pa.uint64(), 2**63 + 5)):
    table = pa.table({"x": pa.array([1, large, 2], kind)})
    for statistics in (True, False):
        path = f"{name}-{statistics}.parquet"
        pq.write_table(table, path, compression="none", write_statistics=statistics)
        assert duckdb.read_parquet(path).filter("x = 1").fetchall() == [(1,)]
    bounds = pq.read_metadata(f"{name}-True.parquet").row_group(0).column(0).statistics
    print(name, "bounds", bounds.min, "to", bounds.max)
PYTHON
cat > Find.java <<'JAVA'
import dev.hardwood.InputFile;
import dev.hardwood.reader.FilterPredicate;
import dev.hardwood.reader.ParquetFileReader;
import java.nio.file.Path;

public class Find {
  static int count(String path, FilterPredicate predicate) throws Exception {
    int found = 0;
    try (var file = ParquetFileReader.open(InputFile.of(Path.of(path)));
        var rows = file.buildRowReader().filter(predicate).build()) {
      while (rows.hasNext()) {
        rows.next();
        found++;
      }
    }
    return found;
  }

  public static void main(String[] arguments) throws Exception {
    for (String name : new String[] {"u32", "u64"}) {
      var one = name.equals("u32") ? FilterPredicate.eq("x", 1) : FilterPredicate.eq("x", 1L);
      int without = count(name + "-False.parquet", one);
      int with = count(name + "-True.parquet", one);
      System.out.println(name + ", x = 1: " + without + " row without statistics, " + with + " with them");
      if (without != 1 || with != 0) {
        throw new AssertionError("it finds the row now");
      }
    }
    System.exit(0);
  }
}
JAVA
"$jdk/bin/java" -cp 'lib/*' Find.java 2>log || { cat log; exit 1; }
