"""Caches of fetched bytes, and in memory also of parsed objects.

A read looks in ``memory`` first, then in each of the ``tiers``: ``disk``, which stores them through ``disk_files``,
and ``shared``, a server reached through ``valkey_connections``. ``entry`` defines keys, and the encoding of entries
outside of the process. ``single_flight`` lets concurrent reads that miss the same bytes share one fetch.
"""
