"""Files of Polars' own writer."""

import io
import sys

import arrow_tables
import polars as pl
import rows


def frame(table):
    """The columns of an Arrow table that this version takes and writes."""
    def column(name):
        one = pl.from_arrow(arrow_tables.select(table, [name]))
        one.write_parquet(io.BytesIO())
        return one

    names = rows.usable(table.column_names, column)
    return pl.concat([column(name) for name in names], how="horizontal")


def main(folder):
    """Write every variant."""
    flat, nested = frame(arrow_tables.flat(without=("uuid",))), frame(arrow_tables.nested())
    small = {"row_group_size": rows.GROUP_ROWS}

    def write(source, **options):
        return lambda path: source.write_parquet(path, **options)

    def sink(source, **options):
        return lambda path: source.lazy().sink_parquet(path, **options)

    variants = [
        ("flat-" + codec, write(flat, compression=codec, **small))
        for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4")
    ]
    variants += [
        ("flat-defaults", write(flat)),
        ("flat-statistics", write(flat, statistics=True, **small)),
        ("flat-statistics_full", write(flat, statistics="full", **small)),
        ("flat-no_statistics", write(flat, statistics=False, **small)),
        ("flat-small_pages", write(flat, statistics=True, data_page_size=256, compression="zstd", **small)),
        ("flat-small_pages-one_group", write(flat, statistics=True, data_page_size=100, compression="snappy")),
        ("flat-sink", sink(flat, row_group_size=rows.GROUP_ROWS)),
        ("flat-sink-small_pages", sink(flat, statistics=True, data_page_size=256, row_group_size=rows.GROUP_ROWS)),
        ("nested-zstd", write(nested, **small)),
        ("nested-uncompressed", write(nested, compression="uncompressed", statistics=True, **small)),
        ("nested-small_pages", write(nested, statistics=True, data_page_size=256, **small)),
        ("nested-sink", sink(nested, row_group_size=rows.GROUP_ROWS)),
        ("empty", write(flat.head(0))),
    ]
    rows.run("polars", pl.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
