"""Pages to Arrow: the only package that decodes values, with pyarrow.

Fetched pages and a plan of a row group come in; Arrow tables of exactly the matching rows go out. Each column has a
*source*: an object that takes the column's fetched pages, and returns its rows as Arrow arrays. ``row_group_reader``
passes the pages to the sources and runs the filter: ``leaf_sources`` decodes flat columns with ``leaf``,
``field_source`` nested ones with ``nested``. ``decoded_size`` limits the decoded bytes, then ``splice`` puts the pages
into a small Parquet file for pyarrow's reader (``arrow``). ``filter`` evaluates the predicate. ``schema_adapter`` and
``casts`` convert a file's columns to a dataset's.
"""
