"""DuckLake tables, whose metadata is in a SQL database.

`catalog` opens one snapshot and finds the deleted rows of its data files: `sql_catalog` reads the rows of a table in
one transaction, `schema` turns them into columns and their texts into values and bounds, and `inlined` makes a file in
memory of rows that the catalog itself holds.
"""
