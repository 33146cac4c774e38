"""Caches of what was read: bytes by key, and in memory also parsed objects, until they are evicted.

``memory`` is asked first, then ``tiers`` in turn: ``disk``, on files of ``entry_folder``, and ``shared``, over
``valkey_connections``. ``entry`` has the keys and the encoding outside of the process. ``single_flight`` is apart: it
lets reads that miss the same bytes share one fetch.
"""
