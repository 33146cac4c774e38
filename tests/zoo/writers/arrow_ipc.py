"""Writes the tables as Arrow IPC files, for writers that read Arrow: ``python arrow_ipc.py OUT``.

Categories are text, and UUIDs are left out: not every library writes Arrow's.
"""

import os
import sys

import arrow_tables
import pyarrow as pa
import rows

flat = arrow_tables.flat(without=("uuid",))
at = flat.column_names.index("category")
flat = flat.set_column(at, "category", flat.column("category").cast(pa.string()))
for name, table in (("flat", flat), ("nested", arrow_tables.nested()), ("empty", flat.slice(0, 0))):
    with pa.ipc.new_file(os.path.join(sys.argv[1], name + ".arrow"), table.schema) as out:
        out.write_table(table, rows.GROUP_ROWS)
