"""Files of Kuzu's own writer, and of Ladybug's, which goes on from it: the module's name is an argument."""

import importlib
import os
import sys
import tempfile

import arrow_tables
import pyarrow.parquet as pq
import rows


def main(name, folder):
    """Write every variant."""
    library = importlib.import_module(name)
    connection = library.Connection(library.Database(":memory:"))
    scratch = os.path.join(tempfile.mkdtemp(), "source.parquet")

    def copy(table, path, where="", **options):
        pq.write_table(table, scratch)
        told = ", ".join("%s='%s'" % option for option in options.items())
        columns = ", ".join("`%s`" % column for column in table.column_names)
        connection.execute(
            "COPY (LOAD FROM '%s' %s RETURN %s) TO '%s' %s" % (scratch, where, columns, path, told and "(" + told + ")")
        )

    def those_written(table):
        def attempt(column):
            copy(arrow_tables.select(table, [column]), scratch + ".out.parquet")

        return arrow_tables.select(table, rows.usable(table.column_names, attempt))

    flat, nested = those_written(arrow_tables.flat()), those_written(arrow_tables.nested())
    variants = [
        ("%s-%s" % (table, codec), lambda path, source=source, codec=codec: copy(source, path, compression=codec))
        for table, source in (("flat", flat), ("nested", nested))
        for codec in ("uncompressed", "snappy", "gzip", "zstd")
    ]
    variants.append(("empty", lambda path: copy(flat, path, where="WHERE n < 0")))
    rows.run(name, library.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
