"""Writes Iceberg tables with Spark, for iceberg/test_spark_tables.py: ``python iceberg_spark_writer.py FOLDER``.

It runs in a process of its own, as whoever starts a JVM does not get rid of it. The tables stand in the folder
``db``; beside it, as plain Parquet in ``NAME.expected``, what Spark itself reads from each.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

CONFIGURATION = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_MERGE_ON_READ = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
_COLUMNS = "id BIGINT, name STRING, x DOUBLE, ts TIMESTAMP, tags ARRAY<STRING>, place STRUCT<city: STRING, zip: INT>"
_CHANGES = [
    "INSERT INTO {t} SELECT id, concat('n', id % 7), if(id % 11 = 0, double('NaN'), id / 3.0D),"
    " timestamp_seconds(1700000000 + id * 3600), array(string(id)),"
    " named_struct('city', concat('c', id % 3), 'zip', int(id)) FROM range(0, 200)",
    "DELETE FROM {t} WHERE id % 10 = 3",
    "UPDATE {t} SET name = 'changed' WHERE id BETWEEN 20 AND 29",
    "DELETE FROM {t} WHERE id IN (40, 41, 42)",
    "ALTER TABLE {t} RENAME COLUMN name TO title",
    "ALTER TABLE {t} ADD COLUMN name STRING",
    "ALTER TABLE {t} RENAME COLUMN place.city TO town",
    "ALTER TABLE {t} REPLACE PARTITION FIELD ts_day WITH months(ts)",
    "INSERT INTO {t} SELECT id, 't', 1.5, timestamp_seconds(-1), array(), named_struct('town', 'q', 'zip', 1), 'new'"
    " FROM range(1000, 1010)",
    "DELETE FROM {t} WHERE id IN (1003, 50, 51)",
]

#: Statements for each table; ``{t}`` is the table, ``{folder}`` the folder.
TABLES = {
    "position_deletes": [
        f"CREATE TABLE {{t}} ({_COLUMNS}) USING iceberg PARTITIONED BY (bucket(2, id), days(ts))"
        f" TBLPROPERTIES ('format-version' = '2', 'write.delete.granularity' = 'partition', {_MERGE_ON_READ})",
        *_CHANGES,
    ],
    "deletion_vectors": [
        f"CREATE TABLE {{t}} ({_COLUMNS}) USING iceberg PARTITIONED BY (bucket(2, id), days(ts))"
        f" TBLPROPERTIES ('format-version' = '3', {_MERGE_ON_READ})",
        *_CHANGES,
    ],
    "both": [  # position deletes, then vectors that replace them
        "CREATE TABLE {t} (id BIGINT, v STRING) USING iceberg"
        f" TBLPROPERTIES ('format-version' = '2', {_MERGE_ON_READ})",
        "INSERT INTO {t} SELECT id, concat('v', id) FROM range(0, 20000, 1, 1)",
        "DELETE FROM {t} WHERE id % 5 = 0",
        "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')",
        "DELETE FROM {t} WHERE id % 3 = 0 OR id BETWEEN 9000 AND 15000",
        "INSERT INTO {t} SELECT id, concat('v', id) FROM range(30000, 30100, 1, 1)",
    ],
    "partitions": [
        "CREATE TABLE {t} (id BIGINT, x DOUBLE, s STRING, d DATE, p DECIMAL(9, 2)) USING iceberg"
        " PARTITIONED BY (x, truncate(2, s), years(d), p)",
        "INSERT INTO {t} VALUES (1, double('NaN'), 'abc', DATE'1969-12-31', 1.25),"
        " (2, 0.0D, 'abd', DATE'1970-01-01', 1.25),"
        " (3, -0.0D, 'ü€', DATE'2024-02-29', NULL), (4, 0.1D, '', NULL, -1), (5, NULL, NULL, DATE'0001-01-01', 0),"
        " (6, -1e300D, repeat('z', 99), DATE'9999-12-31', 9999999.99)",
    ],
    "migrated": [  # files whose folders, not columns, have the partition's value
        "CREATE TABLE parquet_source (id BIGINT, name STRING, part STRING) USING parquet PARTITIONED BY (part)"
        " LOCATION '{folder}/source'",
        "INSERT INTO parquet_source VALUES (1, 'a', 'x'), (2, 'b', 'y y'), (3, NULL, NULL)",
        "CREATE TABLE {t} (id BIGINT, name STRING, part STRING) USING iceberg PARTITIONED BY (part)",
        "CALL ice.system.add_files(table => 'db.migrated', source_table => '`parquet`.`{folder}/source`')",
        "ALTER TABLE {t} RENAME COLUMN name TO title",
        "ALTER TABLE {t} ADD COLUMN name STRING",
        "INSERT INTO {t} VALUES (4, 'd', 'x', 'new')",
    ],
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    builder = SparkSession.builder.master("local[1]").config("spark.sql.catalog.ice.warehouse", str(folder))
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "spark"))
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    for name, statements in TABLES.items():
        for statement in statements:
            session.sql(statement.replace("{t}", f"ice.db.{name}").replace("{folder}", str(folder)))
        session.table(f"ice.db.{name}").coalesce(1).write.parquet(str(folder / f"{name}.expected"))
    session.stop()
