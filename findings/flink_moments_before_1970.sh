#!/usr/bin/env bash
# Flink 2.3.0 fails at any Parquet file with a fraction of a second before 1970, such as pyarrow's, and stores it late.
#
# A file of pyarrow 26.0.1 with 1969-12-31 23:59:59.999999 ends the query with an IllegalArgumentException. So does each
# of Flink's own files with such a moment, INT96 (the default) or INT64, but for the last second before 1970 in INT96.
# In INT96 Flink stores one second too much: of 12:00:00.5 in 1960, DuckDB 1.5.5 reads 12:00:01.5; the last second
# before 1970 becomes the first after it (the bug that others have reported as FLINK-41306). Whole seconds before 1970,
# and fractions after it, are right.
# Expected: the moments that were written, as DuckDB reads them from the file of pyarrow, and of Flink's INT64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==1.5.5 pytz
cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>use</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-clients</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-api-java-bridge</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-planner-loader</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-table-runtime</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-connector-files</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-parquet</artifactId>
      <version>2.3.0</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-api</artifactId>
      <version>3.4.2</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId>
      <version>3.4.2</version></dependency>
  </dependencies>
</project>
XML
cat > "$folder/write.py" <<'PYTHON'
import datetime as dt
import pathlib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

moments = {
    "late": dt.datetime(2020, 1, 1, 0, 0, 0, 123456),
    "whole": dt.datetime(1969, 12, 31, 23, 59, 59),
    "fraction": dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
}
for name, moment in moments.items():
    pathlib.Path(name).mkdir()
    pq.write_table(pa.table({"t": pa.array([moment], pa.timestamp("us"))}), f"{name}/rows.parquet")
shown = duckdb.sql("SELECT t FROM '*/rows.parquet' ORDER BY t").fetchall()
assert [t for (t,) in shown] == sorted(moments.values()), shown
PYTHON
cat > "$folder/Use.java" <<'JAVA'
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public class Use {
    static TableEnvironment flink;

    static void create(String name, String type, String options) {
        flink.executeSql("CREATE TABLE `" + name + "` (t " + type + ") WITH ('connector' = 'filesystem', 'format' = "
            + "'parquet', 'path' = 'file://" + System.getProperty("user.dir") + "/" + name + "'" + options + ")");
    }

    static String read(String name) {
        try (var rows = flink.executeSql("SELECT CAST(t AS STRING) FROM `" + name + "`").collect()) {
            return rows.next().toString();
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) cause = cause.getCause();
            return cause.toString();
        }
    }

    public static void main(String[] arguments) throws Exception {
        var options = new Configuration();
        options.setString("parallelism.default", "1");
        flink = TableEnvironment.create(
            EnvironmentSettings.newInstance().inBatchMode().withConfiguration(options).build());
        for (String name : new String[] {"late", "whole", "fraction"}) create(name, "TIMESTAMP(6)", "");
        create("int96", "TIMESTAMP(6)", "");
        create("early", "TIMESTAMP(6)", "");
        create("int64", "TIMESTAMP(6)", ", 'parquet.write.int64.timestamp' = 'true'");
        for (String name : new String[] {"int96", "int64"})
            flink.executeSql("INSERT INTO `" + name + "` VALUES (TIMESTAMP '1969-12-31 23:59:59.999999')").await();
        flink.executeSql("INSERT INTO early VALUES (TIMESTAMP '1960-01-01 12:00:00.5')").await();
        for (String name : new String[] {"late", "whole", "fraction", "early", "int96", "int64"})
            System.out.println(name + ": " + read(name));
        System.exit(0);
    }
}
JAVA
cd "$folder"
venv/bin/python write.py
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory=jars >log 2>&1 || { cat log; exit 1; }
opens=()
for package in java.lang java.util java.util.concurrent java.util.concurrent.atomic java.time java.nio; do
    opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
java "${opens[@]}" -cp "jars/*" Use.java >rows 2>log || { cat rows log; exit 1; }
cat > read.py <<'PYTHON'
import duckdb

for name in ("early", "int96", "int64"):
    (moment,) = duckdb.sql(f"SELECT t::VARCHAR FROM read_parquet('{name}/part*')").fetchone()
    print(f"{name} in DuckDB: {moment}")
PYTHON
venv/bin/python read.py >>rows
grep -E '^(late|whole|fraction|early|int96|int64)( in DuckDB)?: ' rows | tee shown
diff shown - <<'ROWS'
late: +I[2020-01-01 00:00:00.123456]
whole: +I[1969-12-31 23:59:59.000000]
fraction: java.lang.IllegalArgumentException: nanos > 999999999 or < 0
early: java.lang.IllegalArgumentException: nanos > 999999999 or < 0
int96: +I[1970-01-01 00:00:00.999999]
int64: java.lang.IllegalArgumentException: nanos > 999999999 or < 0
early in DuckDB: 1960-01-01 12:00:01.5
int96 in DuckDB: 1970-01-01 00:00:00.999999
int64 in DuckDB: 1969-12-31 23:59:59.999999
ROWS
