"""Many files under one schema: a target comes in, planned files for the executor of ``scan`` go out.

``listing`` finds files and ``partitioning`` reads values from their paths; ``providers`` give the files of each read
(:class:`FileProvider`); ``schemas`` unifies their columns and ``columns`` matches one file's to the dataset's.
``dataset_files`` rules files out with ``file_statistics``, opens the others ahead with ``opener``, and plans each
(``opened_file``). ``catalog_reader`` lends the session's stores and caches to catalogs; ``model`` is what all share.
"""
