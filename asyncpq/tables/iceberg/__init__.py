"""Iceberg tables; the only package that uses pyiceberg, which decodes the metadata and never reads a file itself.

`catalog` opens one snapshot: `metadata` finds and decodes the table's metadata file; `manifests` decodes manifest lists
and manifests, and prunes manifests and files by their partition values; `avro` reads and decompresses their bytes
within bounds. `schema` maps columns and bounds; `deletes` finds the deleted rows of each data file.
"""
