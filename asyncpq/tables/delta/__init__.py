"""Delta tables, read from their log without the ``deltalake`` library.

`catalog` opens one version of a table: `log` lists and replays the commits and checkpoints into ``add`` actions,
`schema` decodes the protocol and the columns, `files` the urls, deletion vectors, statistics and partition values. The
result is a list of data files with bounds, partition values and deleted rows.
"""
