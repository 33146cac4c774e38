"""Many files under one schema: a target comes in, planned files for the executor of ``scan`` go out.

``listing`` finds files and ``partitioning`` reads values from their paths; ``providers`` give the files of each read
(:class:`FileProvider`), and lend the session's stores and caches to catalogs; ``schemas`` unifies their columns and
``column_matching`` matches one file's to the dataset's. ``dataset_files`` rules files out with ``file_statistics``;
``opened_file`` opens the others ahead and plans each. ``model`` is what all share.
"""
