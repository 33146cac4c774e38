"""The state of an index: numbered, immutable snapshots.

``manifest`` is one snapshot: its tables, its segments and the ids of its files, and their JSON. ``commits`` loads
snapshots, commits the next one against concurrent writers, and reads the list of files.
"""
