#!/usr/bin/env bash
# Trino 483: infinity in an Iceberg partition of doubles or reals is 0.0, and DELETE ... WHERE x = 0 deletes such rows.
#
# The table is partitioned by x (identity). Trino puts infinity and minus infinity into data files of their own, which
# hold them, but writes 0.0 as these files' partition value, and then reads 0.0 from there. Neither x = infinity() nor
# x = 0 finds a row. A delete by x = 0 takes both, and an update makes the 0.0 real: it writes it to a new data file.
# NaN is right (trinodb/trino#15723). pyarrow reads infinity from the files.
# Expected: infinity, as for a table without partitions.
# Needs Maven and Java 25: JAVA_HOME, or one in /usr/lib/jvm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for home in "${JAVA_HOME:-}" /usr/lib/jvm/*; do
    if "$home/bin/javac" --version 2>&1 | grep -q '^javac 25'; then export JAVA_HOME=$home; break; fi
done
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>use</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.trino</groupId><artifactId>trino-testing</artifactId><version>483</version></dependency>
    <dependency><groupId>io.trino</groupId><artifactId>trino-iceberg</artifactId><version>483</version></dependency>
  </dependencies>
</project>
XML
cat > "$folder/Use.java" <<'JAVA'
import io.trino.plugin.iceberg.IcebergPlugin;
import io.trino.testing.StandaloneQueryRunner;
import io.trino.testing.TestingSession;
import java.util.Map;

public class Use {
    static StandaloneQueryRunner trino;

    static void run(String sql) {
        System.out.println("> " + sql + ": " + trino.execute(sql).getMaterializedRows());
    }

    public static void main(String[] arguments) throws Exception {
        var session = TestingSession.testSessionBuilder().setCatalog("ice").setSchema("db").build();
        trino = new StandaloneQueryRunner(session);
        trino.installPlugin(new IcebergPlugin());
        trino.createCatalog("ice", "iceberg", Map.of(
            "iceberg.catalog.type", "TESTING_FILE_METASTORE", "hive.metastore.catalog.dir", "local:///lake",
            "fs.local.enabled", "true", "local.location", System.getProperty("user.dir")));
        trino.execute("CREATE SCHEMA db");
        for (String options : new String[] {"", ", partitioning = ARRAY['x']"}) {
            trino.execute("DROP TABLE IF EXISTS t");
            trino.execute("CREATE TABLE t (id bigint, x double) WITH (format = 'PARQUET'" + options + ")");
            trino.execute("INSERT INTO t VALUES (1, infinity()), (2, -infinity()), (3, nan()), (4, 1.5e0)");
            run("SELECT id, x FROM t ORDER BY id");
        }
        run("SELECT id FROM t WHERE x = infinity()");
        run("SELECT id FROM t WHERE x = 0");
        trino.execute("UPDATE t SET id = 22 WHERE id = 2");
        trino.execute("DELETE FROM t WHERE x = 0");
        run("SELECT id, x FROM t ORDER BY id");
        System.exit(0);
    }
}
JAVA
cd "$folder"
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory=jars >log 2>&1 || { cat log; exit 1; }
"$JAVA_HOME/bin/java" --add-modules=jdk.incubator.vector --enable-native-access=ALL-UNNAMED \
    --sun-misc-unsafe-memory-access=allow -Xmx1g -cp "jars/*" Use.java >rows 2>&1 || { tail -n 50 rows; exit 1; }
cat > read.py <<'PYTHON'
import pathlib

import pyarrow.parquet as pq

for path in sorted(pathlib.Path("lake").glob("db/*/data/x=*/*.parquet")):
    table = pq.ParquetFile(path).read()
    if table.column_names == ["id", "x"]:
        print(f"> pyarrow, {path.parent.name}: {table.to_pylist()}")
PYTHON
venv/bin/python read.py >>rows
grep -o '> .*\]' rows | sed 's/^> //' | tee shown
diff shown - <<'ROWS'
SELECT id, x FROM t ORDER BY id: [[1, Infinity], [2, -Infinity], [3, NaN], [4, 1.5]]
SELECT id, x FROM t ORDER BY id: [[1, 0.0], [2, 0.0], [3, NaN], [4, 1.5]]
SELECT id FROM t WHERE x = infinity(): []
SELECT id FROM t WHERE x = 0: []
SELECT id, x FROM t ORDER BY id: [[3, NaN], [4, 1.5]]
pyarrow, x=-Infinity: [{'id': 2, 'x': -inf}]
pyarrow, x=0.0: [{'id': 22, 'x': 0.0}]
pyarrow, x=1.5: [{'id': 4, 'x': 1.5}]
pyarrow, x=Infinity: [{'id': 1, 'x': inf}]
pyarrow, x=NaN: [{'id': 3, 'x': nan}]
ROWS
