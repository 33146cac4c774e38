#!/usr/bin/env bash
# parquet-mr 1.8.3, the writer of Spark 2.3: WHERE x = 299999.0 loses that row behind NaNs, in parquet-java 1.18.1 too.
#
# Doubles from 0 to 249999, NaN where a sensor was out, then on to 299999, with all defaults. A page whose first value
# is NaN gets NaN as both of its bounds, and is left out of those of its row group, however many numbers follow in it.
# So the greatest of the file is 249999.0. pyarrow 26.0.1, DuckDB 2.0.1, DataFusion 55.0.0 and parquet-java 1.18.1,
# which Spark 4 reads with, believe that: they skip the row. Polars 2.1.0 finds it. PARQUET-1246 made readers wary of
# bounds that are NaN; these are not. From 1.10 on the greatest is NaN. 1.6.0 and 1.9.0 write the same as 1.8.3.
# Expected: bounds of all numbers, or none; or readers that do not believe those of floats by parquet-mr before 1.10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 datafusion==55.0.0 polars==2.1.0
cd "$folder"
libraries() {
    local dependency="<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>"
    local group name version artifact
    mkdir -p "$1"
    {
        printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        printf '<groupId>f</groupId><artifactId>f</artifactId><version>0</version><dependencies>'
        for artifact in "org.apache.parquet:parquet-hadoop:$1" org.apache.hadoop:hadoop-client-api:3.4.2 \
            org.apache.hadoop:hadoop-client-runtime:3.4.2; do
            IFS=: read -r group name version <<<"$artifact"
            printf "$dependency" "$group" "$name" "$version"
        done
        printf '</dependencies></project>'
    } >"$1/pom.xml"
    (cd "$1" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib)
}
cat >Write.java <<'JAVA'
import org.apache.hadoop.fs.Path;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.example.ExampleParquetWriter;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;

public final class Write {
  public static void main(String[] arguments) throws Exception {
    MessageType schema = MessageTypeParser.parseMessageType("message m { optional double x; }");
    try (ParquetWriter<Group> writer = ExampleParquetWriter.builder(new Path(arguments[0])).withType(schema).build()) {
      for (int i = 0; i < 300000; i++) {
        writer.write(new SimpleGroup(schema).append("x", i < 250000 || i >= 299000 ? (double) i : Double.NaN));
      }
    }
  }
}
JAVA
cat >Read.java <<'JAVA'
import org.apache.hadoop.fs.Path;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.filter2.compat.FilterCompat;
import org.apache.parquet.filter2.predicate.FilterApi;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.example.GroupReadSupport;

public final class Read {
  static int count(String path, FilterCompat.Filter filter) throws Exception {
    int rows = 0;
    try (ParquetReader<Group> reader =
        ParquetReader.builder(new GroupReadSupport(), new Path(path)).withFilter(filter).build()) {
      for (Group row = reader.read(); row != null; row = reader.read()) {
        if (row.getDouble("x", 0) == 299999.0) rows++;
      }
    }
    return rows;
  }

  public static void main(String[] arguments) throws Exception {
    int all = count(arguments[0], FilterCompat.NOOP);
    int found = count(arguments[0], FilterCompat.get(FilterApi.eq(FilterApi.doubleColumn("x"), 299999.0)));
    System.out.println(all + " " + found);
  }
}
JAVA
for version in 1.8.3 1.18.1; do libraries $version; done
mkdir writer reader
javac -nowarn -cp "1.8.3/lib/*" -d writer Write.java
javac -nowarn -cp "1.18.1/lib/*" -d reader Read.java
java -cp "writer:1.8.3/lib/*" Write x.parquet >write.log 2>&1 || { cat write.log; exit 1; }
read -r all found < <(java -cp "reader:1.18.1/lib/*" Read x.parquet 2>read.log) || { cat read.log; exit 1; }
echo "parquet-java 1.18.1, rows where x = 299999.0: $all without a filter, $found with it"
[ "$all $found" = "1 0" ] || { echo "parquet-java finds it now"; exit 1; }
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion
import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq

file = pq.ParquetFile("x.parquet")
bounds = file.metadata.row_group(0).column(0).statistics
values = file.read()["x"]
print(file.metadata.created_by, "groups:", file.metadata.num_row_groups, "bounds:", bounds.min, "to", bounds.max)
assert (bounds.min, bounds.max) == (0.0, 249999.0), "its bounds are others now"
assert pc.sum(pc.equal(values, 299999.0)).as_py() == 1

context = datafusion.SessionContext()
context.register_parquet("t", "x.parquet")
found = {
    "pyarrow": pq.read_table("x.parquet", filters=[("x", "=", 299999.0)]).num_rows,
    "DuckDB": duckdb.sql("SELECT count(*) FROM 'x.parquet' WHERE x = 299999.0").fetchall()[0][0],
    "DataFusion": context.sql("SELECT x FROM t WHERE x = 299999.0").to_arrow_table().num_rows,
    "Polars": pl.scan_parquet("x.parquet").filter(pl.col("x") == 299999.0).collect().height,
}
print("rows where x = 299999.0:", found)
assert found == {"pyarrow": 0, "DuckDB": 0, "DataFusion": 0, "Polars": 1}, "others find it now"
PYTHON
