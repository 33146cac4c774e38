"""The data files of Iceberg tables that pyiceberg writes."""

import glob
import os
import shutil
import sys
import tempfile

import arrow_tables
import pyarrow as pa
import pyiceberg
import rows
from pyiceberg.catalog.sql import SqlCatalog


def write(table, properties):
    """Write the table; return its data files."""
    place = tempfile.mkdtemp()
    catalog = SqlCatalog("zoo", uri="sqlite:///%s/catalog.db" % place, warehouse="file://%s" % place)
    catalog.create_namespace("zoo")
    made = catalog.create_table("zoo.t", schema=table.schema, properties=properties)
    made.append(table)
    return glob.glob(place + "/**/*.parquet", recursive=True)


def main(folder):
    """Write every variant."""
    os.environ["PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE"] = "true"

    def those_written(table):
        names = rows.usable(table.column_names, lambda name: write(arrow_tables.select(table, [name]), {}))
        return arrow_tables.select(table, names)

    flat, nested = those_written(arrow_tables.flat()), those_written(arrow_tables.nested())
    small = {
        "write.parquet.row-group-limit": str(rows.GROUP_ROWS),
        "write.parquet.page-size-bytes": "256",
        "write.parquet.page-row-limit": str(rows.PAGE_ROWS),
    }

    def file_of(source, **properties):
        settings = {"write.parquet." + name.replace("_", "-"): value for name, value in properties.items()}

        def variant(path):
            shutil.copy(max(write(source, dict(small, **settings)), key=os.path.getsize), path)

        return variant

    variants = [
        ("flat-" + codec, file_of(flat, compression_codec=codec))
        for codec in ("zstd", "gzip", "snappy", "brotli", "lz4", "uncompressed")
    ]
    variants += [
        ("flat-small_dictionary", file_of(flat, dict_size_bytes="64")),
        ("flat-bloom", file_of(flat, **{"bloom_filter_enabled.column.key": "true"})),
        ("nested-zstd", file_of(nested)),
        ("nested-uncompressed", file_of(nested, compression_codec="uncompressed")),
    ]
    rows.run("pyiceberg", pyiceberg.__version__ + " with pyarrow " + pa.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
