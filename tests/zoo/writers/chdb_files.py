"""Files of ClickHouse, as chdb has it in Python. The tables come in as Arrow files."""

import os
import sys
import tempfile

import arrow_tables
import chdb
import pyarrow as pa
import rows


def arrow_file(table):
    """The table's Arrow file."""
    path = os.path.join(tempfile.mkdtemp(), "source.arrow")
    with pa.OSFile(path, "wb") as sink, pa.RecordBatchFileWriter(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def write(source, path, select="*", **settings):
    """Write a table's Arrow file as Parquet."""
    told = ", ".join(
        "output_format_parquet_%s = %s" % (name, value if isinstance(value, int) else "'%s'" % value)
        for name, value in settings.items()
    )
    chdb.query(
        "INSERT INTO FUNCTION file('%s', Parquet) SELECT %s FROM file('%s', Arrow) SETTINGS engine_file_truncate_on_insert = 1%s"
        % (path, select, source, ", " + told if told else "")
    )
    if not os.path.exists(path):
        raise OSError("nothing was written")


def main(folder):
    """Write every variant."""
    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")

    def those_written(table):
        def attempt(name):
            if os.path.exists(scratch):
                os.remove(scratch)
            write(arrow_file(arrow_tables.select(table, [name])), scratch)

        return arrow_file(arrow_tables.select(table, rows.usable(table.column_names, attempt)))

    flat, nested = those_written(arrow_tables.flat(without=("uuid",))), those_written(arrow_tables.nested())
    empty = arrow_file(arrow_tables.select(arrow_tables.flat(), ["n", "key", "f64", "ts_us"]).slice(0, 0))
    more = (
        "n, key, toUUID(concat('10000000-0000-0000-0000-00000000000', toString(n % 10))) AS uuid, toUInt128(n) AS wide, "
        "toInt256(n) - 5 AS wider, toIPv6('::1') AS v6, toIPv4('10.0.0.1') AS v4, toDateTime(n * 1000, 'UTC') AS moment, "
        "toLowCardinality(toString(n % 5)) AS low, CAST(if(n % 2 = 1, 'a', 'b'), 'Enum8(\\'a\\' = 1, \\'b\\' = 2)') AS letter, "
        "toDate(n) AS day, toDate32('1950-01-01') + n AS day32, toDecimal256(n, 20) AS dec76, toFixedString(toString(n % 9), 3) AS fix"
    )
    small = {"row_group_size": rows.GROUP_ROWS, "data_page_size": 256, "batch_size": rows.PAGE_ROWS}

    def file_of(source, select="*", **settings):
        return lambda path: write(source, path, select, **dict(small, **settings))

    variants = [
        ("flat-" + codec, file_of(flat, compression_method=codec))
        for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
    ]
    variants += [
        ("flat-defaults", lambda path: write(flat, path)),
        ("flat-old_encoder", file_of(flat, use_custom_encoder=0)),
        ("flat-old_encoder-v1", file_of(flat, use_custom_encoder=0, version="1.0")),
        ("flat-version1", file_of(flat, version="1.0")),
        ("flat-page_index", file_of(flat, write_page_index=1)),
        ("flat-no_page_index", file_of(flat, write_page_index=0)),
        ("flat-bloom", file_of(flat, write_bloom_filter=1)),
        ("flat-no_dictionary", file_of(flat, max_dictionary_size=0)),
        ("flat-checksums", file_of(flat, write_checksums=1)),
        ("flat-string_as_binary", file_of(flat, string_as_string=0)),
        ("flat-datetime_as_integer", file_of(flat, datetime_as_uint32=1, date_as_uint16=1)),
        ("flat-geometadata", file_of(flat, geometadata=0)),
        ("types", file_of(flat, more)),
        ("types-old_encoder", file_of(flat, more, use_custom_encoder=0)),
        ("types-fixed_as_string", file_of(flat, more, fixed_string_as_fixed_byte_array=0, enum_as_byte_array=0)),
        ("nested-lz4", file_of(nested, compression_method="lz4")),
        ("nested-none", file_of(nested, compression_method="none", write_page_index=1)),
        ("nested-old_encoder", file_of(nested, use_custom_encoder=0)),
        ("nested-old_names", file_of(nested, use_custom_encoder=0, compliant_nested_types=0)),
        ("empty", lambda path: write(empty, path)),
    ]
    rows.run("chdb", chdb.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
