#!/usr/bin/env bash
# QuestDB 9.3.4 meets DuckDB 2.0.1: IPv4 addresses from 128.0.0.0 on become negative numbers, in silence.
#
# QuestDB writes an IPv4 column as INT32 with the logical type INT(32, unsigned), and leaves out the converted type that
# older readers know; its other integers have both. DuckDB looks at converted types alone here: it reads INTEGER, so
# 192.168.0.1 is -1062731775. parquet_schema() of DuckDB shows the logical type. pyarrow 26.0.1 and Polars 2.1.0 read
# 3232235521.
# Expected: the format's LogicalTypes.md gives the logical type precedence; the converted type is deprecated.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>org.questdb</groupId>
      <artifactId>questdb</artifactId>
      <version>9.3.4</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > Write.java <<'JAVA'
import io.questdb.cairo.CairoConfiguration;
import io.questdb.cairo.CairoEngine;
import io.questdb.cairo.DefaultCairoConfiguration;
import io.questdb.griffin.SqlExecutionContextImpl;

public class Write {
    public static void main(String[] arguments) throws Exception {
        CairoConfiguration configuration = new DefaultCairoConfiguration(arguments[0]);
        try (CairoEngine engine = new CairoEngine(configuration)) {
            SqlExecutionContextImpl context = new SqlExecutionContextImpl(engine, 1);
            context.with(
                configuration.getFactoryProvider().getSecurityContextFactory().getRootContext(), null, null, -1, null);
            for (String statement : new String[] {
                "CREATE TABLE t (ts TIMESTAMP, ip IPV4) TIMESTAMP(ts) PARTITION BY DAY",
                "INSERT INTO t VALUES (0, '10.0.0.1'), (1, '192.168.0.1')",
                "INSERT INTO t VALUES (86400000000, '10.0.0.2')",
                "ALTER TABLE t CONVERT PARTITION TO PARQUET LIST '1970-01-01'",
            }) {
                engine.execute(statement, context);
            }
        }
        System.exit(0);
    }
}
JAVA
mkdir database
javac -nowarn -cp 'lib/*' Write.java
java --add-opens java.base/java.lang=ALL-UNNAMED -cp 'lib/*:.' Write "$folder/database" >"$folder/log" 2>&1 \
    || { tail -5 "$folder/log"; exit 1; }
"$folder/venv/bin/python" - "$(find "$folder/database" -name '*.parquet')" <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow.parquet as pq

path = sys.argv[1]
print("pyarrow:", pq.read_table(path)["ip"].to_pylist())
print("DuckDB:", duckdb.sql(f"SELECT ip, typeof(ip) FROM '{path}'").fetchall())
schema = duckdb.sql(f"SELECT converted_type, logical_type FROM parquet_schema('{path}') WHERE name = 'ip'").fetchall()
print("DuckDB's parquet_schema:", schema)
assert pq.read_table(path)["ip"].to_pylist() == pl.read_parquet(path)["ip"].to_list() == [167772161, 3232235521]
assert duckdb.sql(f"SELECT ip FROM '{path}'").fetchall() == [(167772161,), (-1062731775,)], "it reads them well now"
assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE ip > 2147483647").fetchall() == [(0,)]
PYTHON
