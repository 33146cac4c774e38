"""Use an index in a read: from a predicate to the files, row groups and rows that may match.

``indexed_files`` has the file providers of the views. They ask the open index (``index_query``): a predicate
becomes key ranges (``key_ranges``); ``file_selection`` reads the index tables' rows in these ranges, and selects the
files and rows that they name. ``file_entries`` gives the footers of the selected files.
"""
