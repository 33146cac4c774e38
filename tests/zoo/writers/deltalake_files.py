"""The Parquet files of tables that deltalake writes: by pyarrow up to 0.15 or so, by delta-rs later."""

import glob
import os
import shutil
import sys
import tempfile
from importlib.metadata import version

import arrow_tables
import deltalake
import pyarrow as pa
import rows

try:
    from deltalake import write_deltalake
except ImportError:
    from deltalake.writer import write_deltalake


def write(table, folder, properties=None, **options):
    """Write the table as a Delta table."""
    if properties is not None:
        options["writer_properties"] = deltalake.WriterProperties(**properties)
    write_deltalake(folder, table, **options)


def main(folder):
    """Write every variant; of tables with several files the largest one."""

    def those_written(table):
        names = rows.usable(
            table.column_names, lambda name: write(arrow_tables.select(table, [name]), tempfile.mkdtemp())
        )
        return arrow_tables.select(table, names)

    flat, nested = those_written(arrow_tables.flat(without=("uuid",))), those_written(arrow_tables.nested())

    def file_of(source, properties=None, then=None, **options):
        def variant(path):
            place = tempfile.mkdtemp()
            write(source, place, properties, **options)
            if then is not None:
                then(deltalake.DeltaTable(place))
            found = glob.glob(place + "/**/*.parquet", recursive=True)
            found = [name for name in found if "_delta_log" not in name and "_change_data" not in name]
            shutil.copy(max(found, key=os.path.getmtime), path)

        return variant

    def checkpoint(path):
        place = tempfile.mkdtemp()
        for start in range(0, 60, 20):
            write(flat.slice(start, 20), place, mode="append")
        deltalake.DeltaTable(place).create_checkpoint()
        shutil.copy(glob.glob(place + "/_delta_log/*.parquet")[0], path)

    def merge(table):
        source = arrow_tables.select(flat.slice(0, 50), flat.column_names)
        merged = table.merge(source, predicate="t.n = s.n", source_alias="s", target_alias="t")
        merged.when_matched_update_all().execute()

    def optimize(table):
        write(flat.slice(0, 100), table.table_uri, mode="append")
        table = deltalake.DeltaTable(table.table_uri)
        (table.optimize.compact if hasattr(table.optimize, "compact") else table.optimize)()

    def columns(**options):
        return {"default_column_properties": deltalake.ColumnProperties(**options)}

    small = {"max_row_group_size": rows.GROUP_ROWS, "data_page_size_limit": 512, "write_batch_size": rows.PAGE_ROWS}
    variants = [
        ("flat-defaults", file_of(flat)),
        ("flat-rust", file_of(flat, engine="rust")),
        ("flat-pyarrow", file_of(flat, engine="pyarrow")),
        ("flat-groups", file_of(flat, min_rows_per_group=1, max_rows_per_group=rows.GROUP_ROWS)),
        ("flat-small_pages", file_of(flat, small)),
        ("flat-small_pages-rust", file_of(flat, small, engine="rust")),
        ("flat-large_types", file_of(flat, large_dtypes=True)),
        ("flat-merged", file_of(flat, then=merge)),
        ("flat-optimized", file_of(flat, then=optimize)),
        ("flat-updated", file_of(flat, then=lambda table: table.update(updates={"i32": "7"}, predicate="n < 40"))),
        ("flat-deleted", file_of(flat, then=lambda table: table.delete("n < 40"))),
        ("flat-partitioned", file_of(flat, partition_by=["flag"])),
        ("nested-defaults", file_of(nested)),
        ("nested-small_pages", file_of(nested, small)),
        ("empty", file_of(flat.slice(0, 0))),
        ("checkpoint", checkpoint),
    ]
    for codec in ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "LZ4_RAW", "ZSTD"):
        variants.append(("flat-" + codec.lower(), file_of(flat, dict(small, compression=codec))))
    for name, options in (
        ("plain", {"dictionary_enabled": False}),
        ("delta", {"dictionary_enabled": False, "encoding": "DELTA_BINARY_PACKED"}),
        ("page_statistics", {"statistics_enabled": "PAGE"}),
        ("no_statistics", {"statistics_enabled": "NONE"}),
    ):
        variants.append(
            ("flat-" + name, lambda path, options=options: file_of(flat, dict(small, **columns(**options)))(path))
        )

    def bloom(path):
        filters = deltalake.BloomFilterProperties(True, ndv=300)
        file_of(flat, dict(small, **columns(bloom_filter_properties=filters)))(path)

    rows.run("deltalake", version("deltalake") + " with pyarrow " + pa.__version__, folder, [*variants, ("flat-bloom", bloom)])


if __name__ == "__main__":
    main(sys.argv[1])
