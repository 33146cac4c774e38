"""One version of one object: a url comes in; checked footers, indexes and pages of that version go out.

``runtime`` has what all reads of a session share: stores, caches, limits, threads. ``source`` makes an
:class:`ObjectSource` for a url. The source finds the object's current :class:`FileVersion` (``version``), and says how
long that version may be used without validation. An :class:`ObjectRead` (``object_read``) is one read of a version: it
gets parts of the object (footer, indexes, pages) from memory, running fetches, other cache tiers or the store;
``coalesce`` merges the ranges of a fetch. ``page_indexes`` and ``bloom_filters`` fetch through it. ``read_plan`` lists
the pages and chunks that a scan fetches.
"""
