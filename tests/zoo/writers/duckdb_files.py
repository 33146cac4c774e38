"""Files of DuckDB. Its row groups have at least 2,048 rows, so some tables are larger."""

import os
import sys
import tempfile

import arrow_tables
import duckdb
import rows

LARGE = 5000
CASTS = {"category": "CAST(category AS VARCHAR)", "uuid": "CAST(CAST(uuid_text AS VARCHAR) AS UUID) AS uuid"}
MORE = {
    "huge": "CAST(n AS HUGEINT) * 1000000007 AS huge",
    "color": "CASE WHEN n % 3 = 0 THEN NULL ELSE CAST(CASE n % 4 WHEN 1 THEN 'red' WHEN 2 THEN 'green' ELSE 'blue' END AS color) END AS color",
    "span": "CASE WHEN n % 5 = 0 THEN NULL ELSE INTERVAL (n) MINUTE END AS span",
    "ts_s": "CAST(CAST(ts_ms AS TIMESTAMP) AS TIMESTAMP_S) AS ts_s",
    "bits": "CAST(CAST(n AS VARCHAR) AS BLOB) AS bits",
    "tz_time": "CAST(t_us AS TIMETZ) AS tz_time",
    "stamp": "CAST(ts_us AS TIMESTAMP) AS stamp",
}


def table(connection, name, source):
    """Make a table of the columns that this version takes and writes."""
    scratch = tempfile.mkdtemp()

    def attempt(column):
        sql = CASTS.get(column, MORE.get(column, '"%s"' % column))
        connection.execute("COPY (SELECT %s FROM source_%s) TO '%s/x.parquet' (FORMAT PARQUET)" % (sql, name, scratch))

    available = []
    for column in source.column_names:
        one = arrow_tables.select(source, [column])
        try:
            connection.register("one", one)
            connection.execute("SELECT * FROM one").fetchall()
            available.append(column)
        except BaseException as error:
            print("skipped column-%s: %s" % (column, " ".join(str(error).split())[:200]))
    connection.register("arrow_" + name, arrow_tables.select(source, available))
    connection.execute("CREATE TABLE source_%s AS SELECT * FROM arrow_%s" % (name, name))
    wanted = [c for c in available if c != "uuid_text"]
    if "uuid_text" in available:
        wanted += ["uuid", *MORE]
    names = rows.usable(wanted, attempt)
    columns = ", ".join(CASTS.get(c, MORE.get(c, '"%s"' % c)) for c in names)
    connection.execute("CREATE TABLE %s AS SELECT %s FROM source_%s" % (name, columns, name))


def with_uuid_text(number):
    """`flat` with UUIDs as text."""
    import pyarrow as pa

    source = arrow_tables.flat(number, without=("uuid",))
    texts = [None if value is None else str(value) for value in rows.flat(number)["uuid"]]
    return pa.Table.from_arrays([*source.columns, pa.array(texts, pa.string())], [*source.column_names, "uuid_text"])


def main(folder):
    """Write every variant."""
    connection = duckdb.connect(os.path.join(tempfile.mkdtemp(), "zoo.db"))
    for statement in ("PRAGMA threads=1", "CREATE TYPE color AS ENUM ('red', 'green', 'blue')"):
        try:
            connection.execute(statement)
        except Exception as error:
            print("skipped %s: %s" % (statement, error))
    table(connection, "flat", with_uuid_text(rows.ROWS))
    table(connection, "large", with_uuid_text(LARGE))
    table(connection, "nested", arrow_tables.nested())

    def write(source, **options):
        settings = ", ".join(["FORMAT PARQUET"] + ["%s %s" % item for item in options.items()])
        return lambda path: connection.execute("COPY (%s) TO '%s' (%s)" % (source, path, settings))

    flat, large, nested = "SELECT * FROM flat", "SELECT * FROM large", "SELECT * FROM nested"
    v2 = {"PARQUET_VERSION": "V2"}
    indexed = {"WRITE_PAGE_INDEX": "true", "DATA_PAGE_SIZE_LIMIT": 1024}
    rows.run(
        "duckdb",
        duckdb.__version__,
        folder,
        [
            ("flat-defaults", write(flat)),
            ("flat-uncompressed", write(flat, CODEC="UNCOMPRESSED")),
            ("flat-gzip", write(flat, CODEC="GZIP")),
            ("flat-zstd", write(flat, CODEC="ZSTD")),
            ("flat-brotli", write(flat, CODEC="BROTLI")),
            ("flat-lz4", write(flat, CODEC="LZ4_RAW")),
            ("flat-no_dictionary", write(flat, DICTIONARY_SIZE_LIMIT=1, CODEC="UNCOMPRESSED")),
            ("flat-v2", write(flat, **v2)),
            ("flat-v2-no_dictionary", write(flat, DICTIONARY_SIZE_LIMIT=1, **v2)),
            ("flat-v2-small_dictionary", write(flat, STRING_DICTIONARY_PAGE_SIZE_LIMIT=64, **v2)),
            ("flat-indexes", write(flat, **indexed)),
            ("flat-v2-indexes-no_dictionary", write(flat, DICTIONARY_SIZE_LIMIT=1, **indexed, **v2)),
            ("large-groups", write(large, ROW_GROUP_SIZE=2048)),
            ("large-groups-indexes", write(large, ROW_GROUP_SIZE=2048, **indexed)),
            ("large-groups-v2-zstd", write(large, ROW_GROUP_SIZE=2048, CODEC="ZSTD", **v2)),
            ("large-one_group", write(large, ROW_GROUP_SIZE=100000)),
            ("nested-defaults", write(nested)),
            ("nested-indexes", write(nested, **indexed)),
            ("nested-v2-indexes", write(nested, **indexed, **v2)),
            ("nested-v2-zstd", write(nested, CODEC="ZSTD", **v2)),
            ("nested-no_dictionary", write(nested, DICTIONARY_SIZE_LIMIT=1)),
            ("empty", write(flat + " WHERE n < 0")),
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1])
