"""Files of Spark (parquet-java), by DataFrameWriter."""

import glob
import os
import shutil
import sys
import tempfile

import pyspark
import rows
from pyspark.sql import SparkSession

TYPES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "bool": "boolean",
    "string": "string",
    "binary": "binary",
    "category": "string",
    "date": "date",
    "timestamp_utc": "timestamp",
    "timestamp_us": "timestamp_ntz",
    "decimal(9,2)": "decimal(9,2)",
    "decimal(18,4)": "decimal(18,4)",
    "decimal(38,10)": "decimal(38,10)",
}
POINT = "struct<x:int,y:string>"
NESTED = {
    "n": "bigint",
    "numbers": "array<int>",
    "words": "array<string>",
    "deep": "array<array<bigint>>",
    "point": POINT,
    "points": "array<%s>" % POINT,
    "box": "struct<name:string,sizes:array<int>,at:%s>" % POINT,
    "pairs": "map<string,bigint>",
}


def flat(spark, number):
    """The table `flat`, without the types that Spark lacks."""
    columns = rows.flat(number)
    kinds = [(name, TYPES[kind]) for name, kind in rows.KINDS.items() if kind in TYPES]
    if pyspark.__version__ < "3.4":
        kinds = [(name, type_) for name, type_ in kinds if type_ != "timestamp_ntz"]
    values = list(zip(*[columns[name] for name, _ in kinds]))
    return spark.createDataFrame(values, ", ".join("`%s` %s" % pair for pair in kinds)).coalesce(1)


def nested(spark):
    """The table `nested`."""
    columns = rows.nested()
    columns["pairs"] = [None if value is None else dict(value) for value in columns["pairs"]]
    values = list(zip(*[columns[name] for name in NESTED]))
    return spark.createDataFrame(values, ", ".join("%s %s" % pair for pair in NESTED.items())).coalesce(1)


def main():
    """All variants."""
    os.environ["TZ"] = "UTC"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    tables = {"flat": flat(spark, rows.ROWS), "nested": nested(spark), "empty": flat(spark, 0)}
    small = {"parquet.page.size": "512", "parquet.page.row.count.limit": str(rows.PAGE_ROWS), "parquet.block.size": "30000"}
    v2 = {"parquet.writer.version": "PARQUET_2_0"}
    blooms = {"parquet.bloom.filter.enabled#" + name: "true" for name in ("n", "key", "f64", "word", "day", "dec38")}

    def writes(table, options, **settings):
        def write(path):
            folder = tempfile.mkdtemp()
            for name, value in settings.items():
                spark.conf.set("spark.sql.parquet." + name, value)
            writer = tables[table].write.mode("overwrite").options(**small, **options)
            writer.parquet("file://" + folder)
            (part,) = glob.glob(os.path.join(folder, "part-*"))
            shutil.move(part, path)
            shutil.rmtree(folder)

        return write

    variants = []
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "lz4_raw"):
        for table in ("flat", "nested"):
            variants.append(("%s-v1-%s" % (table, codec), writes(table, {"compression": codec})))
            variants.append(("%s-v2-%s" % (table, codec), writes(table, dict(v2, compression=codec))))
    plain = {"compression": "none", "parquet.enable.dictionary": "false"}
    variants += [
        ("flat-v1-none-plain", writes("flat", plain)),
        ("nested-v1-none-plain", writes("nested", plain)),
        ("flat-v1-snappy-bloom", writes("flat", dict(blooms, compression="snappy"))),
        ("flat-v2-snappy-bloom", writes("flat", dict(blooms, compression="snappy", **v2))),
        ("empty", writes("empty", {"compression": "snappy"})),
        ("flat-v1-snappy-millis", writes("flat", {}, outputTimestampType="TIMESTAMP_MILLIS")),
        ("flat-v1-snappy-int96", writes("flat", {}, outputTimestampType="INT96")),
        ("nested-v1-snappy-legacy", writes("nested", {}, writeLegacyFormat="true")),
        ("flat-v1-snappy-legacy", writes("flat", {}, writeLegacyFormat="true")),
    ]
    rows.run("spark", pyspark.__version__, sys.argv[1], variants)
    spark.stop()


if __name__ == "__main__":
    main()
