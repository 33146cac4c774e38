"""Many files under one schema: a target comes in, planned files for the executor of ``scan`` go out.

A target is what the user names: a prefix, a pattern, a list of urls or a table. ``listing`` finds its files, and
``table_markers`` the tables among them; ``partitioning`` reads values from their paths; ``providers`` returns the files
of each read (:class:`FileProvider`), and lends the session's stores and caches to catalogs; ``schemas`` unifies the
files' columns, and ``column_matching`` matches one file's columns to the dataset's. ``dataset_files`` rules files out
with ``file_statistics``; ``opened_file`` opens the others ahead and plans each. All share the classes of ``model``.
"""
