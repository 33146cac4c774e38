"""Files of Daft's own writer, where it has one, and of the pyarrow one that it uses else."""

import glob
import os
import shutil
import sys
import tempfile

import arrow_tables
import daft
import rows


def main(folder):
    """Write every variant."""

    def write(table, path, **options):
        place = tempfile.mkdtemp()
        daft.from_arrow(table).write_parquet(place, **options)
        shutil.copy(max(glob.glob(place + "/*.parquet"), key=os.path.getsize), path)

    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")

    def those_written(table):
        names = rows.usable(table.column_names, lambda name: write(arrow_tables.select(table, [name]), scratch))
        return arrow_tables.select(table, names)

    flat, nested = those_written(arrow_tables.flat()), those_written(arrow_tables.nested())
    variants = [
        ("flat-" + codec, lambda path, codec=codec: write(flat, path, compression=codec))
        for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
    ]
    variants += [
        ("nested-snappy", lambda path: write(nested, path)),
        ("nested-none", lambda path: write(nested, path, compression="none")),
    ]
    rows.run("daft", daft.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
