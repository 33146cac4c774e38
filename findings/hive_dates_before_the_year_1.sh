#!/usr/bin/env bash
# Hive 4.0.1 meets pyarrow 26.0.1: DATE '0001-01-01' in its Parquet files is before the year 1, an OverflowError.
#
# Hive has dates of today's calendar, carried back. Its Parquet writer stores days of the Julian calendar before
# 1582-10-15, unless hive.parquet.date.proleptic.gregorian is set, and says so in the footer's writer.date.proleptic.
# Hive 3.1.3 does not. pyarrow, DuckDB and Polars do not look at that key: 1500-03-01 is 1500-03-11 there, and the date
# that stands for "no beginning" cannot be shown in Python.
# Expected: the days of the format, which has one calendar; or readers that heed the key.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==2.0.1 \
    polars==2.1.0
cd "$folder"
pom() {
    local dependency="<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>"
    local group name version artifact
    local alone="<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    printf '<groupId>f</groupId><artifactId>f</artifactId><version>0</version><dependencies>'
    printf "$dependency$alone</dependency>" org.apache.hive hive-exec "$1"
    for artifact in org.apache.hadoop:hadoop-client-api:3.3.6 org.apache.hadoop:hadoop-client-runtime:3.3.6 \
        org.apache.commons:commons-lang3:3.12.0 commons-lang:commons-lang:2.6 com.google.guava:guava:19.0 \
        org.slf4j:slf4j-nop:1.7.36; do
        IFS=: read -r group name version <<<"$artifact"
        printf "$dependency</dependency>" "$group" "$name" "$version"
    done
    printf '</dependencies></project>'
}
cat > Dates.java <<'JAVA'
import java.util.Arrays;
import java.util.Collections;
import java.util.Properties;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.common.type.Date;
import org.apache.hadoop.hive.ql.exec.FileSinkOperator;
import org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat;
import org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat;
import org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe;
import org.apache.hadoop.hive.serde2.objectinspector.ObjectInspector;
import org.apache.hadoop.hive.serde2.objectinspector.ObjectInspectorFactory;
import org.apache.hadoop.hive.serde2.objectinspector.StructObjectInspector;
import org.apache.hadoop.hive.serde2.objectinspector.primitive.PrimitiveObjectInspectorFactory;
import org.apache.hadoop.io.ArrayWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.FileSplit;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.RecordReader;
import org.apache.hadoop.mapred.Reporter;

public class Dates {
  public static void main(String[] args) throws Exception {
    JobConf conf = new JobConf();
    conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem");
    Properties table = new Properties();
    table.setProperty("columns", "d");
    table.setProperty("columns.types", "date");
    ParquetHiveSerDe serde = new ParquetHiveSerDe();
    if (args[0].startsWith("3")) {
      ParquetHiveSerDe.class.getMethod("initialize", org.apache.hadoop.conf.Configuration.class, Properties.class)
          .invoke(serde, conf, table);
    } else {
      ParquetHiveSerDe.class
          .getMethod("initialize", org.apache.hadoop.conf.Configuration.class, Properties.class, Properties.class)
          .invoke(serde, conf, table, new Properties());
    }
    StructObjectInspector row = ObjectInspectorFactory.getStandardStructObjectInspector(
        Arrays.asList("d"),
        Collections.<ObjectInspector>singletonList(PrimitiveObjectInspectorFactory.javaDateObjectInspector));
    Path path = new Path(args[0] + ".parquet");
    FileSinkOperator.RecordWriter writer =
        new MapredParquetOutputFormat().getHiveRecordWriter(conf, path, Text.class, false, table, null);
    for (String day : new String[] {"0001-01-01", "1500-03-01", "2024-05-01"}) {
      writer.write(serde.serialize(new Object[] {Date.valueOf(day)}, row));
    }
    writer.close(false);
    conf.set("columns", "d");
    conf.set("columns.types", "date");
    conf.set("hive.io.file.readcolumn.ids", "0");
    conf.set("hive.io.file.readcolumn.names", "d");
    long length = path.getFileSystem(conf).getFileStatus(path).getLen();
    RecordReader<NullWritable, ArrayWritable> reader = new MapredParquetInputFormat()
        .getRecordReader(new FileSplit(path, 0, length, (String[]) null), conf, Reporter.NULL);
    NullWritable key = reader.createKey();
    ArrayWritable value = reader.createValue();
    while (reader.next(key, value)) {
      System.out.println("read by Hive " + args[0] + ": " + value.get()[0]);
    }
  }
}
JAVA
for version in 3.1.3 4.0.1; do
    pom "$version" > pom.xml
    mvn -q -B dependency:copy-dependencies -DoutputDirectory="lib-$version" > log 2>&1 || { cat log; exit 1; }
    mkdir "classes-$version"
    javac -nowarn -cp "lib-$version/*" -d "classes-$version" Dates.java > log 2>&1 || { cat log; exit 1; }
    java --add-opens java.base/java.net=ALL-UNNAMED -cp "classes-$version:lib-$version/*" Dates "$version" \
        > out 2> log || { cat log; exit 1; }
    grep -a "^read by Hive" out
    test "$(grep -ac "0001-01-01\|1500-03-01\|2024-05-01" out)" = 3
done
venv/bin/python - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

days = {}
for version in ("3.1.3", "4.0.1"):
    path = f"{version}.parquet"
    said = (pq.read_metadata(path).metadata or {}).get(b"writer.date.proleptic")
    column = pq.read_table(path)["d"]
    days[version] = column.cast(pa.int32()).to_pylist()
    print(version, "writer.date.proleptic", said, days[version])
    print("  DuckDB:", [day for (day,) in duckdb.sql(f"SELECT d::VARCHAR FROM '{path}'").fetchall()])
    print("  Polars:", pl.read_parquet(path)["d"].dt.to_string().to_list())
    try:
        print("  pyarrow:", column.to_pylist())
    except OverflowError as error:
        print("  pyarrow:", type(error).__name__, error)
        assert version == "4.0.1"
assert days["3.1.3"] == [-719162, -171605, 19844], "Hive 3 writes other days now"
assert days["4.0.1"] == [-719164, -171595, 19844], "Hive 4 writes the days of the format now"
PYTHON
