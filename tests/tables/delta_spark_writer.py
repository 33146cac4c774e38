"""Writes Delta tables with Spark, for delta/test_spark_tables.py: ``python delta_spark_writer.py FOLDER``.

It runs in a process of its own, as whoever starts a JVM does not get rid of it. Each table stands in a folder, beside
it, as plain Parquet in ``NAME.expected``, what Spark itself reads from it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

INSERTS = [f"INSERT INTO {{t}} SELECT id + {10 * number} FROM range(0, 3, 1, 1)" for number in range(4)]

#: Statements for each table; ``{t}`` is the table.
TABLES = {
    "deletion_vectors": [
        "CREATE TABLE {t} (id BIGINT, v STRING, x DOUBLE) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "INSERT INTO {t} SELECT id, concat('v', id), id / 4 FROM range(0, 5000, 1, 1)",
        "INSERT INTO {t} SELECT id, concat('v', id), 'NaN' FROM range(5000, 200000, 1, 1)",
        "DELETE FROM {t} WHERE id % 3 = 0",  # bitmap containers
        "DELETE FROM {t} WHERE id BETWEEN 70000 AND 150000",  # runs
        "UPDATE {t} SET v = 'changed' WHERE id = 4",
        "DELETE FROM {t} WHERE id IN (1, 2, 199999)",
    ],
    "names": [
        "CREATE TABLE {t} (id BIGINT, a STRING, s STRUCT<x: INT, y: STRING>, p STRING) USING delta PARTITIONED BY (p)"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "INSERT INTO {t} VALUES (1, 'one', named_struct('x', 1, 'y', 'a'), 'p 1/%'), (2, 'two', NULL, NULL)",
        "ALTER TABLE {t} RENAME COLUMN a TO b",
        "ALTER TABLE {t} RENAME COLUMN s.x TO z",
        "ALTER TABLE {t} RENAME COLUMN p TO q",
        "ALTER TABLE {t} ADD COLUMN (a STRING)",
        "INSERT INTO {t} (id, b, s, q, a) VALUES (3, 'three', named_struct('z', 3, 'y', 'c'), 'ü=', 'new')",
        "ALTER TABLE {t} DROP COLUMN b",
        "ALTER TABLE {t} ADD COLUMN (b STRING)",
    ],
    "ids": [
        "CREATE TABLE {t} (id BIGINT, a STRING, l ARRAY<STRUCT<x: INT>>) USING delta"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'id')",
        "INSERT INTO {t} VALUES (1, 'one', array(named_struct('x', 1), NULL)), (2, 'two', NULL)",
        "ALTER TABLE {t} RENAME COLUMN a TO b",
        "ALTER TABLE {t} ADD COLUMN (a STRING)",
        "INSERT INTO {t} (id, b, l, a) VALUES (3, 'three', array(), 'new')",
    ],
    "wider": [
        "CREATE TABLE {t} (b TINYINT, i INT, f FLOAT, d DECIMAL(5, 2), t DATE, k INT) USING delta"
        " TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported')",
        "INSERT INTO {t} VALUES (1, 2, 1.1, 3.33, DATE'2020-02-02', 7), (-1, NULL, -0.1, -1, NULL, 8)",
        "ALTER TABLE {t} ALTER COLUMN b TYPE INT",
        "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
        "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(12, 4)",
        "ALTER TABLE {t} ALTER COLUMN t TYPE TIMESTAMP_NTZ",
        "ALTER TABLE {t} ALTER COLUMN k TYPE DECIMAL(12, 1)",
        "INSERT INTO {t} VALUES (70000, 5000000000, 1e300, 12345678.1234,"
        " TIMESTAMP_NTZ'2021-01-01 01:02:03.456789', 1.5)",
    ],
    "every_wider": [
        "CREATE TABLE {t} (id INT, a TINYINT, b TINYINT, c SMALLINT, d INT, e BIGINT, f TINYINT, g SMALLINT, h INT,"
        " l ARRAY<TINYINT>, s STRUCT<x: TINYINT>, p TINYINT) USING delta PARTITIONED BY (p)"
        " TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "INSERT INTO {t} VALUES (1, -128, 127, -32768, -2147483648, -9223372036854775808, -128, 32767, 2147483647,"
        " array(-128Y, NULL), named_struct('x', 5Y), 5),"
        " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "ALTER TABLE {t} ALTER COLUMN a TYPE DECIMAL(10, 0)",
        "ALTER TABLE {t} ALTER COLUMN b TYPE DECIMAL(14, 4)",
        "ALTER TABLE {t} ALTER COLUMN c TYPE DECIMAL(38, 28)",
        "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(12, 2)",
        "ALTER TABLE {t} ALTER COLUMN e TYPE DECIMAL(20, 0)",
        "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN g TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN h TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN l.element TYPE DECIMAL(10, 0)",
        "ALTER TABLE {t} ALTER COLUMN s.x TYPE DECIMAL(11, 1)",
        "ALTER TABLE {t} ALTER COLUMN p TYPE DECIMAL(12, 2)",
        "INSERT INTO {t} VALUES (3, 1234567890, 1234567890.1234, 1, 1.5, 1, 0.5, 0.25, 0.125, array(1),"
        " named_struct('x', 1.5), 7.25)",
    ],
    "chars": [
        "CREATE TABLE {t} (id BIGINT, c CHAR(5), v VARCHAR(5), p CHAR(5)) USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} VALUES (1, 'ab', 'ab', 'cd'), (2, '', '', NULL), (3, ' x', ' x ', 'efghi')",
    ],
    "floats": [
        "CREATE TABLE {t} (id BIGINT, x DOUBLE, p DOUBLE, q STRING) USING delta PARTITIONED BY (p, q)",
        "INSERT INTO {t} VALUES (1, -0.0D, -0.0D, ''), (2, double('NaN'), double('NaN'), NULL), (3, 0.1D, 0.1D, 'a'),"
        " (4, double('-Infinity'), double('Infinity'), ' ')",
    ],
    "bytes": [
        "CREATE TABLE {t} (id BIGINT, p BINARY) USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} VALUES (1, X'616263'), (2, NULL), (3, X'C3A9'), (4, X'01'), (5, X'5C7530303431')",
    ],
    "int96": [
        "SET spark.sql.parquet.outputTimestampType = INT96",
        "CREATE TABLE {t} (id BIGINT, t TIMESTAMP, p TIMESTAMP) USING delta PARTITIONED BY (p)",
        "INSERT INTO {t} VALUES (1, TIMESTAMP'0001-01-01 00:00:00', NULL),"
        " (2, TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP'0001-01-01 00:00:00'),"
        " (3, TIMESTAMP'2020-01-01 00:00:00.123456', TIMESTAMP'1969-12-31 23:59:59.999999')",
        "SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS",
    ],
    "v2_json": [
        "SET spark.databricks.delta.checkpointV2.topLevelFileFormat = json",
        "CREATE TABLE {t} (id BIGINT) USING delta"
        " TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3')",
        *INSERTS,
    ],
    "v2_parquet": [
        "SET spark.databricks.delta.checkpointV2.topLevelFileFormat = parquet",
        "CREATE TABLE {t} (id BIGINT) USING delta"
        " TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3')",
        *INSERTS,
    ],
    "parsed": [
        "CREATE TABLE {t} (id BIGINT, t TIMESTAMP, s STRING, n STRUCT<a: INT>, d DECIMAL(20, 3), x FLOAT) USING delta"
        " TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpoint.writeStatsAsJson' = 'false',"
        " 'delta.checkpoint.writeStatsAsStruct' = 'true')",
        "INSERT INTO {t} VALUES (1, TIMESTAMP'2020-01-01 00:00:00.123456', repeat('ü', 50), named_struct('a', 5),"
        " 12345678901234567.123, 0.1)",
        "INSERT INTO {t} VALUES (2, TIMESTAMP'1960-01-01 00:00:00.123456', 'b', NULL, NULL, 'NaN')",
    ],
    "parts": [
        "SET spark.databricks.delta.checkpoint.partSize = 2",
        "CREATE TABLE {t} (id BIGINT) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '4')",
        *INSERTS,
        "DELETE FROM {t} WHERE id < 2",
        "SET spark.databricks.delta.checkpoint.partSize = 5000000",
    ],
}


def write(spark: Any, folder: Path) -> None:
    for name, statements in TABLES.items():
        path = folder / name
        for statement in statements:
            spark.sql(statement.replace("{t}", f"delta.`{path}`"))
        frame = spark.read.format("delta").load(str(path))
        frame.coalesce(1).write.parquet(f"{path}.expected")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[1]")
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    write(session, Path(sys.argv[1]))
    session.stop()
