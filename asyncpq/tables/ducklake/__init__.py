"""DuckLake tables, whose metadata is in a SQL database.

`catalog` opens one snapshot: `sql_catalog` reads the rows of a table in one transaction, `schema` turns them into
columns, `values` turns their texts into values and bounds, `deletes` finds the deleted rows of a data file, and
`inlined` makes a file in memory of rows that the catalog itself holds.
"""
