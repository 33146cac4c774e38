"""Pages to Arrow: the only room that decodes values, with pyarrow.

In come fetched pages and a plan of rows; out come Arrow tables of exactly the matching rows. ``row_group_reader`` hands
the pages to sources of rows: ``leaf_sources`` decode with ``leaf``, ``field_source`` with ``nested``. ``splice`` puts
pages into small Parquet files for pyarrow's reader (``arrow``) after ``decoded_size`` has bounded what comes out.
``filter`` evaluates the predicate; ``schema_adapter`` and ``casts`` turn a file's columns into a dataset's.
"""
