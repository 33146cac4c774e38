"""Files of arrow-rs through arro3, which offers its writer's options in Python."""

import os
import sys
import tempfile
from importlib.metadata import version

import arrow_tables
import rows
from arro3.core import Table
from arro3.io import write_parquet


def main(folder):
    """Write every variant."""
    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")

    def those_written(table):
        names = rows.usable(
            table.column_names,
            lambda name: write_parquet(Table.from_arrow(arrow_tables.select(table, [name])), scratch),
        )
        return Table.from_arrow(arrow_tables.select(table, names))

    source = arrow_tables.flat()
    flat, nested = those_written(source), those_written(arrow_tables.nested())
    encodings = {
        "n": "delta_binary_packed",
        "i32": "delta_binary_packed",
        "i64": "delta_binary_packed",
        "key": "delta_byte_array",
        "long": "delta_length_byte_array",
        "f32": "byte_stream_split",
        "f64": "byte_stream_split",
    }
    small = {
        "max_row_group_size": rows.GROUP_ROWS,
        "data_page_size_limit": 512,
        "data_page_row_count_limit": rows.PAGE_ROWS,
        "write_batch_size": rows.PAGE_ROWS,
    }

    def write(table, **options):
        return lambda path: write_parquet(table, path, **dict(small, **options))

    variants = [
        ("flat-" + codec.split("(")[0], write(flat, compression=codec))
        for codec in ("uncompressed", "snappy", "gzip(6)", "brotli(4)", "lz4_raw", "lz4", "zstd(3)")
    ]
    v2 = {"writer_version": "parquet_2_0"}
    variants += [
        ("flat-defaults", lambda path: write_parquet(flat, path)),
        ("flat-v2", write(flat, **v2)),
        ("flat-v2-plain", write(flat, dictionary_enabled=False, **v2)),
        ("flat-v2-encodings", write(flat, dictionary_enabled=False, column_encoding=encodings, **v2)),
        ("flat-v1-encodings", write(flat, dictionary_enabled=False, column_encoding=encodings)),
        ("flat-v1-plain", write(flat, dictionary_enabled=False)),
        ("flat-bloom", write(flat, bloom_filter_enabled=True, bloom_filter_ndv=300)),
        ("flat-small_dictionary", write(flat, dictionary_page_size_limit=64)),
        ("flat-statistics_cut", write(flat, max_statistics_size=8)),
        ("flat-no_arrow_schema", write(flat, skip_arrow_metadata=True)),
        ("nested-v1", write(nested)),
        ("nested-v2-zstd", write(nested, compression="zstd(3)", **v2)),
        ("nested-v2-plain", write(nested, dictionary_enabled=False, **v2)),
        ("empty", write(Table.from_arrow(source.slice(0, 0)))),
    ]
    rows.run("arro3-io", version("arro3-io"), folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
