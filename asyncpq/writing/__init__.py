"""Writing: files that need few requests to read.

A lake is a folder of files that asyncpq wrote, with an index in it that lists them. Rows and a layout come in; written
files go out, which readers see once a commit to the lake's index lists them. The way through:
``file_layout.py`` has the options, ``file_writer.py`` encodes rows and streams them to the store. ``distributed`` plans
and commits writes, and rewrites lakes with their rows in another order.
"""
