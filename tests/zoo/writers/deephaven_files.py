"""Files of Deephaven's own writer, above parquet-java's. The tables come in as Arrow."""

import os
import sys
import tempfile

import arrow_tables
import rows
from deephaven_server import Server


def main(folder):
    """Write every variant."""
    Server(port=0, jvm_args=["-Xmx1g"])
    import deephaven
    from deephaven import arrow, parquet

    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")

    def those_written(table):
        def attempt(column):
            parquet.write(arrow.to_table(arrow_tables.select(table, [column])), scratch)

        return arrow.to_table(arrow_tables.select(table, rows.usable(table.column_names, attempt)))

    flat, nested = those_written(arrow_tables.flat()), those_written(arrow_tables.nested())
    big = deephaven.empty_table(rows.ROWS).update(
        ["n = ii", "big = java.math.BigInteger.valueOf(ii * 1000000007L - 30000000000L)", "words = new String[]{`a` + i, null}"]
    )

    def write(source, **options):
        return lambda path: parquet.write(source, path, **options)

    variants = [
        ("%s-%s" % (table, codec.lower()), write(source, compression_codec_name=codec, target_page_size=2048))
        for table, source in (("flat", flat), ("nested", nested))
        for codec in ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4", "LZ4_RAW")
    ]
    variants += [
        ("flat-groups", write(flat, row_group_info=parquet.RowGroupInfo.max_rows(rows.GROUP_ROWS))),
        ("flat-index", write(flat, index_columns=[["bucket"]])),
        ("more", write(big)),
        ("empty", write(flat.where("n < 0"))),
    ]
    rows.run("deephaven", deephaven.__version__, folder, variants)
    sys.stdout.flush()
    os._exit(0)  # the JVM's threads go on


if __name__ == "__main__":
    main(sys.argv[1])
