"""Writes the rows as an Arrow file, for programs without formulas of their own: ``python arrow_ipc.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from rows import table

rows = table()
with pa.OSFile(str(Path(sys.argv[1]) / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
    writer.write_table(rows, max_chunksize=65_536)
